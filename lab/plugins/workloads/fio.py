"""fio, with any of its options by fio's own names: one job, measured by fio's JSON.

``filename`` defaults to the target; ``{target}`` stands for it in any option. Sizes and times are
fio's (``4k`` is 4096 bytes, ``2m`` two minutes) or the lab's (``4KiB``, ``2min``). Values that the
two read differently, such as ``4kB``, are refused. ``write_bw_log``, ``write_iops_log`` and
``write_lat_log`` take ``true``; their files follow fio's JSON in the raw output. Percentiles are
completion latencies of all requests of one trial and direction. A trial reports those that its
requests support (``lab.core.statistics.enough_for``): 95 from 72 requests on, 99 from 368, 99.9
from 3688, 99.99 from 36887. ``clat_max`` is the longest; more requests make it longer.
``lat_percentiles`` and ``slat_percentiles`` add the same of fio's groups ``lat`` and ``slat``.
Calls of ``fsync``, ``fdatasync`` and ``sync_file_range`` are no requests: ``sync_p99`` and the like
are theirs, and ``syncs`` is their number. A missing ``directory`` is made. Jobs are threads, unless
``thread`` is 0: fio looks every 10 ms for what it shall do, and a switch between processes changes
the page table.

With ``rounds`` the job runs so many times, one after the other. All values are those of the first
five rounds in a row that are steady (``lab.core.steady_state``): the mean over them, of percentiles
the median, of ``clat_max`` the largest, of ``seconds`` the sum. ``steady_round`` is the last of
them, and ``first_round_iops`` the speed of the very first. What the disks counted is that of all
rounds. If no five are steady, the values are those of the last five, and claims are inconclusive.

``job_file`` is a job file of fio, next to the scenario, and takes the place of all other options.
It is used as it is, but for ``filename`` and ``directory``: they name the target instead. With one
job the metrics are those below. With several, each metric has its job's name before it, as in
``rand_read_iops`` of the job ``[rand-read]``. Of ``numjobs`` processes without ``group_reporting``
rates are added, and fio has no common percentiles.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import mul
from statistics import fmean, median
from typing import Any, ClassVar, Final, Self

from pydantic import ConfigDict, Field, ValidationInfo, model_validator
from typing_extensions import override

from lab.core.base import KEPT, Model, wrong_key
from lab.core.errors import ToolError
from lab.core.stable import Stable, named
from lab.core.statistics import enough_for
from lab.core.steady_state import WINDOW, Window, steady_window
from lab.core.units import is_digits
from lab.model.execution.procedure import here, words
from lab.model.plugin import Stream, Trace, WorkloadTool
from lab.model.result.measurement import IOPS, SECONDS, THROUGHPUT, Metric
from lab.model.scenario.outputs import Outputs
from lab.plugins.fio_options import names as fio_options
from lab.plugins.fio_options.jobs import Job, jobs_of, names_a_file, with_target
from lab.plugins.fio_options.values import LOGS, Value, normal, unknown
from lab.plugins.workloads._shared import TARGET, aimed

ENVIRONMENT: Final = "LC_ALL=C TMPDIR=/"
"""fio looks for a file in TMPDIR every 10 ms (``check_status_file``). In a tmpfs Linux frees the
entry of a missing file each time, by RCU, which keeps the tick of an idle CPU running. On another
file system the entry stays."""
CUT: Final = "--8<-- fio log --8<--"
"""Line before each log file, followed by its name; the last line is followed by ``end``."""

DIRECTIONS: Final = ("read", "write", "trim")
PERCENTILES: Final = (50.0, 95.0, 99.0, 99.9, 99.99)
BUCKET: Final = 1 / 64
"""Relative width of the histogram's buckets, at most: fio keeps 6 bits after a latency's first, and
reports a bucket's middle (``stat.h: FIO_IO_U_PLAT_BITS``, ``stat.c: plat_idx_to_val``)."""
FIRST_ROUND: Final = "first_round_iops"
STEADY_ROUND: Final = "steady_round"


GROUPS: Final = ("clat", "lat", "slat")
"""Groups of latencies in fio's report of a direction: completion, total, submission."""
SYNC: Final = "sync"
"""fio's group of calls that flush. It belongs to no direction."""


def metric_names(direction: str) -> Iterator[str]:
    """Yield metrics of one of ``DIRECTIONS``; ``""``: of all together."""
    tag = f"{direction}_" if direction else ""
    yield from (f"{tag}{name}" for name in ("throughput", "iops", "latency"))
    for group in GROUPS:
        yield from latency_names(f"{tag}{group}")


