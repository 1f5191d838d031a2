"""A cluster from the client's side: connect to the scheduler, submit cells, receive results.

Only this package uses dask.distributed. Anyone who can connect to a dask process can run any
program in it. So all processes speak TLS only, on the loopback too, and both ends require a
certificate of the same authority (`lab.capabilities.cluster.tls`).
"""

from __future__ import annotations

import hashlib
import logging
import platform
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import ValidationError

import drive
import lab
from lab.capabilities.cluster import tls as cluster_tls
from lab.capabilities.cluster.files import sums_of
from lab.capabilities.cluster.model import Assignment, HostFacts, Returned
from lab.core.errors import HostError, InputError, TroubleError
from lab.host.system import clock, deadline
from lab.model.image.manifest import ImageManifest, directory_name

PORT: Final = 8786
"""Default port of dask's scheduler."""
RETRIES: Final = 2
"""Times that a cell is submitted again after its host failed. It is also dask's own limit."""
GLANCE: Final = 0.05
"""Seconds between polls for results."""
CONNECTING: Final = 10.0
"""Timeout in seconds for connecting to a scheduler."""
ANSWERS: Final = 60.0
"""Timeout in seconds for replies of the scheduler or of all hosts. A stopped host keeps its
connections, and dask notices it only after :data:`SILENT`."""
ENDINGS: Final = 240.0
"""Timeout in seconds for hosts to end the guests of a run."""
SILENT: Final = 60.0
"""Seconds without a heartbeat after which dask considers a host dead, and reassigns its cells."""
EXTRA: Final = "cluster"


