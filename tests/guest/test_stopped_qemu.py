"""libvirt and a QEMU that is stopped: each call is given up, and QEMU ends without libvirt.

QEMU runs its firmware only, so nothing boots. Each call has a process of its own, as a process can
open but one root.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from .conftest import Home

pytestmark = pytest.mark.guest

PROGRAM = r"""
import json, os, signal, sys, time
from lab.host.system import pids
from lab.compile.guest.steps import qemu_conf
from lab.core.errors import GuestError
from lab.host.system import accelerator
from lab.host.guest import registry as guests
from lab.host.system import wire
from lab.host.guest.backend import LiveBackend

call = sys.argv[1]
record = guests.create(guest=sys.argv[2], scenario="q", image="i", host_key="k")
root = record.path
(root / "etc").mkdir()
(root / "etc" / "qemu.conf").write_text(qemu_conf(as_root=accelerator.is_root()))
disk = root / "disk.raw"
disk.write_bytes(bytes(1 << 20))
xml = (
    "<disk type='file' device='disk'><driver name='qemu' type='raw'/>"
    f"<source file='{disk}'/><target dev='sda' bus='scsi'/><serial>disk1</serial></disk>"
)
bench = LiveBackend(record, "key")
hypervisor = bench._hypervisor
hypervisor.start(
    "<domain type='qemu'><name>lab</name><memory unit='MiB'>64</memory>"
    "<os><type machine='q35'>hvm</type></os><devices>"
    f"<emulator>{accelerator.emulator()}</emulator><controller type='scsi' model='virtio-scsi'/>"
    "<memballoon model='none'/></devices></domain>"
)
pid = hypervisor.pid
if call != "plug":
    hypervisor.plug(xml)
os.environ["LAB_LIMITS"] = "0.05"
os.kill(pid, signal.SIGSTOP)
calls = {
    "save": lambda: hypervisor.save(root / "memory"),
    "plug": lambda: hypervisor.plug(xml),
    "unplug": lambda: hypervisor.unplug(xml, "disk1"),
    "limits": lambda: hypervisor.limits("disk1"),
    "completed": hypervisor.completed,
    "monitor": hypervisor.require_answer,
}
began = time.monotonic()
said = ""
try:
    calls[call]()
except GuestError as error:
    said = error.message
waited = time.monotonic() - began
bench.destroy_guest()
guests.remove(root)
print(json.dumps([said, waited, time.monotonic() - began - waited, pids.started_ticks(pid)]))
wire.leave(0)
"""


CALLS = {
    "save": "gave up after 6 s waiting for libvirt to save the guest gaaaaaa",
    "plug": "gave up after 3 s waiting for libvirt to plug a device into the guest gaaaaaa",
    "completed": "gave up after 2 s waiting for libvirt to read block statistics of the guest",
    "monitor": "gave up after 3 s waiting for libvirt to pass a command to QEMU's monitor of",
}


def test_calls_about_a_stopped_qemu_are_given_up(lab_home: Home) -> None:
    running = {
        call: subprocess.Popen(
            [sys.executable, "-c", PROGRAM, call, f"g{number}aaaaa"],
            env=lab_home.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, call in enumerate(CALLS)
    }
    ended = {call: process.communicate(timeout=120) for call, process in running.items()}
    for number, (call, (stdout, stderr)) in enumerate(ended.items()):
        assert running[call].returncode == 0, (call, stderr)
        said, waited, cleaned, alive = json.loads(stdout.splitlines()[-1])
        assert said.startswith(CALLS[call].replace("gaaaaaa", f"g{number}aaaaa")), (call, said)
        assert waited < 20, call
        assert cleaned < 30, call
        assert alive == 0, call
    assert lab_home.left() == []
