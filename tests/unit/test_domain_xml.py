"""A guest's XML has the given values and no outside access, and libvirt's own parser accepts it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from drive import sealed
from lab.compile.guest.domain_xml import QEMU_NAMESPACE, Machine, Virtual, domain_xml

MACHINE = Machine(
    accelerator="tcg",
    emulator="/usr/bin/qemu-system-x86_64",
    machine_type="pc",
    cpus=2,
    memory=512 * 1024**2,
    root_disk="/g/root.qcow2",
    seed="/g/seed.iso",
    console="/g/console.log",
    kernel="/i/kernel",
    initrd="/i/initrd",
    kernel_arguments=("root=LABEL=root", "ro", "odd=<&\"'>"),
)


def tree(**more: object) -> ET.Element:
    return ET.fromstring(domain_xml(replace(MACHINE, **more)))  # type: ignore[arg-type]


def test_the_machine_is_the_one_that_was_asked_for() -> None:
    root = tree()
    assert root.findtext("memory") == "524288"
    assert root.findtext("vcpu") == "2"
    assert root.findtext("os/cmdline") == "root=LABEL=root ro odd=<&\"'>"
    assert root.findtext("os/kernel") == "/i/kernel"
    assert [d.findtext("serial") for d in root.iter("disk")] == [None, None]
    assert {c.get("index") for c in root.iter("controller") if c.get("model") == "pci-bridge"} == {
        *("1", "2", "3")
    }


def test_tcg_and_kvm_differ_in_type_and_processor() -> None:
    tcg, kvm = tree(), tree(accelerator="kvm")
    assert (tcg.get("type"), kvm.get("type")) == ("qemu", "kvm")
    assert tcg.findtext("cpu/model") == "qemu64"
    assert kvm.find("cpu").get("mode") == "host-passthrough"  # type: ignore[union-attr]
    assert tcg.findtext("features/tcg/tb-cache") == "256"
    assert kvm.find("features/tcg") is None


def test_an_image_without_a_kernel_boots_from_its_disk() -> None:
    root = tree(kernel=None, initrd=None)
    assert root.find("os/boot").get("dev") == "hd"  # type: ignore[union-attr]
    assert root.find("os/cmdline") is None


def test_the_network_reaches_nothing_and_is_reached_on_loopback_only() -> None:
    arguments = [a.get("value") or "" for a in tree().iter(f"{{{QEMU_NAMESPACE}}}arg")]
    netdev = arguments[arguments.index("-netdev") + 1]
    assert "restrict=on" in netdev.split(",")
    forwards = [w for w in netdev.split(",") if w.startswith("hostfwd=")]
    assert forwards == ["hostfwd=tcp:127.0.0.1:0-:22"]
    assert list(tree().iter("interface")) == []


@pytest.mark.parametrize("accelerator", ["tcg", "kvm"])
def test_libvirt_is_spared_a_question_for_each_feature_of_the_processor(accelerator: str) -> None:
    names = f"{{{QEMU_NAMESPACE}}}"
    root = tree(accelerator=accelerator)
    assert list(root.find("cpu").iter("feature")) == []  # type: ignore[union-attr]
    (without,) = root.iterfind(f"{names}capabilities/{names}del")
    assert without.get("capability") == "cpu-unavailable-features"


def test_a_guest_that_ends_is_gone() -> None:
    root = tree()
    ends = [root.findtext(f"on_{e}") for e in ("poweroff", "reboot", "crash")]
    assert ends == ["destroy"] * 3


VIRTUAL = Virtual(
    start=sealed.START,
    arguments=tuple(sealed.unsealed("/g/region", "/s/base", 3 << 30, "/g/qmp")),
)


def test_a_guest_with_virtual_time_has_the_drivers_disks_and_a_clock_of_its_own() -> None:
    root = tree(virtual=VIRTUAL, cpus=1)
    assert [d.find("source").get("file") for d in root.iter("disk")] == [  # type: ignore[union-attr]
        "/g/seed.iso"
    ]
    assert list(root.iter("rng")) == []  # it would reply in host time
    clock = root.find("clock")
    assert clock is not None
    assert (clock.get("offset"), clock.get("start")) == ("absolute", "1767225600")
    assert {(t.get("name"), t.get("track"), t.get("present")) for t in clock} == {
        ("rtc", "guest", None),
        ("hpet", None, "no"),
    }
    words = [a.get("value") or "" for a in root.iter(f"{{{QEMU_NAMESPACE}}}arg")]
    assert words[words.index("-icount") + 1] == "shift=0,sleep=off"
    assert words[words.index("-cpu") + 1] == sealed.CPU
    assert "ipv6=off" in words[words.index("-netdev") + 1].split(",")
    assert f"memory-backend-file,id=region,mem-path=/g/region,size={80 << 30},share=on" in words
    assert "nvdimm,id=nv-base,memdev=base,addr=0x1500000000,unarmed=on" in words  # 4 + 80 GiB
    assert "-icount" not in domain_xml(MACHINE)


LIBVIRT = """
import sys, libvirt
libvirt.registerErrorHandler(lambda c, e: None, None)
connection = libvirt.open("test:///default")
try:
    connection.defineXML(sys.stdin.read())
except libvirt.libvirtError as error:
    sys.exit(str(error))
"""


def refusal(xml: str, directory: Path) -> str:
    """Return the error of libvirt's parser; the test driver has no QEMU and no pc machine."""
    done = subprocess.run(
        [sys.executable, "-c", LIBVIRT],
        input=xml.replace('type="qemu"', 'type="test"').replace(' machine="pc"', ""),
        capture_output=True,
        text=True,
        cwd=directory,
        check=False,
    )
    return done.stderr.strip()


def test_libvirts_own_parser_takes_it(tmp_path: Path) -> None:
    pytest.importorskip("libvirt")
    xml = domain_xml(MACHINE)
    good = refusal(xml, tmp_path) + refusal(domain_xml(replace(MACHINE, virtual=VIRTUAL)), tmp_path)
    bad = refusal(xml.replace("<vcpu>2<", "<vcpu>two<"), tmp_path)
    assert "vcpu" in bad
    assert good == ""
