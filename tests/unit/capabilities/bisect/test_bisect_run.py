"""A bisection with runs that have theory's values: what is found, skipped, stored and resumed."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lab.capabilities.bisect import question as plan
from lab.capabilities.bisect import record as bisections
from lab.capabilities.bisect import run
from lab.capabilities.bisect.model import Bisection, Ending, Side
from lab.capabilities.bisect.page import bisection_page, plan_page, result_sentence
from lab.capabilities.bisect.question import Request
from lab.capabilities.bisect.record import BISECTIONS
from lab.compile.scenario.compiler import Compiled
from lab.core.errors import GuestError, HostError, InputError
from lab.host.images import packages
from lab.host.system import paths
from lab.model.image.axis import Axis
from lab.model.image.package import PackageFile, PackageIndex, ReleaseRead, Version
from lab.results.documents import result_of
from lab.run import execute
from lab.run.execute import Done, Follower, LocalExecutor
from lab.run.options import RunOptions
from tests.fakes import Cli
from tests.runs import SMALL, theory_run

CLAIM = """claims:
  - id: FAST
    says: With parity-last it reads 7 MB/s or more
    ours: true
    why: A fixture.
    expect:
      kind: bound
      value: {workload: read, where: {array.layout: parity-last}}
      at_least: 7MB/s
