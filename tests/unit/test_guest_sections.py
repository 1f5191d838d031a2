"""What a guest printed, in pytest's report of a failed test."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from lab.model.execution.procedure import Output
from lab.testing.guest_objects import LabGuest


def test_a_guest_writes_no_escapes_to_the_terminal() -> None:
    said = Output(status=0, stdout="\x1b]0;title\x07 \u202ered", stderr="\x9b2J", seconds=1.0)
    visit: Any = SimpleNamespace(
        run=lambda *_: said,
        alive=lambda: True,
        console=lambda _: "",
        record=SimpleNamespace(id="g1"),
    )
    guest = LabGuest(cast(Any, SimpleNamespace(visit=visit)))
    assert guest.run("cat /evil").stdout == said.stdout  # the test itself gets the bytes
    text = "".join(part for section in guest.sections() for part in section)
    assert "title" in text
    assert not set("\x1b\x07\x9b\u202e") & set(text)