def load() -> Any:
    """Import dask.distributed with its logging reduced; ``InputError``: it is not installed."""
    try:
        import dask
        import distributed
    except ImportError as error:
        raise InputError(
            f"dask.distributed is not installed ({error.name or error} is missing)",
            hint=f"it is the extra '{EXTRA}': pip install 'raid-lab[{EXTRA}]', or in a checkout"
            f" .venv/bin/pip install -r requirements/{EXTRA}.txt",
        ) from error
    dask.config.set(
        {
            "distributed.worker.profile.enabled": False,  # it samples 100 times a second
            "distributed.scheduler.http.routes": [],
            "distributed.worker.http.routes": [],
            "distributed.scheduler.worker-ttl": f"{clock.limit(SILENT):g}s",
            "distributed.scheduler.allowed-failures": RETRIES,
            "distributed.admin.large-graph-warning-threshold": "1GB",
        }
    )
    for name in ("distributed", "tornado", "bokeh"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return distributed


def programs() -> dict[str, str]:
    """Return the versions that must be equal on client and workers, and digests of files."""
    root, drives = Path(lab.__file__).parent, Path(drive.__file__).parent
    found = {str(path.relative_to(root)): path for path in root.rglob("*.py")}
    found |= {f"drive/{path.name}": path for path in drives.glob("*") if path.is_file()}
    whole = hashlib.sha256()
    for name, path in sorted(found.items()):
        whole.update(name.encode() + b"\0" + path.read_bytes())
    return {
        "lab": lab.__version__,
        "the lab's files": whole.hexdigest()[:12],
        "python": ".".join(platform.python_version_tuple()[:2]),
        "distributed": str(load().__version__),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """A scheduler's address, and the certificate for connecting to it."""

    address: str
    """Such as ``tls://127.0.0.1:8786``."""
    tls: Path
    """Directory of the certificate."""

    def security(self) -> Any:
        """dask's TLS settings: only TLS 1.3, and both ends verify the other's certificate."""
        ca, cert, key = (str(self.tls / name) for name in cluster_tls.FILES)
        roles = ("client", "scheduler", "worker")
        own = {f"tls_{r}_cert": cert for r in roles} | {f"tls_{r}_key": key for r in roles}
        version = ssl.TLSVersion.TLSv1_3
        return load().Security(
            require_encryption=True, tls_ca_file=ca, tls_min_version=version, **own
        )


def door(text: str, tls: Path) -> Door:
    """Return address and certificate; ``InputError``: either is invalid."""
    address = address_of(text)
    cluster_tls.check(tls)
    return Door(address=address, tls=tls)


def address_of(text: str) -> str:
    """Parse ``HOST[:PORT]`` or ``tls://HOST[:PORT]``, return ``tls://HOST:PORT``;
    ``InputError``."""
    scheme, _, rest = text.rpartition("://")
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname, parts.port if parts.port is not None else PORT
    except ValueError:
        host, port = None, 0
    if scheme == "tcp":
        raise InputError(
            f"'{text}' is an address without TLS, and the lab does not connect to it: anyone who"
            " reaches such a scheduler can run programs on every host",
            hint=f"leave out 'tcp://': {rest}",
        )
    if scheme not in ("", "tls") or not host:
        raise InputError(
            f"'{text}' is no address of a scheduler: expected HOST, HOST:PORT or tls://HOST:PORT"
        )
    shown = f"[{host}]" if ":" in host else host
    return f"tls://{shown}:{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A cell that failed on every host that tried it."""

    cell: str
    reason: str


Result = Returned | Failed


class Link:
    """A connection to a scheduler."""

    def __init__(self, client: Any, address: str) -> None:
        self._client = client
        self.address = address

    def hosts(self) -> tuple[dict[str, HostFacts], list[str]]:
        """Return facts of each host by its worker's address, and a sentence per worker that is no
        lab's.

        ``HostError``: the scheduler does not answer.
        """
        from lab.capabilities.cluster.worker import tell_facts

        answers = self._on_all(tell_facts, seconds=ANSWERS)
        known: dict[str, HostFacts] = {}
        strange = []
        for address, answer in answers.items():
            try:
                known[address] = HostFacts.model_validate(answer)
            except ValidationError:
                strange.append(f"the worker at {address} is not of this lab's version, or no lab's")
        return known, strange

    def offers(self) -> dict[str, dict[str, float]]:
        """Return each worker's resources by its address; ``HostError``: the scheduler does not
        answer."""
        identity = self._client.scheduler.identity  # the client's own copy may be outdated
        workers = self._sure(lambda: self._client.sync(identity)["workers"])
        return {address: dict(worker["resources"]) for address, worker in workers.items()}

    def has_image(self, manifest: ImageManifest) -> bool:
        """Whether the scheduler's machine has exactly this image; ``HostError``: it runs no lab."""
        ask = self._client.scheduler.lab_has_image
        name, sums = directory_name(manifest.name, manifest.digest), sums_of(manifest)
        answer = self._sure(lambda: self._client.sync(ask, image=name, sums=sums))
        if not isinstance(answer, bool):
            raise HostError(
                "the scheduler is not one of the lab's: it has no images to hand out",
                hint="start it with `lab cluster scheduler`, or `lab cluster local N`",
            )
        return answer

    def post(self, assignment: Assignment) -> None:
        """Store a run's assignment with the scheduler, for the hosts."""
        text = assignment.model_dump_json()
        self._sure(lambda: self._client.set_metadata([f"lab-{assignment.run}"], text))

    def listen(self, run: str, hear: Any) -> None:
        """Call ``hear`` with each event of the run that a host reports, in another thread."""

        def handle(event: tuple[float, dict[str, Any]]) -> None:
            # The scheduler adds the sender (`Scheduler.log_worker_event`).
            hear({name: value for name, value in event[1].items() if name != "worker"})

        self._client.subscribe_topic(f"lab-{run}", handle)

    def results(
        self,
        run: str,
        cells: Sequence[tuple[str, Mapping[str, float]]],
        inputs: Mapping[str, str] = MappingProxyType({}),
    ) -> Iterator[Result | None]:
        """Submit cells with the resources that each needs, and yield results as they arrive.

        Cells start in the given order. ``None`` is yielded when no result arrived for a moment.
        dask assigns cells to hosts, and reassigns those of a lost host.

        ``inputs``: digests of the inputs of sealed cells. The digest is the task's key, so dask
        runs the task once for all cells and clients that want it meanwhile.
        """
        from lab.capabilities.cluster.worker import run_cell

        distributed = load()
        token = token_hex(4)  # makes keys differ from an earlier client's
        groups: dict[tuple[tuple[str, float], ...], list[str]] = {}
        cells_of: dict[str, list[str]] = {}
        for cell, wants in cells:
            key = f"sealed-{inputs[cell]}" if cell in inputs else f"{cell}-{token}"
            if key not in cells_of:
                groups.setdefault(tuple(sorted(wants.items())), []).append(key)
            cells_of.setdefault(key, []).append(cell)
        futures = []
        for taken, keys in groups.items():
            futures += self._client.map(
                run_cell,
                [run] * len(keys),
                [cells_of[key][0] for key in keys],
                [cells_of[key][0] in inputs for key in keys],
                key=keys,
                resources=dict(taken),
                retries=RETRIES,
                pure=False,
            )
        done = distributed.as_completed(
            futures, loop=self._client.loop, with_results=True, raise_errors=False
        )
        del futures  # each is released when its result was taken
        try:
            while done.count():
                batch = done.next_batch(block=False)
                for future, result in batch:
                    for cell in cells_of[future.key]:
                        # Don't check the future's status: its host may have died after the result
                        # was fetched.
                        if not isinstance(result, Returned):
                            yield Failed(cell=cell, reason=_reason(future, result))
                        elif cell in inputs:  # another run may use another id for it
                            yield replace(result, cell=cell)
                        elif result.cell == cell:
                            yield result
                        else:
                            yield Failed(cell=cell, reason=f"a host sent '{result.cell}' instead")
                    future.release()
                del batch
                if not done.has_ready():
                    yield None
                    clock.pause(GLANCE)
        finally:
            done.clear()

    def finish(self, run: str) -> dict[str, tuple[str, ...]]:
        """Make the hosts end the guests of a run, and wait for that.

        Return the calibrations that each host knows then, as JSON, by the host's name.
        """
        from lab.capabilities.cluster.worker import finish_run

        try:
            answers = self._on_all(finish_run, run, seconds=ENDINGS).values()
        except _LateError:
            return {}  # a host is stopped; the others have received it
        return dict(a for a in answers if isinstance(a, tuple) and len(a) == 2)

    def abandon(self, run: str) -> None:
        """Make the hosts drop a run at once, without waiting for replies."""
        from lab.capabilities.cluster.worker import abandon_run

        with suppress(HostError):
            self._on_all(abandon_run, run, seconds=ANSWERS)

    def _on_all(self, function: Any, *words: str, seconds: float) -> dict[str, Any]:
        found: dict[str, Any] = self._sure(
            lambda: self._client.run(function, *words, on_error="return"), seconds
        )
        return found

    def _sure(self, ask: Any, seconds: float = ANSWERS) -> Any:
        try:
            what = f"the cluster at {self.address} to answer"
            return deadline.call(ask, seconds=clock.limit(seconds), what=what, error=_LateError)
        except _LateError as error:
            raise _LateError(
                error.message,
                hint="a host or the scheduler may be stopped; a host that is leaves the cluster"
                f" after {SILENT:.0f} s; `lab run … --resume RUN` goes on with what is finished",
            ) from None
        except (OSError, TimeoutError, RuntimeError) as error:
            raise gone(self.address, str(error)) from error
        except (AttributeError, KeyError) as error:
            if self._client.status == "running":
                raise
            raise gone(self.address, "the client has given up") from error


class _LateError(HostError):
    """No reply arrived in time."""


def gone(address: str, why: str) -> HostError:
    """Return the error for a scheduler that no longer answers."""
    return HostError(
        f"the scheduler at {address} does not answer any more: {why or 'the connection broke'}",
        hint="what is finished is kept: `lab run … --resume RUN` goes on, here or on a cluster",
    )


def _reason(future: Any, result: Any) -> str:
    """Return one sentence: why a task failed."""
    error = result[1] if isinstance(result, tuple) and len(result) > 1 else result
    if future.status in ("cancelled", "lost"):
        return "the scheduler has dropped it"
    if type(error).__name__ == "KilledWorker":
        return f"{RETRIES + 1} workers that had it died, one after the other"
    return str(error) or type(error).__name__


@contextmanager
def connected(to: Door) -> Iterator[Link]:
    """Yield a connection to a scheduler; ``HostError``: none answers at the address."""
    distributed = load()
    try:
        client = distributed.Client(
            to.address, security=to.security(), timeout=CONNECTING, set_as_default=False
        )
    except (OSError, TimeoutError, ValueError) as error:
        raise cluster_tls.refused(to.address, to.tls, error) from error
    try:
        yield Link(client, to.address)
    finally:
        client.close(timeout=CONNECTING)


def differing(hosts: Iterable[HostFacts]) -> None:
    """``InputError``: a host has another version than the client, so results would not compare."""
    mine = programs()
    for host in hosts:
        wrong = [
            f"{name} {host.programs.get(name, 'of no version')} instead of {version}"
            for name, version in mine.items()
            if host.programs.get(name) != version
        ]
        if wrong:
            raise InputError(
                f"the host '{host.name}' has {', '.join(wrong)}",
                hint="install the same on every host, and start `lab cluster worker` there anew",
            )


def alone(link: Link) -> TroubleError:
    """Return the error for a run without remaining hosts."""
    return TroubleError(
        f"no host is left in the cluster at {link.address} that could run the cells that are left",
        hint="`lab cluster worker` brings one; `lab run … --resume RUN` goes on",
    )
