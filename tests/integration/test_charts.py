"""Charts are chosen by the axes, use the run's own values, and are equal on all hosts."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from lab.analysis import measure
from lab.compile.scenario.compiler import compile_scenario
from lab.core.units import MIB
from lab.core.yaml import parse_override
from lab.model.result.measurement import SyncSeen
from lab.plugins import catalog
from lab.plugins.workloads.fio import CUT
from lab.report.charts.bars import Bar, bar_chart
from lab.report.charts.cells import cell_charts, sync_words
from lab.report.charts.data import disk_limit, longest, varying
from lab.report.charts.latency import latency_charts
from lab.report.charts.render import (
    ALLOWED,
    BOUND,
    INK,
    MEASURED,
    MUTED,
    PUBLISHED,
    Chart,
    Key,
    legend,
    lines,
    png,
    specification,
    svg,
)
from lab.report.charts.values import value_charts
from lab.report.content.figures import rows_of
from lab.report.content.page_data import Page
from lab.report.html.page import charts_of
from lab.results.report import page_of
from tests import runs
from tests.fakes import stored_run
from tests.kept import unpacked

Pages = dict[str, Page]
GOLDEN = Path(__file__).parents[1] / "golden" / "workloads" / "fio" / "mixed-log"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    base = tmp_path_factory.mktemp("runs")
    stores = {
        "main": stored_run(base / "main"),
        "layouts": runs.theory_run(base, runs.LAYOUTS, name="layouts", contended=1),
        "bitmap": runs.theory_run(base, runs.BITMAP, name="bitmap"),
        "depth": runs.theory_run(base, runs.DEPTH, name="depth"),
        "scaling": runs.theory_run(base, runs.SCALING, name="scaling"),
    }
    return {name: page_of(store) for name, store in stores.items()}


def named(page: Page, name: str) -> Chart:
    [found] = [p for p in charts_of(page) if p.name == name]
    return found


def values_of(chart: Chart) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = chart.spec["data"]["values"]
    return found


def layers_of(chart: Chart) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = chart.spec.get("spec", chart.spec)["layer"]
    return found


def keys_of(chart: Chart) -> list[str]:
    """Return the legend's texts."""
    return [v["key"] for v in layers_of(chart)[0]["data"]["values"]]


def test_charts_follow_the_axes(pages: Pages) -> None:
    names = {name: [p.name for p in value_charts(page)] for name, page in pages.items()}
    assert names["bitmap"] == ["write-iops-by-bitmap-chunk"]
    assert names["depth"] == ["read-iops-by-numjobs-and-iodepth"]
    assert names["layouts"] == [
        f"{work}-throughput-by-layout-and-chunk-{disks}-disks"
        for work in ("write", "read")
        for disks in (3, 5)
    ]
    assert names["main"] == ["read-throughput"]  # the answer's chart has all other values
    assert names["scaling"] == ["read-throughput-by-disks"]


def test_no_value_is_in_two_charts(pages: Pages) -> None:
    for page in pages.values():
        shown = [
            (chart.title, value["tip"])
            for chart in value_charts(page)
            for value in values_of(chart)
        ]
        assert len(shown) == len(set(shown))
        tips = [tip for _, tip in shown]
        assert len(tips) == len(set(tips))


def test_the_order_of_charts_is_the_scenarios_whichever_cells_finished(pages: Pages) -> None:
    page = pages["layouts"]
    names = [chart.name for chart in value_charts(page)]
    cells = page.result.cells
    only = ("read", "throughput")
    first = cells[0].model_copy(
        update={
            "measurements": tuple(
                m for m in cells[0].measurements if (m.workload, m.metric) == only
            )
        }
    )
    result = page.result.model_copy(update={"cells": (first, *cells[1:])})
    other = page.model_copy(update={"result": result})
    assert [r.workload for r in rows_of(first)] == ["read"]
    assert [chart.name for chart in value_charts(other)] == names


