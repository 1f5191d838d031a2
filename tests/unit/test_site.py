"""The documentation site: every document and scenario has a page, and a broken link is an error."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from docs.make_gallery import gallery
from docs.make_man import man_page
from docs.make_site import Site, site, write
from lab.cli.commands import app

ROOT = Path(__file__).resolve().parents[2]
MKDOCS = ROOT / ".venv-docs/bin/mkdocs"


@cache
def whole() -> Site:
    return site()


def titles(made: Site) -> dict[str, list[str]]:
    """Return the pages' paths by section of the navigation."""
    found: dict[str, list[str]] = {}
    for section in made.navigation():
        for title, entry in section.items():
            entries: list[Any] = entry if isinstance(entry, list) else [entry]
            found[title] = [e if isinstance(e, str) else next(iter(e.values())) for e in entries]
    return found


def test_every_page_is_in_the_navigation_once() -> None:
    made = whole()
    listed = [page for pages in titles(made).values() for page in pages]
    assert sorted(listed) == sorted(p for p in made.pages if not p.startswith("files/"))
    assert {"index.md", "tutorial.md", "claims.md"} <= set(listed)


def checkout(base: Path, files: dict[str, str]) -> Site:
    """Return the site of a checkout with these files, without the gallery."""
    for name, text in files.items():
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    made = Site(base)
    made.add_documents()
    made.link()
    return made


@pytest.mark.parametrize(
    ("link", "there"),
    [
        ("[a](docs/guides/c.md#d)", "[a](guides/c.md#d)"),
        ("[a](docs/README.md#d)", "[a](documents.md#d)"),
        ("![a](docs/a.png)", "![a](a.png)"),
        ("[a](tools/x.sh)", "[a](files/tools/x.sh.md)"),
        ("[a](tools/)", "[a](files/tools.md)"),
        ("[a](docs/gone.md)", "[a](docs/gone.md)"),
        ("[a](../outside.txt)", "[a](../outside.txt)"),
        ("[a](https://example.org/docs/README.md)", "[a](https://example.org/docs/README.md)"),
        ("`[a](docs/README.md)`", "`[a](docs/README.md)`"),
        ("[`a`](docs/README.md)", "[`a`](documents.md)"),
        ("[a]: docs/README.md", "[a]: documents.md"),
    ],
)
def test_links_lead_to_pages_of_the_site(tmp_path: Path, link: str, there: str) -> None:
    (tmp_path / "outside.txt").write_text("x")
    base = tmp_path / "checkout"
    others = {"docs/README.md": "x", "docs/guides/c.md": "# C", "docs/a.png": "", "tools/x.sh": "x"}
    made = checkout(base, {"README.md": f"# R\n\n{link}\n", **others})
    assert made.pages["index.md"] == f"# R\n\n{there}\n"


CLAIMS = """\
| claim | says | verdict | trials |
|---|---|---|---|
| S001-3 | mke2fs takes longer | refuted | 4 |

| scenario | run | cells | seconds | lab | accelerator | clock | guest |
|---|---|---|---|---|---|---|---|
| bitmap-mkfs | 2026-11-22T19:05:15+00:00 | 3 of 3 | 95 | 0.1.0 | tcg | sealed | Linux 6.1.0 |
"""
"""Parts of docs/claims.md."""


def test_every_scenario_has_its_question_source_claims_and_command() -> None:
    pages = gallery(CLAIMS)
    names = {path.stem for path in (ROOT / "scenarios").glob("*.yaml")}
    assert set(pages) == {f"{name}.md" for name in names} | {"index.md"}
    assert all(f"[{name}]({name}.md)" in pages["index.md"] for name in names)
    page = pages["bitmap-mkfs.md"]
    assert "Does mke2fs take two and a half times as long with an internal bitmap?" in page
    assert "](https://blog.liw.fi/posts/write-intent-bitmaps/), Lars Wirzenius, 2010\n" in page
    assert "lab run scenario bitmap-mkfs\n" in page
    assert "- **Time**: 1 min 35 s without KVM\n" in page
    assert re.search(r"^\| `S001-3` \| .* \| refuted \|$", page, re.MULTILINE)
    assert "- **`array.bitmap`**: " in page


def test_the_manual_page_has_every_command_and_option() -> None:
    command = typer.main.get_command(app)
    page = (ROOT / "docs/reference/lab.1").read_text(encoding="utf-8")
    assert page.startswith(".TH LAB 1 ")
    assert ".SS lab run scenario\n" in page
    assert "\\fB\\-\\-set\\fR \\fIPATH=VALUE\\fR" in page
    assert ".TP\n.B 130\n" in page
    made = man_page(command, {0: "done"})
    paths = set(re.findall(r"^\.SS (.*)$", made, re.MULTILINE))
    assert {"lab doctor", "lab scenario check", "lab image list"} <= paths


@pytest.mark.skipif(not shutil.which("man"), reason="there is no man")
def test_man_reads_the_manual_page_without_a_warning() -> None:
    done = subprocess.run(
        ["man", "--warnings=w", "--local-file", ROOT / "docs/reference/lab.1"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANWIDTH": "80"},
    )
    assert done.returncode == 0
    assert done.stderr == ""
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert {"lab scenario check", "lab scenario check my-own.yaml"} <= set(lines)
    assert max(map(len, done.stdout.splitlines())) <= 80


def built(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [MKDOCS, "build", "--strict", "--config-file", directory / "mkdocs.yml"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "NO_MKDOCS_2_WARNING": "1"},
    )


@pytest.mark.slow
@pytest.mark.skipif(not MKDOCS.exists(), reason="`make docs` has not been run")
def test_the_site_is_built_without_the_network_and_a_broken_link_fails(tmp_path: Path) -> None:
    made = whole()
    write(made, tmp_path / "docs")
    done = built(tmp_path / "docs")
    assert done.returncode == 0, done.stderr
    for page in (tmp_path / "site").rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(r'(?:src|<link[^>]*href)="(https?://[^"]*)"', text)
        assert fetched == [], page
    assert (tmp_path / "site/search/search_index.js").exists()

    tutorial = tmp_path / "docs/pages/tutorial.md"
    for broken in ("[a](gone.md)", "[a](claims.md#gone)"):
        tutorial.write_text(f"# T\n\n{broken}\n")
        done = built(tmp_path / "docs")
        assert done.returncode != 0
        assert "gone" in done.stderr + done.stdout
