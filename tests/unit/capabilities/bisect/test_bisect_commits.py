"""A bisection over commits of a git repository: which commits, their kernels, and what is found."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from lab.capabilities.bisect import commits
from lab.capabilities.bisect.model import Bisection, Ending, Side
from lab.capabilities.bisect.page import bisection_page, plan_page, result_sentence
from lab.core.errors import HostError, InputError
from lab.host.images import linux, packages, virtual_time
from lab.host.images.linux import Commit
from lab.host.system.process import ProcessResult
from lab.results.documents import result_of
from lab.run import execute
from lab.run.execute import Done
from tests.fakes import Cli, git
from tests.runs import SMALL, theory_run
from tests.unit.capabilities.bisect.test_bisect_run import CLAIM, World, screen

COMMITS = 8
SLOW = 6
BROKEN = 5


def change(place: Path, title: str, name: str = "drivers/md/md.c") -> str:
    file = place / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text((file.read_text() if file.exists() else "") + title + "\n")
    git(place, "add", "-A")
    git(place, "commit", "-q", "-m", title)
    return git(place, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    place = tmp_path / "linux"
    place.mkdir()
    git(place, "init", "-q", "-b", "main")
    for number in range(COMMITS):
        change(place, f"md: change {number}")
    return place


def sha(repository: Path, number: int) -> str:
    return git(repository, "rev-parse", f"main~{COMMITS - 1 - number}")


class Kernels(World):
    """One commit halves the speed, and one does not compile."""

    repository: Path
    numbers: dict[str, int]

    def built(self, tree: Path, which: Commit, image: str, *_: object, **__: object) -> Path:
        assert (tree, image) == (self.repository.resolve(), "debian-12")
        number = self.numbers[which.sha]
        if number == BROKEN:
            raise InputError("the source does not compile: md.c:4: error: no 'x'")
        return self.place / f"kernel-{number}"

    @override
    def run(self, compiled: Any, **given: Any) -> Done:
        kernel = compiled.base.guest.kernel
        self.ran.append(kernel)
        drift = 0.5 if int(kernel.rpartition("-")[2]) >= SLOW else 1.0
        made = theory_run(
            self.place / "runs",
            compiled.path.read_text(),
            name=compiled.name,
            stamp=f"20260101-{len(self.ran):06}",
            compiled=compiled,
            drift=drift,
        )
        given["ready"](made, None)
        result = result_of(made)
        made.save_result(result)
        return Done(store=made, result=result, kept=None)


@pytest.fixture
def world(
    tmp_path: Path, repository: Path, lab_home: Path, monkeypatch: pytest.MonkeyPatch
) -> Kernels:
    del lab_home
    made = Kernels(place=tmp_path)
    made.repository = repository
    made.numbers = {sha(repository, number): number for number in range(COMMITS)}

    def fetched(*_: object, **__: object) -> None:
        raise AssertionError("a commit needs no package")

    monkeypatch.setattr(linux, "built", made.built)
    monkeypatch.setattr(execute, "run_scenario", made.run)
    monkeypatch.setattr(packages, "fetch", fetched)
    monkeypatch.setattr(packages, "changelog", fetched)
    return made


def begun(world: Kernels, **other: Any) -> Path:
    tree, versions = commits.read(world.repository, f"main~{COMMITS - 1}", "main")
    given = {"axis": versions[0].axis, "good": "", "bad": "", "tree": tree, "versions": versions}
    return world.begun(**(given | other))


def test_the_commit_is_found_and_one_that_does_not_compile_is_skipped(world: Kernels) -> None:
    one: Bisection = world.go_on(begun(world))
    assert one.ending is Ending.FOUND
    assert one.pair is not None
    good, bad = (sha(world.repository, n)[:12] for n in (SLOW - 2, SLOW))
    assert (one.pair.good, one.pair.bad) == (f"commit-{good}", f"commit-{bad}")
    step = one.step(f"commit-{sha(world.repository, BROKEN)[:12]}")
    assert step is not None
    assert step.side is Side.SKIPPED
    assert "does not compile" in step.reason
    assert len(one.steps) < COMMITS
    said = result_sentence(one)
    assert f"The first bad commit is {bad}" in said
    assert f"md: change {SLOW}. The last good one is {good}" in said
    kernel = str(world.place / f"kernel-{SLOW}")
    assert f"--set guest.kernel={kernel}" in one.commands[f"commit-{bad}"]
    # the commit that does not compile may be the culprit too
    assert [line.partition(" ")[2] for line in one.changelog] == [
        f"md: change {SLOW}",
        f"md: change {SLOW - 1}",
    ]
    assert "The commits between them" in screen(bisection_page(one))


def test_a_scenario_with_its_own_kernel_is_refused(world: Kernels) -> None:
    with pytest.raises(InputError, match=r"sets guest\.kernel"):
        begun(world, overrides=("guest.kernel=linux-image-amd64",))


def test_only_first_parents_count(repository: Path) -> None:
    good = sha(repository, COMMITS - 1)
    git(repository, "checkout", "-q", "-b", "side")
    change(repository, "md: on the side", "drivers/md/raid1.c")
    git(repository, "checkout", "-q", "main")
    git(repository, "merge", "-q", "--no-ff", "-m", "Merge side", "side")
    last = change(repository, "md: last")
    _, versions = commits.read(repository, good, "main")
    assert [one.says for one in versions] == [
        f"md: change {COMMITS - 1}",
        "Merge side",
        "md: last",
    ]
    changes = linux.titles(repository, good, last)
    assert [line.partition(" ")[2] for line in changes] == ["md: last", "md: on the side"]


@pytest.mark.parametrize(
    ("good", "bad", "says"),
    [
        ("main", "main~2", "is not an ancestor of 'main~2'"),
        ("main", "main", "are the same commit"),
        ("nothing", "main", "there is no commit 'nothing'"),
        ("--output=x", "main", "is not a commit's name"),
    ],
)
def test_ends_that_are_no_range_are_refused(
    repository: Path, good: str, bad: str, says: str
) -> None:
    with pytest.raises(InputError) as error:
        commits.read(repository, good, bad)
    assert says in error.value.message


def test_a_repository_of_something_else_is_refused(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    change(tmp_path, "one", "mdadm.c")
    with pytest.raises(InputError, match=r"is not one of Linux"):
        linux.commit(tmp_path, "main")
    with pytest.raises(InputError, match="there is no directory"):
        linux.commit(tmp_path / "none", "main")


def test_the_command_line_plans_commits(cli: Cli, repository: Path) -> None:
    cli.file(SMALL + CLAIM, "small.yaml")
    words = ("bisect", "FAST", "--scenario", "small.yaml", "--tree", str(repository))
    planned = cli(*words, "--good", "main~3", "--bad", "main", "--plan", "--json")
    assert planned.status == 0
    assert [v["says"] for v in planned.json["versions"]] == [
        f"md: change {COMMITS - n}" for n in (4, 3, 2, 1)
    ]
    assert planned.json["axis"] == "commit"
    shown = cli(*words, "--good", "main~3", "--bad", "main", "--plan")
    assert "4 commits" in shown.stdout
    both = cli(*words, "--good", "main~3", "--bad", "main", "--axis", "mdadm")
    assert both.status == 2
    assert "--axis" in both.stderr
    missing = cli(*words, "--good", "main~3")
    assert missing.status == 2
    assert "--bad is missing" in missing.stderr


def test_the_checkout_leaves_the_repository_as_it_is(repository: Path, tmp_path: Path) -> None:
    before = (git(repository, "status", "--porcelain"), sorted((repository / ".git").iterdir()))
    below = sha(repository, 2)
    for number in (2, 5, 3):
        which = linux.commit(repository, sha(repository, number))
        for made, base in (("linux", None), ("changed/files", below)):
            work = tmp_path / f"work-{number}-{base}"
            linux._check_out(repository, which, work, base)
            if base != which.sha:
                written = (work / made / "drivers/md/md.c").read_text()
                assert written.count("\n") == number + 1
            assert not list(work.rglob(".git"))
    after = (git(repository, "status", "--porcelain"), sorted((repository / ".git").iterdir()))
    assert after == before


def test_a_kernel_counts_only_with_its_driver(lab_home: Path) -> None:
    kernels = lab_home / "cache/kernels"
    kernels.mkdir(parents=True)
    known = kernels / "commit-x"
    assert linux._known(known) is None
    known.write_text("0123\n")
    (kernels / "0123").write_bytes(b"kernel")
    assert linux._known(known) is None
    virtual_time.own_driver(kernels / "0123").mkdir()
    assert linux._known(known) == kernels / "0123"
    shutil.rmtree(virtual_time.own_driver(kernels / "0123"))
    assert linux._known(known) is None


def test_the_plan_shows_the_titles(world: Kernels) -> None:
    from lab.capabilities.bisect.question import estimate
    from lab.capabilities.bisect.record import BISECTIONS

    record = BISECTIONS.load(begun(world))
    effort = estimate(record)
    assert "md: change 3" in screen(plan_page(record, effort.steps, effort.seconds))


def test_a_base_of_another_repository_at_the_same_path_is_not_used(
    repository: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    which = linux.commit(repository, "main~2")
    assert linux._below(repository, which, source) is None
    work = tmp_path / "work"
    linux._check_out(repository, which, work, None)
    linux._keep(work, which, source)
    assert linux._below(repository, linux.commit(repository, "main"), source) == which.sha
    assert linux._below(repository, which, source) == which.sha
    assert linux._below(repository, linux.commit(repository, "main~3"), source) is None
    shutil.rmtree(repository / ".git")
    git(repository, "init", "-q", "-b", "main")
    change(repository, "md: another history")
    assert linux._below(repository, linux.commit(repository, "main"), source) is None


def test_a_full_disk_in_a_checkout_is_no_bad_commit(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    which = linux.commit(repository, "main")
    full = ProcessResult(
        argv=("git",), status=128, stdout="", stderr="fatal: write error: No space left on device"
    )
    monkeypatch.setattr(linux.git, "run", lambda *_, **__: full)
    with pytest.raises(HostError, match="is full"):
        linux._check_out(repository, which, tmp_path / "work", None)


def test_a_commit_names_no_filter_of_the_users(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ``.gitattributes`` of a stranger chooses among the filters in the settings."""
    (repository / ".gitattributes").write_text("*.c filter=own\n*.h filter=users\n")
    change(repository, "md: a header", "drivers/md/md.h")
    which = linux.commit(repository, "main")
    ran, settings = tmp_path / "ran", tmp_path / "settings"
    settings.write_text(f'[filter "users"]\n smudge = touch {ran}; cat\n')
    git(repository, "config", "filter.own.smudge", f"touch {ran}; cat")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    for number, below in enumerate((None, sha(repository, 3))):
        linux._check_out(repository, which, tmp_path / f"work{number}", below)
    assert (tmp_path / "work0/linux/drivers/md/md.h").read_text() == "md: a header\n"
    assert (tmp_path / "work1/changed/files/drivers/md/md.h").exists()
    assert not ran.exists()
    (repository / "drivers/md/md.h").unlink()
    git(repository, "checkout", "-q", "--", "drivers/md/md.h")  # the control: git runs the filter
    assert ran.exists()
