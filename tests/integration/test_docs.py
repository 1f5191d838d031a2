"""Documents: each command can be typed, each scenario is valid, each file works as described.

A fenced block with ``title="PATH"`` is a whole file. Blocks of ``sh`` are commands. Those that need
no guest are run in the order of the page; the command line of the others is parsed.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import typer.main
from ruamel.yaml import YAML

from docs.make_reference import pages
from lab.cli.app import ByKind
from lab.cli.commands import app
from lab.run.plan import _NEW
from tests import kept
from tests.fakes import Cli, clean_environment, stored_run

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "tutorial",
    "troubleshooting",
    *(
        f"{d}/{p.stem}"
        for d in ("concepts", "howto")
        for p in sorted((ROOT / "docs" / d).glob("*.md"))
    ),
)
HOWTO = ("workload", "disk-model", "faults", "image", "kernel", "scenario", "ci")
ADDED = {"workload": "scan.yaml", "disk-model": "space.yaml", "faults": "bitmap-gone.yaml"}
"""Pages that add a file to the package, and the scenario that uses it."""
FENCE = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GUESTS = (
    "up",
    "run",
    "reproduce",
    "hunt",
    "debug",
    "patch",
    "ssh",
    "ps",
    "console",
    "down",
    "gc",
    "image",
    "kernel",
    "bisect",
    "doctor",
    "cluster",
    "exec",
    "cp",
    "ssh-config",
)
"""Commands that boot or depend on this host's guests: they are only parsed."""
OTHERS = ("make", "git", "cd", "export", "sudo")
TARGETS = re.compile(r"^([a-z-]+):", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    file: str
    text: str


def blocks(text: str) -> list[Block]:
    return [Block(*found.groups(default="")) for found in FENCE.finditer(text)]


def page(name: str) -> list[Block]:
    return blocks((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8"))


def lines(text: str) -> Iterator[list[str]]:
    """Yield the words of each command, without the shell's pipes and redirections."""
    for line in text.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|>")
        lexer.whitespace_split = True
        words = list(lexer)
        ends = [words.index(mark) for mark in ("|", ">", ">>") if mark in words]
        if words := words[: min(ends, default=len(words))]:
            yield words


def parse(words: Sequence[str]) -> None:
    """Parse the command line without running it."""
    command: Any = typer.main.get_command(app)
    name, rest = "lab", list(words)
    if rest == ["--install-completion"]:
        return
    while hasattr(command, "commands"):
        if isinstance(command, ByKind) and rest[0] not in command.commands:
            rest = [command._kind(rest), *rest]
        name, rest, command = rest[0], rest[1:], command.commands[rest[0]]
    command.make_context(name, rest)


def test_a_command_that_nobody_can_type_is_noticed() -> None:
    parse(["run", "scenario", "x", "--jobs", "2"])
    for wrong in (["run", "scenario", "x", "--job", "2"], ["up", "x", "y"], ["results", "lst"]):
        with pytest.raises(Exception):  # noqa: B017  click's own, or that there is no such command
            parse(wrong)


def write(block: Block, base: Path) -> None:
    place = base / block.file
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(block.text, encoding="utf-8")


def own_command(words: list[str]) -> list[str] | None:
    """Return the words after ``lab``; ``None``: the line is of another known program."""
    while re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    program = words[0].rpartition("/")[2]
    if program == "lab":
        return words[1:]
    assert program in OTHERS, words
    if program == "make":
        assert words[1] in TARGETS.findall((ROOT / "Makefile").read_text(encoding="utf-8"))
    return None


def placeholder(word: str) -> bool:
    return bool(re.fullmatch(r"[A-Z]+(-[A-Z]+)?", word))


@pytest.mark.parametrize("name", [p for p in PAGES if p not in {f"howto/{a}" for a in ADDED}])
def test_each_command_of_a_page_works(cli: Cli, name: str) -> None:
    runs = cli.home / "data" / "runs"
    stored_run(runs)
    kept.unpacked("bitmap-random-write", runs)
    # The page's additions go to the user's own directory, not into the package.
    own = cli.base / ".config" / "lab"
    for block in page(name):
        if block.file.startswith("images/"):
            write(block, own)
        elif block.file:
            write(block, cli.base)
        if block.language != "sh":
            continue
        for words in lines(block.text):
            rest = own_command(words)
            if rest is None:
                continue
            if rest[0] in GUESTS or any(map(placeholder, rest)) or "--install-completion" in rest:
                parse(rest)
                continue
            ended = cli(*rest)
            assert ended.status == 0, (rest, ended.stderr)


def whole(fragment: dict[str, Any]) -> dict[str, Any]:
    """Return a scenario with these keys replaced; it writes and reads."""
    base = YAML().load(_NEW)
    base["workloads"].append(
        {"name": "read", "tool": "dd", "if": "{target}", "bs": "1MiB", "count": 9}
    )
    base["claims"] = []
    if fragment.get("array", "") == "none" or fragment.keys() & {"disks", "claims"}:
        base["matrix"] = {}
    return {**base, **fragment}


SNIPPETS = [
    pytest.param(block, id=f"{name}-{number}")
    for name in (*PAGES, "../README", "../ARCHITECTURE")
    for number, block in enumerate(page(name))
    if block.language == "yaml" and not block.file.startswith((".", "images/"))
    if block.file not in ADDED.values()  # these are checked with the file that their page adds
]


@pytest.mark.parametrize("block", SNIPPETS)
def test_each_scenario_and_each_part_of_one_is_right(cli: Cli, block: Block) -> None:
    data = YAML().load(block.text)
    text = StringIO()
    YAML().dump(data if "title" in data else whole(data), text)
    checked = cli("scenario", "check", cli.file(text.getvalue()))
    assert checked.status == 0, checked.stderr


def test_a_wrong_part_of_a_scenario_is_noticed(cli: Cli) -> None:
    text = StringIO()
    YAML().dump(whole({"filesystem": {"type": "xsf"}}), text)
    assert cli("scenario", "check", cli.file(text.getvalue())).status == 2


def test_what_a_new_scenario_says_is_what_the_tutorial_shows() -> None:
    [shown] = [block for block in page("tutorial") if block.language == "yaml"]
    assert YAML(typ="safe").load(shown.text) == YAML(typ="safe").load(_NEW)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, with all files of the pages."""
    base = tmp_path_factory.mktemp("copy")
    for name in ("lab", "drive", "scenarios", "images"):
        ignored = shutil.ignore_patterns("__pycache__", "data")
        shutil.copytree(ROOT / name, base / name, ignore=ignored)
    for name in HOWTO:
        for block in page(f"howto/{name}"):
            if block.file:
                write(block, base)
    return base


def in_copy(copy: Path, *words: str, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        env=clean_environment(home) | {"PYTHONPATH": str(copy)},
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", ADDED)
def test_the_file_that_a_page_adds_works(copy: Path, tmp_path: Path, name: str) -> None:
    for block in page(f"howto/{name}"):
        if block.language != "sh":
            continue
        for words in lines(block.text):
            rest = own_command(words)
            if rest and rest[0] not in GUESTS:
                done = in_copy(copy, "-m", "lab", *rest, home=tmp_path)
                assert done.returncode == 0, (rest, done.stderr)
    (copy / "lab" / "aside").mkdir(exist_ok=True)
    [block] = [b for b in page(f"howto/{name}") if b.file.startswith("lab/")]
    (copy / block.file).rename(copy / "lab" / "aside" / "file.py")
    try:
        without = in_copy(copy, "-m", "lab", "scenario", "check", ADDED[name], home=tmp_path)
    finally:
        (copy / "lab" / "aside" / "file.py").rename(copy / block.file)
    assert without.returncode == 2
    assert f"there is no '{Path(block.file).stem}'" in without.stderr


READ = """
from lab.core.errors import ToolError
from lab.model.scenario.outputs import Outputs
from lab.md.theory.bucket import Direction
from lab.plugins.workloads.badblocks import WORKLOAD
p = WORKLOAD.parameters(blocks=8192, c=256)
said = "Checking blocks 0 to 8191\\nPass completed, {} bad blocks found. (0/0/0 errors)\\n"
good = Outputs(stdout='{"seconds": 2.0}', stderr=said.format(0), files={})
assert WORKLOAD.parse(p, good) == {"seconds": 2.0, "throughput": 16777216.0}
for wrong in (
    Outputs(stdout='{"seconds": 2.0}', stderr=said.format(3), files={}),
    Outputs(stdout='', stderr=said.format(0), files={}),
):
    try:
        WORKLOAD.parse(p, wrong)
    except ToolError:
        continue
    raise SystemExit("it took a figure for one")
print(WORKLOAD.script(p, "/dev/md/bench"))
"""


def test_the_workload_reads_what_its_tool_prints(copy: Path, tmp_path: Path) -> None:
    done = in_copy(copy, "-c", READ, home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert '["badblocks", "-v", "-b", "4096", "-c", "256", "/dev/md/bench", "8191"]' in done.stdout


def test_theory_speaks_of_the_workload(copy: Path, tmp_path: Path) -> None:
    words = ("-m", "lab", "scenario", "predict", "scan.yaml", "--json")
    done = in_copy(copy, *words, home=tmp_path)
    assert done.stdout.count('"metric": "throughput"') == 2, done.stderr


def test_the_image_that_a_page_adds_is_listed(copy: Path, tmp_path: Path) -> None:
    done = in_copy(copy, "-m", "lab", "image", "list", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "debian-12-trace" in done.stdout


@pytest.mark.parametrize("file", [".github/workflows/raid.yml", ".gitlab-ci.yml"])
def test_each_command_of_a_ci_file_can_be_typed(file: str) -> None:
    [block] = [b for b in page("howto/ci") if b.file == file]
    data = YAML(typ="safe").load(block.text)
    if "jobs" in data:
        commands = [step["run"] for step in data["jobs"]["run"]["steps"] if "run" in step]
    else:
        job = data["raid"]
        commands = [*job["before_script"], *job["script"], *job["after_script"]]
    own = [words for text in commands for words in lines(text) if words[0] != "apt-get"]
    assert len(own) >= 3
    for words in own:
        if (rest := own_command(words)) is not None:
            parse(rest)


def test_the_reference_is_that_of_the_models() -> None:
    stale = [file for file, text in pages().items() if file.read_text(encoding="utf-8") != text]
    assert stale == [], "make reference"


LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


DOCUMENTS = sorted(
    str(p.relative_to(ROOT)) for p in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_each_link_leads_somewhere(name: str) -> None:
    path = ROOT / name
    links = LINK.findall(path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


PACKAGES = "|".join(sorted(p.parent.name for p in (ROOT / "lab").glob("*/__init__.py")))
NAMED = re.compile(rf"(?<![\w/])(?:lab/)?((?:{PACKAGES})/[a-z_/]*(?:\.py)?)")


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_each_module_that_a_document_names_exists(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    own = re.sub(r"\]\([^)]*\)|NAME(\.py)?", "", text)  # without links and placeholders
    named = {found.rstrip("/") for found in NAMED.findall(own)}
    assert named
    assert [path for path in sorted(named) if not (ROOT / "lab" / path).exists()] == []


def test_each_command_of_the_readme_can_be_typed() -> None:
    for block in blocks((ROOT / "README.md").read_text(encoding="utf-8")):
        for line in block.text.splitlines():
            if line.startswith("lab "):
                [words] = lines(line.partition(" #")[0])
                parse(words[1:])


def test_the_readme_counts_the_claims_as_their_page_does() -> None:
    said = re.search(
        r"(\d+) claims of the posts are checked\. Hold: (\d+)\. Refuted: (\d+)\. Open: (\d+)",
        (ROOT / "docs/claims.md").read_text(encoding="utf-8"),
    )
    assert said is not None
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    counts = r"(\d+) claims of .*?: (\d+) hold, \*\*(\d+) are refuted\*\*, (\d+) are open"
    shown = re.search(counts, readme)
    assert shown is not None
    assert shown.groups() == said.groups()


def test_each_example_of_the_reference_can_be_typed() -> None:
    found = [words for block in page("reference/commands") for words in lines(block.text)]
    assert len(found) > 40
    for words in found:
        parse(words[1:])