def latency_names(group: str) -> Iterator[str]:
    """Yield the percentiles of a group of latencies, and the longest."""
    yield from (f"{group}_p{_digits(p)}" for p in PERCENTILES)
    yield f"{group}_max"


def _digits(percentile: float) -> str:
    return f"{percentile:g}".replace(".", "_")


def _metrics() -> tuple[Metric, ...]:
    found = [THROUGHPUT, IOPS, SECONDS]
    for direction in ("", *DIRECTIONS):
        for name in metric_names(direction):
            kind = name.removeprefix(f"{direction}_")
            if kind in (THROUGHPUT.name, IOPS.name):
                unit, better = (THROUGHPUT if kind == THROUGHPUT.name else IOPS).unit, "higher"
            else:
                unit, better = "s", "lower"
            if name not in (THROUGHPUT.name, IOPS.name):
                found.append(Metric(name=name, unit=unit, better=better, step=_step(name)))
    found.append(Metric(name="syncs", unit="calls", better="lower"))
    found.append(Metric(name="sync_latency", unit="s", better="lower"))
    for name in latency_names(SYNC):
        found.append(Metric(name=name, unit="s", better="lower", step=_step(name)))
    found += (
        Metric(name=FIRST_ROUND, unit=IOPS.unit),
        Metric(name=STEADY_ROUND, unit="1", better="lower"),
    )
    return tuple(found)


def _is_percentile(name: str) -> bool:
    return re.search(r"_p\d+(_\d+)?$", name) is not None


def _step(name: str) -> float:
    return BUCKET if _is_percentile(name) else 0.0


METRICS: Final = _metrics()


class FioParameters(Stable):
    """fio's options by fio's names; missing ones have fio's defaults.

    Sizes are stored as bytes, times as seconds, switches as 1 and 0.
    """

    ALWAYS: ClassVar[frozenset[str]] = named("rounds")

    model_config = ConfigDict(extra="allow")

    rounds: int | None = Field(default=None, ge=WINDOW, le=100, exclude_if=lambda n: n is None)
    """Run the whole job so many times, and report the first five that are steady; the PTS gives up
    after 25."""

    job: str | None = Field(default=None, max_length=65536, exclude_if=lambda text: text is None)
    """A job file's text, as ``job_file`` reads it."""

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs of the job file; empty: there is none."""
        return _jobs_of(self.job) if self.job is not None else ()

    @property
    def each(self) -> tuple[Mapping[str, Value], ...]:
        """The options of each job."""
        return tuple(job.options for job in self.jobs) or (self.options,)

    @property
    def options(self) -> Mapping[str, Value]:
        """The given options, by fio's main names."""
        return self.model_extra or {}

    @model_validator(mode="before")
    @classmethod
    @override
    def _known_keys(cls, value: object) -> object:
        # Store options under their main names, with values in one spelling.
        if not isinstance(value, dict):
            return value
        found: dict[str, Value] = {}
        own = {k: v for k, v in value.items() if k in cls.model_fields}
        for key, given in value.items():
            if key in own:
                continue
            name = fio_options.OTHER_NAMES.get(str(key), str(key))
            if name not in fio_options.OPTIONS:
                raise wrong_key(unknown(str(key)), str(key))
            if name in found:
                said = f"{key} and {name} are names of one option: give one of them"
                raise wrong_key(said, str(key))
            if given is not None:
                try:
                    found[name] = normal(name, given)
                except ValueError as error:
                    raise wrong_key(str(error), str(key)) from None
        if isinstance(own.get("job"), str):
            _check_job(own, found)
            return {**found, **own}
        _check(found)
        if own.get("rounds") is not None and any(found.get(log) for log in LOGS):
            raise ValueError("rounds and fio's logs exclude each other: remove one of them")
        return {**found, **own}

    @model_validator(mode="after")
    def _seed_counts(self, info: ValidationInfo) -> Self:
        """Refuse a seed that fio would silently ignore; stored runs with one are still readable."""
        idle = "randseed" in self.options and self.options.get("randrepeat") != 0
        if idle and info.context != KEPT:
            raise ValueError(
                "randseed has no effect unless randrepeat is 0 (fio 3.33): add randrepeat: 0"
            )
        return self


_jobs_of = lru_cache(maxsize=256)(jobs_of)
_SEEDS: Final = ("randrepeat", "randseed")
"""Options that the lab gives a job file: its own have precedence."""


