"""Screenshots of reports: ``python -m docs.make_screenshots``, of the runs in the tests.

Each run gives ``docs/report-SCENARIO.png``, the top of its report on a desktop, and
``docs/report-SCENARIO-phone.png``. Needs Chromium with its driver: ``WITH_BROWSER=1 make setup``.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from lab.results.report import write_report
from lab.store.runs import RunStore
from tests.kept import unpacked

PLACE: Final = Path(__file__).parent
RUNS: Final = ("raid5-parity-last", "raid5-layouts", "bitmap-chunk-raid10", "bitmap-random-write")
SIZES: Final = {"": (1280, 2000, 0.7), "-phone": (390, 1100, 1.0)}
"""Width and height in CSS pixels, and screenshot pixels per CSS pixel."""
OPTIONS: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--hide-scrollbars",
)


def screenshots(run: RunStore, driver: webdriver.Chrome, directory: Path) -> None:
    """Make both screenshots of a run."""
    page = write_report(run, directory / f"{run.id}.html", "lab")
    for ending, (width, height, scale) in SIZES.items():
        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600},
        )
        driver.get(page.as_uri())
        driver.save_screenshot(str(PLACE / f"report-{run.load_run().scenario}{ending}.png"))


def main() -> None:
    """Make all screenshots in one browser."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    with TemporaryDirectory() as directory:
        for option in (*OPTIONS, f"--user-data-dir={directory}/profile"):
            options.add_argument(option)
        service = Service(shutil.which("chromedriver") or "chromedriver")
        driver = webdriver.Chrome(options=options, service=service)
        try:
            for name in RUNS:
                screenshots(unpacked(name, Path(directory)), driver, Path(directory))
        finally:
            driver.quit()


if __name__ == "__main__":
    main()
