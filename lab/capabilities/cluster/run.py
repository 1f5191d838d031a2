"""The client's part of a run on a cluster."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from secrets import token_hex
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from lab.capabilities.cluster import client as cluster
from lab.capabilities.cluster import logic as resources
from lab.capabilities.cluster.client import Door, Failed, Link
from lab.capabilities.cluster.model import (
    OUTCOME,
    Assignment,
    ClusterWorkerEvent,
    HostFacts,
    Returned,
    Said,
)
from lab.capabilities.cluster.worker_process import image_key
from lab.compile.cell.procedure import cell_procedure
from lab.compile.guest.virtual_time import is_sealed
from lab.compile.scenario.compiler import Compiled
from lab.compile.scenario.identity import cell_id
from lab.core.errors import HostError, InputError, TroubleError
from lab.core.yaml import dotted
from lab.host import images
from lab.host.system import clock, files
from lab.host.system.accelerator import Accelerator
from lab.model.execution.events import CellFinished, CellStarted
from lab.model.image.manifest import Image
from lab.model.result.calibration import Calibration
from lab.model.scenario.document import AutoTrials, Cell
from lab.model.scenario.guest import Guest, System, is_file
from lab.run.environment import image_facts, source_facts
from lab.run.options import RunOptions
from lab.run.preparation import systems
from lab.run.preparation.platforms import Platform
from lab.run.preparation.real import wanted_disks
from lab.run.task import need_of, seconds_of
from lab.run.worker_pool import Say, Watch
from lab.store.runs import RunStore, StoredOutcome

_EVENT: TypeAdapter[ClusterWorkerEvent] = TypeAdapter(ClusterWorkerEvent)
LOOKING: Final = 5.0
"""Seconds between checks of the remaining hosts, while no result arrives."""
MANY: Final = 1000
"""Above this number of cells they are not ordered: predicting them all would take seconds."""
LONELY: Final = 120.0
"""Seconds that a run waits for a host that can run its remaining cells."""


@dataclass(slots=True, kw_only=True)
class ClusterExecutor:
    """Runs a scenario's cells on the hosts of a cluster."""

    link: Link
    hosts: dict[str, HostFacts]
    """By their worker's address, at the start of the run."""
    options: RunOptions
    watch: Watch
    say: Say
    _heard: SimpleQueue[Any] = field(default_factory=SimpleQueue)
    _cells: frozenset[str] = frozenset()
    """Ids of the submitted cells."""
    _ran: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Facts of the hosts that have finished a cell of the run, by host name."""
    _calibrated: dict[str, Sequence[str]] = field(default_factory=dict)
    """Each host's latest calibrations."""
    _lonely: float | None = None
    """Time since which no host can run the remaining cells."""
    _looked: float = 0.0

    @property
    def accelerator(self) -> str:
        """The accelerator of all guests: KVM if any host has it. Hosts without it are not used."""
        kinds = {host.accelerator for host in self.hosts.values()}
        return "kvm" if "kvm" in kinds else "tcg"

    @property
    def _able(self) -> list[HostFacts]:
        able = [h for h in self.hosts.values() if h.accelerator == self.accelerator]
        return sorted(able, key=lambda host: host.name)

    # -- the interface that `execute` uses

    @property
    def at_once(self) -> int:
        """Most guests in virtual time that run at once, on all hosts."""
        return max(sum(host.virtual for host in self._able), 1)

    def place(self, guest: Guest, progress: images.Progress) -> Platform:
        """Return the client's image and the hosts' accelerator."""
        if guest.kernel is not None and is_file(guest.kernel) and not guest.kernel.endswith(".deb"):
            raise InputError(
                f"guest.kernel: '{guest.kernel}' is a file of this machine, and a cluster's hosts"
                " do not have it",
                hint="a .deb becomes part of an image, and images are fetched",
            )
        image = systems.find(guest) or systems.build(
            guest, progress, accept_expired=self.options.accept_expired
        )
        names = ", ".join(host.name for host in self._able)
        kind = self.accelerator
        reason = f"{kind.upper()}, on the cluster at {self.link.address}: {names}"
        return Platform(accelerator=Accelerator(kind=kind, reason=reason), image=image, emulator="")

    def check_disks(self, cells: Sequence[Cell], erase: Sequence[str]) -> bool:
        """Check the use of real disks; whether they are available is checked by their hosts."""
        return bool(wanted_disks(cells, erase))

    def environment(self, place: Platform) -> dict[str, Any]:
        """Return facts that all hosts share, and each host's own value where they differ."""
        return _environment({h.name: h.environment for h in self._able}, place)

    def take(
        self,
        _store: RunStore,
        _platforms: Mapping[System, Platform],
        _cells: Sequence[Cell],
    ) -> set[str]:
        """Return no cell: inputs are complete only on the hosts."""
        return set()

    def run(
        self,
        store: RunStore,
        compiled: Compiled,
        platforms: Mapping[System, Platform],
        cells: Sequence[Cell],
        *,
        real: bool,
    ) -> None:
        """Run every cell, and store its result in the run's directory.

        ``InputError``: no host could ever run one of them. ``HostError``: the scheduler does not
        answer. ``TroubleError``: a cell failed on every host that tried it, or no host remains.
        """
        jobs = 1 if real else self.options.jobs
        given = self._assignment(store, compiled, platforms, cells, jobs)
        wants = self._wants(cells, platforms)
        sealed = {cell_id(c): c for c in cells if is_sealed(c) and not self.options.unseals(c)}
        inputs = {
            name: inputs_of(cell, platforms[cell.guest.system].image, given)
            for name, cell in sealed.items()
        }
        self.link.post(given)
        self.link.listen(given.run, self._heard.put)
        left = dict(wants)
        self._cells = frozenset(left)
        failed: list[Failed] = []
        self._ran = _ran_before(store)
        place = platforms[compiled.base.guest.system]
        try:
            for result in self.link.results(given.run, wants, inputs):
                self._pass_on()
                match result:
                    case Returned():
                        del left[result.cell]
                        self._take_in(store, result, sealed.get(result.cell))
                        self._note_host(store, result.host, place)
                    case Failed():
                        del left[result.cell]
                        self._look_around(left.values(), at_once=True)
                        failed.append(result)
                    case None:
                        self._look_around(left.values())
            for host, known in self.link.finish(given.run).items():
                self._note_calibrations(store, host, known)
        except BaseException:
            self.link.abandon(given.run)
            raise
        if failed:
            more = f", and {len(failed) - 1} more cells" if len(failed) > 1 else ""
            raise TroubleError(
                f"the cell '{failed[0].cell}'{more} could not be run: {failed[0].reason}",
                hint="what is finished is kept: `lab run … --resume RUN` goes on",
            )

    # -- before the run

    def _assignment(
        self,
        store: RunStore,
        compiled: Compiled,
        platforms: Mapping[System, Platform],
        cells: Sequence[Cell],
        jobs: int | None,
    ) -> Assignment:
        trials = compiled.scenario.trials
        auto = isinstance(trials, AutoTrials)
        return Assignment(
            run=f"{store.id}-{token_hex(3)}",  # a resumed run has a new id for the hosts
            scenario=compiled.name,
            document=compiled.portable,
            overridden=tuple(map(dotted, compiled.document.overrides)),
            trials=1 if isinstance(trials, AutoTrials) else trials,
            seeds=tuple(sorted({cell.seed for cell in cells})) if auto else (),
            programs=cluster.programs(),
            images={image_key(s): p.image.manifest for s, p in platforms.items()},
            accelerator=self.accelerator,
            cold=self.options.cold,
            jobs=jobs,
            erase=self.options.erase,
        )

    def _wants(
        self, cells: Sequence[Cell], platforms: Mapping[System, Platform]
    ) -> list[tuple[str, resources.Amounts]]:
        """Return each cell with its resources, in start order; ``InputError``: no host has
        enough."""
        manifests = {p.image.directory.name: p.image.manifest for p in platforms.values()}
        there = {name for name, manifest in manifests.items() if self.link.has_image(manifest)}
        offers = self._offers()
        found = []
        asked: set[tuple[tuple[str, float], ...]] = set()
        ordered = cells if len(cells) > MANY else sorted(cells, key=seconds_of, reverse=True)
        for cell in ordered:
            name = platforms[cell.guest.system].image.directory.name
            only = "" if name in there else name
            wants = resources.wanted(cell, need_of(cell), self.accelerator, only)
            found.append((cell_id(cell), wants))
            if (key := tuple(sorted(wants.items()))) in asked:
                continue
            asked.add(key)
            if lacks := resources.lacking(wants, offers):
                raise InputError(
                    f"no host of the cluster can run the cell '{cell_id(cell)}': {lacks}",
                    hint="`lab cluster worker` brings another host, with --disk a real disk of it;"
                    " an image is fetched where the scheduler's machine has the client's",
                )
        return found

    def _offers(self) -> dict[str, resources.Amounts]:
        names = {address: host.name for address, host in self.hosts.items()}
        return {names.get(a, a): offer for a, offer in self.link.offers().items()}

    # -- during the run

    def _pass_on(self) -> None:
        """Report the hosts' messages to the user."""
        while True:
            try:
                event = _EVENT.validate_python(self._heard.get_nowait())
            except Empty:
                return
            except ValidationError:
                continue  # a message of another version
            match event:
                case Said():
                    self.say(event.text)
                case CellStarted() if event.cell in self._cells:
                    self.watch(event.cell, event)
                case _:
                    pass

    def _look_around(self, left: Iterable[resources.Amounts], *, at_once: bool = False) -> None:
        """``TroubleError``: for :data:`LONELY` seconds no host could run any of the remaining
        cells."""
        now = clock.now()
        if now - self._looked < LOOKING and not at_once:
            return
        self._looked = now
        offers = self._offers()
        kinds = {tuple(sorted(wants.items())) for wants in left}
        if not kinds or any(not resources.lacking(dict(wants), offers) for wants in kinds):
            self._lonely = None
        elif self._lonely is None:
            self._lonely = now
            self.say(f"no host is there that could go on; waiting {LONELY:.0f} s for one")
        elif now - self._lonely > LONELY:
            raise cluster.alone(self.link)

    def _take_in(self, store: RunStore, back: Returned, sealed: Cell | None) -> None:
        """Store a finished cell once; ``sealed``: another run may have requested it under its
        id."""
        if store.has_cell(back.cell):
            return
        try:
            outcome = StoredOutcome.model_validate_json(back.files[OUTCOME])
        except (KeyError, ValidationError) as error:
            raise _unreadable(back.host, f"the outcome of the cell '{back.cell}'", error) from error
        for attempt in back.attempts:
            files.sync(store.take_in(back.cell, attempt))
        others = {name: data for name, data in back.files.items() if name != OUTCOME}
        if sealed is not None:
            others["cell.json"] = sealed.model_dump_json(indent=1).encode()
        place = store.take_in(back.cell, others)
        store.finish_cell(back.cell, place, outcome.model_copy(update={"host": back.host}))
        self._note_calibrations(store, back.host, back.calibrations)
        self.watch(
            back.cell,
            CellFinished(
                cell=back.cell,
                outcome=outcome.outcome,
                reason=outcome.reason,
                seconds=outcome.seconds,
                guest_seconds=outcome.guest_seconds,
            ),
        )
        self.watch(back.cell, None)

    def _note_calibrations(self, store: RunStore, host: str, known: Sequence[str]) -> None:
        """Store a host's calibrations if there are new ones."""
        if not known or self._calibrated.get(host) == known:
            return
        self._calibrated[host] = known
        try:
            found = [Calibration.model_validate_json(text) for text in known]
        except ValidationError as error:
            raise _unreadable(host, "calibrations", error) from error
        theirs = tuple(c.model_copy(update={"host": host}) for c in found)
        run = store.load_run()
        others = tuple(c for c in run.calibrations if c.host != host)
        store.save_run(run.model_copy(update={"calibrations": (*others, *theirs)}))

    def _note_host(self, store: RunStore, name: str, place: Platform) -> None:
        """Store the environment of the hosts that have run a cell."""
        if name in self._ran:
            return
        if name not in {host.name for host in self.hosts.values()}:  # it joined after the start
            self.hosts |= self.link.hosts()[0]
        self._ran |= {h.name: h.environment for h in self.hosts.values() if h.name == name}
        if self._ran:
            run = store.load_run()
            facts = _environment(self._ran, place)
            store.save_run(run.model_copy(update={"environment": facts}))