def test_both_throughput_and_iops_are_drawn_where_sizes_of_requests_differ(pages: Pages) -> None:
    page = pages["bitmap"]
    cells = list(page.result.cells)
    larger = tuple(
        m.model_copy(update={"median": m.median * 64}) if m.metric == "throughput" else m
        for m in cells[1].measurements
    )
    cells[1] = cells[1].model_copy(update={"measurements": larger})
    work = page.cells[1].cell.workloads[0]
    sized = work.model_copy(update={"parameters": work.parameters | {"bs": 64 * 4096}})
    cell = page.cells[1].cell.model_copy(update={"workloads": (sized,)})
    second = page.cells[1].model_copy(update={"cell": cell})
    other = page.model_copy(
        update={
            "result": page.result.model_copy(update={"cells": tuple(cells)}),
            "cells": (page.cells[0], second, *page.cells[2:]),
        }
    )
    assert [chart.name for chart in value_charts(other)] == [
        *("write-throughput-by-bitmap-chunk", "write-iops-by-bitmap-chunk")
    ]


def bars_of(page: Page, workload: str, chunk: int) -> Chart:
    """Return bars of the cells with one chunk: two axes are left, which are no heat map."""
    cells = tuple(c for c in page.result.cells if c.axes["array.chunk"] == chunk)
    own = page.model_copy(update={"result": page.result.model_copy(update={"cells": cells})})
    [found] = [c for c in value_charts(own) if c.name == f"{workload}-throughput"]
    return found


def test_each_cell_shows_its_members_and_its_logs_but_not_of_too_many(pages: Pages) -> None:
    bitmap = [p.name for p in cell_charts(pages["bitmap"])]
    assert [n.startswith("members-") for n in bitmap] == [True, False] * 6
    assert sum(n.startswith("over-time-write-") for n in bitmap) == 6
    assert len(pages["layouts"].cells) == 48
    assert len(cell_charts(pages["layouts"])) == 12


def test_bars_are_the_figures_with_theory_and_their_intervals(pages: Pages) -> None:
    page = pages["layouts"]
    chart = bars_of(page, "read", 16384)
    values = values_of(chart)
    cells = [c for c in page.result.cells if c.axes["array.chunk"] == 16384]
    assert len(values) == len(cells) == 12
    for value, cell in zip(values, cells, strict=True):
        [found] = [m for m in cell.measurements if (m.workload, m.metric) == ("read", "throughput")]
        [theory] = [p for p in cell.predictions if (p.workload, p.metric) == ("read", "throughput")]
        assert value["measured"] == found.median / 1e6
        assert (value["low"], value["high"]) == (
            found.interval.low / 1e6,
            found.interval.high / 1e6,
        )
        assert value["low"] < min(found.values) / 1e6  # includes the host's noise
        assert value["high"] > max(found.values) / 1e6
        assert value["predicted"] == theory.value / 1e6
        assert f"{len(found.values)} trials" in value["tip"]
    assert [v["label"] for v in values if v["doubted"]] == ["left-symmetric, 5 disks"]
    assert keys_of(chart) == [
        *("measured", "theory", "(N-1)·B, N·B", "95% interval", "doubtful"),
    ]
    assert "(higher is better)" in chart.spec["layer"][3]["encoding"]["x"]["title"]


def test_a_claims_bound_is_where_it_holds(pages: Pages) -> None:
    page = pages["main"]
    bounds = [c.expect for c in page.judged if c.expect.kind == "bound" and c.expect.near]
    near = {
        tuple(round(b.near * (1 + x * b.within) / 1e6, 6) for x in (-1, 1))
        for b in bounds
        if b.near is not None
    }
    allowed = {
        (round(v["least"], 6), round(v["most"], 6))
        for chart in value_charts(page)
        for v in values_of(chart)
        if "least" in v
    }
    assert len(allowed) == 2  # of the cells' reads
    assert allowed <= near
    for value in (v for chart in value_charts(page) for v in values_of(chart) if "least" in v):
        assert value["bounds"] == [value["least"], value["most"]]


