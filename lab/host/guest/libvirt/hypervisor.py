"""libvirt, behind a wall: no libvirt object and no libvirt exception leaves this module.

The embedded driver (``qemu:///embed?root=…``, libvirt's ``drvqemu`` page) needs no daemon and no
root. One root holds one guest, and a process opens one root: that is why each guest has a worker
process. The guest itself outlives the process that started it, and the next one that opens the
same root finds it again, a moment later than the opening returns.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from xml.etree import ElementTree as ET

from lab.core.errors import GuestError, HostError, ToolError, TroubleError, full
from lab.host.guest.libvirt import capabilities, drives, passing
from lab.host.guest.libvirt.drives import Completed
from lab.host.guest.libvirt.limited import Limited, Limiter
from lab.host.system import clock, files, process

SOCKET_LIMIT: Final = 107
"""Bytes in a unix socket's path, ``unix(7)``."""
_MONITOR: Final = "/lib/qemu/domain-1-lab/monitor.sock"


def require() -> None:
    """``HostError`` where this Python has no libvirt."""
    drives.load()


def version() -> int:
    """libvirt's version as a number, ``major * 1000000 + minor * 1000 + release``."""
    number: int = drives.load().getVersion()
    return number


LOOP_ENDS: Final = 2.0
"""Seconds that libvirt's event loop may take to see that it should stop; it turns every 0.2 s."""


