"""md's files in sysfs: each is read back as the kernel prints it, by a shell."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from lab.compile.cell.procedure import cell_procedure
from lab.compile.scenario.compiler import compile_scenario
from lab.core.errors import InputError
from lab.core.yaml import parse_override
from lab.md.facts.sysfs import ACTIONS, CHOICES, FORMS, OWNED, READ_ONLY, Form, printed, read_lines
from lab.model.execution.procedure import Verify

PRINTED = {
    # File, what is written, and what its show function prints then.
    ("safe_mode_delay", "0.2"): "0.200\n",
    ("safe_mode_delay", "5"): "5.000\n",
    ("reshape_direction", "backwards"): "backwards\n",
    ("max_read_errors", "20"): "20\n",
    ("fail_last_dev", "on"): "1\n",
    ("fail_last_dev", "n"): "0\n",
    ("serialize_policy", "1"): "1\n",
    ("bitmap_type", "bitmap"): "none [bitmap] llbitmap \n",
    ("bitmap_type", "none"): "[none] bitmap llbitmap \n",
    ("bitmap_type", "llbitmap"): "none bitmap [llbitmap] \n",
    ("logical_block_size", "4096"): "4096\n",
    ("sync_min", "0"): "0\n",
    ("sync_max", "max"): "max\n",
    ("sync_max", "0800"): "800\n",
    ("sync_speed_min", "1000"): "1000 (local)\n",
    ("sync_speed_max", "200000"): "200000 (local)\n",
    ("sync_io_depth", "32"): "32 (local)\n",
    ("sync_force_parallel", "1"): "1\n",
    ("stripe_cache_size", "4096"): "4096\n",
    ("preread_bypass_threshold", "0"): "0\n",
    ("group_thread_cnt", "2"): "2\n",
    ("rmw_level", "2"): "2\n",
    ("skip_copy", "1"): "1\n",
    ("stripe_size", "4096"): "4096\n",
    ("journal_mode", "write-through"): "[write-through] write-back\n",
    ("journal_mode", "write-back"): "write-through [write-back]\n",
    ("ppl_write_hint", "3"): "3\n",
    ("bitmap/space", "64"): "64\n",
    ("bitmap/time_base", "5"): "5\n",
    ("bitmap/time_base", "0.2"): "0.200\n",
    ("bitmap/metadata", "internal"): "internal\n",
    ("bitmap/can_clear", "true"): "true\n",
    ("llbitmap/daemon_sleep", "5"): "5\n",
    ("llbitmap/barrier_idle", "30"): "30\n",
    ("a_newer_file", "fast"): "slow [fast]\n",
    ("a_newer_file", "slow"): "slow\n",
}


def shown(directory: Path, key: str, text: str) -> str:
    """What the verification reads of a file with this text."""
    path = directory / key
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    script = f"set -eu\nmd={directory}\n{read_lines(key)}"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize(("key", "value"), PRINTED)
def test_a_setting_is_read_back_as_it_was_written(tmp_path: Path, key: str, value: str) -> None:
    text = PRINTED[key, value]
    assert shown(tmp_path, key, text) == f"sysfs.{key}={printed(key, value)}\n"


@pytest.mark.parametrize("key", CHOICES)
def test_another_choice_is_seen(tmp_path: Path, key: str) -> None:
    for chosen in CHOICES[key]:
        text = " ".join(f"[{word}]" if word == chosen else word for word in CHOICES[key])
        found = shown(tmp_path, key, f"{text}\n")
        equal = [word for word in CHOICES[key] if found == f"sysfs.{key}={printed(key, word)}\n"]
        assert equal == [chosen]


def test_every_file_of_md_is_known() -> None:
    """Those of Linux 6.1 to 7.x: settings have a form, and the others a reason."""
    assert {key for key, _ in PRINTED} - {"a_newer_file"} == FORMS.keys()
    kinds = [set(FORMS), set(OWNED), set(ACTIONS), set(READ_ONLY)]
    assert sum(map(len, kinds)) == len(set().union(*kinds))
    assert {key for key, form in FORMS.items() if form is Form.CHOICE} == CHOICES.keys()


SCENARIO = """\
title: A write journal
question: Is its mode set?
disks: {count: 5, size: 1GiB}
array: {level: 5, component_size: 64MiB, journal_disk: 5}
workloads: [{name: write, tool: dd, of: '{target}', bs: 1MiB, count: 8}]
"""


@pytest.mark.parametrize(
    ("sets", "key"),
    [
        (["array.sysfs.journal_mode=write-back"], ""),
        (["array.sysfs.journal_mode=writeback"], "journal_mode"),
        (["array.sysfs.journal_mode=write-back", "array.journal_disk=null"], "journal_mode"),
        (["array.sysfs.mismatch_cnt=1"], "mismatch_cnt"),
        (["array.sysfs.suspend_hi=1"], "suspend_hi"),
        (["array.sysfs.bitmap_type=lockless"], "bitmap_type"),
        (["array.sysfs.ppl_write_hint=1"], "ppl_write_hint"),
    ],
)
def test_what_md_would_refuse_is_an_error_of_the_check(
    tmp_path: Path, sets: list[str], key: str
) -> None:
    path = tmp_path / "journal.yaml"
    path.write_text(SCENARIO)
    overrides = [parse_override(one) for one in sets]
    if key:
        with pytest.raises(InputError, match=re.escape(f"array.sysfs.{key}")):
            compile_scenario(path, overrides=overrides)
        return
    (cell,) = compile_scenario(path, overrides=overrides).cells
    steps = cell_procedure(cell, "/g").steps
    (step,) = [s for s in steps if isinstance(s, Verify) and s.name == "array"]
    assert step.expect["sysfs.journal_mode"] == "write-back"
    assert read_lines("journal_mode") in step.script
