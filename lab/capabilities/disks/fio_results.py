"""fio's JSON to loads of a disk. Pure: it gets text, and refuses what no single disk's load is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError
from typing_extensions import TypeIs

from lab.core import wording
from lab.core.errors import InputError
from lab.model.scenario.profile import Load

_RANDOM: Final = {"randread": 1.0, "randwrite": 0.0, "randrw": 0.5, "rw_rand": 0.5}
_ONE_AT_A_TIME: Final = ("sync", "psync", "vsync", "pvsync", "pvsync2", "mmap")
"""Engines with one request in flight, whatever ``iodepth`` says."""
_ARRAY: Final = re.compile(r"(/dev/)?md(\d+|/|_|$)")
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_MOST: Final = 1e18
"""Largest number that is read: nanoseconds of 30 years."""
MANY: Final = "the profile of a disk needs results of one disk: give its files only"


class Results:
    """Loads of one disk, collected file by file."""

    def __init__(self) -> None:
        self.loads: list[Load] = []
        self.target = ""
        self.passed_over: dict[str, int] = {}
        """Number of jobs that were not used, by the reason."""

    def add(self, text: str, place: str) -> None:
        """Add a file's jobs; ``InputError``: they are no loads of a single disk. ``place``: the
        file's name, for messages."""
        found = _document(text, place)
        _check_version(found, place)
        jobs = found["jobs"]
        together = [_options(found, job) for job in jobs]
        for job, options in zip(jobs, together, strict=True):
            if job.get("error"):
                raise InputError(
                    f"{place}: fio's job '{job.get('jobname', '')}' ended with error "
                    f"{job['error']}: expected a job that ended well",
                    hint="measure it again, or leave the file out",
                )
            self._check_target(options, found, place)
        for options, own in _by_load(together, jobs, place):
            self._take(options, own, found, place)

    def _check_target(
        self, options: Mapping[str, str], found: Mapping[str, Any], place: str
    ) -> None:
        target = options.get("filename") or options.get("directory", "")
        names = [target]
        disks = found.get("disk_util")
        for disk in disks if isinstance(disks, list) else ():
            if isinstance(disk, dict):
                names.append(str(disk.get("name", "")))
        for name in names[:2]:
            if _ARRAY.match(name):
                raise InputError(
                    f"{place}: fio ran on an array, {name}: expected a single disk",
                    hint="measure one of its members; an array of modelled disks is a scenario",
                )
        if target and self.target and target != self.target:
            raise InputError(
                f"{place}: fio ran on {target}, and on {self.target} in other files: {MANY}"
            )
        self.target = self.target or target

    def _take(
        self,
        options: Mapping[str, str],
        jobs: Sequence[Mapping[str, Any]],
        found: Mapping[str, Any],
        place: str,
    ) -> None:
        mode = options.get("rw") or options.get("readwrite") or "read"
        mode = mode.split(":")[0]
        if mode not in _RANDOM:
            self._pass_over(f"rw={mode}, which is not random")
            return
        if options.get("direct", "0") in ("0", "false"):
            raise InputError(
                f"{place}: fio used the page cache, since direct=1 is missing: expected direct=1, "
                "so that the disk is measured",
                hint="measure it again with --direct=1",
            )
        if any(name in options for name in ("rate", "rate_iops", "thinktime")):
            self._pass_over("its rate was limited")
            return
        try:
            load = _load(mode, options, jobs, found, place)
        except ValidationError as error:
            raise InputError(
                f"{place}: fio cannot have measured this: {wording.reason(error, Load)}",
                hint="measure it again, or leave the file out",
            ) from error
        if load.flush_every and (load.total > 1 or not load.flushes):
            self._pass_over("flushes with several requests in flight")
            return
        self.loads.append(load)

    def _pass_over(self, why: str) -> None:
        self.passed_over[why] = self.passed_over.get(why, 0) + 1


def _document(text: str, place: str) -> dict[str, Any]:
    start = text.find("{")
    try:
        found = json.loads(text[start:]) if start >= 0 else None
    except (ValueError, RecursionError) as error:
        why = "is cut off" if text.count("{") > text.count("}") else "is no JSON"
        raise InputError(
            f"{place} {why}: expected the whole output of fio --output-format=json",
            hint="measure it again, or leave the file out",
        ) from error
    jobs = found.get("jobs") if isinstance(found, dict) else None
    if (
        not isinstance(found, dict)
        or not isinstance(jobs, list)
        or not jobs
        or not all(isinstance(j, dict) for j in jobs)
    ):
        raise InputError(
            f"{place} has no jobs: expected the output of fio --output-format=json"
            if text.strip()
            else f"{place} is empty: expected the output of fio --output-format=json",
            hint="leave the file out, or measure it again",
        )
    return found


def _check_version(found: Mapping[str, Any], place: str) -> None:
    version = str(found.get("fio version", ""))
    match = re.match(r"fio-(\d{1,4})\.", version)
    if not match or int(match[1]) < 3:
        raise InputError(
            f"{place}: it is JSON of {version[:40] or 'no known version of fio'}: expected"
            " fio 3.0 or later, which reports nanoseconds",
            hint="measure it again with a current fio",
        )


def _options(found: Mapping[str, Any], job: Mapping[str, Any]) -> dict[str, str]:
    given: dict[str, str] = {}
    for part in (found.get("global options"), job.get("job options")):
        if isinstance(part, dict):
            given |= {str(k): str(v) for k, v in part.items()}
    return given


