"""What ``lab exec`` does with its words and options."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from lab.capabilities.session.logic import fields_of
from lab.capabilities.session.model import Ended, Job, Machine
from lab.compile.scenario.bare import bare
from lab.compile.scenario.compiler import Compiled, compile_scenario
from lab.core import regular
from lab.core.errors import InputError
from lab.core.yaml import Override
from lab.host.real_disks.refusals import known
from lab.plugins import catalog

LARGEST: Final = 64 * 1024
"""Most bytes of a script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """The words of a command line."""

    scenario: str | None
    script: Path | None
    argv: tuple[str, ...]


def words_of(words: Sequence[str], *, dashed: bool) -> Words:
    """Return scenario, script and command of the words.

    ``dashed``: ``--`` is before all of them, so they are a command. Otherwise the first one is a
    scenario if it ends in ``.yaml`` or is the name of one, and is no file; the next one is ``--``
    and a command, or a script with its arguments.
    """
    left = list(words)
    scenario = None
    if left and not dashed and is_scenario(left[0]):
        scenario = left.pop(0)
    if left[:1] == ["--"] and not dashed:
        left, dashed = left[1:], True
    if not left:
        raise InputError(
            "there is nothing to run: give a command after --, or a script",
            hint="lab exec --disks 4 -- lsblk; lab exec --disks 4 ./mine.sh",
        )
    if dashed:
        return Words(scenario=scenario, script=None, argv=tuple(left))
    path = Path(left[0])
    if not path.is_file():
        raise InputError(
            f"'{path}' is neither a scenario nor a script of this directory",
            hint=f"a command follows --, as in: lab exec -- {path}",
        )
    return Words(scenario=scenario, script=path, argv=tuple(left[1:]))


def is_scenario(word: str) -> bool:
    """Return whether a word is a scenario: the path of a file, or a name that is no file."""
    return word.endswith((".yaml", ".yml")) or (
        word in catalog.scenarios() and not Path(word).is_file()
    )


def script_text(path: Path) -> str:
    """Return a script's text; ``InputError``: it is none, or too long."""
    try:
        return regular.read(path, LARGEST).decode()
    except OSError as error:
        raise InputError(f"the script '{path}' cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"the script '{path}' is not UTF-8 text (byte {error.start})") from error


def machine_of(
    machine: Machine, sets: Sequence[Override], scenario: str | None, *, what: str
) -> Compiled:
    """Return the guest, disks and array that the options describe, as a scenario."""
    base = None
    if scenario is not None:
        base = compile_scenario(catalog.scenario_path(scenario), known=known)
    fields = fields_of(machine, sets, scenario=base is not None)
    path = base.path if base is not None else Path(f"{what}.yaml")
    title = f"lab {what}"
    return bare(path.absolute(), title, fields, title=title, base=base, known=known)


def document(ended: Sequence[Ended], job: Job, clock: str) -> dict[str, Any]:
    """Return the JSON document of what ran."""
    trials = [asdict(one) for one in ended]
    for one in trials:
        del one["shown"], one["guest"]
    guest = next((one.guest for one in ended if one.guest), None)
    return {
        "command": list(job.argv),
        "clock": clock,
        "guest": guest,
        "status": status_of(ended),
        "trials": trials,
    }


def status_of(ended: Sequence[Ended]) -> int:
    """Return the first exit status that is not 0."""
    return next((one.status for one in ended if one.status), 0)


def print_trial(ended: Ended, *, several: bool) -> None:
    """Print what a trial printed, unless it went to the terminal as it came."""
    if not ended.shown:
        sys.stdout.write(ended.stdout)
        sys.stdout.flush()
        sys.stderr.write(ended.stderr)
    if several:
        sys.stderr.write(
            f"lab: trial {ended.trial}: status {ended.status} after {ended.seconds:.2f} s\n"
        )
