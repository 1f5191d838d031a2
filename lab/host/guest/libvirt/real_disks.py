"""Real disks of one guest: claimed by the guard, passed to QEMU, and taken back."""

from __future__ import annotations

from lab.core.errors import HostError
from lab.host.guest.libvirt.hypervisor import Hypervisor
from lab.host.real_disks import guard
from lab.host.real_disks.guard import Held, Named, Refusal
from lab.host.real_disks.refusals import advice, ground
from lab.model.execution.procedure import PassDisk


class RealDisks:
    """The real disks of one guest."""

    def __init__(self, hypervisor: Hypervisor) -> None:
        self._hypervisor = hypervisor
        self._held: dict[str, Held] = {}

    def hand_over(self, step: PassDisk, qemu: int) -> None:
        """Claim a disk and pass its open descriptor to the guest. The claim lasts while QEMU has
        it.

        ``HostError`` lists every objection, including one that arose after the first check.
        ``qemu`` is the only other process that may have the disk open.
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
        """Remove a disk from the guest, if it was passed. ``alive``: the guest still runs."""
        held = self._held.pop(step.serial, None)
        if held is None:
            return
        try:
            if alive:
                self._hypervisor.take_back(step.xml)
        finally:
            held.release()

    def release(self) -> None:
        """Release all claims. Descriptors in QEMU keep theirs until QEMU closes them."""
        while self._held:
            self._held.popitem()[1].release()


def _refused(refusal: Refusal) -> HostError:
    return HostError(refusal.sentence, hint=advice(refusal.sentence))
