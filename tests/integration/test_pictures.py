"""The pictures in the documents are those that the code draws: ``make docs`` draws them anew."""

from __future__ import annotations

import json

import pytest

from docs.make_picture import PICTURE, RECORDING, picture, recording
from docs.make_screenshots import DIGESTS, RUNS, digest, page_text
from lab.store.runs import RunStore
from tests.kept import unpacked

DOCS = DIGESTS.parent
LARGEST = 900 * 1024
ANEW = "the code draws it differently now: run `make docs`, look at it, and commit it"


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunStore]:
    base = tmp_path_factory.mktemp("pictures")
    return {name: unpacked(name, base) for name in {PICTURE.stem, *RUNS}}


def test_the_terminals_picture_and_recording_are_what_is_drawn(stores: dict[str, RunStore]) -> None:
    run = stores[PICTURE.stem]
    assert picture(run) == PICTURE.read_text(encoding="utf-8"), ANEW
    assert recording(run) == RECORDING.read_text(encoding="utf-8"), ANEW


@pytest.mark.parametrize("name", RUNS)
def test_a_screenshot_is_of_the_page_that_is_made_now(
    name: str, stores: dict[str, RunStore]
) -> None:
    known = json.loads(DIGESTS.read_text(encoding="utf-8"))
    text = page_text(stores[name])
    assert digest(text) == known[f"report-{name}.png"], ANEW
    assert digest(text.replace("</h1>", "!</h1>")) != known[f"report-{name}.png"]
    assert str(stores[name].directory) not in text


def test_each_picture_is_shown_by_a_document_and_is_small() -> None:
    shown = "".join(p.read_text("utf-8") for p in (DOCS.parent / "README.md", *DOCS.rglob("*.md")))
    pictures = [p for p in DOCS.iterdir() if p.suffix in (".png", ".svg", ".cast")]
    assert len(pictures) >= 4
    assert [p.name for p in pictures if p.name not in shown] == []
    assert [p.name for p in pictures if p.stat().st_size > LARGEST] == []
    known = json.loads(DIGESTS.read_text(encoding="utf-8"))
    assert set(known) == {p.name for p in pictures if p.suffix == ".png"}
