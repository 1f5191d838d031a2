"""A bisection over a patch series: the images of its steps, and what is found."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typing_extensions import override

from lab.capabilities.bisect import patches as series
from lab.capabilities.bisect import run
from lab.capabilities.bisect.model import Bisection, Ending, Side
from lab.capabilities.bisect.page import bisection_page, plan_page, result_sentence
from lab.capabilities.bisect.record import BISECTIONS
from lab.core.errors import InputError
from lab.host.images import packages
from lab.host.images.series import Series
from lab.results.documents import result_of
from lab.run import execute
from lab.run.execute import Done
from tests.fakes import Cli
from tests.runs import SMALL, theory_run
from tests.unit.capabilities.bisect.test_bisect_run import CLAIM, World, screen

PATCHES = 7
SLOW = 5
BROKEN = 4


def mail(number: int) -> str:
    return (
        f"From: A <a@example.org>\nSubject: [PATCH {number}/{PATCHES}] md: change {number}\n"
        "Date: Thu, 12 Nov 2026 10:00:00 +0100\n\nWhy.\n---\n"
        f"diff --git a/drivers/md/raid5.c b/drivers/md/raid5.c\n--- a/drivers/md/raid5.c\n"
        f"+++ b/drivers/md/raid5.c\n@@ -{number},1 +{number},1 @@\n-old {number}\n+new {number}\n"
    )


class Patched(World):
    """A series of which one patch halves the speed, and one does not compile."""

    built: list[int]

    @override
    def run(self, compiled: Any, **given: Any) -> Done:
        image = compiled.base.guest.image
        self.ran.append(image)
        number = int(image.removeprefix("debian-12+md-"))
        drift = 0.5 if number >= SLOW else 1.0
        text = compiled.path.read_text()
        stamp = f"20260101-{len(self.ran):06}"
        place = self.place / "runs"
        made = theory_run(
            place, text, name=compiled.name, stamp=stamp, compiled=compiled, drift=drift
        )
        given["ready"](made, None)
        result = result_of(made)
        made.save_result(result)
        return Done(store=made, result=result, kept=None)


@pytest.fixture
def world(tmp_path: Path, lab_home: Path, monkeypatch: pytest.MonkeyPatch) -> Patched:
    del lab_home
    made = Patched(place=tmp_path)
    made.built = []
    patches = tmp_path / "patches"
    patches.mkdir()
    for number in range(1, PATCHES + 1):
        (patches / f"{number:04}.patch").write_text(mail(number))

    @contextlib.contextmanager
    def source_of(guest: Any, target: str, *_: object, **__: object) -> Iterator[Any]:
        assert (guest.image, target) == ("debian-12", "md")

        def built(some: Series) -> dict[str, int]:
            made.built.append(len(some.patches))
            if len(some.patches) == BROKEN:
                raise InputError("the source does not compile: raid5.c:4: error: no 'x'")
            return {"raid456.ko": len(some.patches)}

        def image_with(files: dict[str, int]) -> Any:
            return SimpleNamespace(name=f"debian-12+md-{files['raid456.ko']}")

        yield SimpleNamespace(
            built=built,
            image_with=image_with,
            unpatched=SimpleNamespace(files={"raid456.ko": 0}),
        )

    def fetched(*_: object, **__: object) -> None:
        raise AssertionError("a series needs no package")

    monkeypatch.setattr(series, "source_of", source_of)
    monkeypatch.setattr(execute, "run_scenario", made.run)
    monkeypatch.setattr(packages, "fetch", fetched)
    monkeypatch.setattr(packages, "changelog", fetched)
    return made


def begun(world: Patched, **other: Any) -> Path:
    of, versions = series.read(str(world.place / "patches"), None)
    given = {"axis": versions[0].axis, "good": "", "bad": "", "series": of, "versions": versions}
    return world.begun(**(given | other))


def found(world: Patched) -> Bisection:
    return world.go_on(begun(world))


def test_the_patch_is_found_and_one_that_does_not_compile_is_skipped(world: Patched) -> None:
    one = found(world)
    assert one.ending is Ending.FOUND
    assert one.pair is not None
    assert (one.pair.good, one.pair.bad) == (f"patch-{SLOW - 2}", f"patch-{SLOW}")
    assert one.pair.between == (f"patch-{BROKEN}",)
    step = one.step(f"patch-{BROKEN}")
    assert step is not None
    assert step.side is Side.SKIPPED
    assert "does not compile" in step.reason
    assert world.ran[:2] == ["debian-12+md-0", f"debian-12+md-{PATCHES}"]
    assert len(one.steps) < PATCHES + 1
    assert "The first bad patch is 5: md: change 5. Skipped between them: 4." in result_sentence(
        one
    )
    assert run.exit_status(one) == 0
    assert one.commands[f"patch-{SLOW}"].endswith(f"--set guest.image=debian-12+md-{SLOW}")
    page = screen(bisection_page(one))
    assert "does not compile" in page
    assert "changelog" not in page


def test_a_series_that_changed_since_is_not_continued(world: Patched) -> None:
    directory = begun(world)
    (world.place / "patches/0002.patch").write_text(mail(2).replace("new 2", "newer 2"))
    ended = world.go_on(directory)
    assert ended.ending is Ending.OPEN
    assert "has changed since" in result_sentence(ended)
    assert world.ran == []


def test_a_guest_with_another_kernel_is_refused(world: Patched) -> None:
    with pytest.raises(InputError, match=r"sets guest\.kernel or guest\.mdadm"):
        begun(world, overrides=("guest.mdadm=4.2-5",))
    assert BISECTIONS.every() == []


def test_the_plan_lists_the_patches(world: Patched) -> None:
    from lab.capabilities.bisect.question import estimate

    record = BISECTIONS.load(begun(world))
    effort = estimate(record)
    page = screen(plan_page(record, effort.steps, effort.seconds))
    assert "7 patches, and the source without them" in page
    assert "md: change 3" in page


def test_the_command_line_takes_a_series_or_two_versions(cli: Cli) -> None:
    cli.file(SMALL + CLAIM, "small.yaml")
    cli.file(mail(1), "one.patch")
    words = ("bisect", "FAST", "--scenario", "small.yaml", "--series", "one.patch")
    planned = cli(*words, "--plan", "--json")
    assert planned.status == 0
    assert [v["says"] for v in planned.json["versions"]] == ["without the series", "md: change 1"]
    assert planned.json["series"]["target"] == "md"
    ended = cli(*words, "--good", "6.1.170-3")
    assert ended.status == 2
    assert "--good" in ended.stderr
    ended = cli(*words[:-1], "none.patch")
    assert ended.status == 2
    assert "there is no series 'none.patch'" in ended.stderr