def inputs_of(cell: Cell, image: Image, given: Assignment) -> str:
    """Return the digest of a sealed cell's inputs that the client knows.

    QEMU and its firmware are the host's. Only the digest in the result includes them.
    """
    steps = cell_procedure(cell, "/guest").steps
    data = {
        "programs": given.programs,
        "image": image.digest,
        "guest": cell.guest.model_dump(mode="json"),
        "steps": [step.model_dump(mode="json") for step in steps],
        "space": need_of(cell).space,
        "cold": given.cold,
    }
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _unreadable(host: str, what: str, error: Exception) -> HostError:
    return HostError(f"the host '{host}' sent {what} in a form that nobody can read: {error}")


def _environment(hosts: Mapping[str, Mapping[str, Any]], place: Platform) -> dict[str, Any]:
    """Return the run's environment: one host's own; for several hosts the shared facts and each
    host's.

    ``client`` is the machine that stores the run. Cells that it runs itself name no host.
    """
    shared: dict[str, Any] = dict(_shared(list(hosts.values())))
    shared["image"] = image_facts(place.image)
    shared["client"] = platform.node()
    shared |= source_facts()
    if len(hosts) > 1:
        shared["hosts"] = {name: dict(facts) for name, facts in sorted(hosts.items())}
    return shared


