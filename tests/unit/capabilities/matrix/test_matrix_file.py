"""Matrix files: each job compiles like a scenario, each error names its place."""

from __future__ import annotations

import time
from datetime import date
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from jsonschema import Draft202012Validator

from lab.capabilities.matrix.file import CompiledMatrix, compile_matrix, matrix_schema
from lab.capabilities.matrix.jobs import host_of, plan_of
from lab.capabilities.matrix.model import JobState
from lab.cli import capabilities
from lab.compile.scenario.compiler import compile_scenario
from lab.compile.scenario.identity import cell_id
from lab.core.errors import InputError
from lab.core.yaml import parse_override, read_file, read_text
from lab.model.scenario.document import AutoTrials, DiskBus
from lab.plugins import catalog
from tests.fakes import SCENARIO, Cli, with_matrix
from tests.speed import reference, scale

REPORT = ("--report", "site") if "site" in capabilities.names() else ()

CLAIM = """claims:
  - id: ONE
    says: It writes something
    expect: {kind: bound, value: {workload: write}, at_least: 1MB/s}
"""
MATRIX = """title: Every night
scenarios:
  - q.yaml
  - {name: r.yaml, set: {array.chunk: 128KiB}, trials: 2}
images: [debian-12, {image: debian-13, set: {guest.memory: 768MiB}}]
"""


def compiled(tmp_path: Path, text: str = MATRIX, **scenarios: str) -> CompiledMatrix:
    for name in ("q", "r"):
        (tmp_path / f"{name}.yaml").write_text(scenarios.get(name, SCENARIO + CLAIM))
    path = tmp_path / "m.yaml"
    path.write_text(text)
    return compile_matrix(path)


def refused(tmp_path: Path, text: str) -> str:
    with pytest.raises(InputError) as error:
        compiled(tmp_path, text)
    return str(error.value)


def ids(found: CompiledMatrix) -> list[str]:
    return [job.id for job in found.jobs]


def test_parts_are_the_product_and_each_is_what_set_would_have_made(tmp_path: Path) -> None:
    found = compiled(tmp_path)
    assert ids(found) == ["q@debian-12", "q@debian-13", "r@debian-12", "r@debian-13"]
    last = found.jobs[-1]
    texts = ["array.chunk=128KiB", "guest.memory=768MiB", "guest.image=debian-13"]
    assert [o.text for o in last.overrides] == texts
    by_hand = compile_scenario(
        tmp_path / "r.yaml", overrides=[parse_override(t) for t in texts], trials=2
    )
    assert last.compiled is not None
    assert last.cells == by_hand.cells
    assert [cell_id(c) for c in last.cells] == [cell_id(c) for c in by_hand.cells]
    assert last.compiled.base == by_hand.base
    assert last.compiled.published == by_hand.published
    assert last.compiled.scenario == by_hand.scenario


@pytest.mark.parametrize("given", ["auto", "{auto: true, most: 6}", "3"])
def test_trials_are_a_number_or_auto(tmp_path: Path, given: str) -> None:
    text = (
        f"title: T\nscenarios: [{{name: q.yaml, trials: {given}, set: {{guest.clock: virtual}}}}]\n"
    )
    (job,) = compiled(tmp_path, text + "images: [debian-12]\n", q=SCENARIO).jobs
    assert job.compiled is not None, job.broken
    found = job.compiled.scenario.trials
    most = 6 if "most" in given else 32
    assert found == (3 if given == "3" else AutoTrials(most=most))


def test_a_warning_about_a_scenario_is_printed_once(cli: Cli) -> None:
    modelled = SCENARIO.replace(
        "throttle:\n    total_bytes_per_second: 5MiB\n", "model: hdd\n  hdd:\n    slower: 1\n"
    )
    cli.file(modelled, "q.yaml")
    matrix = cli.file("title: T\nscenarios: [q.yaml]\nimages: [debian-12, debian-13]\n", "m.yaml")
    for command in (("matrix", "check"), ("run", "matrix", "--plan")):
        ended = cli(*command, matrix)
        assert ended.stderr.count("disks.hdd.slower: a drive has its own speed") == 1


