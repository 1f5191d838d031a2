"""Files in a directory of several users are replaced through names that nobody can guess.

A link at a predictable name (`.page.html.PID.part`) would be written through. Each command that
writes where the user says is run with Python's audit hook: it sees every file that is opened.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.host.system import files, unfinished, untrusted
from tests.fakes import UNDRAWN, Cli, stored_run

HOOK = """
import json, os, sys
_seen = open({log!r}, "a")
def _hook(event, args):
    if event == "open" and isinstance(args[0], (str, bytes)) and isinstance(args[2], int):
        if args[2] & (os.O_WRONLY | os.O_RDWR):
            path = os.path.abspath(os.fsdecode(args[0]))
            _seen.write(json.dumps([path, args[2]]) + "\\n")
            _seen.flush()
sys.addaudithook(_hook)
"""
COMMANDS = {
    "page": ("report last --out {out}/page.html", ["page.html"]),
    "pictures": ("report last --pictures {out}/charts", ["charts"]),
    "site": ("site {out}/site", ["site"]),
    "csv": ("results export last --format csv --out {out}/last.csv", ["last.csv"]),
    "parquet": ("results export last --format parquet --out {out}/last.pq", ["last.pq"]),
    "junit": ("results export last --format junit --out {out}/j.xml", ["j.xml"]),
    "summary": ("results export last --format summary --out {out}/s.md", ["s.md"]),
    "bundle": ("results export last --format bundle --out {out}/b.lab.zip", ["b.lab.zip"]),
    "scenario": ("scenario new {out}/mine.yaml", ["mine.yaml"]),
}


def opened(log: Path) -> list[tuple[Path, int]]:
    lines = log.read_text().splitlines() if log.exists() else []
    return [(Path(path), flags) for path, flags in map(json.loads, lines)]


def guessable(found: list[tuple[Path, int]], shared: Path) -> list[str]:
    """Return what another user could have put a link in the place of.

    Files in a directory of this user with a random name, mode 0700, are none of these.
    """
    wrong = []
    for path, flags in found:
        if not path.is_relative_to(shared):
            continue
        parts = path.relative_to(shared).parts
        if unfinished.is_made(parts[0]) and len(parts) > 1:
            continue
        if not flags & os.O_EXCL:
            wrong.append(str(path))
    return wrong


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_opens_a_name_that_can_be_guessed(name: str, cli: Cli, tmp_path: Path) -> None:
    command, made = COMMANDS[name]
    stored_run(cli.home / "data" / "runs")
    shared, log = tmp_path / "shared", tmp_path / "opened"
    shared.mkdir()
    drawn = "" if name == "pictures" else UNDRAWN
    before = f"{drawn}{HOOK.format(log=str(log))}"
    done = cli(*command.format(out=shared).split(), before=before)
    assert done.status == 0, done.stderr
    for one in made:
        assert (shared / one).exists()
    found = opened(log)
    # duckdb's own code, which the hook does not see, writes into a directory of mode 0700
    assert [path for path, _ in found if path.is_relative_to(shared)]
    assert guessable(found, shared) == []
    assert not [p for p in shared.iterdir() if unfinished.is_abandoned(p.name)]


@pytest.mark.parametrize("name", ["page", "junit"])
def test_a_link_in_the_place_of_the_result_is_not_followed(
    name: str, cli: Cli, tmp_path: Path
) -> None:
    command, (made,) = COMMANDS[name]
    stored_run(cli.home / "data" / "runs")
    shared, victim = tmp_path / "shared", tmp_path / "victim"
    shared.mkdir()
    victim.write_text("precious")
    (shared / made).symlink_to(victim)
    cli(*command.format(out=shared).split(), before=UNDRAWN)
    assert victim.read_text() == "precious"


def test_every_writer_uses_exclusive_random_names(tmp_path: Path) -> None:
    """The four functions through which the lab writes; two writes have two names."""
    log, shared = tmp_path / "opened", tmp_path / "shared"
    shared.mkdir()
    script = tmp_path / "script.py"
    script.write_text(
        HOOK.format(log=str(log))
        + "from pathlib import Path\n"
        + "from lab.host.system import files, untrusted\n"
        + f"shared = Path({str(shared)!r})\n"
        + "for text in 'ab':\n"
        + "    files.write(shared / 'replaced', text)\n"
        + "    files.write(shared / f'new{text}', text, replace=False)\n"
        + "    untrusted.write_text(text, shared / f'text{text}')\n"
        + "    untrusted.write_tree({'x/y': text}, shared / f'tree{text}')\n"
    )
    subprocess.run([sys.executable, str(script)], check=True, timeout=60)
    found = [one for one in opened(log) if one[0].is_relative_to(shared)]
    assert guessable(found, shared) == []
    assert len({path for path, _ in found}) == len(found) == 8
    assert (shared / "replaced").read_text() == "b"


def test_the_check_finds_a_writer_through_a_guessable_name(tmp_path: Path) -> None:
    """The control: the name and the flags that `files.write` had."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    part = tmp_path / f".page.html.{os.getpid()}.part"
    victim = tmp_path / "victim"
    victim.write_text("precious")
    part.symlink_to(victim)
    os.close(os.open(part, flags))
    assert victim.read_text() == ""
    assert guessable([(part, flags)], tmp_path) == [str(part)]
    with pytest.raises(FileExistsError):
        os.open(part, flags | os.O_EXCL)
    assert files.write is not untrusted.write_text
