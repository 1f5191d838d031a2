"""fio's job files: their sections, and their text aimed at a target.

A file is used as it is. Only what names a place of another machine is replaced: ``filename`` and
``directory``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from lab.plugins.fio_options.names import OPTIONS, OTHER_NAMES
from lab.plugins.fio_options.values import Value, normal, unknown

_SECTION: Final = re.compile(r"\[(.+)\]")
_COMMENT: Final = ("#", ";")
PLACES: Final = ("filename", "directory")


@dataclass(frozen=True, slots=True)
class Job:
    """A section of a job file that is a job."""

    name: str
    options: Mapping[str, Value]
    """Its own and those of ``[global]`` before it, by fio's main names. Values that only fio reads,
    as with arithmetic, are text."""

    @property
    def tag(self) -> str:
        """Its name in metrics."""
        return re.sub(r"[^A-Za-z0-9]+", "_", self.name).strip("_")


def jobs_of(text: str) -> tuple[Job, ...]:
    """Return the jobs of a job file; ``ValueError`` names the line that is wrong."""
    common: dict[str, Value] = {}
    own = common
    found: dict[str, Job] = {}
    seen: dict[str, int] = {}
    for number, line in _lines(text):
        section = _SECTION.fullmatch(line)
        if section is not None and section[1] == "global":
            own = common
            continue
        if section is not None:
            own = dict(common)
            job = Job(section[1], own)
            if not job.tag or job.tag in found:
                earlier = f", as that of line {seen[job.tag]}" if job.tag else ""
                raise ValueError(
                    f"line {number} of the job file: the job's name '{section[1]}' makes metrics"
                    f" named '{job.tag}_…'{earlier}: rename the job"
                )
            found[job.tag], seen[job.tag] = job, number
            continue
        key, equals, value = (part.strip() for part in line.partition("="))
        if key == "include" or line.startswith("include "):
            raise ValueError(
                f"line {number} of the job file: include reads another file: write its lines here"
            )
        name = OTHER_NAMES.get(key, key)
        if name not in OPTIONS and name != "name":
            raise ValueError(f"line {number} of the job file: {unknown(key)}")
        own[name] = _value(name, value if equals else "1")
    if not found:
        raise ValueError("the job file has no job: write a section such as [write]")
    return tuple(found.values())


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line that is not empty and no comment."""
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith(_COMMENT):
            yield number, stripped


def _value(name: str, text: str) -> Value:
    try:
        return normal(name, text)
    except ValueError:
        return text


def with_target(text: str, target: str) -> str:
    """Return the job file with the target in place of other files and directories.

    On a block device each job uses the device. On a file system ``directory`` is the target, and
    a ``filename`` without a directory is the target with the file's own name after it.
    """
    device = target.startswith("/dev/")
    jobs = jobs_of(text)
    directories = any("directory" in job.options for job in jobs)
    lines = []
    for line in text.splitlines():
        key = OTHER_NAMES.get(name := line.partition("=")[0].strip(), name)
        if key not in PLACES or line.lstrip().startswith(_COMMENT):
            lines.append(line)
            continue
        given = line.partition("=")[2].strip()
        base = given.replace("\\:", "_").split(":")[0].rstrip("/").rpartition("/")[2]
        if device:
            new = f"filename={target}" if key == "filename" else f"# {line.strip()}"
        elif key == "directory":
            new = f"directory={target}"
        else:
            new = f"filename={base}" if directories else f"filename={target}.{base}"
        lines.append(new)
    return "\n".join(lines) + "\n"


def names_a_file(text: str, target: str) -> bool:
    """Return whether each job names a file after ``with_target``; otherwise fio needs one."""
    device = target.startswith("/dev/")
    key = ("filename",) if device else PLACES
    return all(any(one in job.options for one in key) for job in jobs_of(text))
