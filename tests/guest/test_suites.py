"""Suites with the interfaces of mdadm's and of blktests, from the host's directory to verdicts."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.suites import blktests_suite, mdadm_suite

from .conftest import Home

pytestmark = pytest.mark.guest

SCENARIO = """\
title: Two suites
question: What becomes of their tests?
guest: {image: debian-12, cpus: 1, memory: 512MiB}
disks: {count: 2, size: 256MiB, model: none}
array: none
workloads:
  - {name: mdadm, tool: mdadm_tests, directory: mdadm, tests: ['0*'], limit: 5s}
  - {name: blk, tool: blktests, directory: blktests, limit: 60s}
claims:
  - id: ends
    says: all end
    expect: {kind: bound, value: {workload: mdadm, metric: unfinished}, at_most: 0}
"""
MDADM = {
    "00disk": "[ $(findmnt -n -o SOURCE /var/tmp) = $(readlink -f /dev/disk/by-id/virtio-disk1) ]",
    "01mdadm": "./mdadm --version",
    "02bad": "echo md: planted > /dev/kmsg\n"
    "echo -e '\\n\\tERROR: active raid5 not found \\n'\nexit 2",
    "03skips": "echo -e '\\n\\tSKIPPING, REASON: no such kernel \\n'\nexit 3",
    "04hangs": "sleep 1000",
    "05after": ":",
}
BLKTESTS = {
    "001": "test_it() { [ -b ${TEST_DEVS[0]} ] && [ -b ${TEST_DEVS[1]} ] && echo good; }",
    "002": "test_it() { echo bad; }",
    "003": "requires() { SKIP='driver brd is not available'; }",
}


def test_tests_of_suites_are_claims_of_a_run(lab_home: Home, image: str, tmp_path: Path) -> None:
    mdadm_suite(tmp_path / "mdadm", MDADM)
    blktests_suite(tmp_path / "blktests", BLKTESTS)
    path = tmp_path / "two.yaml"
    path.write_text(SCENARIO)
    xml = tmp_path / "j.xml"
    done = lab_home.run("run", "scenario", str(path), "--junit", str(xml), "--verbose")
    assert done.returncode == 1, done.stderr
    assert not lab_home.left()
    begun = re.findall(r"  test (\S+), (\d) of (\d)$", done.stderr, re.MULTILINE)
    assert begun[:6] == [(name, str(n), "6") for n, name in enumerate(MDADM, 1)]
    assert begun[6:] == [(f"md/{name}", str(n), "3") for n, name in enumerate(BLKTESTS, 1)]
    found = lab_home.json("results", "show", "last")
    assert {c["id"]: (c["verdict"], c["reason"]) for c in found["claims"]} == {
        "ends": ("refuted", "1 was measured"),
        "mdadm.00disk": ("holds", "it passed"),
        "mdadm.01mdadm": ("holds", "it passed"),
        "mdadm.02bad": ("refuted", "active raid5 not found"),
        "mdadm.03skips": ("not_tested", "no such kernel"),
        "mdadm.04hangs": ("inconclusive", "it did not end within 5 seconds and was ended"),
        "mdadm.05after": ("holds", "it passed"),
        "blk.md/001": ("holds", "it passed"),
        "blk.md/002": ("refuted", "its output differs: -good"),
        "blk.md/003": ("not_tested", "driver brd is not available"),
    }
    assert [c["outcome"] for c in found["cells"]] == ["done"]
    cases = list(ET.parse(xml).getroot().iter("testcase"))
    failed = {case.get("name") for case in cases if case.find("failure") is not None}
    assert failed == {"ends: all end", "mdadm.02bad: 02bad passes", "blk.md/002: md/002 passes"}
    out = {case.get("name"): case.findtext("system-out", "") for case in cases}
    assert "md: planted" in out["mdadm.02bad: 02bad passes"]  # the kernel's, of that time
    assert "## saved of 02bad" in out["mdadm.02bad: 02bad passes"]
    assert "md: planted" not in out["mdadm.04hangs: 04hangs passes"]
    assert "sleep 1000" in out["mdadm.04hangs: 04hangs passes"]
