"""A cluster from the client's side: its address, the way in, cells handed out and results taken in.

This module and its neighbours ``cluster_*`` are the only users of dask.distributed. Whoever can
connect to a process of dask can have it run any program. So each of them, on the loopback too,
speaks TLS alone, and both ends show a certificate of the same authority (`cluster_tls`).
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
from lab.cluster import tls as cluster_tls
from lab.cluster.files import sums_of
from lab.core.errors import HostError, InputError, TroubleError
from lab.host.system import clock, deadline
from lab.model.cluster import Assignment, HostFacts, Returned
from lab.model.image.manifest import ImageManifest, directory_name

PORT: Final = 8786
"""Where dask's schedulers listen, if nobody says otherwise."""
RETRIES: Final = 2
"""How often a cell is handed out again whose host failed; dask gives up after as many kills."""
GLANCE: Final = 0.05
"""Seconds between looks at what came back."""
CONNECTING: Final = 10.0
"""Seconds within which a scheduler must answer."""
ANSWERS: Final = 60.0
"""Seconds for the scheduler, and for every host, to answer a question. A host that is stopped keeps
its connections: dask's own limits do not find it until it has been silent for :data:`SILENT`."""
ENDINGS: Final = 240.0
"""Seconds for hosts to take the guests of a run down."""
SILENT: Final = 60.0
"""Seconds without a sign of life after which dask takes a host for dead, and hands its cells out
again."""
EXTRA: Final = "cluster"


def load() -> Any:
    """dask.distributed, quiet; ``InputError`` where it is not installed."""
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
            "distributed.worker.profile.enabled": False,  # it looks 100 times a second
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
    """What client and workers must have in common; the same version may have been changed."""
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
    """A scheduler's address, and the certificate that it wants to see."""

    address: str
    """``tls://127.0.0.1:8786``."""
    tls: Path
    """Directory of the certificate."""

    def security(self) -> Any:
        """dask's settings: TLS 1.3 alone, and both ends verify the other's certificate."""
        ca, cert, key = (str(self.tls / name) for name in cluster_tls.FILES)
        roles = ("client", "scheduler", "worker")
        own = {f"tls_{r}_cert": cert for r in roles} | {f"tls_{r}_key": key for r in roles}
        version = ssl.TLSVersion.TLSv1_3
        return load().Security(
            require_encryption=True, tls_ca_file=ca, tls_min_version=version, **own
        )


def door(text: str, tls: Path) -> Door:
    """The way to a scheduler; ``InputError``: not an address, or not a usable certificate."""
    address = address_of(text)
    cluster_tls.check(tls)
    return Door(address=address, tls=tls)


def address_of(text: str) -> str:
    """``tls://HOST:PORT`` of ``HOST[:PORT]`` or ``tls://HOST[:PORT]``; ``InputError``: neither."""
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
    """A cell that came to nothing, on every host that tried it."""

    cell: str
    reason: str


Result = Returned | Failed


class Link:
    """A connection to a scheduler."""

    def __init__(self, client: Any, address: str) -> None:
        self._client = client
        self.address = address

    def hosts(self) -> tuple[dict[str, HostFacts], list[str]]:
        """Facts of each host by its worker's address; sentences about those that are none of ours.

        ``HostError``: the scheduler has gone.
        """
        from lab.cluster.worker import tell_facts

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
        """What each worker offers, by its address; ``HostError``: the scheduler has gone."""
        identity = self._client.scheduler.identity  # what the client itself knows may be old
        workers = self._sure(lambda: self._client.sync(identity)["workers"])
        return {address: dict(worker["resources"]) for address, worker in workers.items()}

    def has_image(self, manifest: ImageManifest) -> bool:
        """Whether the scheduler's machine has this very image; ``HostError``: it is not a lab's."""
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
        """Put a run where hosts find it."""
        text = assignment.model_dump_json()
        self._sure(lambda: self._client.set_metadata([f"lab-{assignment.run}"], text))

    def listen(self, run: str, hear: Any) -> None:
        """Have what hosts say of a run told to ``hear``, in another thread."""

        def handle(event: tuple[float, dict[str, Any]]) -> None:
            # The scheduler has added who said it (`Scheduler.log_worker_event`).
            hear({name: value for name, value in event[1].items() if name != "worker"})

        self._client.subscribe_topic(f"lab-{run}", handle)

    def results(
        self,
        run: str,
        cells: Sequence[tuple[str, Mapping[str, float]]],
        inputs: Mapping[str, str] = MappingProxyType({}),
    ) -> Iterator[Result | None]:
        """Hand out cells, each with what it takes, and yield what comes back as it comes.

        The first one is to begin first. ``None`` comes where nothing has for a moment. dask decides
        which host runs which cell, and hands out again what was on a host that is gone.

        ``inputs``: digests of the inputs of sealed cells. Such a digest is the task's key: dask
        runs it once for all cells and clients that want it meanwhile.
        """
        from lab.cluster.worker import run_cell

        distributed = load()
        token = token_hex(4)  # what an earlier client left on the scheduler is not meant
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
        del futures  # each is let go as its result is taken
        try:
            while done.count():
                batch = done.next_batch(block=False)
                for future, result in batch:
                    for cell in cells_of[future.key]:
                        # Not by the future's status: its host may have died since it was fetched.
                        if not isinstance(result, Returned):
                            yield Failed(cell=cell, reason=_reason(future, result))
                        elif cell in inputs:  # another run may call it by another name
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
        """Have the hosts end what they have up for a run, and wait for that.

        By their names, JSON of each calibration that they know then.
        """
        from lab.cluster.worker import finish_run

        try:
            answers = self._on_all(finish_run, run, seconds=ENDINGS).values()
        except _LateError:
            return {}  # a host that is stopped; the others have heard it
        return dict(a for a in answers if isinstance(a, tuple) and len(a) == 2)

    def abandon(self, run: str) -> None:
        """Have the hosts drop a run at once; a host that does not hear it will notice."""
        from lab.cluster.worker import abandon_run

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
    """No answer came in time."""


def gone(address: str, why: str) -> HostError:
    """The sentence for a scheduler that does not answer any more."""
    return HostError(
        f"the scheduler at {address} does not answer any more: {why or 'the connection broke'}",
        hint="what is finished is kept: `lab run … --resume RUN` goes on, here or on a cluster",
    )


def _reason(future: Any, result: Any) -> str:
    """Why a task came to nothing, in one sentence."""
    error = result[1] if isinstance(result, tuple) and len(result) > 1 else result
    if future.status in ("cancelled", "lost"):
        return "the scheduler has dropped it"
    if type(error).__name__ == "KilledWorker":
        return f"{RETRIES + 1} workers that had it died, one after the other"
    return str(error) or type(error).__name__


@contextmanager
def connected(to: Door) -> Iterator[Link]:
    """A connection to a scheduler; ``HostError``: none answers there."""
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
    """``InputError`` where a host has another lab than the client: no figure would be one run's."""
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
    """The sentence for a run that no host is left for."""
    return TroubleError(
        f"no host is left in the cluster at {link.address} that could run the cells that are left",
        hint="`lab cluster worker` brings one; `lab run … --resume RUN` goes on",
    )
