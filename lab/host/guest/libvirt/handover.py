"""Real disks of one guest: claimed by the guard, handed to QEMU, and taken back."""

from __future__ import annotations

from lab.core.errors import HostError
from lab.host.guest.libvirt.hypervisor import Hypervisor
from lab.host.real_disks import guard
from lab.host.real_disks.guard import Held, Named, Refusal
from lab.host.real_disks.refusals import advice, ground
from lab.model.execution.procedure import PassDisk


class Passed:
    """The real disks that one guest has."""

    def __init__(self, hypervisor: Hypervisor) -> None:
        self._hypervisor = hypervisor
        self._held: dict[str, Held] = {}

    def hand_over(self, step: PassDisk, qemu: int) -> None:
        """Claim a disk and give the guest what was opened; it stays claimed while QEMU has it.

        ``HostError`` with everything that speaks against it, also where that came up between the
        guard's look and the guest's: ``qemu`` is the one process that may have it too.
        """
        named = Named(path=step.device, size=step.size, serial=step.device_serial)
        found = guard.take(ground(), named, step.erase)
        if isinstance(found, Refusal):
            raise _refused(found)
        self._held[step.serial] = held = found

        def last_look() -> None:
            if objections := held.objections((qemu,)):
                raise _refused(Refusal(path=step.device, objections=objections))

        self._hypervisor.hand_over(
            step.xml, held.descriptors, writable=held.writable, last_look=last_look
        )

    def take_back(self, step: PassDisk, *, alive: bool) -> None:
        """Take a disk from the guest, if it was passed; a guest that has ended has none."""
        held = self._held.pop(step.serial, None)
        if held is None:
            return
        try:
            if alive:
                self._hypervisor.take_back(step.xml)
        finally:
            held.release()

    def release(self) -> None:
        """Let go of all; what QEMU still has goes on there."""
        while self._held:
            self._held.popitem()[1].release()


def _refused(refusal: Refusal) -> HostError:
    return HostError(refusal.sentence, hint=advice(refusal.sentence))
