"""Exports are read with the programs that they are for."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from lab.compile.scenario.compiler import compile_scenario
from lab.compile.scenario.identity import cell_id
from lab.core.errors import HostError, InputError, ToolError
from lab.model.execution.procedure import Procedure
from lab.model.result.document import CellMeasurement, CellResult, MemberCounters, Outcome
from lab.model.result.measurement import Measurement
from lab.model.scenario.fault import Fault
from lab.plugins import catalog
from lab.results.documents import result_of
from lab.results.export import Form, _figures, export
from lab.results.fio_tree import fio_tree
from lab.results.script import script_of
from lab.store.runs import RunStore, StoredCell, StoredOutcome, StoredRun
from tests.fakes import programs, stored_run
from tests.runs import SMALL, theory_run

GOLDEN = Path(__file__).parents[1] / "golden" / "workloads" / "fio"

SCENARIO = """\
title: Small writes
question: How fast?
disks: {count: 4, size: 1GiB, throttle: {total_operations_per_second: 100}}
array: {level: 5, chunk: 64KiB, component_size: 256MiB}
workloads:
"""
RANDOM = """\
  - {name: random, tool: fio, rw: randwrite, bs: 4KiB, iodepth: 16, ioengine: libaio,
     direct: true, runtime: 2s, time_based: true, size: 16m, rate_iops: 200}
"""
MIXED = """\
  - {name: mixed, tool: fio, rw: randrw, rwmixread: 70, bs: 4KiB, iodepth: 4, ioengine: libaio,
     direct: true, runtime: 3, time_based: true, size: 16MiB, rate_iops: '200,100',
     write_bw_log: true, write_iops_log: true, log_avg_msec: 1000}
"""


def fio_run(
    parent: Path, text: str, recorded: dict[str, str], *, trials: int = 1, depths: tuple[int, ...]
) -> RunStore:
    """Return a run of fio; each trial of each cell has the recorded output, at its own depth."""
    parent.mkdir(parents=True, exist_ok=True)
    path = parent / "small.yaml"
    path.write_text(f"{SCENARIO}{text}trials: {trials}\n")
    compiled = compile_scenario(path)
    store = RunStore(parent / "small-20250610-120000")
    (store.directory / "cells").mkdir(parents=True)
    shutil.copy(path, store.directory / "scenario.yaml")
    cells = [
        compiled.base.model_copy(update={"axes": {"workloads.random.iodepth": d} if d else {}})
        for d in depths
    ]
    ids = [f"{cell_id(c)}{d or ''}" for c, d in zip(cells, depths, strict=True)]
    stored = [StoredCell(id=i, cell=c, published=True) for i, c in zip(ids, cells, strict=True)]
    store.save_run(
        StoredRun(
            id=store.id,
            scenario="small",
            title="T",
            question="Q",
            started="2025-06-10T12:00:00+00:00",
            environment={},
            cells=tuple(stored),
            claims=(),
        )
    )
    for one, depth in zip(stored, depths, strict=True):
        attempt = store.begin_cell(one.id, one.cell, Procedure(name="q", steps=()))
        (attempt / "raw").mkdir()
        for workload, case in recorded.items():
            printed = (GOLDEN / case / "stdout").read_text()
            if depth:
                printed = printed.replace('"iodepth" : "16"', f'"iodepth" : "{depth}"')
            for trial in range(1, trials + 1):
                (attempt / "raw" / f"{workload}.{trial}.stdout.txt").write_text(printed)
        store.finish_cell(one.id, attempt, StoredOutcome(outcome=Outcome.DONE))
    return store


def plotted(directory: Path, picture: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run fio-plot."""
    command = [sys.executable, "-m", "fio_plot", "-i", str(directory), "-T", "T"]
    environment = {**os.environ, "MPLBACKEND": "Agg", "MPLCONFIGDIR": str(picture.parent)}
    return subprocess.run(
        [*command, "-o", str(picture), *options],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )


