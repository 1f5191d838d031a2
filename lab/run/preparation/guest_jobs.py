"""Guest configurations: what makes a saved one fit, and the job that brings one up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from drive import sealed
from lab.compile.guest.cloud_init import Identity
from lab.compile.guest.disks import NO_DISKS, Plugged, disk_steps, lasting
from lab.compile.guest.domain_xml import Virtual, domain_xml
from lab.compile.guest.steps import (
    SETTLED,
    WAITER,
    ZERO,
    Saved,
    bake_procedure,
    disks_procedure,
    guest_procedure,
    machine_of,
    restore_procedure,
    unsealed_procedure,
)
from lab.host.guest import registry as guests
from lab.host.guest import saved as warm
from lab.host.guest.libvirt import hypervisor
from lab.host.guest.saved import WarmState
from lab.host.guest.virtual import suspend
from lab.host.images import virtual_time as sealed_kit
from lab.host.system import accelerator, keys, paths
from lab.model.execution.job import GuestJob
from lab.model.execution.procedure import AttachDisk, HostCommand, Procedure
from lab.model.scenario.document import Cell
from lab.model.scenario.guest import Guest
from lab.run.preparation.platforms import Platform, site_of


def saved(state: WarmState) -> Saved:
    """A warm state as a procedure needs it."""
    return Saved(
        key=state.key,
        memory=str(state.memory),
        root=str(state.root),
        seed=str(state.seed),
        saved_directory=state.saved_directory,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestJobs:
    """The guests that a run may need."""

    scenario: str
    platforms: dict[tuple[str, str | None], Platform]
    """By image and kernel."""
    at_once: int
    """Guests that may boot side by side."""
    wide: Mapping[tuple[Guest, Plugged], Cell] = field(default_factory=dict)
    """By guest and disks of a cell: the one whose disks its guest is saved with."""
    cold: bool = False
    """Sealed guests start from no snapshot."""

    def key(self, kind: Guest) -> str:
        """Everything that a restored guest must share with the one that was saved."""
        place = self.platforms[kind.system]
        site = site_of(place, "/guest", as_root=accelerator.is_root())
        return warm.key_of(
            {
                "domain": domain_xml(machine_of(kind, site)),
                "image": place.image.digest,
                "qemu": accelerator.qemu_identity(),
                "libvirt": hypervisor.version(),
                "key": keys.lab_key().public,
                "saved_after": SETTLED + WAITER + ZERO,
            }
        )

    def key_with_disks(self, cell: Cell) -> str:
        """The name of a state that has a cell's disks plugged in; empty where none can have."""
        disks = lasting(cell)
        if not disks.disks or len(disks.disks) != len(cell.each_disk):
            return ""
        steps = disk_steps(cell, "/guest", NO_DISKS)
        plugged = [s.model_dump() for s in steps if isinstance(s, AttachDisk | HostCommand)]
        return warm.key_of({"guest": self.key(cell.guest), "disks": plugged})

    def ready(self, cell: Cell) -> tuple[GuestJob, Plugged] | None:
        """A guest that wakes up with a cell's disks and maybe more, where one is saved so."""
        wide = self.wide.get((cell.guest, lasting(cell)), cell)
        key = self.key_with_disks(wide)
        state = warm.find(key) if key else None
        if state is None:
            return None
        return self.job_with_disks(wide, state), Plugged(disks=lasting(wide).disks)

    def job_with_disks(self, cell: Cell, state: WarmState, save: str = "") -> GuestJob:
        """A guest that wakes up with a cell's disks; with ``save``, one that is saved with them.

        ``state`` has the disks already, but where it is to be saved with them.
        """
        job = self.job(cell.guest, state)
        place = self.platforms[cell.guest.system]
        site = site_of(place, str(paths.guests() / job.guest), as_root=accelerator.is_root())
        if save:
            procedure = disks_procedure(job.guest, site, saved(state), save, cell, job.scale)
        else:
            disks = lasting(cell)
            procedure = restore_procedure(job.guest, site, saved(state), job.scale, disks)
        return job.model_copy(update={"procedure": procedure})

    def virtual_job(self, kind: Guest, *, unsealed: bool) -> GuestJob:
        """A guest with virtual time, which each cell boots."""
        place = self.platforms[kind.system]
        name = guests.new_id()
        kit = sealed_kit.prepare(kind, place.image)
        job = GuestJob(
            guest=name,
            scenario=self.scenario,
            image=place.image.directory.name,
            host_key="",
            private_key="",
            procedure=Procedure(name=name, steps=()),
            sealed=kit,
            cold=self.cold,
        )
        if not unsealed:
            return job
        directory = paths.guests() / name
        site = replace(
            site_of(place, str(directory), as_root=accelerator.is_root()),
            machine_type=sealed.MACHINE_TYPE,
            kernel=kit.kernel,
            initrd=kit.initramfs,
        )
        host_key = keys.make()
        arguments = sealed.unsealed(
            str(directory / "region"),
            kit.base,
            Path(kit.base).stat().st_size,
            str(directory / suspend.SOCKET),
        )
        procedure = unsealed_procedure(
            kind,
            site,
            _identity(name, host_key),
            Virtual(start=sealed.START, arguments=tuple(arguments)),
            sealed.KERNEL_ARGUMENTS,
            max(1.0, self.at_once / accelerator.cpus()) * accelerator.slowness("tcg"),
        )
        return job.model_copy(
            update={
                "unsealed": True,
                "host_key": host_key.public,
                "private_key": str(keys.lab_key_path()),
                "procedure": procedure,
                "scale": accelerator.slowness("tcg"),
            }
        )

    def job(self, kind: Guest, state: WarmState | None, bake: str = "") -> GuestJob:
        """A guest restored from a state; or one that boots, and with ``bake`` is saved so."""
        place = self.platforms[kind.system]
        name = guests.new_id()
        site = site_of(place, str(paths.guests() / name), as_root=accelerator.is_root())
        image = place.image.directory.name
        scale = accelerator.slowness(place.accelerator.kind)
        if state is not None:
            return GuestJob(
                guest=name,
                scenario=self.scenario,
                image=image,
                warm=state.key,
                host_key=state.host_key,
                private_key=str(keys.lab_key_path()),
                procedure=restore_procedure(name, site, saved(state), scale),
                captures=state.captures,
                scale=scale,
            )
        host_key = keys.make()
        known = _identity(name, host_key)
        # Boots compute: as many at once as there are guests take that much longer.
        slow = scale if bake else scale * max(1.0, self.at_once / accelerator.cpus())
        return GuestJob(
            guest=name,
            scenario=self.scenario,
            image=image,
            host_key=host_key.public,
            private_key=str(keys.lab_key_path()),
            procedure=bake_procedure(kind, site, known, bake, slow)
            if bake
            else guest_procedure(kind, site, known, slow),
            scale=scale,
        )


def _identity(name: str, host_key: keys.KeyPair) -> Identity:
    return Identity(
        guest=name,
        host_name="lab",
        host_key_private=host_key.private,
        host_key_public=host_key.public,
        authorized_key=keys.lab_key().public,
    )
