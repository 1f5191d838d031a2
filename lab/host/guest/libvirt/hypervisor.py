"""A wrapper of libvirt; libvirt's objects and exceptions are used only in this package.

The embedded driver (``qemu:///embed?root=…``, libvirt's ``drvqemu`` page) needs no daemon and no
root. A root holds one guest, and a process opens one root, so each guest has a worker process. The
guest outlives that process. The next process that opens the root finds the guest again, shortly
after the call that opens it returns.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import quote
from xml.etree import ElementTree as ET

from lab.compile.guest.domain_xml import QEMU_NAMESPACE
from lab.core.errors import GuestError, HostError, ToolError, TroubleError, full
from lab.host.guest.libvirt import capabilities, drives, passthrough
from lab.host.guest.libvirt.drives import DiskCounters
from lab.host.guest.libvirt.limited import Limited, Limiter
from lab.host.system import clock, files, paths, process


def require() -> None:
    """``HostError`` if this Python has no libvirt."""
    drives.load()


def version() -> int:
    """libvirt's version as a number, ``major * 1000000 + minor * 1000 + release``."""
    number: int = drives.load().getVersion()
    return number


LOOP_ENDS: Final = 2.0
"""Timeout in seconds for libvirt's event loop to stop; it wakes up every 0.2 s."""


