"""The engine of a guest in virtual time, if the scenario leaves it to the lab."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.compile.scenario.compiler import Compiled
from lab.compile.scenario.identity import cell_id
from lab.core.errors import HostError
from lab.host.images import kits, native
from lab.model.scenario.guest import Engine
from lab.run.options import RunOptions
from lab.run.preparation import engines
from tests.fakes import compiled_text

QUESTION = """\
title: A question
question: Which engine?
guest: {GUEST}
disks: {count: 3, size: 1GiB}
array: {level: 5, component_size: 128MiB, consistency_policy: resync, bitmap: none}
workloads: [{name: write, tool: dd, of: '{target}', bs: 1MiB, count: 10, oflag: direct}]
"""
VIRTUAL = "clock: virtual, engine: auto"


def compiled(tmp_path: Path, guest: str) -> Compiled:
    return compiled_text(tmp_path, QUESTION.replace("{GUEST}", "{" + guest + "}"), name="question")


def image_of(compiled: Compiled) -> Any:
    return {cell.guest.system: object() for cell in compiled.cells}


def engine(compiled: Compiled) -> Engine:
    assert compiled.cells[0].guest == compiled.base.guest
    return compiled.base.guest.engine


def test_native_unless_there_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = compiled(tmp_path, VIRTUAL)
    pending, reasons = engines.by_scenario(given, RunOptions())
    assert (engine(pending), reasons) == (Engine.AUTO, ())
    monkeypatch.setattr(kits, "why_emulated", lambda _image: "")
    made, reasons = engines.by_image(pending, image_of(pending))
    assert (engine(made), reasons) == (Engine.NATIVE, (engines.NATIVE,))
    monkeypatch.setattr(kits, "why_emulated", lambda _image: "the image has ZFS")
    other, reasons = engines.by_image(pending, image_of(pending))
    assert engine(other) is Engine.EMULATED
    assert reasons == ("virtual time is emulated: the image has ZFS",)
    assert cell_id(made.base) != cell_id(other.base)  # results are never mixed


@pytest.mark.parametrize(
    ("guest", "options", "reason"),
    [
        (f"{VIRTUAL}, disturb: true", RunOptions(), "guest.disturb is set"),
        (f"{VIRTUAL}, kernel: linux-image-amd64", RunOptions(), "guest.kernel is linux-image-"),
        (VIRTUAL, RunOptions(keep=True), "it needs SSH"),
        (VIRTUAL, RunOptions(unsealed=True), "it needs SSH"),
    ],
)
def test_a_scenario_may_need_emulation(
    tmp_path: Path, guest: str, options: RunOptions, reason: str
) -> None:
    made, reasons = engines.by_scenario(compiled(tmp_path, guest), options)
    assert engine(made) is Engine.EMULATED
    assert reasons[0].startswith(f"virtual time is emulated: {reason}")


@pytest.mark.parametrize("given", [Engine.NATIVE, Engine.EMULATED])
def test_a_given_engine_stays(tmp_path: Path, given: Engine) -> None:
    one = compiled(tmp_path, f"clock: virtual, engine: {given}")
    made, reasons = engines.by_image(engines.by_scenario(one, RunOptions())[0], image_of(one))
    assert (engine(made), reasons) == (given, ())


def test_in_real_time_nothing_is_chosen(tmp_path: Path) -> None:
    one = compiled(tmp_path, "engine: auto")
    made, reasons = engines.by_image(engines.by_scenario(one, RunOptions())[0], image_of(one))
    assert (made, reasons) == (one, ())


def test_the_reason_is_the_hosts_or_the_images(monkeypatch: pytest.MonkeyPatch) -> None:
    image: Any = object()

    def refuse() -> None:
        raise HostError("guest.engine: this processor cannot hide: set guest.engine to emulated")

    monkeypatch.setattr(native, "check", refuse)
    assert kits.why_emulated(image) == "this processor cannot hide"
    monkeypatch.setattr(native, "check", lambda: None)
    monkeypatch.setattr(native, "check_image", lambda _image: None)
    assert kits.why_emulated(image) == ""
