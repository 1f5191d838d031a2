"""QEMU's throttle groups, through libvirt: a disk that is written to without limits returns to its
group. QEMU runs without an operating system."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lab.compile.guest.steps import qemu_conf
from lab.host.system import accelerator

pytest.importorskip("libvirt")

DISK = """<disk type='file' device='disk'><driver name='qemu' type='raw'/>
<source file='{file}'/><target dev='vd{letter}' bus='virtio'/><serial>{serial}</serial>
<iotune><total_bytes_sec>1000000</total_bytes_sec><total_iops_sec>100</total_iops_sec>
<size_iops_sec>4096</size_iops_sec><group_name>cable</group_name></iotune></disk>"""
DOMAIN = """<domain type='qemu'><name>lab</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type></os><devices>{disks}</devices></domain>"""
PROGRAM = """
import json, sys
from pathlib import Path
from lab.host.guest.libvirt.hypervisor import Hypervisor
root = Path(sys.argv[1])
hypervisor = Hypervisor(root)
found = {}
def look(name):
    asked = hypervisor._domain.monitor(json.dumps({"execute": "query-block"}), 0)
    inserted = [entry["inserted"] for entry in json.loads(asked)["return"] if "inserted" in entry]
    found[name] = [[i["bps"], i["iops"], i.get("iops_size"), i.get("group")] for i in inserted]
hypervisor.start((root / "domain.xml").read_text())
try:
    look("start")
    hypervisor.spoil("a1", 4096, 4096, 0xA5)
    look("spoiled")
    hypervisor.wipe("a2", 8 << 20)
    look("wiped")
    hypervisor.limit("a1", {"read_bytes_sec": 500000})
    found["limited"] = {k: v for k, v in hypervisor.limits("a1").items() if v}
    found["file"] = hypervisor.file_of("a1")
finally:
    hypervisor.destroy()
    hypervisor.close()
print(json.dumps(found))
"""


def test_a_disk_of_a_group_is_still_of_it_when_it_was_written_to(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/qemu.conf").write_text(qemu_conf(as_root=accelerator.is_root()))
    disks = ""
    for letter in "ab":
        file = tmp_path / f"{letter}.raw"
        file.write_bytes(b"\1" * (8 << 20))
        disks += DISK.format(file=file, letter=letter, serial=f"a{'ab'.index(letter) + 1}")
    (tmp_path / "domain.xml").write_text(DOMAIN.format(disks=disks))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    both = [[1000000, 100, 4096, "cable"]] * 2
    assert found["start"] == found["spoiled"] == found["wiped"] == both
    assert found["limited"] == {"read_bytes_sec": 500000, "group_name": "cable"}
    assert found["file"] == [str(tmp_path / "a.raw"), "raw"]
    data = (tmp_path / "a.raw").read_bytes()
    assert data == b"\1" * 4096 + b"\xa5" * 4096 + b"\1" * ((8 << 20) - 8192)
    assert not any((tmp_path / "b.raw").read_bytes())