def test_a_clock_for_all_jobs_goes_over_what_the_file_sets(tmp_path: Path) -> None:
    real = compiled(tmp_path, MATRIX + "set: {guest.clock: real}\n")  # writes the files too
    found = compile_matrix(tmp_path / "m.yaml", clock="virtual")
    assert ids(found) == ids(real)
    last = found.jobs[-1]
    assert last.compiled is not None, last.broken
    by_hand = compile_scenario(
        tmp_path / "r.yaml", overrides=[parse_override(o.text) for o in last.overrides], trials=2
    )
    assert "guest.clock=virtual" in [o.text for o in last.overrides]
    assert last.cells == by_hand.cells  # disks too: their bus depends on the clock
    assert {d.bus for cell in last.cells for d in cell.disks} == {DiskBus.LAB}
    with pytest.raises(InputError, match="--clock half"):
        compile_matrix(tmp_path / "m.yaml", clock="half")


def test_a_guest_that_cannot_be_is_refused_with_its_place(tmp_path: Path) -> None:
    found = compiled(tmp_path, MATRIX.replace("768MiB", "1MiB"))
    assert (
        "--set guest.memory=1MiB: guest.memory: 1MiB is too little: a Debian guest needs"
        in found.jobs[1].broken
    )
    assert [bool(p.broken) for p in found.jobs] == [False, True, False, True]


def test_kernels_includes_and_excludes(tmp_path: Path) -> None:
    found = compiled(
        tmp_path,
        MATRIX
        + """kernels: [null, {kernel: linux-image-rt-amd64, set: {guest.cpus: 2}}]
exclude:
  - {scenario: r.yaml, image: debian-12, reason: it takes too long}
  - {kernel: linux-image-rt-amd64, image: debian-13, reason: it has none}
include:
  - {scenario: r.yaml, image: debian-sid, set: {disks.count: 5}}
""",
    )
    assert ids(found) == [
        "q@debian-12",
        "q@debian-12+linux-image-rt-amd64",
        "q@debian-13",
        "r@debian-13",
        "r@debian-sid",
    ]
    real_time = found.jobs[1].cells[0].guest
    assert (real_time.kernel, real_time.cpus) == ("linux-image-rt-amd64", 2)
    assert len(found.jobs[-1].cells[0].each_disk) == 5
    assert found.jobs[-1].cells[0].array.chunk == 128 * 1024  # type: ignore[union-attr]


def test_an_axis_over_images_gives_way_to_the_matrix(tmp_path: Path) -> None:
    text = with_matrix("  guest.image: [debian-12, debian-13]\n  array.chunk: [64KiB, 128KiB]\n")
    found = compiled(tmp_path, q=text)
    assert {c.guest.image for c in found.jobs[1].cells} == {"debian-13"}
    assert len(found.jobs[1].cells) == 2


def test_a_broken_scenario_breaks_its_own_parts_only(tmp_path: Path) -> None:
    found = compiled(tmp_path, q=SCENARIO.replace("level: 5", "level: 55"))
    assert [bool(p.broken) for p in found.jobs] == [True, True, False, False]
    assert "q.yaml:9: array.level" in found.jobs[0].broken
    assert compiled(tmp_path, MATRIX.replace("q.yaml", "gone.yaml")).jobs[0].broken


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("images:", "image:"), "m.yaml:5: image: unknown key 'image': did you mean 'images'?"),
        (("chunk: 128KiB", "chunk x: 1"), "'array.chunk x' is not a dotted name"),
        (("array.chunk", "guest.image"), "remove 'guest.image': use `images` and `kernels`"),
        (("debian-12", "Debian 12"), "m.yaml:5: images"),
        (("images:", "kernels: [bzImage]\nimages:"), "m.yaml:5: kernels[0]: 'bzImage' is not"),
        (("images:", "kernels: []\nimages:"), "m.yaml:5: kernels"),
        (("trials: 2", "trials: 0"), "m.yaml:4: scenarios[1].trials"),
        (
            ("title:", "exclude: [{image: debian-7, reason: old}]\ntitle:"),
            "the matrix has no image 'debian-7': did you mean 'debian-13'?",
        ),
        (
            ("title:", "exclude: [{reason: all}]\ntitle:"),
            "it matches nothing: give scenario, image or kernel",
        ),
        (
            (
                "title:",
                "exclude: [{scenario: q.yaml, reason: x}, {scenario: r.yaml, reason: x}]\ntitle:",
            ),
            "m.yaml:1: exclude: every job is excluded",
        ),
        (
            ("title:", "expected: [{claims: [TWO], reason: x, until: 2030-01-01}]\ntitle:"),
            "m.yaml:1: expected[0].claims: no scenario of this matrix has the claim 'TWO'",
        ),
        (
            ("title:", "expected: [{claims: [ONE], reason: x, until: soon}]\ntitle:"),
            "m.yaml:1: expected[0].until",
        ),
        (
            ("title:", "expected: [{claims: [ONE], reason: x}]\ntitle:"),
            "expected[0].until: this key is missing: expected a date such as",
        ),
        (
            (
                "title:",
                "expected: [{claims: [ONE], kernel: new, reason: x, until: 2030-01-01}]\ntitle:",
            ),
            "expected[0].kernel: 'new' is not a range of versions",
        ),
        (
            (
                "title:",
                "expected: [{claims: [ONE], scenario: z, reason: x, until: 2030-01-01}]\ntitle:",
            ),
            "'z' is no scenario of this matrix: it has q, r",
        ),
    ],
)
def test_a_mistake_is_named_with_its_place(
    tmp_path: Path, change: tuple[str, str], sentence: str
) -> None:
    assert sentence in refused(tmp_path, MATRIX.replace(*change, 1))