def _check_job(own: Mapping[str, object], others: Mapping[str, Value]) -> None:
    """Refuse a job file that is wrong, or options next to one."""
    if own.get("rounds") is not None:
        raise wrong_key("rounds and job_file exclude each other: remove one of them", "rounds")
    for name in others:
        if name not in _SEEDS:
            raise wrong_key(f"job_file has all options: write {name} there, or remove it", name)
    try:
        _jobs_of(str(own["job"]))
    except ValueError as error:
        raise wrong_key(str(error), "job") from None


def _check(options: Mapping[str, Value]) -> None:
    """Refuse options that fio accepts and the lab cannot interpret."""
    named = [str(options[key]) for key in ("filename", "directory") if key in options]
    if named:
        aimed(" ".join(named), "leave filename out to aim at the array")
    if options.get("group_reporting") == 0:
        raise ValueError(
            "group_reporting: 0 is not supported, since the lab reads one report: remove it"
        )
    if str(options.get("unified_rw_reporting", "none")) not in ("none", "0"):
        raise ValueError(
            "unified_rw_reporting merges the directions: remove it; totals are reported anyway"
        )
    if options.get("time_based") and "runtime" not in options:
        raise ValueError("time_based needs a runtime: add runtime: 30s")
    mode = str(options.get("rw", "read")).partition(":")[0]
    modes = {"read", "write", "trim", "rw", "readwrite", "trimwrite"}
    if mode not in modes | {f"rand{m}" for m in modes - {"readwrite"}}:
        raise ValueError(
            f"rw: {mode!r} is unknown to fio: expected read, write, randread, randwrite or randrw"
        )