def _shared(facts: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield each fact; for one that differs, the values of all hosts."""
    for name in facts[0] if facts else ():
        values = [f.get(name) for f in facts]
        if all(v == values[0] for v in values):
            yield name, values[0]
        elif all(isinstance(v, Mapping) for v in values):
            yield name, dict(_shared([v for v in values if isinstance(v, Mapping)]))
        else:
            yield name, " / ".join(dict.fromkeys(json.dumps(v).strip('"') for v in values))


def _ran_before(store: RunStore) -> dict[str, dict[str, Any]]:
    """Return facts of the hosts that have finished cells of a resumed run."""
    run = store.load_run()
    directories = [store.cell_directory(c.id) for c in run.cells if store.has_cell(c.id)]
    names = {store.load_attempt(directory).host for directory in directories} - {""}
    one = {str(run.environment.get("host", {}).get("name")): run.environment}
    known = run.environment.get("hosts", one)
    return {name: dict(known[name]) for name in names if name in known}


@contextmanager
def joined(to: Door, options: RunOptions, watch: Watch, say: Say) -> Iterator[ClusterExecutor]:
    """Yield the executor of a cluster that is ready to run cells.

    ``HostError``: no scheduler answers, or no host has joined. ``InputError``: a host has another
    lab.
    """
    with cluster.connected(to) as link:
        hosts, strange = link.hosts()
        for sentence in strange:
            say(sentence)
        if not hosts:
            why = "; ".join(strange) or "it is empty"
            raise HostError(
                f"no host has joined the cluster at {to.address}: {why}",
                hint="`lab cluster worker ADDRESS` on each host brings it in",
            )
        cluster.differing(hosts.values())
        yield ClusterExecutor(link=link, hosts=hosts, options=options, watch=watch, say=say)
