"""Reports in Chromium, at desktop and telephone width: no error, no request, no overflow.

The pages are of measured runs, whose values are compared with the stored result, and of fixtures.
Without Chromium they are skipped; ``WITH_BROWSER=1 make setup`` installs it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.core.units import format_value, format_values
from lab.report.content.figures import metric_words
from lab.results.documents import result_of
from lab.results.report import write_report
from lab.store.runs import RunStore
from tests import kept, runs
from tests.browsing import MARKS, WIDTHS, Browser, opened
from tests.fakes import stored_run

pytestmark = MARKS

_CLAIMS = """
return [...document.querySelectorAll('#claims tbody tr')].map(
  row => [row.cells[0].textContent, row.cells[1].textContent.slice(2).replace(' ', '_')]);
"""
_SHOWN = """
const heads = [...document.querySelectorAll('#figures th')].map(h => h.textContent);
return [...document.querySelectorAll('#figures tbody tr')].map(
  row => row.cells[heads.indexOf('measured')].textContent);
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    yield from opened(tmp_path_factory.mktemp("chromium"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages by name: the main scenario with a lost cell, three fixtures."""
    base = tmp_path_factory.mktemp("site")
    stores = {
        "main": stored_run(base / "runs"),
        "layouts": runs.theory_run(base / "runs", runs.LAYOUTS, name="layouts", contended=1),
        "bitmap": runs.theory_run(base / "runs", runs.BITMAP, name="bitmap"),
        "depth": runs.theory_run(base / "runs", runs.DEPTH, name="depth"),
    }
    return {n: write_report(s, base / f"{n}.html", "lab") for n, s in stores.items()}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["main", "layouts", "bitmap", "depth"])
def test_a_page_is_whole_without_error_request_or_overflow(
    browser: Browser, site: dict[str, Path], name: str, width: str
) -> None:
    assert browser.faults(site[name], width) == []
    assert browser.driver.title


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[RunStore, Path]]:
    """Measured runs, and their pages."""
    base = tmp_path_factory.mktemp("measured")
    stores = {name: kept.unpacked(name, base) for name in kept.NAMES}
    return {n: (s, write_report(s, base / f"{n}.html", "lab")) for n, s in stores.items()}


Document = dict[str, Any]


def differing(browser: Browser, result: Document) -> list[tuple[str, str, str]]:
    """Return the values of a stored result that differ on the open page."""
    shown = browser.figures()
    found = [(c["id"], m) for c in result["cells"] for m in c["measurements"]]
    assert len(found) == len(shown)
    wrong = []
    for cell, m in found:
        key = (cell, m["workload"], metric_words(m["metric"]))
        said, exact = shown.get(key, ("", "nan"))
        trials = ", ".join(format_values(m["values"], m["unit"]))
        number, _, unit = exact.partition(" ")
        near = float(number) == pytest.approx(m["median"], rel=1e-9)
        if (said, near, unit) != (trials, True, m["unit"].removesuffix("1")):
            wrong.append(key)
    return wrong


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", kept.NAMES)
def test_a_measured_runs_page_is_whole_and_has_the_figures_of_its_result(
    browser: Browser, measured: dict[str, tuple[RunStore, Path]], name: str, width: str
) -> None:
    store, page = measured[name]
    assert browser.faults(page, width) == []
    result = json.loads(result_of(store).model_dump_json())
    assert differing(browser, result) == []
    claims = [[claim["id"], claim["verdict"]] for claim in result["claims"]]
    assert claims == browser.driver.execute_script(_CLAIMS)
    shown = [text.removesuffix(" ?") for text in browser.driver.execute_script(_SHOWN)]
    all_ = {
        format_value(m["median"], m["unit"]) for c in result["cells"] for m in c["measurements"]
    }
    assert len(shown) >= len(result["cells"])
    assert set(shown) <= all_


@pytest.mark.parametrize("name", kept.NAMES)
def test_a_measured_runs_page_fits_on_paper(
    browser: Browser, measured: dict[str, tuple[RunStore, Path]], name: str
) -> None:
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert browser.faults(measured[name][1], "paper") == []
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    options = {"paperWidth": 8.27, "paperHeight": 11.69}
    printed = browser.driver.execute_cdp_cmd("Page.printToPDF", options)["data"]
    assert base64.b64decode(printed)[:5] == b"%PDF-"


def test_a_measured_runs_page_with_faults_planted_in_it_is_noticed(
    browser: Browser, measured: dict[str, tuple[RunStore, Path]], tmp_path: Path
) -> None:
    store, page = measured["bitmap-random-write"]
    result = json.loads(result_of(store).model_dump_json())
    median = result["cells"][1]["measurements"][0]["median"]
    text = page.read_text(encoding="utf-8")
    planted = tmp_path / "planted.html"
    bad = text.replace(f"{median:.10g} ", f"{median * 1.001:.10g} ", 1)
    bad = bad.replace("</header>", "</header><script>nowhere()</script><img src='there.png'>", 1)
    bad = bad.replace(">8 disks, no bitmap</text>", ">8 disks, no bit\u2026</text>", 1)
    planted.write_text(bad, encoding="utf-8")
    found = browser.faults(planted, "desk")
    for beginning in ("console: ", "asked for: ", "a script: ", "cut off: "):
        assert any(fault.startswith(beginning) for fault in found), beginning
    assert len(differing(browser, result)) == 1
    planted.write_text(text.replace("<figure", "<i hidden").replace("</figure", "</i"))
    assert "no picture" in browser.faults(planted, "telephone")


def test_the_rest_is_folded_and_a_link_to_a_part_opens_it(
    browser: Browser, site: dict[str, Path]
) -> None:
    browser.open(site["main"], "desk")
    browser.driver.get(site["main"].as_uri())
    closed = (
        "return [...document.querySelectorAll('details.part')].filter(d => !d.open)"
        ".map(d => d.querySelector('div').id)"
    )
    folded = browser.driver.execute_script(closed)
    assert set(folded) >= {"figures", "trust", "cells", "environment"}
    assert not {"claims", "charts", "failures"} & set(folded)
    browser.driver.execute_script("document.querySelector('nav a[href=\"#trust\"]').click()")
    assert set(folded) - set(browser.driver.execute_script(closed)) == {"trust"}


def test_no_name_is_broken_over_lines_on_a_telephone(
    browser: Browser, site: dict[str, Path]
) -> None:
    high = (
        "return [...document.querySelectorAll('.whole, td.name')].filter("
        "e => e.getBoundingClientRect().height > 1.9 * parseFloat(getComputedStyle(e).lineHeight))"
        ".map(e => e.textContent)"
    )
    browser.open(site["main"], "telephone")
    assert browser.driver.execute_script(high) == []
    browser.driver.execute_script("document.querySelector('.whole').style.width = '6em'")
    assert len(browser.driver.execute_script(high)) == 1


def test_everything_that_is_folded_can_be_opened_and_stays_inside(
    browser: Browser, site: dict[str, Path]
) -> None:
    browser.open(site["main"], "telephone")
    opened = browser.driver.execute_script(
        "const all = [...document.querySelectorAll('details')]; all.forEach(d => d.open = true);"
        "return all.length"
    )
    assert opened > 6
    assert browser.wider_than_the_page() == []


def test_a_dark_screen_gets_dark_paper_and_light_ink_and_a_printer_never(
    browser: Browser, site: dict[str, Path]
) -> None:
    colours = {}
    for media, scheme in (("screen", "light"), ("screen", "dark"), ("print", "dark")):
        browser.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"media": media, "features": [{"name": "prefers-color-scheme", "value": scheme}]},
        )
        browser.open(site["main"], "desk")
        colours[media, scheme] = browser.driver.execute_script(
            "const s = e => getComputedStyle(document.querySelector(e));"
            "return [s('body').backgroundColor, s('figure svg text').fill]"
        )
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    white, ink = "rgb(255, 255, 255)", "rgb(27, 31, 36)"
    assert colours["screen", "light"] == [white, ink]
    assert colours["screen", "dark"] == ["rgb(20, 24, 29)", "rgb(230, 233, 236)"]
    assert colours["print", "dark"] == [white, ink]


def test_the_checks_notice_an_error_a_request_and_an_overflow(
    browser: Browser, tmp_path: Path
) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        "<meta name=viewport content='width=device-width'><link rel=icon href='data:,'>"
        "<script>nowhere()</script><img src='picture.png'>"
        "<p style='width: 900px'>wide</p>"
    )
    browser.open(page, "telephone")
    console, asked = browser.told()
    assert any("nowhere is not defined" in line for line in console)
    assert (tmp_path / "picture.png").as_uri() in asked
    assert any("wide" in found for found in browser.wider_than_the_page())
