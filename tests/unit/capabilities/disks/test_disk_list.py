"""The list of real disks."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from lab.capabilities.disks.page import disk_table
from lab.host.real_disks import refusals as real
from lab.run.preparation import real as use
from tests import loops


def test_the_list_says_what_forbids_each_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bay in loops.bay(tmp_path / "bay"):
        monkeypatch.setattr(real, "ground", lambda bay=bay: bay.ground)
        monkeypatch.setattr(real, "NAMES", bay.ground.names)
        check_list(bay)


def check_list(bay: loops.Bay) -> None:
    free, signed = bay.loop("free"), bay.loop("signed")
    loops.gpt(signed.device)
    (bay.ground.names / "free-too").symlink_to(free.device)
    rows = {row["device"]: row for row in use.inventory()}
    assert rows[free.device]["forbidden"] == []
    assert len(rows[free.device]["names"]) == 2
    assert {o["rule"] for o in rows[signed.device]["forbidden"]} == {"signature"}
    assert json.dumps(list(rows.values()))
    console = Console(width=80, file=(text := StringIO()))
    console.print(disk_table(list(rows.values())))
    assert "signature: gpt at" in text.getvalue()
    assert "yes" in text.getvalue()