"""
NUMBERS = ("4.0-1", "4.1-1", "4.2-1", "4.3-1", "4.4-1", "4.5-1", "4.6-1", "4.7-1", "4.8-1")
CHANGELOG = "".join(
    f"mdadm ({number}) unstable; urgency=low\n\n  * change of {number}\n\n"
    f" -- A <a@example.org>  Thu, 12 Nov 2026 10:00:00 +0100\n\n"
    for number in reversed(NUMBERS)
)


def version(number: str, **more: Any) -> Version:
    file = PackageFile(name="mdadm", version=number, size=4, sha256="0" * 64)
    its = {"axis": Axis.MDADM, "name": number, "branch": "4", "release": "trixie"}
    return Version.model_validate(its | {"version": number, "packages": (file,)} | more)


@dataclass
class World:
    """Versions of mdadm, of which one halves the speed."""

    place: Path
    slow_from: str = "4.6-1"
    happens: dict[str, BaseException] = field(default_factory=dict)
    """By version: exception once its run has its directory."""
    lost: set[str] = field(default_factory=set)
    """Versions whose cells do not finish."""
    ran: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)

    def run(self, compiled: Compiled, **given: Any) -> Done:
        name = compiled.base.guest.mdadm or ""
        self.ran.append(name)
        if given["resume"] is not None:
            self.resumed.append(name)
        made = theory_run(
            paths.runs(),
            compiled.path.read_text(),
            name=compiled.name,
            stamp=f"20260101-{len(list(paths.runs().glob('*'))):06}",
            compiled=compiled,
            drift=0.5 if NUMBERS.index(name) >= NUMBERS.index(self.slow_from) else 1.0,
            lost=1 if name in self.lost else None,
        )
        given["ready"](made, None)
        if name in self.happens:
            raise self.happens.pop(name)
        result = result_of(made)
        made.save_result(result)
        return Done(store=made, result=result, kept=None)

    def begun(self, **other: Any) -> Path:
        (self.place / "small.yaml").write_text(SMALL + CLAIM)
        request = {
            "claim": "FAST",
            "scenario": str(self.place / "small.yaml"),
            "overrides": (),
            "trials": None,
            "axis": Axis.MDADM,
            "good": "4.0-1",
            "bad": "4.8-1",
        }
        return bisections.create(plan.begun(Request(**(request | other))))

    def go_on(self, directory: Path) -> Bisection:
        def nothing(*_: object) -> None:
            pass

        @contextlib.contextmanager
        def follow(_version: Version, _compiled: Compiled) -> Iterator[Follower]:
            hands = LocalExecutor(options=RunOptions(), watch=nothing, say=nothing)
            yield Follower(hands=hands, progress=nothing, ready=nothing)

        @contextlib.contextmanager
        def fetching(_version: Version) -> Iterator[Any]:
            yield nothing

        options = run.Options(
            how=RunOptions(), follow=follow, fetching=fetching, ended=lambda *_: None
        )
        return run.run(directory, options)

    def found(self, **other: Any) -> Bisection:
        return self.go_on(self.begun(**other))


@pytest.fixture
def world(tmp_path: Path, lab_home: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    del lab_home
    made = World(place=tmp_path)
    write_index([version(number) for number in NUMBERS])
    monkeypatch.setattr(execute, "run_scenario", made.run)
    monkeypatch.setattr(packages, "fetch", lambda version, *_, **__: None)
    monkeypatch.setattr(packages, "changelog", lambda _: CHANGELOG)
    return made


def write_index(its: list[Version]) -> None:
    index = PackageIndex(
        read="2999-01-01T00:00:00+00:00",
        releases=(ReleaseRead(release="trixie"),),
        versions=tuple(its),
    )
    paths.packages().mkdir(parents=True, exist_ok=True)
    (paths.packages() / packages.INDEX).write_text(index.model_dump_json(by_alias=True))


def screen(page: object) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(page)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("slow_from", ["4.1-1", "4.5-1", "4.8-1"])
def test_the_version_that_changed_a_verdict_is_found(world: World, slow_from: str) -> None:
    world.slow_from = slow_from
    found = world.found()
    assert found.ending is Ending.FOUND
    assert found.pair is not None
    assert found.pair.bad == slow_from
    assert found.pair.good == NUMBERS[NUMBERS.index(slow_from) - 1]
    assert run.exit_status(found) == 0
    assert world.ran[:2] == ["4.0-1", "4.8-1"]
    assert len(world.ran) == len(set(world.ran)) <= 6
    assert found.changelog == (f"* change of {slow_from}",)
    assert {s.side for s in found.steps} == {Side.GOOD, Side.BAD}


def test_the_report_has_both_sides_the_path_and_the_commands(world: World) -> None:
    directory = world.begun()
    found = world.go_on(directory)
    assert set(found.commands) == {"4.5-1", "4.6-1"}
    command = found.commands["4.6-1"]
    assert command.startswith(f"lab run scenario {found.file}")
    assert command.endswith("--set guest.mdadm=4.6-1")
    page = screen(bisection_page(found))
    assert "The first bad version is mdadm 4.6-1" in page
    for step in found.steps:
        assert step.version in page
        assert step.run is not None
        assert Path(step.run).is_dir()
    assert command in page
    assert "change of 4.6-1" in (directory / bisections.CHANGELOG).read_text()
    assert json.loads((directory / BISECTIONS.file).read_text())["schema"] == "lab.bisect/1"


def test_a_metric_is_compared_instead_of_the_verdict(world: World) -> None:
    found = world.found(metric="throughput")
    assert found.pair is not None
    assert (found.pair.good, found.pair.bad) == ("4.5-1", "4.6-1")
    assert found.subject is not None
    assert (found.subject.workload, found.subject.metric) == ("read", "throughput")
    assert all(step.values for step in found.steps[1:])
    with pytest.raises(InputError, match="is about no 'througput': did you mean 'throughput'"):
        world.begun(metric="througput")
    world.slow_from = "4.0-1"
    assert world.found(metric="throughput").ending is Ending.SAME


def test_equal_ends_are_no_result(world: World) -> None:
    world.slow_from = "4.0-1"
    found = world.found()
    assert found.ending is Ending.SAME
    assert run.exit_status(found) == 1
    assert world.ran == ["4.0-1", "4.8-1"]
    assert "same answer" in result_sentence(found)


def test_versions_that_do_not_boot_are_skipped_and_named(world: World) -> None:
    world.happens = {"4.4-1": GuestError("the kernel panicked")}
    world.lost = {"4.5-1"}
    found = world.found()
    assert found.pair is not None
    assert (found.pair.good, found.pair.bad) == ("4.3-1", "4.6-1")
    assert found.pair.between == ("4.4-1", "4.5-1")
    skipped = {s.version: s.reason for s in found.steps if s.side is Side.SKIPPED}
    assert skipped["4.4-1"] == "the kernel panicked"
    assert "panicked" in skipped["4.5-1"]
    page = screen(bisection_page(found))
    assert "Skipped between them: 4.4-1, 4.5-1" in page


def test_an_end_that_does_not_boot_ends_the_search(world: World) -> None:
    world.happens = {"4.0-1": GuestError("the kernel panicked")}
    found = world.found()
    assert found.ending is Ending.OPEN
    assert run.exit_status(found) == 1
    assert world.ran == ["4.0-1"]
    assert "mdadm 4.0-1 is an end and could not be measured: the kernel panicked" in screen(
        bisection_page(found)
    )


@pytest.mark.parametrize(
    ("at", "stop"), [(0, KeyboardInterrupt()), (1, HostError("no space")), (3, SystemExit(143))]
)
def test_a_stopped_search_goes_on_with_the_same_versions(
    world: World, at: int, stop: BaseException
) -> None:
    whole = world.found()
    order = list(world.ran)
    world.ran.clear()
    world.happens = {order[at]: stop}
    directory = world.begun()
    with pytest.raises(type(stop)):
        world.go_on(directory)
    assert world.ran == order[: at + 1]
    record = BISECTIONS.load(directory)
    assert record.ending is None
    assert record.steps[-1].side is None
    again = world.go_on(BISECTIONS.find("last"))
    assert world.ran == [*order[: at + 1], *order[at:]]
    assert world.resumed == [order[at]]  # its run is continued
    assert again.pair == whole.pair
    # a finished one does nothing
    world.ran.clear()
    assert world.go_on(directory) == again
    assert world.ran == []


def test_two_branches_are_not_a_first_bad_version(world: World) -> None:
    write_index([version(n, branch="5" if n >= "4.6" else "4") for n in NUMBERS])
    found = world.found()
    assert found.ending is Ending.BRANCH
    assert found.branches == ("4", "5")
    assert found.pair is not None
    assert (found.pair.good, found.pair.bad) == ("4.5-1", "4.6-1")
    assert found.changelog == ()
    assert "neither is the version that brought it" in result_sentence(found)
    assert run.exit_status(found) == 0


def test_bad_input_names_what_is_wrong(world: World) -> None:
    with pytest.raises(InputError, match="has no claim 'FASTER': did you mean 'FAST'"):
        world.begun(claim="FASTER")
    with pytest.raises(InputError, match="is not older than --bad"):
        world.begun(good="4.8-1", bad="4.0-1")
    with pytest.raises(InputError, match="there is no version"):
        world.begun(bad="9.9")
    write_index([version(n, missing=("x",) if n == "4.8-1" else ()) for n in NUMBERS])
    with pytest.raises(InputError, match="cannot be measured"):
        world.begun()
    assert world.ran == []
    assert BISECTIONS.every() == []


def test_incomplete_versions_are_left_out_before_the_start(world: World) -> None:
    write_index([version(n, missing=("x",) if n == "4.4-1" else ()) for n in NUMBERS])
    record = BISECTIONS.load(world.begun())
    assert [one.version for one in record.versions] == [n for n in NUMBERS if n != "4.4-1"]
    assert list(record.unusable) == ["4.4-1"]
    effort = plan.estimate(record)
    assert effort.steps.most == 5
    assert effort.most_seconds > effort.seconds > 60
    page = screen(plan_page(record, effort.steps, effort.seconds))
    assert "Left out, since the archive has dropped packages that it needs: 4.4-1" in page


def test_the_command_line(cli: Cli) -> None:
    cli.file(SMALL + CLAIM, "small.yaml")
    place = cli.home / "data" / "packages"
    place.mkdir(parents=True)
    index = PackageIndex(
        read="2999-01-01T00:00:00+00:00",
        releases=(ReleaseRead(release="trixie"),),
        versions=tuple(version(number) for number in NUMBERS),
    )
    (place / packages.INDEX).write_text(index.model_dump_json(by_alias=True))
    ends = ("--scenario", "small.yaml", "--axis", "mdadm", "--good", "4.0-1", "--bad", "4.8-1")
    planned = cli("bisect", "FAST", *ends, "--plan", "--json")
    assert planned.status == 0
    assert len(planned.json["versions"]) == 9
    assert planned.json["most_steps"] == 5
    assert not (cli.home / "data" / "bisects").exists()  # a plan stores nothing
    for wrong, said in (
        (("FAST", *ends[:4], *ends[6:]), "--good is missing"),
        ((*ends,), "CLAIM is missing"),
        (("NONE", *ends), "no claim 'NONE'"),
        (("FAST", *ends, "--resume", "last"), "leave out CLAIM"),
        (("--resume", "last", "--plan"), "leave out --plan"),
    ):
        ended = cli("bisect", *wrong)
        assert ended.status == 2
        assert said in ended.stderr
    listed = cli("kernel", "list", "--axis", "mdadm", "--json")
    assert [row["version"] for row in listed.json["versions"]] == list(NUMBERS)
    assert "4.0-1" in cli("kernel", "list", "--axis", "mdadm").stdout
