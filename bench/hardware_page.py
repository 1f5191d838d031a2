"""Makes docs/hardware.md and its picture from measured and modelled values. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from lab.core.units import format_value
from lab.md.theory.certificate import certificate, errors
from lab.model.scenario.drive import HardDrive, SolidStateDrive
from lab.model.scenario.profile import Point

INTRODUCTION: Final = """\
# Model against hardware

Modelled drives next to the real ones that they are named after. `python -m bench.hardware --page`
makes this page from `bench/hardware.yaml`, which has the values and their sources.

- Each drive's values were found by [`lab disk fit`](howto/real-disks.md#profiles) from every other
  depth. The other depths were **not fitted**. But which mechanisms the model has was decided with
  all depths in view, so they are no blind test. The caches of the Samsung F1 and the Seagate, and
  the Seagate's rates, were set by hand afterwards.
- Loads are random requests of 4 KiB, with direct I/O, 60 s each. Error: modelled divided by
  measured, less 1.
- The host's time between two requests is fio's: a request's time less its latency, at the lowest
  depth.
- Writes follow writes, so a write cache is full at their start, but at depth 1 of the HGST.
"""
LIMITS: Final = """\
## What was not compared

- **Streams, zones, read-ahead and the cable**: the data have random requests only. These values
  are the lab's own choice, as each preset's `source` says.
- **Mixed reads and writes**, requests of other sizes, temperature, age, a full
  solid-state disk.
- **Flushes** of all drives but the Seagate.
- Presets without a measurement (`hdd_7200`, `hdd_10000`, `hdd_5400_usb`, `ssd_sata`) are from data
  sheets. The lab says *not measured on a drive* where they are used.

## What the model does not have

- **Samsung F1, reads at depth 8**: the drive answers nearly in order of arrival, and at depth 16 it
  lets some requests wait three times as long as the mean. It seems to change its way of choosing
  between 8 and 16 requests. The model has one way, so its 99th percentile at depth 8 is too late.
- **99th percentiles of writes**: the latest writes of both hard disks are later than the model's,
  since drives repeat some writes.
- **Solid-state disks, 99th percentiles**: the model's pages all take the same time.
- **Kingston DC500M, one request at a time**: reads take 40 µs longer than with two in flight,
  writes 10 µs. A part of that is the host's processor, which sleeps meanwhile. The model adds the
  same to both, so single writes are too slow.
- **Garbage collection of the Samsung 860 PRO** gets shorter with the depth. The model's does not.
- **The RAID 5's writes** at depth 1, and from depth 32 on, are slower than the modelled ones.
  This is not explained yet: its drives are unknown.
- **Controllers**: the same solid-state disks on the P420i are slower with four requests than with
  two, since it gathers interrupts. No preset has that.
"""


TRACED: Final = """\
## Traced drives

Requests with their measured times, from DiskSim's validation (github.com,
westerndigitalcorporation/DiskSim, `valid/`). The seek curve is fitted to the measured one, the
rates are the zones'. Three values were fitted to the first half of each trace: the controller's
time by the mean, the bus by cached writes, read-ahead by the demerit. The table is of the second
half. DiskSim's demerit is that of its own model, which has each zone, skew and segment of the
drive.
"""


def page(
    drives: Sequence[tuple[Mapping[str, Any], HardDrive | SolidStateDrive, Sequence[Point]]],
    more: str,
) -> str:
    """Return the page. ``drives``: name and source, the model, and the values of each drive."""
    parts = [
        INTRODUCTION,
        _overview(drives),
        "![Each value, measured and modelled](hardware.svg)\n",
    ]
    for about, drive, points in drives:
        parts.append("\n".join(_drive(about, drive, points)))
    return "\n".join([*parts, *([more] if more else []), LIMITS])


def _overview(
    drives: Sequence[tuple[Mapping[str, Any], HardDrive | SolidStateDrive, Sequence[Point]]],
) -> str:
    lines = [
        "| preset | reads, fitted | not fitted | worst | writes, fitted | not fitted | worst |",
        "|---|---|---|---|---|---|---|",
    ]
    for about, _, points in drives:
        cells = [f"`{about['preset']}`"]
        for group in ("reads: rate", "writes: rate"):
            own = [p for p in points if p.group == group]
            found = [errors([p for p in own if p.fitted is fitted]) for fitted in (True, False)]
            cells += [f"{e.rms:.1%}" if e.count else "" for e in found]
            cells.append(f"{errors(own).worst:+.1%}" if own else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(["Errors of the rates, by RMS:\n", *lines, ""])


def _drive(
    about: Mapping[str, Any], drive: HardDrive | SolidStateDrive, points: Sequence[Point]
) -> Iterator[str]:
    yield f"## {about['name']}\n"
    yield f"Preset `{about['preset']}`. Measured: {about['source']}.\n"
    yield f"Values: {values_of(drive)}.\n"
    groups = list(dict.fromkeys(p.group for p in points))
    for kind in dict.fromkeys(group.partition(":")[0] for group in groups):
        own = [group for group in groups if group.startswith(f"{kind}:")]
        heads = [group.partition(": ")[2] for group in own]
        yield f"| {kind} | {' | '.join(f'{head} | modelled | off by' for head in heads)} | fitted |"
        yield f"|---|{'---|' * (3 * len(own) + 1)}"
        for name in dict.fromkeys(p.name for p in points if p.group in own):
            cells = [name.partition(", ")[2]]
            fitted = ""
            for group in own:
                found = next((p for p in points if p.group == group and p.name == name), None)
                if found is None:
                    cells += ["", "", ""]
                    continue
                fitted = "yes" if found.fitted else "no"
                unit = "1/s" if found.unit == "per_second" else "s"
                shown = [format_value(v, unit) for v in (found.measured, found.model)]
                cells += [*shown, f"{found.error:+.1%}"]
            yield f"| {' | '.join([*cells, fitted])} |"
        yield ""
    yield "| certificate | fitted: RMS | worst | not fitted: RMS | worst |"
    yield "|---|---|---|---|---|"
    for line in certificate(points):
        cells = [line.group]
        for found_errors in (line.fitted, line.tested):
            known = found_errors.count
            cells += (
                [f"{found_errors.rms:.1%}", f"{found_errors.worst:+.1%}"] if known else ["", ""]
            )
        yield f"| {' | '.join(cells)} |"
    yield ""


def traced(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the section of DiskSim's traced drives."""
    lines = [
        TRACED,
        "| drive | years | requests | mean | modelled | off by | demerit | DiskSim's | ratio |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = (
            row["name"],
            row["years"],
            row["requests"],
            format_value(row["measured"], "s"),
            format_value(row["modelled"], "s"),
            f"{row['modelled'] / row['measured'] - 1:+.1%}",
            f"{row['demerit'] * 1e3:.3f} ms",
            f"{row['disksim'] * 1e3:.3f} ms",
            f"{row['demerit'] / row['disksim']:.2f}",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, ""])


