"""A plan is a script: pasted whole, it boots, builds and measures."""

from __future__ import annotations

import subprocess

import pytest

from .conftest import Home

pytestmark = pytest.mark.guest

SMALL = (
    *("--set", "matrix={}", "--set", "disks.count=3", "--set", "disks.size=256MiB"),
    *("--set", "array.component_size=64MiB"),
    *("--set", "disks.throttle.total_bytes_per_second=50MiB"),
    "--set",
    "workloads=[{name: write, tool: dd, if: /dev/urandom, of: '{target}', bs: 1MiB, count: 16,"
    " oflag: direct, iflag: fullblock}]",
)


@pytest.mark.slow
def test_what_plan_prints_can_be_pasted(lab_home: Home, image: str) -> None:
    planned = lab_home.run("scenario", "plan", "raid5-parity-last", *SMALL)
    assert planned.returncode == 0, planned.stderr
    assert "PRIVATE KEY" not in planned.stdout
    done = subprocess.run(
        ["bash", "-e"],
        input=planned.stdout,
        env=lab_home.environment,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    assert "16777216 bytes (17 MB, 16 MiB) copied" in done.stderr
    for line in ("level=raid5", "layout=5", "chunk_size=524288", "raid_disks=3"):
        assert line in done.stdout.splitlines()
    assert lab_home.left() == []