class Fio(WorkloadTool):
    """fio's report, in bytes, operations and seconds."""

    parameters = FioParameters
    programs = ("fio",)
    metrics = METRICS

    @override
    def measures(self, p: FioParameters) -> Sequence[Metric]:
        jobs = p.jobs
        if len(jobs) < 2:
            return METRICS
        return tuple(
            metric.model_copy(update={"name": f"{job.tag}_{metric.name}"})
            for job in jobs
            for metric in METRICS
            if metric.name not in (FIRST_ROUND, STEADY_ROUND)
        )

    files = {"job_file": "job"}

    @override
    def script(self, p: FioParameters, target: str) -> str:
        options = p.options
        if p.job is not None:
            return _job_script(p.job, options, target)
        given = {"thread": 1} | ({"filename": TARGET} if "directory" not in options else {})
        own = ["--name=fio"] if p.rounds is None else ["--stonewall"]
        command = ["fio", *own, "--output-format=json", "--group_reporting=1"]
        for name, value in {**given, **options}.items():
            if name == "group_reporting" or (name in LOGS and not value):
                continue
            text = "log" if name in LOGS else _as_text(name, value)
            command.append(f"--{name}={text.replace(TARGET, target)}")
        # Options before the first name are those of all jobs.
        command += [f"--name=round{number}" for number in range(1, (p.rounds or 0) + 1)]
        line = f"{ENVIRONMENT} {words(*command)}"
        made = ""
        if "directory" in options:
            places = re.split(r"(?<!\\):", str(options["directory"]).replace(TARGET, target))
            made = f"{words('mkdir', '-p', *(p.replace(chr(92) + ':', ':') for p in places))}\n"
        if not any(options.get(log) for log in LOGS):
            return f"{made}{line}\n"
        return (
            f"{made}kept=$(mktemp -d)\nstatus=0\n"
            f'(cd "$kept" && {line}) || status=$?\n'
            'for log in "$kept"/*.log; do\n'
            f'  [ ! -f "$log" ] || {{ echo "{CUT} ${{log##*/}}"; cat "$log"; }}\n'
            f'done\necho "{CUT} end"\nrm -rf "$kept"\n[ "$status" -eq 0 ]\n'
        )

    @override
    def parse(self, p: FioParameters, outputs: Outputs) -> dict[str, float]:
        report, _, rest = outputs.stdout.partition(CUT)
        if p.jobs:
            few = self.too_few(p, outputs)
            found = _of_jobs(p.jobs, _reports(report, outputs.stderr), outputs.stderr)
            return {name: value for name, value in found.items() if name not in few}
        if any(p.options.get(log) for log in LOGS):
            logs(outputs.stdout)
        elif rest:
            raise ToolError("fio's output has unexpected logs")
        each = [_values(p.options, job, outputs.stderr) for job in _jobs(p, report, outputs.stderr)]
        few = self.too_few(p, outputs)
        found = each[0] if p.rounds is None else _of_window(each)
        return {name: value for name, value in found.items() if name not in few}

    def too_few(self, p: FioParameters, outputs: Outputs) -> Mapping[str, tuple[int, int]]:
        """Return percentiles that the requests of their direction do not support, in one of the
        rounds that count."""
        if p.jobs:
            return _too_few_of(p.jobs, _reports(outputs.stdout, outputs.stderr))
        jobs = _jobs(p, outputs.stdout.partition(CUT)[0], outputs.stderr)
        window = self.window(p, outputs)
        found: dict[str, tuple[int, int]] = {}
        for job in jobs[window.rounds] if window else jobs:
            for name, few in _too_few(p.options, job).items():
                found[name] = min(few, found.get(name, few))
        return found

    def window(self, p: FioParameters, outputs: Outputs) -> Window | None:
        """Return the rounds that count; ``None``: there are no rounds."""
        if p.rounds is None:
            return None
        jobs = _jobs(p, outputs.stdout, outputs.stderr)
        return _window([_values(p.options, job, outputs.stderr) for job in jobs])

    def latencies(self, p: FioParameters, outputs: Outputs) -> Mapping[str, Mapping[float, float]]:
        """Return every percentile that fio printed, and the longest as 100; of rounds the median,
        and the longest of all. A job file has none."""
        if p.jobs or p.options.get("clat_percentiles", 1) == 0:
            return {}
        jobs = _jobs(p, outputs.stdout.partition(CUT)[0], outputs.stderr)
        window = self.window(p, outputs)
        found: dict[str, dict[float, list[float]]] = {}
        for job in jobs[window.rounds] if window else jobs:
            for direction, side in _sides(job).items():
                own = found.setdefault(direction, {})
                for name in side.get("clat_ns", {}).get("percentile", {}):
                    value = _number(side, "clat_ns", "percentile", name) / 1e9
                    own.setdefault(float(name), []).append(value)
                own.setdefault(100.0, []).append(_number(side, "clat_ns", "max") / 1e9)
        return {
            direction: {p: max(v) if p == 100 else median(v) for p, v in sorted(own.items())}
            for direction, own in found.items()
            if len(own) > 1
        }

    def series(self, p: FioParameters, outputs: Outputs) -> Mapping[tuple[str, str], Trace]:
        """Return bytes per second of all jobs from ``write_bw_log``, else operations per second
        from ``write_iops_log``; with rounds each round's operations per second."""
        options = p.options
        if p.rounds is not None:
            return _of_rounds(p, outputs)
        kinds = [k for k in ("bw", "iops") if options.get(f"write_{k}_log")]
        if not kinds:
            return {}
        span = options.get("log_avg_msec", 0)
        found = {n: rows for n, rows in logs(outputs.stdout).items() if f"_{kinds[0]}." in n}
        return _traced(found.values(), kinds[0], int(span) if isinstance(span, int) else 0)

    @override
    def seeded(self, p: FioParameters, seed: int) -> Model:
        # fio 3.33 uses randseed only with randrepeat=0.
        written = p.options.get("randseed", 1)
        first = written if isinstance(written, int) else 1
        drawn = {"randrepeat": 0, "randseed": first + seed - 1}
        return FioParameters.model_validate(
            {**p.options, **drawn, "rounds": p.rounds, "job": p.job}
        )

    @override
    def draws_places(self, p: FioParameters) -> bool:
        # What one job wrote with a checksum, another one verifies at the same places.
        if p.jobs and any(name in p.options for name in _SEEDS):
            return False
        return any(map(_draws_places, p.each))

    @override
    def memory(self, p: FioParameters) -> int:
        return sum(map(_buffers, p.each))

    @override
    def destroys(self, p: FioParameters) -> bool:
        return any(map(_destroys, p.each))

    @override
    def lasts(self, p: FioParameters) -> bool:
        return any("runtime" in options for options in p.each)

    @override
    def stream(self, p: FioParameters) -> Stream | None:
        return None if p.rounds is not None or p.jobs else _stream(p.options)


def _draws_places(options: Mapping[str, Value]) -> bool:
    written = any(name in options for name in ("randseed", "randrepeat", "allrandrepeat"))
    verifies = any(name == "verify" or name.startswith("verify_") for name in options)
    random = str(options.get("rw", "read")).startswith("rand")
    # 0 makes the places of such a job sequential; a sequential one ignores the option.
    random = random and str(options.get("percentage_random")) != "0"
    return random and not (written or verifies)


