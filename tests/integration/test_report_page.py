"""HTML reports show the whole run, escape foreign text, and name corrupt files."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lab.capabilities.site.run import write_site
from lab.core.errors import InputError
from lab.host.system import paths
from lab.model.result.document import CellClock, Outcome
from lab.model.scenario.document import Source
from lab.report.content.page_data import Page
from lab.report.content.reliability import caveats, reliability, steps
from lab.report.content.tables import members_table, series_table
from lab.report.html.page import run_page
from lab.results.documents import result_of
from lab.results.report import page_of, write_report
from lab.store.runs import RunStore
from tests import runs
from tests.fakes import Cli, stored_run

REFERENCES = ("href", "src", "xlink:href", "srcset", "action")


class Reader(HTMLParser):
    """A page's links, ids and text, and whether its elements are closed."""

    VOID = frozenset({"meta", "link", "br", "hr", "img", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.foreign: list[str] = []
        self.scripts = 0
        self.ids: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name.startswith("on"):
                self.scripts += 1
            if name == "id":
                self.ids.append(value or "")
            if name in REFERENCES and value and value.startswith("#"):
                self.links.append(value[1:])
            elif name in REFERENCES and value != "data:,":
                self.foreign.append(f"{tag} {value}")
            if "url(" in (value or "").replace("url(#", ""):
                self.foreign.append(f"{tag} {value}")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture
def run(tmp_path: Path) -> RunStore:
    return stored_run(tmp_path)


@pytest.fixture(scope="module")
def bitmap(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The data of a fixture's report."""
    store = runs.theory_run(tmp_path_factory.mktemp("b"), runs.BITMAP, contended=1)
    return page_of(store)


@pytest.mark.parametrize(
    ("url", "links"),
    [
        ("https://example.org/a?b=1", ["a https://example.org/a?b=1"]),
        ("javascript:alert(1)", []),
        (None, []),
    ],
)
def test_the_source_is_named_and_linked_if_it_is_on_the_web(
    bitmap: Page, url: str | None, links: list[str]
) -> None:
    source = Source(title="A <post>", author="Somebody", date="2020-04-06", url=url)
    page = Reader(run_page(bitmap.model_copy(update={"source": source})))
    assert page.foreign == links
    assert "A <post>" in page.text
    assert ", Somebody, 2020-04-06" in page.text


def test_a_page_stands_alone_and_is_well_formed(run: RunStore) -> None:
    gathered = page_of(run)
    page = Reader(run_page(gathered))
    url = gathered.source.url if gathered.source else None
    assert page.foreign == ([f"a {url}"] if url else []), "nothing but the link to the source"
    assert page.scripts == 0
    assert page.open == []
    assert len(set(page.ids)) == len(page.ids)
    assert set(page.links) <= set(page.ids)
    assert {"claims", "charts", "figures", "failures", "cells", "environment"} <= set(page.links)


def test_the_reader_notices_what_does_not_stand_alone() -> None:
    planted = (
        "<p onclick='x()'><a href='http://a/b'>c</a><img src='d.png'><i style='f: url(e)'></i></p>"
    )
    found = Reader(f"{planted}<script>x()</script>")
    assert [f.partition(" ")[0] for f in found.foreign] == ["a", "img", "i"]
    assert found.scripts == 2
    with pytest.raises(AssertionError, match="closes something else"):
        Reader("<p><b>x</p>")


def test_question_and_answer_come_first_and_every_claim_has_its_reason(run: RunStore) -> None:
    text = Reader(run_page(page_of(run))).text
    stored, result = run.load_run(), result_of(run)
    words = (stored.question, *result.answer.sentences, "Values behind the answer", "S004-1")
    places = [text.index(" ".join(one.split())) for one in words]
    assert places == sorted(places)
    for claim in result.claims:
        assert " ".join(claim.reason.split()) in text
        assert " ".join(claim.says.split()) in text
    for written in stored.claims:
        assert " ".join((written.why or "none").split()) in text
        assert " ".join((written.quote or "The source does not say this.").split()) in text


def test_every_number_is_in_a_table(bitmap: Page) -> None:
    page = bitmap
    text = Reader(run_page(page)).text
    assert sum(len(c.result.measurements) for c in page.cells) > 40
    for cell in page.result.cells:
        for measurement in cell.measurements:
            assert f"{measurement.median:.10g} {measurement.unit}" in text
    members, series = members_table(page), series_table(page)
    assert len(members.rows) == sum(len(c.counters) for c in page.result.cells) == 6 * 3 * 4
    assert (
        len(series.rows) == sum(len(s.values) for c in page.cells for s in c.series) == 6 * 3 * 10
    )
    assert {len(row.values) for row in (*members.rows, *series.rows)} == {9, 6}
    for row in (members.rows[0], series.rows[-1]):
        assert " ".join(row.values) in text


def test_the_exact_commands_are_there(bitmap: Page) -> None:
    text = Reader(run_page(bitmap)).text
    first = bitmap.cells[0].commands
    for words in ("qemu-img create", "mdadm --create /dev/md/bench", "fio --name", "# and back"):
        assert words in first
    assert all(" ".join(cell.commands.split()) in text for cell in bitmap.cells)
    assert "--bitmap-chunk=4096K" in text


def test_a_lost_cell_brings_its_console_and_its_attempts(tmp_path: Path) -> None:
    store = runs.theory_run(tmp_path, runs.SMALL, lost=1)
    stored = store.load_run().cells[1]
    attempt = store.begin_cell(stored.id, stored.cell, runs.cell_procedure(stored.cell, "/guest"))
    (attempt / "raw").mkdir()
    (attempt / "raw" / "console.txt").write_text("BUG: the first time\n")
    page = page_of(store)
    assert [bool(c.failures) for c in page.cells].count(True) == 1
    assert [f.name for f in page.cells[1].failures] == ["attempt 1", "the cell itself"]
    text = Reader(run_page(page)).text
    assert "Kernel panic - not syncing: <fixture>" in text
    assert "BUG: the first time" in text
    assert "1 of 2 cells did not finish" in text


def test_failures_lists_no_cell_that_did_not_fail(tmp_path: Path) -> None:
    """It was done at its second attempt."""
    store = runs.theory_run(tmp_path, runs.SMALL)
    stored = store.load_run().cells[1]
    attempt = store.begin_cell(stored.id, stored.cell, runs.cell_procedure(stored.cell, "/guest"))
    (attempt / "raw").mkdir()
    (attempt / "raw" / "console.txt").write_text("BUG: the first time\n")
    page = page_of(store)
    assert page.cells[1].result.outcome is Outcome.DONE
    assert [cell.failures for cell in page.cells] == [(), ()]
    assert [attempt.name for attempt in page.cells[1].attempts] == ["attempt 1"]
    read = Reader(run_page(page))
    assert "failures" not in read.ids
    assert "Earlier attempts" in read.text
    assert "BUG: the first time" in read.text


def test_other_peoples_words_are_no_markup(tmp_path: Path) -> None:
    evil = "</pre></title><script>alert(1)</script><img src=x onerror=alert(1)>"
    store = runs.theory_run(tmp_path, runs.SMALL, lost=0)
    run = store.load_run()
    store.save_run(
        run.model_copy(
            update={
                "title": evil,
                "question": evil,
                "notes": evil,
                "overrides": (evil,),
                "environment": {"host": {evil: evil}},
            }
        )
    )
    raw = store.cell_directory(run.cells[0].id) / "raw"
    (raw / "console.txt").write_text(evil)
    page = Reader(run_page(page_of(store)))
    assert page.scripts == 0
    assert page.foreign == []
    assert page.open == []
    assert page.text.count("<script>alert(1)</script>") >= 6


def test_what_an_answer_lacks_and_how_near_it_is_are_said_apart_from_it(run: RunStore) -> None:
    result, claims = result_of(run), run.load_run().claims
    assert [*caveats(result)] == ["1 of 3 cells did not finish: their values are unknown."]
    said = dict(reliability(result, claims=claims))
    assert re.fullmatch(r"values? that holds? (is|are) met within \d\.\d%", said["published"])
    assert said["theory"] == "off by 3.8% in the median and 100.0% at most, over 6 values"


def test_what_was_contended_or_changed_is_said(tmp_path: Path) -> None:
    result = result_of(runs.theory_run(tmp_path, runs.SMALL, contended=1))
    said = dict(reliability(result, notes="Scaled  down.", overrides=("trials=2",)))
    assert said["changed"] == "by --set trials=2"
    assert said["notes"] == "Scaled down."
    assert "parity-last: the guest waited" in said["doubtful"]
    quiet = result_of(runs.theory_run(tmp_path / "q", runs.SMALL))
    assert set(dict(reliability(quiet))) == {"theory"}
    lines = steps(result, lab="lab", scenario="s", run="r")
    assert [c for c, _ in lines] == [
        *("lab run scenario s --jobs 1", "lab report r", "lab scenario explain s --run r")
    ]
    # In virtual time fewer guests change nothing.
    cells = tuple(c.model_copy(update={"clock": CellClock.SEALED}) for c in result.cells)
    sealed = steps(result.model_copy(update={"cells": cells}), lab="lab", scenario="s", run="r")
    assert [c for c, _ in sealed] == ["lab report r", "lab scenario explain s --run r"]


DAMAGE = {
    "a cut off outcome": ("cells/CELL/outcome.json", b'{"outcome": "do', "outcome.json' is cut"),
    "a cut off procedure": ("cells/CELL/procedure.json", b'{"name"', "procedure.json' is cut off"),
    "another document": ("cells/CELL/outcome.json", b'{"a": 1}', "a: unknown key"),
    "bytes": ("cells/CELL/raw/write.1.stderr.txt", b"\xff\xfe\x00", "is no text: byte 0"),
    "a foreign directory": ("cells/CELL/raw/deep/x", b"", "raw/deep' cannot be read"),
}


def plant(store: RunStore, kind: str) -> str:
    """Corrupt a run; return the expected message."""
    name, data, says = DAMAGE[kind]
    path = store.directory / name.replace("CELL", store.load_run().cells[0].id)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return says


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_file_that_cannot_be_read_is_named(run: RunStore, kind: str) -> None:
    assert page_of(run).warnings == ()
    says = plant(run, kind)
    page = page_of(run)
    [sentence] = page.warnings
    assert says in sentence
    assert str(run.directory) in sentence
    assert page.result.cells[1].outcome is Outcome.DONE


def test_the_rest_is_shown_beside_what_is_broken(cli: Cli) -> None:
    store = stored_run(paths_of(cli))
    says = [plant(store, kind) for kind in ("a cut off outcome", "bytes", "a foreign directory")]
    shown = cli("results", "show", store.id)
    assert says[0] in shown.stderr
    assert "2 more unreadable files" in shown.stderr
    assert shown.stderr.count("lab: ") == 1
    assert "10.7 MB/s" in shown.stdout
    found = cli("results", "show", store.id, "--json")
    assert found.json["cells"][1]["outcome"] == "done"
    assert found.stderr == shown.stderr
    done = cli("report", store.id)
    assert done.status == 0, done.stderr
    assert done.stderr == shown.stderr
    page = Reader((store.directory / "report.html").read_text(encoding="utf-8"))
    assert says[0] in page.text
    assert "10.7 MB/s" in page.text
    assert page.open == []


def paths_of(cli: Cli) -> Path:
    """Return that command line's directory of runs."""
    directory = cli.home / "data" / "runs"
    directory.mkdir(parents=True)
    return directory


def test_pictures_are_written_as_svg_and_png(cli: Cli) -> None:
    store = stored_run(paths_of(cli))
    done = cli("report", "last", "--out", "page.html", "--pictures", "p", "--json")
    assert done.json["page"] == str(cli.base / "page.html")
    names = sorted(p.name for p in (cli.base / "p").iterdir())
    assert sorted(Path(p).name for p in done.json["pictures"]) == names
    assert {"read-throughput.svg", "read-throughput.png", "answer.svg"} <= set(names)
    assert not (store.directory / "report.html").exists()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("nobody",), "there is no run 'nobody'"),
    ],
)
def test_what_cannot_be_reported_is_a_sentence(cli: Cli, args: tuple[str, ...], says: str) -> None:
    done = cli("report", *args)
    assert done.status == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_site_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run to report on"):
        write_site([], tmp_path / "none", "lab", lambda _: None)


def test_a_page_goes_where_it_is_asked_to(tmp_path: Path, lab_home: Path) -> None:
    store = stored_run(tmp_path)
    assert write_report(store, None, "lab") == store.directory / "report.html"
    assert write_report(store, tmp_path, "lab") == tmp_path / f"{store.id}.html"
    assert write_report(store, tmp_path / "deep" / "x.html", "lab").exists()
    assert store.warnings() == ()
    assert not paths.site().exists()