def test_fio_plot_reads_cells_of_several_depths_side_by_side(tmp_path: Path) -> None:
    run = fio_run(tmp_path / "r", RANDOM, {"random": "random-write"}, depths=(1, 4, 16))
    out = tmp_path / "out"
    files = export(run, Form.FIO, out, None)
    place = out / "small" / "4k"
    assert sorted(files) == [place / f"randwrite-{d}-1.json" for d in (1, 16, 4)]
    picture = tmp_path / "depths.png"
    ended = plotted(place, picture, "-l", "-r", "randwrite", "-d", "1", "4", "16", "-n", "1")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
    # Negative control: files as fio wrote them, without what fio-plot needs.
    for file in files:
        document = json.loads(file.read_text())
        del document["jobs"][0]["job options"]["numjobs"]
        file.write_text(json.dumps(document))
    missing = plotted(place, picture, "-l", "-r", "randwrite", "-d", "1", "4", "16", "-n", "1")
    assert missing.returncode != 0


def test_fio_plot_reads_the_logs_too(tmp_path: Path) -> None:
    run = fio_run(tmp_path / "r", MIXED, {"mixed": "mixed-log"}, depths=(0,))
    out = tmp_path / "out"
    files = export(run, Form.FIO, out, None)
    place = out / "small" / "randrw70" / "4k"
    assert sorted(f.name for f in files) == [
        "randrw-4-1.json",
        "randrw-iodepth-4-numjobs-1_bw.1.log",
        "randrw-iodepth-4-numjobs-1_iops.1.log",
    ]
    picture = tmp_path / "log.png"
    ended = plotted(place, picture, "-g", "-r", "randrw", "-t", "iops", "-d", "4", "-n", "1")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")


CUT = "faults: [{name: cut, fault: power_cut, during: mixed, at: 1s}]\n"


@pytest.mark.parametrize(("faults", "found"), [("", {"mixed", "random"}), (CUT, {"random"})])
def test_what_a_power_cut_ended_has_printed_nothing_for_fio_plot(
    tmp_path: Path, faults: str, found: set[str]
) -> None:
    recorded = {"random": "random-write"} | ({} if faults else {"mixed": "mixed-log"})
    run = fio_run(tmp_path, RANDOM + MIXED + faults, recorded, depths=(0,))
    modes = {"randrw": "mixed", "randwrite": "random"}
    tree = fio_tree(run, run.load_run().points)
    assert {modes[Path(name).name.partition("-")[0]] for name in tree if "json" in name} == found


def test_the_directories_are_those_that_bench_fio_makes(tmp_path: Path) -> None:
    from bench_fio.benchlib.supporting import generate_output_directory

    asked = {"mode": "randrw", "target_base": "/dev/small", "rwmixread": 70, "block_size": "4k"}
    settings = {"output": "out", "mixed": ["rw", "readwrite", "randrw"]}
    run = fio_run(tmp_path / "1", MIXED, {"mixed": "mixed-log"}, depths=(0,))
    made = {str(Path("out", name).parent) for name in fio_tree(run, run.load_run().points)}
    assert made == {generate_output_directory(settings, asked)}
    twice = fio_run(tmp_path / "2", MIXED, {"mixed": "mixed-log"}, trials=2, depths=(0,))
    made = {str(Path("out", name).parent) for name in fio_tree(twice, twice.load_run().points)}
    assert made == {generate_output_directory(settings, {**asked, "run": n}) for n in (1, 2)}


def test_files_of_the_same_name_get_directories_of_their_own(tmp_path: Path) -> None:
    again = RANDOM.replace("name: random", "name: again")
    recorded = {"random": "random-write", "again": "random-write"}
    run = fio_run(tmp_path, RANDOM + again, recorded, depths=(0,))
    (cell,) = run.load_run().cells
    assert set(fio_tree(run, [[cell]])) == {
        "small/4k/randwrite-16-1.json",
        f"{cell.id}.again/4k/randwrite-16-1.json",
    }