def _by_load(
    options: Sequence[dict[str, str]], jobs: Sequence[Mapping[str, Any]], place: str
) -> Iterator[tuple[dict[str, str], list[Mapping[str, Any]]]]:
    """Yield each load's options with the reports of its processes.

    ``InputError``: several loads ran at once.
    """
    groups: dict[tuple[str, ...], list[int]] = {}
    names = ("rw", "readwrite", "iodepth", "bs", "blocksize", "numjobs", "rwmixread", "fsync")
    for index, one in enumerate(options):
        job = str(jobs[index].get("jobname", ""))
        key = (job, *(one.get(name, "") for name in names))
        groups.setdefault(key, []).append(index)
    waits = ("stonewall", "wait_for_previous", "wait_for")
    for first in list(groups.values())[1:]:
        if not any(name in options[first[0]] for name in waits):
            raise InputError(
                f"{place}: fio ran several loads at once: expected one at a time",
                hint="put stonewall into each job, or measure them one after the other",
            )
    for indices in groups.values():
        yield options[indices[0]], [jobs[i] for i in indices]


def _load(
    mode: str,
    options: Mapping[str, str],
    jobs: Sequence[Mapping[str, Any]],
    found: Mapping[str, Any],
    place: str,
) -> Load:
    share = _RANDOM[mode]
    if share == 0.5:
        share = _whole(options.get("rwmixread", "50"), place, "rwmixread") / 100
    depth = _whole(options.get("iodepth", "1"), place, "iodepth")
    if options.get("ioengine", "psync") in _ONE_AT_A_TIME:
        depth = 1
    count = max(_whole(options.get("numjobs", "1"), place, "numjobs"), len(jobs))
    sides = [
        (name, side)
        for job in jobs
        for name in ("read", "write")
        if isinstance(side := job.get(name), dict) and side.get("total_ios")
    ]
    if not sides or (share in (0.0, 1.0) and len({name for name, _ in sides}) > 1):
        raise InputError(f"{place}: fio moved nothing with rw={mode}: expected random requests")
    seconds = max(_number(side, place, "runtime") for _, side in sides) / 1000
    if seconds <= 0:
        raise InputError(f"{place}: fio ran for no time: expected a second or more")
    rates = [_number(side, place, "total_ios") / seconds for _, side in sides]
    means = [_number(side, place, "clat_ns", "mean") / 1e9 for _, side in sides]
    rate = sum(rates)
    of_times = [side.get("clat_ns") for _, side in sides]
    flush = _whole(options.get("fsync", options.get("fdatasync", "0")), place, "fsync")
    ended = found.get("timestamp")
    if _is_sound(found.get("timestamp_ms")):
        ended = found["timestamp_ms"] / 1000
    target = options.get("filename", "")
    return Load(
        read_share=min(max(share, 0.0), 1.0),
        depth=max(depth, 1),
        jobs=max(count, 1),
        block=_size(options.get("bs", options.get("blocksize", "4k")), place) or 4096,
        span=None if target.startswith("/dev/") else _size(options.get("size", ""), place),
        seconds=seconds,
        rate=rate,
        mean=sum(m * r for m, r in zip(means, rates, strict=True)) / rate,
        percentiles=_percentiles(of_times, rates) if share in (0.0, 1.0) else {},
        flush_every=flush,
        flushes=_percentiles(
            [s.get("lat_ns") for job in jobs if isinstance(s := job.get("sync"), dict)],
            [1.0] * len(jobs),
        ),
        begins=ended - seconds if _is_sound(ended) else None,
    )


def _percentiles(times: Sequence[Any], weights: Sequence[float]) -> dict[float, float]:
    """Return percentiles in seconds; of several processes their mean, which is close to that of all
    together if they did the same."""
    totals: dict[float, float] = {}
    for one, weight in zip(times, weights, strict=False):
        there = one.get("percentile") if isinstance(one, dict) else None
        for name, value in there.items() if isinstance(there, dict) else ():
            if _is_sound(value) and value > 0 and re.fullmatch(r"\d{1,3}(\.\d{1,9})?", name):
                totals[float(name)] = totals.get(float(name), 0.0) + value / 1e9 * weight
    whole = sum(weights) or 1.0
    return {name: value / whole for name, value in totals.items()}


def _number(side: Any, place: str, *path: str) -> float:
    value = side
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    if not _is_sound(value):
        raise InputError(f"{place}: fio's JSON has no number {'.'.join(path)}: expected one")
    return float(value)


def _is_sound(value: Any) -> TypeIs[int | float]:
    """Return whether a value is a number that fio can have measured: JSON has any other one."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST


def _whole(text: str, place: str, name: str) -> int:
    if not re.fullmatch(r"\d{1,6}", text):
        raise InputError(f"{place}: {name}={text!r}: expected a whole number")
    return int(text)


def _size(text: str, place: str) -> int | None:
    """Return bytes; fio's units are powers of 1024. ``None``: a share, or nothing."""
    match = re.fullmatch(r"(\d{1,15})([kmgt]?)i?b?", text.split(",")[0].lower())
    if not match or not int(match[1]):
        if not text or text.endswith("%"):
            return None
        raise InputError(f"{place}: the size {text!r} was not understood: expected such as 4k")
    return int(match[1]) * _UNITS[match[2]]
