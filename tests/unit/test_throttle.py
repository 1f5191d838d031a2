"""Disk models: QEMU's rules for limits, the disk's file, and XML that libvirt accepts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.model.scenario.document import Disk, Throttle
from lab.plugins import catalog
from lab.plugins.disks._drives import guest_path, target_name
from lab.plugins.disks.none import DISK as NONE
from lab.plugins.disks.throttle import DISK, IOTUNE, throttle_problems

DIRECTIONS = ("total", "read", "write")
UNITS = ("bytes", "operations")
LIMITS = [f"{d}_{u}_per_second" for u in UNITS for d in DIRECTIONS]
EVERYTHING = {
    "total_bytes_per_second": "5MiB",
    "total_bytes_per_second_max": "50MiB",
    "total_bytes_per_second_max_seconds": 3,
    "read_operations_per_second": 100,
    "read_operations_per_second_max": 200,
    "read_operations_per_second_max_seconds": 2,
    "write_operations_per_second": 50,
    "write_operations_per_second_max": 60,
    "write_operations_per_second_max_seconds": 1,
    "operation_size": "64KiB",
    "group": "cable",
}


def _disk(**fields: Any) -> Disk:
    return Disk.model_validate({"size": "1GiB", **fields})


def _keys(**fields: Any) -> list[str]:
    return [problem.key for problem in DISK.problems(_disk(**fields))]


def _xml(disk: Disk, index: int = 1, path: str = "/srv/d.img") -> ET.Element:
    text = catalog.disk_model(disk.model).xml(disk, serial=f"disk{index}", path=path, index=index)
    return ET.fromstring(text)


def _iotune(**limits: Any) -> list[tuple[str, str | None]]:
    element = _xml(_disk(throttle=limits)).find("iotune")
    assert element is not None
    return [(child.tag, child.text) for child in element]


# --- limits -------------------------------------------------------------------------------------


def test_a_plain_limit_is_fine() -> None:
    assert _keys(throttle={"total_bytes_per_second": "5MiB"}) == []
    assert _keys() == []
    assert _keys(throttle=EVERYTHING) == []


@pytest.mark.parametrize(
    ("limits", "key"),
    [
        ({"total_bytes_per_second": 0}, "total_bytes_per_second"),
        ({"total_bytes_per_second": 10**15 + 1}, "total_bytes_per_second"),
        (
            {"total_bytes_per_second": 5, "read_bytes_per_second": 5},
            "read_bytes_per_second",
        ),
        (
            {"total_operations_per_second": 5, "write_operations_per_second": 5},
            "write_operations_per_second",
        ),
        ({"read_bytes_per_second_max": 5}, "read_bytes_per_second_max"),
        (
            {"read_bytes_per_second": 6, "read_bytes_per_second_max": 5},
            "read_bytes_per_second_max",
        ),
        (
            {"read_bytes_per_second": 6, "read_bytes_per_second_max_seconds": 5},
            "read_bytes_per_second_max_seconds",
        ),
        (
            {
                "read_bytes_per_second": 6,
                "read_bytes_per_second_max": 7,
                "read_bytes_per_second_max_seconds": 0,
            },
            "read_bytes_per_second_max_seconds",
        ),
        (
            {
                "read_bytes_per_second": 6,
                "read_bytes_per_second_max": 10**14,
                "read_bytes_per_second_max_seconds": 11,
            },
            "read_bytes_per_second_max_seconds",
        ),
        ({"total_bytes_per_second": 5, "operation_size": 4096}, "operation_size"),
        ({"group": "cable"}, "group"),
    ],
)
def test_a_limit_that_qemu_refuses_names_its_field(limits: dict[str, Any], key: str) -> None:
    assert _keys(throttle=limits) == [f"throttle.{key}"]


def test_a_burst_length_beyond_a_c_integer_is_refused() -> None:
    limits = {"read_bytes_per_second": 1, "read_bytes_per_second_max": 1}
    assert _keys(throttle={**limits, "read_bytes_per_second_max_seconds": 2**32 - 1}) == []
    assert _keys(throttle={**limits, "read_bytes_per_second_max_seconds": 2**32}) == [
        "throttle.read_bytes_per_second_max_seconds"
    ]


def _qemu_takes(limits: dict[str, int]) -> bool:
    """Repeat ``throttle_is_valid`` of QEMU's ``util/throttle.c``, in its own order."""
    buckets = []
    for unit in UNITS:
        rates = {}
        for direction in DIRECTIONS:
            name = f"{direction}_{unit}_per_second"
            bucket = (
                limits.get(name, 0),
                limits.get(f"{name}_max", 0),
                limits.get(f"{name}_max_seconds", 1),
            )
            rates[direction] = bucket
            buckets.append(bucket)
        for field in (0, 1):
            each = rates["read"][field] or rates["write"][field]
            if rates["total"][field] and each:
                return False
    operations = any(limits.get(f"{d}_operations_per_second") for d in DIRECTIONS)
    if limits.get("operation_size") and not operations:
        return False
    for average, burst, length in buckets:
        if average > 10**15 or burst > 10**15 or length < 1:
            return False
        if length > 1 and not burst:
            return False
        if burst and (length > 10**15 // burst or not average or burst < average):
            return False
    return True


SOME = st.one_of(st.integers(1, 12), st.sampled_from([10**14, 10**15, 10**15 + 1]))
ANY_LIMITS = st.dictionaries(
    st.sampled_from([*LIMITS, *(f"{n}_max" for n in LIMITS), *(f"{n}_max_seconds" for n in LIMITS)])
    | st.just("operation_size"),
    SOME,
    max_size=5,
)


@given(ANY_LIMITS)
def test_what_the_lab_takes_is_what_qemu_takes(limits: dict[str, int]) -> None:
    """Stricter only if QEMU would ignore a length, or overflow a C integer."""
    lonely = [
        n
        for n, v in limits.items()
        if n.endswith("_seconds") and v == 1 and not limits.get(n.removesuffix("_seconds"))
    ]
    long = [n for n, v in limits.items() if n.endswith("_seconds") and v >= 2**32]
    huge = limits.get("operation_size", 0) > 10**15
    taken = not list(throttle_problems(Throttle.model_validate(limits)))
    assert taken == (_qemu_takes(limits) and not lonely and not long and not huge)


@given(ANY_LIMITS)
def test_every_limit_of_a_valid_throttle_reaches_libvirt(limits: dict[str, int]) -> None:
    throttle = Throttle.model_validate(limits)
    if list(throttle_problems(throttle)) or not limits:
        return
    given_, sent = sorted(str(v) for v in limits.values()), _iotune(**limits)
    assert sorted(text or "" for _, text in sent) == given_


def test_every_field_of_throttle_has_its_libvirt_name() -> None:
    assert set(IOTUNE) == set(Throttle.model_fields)
    assert len(set(IOTUNE.values())) == len(IOTUNE)


def test_iotune_carries_each_field_under_libvirts_name_and_in_its_order() -> None:
    assert _iotune(**EVERYTHING) == [
        ("total_bytes_sec", "5242880"),
        ("read_iops_sec", "100"),
        ("write_iops_sec", "50"),
        ("total_bytes_sec_max", "52428800"),
        ("read_iops_sec_max", "200"),
        ("write_iops_sec_max", "60"),
        ("size_iops_sec", "65536"),
        ("group_name", "cable"),
        ("total_bytes_sec_max_length", "3"),
        ("read_iops_sec_max_length", "2"),
        ("write_iops_sec_max_length", "1"),
    ]


# --- the drive ----------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", ["none", "writeback", "writethrough", "directsync", "unsafe"])
@pytest.mark.parametrize("aio", ["threads", "native", "io_uring"])
def test_native_aio_needs_the_page_cache_out_of_the_way(cache: str, aio: str) -> None:
    wrong = aio == "native" and cache not in ("none", "directsync")
    assert _keys(cache=cache, aio=aio) == (["aio"] if wrong else [])


def test_only_qcow2_has_reference_counts() -> None:
    assert _keys(lazy_refcounts=True) == []
    assert _keys(lazy_refcounts=True, format="raw") == ["lazy_refcounts"]


@pytest.mark.parametrize(
    ("serial", "wrong"),
    [
        ("disk{index}", False),
        ("a" * 20, False),
        ("a" * 21, True),
        ("a" * 18 + "{index}", False),
        ("a" * 19 + "{index}", True),
        ("disk {index}", True),
        ("disk{number}", True),
        ("dïsk", True),
        ("a/b", True),
        ("", True),
        ("WD-WCC4N_1", False),
    ],
)
def test_serials_fit_into_what_the_guest_sees(serial: str, wrong: bool) -> None:
    assert _keys(serial=serial) == (["serial"] if wrong else [])


def test_several_disks_need_a_serial_each() -> None:
    assert _keys(serial="one", count=2) == ["serial"]
    assert _keys(serial="one", count=1) == []


@pytest.mark.parametrize("model", [DISK, NONE])
def test_the_file_is_made_by_qemu_img_and_taken_back(model: Any) -> None:
    (command,) = model.create(_disk(), "/srv/disks/disk1.qcow2")
    assert command.argv == (
        *("qemu-img", "create", "-q", "-f", "qcow2", "/srv/disks/disk1.qcow2", "1073741824"),
    )
    assert command.creates == ("/srv/disks/disk1.qcow2",)


def test_lazy_refcounts_and_raw_reach_qemu_img() -> None:
    (lazy,) = DISK.create(_disk(lazy_refcounts=True), "/d")
    assert lazy.argv[5:7] == ("-o", "lazy_refcounts=on")
    (raw,) = DISK.create(_disk(format="raw"), "/d")
    assert raw.argv[3:5] == ("-f", "raw")


def test_a_disk_without_limits_has_no_iotune() -> None:
    assert _xml(_disk()).find("iotune") is None
    assert _xml(_disk(model="none")).find("iotune") is None


def test_the_model_none_refuses_a_throttle() -> None:
    disk = _disk(model="none", throttle={"total_bytes_per_second": 1, "group": "x"})
    assert [p.key for p in NONE.problems(disk)] == [
        "throttle.total_bytes_per_second",
        "throttle.group",
    ]
    assert [p.key for p in NONE.problems(_disk(model="none", serial=""))] == ["serial"]


def test_paths_in_the_guest_go_by_serial() -> None:
    assert guest_path(_disk(), "disk1") == "/dev/disk/by-id/virtio-disk1"
    scsi = guest_path(_disk(bus="scsi"), "disk1")
    assert scsi == "/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_disk1"


@pytest.mark.parametrize(
    ("index", "name"),
    [(1, "vda"), (2, "vdb"), (26, "vdz"), (27, "vdaa"), (52, "vdaz"), (53, "vdba"), (702, "vdzz")],
)
def test_labels_go_on_after_z(index: int, name: str) -> None:
    assert target_name("vd", index) == name


def test_a_golden_disk() -> None:
    disk = _disk(throttle={"total_bytes_per_second": "5MiB"}, cache="none", aio="native")
    assert DISK.xml(disk, serial="disk1", path="/srv/a & b.qcow2", index=1) == (
        '<disk type="file" device="disk">\n'
        '  <driver name="qemu" type="qcow2" cache="none" io="native" queues="1" />\n'
        '  <source file="/srv/a &amp; b.qcow2" />\n'
        '  <target dev="vdc" bus="virtio" />\n'
        "  <serial>disk1</serial>\n"
        "  <iotune>\n"
        "    <total_bytes_sec>5242880</total_bytes_sec>\n"
        "  </iotune>\n"
        '  <address type="pci" domain="0x0000" bus="0x01" slot="0x01" function="0x0" />\n'
        "</disk>\n"
    )


def _place(disk: Disk, index: int) -> dict[str, str]:
    address = _xml(disk, index).find("address")
    assert address is not None
    return dict(address.attrib)


def test_each_virtio_disk_has_a_slot_of_its_own_on_a_bridge() -> None:
    places = [_place(_disk(), index) for index in range(1, 94)]
    slots = {(int(p["bus"], 16), int(p["slot"], 16)) for p in places}
    assert slots == {(bus, slot) for bus in (1, 2, 3) for slot in range(1, 32)}


def test_each_scsi_disk_is_a_target_of_its_own() -> None:
    disk = _disk(bus="scsi")
    assert [_place(disk, index)["target"] for index in (1, 2, 64)] == ["0", "1", "63"]
    target = _xml(disk, 64).find("target")
    assert target is not None
    assert target.attrib == {"dev": "sdbl", "bus": "scsi"}
    driver = _xml(disk).find("driver")
    assert driver is not None
    assert "queues" not in driver.attrib


# --- libvirt's own parser -----------------------------------------------------------------------

DOMAIN = """\
<domain type="test"><name>NAME</name><memory unit="MiB">64</memory>
<os><type arch="i686">hvm</type></os><devices>
<controller type="pci" index="0" model="pci-root"/>
<controller type="pci" index="1" model="pci-bridge"/>
<controller type="pci" index="2" model="pci-bridge"/>
<controller type="pci" index="3" model="pci-bridge"/>
<controller type="scsi" index="0" model="virtio-scsi"/>
DISKS</devices></domain>"""

ACCEPTED = {
    "nothing": {},
    "everything": {"throttle": EVERYTHING},
    "read-and-write": {
        "throttle": {
            "read_bytes_per_second": 5,
            "write_bytes_per_second": 6,
            "total_operations_per_second": 7,
        }
    },
    "scsi": {"bus": "scsi", "throttle": {"total_bytes_per_second": 5}},
    "raw-native": {"format": "raw", "cache": "none", "aio": "native"},
    "io_uring": {"cache": "directsync", "aio": "io_uring"},
    "writeback": {"cache": "writeback"},
    "writethrough": {"cache": "writethrough", "lazy_refcounts": True},
    "largest": {"throttle": {"total_bytes_per_second": 10**15}},
    "none": {"model": "none"},
    "hdd": {"model": "hdd", "preset": "hdd_10000"},
    "hdd-scsi": {"model": "hdd", "bus": "scsi"},
    "ssd-scsi": {"model": "ssd", "bus": "scsi", "cache": "none"},
}


@pytest.fixture(scope="module")
def connection() -> Iterator[Any]:
    libvirt = pytest.importorskip("libvirt", reason="libvirt-python is not installed")
    libvirt.registerErrorHandler(lambda _context, _error: None, None)
    try:
        opened = libvirt.open("test:///default")
    except libvirt.libvirtError as error:
        pytest.skip(f"libvirt's test driver cannot be opened: {error}")
    yield opened
    opened.close()


def _define(connection: Any, name: str, disks: list[str]) -> ET.Element:
    text = DOMAIN.replace("NAME", name).replace("DISKS", "".join(disks))
    libvirt = pytest.importorskip("libvirt")
    domain = connection.defineXMLFlags(text, libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
    defined = ET.fromstring(domain.XMLDesc())
    domain.undefine()
    return defined


@pytest.mark.parametrize("name", ACCEPTED)
def test_libvirt_accepts_and_keeps_the_disk(connection: Any, name: str) -> None:
    """Check libvirt's schema and parser; libvirt returns the given values."""
    disk = _disk(**ACCEPTED[name])
    assert list(catalog.disk_model(disk.model).problems(disk)) == []
    text = catalog.disk_model(disk.model).xml(disk, serial="disk7", path="/srv/a&b", index=7)
    kept = _define(connection, f"disk-{name}", [text]).find("devices/disk")
    assert kept is not None
    for element in ET.fromstring(text).iter():
        if element.tag == "disk":
            continue
        found = kept.find(f".//{element.tag}")
        assert found is not None, element.tag
        assert (found.text or "").strip() == (element.text or "").strip()
        assert element.attrib.items() <= found.attrib.items(), element.tag


@pytest.mark.parametrize("bus", ["virtio", "scsi"])
def test_libvirt_accepts_64_disks_in_one_guest(connection: Any, bus: str) -> None:
    disk = _disk(bus=bus, throttle={"total_bytes_per_second": "5MiB"})
    texts = [
        DISK.xml(disk, serial=f"disk{index}", path=f"/srv/{index}", index=index)
        for index in range(1, 65)
    ]
    kept = _define(connection, f"many-{bus}", texts).findall("devices/disk")
    assert len(kept) == 64


def test_libvirt_refuses_what_it_should(connection: Any) -> None:
    """Negative control: the same check fails on an element that libvirt does not know."""
    libvirt = pytest.importorskip("libvirt")
    text = DISK.xml(_disk(**ACCEPTED["everything"]), serial="d", path="/d", index=1)
    with pytest.raises(libvirt.libvirtError):
        _define(connection, "wrong", [text.replace("size_iops_sec", "size_iops_second")])
