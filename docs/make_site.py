"""Writes the input of mkdocs, pages, navigation and gallery, to ``build/docs``.

Pages are those of ``docs/`` and the Markdown files of the checkout's root. A link to another file
of the checkout leads to a page that shows that file. mkdocs reports broken links.
"""

from __future__ import annotations

import json
import posixpath
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from docs.make_gallery import gallery

ROOT: Final = Path(__file__).resolve().parents[1]
BUILT: Final = ROOT / "build" / "docs"
HOME: Final = "README.md"
"""The first page, unless docs/index.md exists."""
SKIPPED: Final = ("docs/site/*",)
DOCUMENTS: Final = "documents.md"
"""The page of docs/README.md; mkdocs would treat README.md as a second start page."""
ASSETS: Final = (".png", ".svg", ".json", ".1")
NAVIGATION: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("Home", ("index.md",)),
    ("Tutorial", ("tutorial.md", "tutorial/*")),
    ("Guides", ("guides/*", "howto/*")),
    ("Scenarios", ("scenarios/*",)),
    (
        "Concepts",
        (
            "concepts/*",
            "numbers.md",
            "hardware.md",
            "theory.md",
            "benchmarks.md",
            "virtual-time.md",
        ),
    ),
    ("Reference", ("reference/*",)),
    ("Claims", ("claims.md",)),
    ("Troubleshooting", ("broken-array.md", "troubleshooting.md", "limits.md")),
    ("Glossary", ("glossary.md",)),
    ("Decisions", ("decisions/*",)),
    ("Project", ("*",)),
)
"""Sections in their order; a page goes into the first section with a matching pattern."""
FIRST: Final = ("index", "README")
"""Names of pages that come first in their section."""
CODE: Final = re.compile(r"^(```|~~~).*?^\1[^\n]*$|(?<!`)(`+)(?!`).+?(?<!`)\2(?!`)", re.M | re.S)
LINK: Final = re.compile(r"(?<=\]\()(?P<path>[^)\s#:]+)(?P<anchor>#[^)\s]*)?(?=[)\s])")
REFERENCE: Final = re.compile(
    r"(?m)(?<=^\[)(?P<name>[^\]\n]+)\]: +(?P<path>[^\s#:]+)(?P<anchor>#\S*)?$"
)
WIDE: Final = ("claims.md",)
"""Pages that are a section of their own, with wide tables."""
WITHOUT_LIST: Final = "---\nhide: [navigation]\n---\n\n"
CELL: Final = re.compile(r"(?<=\| )[\w-]+(?= \|)")
LANGUAGES: Final = {".py": "python", ".sh": "sh", ".yaml": "yaml", ".yml": "yaml", ".c": "c"}