def test_fios_own_rounding_is_no_second_size_of_request(tmp_path: Path) -> None:
    page = page_of(unpacked("bitmap-random-write", tmp_path))
    names = [chart.name for chart in value_charts(page)]
    assert names == ["write-iops", "write-alone-iops"]


def test_limits_far_above_all_values_do_not_flatten_them(pages: Pages) -> None:
    page = pages["scaling"]
    few = tuple(
        cell.model_copy(
            update={
                "measurements": tuple(
                    m.model_copy(update={"median": m.median / 10, "low": None, "high": None})
                    for m in cell.measurements
                ),
                "predictions": (),
            }
        )
        for cell in page.result.cells
    )
    low = page.model_copy(update={"result": page.result.model_copy(update={"cells": few})})
    for found, drawn in ((page, True), (low, False)):
        keys = {key for chart in value_charts(found) for key in keys_of(chart)}
        assert any("N·B" in key for key in keys) is drawn


def test_the_number_of_disks_has_the_limits_of_the_disks(pages: Pages) -> None:
    chart = named(pages["scaling"], "read-throughput-by-disks")
    behind = [
        x["data"]["values"] for x in layers_of(chart) if x["mark"]["type"] == "line" and "data" in x
    ]
    disk = 5 * MIB
    limits = [[(v["x"], v["y"]) for v in line] for line in behind[1:]]  # the first: other panels
    assert limits == [
        [(n, n * disk / 1e6) for n in (3, 4, 5)],
        [(n, (n - 1) * disk / 1e6) for n in (3, 4, 5)],
    ]
    assert {"N·B", "(N-1)·B"} <= set(keys_of(chart))
    beside = values_of(named(pages["main"], "read-throughput"))
    assert {v["label"]: v["limits"] for v in beside} == {
        "5 disks": (5 * disk / 1e6, 4 * disk / 1e6),
        "3 disks": (3 * disk / 1e6, 2 * disk / 1e6),
    }
    cell = pages["main"].cells[0].cell
    assert disk_limit(cell, "throughput") == 5 * MIB
    assert disk_limit(cell, "iops") is None
    other = cell.disks[0].model_copy(update={"model": "none"})
    assert disk_limit(cell.model_copy(update={"disks": (other,)}), "throughput") is None


def test_a_cell_without_the_axis_is_a_level_across_the_panels(pages: Pages) -> None:
    chart = named(pages["bitmap"], "write-iops-by-bitmap-chunk")
    values = values_of(chart)
    assert {(v["line"], v["joined"]) for v in values} == {("internal bitmap", True)}
    [level] = [k for k in keys_of(chart) if k.startswith("no bitmap: ")]
    assert level.endswith("/s")
    by_disks = values_of(named(pages["scaling"], "read-throughput-by-disks"))
    assert {v["line"]: v["joined"] for v in by_disks} == {
        "left-symmetric": True,
        "parity-last": False,  # two points, each with its value
    }


def test_an_axis_that_follows_from_others_is_not_named(tmp_path: Path) -> None:
    text = runs.BITMAP.replace("[none, internal]", "[none, internal]\n  array.name: [a, b]")
    text = text.replace(
        "  exclude:",
        "  exclude:\n    - {array.bitmap: none, array.name: b}"
        "\n    - {array.bitmap: internal, array.name: a}",
    )
    page = page_of(runs.theory_run(tmp_path, text))
    rows = [row for cell in page.result.cells for row in rows_of(cell)]
    assert {row.cell.axes["array.name"] for row in rows} == {"a", "b"}
    assert list(varying(rows)) == ["array.bitmap", "array.bitmap_chunk"]
    [chart] = value_charts(page)
    assert {v["line"] for v in values_of(chart)} == {"internal bitmap"}
    assert longest(rows, "array.bitmap_chunk", varying(rows)) == 5
    assert longest(rows[:3], "array.bitmap_chunk", varying(rows)) == 2