def _destroys(options: Mapping[str, Value]) -> bool:
    mode = str(options.get("rw", "read")).partition(":")[0]
    return mode not in ("read", "randread") and "directory" not in options


def _job_script(job: str, options: Mapping[str, Value], target: str) -> str:
    """Return shell lines that run a job file in a directory of its own, for its logs.

    Options on the command line are defaults of the file (``init.c: fio_init`` parses it later).
    """
    given = {"thread": 1, **options}
    if not names_a_file(job, target):
        given["filename"] = target
    command = ["fio", "--output-format=json"]
    command += [f"--{name}={_as_text(name, value)}" for name, value in given.items()]
    made = target if any("directory" in own.options for own in _jobs_of(job)) else ""
    lines = [
        *([words("mkdir", "-p", made)] if made and not made.startswith("/dev/") else []),
        "kept=$(mktemp -d)",
        *here('cat >"$kept/job.fio"', with_target(job, target)),
        "status=0",
        f'(cd "$kept" && {ENVIRONMENT} {words(*command)} job.fio) || status=$?',
        'rm -rf "$kept"',
        '[ "$status" -eq 0 ]',
    ]
    return "\n".join(lines) + "\n"


def _as_text(name: str, value: Value) -> str:
    if name in fio_options.TIMES and isinstance(value, float):
        return f"{value:g}s" if value == int(value) else f"{round(value * 1e6)}us"
    return str(value)


def document(stdout: str, stderr: str = "") -> dict[str, Any]:
    """Return fio's JSON, with one job, without messages before it and logs after it."""
    report = stdout.partition(CUT)[0]
    start = report.find("{\n")
    try:
        found: dict[str, Any] = json.loads(report[start:]) if start >= 0 else {}
        job = found["jobs"][0]
    except (ValueError, LookupError, TypeError, RecursionError):  # JSON can be nested deeply
        job = None
    if not isinstance(job, dict):
        said = (stderr.strip() or report.strip())[-300:]
        raise ToolError(f"fio did not print JSON, but {said!r}")
    return found


def _jobs(parameters: FioParameters, report: str, stderr: str) -> Sequence[Mapping[str, Any]]:
    """Return the report of each round, or of the one job."""
    jobs: list[Any] = document(report, stderr)["jobs"]
    if parameters.rounds is None:
        jobs = jobs[:1]
    elif len(jobs) != parameters.rounds or not all(isinstance(job, dict) for job in jobs):
        raise ToolError(f"fio reported {len(jobs)} rounds, expected {parameters.rounds}")
    for job in jobs:
        if job.get("error"):
            raise ToolError(f"fio's job ended with error {job['error']}: {stderr.strip()[-300:]!r}")
    return jobs


def _reports(report: str, stderr: str) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Return a job file's reports by job: one of each of its processes, or one of a group."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for job in document(report, stderr)["jobs"]:
        if not isinstance(job, dict) or not isinstance(job.get("jobname"), str):
            raise ToolError("fio's JSON has a job without a name")
        if job.get("error"):
            raise ToolError(
                f"fio's job '{job['jobname']}' ended with error {job['error']}:"
                f" {stderr.strip()[-300:]!r}"
            )
        found.setdefault(job["jobname"], []).append(job)
    return found


def _of_jobs(
    jobs: Sequence[Job], reports: Mapping[str, Sequence[Mapping[str, Any]]], stderr: str
) -> dict[str, float]:
    """Return the values of each job, with its name before them if there are several."""
    found: dict[str, float] = {}
    for job in jobs:
        own = reports.get(job.name, ())
        if not own and not any(other.options.get("group_reporting") for other in jobs):
            raise ToolError(f"fio reported no job '{job.name}': {', '.join(reports) or 'none'}")
        tag = f"{job.tag}_" if len(jobs) > 1 else ""
        one_process = {k: v for k, v in job.options.items() if k != "numjobs"}
        options = one_process if len(own) > 1 else job.options
        each = [_values(options, report, stderr) for report in own]
        found |= {f"{tag}{name}": value for name, value in _together(each).items()}
    return found


