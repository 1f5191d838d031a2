"""Bundles of an attacker: refused with a sentence, or shown harmlessly."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.core.errors import LabError
from lab.core.printable import printable
from lab.host.system import paths
from lab.store import bundles
from lab.store.runs import RunStore
from tests import attack, hostile, hostile_bundles, kept
from tests.hostile_files import SECRET
from tests.hostile_values import ABSOLUTE

SECONDS = 30.0
SHOWN = ("run ", "zip flips", "zip left_out", "zip file_names")
"""Changes after which a bundle may still be one."""
Attacked = Callable[[int], tuple[str, list[str], bool]]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = kept.unpacked("raid5-parity-last", tmp_path_factory.mktemp("kept")).directory
    hostile.few_cells(run)
    return run


@pytest.fixture
def attacked(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attacked:
    """Import the bundle of a seed; return its change, the problems, and whether it was stored."""

    def tried(seed: int) -> tuple[str, list[str], bool]:
        base = tmp_path / "w"
        shutil.rmtree(base, ignore_errors=True)
        outside, made = base / "outside", base / "made" / good.name
        outside.mkdir(parents=True)
        (outside / "secret.txt").write_text(SECRET)
        shutil.copytree(good, made)
        monkeypatch.setenv("LAB_HOME", str(base / "h"))
        data, name = hostile_bundles.build(seed, made, outside)
        path = base / "x.lab.zip"
        path.write_bytes(data)
        paths.runs().mkdir(parents=True)
        before = attack.tree(base, but=paths.runs())
        found: list[str] = []
        stored = None
        try:
            with attack.limited(SECONDS):
                stored = bundles.take_in(path)
        except LabError as error:
            if not error.message or "x.lab.zip" not in error.message:
                found.append(f"no sentence about the file: {error.message!r}")
            if printable(error.message) != error.message:
                found.append("control characters in the sentence")
        except attack.Hung:
            found.append("hang")
        except Exception as error:  # what the command would call a mistake in the lab
            found.append(f"{type(error).__name__}: {error}")
        if attack.tree(base, but=paths.runs()) != before or Path(ABSOLUTE).exists():
            found.append("written elsewhere")
        found += _left(stored)
        if stored is not None:
            found += _shown(stored, path)
        return name, found, stored is not None

    return tried


def _left(stored: RunStore | None) -> Iterator[str]:
    """Yield what is in the directory of all runs and is not the one run."""
    for path in paths.runs().iterdir():
        if stored is None or path != stored.directory:
            yield f"left behind: {path.name}"
    if stored is not None:
        for path in stored.directory.rglob("*"):
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                yield f"of a strange kind: {path.name}"
            elif SECRET in path.read_text(errors="replace") if path.is_file() else False:
                yield "secret read"


def _shown(stored: RunStore, path: Path) -> Iterator[str]:
    for words in (
        ["results", "show", stored.id],
        ["results", "compare", stored.id, str(path), "--json"],
    ):
        said = attack.call(words, SECONDS)
        yield from (f"{words[1]}: {one}" for one in attack.heard(said, "--json" in words))


def attacked_by(attacked: Attacked, seeds: range) -> None:
    wrong, hit, stored = [], set(), set()
    with attack.remembered():
        for seed in seeds:
            name, found, was_stored = attacked(seed)
            wrong += [f"seed {seed} {name}: {one}" for one in found]
            hit.add(name)
            stored |= {name} if was_stored else set()
    assert not wrong, "\n".join(wrong)
    assert hit == set(hostile_bundles.CHANGES)
    assert {name for name in stored if not name.startswith(SHOWN)} == set()
    assert {"run markup", "run terminal"} <= stored  # of text alone nothing is refused


def test_no_hostile_bundle_does_harm(attacked: Attacked) -> None:
    attacked_by(attacked, range(len(hostile_bundles.CHANGES)))


@pytest.mark.slow
def test_three_hundred_hostile_bundles_do_no_harm(attacked: Attacked) -> None:
    attacked_by(attacked, range(hostile_bundles.SEEDS))


@pytest.mark.parametrize(
    ("check", "value", "change", "rounds"),
    [
        ("_wrong", lambda *_: "", "zip dots", 4),
        ("_MEMBER", re.compile(".*"), "zip other_places", 8),
        ("_check_end", lambda _path, file: file.seek(0, 2), "zip around", 8),
        ("RATIO", 10**9, "zip large", 1),
        ("_BROKEN", (KeyError,), "zip other_local_name", 1),
    ],
)
def test_without_a_check_the_same_bundles_do_harm(
    attacked: Attacked,
    monkeypatch: pytest.MonkeyPatch,
    check: str,
    value: object,
    change: str,
    rounds: int,
) -> None:
    first = hostile_bundles.CHANGES.index(change)
    seeds = range(first, hostile_bundles.SEEDS, len(hostile_bundles.CHANGES))[:rounds]

    def harmed() -> bool:
        return any(found or stored for _, found, stored in map(attacked, seeds))

    assert not harmed()
    monkeypatch.setattr(bundles, check, value)
    assert harmed()