class Site:
    """The pages by their path in the site, and the files that they link to."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.pages: dict[str, str] = {}
        self.assets: dict[str, Path] = {}
        listing = root / "docs" / "README.md"
        text = listing.read_text(encoding="utf-8") if listing.exists() else ""
        self._listed = [link["path"] for link in LINK.finditer(text)]
        self._paths: dict[str, str] = {}
        """Page by file of the checkout."""

    def add_documents(self) -> None:
        """Add the Markdown files of the root and of docs, and their images."""
        sources = [*self._root.glob("*.md"), *(self._root / "docs").rglob("*")]
        own_home = (self._root / "docs" / "index.md").exists()
        for path in sorted(sources):
            name = path.relative_to(self._root).as_posix()
            if any(fnmatch(name, pattern) for pattern in SKIPPED) or not path.is_file():
                continue
            if path.suffix == ".md":
                home = "about.md" if own_home else "index.md"
                self._paths[name] = home if name == HOME else _place(name)
            elif path.suffix in ASSETS:
                self._paths[name] = _place(name)
                self.assets[_place(name)] = path

    def add_gallery(self) -> None:
        """Add a page for each scenario."""
        claims = self._root / "docs" / "claims.md"
        text = claims.read_text(encoding="utf-8") if claims.exists() else ""
        for name, page in gallery(text).items():
            self.pages[f"scenarios/{name}"] = page
            self._paths[f"scenarios/{name.removesuffix('.md')}.yaml"] = f"scenarios/{name}"
        self._paths["scenarios"] = "scenarios/index.md"

    def link(self) -> None:
        """Read the documents, and make their links lead to pages."""
        for name, page in list(self._paths.items()):
            if name.endswith(".md") and page not in self.pages and (self._root / name).exists():
                text = (self._root / name).read_text(encoding="utf-8")
                self.pages[page] = _outside_code(text, self._linked(name, page))
        if "claims.md" in self.pages:
            self.pages["claims.md"] = CELL.sub(self._scenario, self.pages["claims.md"])

    def _scenario(self, cell: re.Match[str]) -> str:
        """Return a table's cell with a link to the scenario that it names."""
        page = f"scenarios/{cell[0]}.md"
        return f"[{cell[0]}]({page})" if page in self.pages else cell[0]

    def _linked(self, name: str, page: str) -> Callable[[str], str]:
        def target(found: re.Match[str]) -> str:
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), found["path"]))
            there = self._paths.get(path) or self._show(path)
            if there is None:
                return found[0]
            link = posixpath.relpath(there, posixpath.dirname(page) or ".")
            start, end = (at - found.start() for at in found.span("path"))
            return found[0][:start] + link + found[0][end:]

        return lambda text: REFERENCE.sub(target, LINK.sub(target, text))

    def _show(self, name: str) -> str | None:
        """Return the page of a file or directory that is no document; ``None``: there is none."""
        path = (self._root / name).resolve()
        if not path.exists() or not path.is_relative_to(self._root) or path == self._root:
            return None
        if path.suffix in ASSETS:
            self._paths[name] = f"files/{name}"
            self.assets[f"files/{name}"] = path
            return self._paths[name]
        page = f"files/{name}.md"
        if path.is_dir():
            listed = "\n".join(sorted(p.name for p in path.iterdir() if p.name[0] not in "._"))
            shown = f"```text\n{listed}\n```"
        else:
            text = path.read_text(encoding="utf-8", errors="replace").rstrip()
            shown = f"````{LANGUAGES.get(path.suffix, 'text')}\n{text}\n````"
        self.pages[page] = f"---\nsearch:\n  exclude: true\n---\n\n# {name}\n\n{shown}\n"
        self._paths[name] = page
        return page

    def navigation(self) -> list[dict[str, Any]]:
        """Return the sections that have pages."""
        left = sorted((p for p in self.pages if not p.startswith("files/")), key=self._order)
        sections: list[dict[str, Any]] = []
        for title, patterns in NAVIGATION:
            mine = [page for page in left if any(fnmatch(page, p) for p in patterns)]
            left = [page for page in left if page not in mine]
            if mine:
                named = [_named(page) for page in mine]
                sections.append({title: mine[0] if mine == [f"{title.lower()}.md"] else named})
        sections[0]["Home"] = "index.md"
        return sections

    def _order(self, page: str) -> tuple[bool, int, str]:
        """Return a sort key: first pages, then the order of links in docs/README.md, then by
        name."""
        listed = self._listed.index(page) if page in self._listed else len(self._listed)
        return posixpath.basename(page).removesuffix(".md") not in FIRST, listed, page


def _named(page: str) -> str | dict[str, str]:
    """Return the entry of a page: a scenario has its name, every other page its heading."""
    short = page.startswith("scenarios/") and not page.endswith("/index.md")
    return {posixpath.basename(page).removesuffix(".md"): page} if short else page


def _place(name: str) -> str:
    return DOCUMENTS if name == "docs/README.md" else name.removeprefix("docs/")


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    """Change the text except in code blocks and code spans."""
    parts, end = [], 0
    for code in CODE.finditer(text):
        parts += [change(text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, change(text[end:])])


def site(root: Path = ROOT) -> Site:
    """Return the whole site."""
    made = Site(root)
    made.add_documents()
    made.add_gallery()
    made.link()
    return made


def write(made: Site, directory: Path) -> None:
    """Write pages and mkdocs' file; remove all other files."""
    shutil.rmtree(directory, ignore_errors=True)
    for name, text in made.pages.items():
        path = directory / "pages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(WITHOUT_LIST + text if name in WIDE else text, encoding="utf-8")
    for name, source in made.assets.items():
        path = directory / "pages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, path)
    settings = {
        "INHERIT": str(ROOT / "docs/site/mkdocs.yml"),
        "docs_dir": "pages",
        "site_dir": str(directory.with_name("site")),
        "hooks": [str(ROOT / "docs/site/hooks.py")],
        "theme": {"custom_dir": str(ROOT / "docs/site/theme")},
        "nav": made.navigation(),
    }
    text = json.dumps(settings, indent=1, ensure_ascii=False)
    (directory / "mkdocs.yml").write_text(text, encoding="utf-8")


def main(arguments: Iterable[str]) -> None:
    """Write the site to ``build/docs``, or to the given directory."""
    [directory] = arguments or [str(BUILT)]
    write(site(), Path(directory).resolve())


if __name__ == "__main__":
    main(sys.argv[1:])