ARRAY: Final = """\
## A RAID 5 of eight

Scenario `raid5-of-eight`, run in a guest in virtual time, next to fio-plot's measurement of a real
md RAID 5. Its drives, its chunk and the file's place are unknown. Three values of the drive (the
controller's time, and seeks to the next track and on average) were **chosen by hand with the
array's values in view**: its reads at all depths, and what theory says of its writes. So the table
shows how well one drive of this model can explain the array. It does not show that the model
predicts an array. Members' requests are those of all members per array write.
md's rule for a small write is two reads and two writes; the rest is the bitmap's.
"""


def array(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the section of the real array. ``rows``: one for each depth, measured and modelled."""
    lines = [
        ARRAY,
        "| depth | reads | modelled | off by | writes | modelled | off by | members' reads "
        "| modelled | members' writes | modelled |",
        f"|{'---|' * 11}",
    ]
    for row in rows:
        cells: list[str] = [str(row["depth"])]
        for name in ("reads", "writes"):
            measured, model = row[name]
            cells += [f"{measured:.1f}/s", f"{model:.1f}/s", f"{model / measured - 1:+.1%}"]
        for name in ("member_reads", "member_writes"):
            cells += [f"{value:.2f}" for value in row[name]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def values_of(drive: HardDrive | SolidStateDrive) -> str:
    """Return the fitted values in words."""
    if isinstance(drive, HardDrive):
        way = "shortest seek" if drive.seek_only else "shortest positioning time"
        seeks = (drive.track_to_track, drive.average_seek, drive.full_stroke)
        first, mean, full = (f"{seconds * 1e3:.2f}" for seconds in seeks)
        return (
            f"{drive.rpm:g} rpm, seeks {first}, {mean} and {full} ms (next track, mean, full "
            f"stroke), writes settle {drive.write_settle * 1e3:.2f} ms longer; it chooses the "
            f"{way} among the oldest {drive.queue_depth} but the newest {drive.lead}, and the "
            f"oldest in {drive.oldest_share:.1%} of its choices; the write cache holds "
            f"{drive.write_places} pieces and chooses among {max(drive.write_choice, 1)}"
        )
    return (
        f"controller {drive.overhead * 1e6:.1f} µs, {drive.channels} channels, a page read in "
        f"{drive.read_latency * 1e6:.1f} µs and written in {drive.write_latency * 1e6:.1f} µs, "
        f"cable {drive.link_command * 1e6:.2f} µs per request, wakes in {drive.wake * 1e6:.1f} µs, "
        f"stops for {drive.gc_stall * 1e3:.2f} ms after {drive.gc_after // 1024} KiB written"
    )


def scatter(drives: Sequence[tuple[str, Sequence[Point]]]) -> dict[str, Any]:
    """Return the Vega-Lite specification of all rates on a diagonal."""
    rows = [
        {
            "drive": name,
            "measured": point.measured,
            "modelled": point.model,
            "load": f"{point.name}",
            "kind": point.group.partition(":")[0] + (", fitted" if point.fitted else ""),
        }
        for name, points in drives
        for point in points
        if point.unit == "per_second"
    ]
    values = [
        v
        for _, points in drives
        for p in points
        if p.unit == "per_second"
        for v in (p.measured, p.model)
    ]
    low, high = (
        10 ** math.floor(math.log10(min(values))),
        10 ** math.ceil(math.log10(max(values))),
    )
    axis = {"type": "log", "domain": [low, high]}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": 520,
        "height": 420,
        "background": "white",
        "layer": [
            {
                "data": {"values": [{"x": low, "y": low}, {"x": high, "y": high}]},
                "mark": {"type": "line", "color": "#999999", "strokeDash": [4, 4]},
                "encoding": {
                    "x": {"field": "x", "type": "quantitative", "scale": axis},
                    "y": {"field": "y", "type": "quantitative", "scale": axis},
                },
            },
            {
                "data": {"values": rows},
                "mark": {"type": "point", "size": 45, "strokeWidth": 1.5},
                "encoding": {
                    "x": {
                        "field": "measured",
                        "type": "quantitative",
                        "scale": axis,
                        "title": "measured, requests per second",
                    },
                    "y": {
                        "field": "modelled",
                        "type": "quantitative",
                        "scale": axis,
                        "title": "modelled, requests per second",
                    },
                    "color": {"field": "drive", "type": "nominal", "title": "drive"},
                    "shape": {"field": "kind", "type": "nominal", "title": "load"},
                },
            },
        ],
    }
