"""A race that a patch plants in md is found by `lab hunt`, and repeats from its seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.core.errors import EXIT_DONE, EXIT_REFUTED
from tests.guest.conftest import Home

pytestmark = [pytest.mark.guest, pytest.mark.slow, pytest.mark.timeout(4 * 3600)]

PLANTED = Path(__file__).parent / "planted"
"""A user's configuration: an image with the race, and a scenario that can show it."""
IMAGE = ("--set", "guest.image=debian-12-planted")
SEEDS = 200
REPEATS = 10


@pytest.fixture(autouse=True)
def configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(PLANTED))


def hunted(home: Home, *words: str) -> tuple[int, Any]:
    whole = ("hunt", "mirror-race", "--seeds", str(SEEDS), *words, "--json")
    done = home.run(*whole, timeout=3 * 3600)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_planted_race_is_found_repeats_and_becomes_smaller(
    lab_home: Home, tmp_path: Path
) -> None:
    status, hunt = hunted(lab_home, *IMAGE)
    assert status == EXIT_REFUTED
    found = hunt["found"]
    assert {one["kind"] for one in found["findings"]} == {"mismatch"}
    # Ten of ten: byte for byte what the hunt saw.
    for _ in range(REPEATS):
        done = lab_home.run(
            *("reproduce", hunt["directory"], "--cell", found["cell"], "--json"), timeout=3600
        )
        assert (done.returncode, json.loads(done.stdout)["identical"]) == (EXIT_DONE, True)
    # The smaller scenario fails by itself.
    smaller = hunt["smaller"]
    again = lab_home.run("run", "scenario", smaller["file"], "--fresh", "--json", timeout=3600)
    (cell,) = json.loads(again.stdout)["cells"]
    values = {m["metric"]: m["median"] for m in cell["measurements"]}
    assert values["action_mismatch_cnt"] > 0
    # Stopped in its middle, the guest is the stored one so far.
    requests, core = tmp_path / "requests.txt", tmp_path / "core"
    words = ("--at", "4s", "--requests", str(requests), "--core", str(core))
    done = lab_home.run(
        *("debug", hunt["directory"], "--cell", found["cell"], "--seed", str(found["seed"])),
        *(*words, "--json"),
        timeout=3600,
    )
    stopped = json.loads(done.stdout)
    assert stopped["same"] is True
    assert 4.0 <= stopped["seconds"] < 4.005  # at the first point from then on
    assert len(requests.read_text().splitlines()) == stopped["events"] > 10
    assert core.read_bytes()[:4] == b"\x7fELF"


def test_without_the_plant_nothing_is_found(lab_home: Home) -> None:
    status, hunt = hunted(lab_home)
    assert (status, hunt["found"], hunt["last"]) == (EXIT_DONE, None, SEEDS)