def test_a_date_is_a_date(tmp_path: Path) -> None:
    text = MATRIX + "expected: [{claims: [ONE], reason: x, until: 2030-01-01}]\n"
    assert compiled(tmp_path, text).matrix.expected[0].until == date(2030, 1, 1)


def test_scenarios_and_matrices_are_told_apart(cli: Cli) -> None:
    cli.file(SCENARIO, "q.yaml")
    cli.file(SCENARIO, "r.yaml")
    cli.file(MATRIX, "m.yaml")
    ended = cli("scenario", "check", "m.yaml")
    assert ended.status == 2
    assert "m.yaml:2: scenarios: this is a matrix of scenarios" in ended.stderr
    assert "lab run matrix m.yaml" in ended.stderr
    ended = cli("matrix", "check", "q.yaml")
    assert ended.status == 2
    assert "q.yaml: this is a scenario" in ended.stderr
    assert "lab run scenario q.yaml" in ended.stderr
    assert "there is no matrix 'nightlx'" in cli("run", "matrix", "nightlx").stderr


def test_the_matrix_that_comes_with_the_lab_is_right(cli: Cli) -> None:
    assert "nightly" in catalog.matrices()
    assert cli("matrix", "check", "nightly").status == 0
    listed = cli("matrix", "list", "--json").json
    assert listed["broken"] == []
    assert [m["name"] for m in listed["matrices"]] == sorted(catalog.matrices())


def test_a_plan_says_what_it_takes_and_leaves_nothing_behind(cli: Cli) -> None:
    cli.file(SCENARIO + CLAIM, "q.yaml")
    cli.file(SCENARIO + CLAIM, "r.yaml")
    cli.file(MATRIX, "m.yaml")
    ended = cli("run", "matrix", "m.yaml", "--plan")
    assert ended.status == 0, ended.stderr
    assert "q@debian-12" in ended.stdout
    assert "4 jobs, 4 cells: about " in " ".join(ended.stdout.split())
    assert "the image 'debian-13' is not built yet" in " ".join(ended.stdout.split())
    plan = cli("run", "matrix", "m.yaml", "--plan", "--shard", "2/4", "--json").json
    assert len(plan["parts"]) == 1
    assert plan["parts"][0]["memory"] > 768 * 1024**2
    assert not (cli.home / "data" / "nights").exists()
    assert cli("run", "matrix", "m.yaml", "--shard", "3/2").status == 2
    assert "--budget: 'x' is not a time" in cli("run", "matrix", "m.yaml", "--budget", "x").stderr
    ended = cli("run", "matrix", "m.yaml", "--junit", "no/where.xml")
    assert (ended.status, "there is no directory" in ended.stderr) == (2, True)
    cli.file("no directory", "taken")
    for name in ("taken", "taken/site") if REPORT else ():
        ended = cli("run", "matrix", "m.yaml", "--report", name)
        assert (ended.status, "is a file, and a directory is needed" in ended.stderr) == (2, True)


def test_a_part_that_cannot_be_run_is_planned_as_such(cli: Cli) -> None:
    cli.file(SCENARIO, "q.yaml")
    cli.file(SCENARIO.replace("layout: left-symmetric", "layout: sideways"), "r.yaml")
    kernels = "kernels: [null, ./there-is-none]\n"
    cli.file(MATRIX.replace("q.yaml", "{name: q.yaml, set: {disks.count: 5}}") + kernels, "m.yaml")
    plan = cli("run", "matrix", "m.yaml", "--plan", "--budget", "1h", "--json").json
    parts = {p["id"]: p for p in plan["parts"]}
    assert len(parts) == 8
    assert parts["q@debian-12"]["state"] == "waiting"
    assert "array.layout" in parts["r@debian-13"]["reason"]
    assert "Cannot be run: r@debian-12: " in cli("run", "matrix", "m.yaml", "--plan").stdout
    assert cli("matrix", "check", "m.yaml").status == 2