def test_long_labels_are_parted_between_words_and_a_legend_has_room_for_its_own() -> None:
    label = "left-symmetric, internal bitmap, bitmap chunk 64KiB"
    assert " ".join(lines(label, 27)) == label
    assert max(map(len, lines(label, 27))) <= 27
    assert lines("a" * 40, 27) == ["a" * 40]
    for lengths, columns in (((10, 10, 10, 10), 3), ((10, 20), 2), ((40,), 1)):
        keys = [Key(name=str(n) * m, colour=INK, shape="square") for n, m in enumerate(lengths)]
        assert legend(keys)["encoding"]["fill"]["legend"]["columns"] == columns


def test_a_parity_disks_load_is_counted(pages: Pages) -> None:
    page = pages["layouts"]
    cell = next(
        c.result
        for c in page.cells
        if c.result.axes == {"array.layout": "parity-last", "array.chunk": 16384, "disks.count": 5}
    )
    chart = named(page, f"members-{cell.id}")
    values = values_of(chart)
    [bars] = [x for x in chart.spec["layer"] if x["mark"]["type"] == "bar" and "data" in x]
    disks = {v["row"]: v["label"] for v in values if v["group"] == "read"}
    read = {
        disks[v["row"]]: v["to"] - v["from"]
        for v in bars["data"]["values"]
        if v["row"] in disks and v["series"] == "read"
    }
    counted = {c.serial: c.read_bytes / MIB for c in cell.counters if c.workload == "read"}
    assert read == counted
    assert read["disk5"] == 0 < read["disk1"]  # parity is never read
    assert all(v["predicted"] is not None for v in values)
    assert keys_of(chart) == ["read", "written", "theory"]


def test_time_is_the_tools_log_with_the_resync_that_was_seen(pages: Pages) -> None:
    cell = pages["depth"].cells[4]
    chart = named(pages["depth"], f"over-time-read-{cell.result.id}")
    values = values_of(chart)
    assert [v["x"] for v in values] == [float(s) for s in range(1, 9)]
    log = cell.series[0].values
    assert [v["y"] for v in values] == [x / 1e3 for x in log]
    assert "a resync ran from the beginning, 0% done then and 32%" in chart.subtitle
    assert "with a resync" in keys_of(chart)
    assert any(layer["mark"]["type"] == "rect" for layer in layers_of(chart))
    quiet = next(p for p in cell_charts(pages["bitmap"]) if p.name.startswith("over-time"))
    assert "resync" not in quiet.subtitle
    assert all(layer["mark"]["type"] != "rect" for layer in layers_of(quiet))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("resync =  0.4% (1/9)", "", "ended before the cell, at an unknown time"),
        ("", "recovery = 50.0% (1/2)", "a recovery began meanwhile, 50% done"),
        ("resync=DELAYED", "resync =100.0% (9/9)", "0% done then and 100% at the cell's end"),
        ("", "", ""),
        ("bitmap: 0/8 pages", "check the log", ""),
    ],
)
def test_mdstat_is_read_as_the_kernel_prints_it(before: str, after: str, words: str) -> None:
    raw = {"mdadm-create.txt": f"md0 : active\n {before}\n", "end.txt": f"md0 : active\n {after}\n"}
    cell = compile_scenario(catalog.scenarios()["raid5-parity-last"]).base
    seen = measure.sync_seen(cell, raw)
    assert (seen is None) == (not words)
    assert words in sync_words(seen)
    # dmesg's output after /proc/mdstat is not a resync.
    noise = {"end.txt": "md0 : active\nunused devices: <none>\n[1.0] resync = 12.0% (1/9)\n"}
    assert measure.sync_seen(cell, noise) is None


def test_a_sync_that_was_waited_for_is_beside_no_workload() -> None:
    path = catalog.scenarios()["raid5-parity-last"]
    waited = compile_scenario(path, overrides=[parse_override("array.initial_sync=wait")]).base
    raw = {"mdadm-create.txt": "md0 : active\n resync =  0.4% (1/9)\n", "end.txt": "md0\n"}
    assert measure.sync_seen(waited, raw) is None