def _together(each: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    """Return the values of processes that ran at once: what has no common value is left out."""
    if len(each) < 2:
        return each[0] if each else {}
    found: dict[str, float] = {}
    for name in each[0]:
        values = [own[name] for own in each if name in own]
        if len(values) < len(each) or _is_percentile(name):
            continue
        direction = name.removesuffix("latency")
        if name.endswith(("throughput", "iops", "syncs")):
            found[name] = sum(values)
        elif name.endswith("latency"):
            weights = [own["syncs" if direction == "sync_" else f"{direction}iops"] for own in each]
            found[name] = sum(map(mul, values, weights)) / sum(weights)
        else:
            found[name] = max(values)
    return found


def _too_few_of(
    jobs: Sequence[Job], reports: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for job in jobs:
        tag = f"{job.tag}_" if len(jobs) > 1 else ""
        if len(own := reports.get(job.name, ())) == 1:
            found |= {f"{tag}{k}": few for k, few in _too_few(job.options, own[0]).items()}
    return found


def _values(options: Mapping[str, Value], job: Mapping[str, Any], stderr: str) -> dict[str, float]:
    """Return a job's values, with percentiles that its requests do not support."""
    sides = _sides(job)
    if not sides:
        raise ToolError(f"fio moved nothing: {stderr.strip()[-300:]!r}")
    found = {SECONDS.name: max(_number(s, "runtime") for s in sides.values()) / 1000}
    if found[SECONDS.name] <= 0:
        raise ToolError("fio was too fast to be measured: raise size or runtime")
    moved = sum(_number(side, "io_bytes") for side in sides.values())
    _check_done(options, moved, found[SECONDS.name])
    timed = not any(options.get(o) for o in _UNTIMED)
    for direction, side in sides.items():
        seconds = max(_number(side, "runtime") / 1000, 1e-3)
        tag = f"{direction}_" if len(sides) > 1 else ""
        found[f"{tag}throughput"] = _number(side, "io_bytes") / seconds
        found[f"{tag}iops"] = _number(side, "total_ios") / seconds
        if timed:
            found[f"{tag}latency"] = _number(side, "lat_ns", "mean") / 1e9
            for group in _groups(options):
                values = _percentiles(side, group, options)
                found |= {f"{tag}{name}": value for name, value in values.items()}
    if len(sides) > 1:
        for name in ("throughput", "iops"):
            found[name] = sum(found[f"{direction}_{name}"] for direction in sides)
        if timed:
            weighted = sum(found[f"{d}_latency"] * found[f"{d}_iops"] for d in sides)
            found["latency"] = weighted / found["iops"]
    return found | _syncs(job, options)


def _syncs(job: Mapping[str, Any], options: Mapping[str, Value]) -> dict[str, float]:
    """Return number and latencies of the calls that flush; empty: none, or fio did not time them.

    ``total_ios`` of this group is 0 in fio 3.33, and ``N`` their number in all versions.
    """
    side = job.get(SYNC)
    calls = _number(side, "lat_ns", "N") if isinstance(side, dict) and "lat_ns" in side else 0.0
    if not calls or not isinstance(side, dict):
        return {}
    found = {"syncs": calls, "sync_latency": _number(side, "lat_ns", "mean") / 1e9}
    values = _percentiles(side, "lat", options)
    return found | {f"{SYNC}{name.removeprefix('lat')}": value for name, value in values.items()}


def _window(rounds: Sequence[Mapping[str, float]]) -> Window:
    return steady_window([values[IOPS.name] for values in rounds])


def _of_window(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the values of the rounds that count."""
    window = _window(rounds)
    own = rounds[window.rounds]
    found = {}
    for name in own[0]:
        values = [values[name] for values in own if name in values]
        if len(values) < len(own):
            continue
        kind = max if name.endswith("_max") else median if _is_percentile(name) else fmean
        found[name] = sum(values) if name in (SECONDS.name, "syncs") else float(kind(values))
    found[FIRST_ROUND] = rounds[0][IOPS.name]
    return found | ({STEADY_ROUND: float(window.last)} if window.steady else {})


def _of_rounds(parameters: FioParameters, outputs: Outputs) -> Mapping[tuple[str, str], Trace]:
    """Return operations per second of each round, by direction."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    ended = 0.0
    for job in _jobs(parameters, outputs.stdout, outputs.stderr):
        sides = _sides(job)
        ended += max((_number(s, "runtime") for s in sides.values()), default=0.0) / 1000
        for direction, side in sides.items():
            rate = _number(side, "total_ios") / max(_number(side, "runtime") / 1000, 1e-3)
            found.setdefault((direction, IOPS.unit), []).append((ended, rate))
    return {key: tuple(trace) for key, trace in found.items()}


def _number(side: Any, *path: str) -> float:
    value = side
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        if side is None:
            return 0.0
        raise ToolError(f"fio's JSON has no number {'.'.join(path)}")
    return float(value)


_UNTIMED: Final = ("gtod_reduce", "disable_lat", "disable_clat")
"""With one of these, fio measures no latencies."""


def _sides(job: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the report of each direction with requests."""
    return {d: job[d] for d in DIRECTIONS if _number(job.get(d), "total_ios")}


def _groups(options: Mapping[str, Value]) -> Iterator[str]:
    """Yield the groups of latencies that a job reports: ``clat``, and those it was asked for."""
    yield "clat"
    yield from (group for group in ("lat", "slat") if options.get(f"{group}_percentiles"))


def _percentiles(
    side: Mapping[str, Any], group: str, options: Mapping[str, Value]
) -> dict[str, float]:
    """Return a group's latencies in seconds: the longest, and percentiles that fio was asked
    for."""
    found = {f"{group}_max": _number(side, f"{group}_ns", "max") / 1e9}
    if group == "clat" and options.get("clat_percentiles", 1) == 0:
        return found
    there = side[f"{group}_ns"].get("percentile", {})
    required = group == "clat" and "percentile_list" not in options
    for percentile in PERCENTILES:
        key = f"{percentile:.6f}"
        if key not in there and not required:
            continue
        value = _number(side, f"{group}_ns", "percentile", key) / 1e9
        found[f"{group}_p{_digits(percentile)}"] = value
    return found


def _too_few(options: Mapping[str, Value], job: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return requests (or calls that flush), and needed ones, of each percentile with too few."""
    sides = _sides(job)
    counts: list[tuple[int, dict[str, float]]] = []
    if not any(options.get(o) for o in _UNTIMED):
        for direction, side in sides.items():
            tag = f"{direction}_" if len(sides) > 1 else ""
            known = [_percentiles(side, group, options) for group in _groups(options)]
            names = {f"{tag}{name}": value for values in known for name, value in values.items()}
            counts.append((int(_number(side, "total_ios")), names))
    syncs = _syncs(job, options)
    counts.append((int(syncs.get("syncs", 0)), syncs))
    needed = {f"_p{_digits(p)}": enough_for(p) for p in PERCENTILES}
    return {
        name: (requests, least)
        for requests, names in counts
        for name in names
        for end, least in needed.items()
        if name.endswith(end) and requests < least
    }


def _check_done(options: Mapping[str, Value], moved: float, seconds: float) -> None:
    """``ToolError`` if the job ended early, so that its values mean something else."""
    asked = options.get("runtime")
    if options.get("time_based") and isinstance(asked, float) and seconds < 0.98 * asked:
        raise ToolError(f"fio ended after {seconds:.1f} s, expected {asked:g} s")
    size = options.get("io_size", options.get("size"))
    ends = ("runtime", "number_ios", "fill_device", "steadystate", "latency_target", "ramp_time")
    if isinstance(size, int) and not any(end in options for end in ends):
        wanted = size * _count(options, "numjobs") * _count(options, "loops")
        if moved < 0.99 * wanted:
            raise ToolError(f"fio moved {moved:.0f} bytes, expected {wanted}")


_PROCESS: Final = 1 << 20
"""Bytes of a job's process, about."""


def _buffers(options: Mapping[str, Value]) -> int:
    """Return the bytes that fio's jobs allocate: a buffer of the largest block for each request in
    flight (``backend.c: init_io_u_buffers``), and what ``lockmem`` pins."""
    jobs = _count(options, "numjobs")
    depth = 1 if options.get("ioengine", "psync") in _SYNCHRONOUS else _count(options, "iodepth")
    sizes = [
        int(number)
        for name in ("bs", "bsrange", "bssplit")
        for part in re.split(r"[,:]", str(options.get(name, "")))
        for number in re.findall(r"\d{1,18}", part.partition("/")[0])
    ]
    each = depth * max(sizes, default=4096)
    pinned = re.match(r"(\d{1,18})([kmg]?)", str(options.get("lockmem", 0)).lower())
    held = int(pinned[1]) << 10 * " kmg".index(pinned[2] or " ") if pinned else 0
    return jobs * (each + _PROCESS) + held


def _count(options: Mapping[str, Value], name: str) -> int:
    value = options.get(name, 1)
    return int(value) if is_digits(str(value)) else 1


def logs(stdout: str) -> dict[str, tuple[tuple[int, int, int, int], ...]]:
    """Return fio's log files by name: milliseconds, value, direction (0: read), bytes of the
    request.

    Values are KiB/s, operations per second or nanoseconds, as in fio's manual.
    """
    _, *parts = stdout.split(f"{CUT} ")
    if not parts or parts[-1].strip() != "end":
        raise ToolError("fio's logs are cut off: their last line is missing")
    found = {}
    for part in parts[:-1]:
        name, *lines = part.splitlines()
        try:
            rows = [tuple(int(word) for word in line.split(",")[:4]) for line in lines if line]
        except ValueError:
            raise ToolError(f"fio's log {name} has a line that is not numbers") from None
        if any(len(row) != 4 for row in rows):
            raise ToolError(f"fio's log {name} has a line without four numbers")
        found[name] = tuple((row[0], row[1], row[2], row[3]) for row in rows)
    if not found:
        raise ToolError("fio wrote none of the requested logs")
    return found


def _traced(
    files: Iterable[tuple[tuple[int, int, int, int], ...]], kind: str, span: int
) -> dict[tuple[str, str], Trace]:
    """Return sums over all jobs' logs.

    fio's averages over ``span`` milliseconds; if fio logged every request, bytes or requests per
    second.
    """
    sums: dict[str, dict[int, float]] = {}
    for rows in files:
        for at, value, direction, size in rows:
            own = sums.setdefault(DIRECTIONS[direction], {})
            if span:
                moment, amount = round(at / span) * span, value * (1024 if kind == "bw" else 1)
            else:
                moment, amount = (at // 1000 + 1) * 1000, size if kind == "bw" else 1
            own[moment] = own.get(moment, 0.0) + amount
    unit = (THROUGHPUT if kind == "bw" else IOPS).unit
    return {
        (direction, unit): tuple((at / 1000, value) for at, value in sorted(own.items()))
        for direction, own in sums.items()
    }


_NEUTRAL: Final = frozenset(LOGS) | fio_options.words(
    """
    filename rw bs direct buffered ioengine iodepth numjobs size io_size offset runtime time_based
    ramp_time rwmixread rwmixwrite norandommap randrepeat randseed random_generator thread
    group_reporting invalidate refill_buffers zero_buffers scramble_buffers log_avg_msec
    per_job_logs description percentile_list clat_percentiles lat_percentiles slat_percentiles
    disable_slat
    """
)
"""Options that `Stream` represents, or that do not affect a prediction."""

_MODES: Final = {"read": "read", "write": "write", "rw": "mixed", "readwrite": "mixed"}
_ASYNCHRONOUS: Final = ("libaio", "io_uring")
_SYNCHRONOUS: Final = ("psync", "sync", "vsync", "pvsync", "pvsync2")


def _stream(options: Mapping[str, Value]) -> Stream | None:
    mode = str(options.get("rw", "read"))
    direction = _MODES.get(mode.removeprefix("rand"))
    random, jobs = mode.startswith("rand"), _count(options, "numjobs")
    direct = options.get("direct") == 1 or options.get("buffered") == 0
    engine = str(options.get("ioengine", "psync"))
    block = options.get("bs", 4096)
    sizes = [options.get(key) for key in ("size", "io_size", "offset")]
    if sizes[0] == "100%":
        sizes[0] = None
    if (
        not set(options) <= _NEUTRAL
        or direction is None
        or not direct
        or engine not in (*_ASYNCHRONOUS, *_SYNCHRONOUS)
        or not isinstance(block, int)
        or str(options.get("filename", TARGET)) != TARGET
        or any(isinstance(size, str) for size in sizes)
        or (jobs > 1 and not random)
    ):
        return None
    size, io_size, offset = (int(s) if s is not None else None for s in sizes)
    each = io_size or size
    seconds = options.get("runtime")
    share = options.get("rwmixread", 100 - float(options.get("rwmixwrite", 50)))
    seeded = options.get("randrepeat") == 0 and "randseed" in options
    drawn = options.get("randrepeat") == 0 and not seeded
    usual = str(options.get("random_generator", "tausworthe")) == "tausworthe"
    return Stream(
        direction="read" if direction == "read" else "write" if direction == "write" else "mixed",
        block=block,
        total=None if options.get("time_based") or each is None else each * jobs,
        offset=offset or 0,
        random=random,
        depth=jobs * (_count(options, "iodepth") if engine in _ASYNCHRONOUS else 1),
        seconds=float(seconds) if seconds is not None else None,
        rest=float(options.get("ramp_time", 0.0)),
        span=size,
        read_share=float(share) / 100,
        repeats=bool(options.get("norandommap", 0)),
        jobs=jobs,
        seed=int(options["randseed"]) if seeded else None,
        known=usual and not drawn,
    )


WORKLOAD: WorkloadTool = Fio()
