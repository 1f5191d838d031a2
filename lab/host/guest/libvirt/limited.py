"""libvirt's objects with a timeout for every call: libvirt itself waits forever for a stopped QEMU.

Only ``lab.host.guest.libvirt.hypervisor`` handles libvirt's objects and exceptions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from lab.core.errors import GuestError
from lab.host.system import clock, deadline

LIMITS: Final[dict[str, tuple[float, str]]] = {
    "open": (60.0, "open the directory of the guest"),
    "createXML": (180.0, "start the guest"),
    "saveFlags": (120.0, "save the guest"),
    "restoreFlags": (120.0, "restore the guest"),
    "saveImageGetXMLDesc": (20.0, "read the saved state for the guest"),
    "lookupByName": (20.0, "find the guest"),
    "attachDeviceFlags": (60.0, "plug a device into the guest"),
    "detachDeviceFlags": (60.0, "unplug a device from the guest"),
    "monitor": (60.0, "pass a command to QEMU's monitor of the guest"),
    "state": (20.0, "tell the state of the guest"),
    "XMLDesc": (20.0, "describe the guest"),
    "diskErrors": (20.0, "list disk errors of the guest"),
    "blockIoTune": (30.0, "read disk limits of the guest"),
    "setBlockIoTune": (30.0, "set disk limits of the guest"),
    "domainListGetStats": (30.0, "read block statistics of the guest"),
}
"""Timeout in seconds and description of each call; the timeout grows with the accelerator's scale.
Calls that are not listed here are refused. The first start in a new ``LAB_HOME`` took 28 s on a
host with ten times more runnable processes than CPUs."""
ENDING: Final[dict[str, tuple[float, str]]] = {
    "destroy": (30.0, "end the guest"),
    "close": (10.0, "close the directory of the guest"),
}
"""Calls of the clean-up: their timeouts do not grow. After them QEMU is killed by its process id.
libvirt itself sends SIGKILL 10 s after SIGTERM (``virProcessKillPainfully``)."""


class Limiter:
    """Makes the libvirt calls for one guest."""

    def __init__(self, guest: str, scale: float) -> None:
        self._guest, self._scale = guest, scale
        self._stuck: GuestError | None = None

    def call(self, name: str, function: Callable[[], Any]) -> Any:
        """Make a call; ``GuestError`` after its limit, and for every later call."""
        if self._stuck is not None:
            raise GuestError(self._stuck.message)
        if name in ENDING:
            seconds, words = ENDING[name]
        else:
            seconds, words = LIMITS[name]
            seconds *= self._scale
        try:
            return deadline.call(
                function,
                seconds=clock.limit(seconds),
                what=f"libvirt to {words} {self._guest}",
                error=_GivenUpError,
                settle=True,
            )
        except _GivenUpError as error:
            self._stuck = GuestError(error.message)
            raise self._stuck from None

    def forget(self) -> None:
        """Allow calls again, after QEMU was killed."""
        self._stuck = None


class _GivenUpError(GuestError):
    """A call timed out."""


class Limited:
    """A connection or a domain of libvirt; its methods are libvirt's, with timeouts."""

    def __init__(self, raw: Any, limiter: Limiter) -> None:
        self.raw = raw
        self._limiter = limiter

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in LIMITS and name not in ENDING:
            raise AttributeError(f"the libvirt call '{name}' has no limit in {__name__}")
        method = getattr(self.raw, name)
        return lambda *arguments: self._limiter.call(name, partial(method, *arguments))

    def monitor(self, text: str, flags: int) -> Any:
        """Return the reply of QEMU's monitor to a command."""
        import libvirt_qemu

        command = partial(libvirt_qemu.qemuMonitorCommand, self.raw, text, flags)
        return self._limiter.call("monitor", command)

    def monitor_with_files(self, text: str, descriptors: Sequence[int]) -> Any:
        """Pass open descriptors with a command; return the monitor's reply and descriptors."""
        import libvirt_qemu

        ask = libvirt_qemu.qemuMonitorCommandWithFiles
        command = partial(ask, self.raw, text, list(descriptors), 0)
        return self._limiter.call("monitor", command)