def test_a_log_is_read_for_all_jobs_and_directions(pages: Pages) -> None:
    cell = pages["depth"].cells[0].cell
    [work] = cell.workloads
    golden = json.loads((GOLDEN / "expected.json").read_text())
    tool = measure.catalog.workload("fio")
    parameters = tool.parameters.model_validate(golden["parameters"]).model_dump()
    changed = cell.model_copy(
        update={"workloads": (work.model_copy(update={"parameters": parameters}),)}
    )
    stdout = (GOLDEN / "stdout").read_text()
    found = measure.series(changed, {"read.1.stdout.txt": stdout})
    assert {(s.direction, s.unit): (s.seconds, s.values) for s in found} == {
        ("read", "B/s"): ((1.0, 2.0), (804 * 1024.0, 800 * 1024.0)),
        ("write", "B/s"): ((1.0, 2.0), (404 * 1024.0, 400 * 1024.0)),
    }
    two = stdout.replace(
        f"{CUT} log_iops", f"{CUT} log_bw.2.log\n1000, 96, 0, 0, 0\n{CUT} log_iops"
    )
    [read, _] = measure.series(changed, {"read.1.stdout.txt": two})
    assert read.values == (900 * 1024.0, 800 * 1024.0)
    cut = stdout.partition(f"{CUT} end")[0]
    assert measure.series(changed, {"read.1.stdout.txt": cut}) == ()


def test_a_log_of_single_requests_is_added_up_by_seconds(pages: Pages) -> None:
    cell = pages["depth"].cells[0].cell
    [work] = cell.workloads
    single = {k: v for k, v in work.parameters.items() if k != "log_avg_msec"}
    changed = cell.model_copy(
        update={"workloads": (work.model_copy(update={"parameters": single}),)}
    )
    log = "10, 400, 0, 4096, 0\n990, 400, 0, 4096, 0\n1000, 400, 0, 8192, 0\n"
    text = f"{{}}\n{CUT} log_bw.1.log\n{log}{CUT} end\n"
    [found] = measure.series(changed, {"read.1.stdout.txt": text})
    assert (found.seconds, found.values) == ((1.0, 2.0), (8192.0, 8192.0))