def test_the_seeds_of_a_cell_are_its_trials_for_fio_plot(tmp_path: Path) -> None:
    run = fio_run(tmp_path / "r", RANDOM, {"random": "random-write"}, depths=(0,))
    about = run.load_run()
    (one,) = about.cells
    second = one.cell.model_copy(update={"seed": 2})
    more = one.model_copy(update={"id": cell_id(second), "cell": second})
    run.save_run(about.model_copy(update={"cells": (one, more)}))
    files = export(run, Form.FIO, tmp_path / "before", None)  # the second seed has not ended
    assert [f.parent.name for f in files] == ["4k"]
    shutil.copytree(run.cell_directory(one.id), run.cell_directory(more.id))
    place = tmp_path / "after" / "small" / "4k"
    assert export(run, Form.FIO, tmp_path / "after", None) == [
        place / f"run-{n}" / "randwrite-16-1.json" for n in (1, 2)
    ]


def test_without_fio_there_is_nothing_for_fio_plot(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    with pytest.raises(InputError, match="no output of fio"):
        export(run, Form.FIO, tmp_path / "out", None)
    assert not (tmp_path / "out").exists()
    cut = fio_run(tmp_path / "f", RANDOM, {"random": "random-write"}, depths=(0,))
    (raw,) = cut.directory.rglob("random.1.stdout.txt")
    raw.write_text(raw.read_text()[:900])
    with pytest.raises(ToolError, match="did not print JSON"):
        export(cut, Form.FIO, tmp_path / "out", None)


def test_a_table_has_a_row_for_each_trial_of_each_metric(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    file, _ = export(run, Form.CSV, tmp_path / "a.csv", None)
    with file.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    # Two cells with three workloads and two metrics; the third cell was lost.
    assert len([row for row in rows if not row["metric"].startswith("disk_")]) == 13
    result = result_of(run)
    first = result.cells[0].measurements[0]
    assert float(rows[0]["value"]) == first.values[0]
    assert (rows[0]["array.layout"], rows[0]["disks.count"]) == ("parity-last", "5")
    assert float(rows[0]["low"]) < first.median < float(rows[0]["high"])
    assert (rows[-1]["outcome"], rows[-1]["metric"]) == ("lost", "")


def test_a_table_has_what_each_disk_counted(tmp_path: Path) -> None:
    run = theory_run(tmp_path / "runs", SMALL)
    file, _ = export(run, Form.CSV, tmp_path / "a.csv", None)
    with file.open(encoding="utf-8", newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["metric"] == "disk_written_bytes"]
    result = result_of(run)
    for cell in result.cells:
        counted = {(c.workload, c.serial, str(c.trial)): c.written_bytes for c in cell.counters}
        mine = [row for row in rows if row["cell"] == cell.id]
        single = {
            (r["workload"], r["disk"], r["trial"]): int(float(r["value"]))
            for r in mine
            if r["disk"]
        }
        assert single == counted
        sums = {(r["workload"], r["trial"]): float(r["value"]) for r in mine if not r["disk"]}
        for (workload, trial), total in sums.items():
            own = [v for (w, _, t), v in counted.items() if (w, t) == (workload, trial)]
            assert total == sum(own)
    assert sum(len(cell.counters) for cell in result.cells) > 5


def test_a_faults_values_and_counters_are_in_the_table() -> None:
    """A name that is no workload's was a KeyError."""
    fault = Fault(name="gone", fault="fail", after="write")
    cell = compile_scenario(catalog.scenario_path("raid5-parity-last")).base
    asked = cell.model_copy(update={"faults": (fault,)})
    value = Measurement(workload="gone", metric="degraded", unit="1", values=(1.0,))
    counter = MemberCounters(
        workload="gone",
        trial=1,
        serial="disk2",
        reads=3,
        read_bytes=4096,
        writes=5,
        written_bytes=8192,
        flushes=0,
    )
    result = CellResult(
        id="c",
        axes={},
        outcome=Outcome.DONE,
        measurements=(CellMeasurement.of(value, 0.0),),
        counters=(counter,),
    )
    rows = {(r["metric"], r["disk"]): r for r in _figures(result, asked)}
    assert rows["degraded", None]["tool"] == "fail"
    assert rows["disk_written_bytes", "disk2"]["value"] == 8192
    assert rows["disk_reads", None]["value"] == 3


def test_parquet_has_types_and_the_same_rows(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    file, _ = export(run, Form.PARQUET, tmp_path / 'it\'s a "table".parquet', None)
    table = duckdb.read_parquet(str(file))
    kinds = dict(zip(table.columns, map(str, table.types), strict=True))
    assert (kinds["disks.count"], kinds["value"], kinds["cell"]) == ("BIGINT", "DOUBLE", "VARCHAR")
    assert len(table.filter("metric not like 'disk_%' or metric is null").fetchall()) == 13
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_one_cell_can_be_chosen_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    chosen = run.load_run().cells[1].id
    file, _ = export(run, Form.CSV, tmp_path / "one.csv", chosen)
    with file.open(encoding="utf-8", newline="") as lines:
        assert {row["cell"] for row in csv.DictReader(lines)} == {chosen}
    with pytest.raises(InputError, match=f"has no cell 'x' .there are: .*{chosen}"):
        export(run, Form.CSV, tmp_path / "no.csv", "x")


def test_nothing_is_written_over(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    (tmp_path / "mine").write_text("precious")
    for form in (Form.CSV, Form.PARQUET):
        with pytest.raises(InputError, match="mine' exists already"):
            export(run, form, tmp_path / "mine", None)
        with pytest.raises(InputError, match="nowhere' does not exist"):
            export(run, form, tmp_path / "nowhere" / "a", None)
    assert (tmp_path / "mine").read_text() == "precious"
    (tmp_path / "shut").mkdir(mode=0o500)
    if os.geteuid() != 0:
        with pytest.raises(HostError, match="cannot be written"):
            export(run, Form.CSV, tmp_path / "shut" / "a.csv", None)


def test_a_script_is_whole_and_names_no_place_of_this_host(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    chosen = run.load_run().cells[0].id
    (run.directory / "scenario.yaml").write_text("title: as it was\n")
    with pytest.raises(InputError, match="a script is of one cell"):
        export(run, Form.SCRIPT, tmp_path / "b", None)
    files = {f.name for f in export(run, Form.SCRIPT, tmp_path / "b", chosen)}
    assert files >= {
        *("README.txt", "run.sh", "steps.sh", "domain.xml", "scenario.yaml", "cell.json"),
        *("environment.json", "procedure.json", "outcome.json", "result.json", "image.yaml"),
        *("disk-disk1.xml", "disk-disk5.xml", "write.1.stderr.txt"),
    }
    for name in ("run.sh", "steps.sh"):
        checked = subprocess.run(["sh", "-n", str(tmp_path / "b" / name)], check=False)
        assert checked.returncode == 0, name
        text = (tmp_path / "b" / name).read_text()
        assert str(tmp_path) not in text
        assert str(Path.home()) not in text.replace("/root.qcow2", "")
    assert os.access(tmp_path / "b" / "run.sh", os.X_OK)
    assert "mdadm" in (tmp_path / "b" / "steps.sh").read_text()


def scripted(tmp_path: Path) -> tuple[Path, Path, dict[str, str]]:
    """A script, an image, and programs that record their arguments."""
    run = stored_run(tmp_path)
    stored = run.load_run()
    run.save_run(stored.model_copy(update={"environment": {"image": {"kernel": "6.1.0"}}}))
    export(run, Form.SCRIPT, tmp_path / "b", stored.cells[0].id)
    image = tmp_path / "my image"
    image.mkdir()
    for name in ("disk.qcow2", "kernel", "initrd"):
        (image / name).write_text("")
    own = tmp_path / "bin"
    own.mkdir()
    said = f'printf "%s " "${{0##*/}}" "$@" >>{tmp_path}/said; echo >>{tmp_path}/said\n'
    special = {
        "virsh": f'cat "$(echo "$*" | sed "s/.* create //")" >{tmp_path}/xml; exit 9\n',
        "qemu-img": f'shift 5; readlink -f "$1" >{tmp_path}/base; exit 0\n',
        "ssh-keygen": 'for f; do :; done; echo "a b c" >"$f"; echo "a b c" >"$f.pub"\n',
    }
    for name in ("virsh", "ssh-keygen", "xorriso", "qemu-img", "qemu-system-x86_64"):
        path = own / name
        path.write_text(f"#!/bin/sh\n{said}{special.get(name, '')}")
        path.chmod(0o755)
    environment = {"PATH": f"{own}:/usr/bin:/bin", "TMPDIR": str(tmp_path / "t")}
    (tmp_path / "t").mkdir()
    return tmp_path / "b" / "run.sh", image, environment


def test_a_script_runs_with_this_hosts_paths_and_leaves_nothing(tmp_path: Path) -> None:
    script, image, environment = scripted(tmp_path)
    # virsh fails, as on a host without libvirt: the script ends with its status.
    ended = subprocess.run(
        ["sh", str(script), str(image)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 9, ended.stderr
    assert "@" not in (tmp_path / "said").read_text()
    assert (tmp_path / "base").read_text().strip() == f"{image}/disk.qcow2"
    xml = (tmp_path / "xml").read_text()
    assert f"<emulator>{tmp_path}/bin/qemu-system-x86_64</emulator>" in xml
    assert f"<kernel>{tmp_path}/t/tmp." in xml
    assert list((tmp_path / "t").iterdir()) == []


def test_a_script_says_what_is_missing(tmp_path: Path) -> None:
    script, image, environment = scripted(tmp_path)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", str(script), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    assert "the directory of the guest image debian-12" in run().stderr
    (image / "kernel").unlink()
    ended = run(str(image))
    assert ended.returncode == 2
    assert f"there is no 'kernel' in '{image}'" in ended.stderr
    (image / "kernel").write_text("")
    plain = environment["TMPDIR"]
    environment["TMPDIR"] = str(image)
    ended = run(str(image))
    assert ended.returncode == 2
    assert "is no plain path: set TMPDIR" in ended.stderr
    environment["TMPDIR"] = plain
    environment["PATH"] = programs(tmp_path / "few", "dirname", "sh", find=shutil.which)
    ended = run(str(image))
    assert ended.returncode == 3
    assert "qemu-system-x86_64 is not installed" in ended.stderr


def test_a_cell_that_did_not_finish_has_no_script(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    stored = run.load_run().cells[0]
    shutil.rmtree(run.directory / "cells" / stored.id)
    with pytest.raises(InputError, match="has not finished"):
        script_of(run, stored)


def test_a_modelled_disks_server_is_in_the_script(tmp_path: Path) -> None:
    path = tmp_path / "hdd.yaml"
    path.write_text(
        "title: T\nquestion: Q\ndisks: {count: 1, size: 1GiB, model: hdd}\narray: none\n"
        "workloads:\n  - {name: r, tool: dd, if: '{target}', bs: 4KiB, count: 1}\n"
    )
    cell = compile_scenario(path).base
    run = RunStore.create("hdd", path.read_text(), tmp_path)
    stored = StoredCell(id="c", cell=cell, published=True)
    run.save_run(
        StoredRun(
            id=run.id,
            scenario="hdd",
            title="T",
            question="Q",
            started="2025-06-10T12:00:00+00:00",
            environment={"image": {"kernel": None}},
            cells=(stored,),
            claims=(),
        )
    )
    attempt = run.begin_cell("c", cell, Procedure(name="q", steps=()))
    run.finish_cell("c", attempt, StoredOutcome(outcome=Outcome.LOST, reason="it was"))
    files = script_of(run, stored)
    assert "nbdkit-plugin.h" in files["drive/nbdkit_disk.c"]
    assert {"drive/drive.h", "drive/throttle.h"} <= set(files)
    assert "@DIRECTORY@/script/drive/nbdkit_disk.c" in files["steps.sh"]
    # An imported image has its own boot loader.
    assert "kernel" not in files["run.sh"].partition("for file in ")[2].splitlines()[0]
