"""Chromium for tests of pages: what it says, what it requests, and what overflows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MARKS = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not (shutil.which("chromium") and shutil.which("chromedriver")),
        reason="there is no chromium with its chromedriver: WITH_BROWSER=1 make setup",
    ),
]
WIDTHS = {"desk": (1280, 900), "telephone": (390, 844)}
PAPER = {"paper": (718, 1000)}
"""A4 minus Chromium's margins, in CSS pixels."""
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars"),
)


class Browser:
    """Chromium, with its console messages and its network requests."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path, width: str, address: str = "") -> None:
        size = dict(zip(("width", "height"), (WIDTHS | PAPER)[width], strict=True))
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {**size, "deviceScaleFactor": 1, "mobile": width == "telephone"},
        )
        self.told()
        self.driver.get(path.as_uri() + address)
        self.driver.execute_script(_UNFOLD)

    def told(self) -> tuple[list[str], list[str]]:
        """Return new console messages, and newly requested addresses."""
        console = [entry["message"] for entry in self.driver.get_log("browser")]
        asked = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                asked.append(message["params"]["request"]["url"])
        return console, [url for url in asked if not url.startswith("data:")]

    def wider_than_the_page(self) -> list[str]:
        """Return elements that overflow the window, except those in scrolling boxes."""
        found: list[str] = self.driver.execute_script(_STICKING_OUT)
        return found

    def faults(self, path: Path, width: str) -> list[str]:
        """Return the problems of an opened page."""
        self.open(path, width)
        console, asked = self.told()
        drawn, cut, scripts = self.driver.execute_script(_PICTURES)
        small = [f"a picture of {w} by {h}" for w, h in drawn if w < 250 or h < 40]
        return [
            *(f"console: {said}" for said in console),
            *(f"asked for: {url}" for url in asked if url != path.as_uri()),
            *(f"sticks out: {element}" for element in self.wider_than_the_page()),
            *(small if drawn else ["no picture"]),
            *(f"cut off: {text}" for text in cut),
            *(f"a script: {text}" for text in scripts),
        ]

    def figures(self) -> dict[tuple[str, str, str], tuple[str, str]]:
        """Return the open page's values: all trials and exact median by cell, workload and
        metric."""
        rows = self.driver.execute_script(_FIGURES)
        return {
            (cell, workload, metric): (said, exact) for cell, workload, metric, said, exact in rows
        }


_UNFOLD = "document.querySelectorAll('details.part').forEach(d => d.open = true)"
_STICKING_OUT = """
const edge = document.documentElement.clientWidth + 1;
const scrolls = e => ['auto', 'scroll'].includes(getComputedStyle(e).overflowX);
const boxed = e => e && (scrolls(e) || boxed(e.parentElement));
const wide = [...document.body.querySelectorAll('*')].filter(
  e => e.checkVisibility() && !e.closest('svg') && !boxed(e)
    && e.getBoundingClientRect().right > edge);
const page = document.documentElement.scrollWidth > edge ? ['the page itself'] : [];
return page.concat(wide.map(e => e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 40)));
"""
_PICTURES = """
const all = [...document.querySelectorAll('figure svg')];
const edges = all.map(s => s.getBoundingClientRect());
const out = (r, e) => r.left < e.left - 1 || r.right > e.right + 1 || r.bottom > e.bottom + 1;
const cut = all.flatMap((svg, i) => [...svg.querySelectorAll('text')].filter(
  t => t.textContent.includes('\u2026') || out(t.getBoundingClientRect(), edges[i])));
return [edges.map(r => [r.width, r.height]), cut.map(t => t.textContent),
  [...document.scripts].map(s => s.outerHTML.slice(0, 80))];
"""
_FIGURES = """
return [...document.querySelectorAll('details.cell')].flatMap(
  cell => [...cell.querySelector('table').querySelectorAll('tbody tr')].map(row => {
    const [workload, metric, trials, exact] = [...row.cells].map(c => c.textContent);
    return [cell.id.slice('cell-'.length), workload, metric, trials, exact];
  }));
"""


def opened(directory: Path) -> Iterator[Browser]:
    """Yield Chromium with its profile in a directory."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for option in (*OPTIONS, f"--user-data-dir={directory}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = Service(str(shutil.which("chromedriver")))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield Browser(driver)
    finally:
        driver.quit()