class Hypervisor:
    """One embedded libvirt root with one guest.

    Every call has a timeout (:mod:`lab.host.guest.libvirt.limited`) that grows with ``scale``; then
    ``GuestError``.
    """

    def __init__(self, root: Path, name: str = "lab", scale: float = 1.0) -> None:
        self.root = root
        self.name = name
        self._limiter = Limiter(root.name, scale)
        self._connection: Any = None
        self._domain: Any = None
        self._real: set[str] = set()
        """Serials of real disks; libvirt does not know these disks."""
        self._stop = threading.Event()
        self._loop: threading.Thread | None = None

    def open(self) -> None:
        """Open the root; ``HostError``: libvirt is missing, or the path is too long."""
        if self._connection is not None:
            return
        socket = f"{self.root}{paths.MONITOR}"
        if len(os.fsencode(socket)) > paths.SOCKET:
            raise HostError(
                f"the path '{self.root}' is too long for QEMU's sockets: with '{paths.MONITOR}' it"
                f" has {len(os.fsencode(socket))} bytes, at most {paths.SOCKET} are possible",
                hint="set LAB_HOME to a directory with a shorter path",
            )
        libvirt = drives.load()
        libvirt.registerErrorHandler(lambda _context, _error: None, None)
        capabilities.seed(self.root)
        libvirt.virEventRegisterDefaultImpl()
        self._loop = threading.Thread(target=self._events, args=(libvirt,), daemon=True)
        self._loop.start()
        uri = uri_of(self.root)
        try:
            self._connection = self._limited("open", lambda: libvirt.open(uri))
        except libvirt.libvirtError as error:
            raise HostError(
                f"libvirt cannot open '{uri}': {error}",
                hint="check the installation of libvirt's QEMU driver: lab doctor",
            ) from error

    def close(self) -> None:
        """Release libvirt; the guest continues."""
        self._stop.set()
        if self._connection is not None:
            with contextlib.suppress(drives.load().libvirtError, GuestError):
                self._connection.close()
        self._connection = self._domain = None
        if self._loop is not None:
            # The loop calls a Python function, which must not happen while the interpreter shuts
            # down.
            self._loop.join(LOOP_ENDS)
            self._loop = None

    def forget_calls(self) -> None:
        """Allow calls again after QEMU was killed: a call that timed out blocks later ones."""
        self._limiter.forget()

    def _limited(self, name: str, function: Callable[[], Any]) -> Limited:
        return Limited(self._limiter.call(name, function), self._limiter)

    def _events(self, libvirt: Any) -> None:
        # The timer wakes the loop up, so that it checks `_stop`.
        libvirt.virEventAddTimeout(200, lambda _timer, _opaque: None, None)
        while not self._stop.is_set():
            libvirt.virEventRunDefaultImpl()

    def start(self, xml: str) -> None:
        """Start the domain. It is transient: libvirt forgets it when it ends."""
        self.open()
        libvirt = drives.load()
        try:
            self._domain = Limited(self._connection.createXML(xml, 0), self._limiter)
        except libvirt.libvirtError as error:
            raise self._trouble("QEMU did not start the guest", error) from error
        capabilities.keep(self.root)

    def save(self, path: Path) -> None:
        """Save the guest's memory and devices to a file, which ends the guest."""
        libvirt = drives.load()
        try:
            self._domain.saveFlags(str(path), None, libvirt.VIR_DOMAIN_SAVE_RUNNING)
        except libvirt.libvirtError as error:
            raise self._trouble("saving the guest failed", error) from error
        self._domain = None

    def restore(self, path: Path, before: str, now: str) -> None:
        """Start the guest from a file. ``before`` and ``now`` are its old and new directories."""
        self.open()
        libvirt = drives.load()
        try:
            xml = moved(self._saved_definition(path), before, now)
            self._connection.restoreFlags(str(path), xml, libvirt.VIR_DOMAIN_SAVE_RUNNING)
            self._domain = self._look_up()
        except libvirt.libvirtError as error:
            raise self._trouble("restoring the guest's snapshot failed", error) from error
        capabilities.keep(self.root)

    def _saved_definition(self, path: Path) -> str:
        """Return the saved domain's XML. It is cached in a file, since libvirt needs 30 ms to read
        it."""
        kept = path.with_suffix(".xml")
        with contextlib.suppress(OSError):
            return kept.read_text(encoding="utf-8")
        xml: str = self._connection.saveImageGetXMLDesc(str(path), 0)
        with contextlib.suppress(HostError):
            files.write(kept, xml)
        return xml

    def attach(self) -> None:
        """Find the guest that another process started in this root."""
        self.open()
        libvirt = drives.load()

        def look() -> Any:
            try:
                domain = self._look_up()
                domain.state()
                domain.XMLDesc(0)
            except libvirt.libvirtError:
                return None
            return domain

        self._domain = clock.wait_until(
            look, timeout=10, reason=f"libvirt to find the guest in '{self.root}' again"
        )

    def _look_up(self) -> Limited:
        return Limited(self._connection.lookupByName(self.name), self._limiter)

    @property
    def pid(self) -> int:
        path = self.root / "run" / "qemu" / f"{self.name}.pid"
        try:
            return int(path.read_text())
        except (OSError, ValueError) as error:
            raise GuestError(f"no process id of the guest's QEMU in '{path}'") from error

    def port(self) -> int:
        """Return the port of 127.0.0.1 that QEMU forwards to the guest's SSH, from QEMU's table."""
        table = self._monitor("info usernet")
        found = re.search(r"HOST_FORWARD\]\s+\d+\s+127\.0\.0\.1\s+(\d+)", table)
        if found is None:
            raise GuestError(f"QEMU forwards no port to the guest's SSH; its table:\n{table}")
        return int(found.group(1))

    def leave_up(self, *, reboots: bool) -> None:
        """Let QEMU act on what the guest does to itself: no libvirt follows its events any more.

        ``reboots``: a reset starts the guest again; otherwise it ends QEMU, as a power-off does.
        libvirt starts QEMU with ``-no-shutdown``, so that it could pass the event on.
        """
        actions = {"reboot": "reset" if reboots else "shutdown", "shutdown": "poweroff"}
        command = json.dumps({"execute": "set-action", "arguments": actions})
        libvirt = drives.load()
        try:
            self._domain.monitor(command, 0)
        except libvirt.libvirtError as error:
            raise GuestError(f"QEMU does not answer: {drives.words(error)}") from error

    def require_answer(self) -> None:
        """Raise ``GuestError`` if QEMU's monitor does not answer."""
        self._monitor("info status")

    def _monitor(self, command: str) -> str:
        import libvirt_qemu

        libvirt = drives.load()
        try:
            answer: str = self._domain.monitor(
                command, libvirt_qemu.VIR_DOMAIN_QEMU_MONITOR_COMMAND_HMP
            )
        except libvirt.libvirtError as error:
            raise GuestError(f"QEMU does not answer: {drives.words(error)}") from error
        if answer.startswith("Error"):
            raise GuestError(f"QEMU refused '{command}': {drives.words(answer)}")
        return answer

    def plug(self, xml: str) -> None:
        libvirt = drives.load()
        try:
            self._domain.attachDeviceFlags(xml, libvirt.VIR_DOMAIN_AFFECT_LIVE)
        except libvirt.libvirtError as error:
            serial = ET.fromstring(xml).findtext("serial") or "device"
            raise HostError(
                f"plugging in the disk '{serial}' failed: {drives.words(error)}"
            ) from error

    def unplug(self, xml: str, serial: str) -> None:
        """Hot-unplug a disk and wait until the guest has released it."""
        libvirt = drives.load()
        try:
            self._domain.detachDeviceFlags(xml, libvirt.VIR_DOMAIN_AFFECT_LIVE)
        except libvirt.libvirtError as error:
            if not self._holds(serial):
                return
            raise GuestError(
                f"unplugging the disk '{serial}' failed: {drives.words(error)}"
            ) from error
        try:
            clock.wait_until(
                lambda: None if self._holds(serial) else True,
                timeout=20,
                reason=f"the guest to release the disk '{serial}'",
            )
        except TroubleError as error:
            raise GuestError(error.message) from error

    def hand_over(
        self, xml: str, descriptors: Sequence[int], *, writable: bool, last_look: Callable[[], None]
    ) -> None:
        """Pass an open real disk to the guest."""
        passthrough.plug(self._domain, xml, descriptors, writable=writable, last_look=last_look)
        self._real.add(ET.fromstring(xml).findtext("serial") or "")

    def take_back(self, xml: str) -> None:
        """Remove a real disk from the guest and from QEMU, if it is there."""
        try:
            passthrough.unplug(self._domain, xml)
        except TroubleError as error:
            raise GuestError(error.message) from error
        self._real.discard(ET.fromstring(xml).findtext("serial") or "")

    def wipe(self, serial: str, size: int) -> None:
        """Zero a disk of ``size`` bytes through QEMU, without its limits."""
        drives.wipe(self._domain, serial, size)

    def spoil(self, serial: str, offset: int, length: int, pattern: int) -> None:
        """Fill a range of a disk through QEMU, without the guest's knowledge."""
        drives.spoil(self._domain, serial, offset, length, pattern)

    def file_of(self, serial: str) -> tuple[str, str]:
        """Return path and format of a disk's file."""
        drive = drives.one(self._domain, serial)
        return drive.path, drive.format

    def limits(self, serial: str) -> dict[str, int]:
        """Return QEMU's throttle of the disk with that serial, by the names of ``<iotune>``."""
        if serial in self._real:
            return passthrough.limits(self._domain, serial)
        return drives.limits(self._domain, serial)

    def check_limits(self, serial: str, xml: str) -> None:
        """``ToolError`` if QEMU's limits differ from those of a ``<disk>``."""
        found = self.limits(serial)
        wrong = {k: found.get(k) for k, v in iotune_of(xml).items() if str(found.get(k)) != v}
        if wrong:
            raise ToolError(
                f"the limits of the disk '{serial}' are wrong:"
                f" expected {iotune_of(xml)}, found {wrong}"
            )

    def limit(self, serial: str, limits: Mapping[str, int]) -> None:
        """Set exactly these limits."""
        drives.limit(self._domain, serial, limits)

    def completed(self) -> dict[str, DiskCounters]:
        """Return the completed requests of each data disk, by serial; ``GuestError``: no reply."""
        if self._domain is None:
            raise GuestError(
                "libvirt does not know the guest: it has ended or belongs to another process"
            )
        own = drives.completed(self._connection, self._domain)
        return own | (passthrough.completed(self._domain) if self._real else {})

    def definition(self) -> str:
        """Return the domain's XML with its present disks; the guest can be started again from
        it."""
        libvirt = drives.load()
        try:
            xml: str = self._domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
        except libvirt.libvirtError as error:
            raise GuestError(f"libvirt does not know the guest: {drives.words(error)}") from error
        return xml

    def forget(self) -> None:
        """Wait until libvirt has noticed QEMU's end, so that the name can be used again."""
        libvirt = drives.load()

        def gone() -> bool | None:
            try:
                self._connection.lookupByName(self.name)
            except libvirt.libvirtError:
                return True
            return None

        clock.wait_until(gone, timeout=20, reason="libvirt to notice that QEMU is gone")
        self._domain = None

    def stopped(self) -> str:
        """Return why QEMU has stopped the guest; empty: it has not.

        QEMU stops the guest when a disk's file cannot grow (``werror=enospc``, QEMU's default): the
        request waits, and with it the whole guest.
        """
        libvirt = drives.load()
        if self._domain is None:
            return ""
        try:
            state, reason = self._domain.state()
            if (state, reason) != (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_IOERROR):
                return ""
            names = {disk.name: serial for serial, disk in drives.drives(self._domain).items()}
            failed = self._domain.diskErrors()
        except libvirt.libvirtError:
            return ""  # the guest has ended: other checks report that
        which = ", ".join(f"'{names.get(name, name)}'" for name in sorted(failed))
        return f"QEMU stopped the guest: the file of its disk {which} cannot grow"

    def _holds(self, serial: str) -> bool:
        try:
            return serial in drives.drives(self._domain)
        except drives.load().libvirtError:
            return False

    def destroy(self) -> None:
        """Kill the guest, if it runs."""
        libvirt = drives.load()
        if self._domain is None:
            return
        try:
            self._domain.destroy()
        except libvirt.libvirtError as error:
            if error.get_error_code() not in (
                libvirt.VIR_ERR_NO_DOMAIN,
                libvirt.VIR_ERR_OPERATION_INVALID,
            ):
                raise HostError(f"ending the guest failed: {drives.words(error)}") from error
        self._domain = None

    @classmethod
    def _trouble(cls, sentence: str, error: Exception) -> HostError:
        words = drives.words(error)
        if os.strerror(errno.ENOSPC) in words:
            return full(f"{sentence}: {words}")
        return HostError(f"{sentence}: {words}")