def test_a_matrix_that_can_run_nothing_says_so_everywhere(cli: Cli) -> None:
    cli.file(SCENARIO + CLAIM, "q.yaml")
    cli.file(SCENARIO + CLAIM, "r.yaml")
    cli.file(MATRIX.replace("debian-1", "nowhere-1"), "m.yaml")
    asked = ("run", "matrix", "m.yaml", "--junit", "junit.xml", *REPORT)
    ended = cli(*asked)
    assert ended.status == 3
    assert "0 of 4 jobs done, 4 broken" in ended.stdout
    assert "there is no image 'nowhere-12'" in " ".join(ended.stderr.split())
    assert ("there is no run to report on" in ended.stderr) is bool(REPORT)
    document = ET.parse(cli.base / "junit.xml").getroot()
    assert (document.get("tests"), document.get("errors")) == ("4", "4")
    told = cli(*asked, "--json").json
    assert told["schema"] == "lab.matrix/1"
    assert {p["part"]["state"] for p in told["parts"]} == {"broken"}
    nights = sorted((cli.home / "data" / "nights").iterdir())
    assert len(nights) == 2
    assert (nights[0] / "matrix.yaml").read_text() == (cli.base / "m.yaml").read_text()
    again = cli("run", "matrix", "m.yaml", "--resume", "m")
    assert (again.status, "4 broken" in again.stdout) == (3, True)
    assert len(list((cli.home / "data" / "nights").iterdir())) == 2
    wrong = cli("run", "matrix", "m.yaml", "--resume", "last", "--budget", "1h")
    assert (wrong.status, "leave out --shard, --budget" in wrong.stderr) == (2, True)


def test_a_small_budget_names_what_it_leaves_out(cli: Cli) -> None:
    cli.file(SCENARIO + CLAIM, "q.yaml")
    cli.file(SCENARIO + CLAIM, "r.yaml")
    cli.file(MATRIX, "m.yaml")
    plan = cli("run", "matrix", "m.yaml", "--plan", "--budget", "200s", "--json").json
    waiting = [p for p in plan["parts"] if p["state"] == "waiting"]
    left = [p for p in plan["parts"] if p["state"] == "left out"]
    assert len(waiting) + len(left) == 4
    assert waiting
    assert left
    assert sum(p["seconds"] for p in waiting) <= 200
    assert "Left out: " in cli("run", "matrix", "m.yaml", "--plan", "--budget", "200s").stdout


CELLS = 10_000


def test_ten_thousand_cells_are_planned_in_two_seconds(
    tmp_path: Path, lab_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read, expand, check, estimate, shard and order."""
    counts = ", ".join(str(n) for n in range(1, 251))
    text = with_matrix(f"  workloads.write.count: [{counts}]\n  array.chunk: [64KiB, 128KiB]\n")
    images = ", ".join(f"{{image: debian-12, set: {{guest.cpus: {n}}}}}" for n in range(1, 11))
    matrix = f"title: Many\nscenarios: [q.yaml, r.yaml]\nimages: [{images}]\n"
    host = host_of(None)
    compiled(tmp_path)  # imports happen only once
    plan_of(compiled(tmp_path), host, runs=())
    began = time.process_time()
    found = compiled(tmp_path, matrix, q=text, r=text)
    assert sum(len(job.cells) for job in found.jobs) == CELLS
    plan = plan_of(found, host, shard="1/2", budget=1e9, runs=())
    took = (time.process_time() - began) * scale(reference())
    assert sum(p.cells for p in plan.jobs if p.state is JobState.WAITING) == CELLS // 2
    assert took < 2


def test_the_schema_takes_what_the_lab_takes() -> None:
    schema = Draft202012Validator(matrix_schema())
    shipped = read_file(catalog.matrix_path("nightly")).data
    kernels = MATRIX + "kernels: [null, {kernel: ./bzImage, set: {guest.cpus: 2}}]\n"
    for data in (shipped, read_text(MATRIX, source="m").data, read_text(kernels, source="m").data):
        assert list(schema.iter_errors(data)) == []
        assert list(schema.iter_errors({**data, "images": []})) != []
        assert list(schema.iter_errors({**data, "imagse": ["debian-12"]})) != []
