"""Screenshots of reports: ``python -m docs.make_screenshots``, of the runs in the tests.

Each run gives ``docs/report-SCENARIO.png``, the top of its report on a desktop. ``pictures.json``
has the digest of each page, so that a test tells when a picture is not of today's page. Needs
Chromium with its driver: ``WITH_BROWSER=1 make setup``. Without it nothing is made.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from lab import __version__
from lab.report.html.page import run_page
from lab.results.report import page_of
from lab.store.runs import RunStore
from tests.kept import unpacked

PLACE: Final = Path(__file__).parent
DIGESTS: Final = PLACE / "pictures.json"
RUNS: Final = ("raid5-parity-last", "raid5-layouts", "faults")
SIZE: Final = (1280, 1700, 0.7)
"""Width and height in CSS pixels, and screenshot pixels per CSS pixel."""
COUNTED: Final = re.compile(r"\b(gradient_|clip)\d+")
OPTIONS: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--hide-scrollbars",
)


def page_text(run: RunStore) -> str:
    """Return a run's report as it is wherever the run lies and whichever version made it."""
    text = run_page(page_of(run, "lab"))
    names: dict[str, str] = {}
    # Vega counts these through all charts that a process draws.
    text = COUNTED.sub(lambda m: names.setdefault(m[0], f"{m[1]}{len(names)}"), text)
    return text.replace(str(run.directory), f"runs/{run.id}").replace(__version__, "VERSION")


def digest(text: str) -> str:
    """Return the digest of a page."""
    return hashlib.sha256(text.encode()).hexdigest()


def screenshot(run: RunStore, driver: webdriver.Chrome, directory: Path) -> tuple[str, str]:
    """Make the screenshot of a run; return its name and the digest of its page."""
    text = page_text(run)
    page = directory / f"{run.id}.html"
    page.write_text(text, encoding="utf-8")
    width, height, scale = SIZE
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False},
    )
    driver.get(page.as_uri())
    name = f"report-{run.scenario_name}.png"
    driver.save_screenshot(str(PLACE / name))
    return name, digest(text)


def main() -> None:
    """Make all screenshots in one browser."""
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        sys.stderr.write("docs: there is no chromium: pictures of reports stay as they are\n")
        return
    digests = {}
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    with TemporaryDirectory() as directory:
        for option in (*OPTIONS, f"--user-data-dir={directory}/profile"):
            options.add_argument(option)
        service = Service(shutil.which("chromedriver") or "chromedriver")
        driver = webdriver.Chrome(options=options, service=service)
        try:
            for name in RUNS:
                run = unpacked(name, Path(directory))
                picture, found = screenshot(run, driver, Path(directory))
                digests[picture] = found
        finally:
            driver.quit()
    DIGESTS.write_text(json.dumps(digests, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