class Hypervisor:
    """One embedded libvirt root, and the one guest in it.

    Every call has a limit (:mod:`lab.host.guest.libvirt.limited`), which grows with ``scale``:
    ``GuestError``.
    """

    def __init__(self, root: Path, name: str = "lab", scale: float = 1.0) -> None:
        self.root = root
        self.name = name
        self._limiter = Limiter(root.name, scale)
        self._connection: Any = None
        self._domain: Any = None
        self._real: set[str] = set()
        """Serials of real disks, of which libvirt knows nothing."""
        self._stop = threading.Event()
        self._loop: threading.Thread | None = None

    def open(self) -> None:
        """Open the root; ``HostError`` where there is no libvirt, or its path is too long."""
        if self._connection is not None:
            return
        socket = f"{self.root}{_MONITOR}"
        if len(os.fsencode(socket)) > SOCKET_LIMIT:
            raise HostError(
                f"the path '{self.root}' is too long for QEMU's sockets ({len(socket)} bytes with"
                f" '{_MONITOR}', {SOCKET_LIMIT} at most)",
                hint="set LAB_HOME to a shorter directory",
            )
        libvirt = drives.load()
        libvirt.registerErrorHandler(lambda _context, _error: None, None)
        capabilities.seed(self.root)
        libvirt.virEventRegisterDefaultImpl()
        self._loop = threading.Thread(target=self._events, args=(libvirt,), daemon=True)
        self._loop.start()
        uri = f"qemu:///embed?root={self.root}"
        try:
            self._connection = self._limited("open", lambda: libvirt.open(uri))
        except libvirt.libvirtError as error:
            raise HostError(
                f"libvirt cannot open '{uri}': {error}",
                hint="`lab doctor` says whether libvirt's QEMU driver is installed",
            ) from error

    def close(self) -> None:
        """Let go of libvirt; the guest goes on."""
        self._stop.set()
        if self._connection is not None:
            with contextlib.suppress(drives.load().libvirtError, GuestError):
                self._connection.close()
        self._connection = self._domain = None
        if self._loop is not None:
            # Its timer is a Python function, and an interpreter that has ended has none.
            self._loop.join(LOOP_ENDS)
            self._loop = None

    def forget_calls(self) -> None:
        """QEMU was ended by its process id: calls that were given up do not bar new ones."""
        self._limiter.forget()

    def _limited(self, name: str, function: Callable[[], Any]) -> Limited:
        return Limited(self._limiter.call(name, function), self._limiter)

    def _events(self, libvirt: Any) -> None:
        # A timer keeps the loop turning, so that it sees the wish to stop.
        libvirt.virEventAddTimeout(200, lambda _timer, _opaque: None, None)
        while not self._stop.is_set():
            libvirt.virEventRunDefaultImpl()

    def start(self, xml: str) -> None:
        """Start the domain; it is transient, and gone from libvirt when it ends."""
        self.open()
        libvirt = drives.load()
        try:
            self._domain = Limited(self._connection.createXML(xml, 0), self._limiter)
        except libvirt.libvirtError as error:
            raise self._trouble("QEMU would not start the guest", error) from error
        capabilities.keep(self.root)

    def save(self, path: Path) -> None:
        """Save the guest's memory and devices to a file; the guest ends."""
        libvirt = drives.load()
        try:
            self._domain.saveFlags(str(path), None, libvirt.VIR_DOMAIN_SAVE_RUNNING)
        except libvirt.libvirtError as error:
            raise self._trouble("the guest could not be saved", error) from error
        self._domain = None

    def restore(self, path: Path, before: str, now: str) -> None:
        """Start the guest that a file holds: its directory then, and that of now."""
        self.open()
        libvirt = drives.load()
        try:
            xml = self._saved_definition(path).replace(f"{before}/", f"{now}/")
            self._connection.restoreFlags(str(path), xml, libvirt.VIR_DOMAIN_SAVE_RUNNING)
            self._domain = self._look_up()
        except libvirt.libvirtError as error:
            raise self._trouble("the saved guest did not restore", error) from error
        capabilities.keep(self.root)

    def _saved_definition(self, path: Path) -> str:
        """The domain as it was saved; libvirt takes 30 ms to read it, so it is kept beside it."""
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
        """Process id of the guest's QEMU."""
        path = self.root / "run" / "qemu" / f"{self.name}.pid"
        try:
            return int(path.read_text())
        except (OSError, ValueError) as error:
            raise GuestError(f"the guest's QEMU has left no process id in '{path}'") from error

    def port(self) -> int:
        """The port of 127.0.0.1 that leads to the guest's SSH, as QEMU's own table has it."""
        table = self._monitor("info usernet")
        found = re.search(r"HOST_FORWARD\]\s+\d+\s+127\.0\.0\.1\s+(\d+)", table)
        if found is None:
            raise GuestError(f"QEMU forwards no port to the guest; its table:\n{table}")
        return int(found.group(1))

    def require_answer(self) -> None:
        """Raise ``GuestError`` where QEMU does not answer on its monitor."""
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
        return answer

    def plug(self, xml: str) -> None:
        """Hot-plug a device."""
        libvirt = drives.load()
        try:
            self._domain.attachDeviceFlags(xml, libvirt.VIR_DOMAIN_AFFECT_LIVE)
        except libvirt.libvirtError as error:
            serial = ET.fromstring(xml).findtext("serial") or "device"
            raise HostError(
                f"QEMU would not take the disk '{serial}': {drives.words(error)}"
            ) from error

    def unplug(self, xml: str, serial: str) -> None:
        """Hot-unplug a disk and wait until the guest has let go of it."""
        libvirt = drives.load()
        try:
            self._domain.detachDeviceFlags(xml, libvirt.VIR_DOMAIN_AFFECT_LIVE)
        except libvirt.libvirtError as error:
            if not self._holds(serial):
                return
            raise GuestError(
                f"the guest would not let go of the disk '{serial}': {drives.words(error)}"
            ) from error
        try:
            clock.wait_until(
                lambda: None if self._holds(serial) else True,
                timeout=20,
                reason=f"the guest to let go of the disk '{serial}'",
            )
        except TroubleError as error:
            raise GuestError(error.message) from error

    def hand_over(
        self, xml: str, descriptors: Sequence[int], *, writable: bool, last_look: Callable[[], None]
    ) -> None:
        """Give the guest a real disk that is open here."""
        passing.plug(self._domain, xml, descriptors, writable=writable, last_look=last_look)
        self._real.add(ET.fromstring(xml).findtext("serial") or "")

    def take_back(self, xml: str) -> None:
        """Take a real disk from the guest and from QEMU."""
        try:
            passing.unplug(self._domain, xml)
        except TroubleError as error:
            raise GuestError(error.message) from error
        self._real.discard(ET.fromstring(xml).findtext("serial") or "")

    def wipe(self, serial: str, size: int) -> None:
        """Have QEMU zero a disk of ``size`` bytes, whatever its limits."""
        drives.wipe(self._domain, serial, size)

    def spoil(self, serial: str, offset: int, length: int, pattern: int) -> None:
        """Have QEMU write bytes to a disk that the guest knows nothing of."""
        drives.spoil(self._domain, serial, offset, length, pattern)

    def limits(self, serial: str) -> dict[str, int]:
        """QEMU's throttle of the disk with that serial, by the names of ``<iotune>``."""
        if serial in self._real:
            return passing.limits(self._domain, serial)
        return drives.limits(self._domain, serial)

    def check_limits(self, serial: str, xml: str) -> None:
        """See that QEMU has the limits that a ``<disk>`` asks for; ``ToolError`` where not."""
        found = self.limits(serial)
        wrong = {k: found.get(k) for k, v in iotune_of(xml).items() if str(found.get(k)) != v}
        if wrong:
            raise ToolError(f"QEMU has other limits for '{serial}' than asked: {wrong}")

    def limit(self, serial: str, limits: Mapping[str, int]) -> None:
        """Give a disk these limits and no others."""
        drives.limit(self._domain, serial, limits)

    def completed(self) -> dict[str, Completed]:
        """What each data disk has completed so far, by serial; ``GuestError``: nobody tells."""
        if self._domain is None:
            raise GuestError("libvirt has no such guest: it has ended, or is another's")
        own = drives.completed(self._connection, self._domain)
        return own | (passing.completed(self._domain) if self._real else {})

    def definition(self) -> str:
        """The domain as it is, with the disks that it has now, as XML that can be started again."""
        libvirt = drives.load()
        try:
            xml: str = self._domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
        except libvirt.libvirtError as error:
            raise GuestError(f"libvirt does not know the guest: {drives.words(error)}") from error
        return xml

    def forget(self) -> None:
        """Wait until libvirt has noticed that QEMU is gone; the name is free then."""
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
        """Why QEMU has stopped the guest, which it does when a disk's file cannot grow, or nothing.

        ``werror=enospc``, QEMU's default: the request waits, and so does the whole guest.
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
            return ""  # it has ended, which others find
        which = ", ".join(f"'{names.get(name, name)}'" for name in sorted(failed))
        return f"QEMU stopped the guest, for it could not write to the file of its disk {which}"

    def _holds(self, serial: str) -> bool:
        try:
            return serial in drives.drives(self._domain)
        except drives.load().libvirtError:
            return False

    def destroy(self) -> None:
        """End the guest at once; no error where it has ended already."""
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
                raise HostError(f"QEMU would not end: {drives.words(error)}") from error
        self._domain = None

    @classmethod
    def _trouble(cls, sentence: str, error: Exception) -> HostError:
        words = drives.words(error)
        if os.strerror(errno.ENOSPC) in words:
            return full(f"{sentence}: {words}")
        return HostError(f"{sentence}: {words}")


def iotune_of(xml: str) -> dict[str, str]:
    """The limits that a ``<disk>`` asks for, by the names of ``<iotune>``."""
    tune = ET.fromstring(xml).find("iotune")
    names = {} if tune is None else {limit.tag: limit.text or "" for limit in tune}
    return {k: v for k, v in names.items() if k != "group_name"}


def try_open() -> str:
    """Open an embedded root and close it again: libvirt's version; ``HostError`` if it cannot.

    In a process of its own, since a process can open but one root.
    """
    code = (
        "import libvirt, sys; libvirt.virEventRegisterDefaultImpl();"
        "libvirt.registerErrorHandler(lambda c, e: None, None);"
        "c = libvirt.open('qemu:///embed?root=' + sys.argv[1]); v = c.getLibVersion();"
        "print(f'{v // 1000000}.{v // 1000 % 1000}.{v % 1000}')"
    )
    drives.load()
    with TemporaryDirectory(prefix="lab-doctor-") as directory:
        done = process.run(
            [sys.executable, "-c", code, directory],
            timeout=60,
            check=False,
            env={"LIBVIRT_LOG_OUTPUTS": f"3:file:{directory}/log"},
        )
    if done.status != 0:
        last = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        raise HostError(f"libvirt's embedded QEMU driver does not open: {last}")
    return done.stdout.strip()