def test_svg_says_in_words_what_it_shows_and_png_is_the_same_chart(pages: Pages) -> None:
    chart = named(pages["main"], "read-throughput")
    drawn = svg(chart)
    root = ElementTree.fromstring(drawn)
    titles = [e.text or "" for e in root.iter("{http://www.w3.org/2000/svg}title")]
    assert (
        sum("measured 20.8 MB/s" in t for t in titles) == 3
    )  # the bar, theory's line, and the published value
    assert root.get("role") == "img"
    assert chart.title in str(root.get("aria-label"))
    pixels = png(drawn)
    assert pixels[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", pixels[16:24])
    assert (width, height) == (2 * float(root.get("width", 0)), 2 * float(root.get("height", 0)))
    assert "http" not in drawn.replace("http://www.w3.org/", "")


def test_every_chart_is_well_formed_fits_and_has_a_name_of_its_own(pages: Pages) -> None:
    for page in (pages["main"], pages["bitmap"], pages["depth"], pages["scaling"]):
        charts = charts_of(page)
        assert len({p.name for p in charts}) == len(charts)
        for chart in charts:
            root = ElementTree.fromstring(svg(chart))
            assert 300 < float(root.get("width", 0)) <= 390, chart.name  # a telephone's
            assert chart.caption


def test_a_figure_that_changes_changes_its_chart(tmp_path: Path) -> None:
    specs = []
    for drift in (1.0, 0.9):
        store = runs.theory_run(tmp_path / str(drift), runs.SMALL, drift=drift)
        specs.append([specification(p) for p in value_charts(page_of(store))])
    assert len(specs[0]) == len(specs[1]) == 1
    slow, fast = (s[0]["data"]["values"][0]["measured"] for s in (specs[1], specs[0]))
    assert slow == pytest.approx(0.9 * fast)


def _contrast(one: str, other: str) -> float:
    """Return the ratio of two colours' luminance, as WCAG 2.1 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_a_value_stands_at_its_bar_unless_a_mark_is_there() -> None:
    bar = Bar(label="a", parts={"measured": 10.0}, text="10 MB/s", tip="t", limits=(40.0,))
    near = bar.model_copy(update={"published": 11.0, "allowed": (20.0, None), "unknown": True})
    chart = bar_chart([bar, near], title="x", series={"measured": MEASURED}, limits="limit")
    first, second = chart["data"]["values"]
    assert (first["at"], second["at"]) == (10.0, 11.0)
    assert (first["bounds"], second["bounds"], second["least"]) == ([], [20.0], 20.0)
    assert ("uncertain" in first, second["uncertain"]) == (False, 10.0)
    keys = [v["key"] for v in chart["layer"][0]["data"]["values"]]
    assert keys == ["measured", "published", "claim holds", "limit", "interval unknown"]


def test_text_can_be_read_and_colours_told_apart() -> None:
    assert _contrast("#ffffff", "#000000") == pytest.approx(21)
    assert min(_contrast("#ffffff", c) for c in (INK, MUTED)) >= 4.5
    style = (Path(measure.__file__).parent / "../report/html/templates/style.css").read_text()
    dark = style.partition("figure svg > rect")[2]
    for colour in (INK, MUTED, MEASURED, PUBLISHED, ALLOWED, BOUND):
        assert f'[fill="{colour}"]' in dark
        assert f'[stroke="{colour}"]' in dark


def test_nothing_seen_of_a_resync_is_no_words() -> None:
    assert sync_words(None) == ""
    assert "check" in sync_words(SyncSeen(action="check", before=0.1, after=0.2))


def test_latencies_of_all_cells_are_in_one_panel(tmp_path: Path) -> None:
    charts = latency_charts(page_of(unpacked("bitmap-random-write", tmp_path)))
    titles = ["write, latency of requests", "write_alone, latency of requests"]
    assert [c.title for c in charts] == titles
    [run] = tmp_path.iterdir()
    reports = [json.loads(p.read_text()) for p in run.glob("cells/*/raw/write.1.stdout.txt")]
    sides = [report["jobs"][0]["write"]["clat_ns"] for report in reports]
    expected = {
        *((float(p), round(v / 1e9, 9)) for side in sides for p, v in side["percentile"].items()),
        *((100.0, round(side["max"] / 1e9, 9)) for side in sides),
    }
    found = charts[0].spec["data"]["values"]
    assert {(v["y"], round(v["x"], 9)) for v in found} == expected
    assert len(found) == 18 * len(sides)
    names = {v["line"] for v in found}
    assert len(names) == len(sides) == 3
    assert "8 disks, no bitmap: p50 1.18 s, p99 2.94 s" in names
    assert "2.94 s" in svg(charts[0])


def test_equal_latencies_are_one_line_and_far_apart_ones_need_a_logarithm(pages: Pages) -> None:
    page = pages["bitmap"]
    [chart] = latency_charts(page)
    assert len({v["line"] for v in chart.spec["data"]["values"]}) == 1
    cell = page.cells[0]
    [own] = cell.latencies

    def changed(longest: float) -> Chart:
        other = own.model_copy(update={"seconds": tuple(min(t, longest) for t in own.seconds)})
        first = cell.model_copy(update={"latencies": (other,)})
        [found] = latency_charts(page.model_copy(update={"cells": (first,)}))
        return found

    median = dict(zip(own.percents, own.seconds, strict=True))[50]
    near, far = changed(25 * median), changed(99 * median)
    for found in (near, far):
        logarithmic = found is far
        assert ("logarithmic" in found.subtitle) is logarithmic
        scale = found.spec["layer"][1]["encoding"]["x"].get("scale", {})
        assert (scale.get("type") == "log") is logarithmic
    assert latency_charts(pages["main"]) == ()  # dd knows no latencies