def uri_of(root: Path) -> str:
    """Return libvirt's URI of an embedded root; a path may have ``#``, ``%``, ``?`` and ``&``."""
    return f"qemu:///embed?root={quote(os.fsencode(root))}"


def moved(xml: str, before: str, now: str) -> str:
    """Return a domain's XML with another directory of its guest.

    The XML is parsed: in its text a path may have ``&`` and quotes in several forms.
    """
    if not set(before + now) & set("&<>'\""):
        return xml.replace(f"{before}/", f"{now}/")
    ET.register_namespace("qemu", QEMU_NAMESPACE)
    root = ET.fromstring(xml)
    for element in root.iter():
        for name, value in element.attrib.items():
            element.set(name, value.replace(f"{before}/", f"{now}/"))
        if element.text:
            element.text = element.text.replace(f"{before}/", f"{now}/")
    return ET.tostring(root, encoding="unicode")


def iotune_of(xml: str) -> dict[str, str]:
    """Return the limits in a ``<disk>``, by the names of ``<iotune>``."""
    tune = ET.fromstring(xml).find("iotune")
    names = {} if tune is None else {limit.tag: limit.text or "" for limit in tune}
    return {k: v for k, v in names.items() if k != "group_name"}


def try_open() -> str:
    """Open and close an embedded root; return libvirt's version. ``HostError``: it does not open.

    Runs in its own process, since a process can open one root only.
    """
    code = (
        "import libvirt, sys; libvirt.virEventRegisterDefaultImpl();"
        "libvirt.registerErrorHandler(lambda c, e: None, None);"
        "c = libvirt.open(sys.argv[1]); v = c.getLibVersion();"
        "print(f'{v // 1000000}.{v // 1000 % 1000}.{v % 1000}')"
    )
    drives.load()
    with TemporaryDirectory(prefix="lab-doctor-") as directory:
        done = process.run(
            process.python("-c", code, uri_of(Path(directory))),
            timeout=60,
            check=False,
            env={"LIBVIRT_LOG_OUTPUTS": "3:file:/dev/null"},  # blanks separate its words
        )
    if done.status != 0:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise HostError(f"libvirt's embedded QEMU driver does not open: {last}")
    return done.stdout.strip()
