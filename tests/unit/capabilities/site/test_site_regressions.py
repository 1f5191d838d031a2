"""The site names the version that made a value worse."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.capabilities.site.run import write_site
from tests.unit.test_regressions import kept


@pytest.mark.usefixtures("undrawn")
def test_the_site_says_what_got_worse(tmp_path: Path) -> None:
    runs = [
        kept(tmp_path, day, kernel, drift)
        for day, kernel, drift in (
            (1, "6.1.0-56-amd64", 1.0),
            (2, "6.17.2-amd64", 0.8),
            (3, "6.1.0-56-amd64", 1.0),
        )
    ]
    for run, image in zip(runs, ("old", "new", "old"), strict=True):
        stored = run.load_run()
        named = {**stored.environment["image"], "name": image}
        environment = {**stored.environment, "image": named}
        run.save_run(stored.model_copy(update={"environment": environment}))
    site = write_site(runs[::-1], tmp_path / "site", "lab", print)
    page = site.read_text()
    assert ">Regressions<" in page
    assert "first bad: Linux 6.17.2-amd64; good before: Linux 6.1.0-56-amd64" in page
    same = write_site([runs[2], runs[0]], tmp_path / "same", "lab", print).read_text()
    assert ">Regressions<" not in same
    assert "2 hold" not in (tmp_path / "same" / "badge.svg").read_text()
    assert "raid-lab: 1 hold" in (tmp_path / "same" / "badge.svg").read_text()
