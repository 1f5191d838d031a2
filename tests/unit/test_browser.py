"""Report pages in Chromium, at a desk's width and a telephone's: no error, no request, no overflow.

Without Chromium they are skipped; ``WITH_BROWSER=1 make setup`` installs it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.app.report import write_report, write_site
from tests import runs
from tests.fakes import stored_run

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not (shutil.which("chromium") and shutil.which("chromedriver")),
        reason="there is no chromium with its chromedriver: WITH_BROWSER=1 make setup",
    ),
]

WIDTHS = {"desk": (1280, 900), "telephone": (390, 844)}
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars"),
)


class Browser:
    """Chromium, with what it said on its console and what it asked the network for."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path, width: str) -> None:
        size = dict(zip(("width", "height"), WIDTHS[width], strict=True))
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {**size, "deviceScaleFactor": 1, "mobile": width == "telephone"},
        )
        self.told()
        self.driver.get(path.as_uri())

    def told(self) -> tuple[list[str], list[str]]:
        """Messages of the console, and addresses that were asked for, since the last time."""
        console = [entry["message"] for entry in self.driver.get_log("browser")]
        asked = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                asked.append(message["params"]["request"]["url"])
        return console, [url for url in asked if not url.startswith("data:")]

    def wider_than_the_page(self) -> list[str]:
        """Elements that stick out of the window, less those in boxes that scroll."""
        found: list[str] = self.driver.execute_script(_STICKING_OUT)
        return found


_STICKING_OUT = """
const edge = document.documentElement.clientWidth + 1;
const scrolls = e => ['auto', 'scroll'].includes(getComputedStyle(e).overflowX);
const boxed = e => e && (scrolls(e) || boxed(e.parentElement));
const wide = [...document.body.querySelectorAll('*')].filter(
  e => !e.closest('svg') && !boxed(e) && e.getBoundingClientRect().right > edge);
const page = document.documentElement.scrollWidth > edge ? ['the page itself'] : [];
return page.concat(wide.map(e => e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 40)));
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for option in (*OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = Service(str(shutil.which("chromedriver")))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield Browser(driver)
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages by name: the main job with a lost cell, three fixtures, and the index of two runs."""
    base = tmp_path_factory.mktemp("site")
    stores = {
        "main": stored_run(base / "runs"),
        "layouts": runs.theory_run(base / "runs", runs.LAYOUTS, name="layouts", contended=1),
        "bitmap": runs.theory_run(base / "runs", runs.BITMAP, name="bitmap"),
        "depth": runs.theory_run(base / "runs", runs.DEPTH, name="depth"),
    }
    stores["later"] = runs.theory_run(
        base / "runs", runs.BITMAP, name="bitmap", stamp="20260102-120000", drift=0.97
    )
    pages = {n: write_report(s, base / f"{n}.html", "lab") for n, s in stores.items()}
    two = [stores["later"], stores["bitmap"]]
    return pages | {"index": write_site(two, base / "site", "lab", lambda _: None)}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["main", "layouts", "bitmap", "depth", "index"])
def test_a_page_is_whole_without_error_request_or_overflow(
    browser: Browser, site: dict[str, Path], name: str, width: str
) -> None:
    browser.open(site[name], width)
    console, asked = browser.told()
    assert console == []
    assert asked == [site[name].as_uri()]
    assert browser.wider_than_the_page() == []
    drawn = browser.driver.execute_script(
        "return [...document.querySelectorAll('figure svg')].map(s => s.getBoundingClientRect())"
        ".map(r => [r.width, r.height])"
    )
    assert all(w > 250 and h > 40 for w, h in drawn)
    assert len(drawn) >= 1
    assert browser.driver.title


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
