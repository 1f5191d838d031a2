"""Jobs that start guests: by a boot, or from a snapshot of the same configuration."""

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
from lab.core.errors import InputError
from lab.host.guest import registry as guests
from lab.host.guest import snapshots
from lab.host.guest.libvirt import hypervisor
from lab.host.guest.snapshots import Snapshot
from lab.host.guest.virtual import suspend
from lab.host.images import kits
from lab.host.system import accelerator, keys, paths
from lab.model.execution.job import GuestJob
from lab.model.execution.procedure import AttachDisk, HostCommand, Procedure
from lab.model.scenario.document import Cell
from lab.model.scenario.guest import Clock, Engine, Guest, System
from lab.run.preparation.platforms import Platform, site_of


def saved(state: Snapshot) -> Saved:
    """Return the data of a snapshot that a procedure needs."""
    return Saved(
        key=state.key,
        memory=str(state.memory),
        root=str(state.root),
        seed=str(state.seed),
        saved_directory=state.saved_directory,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestJobs:
    """Makes the jobs of a run's guests."""

    scenario: str
    platforms: dict[System, Platform]
    """By image and kernel."""
    at_once: int
    """Most guests that boot concurrently."""
    wide: Mapping[tuple[Guest, Plugged], Cell] = field(default_factory=dict)
    """Cell whose disks the snapshot has, by guest configuration and disks."""
    cold: bool = False
    """Start sealed guests without a snapshot."""

    def key(self, guest: Guest) -> str:
        """Return the snapshot's key: a digest of what a restored guest shares with the saved
        one."""
        place = self.platforms[guest.system]
        site = site_of(place, "/guest", as_root=accelerator.is_root())
        return snapshots.key_of(
            {
                "domain": domain_xml(machine_of(guest, site)),
                "image": place.image.digest,
                "qemu": accelerator.qemu_identity(),
                "libvirt": hypervisor.version(),
                "key": keys.lab_key().public,
                "saved_after": SETTLED + WAITER + ZERO,
            }
        )

    def key_with_disks(self, cell: Cell) -> str:
        """Return the key of the snapshot with a cell's disks; empty: there cannot be one."""
        disks = lasting(cell)
        if not disks.disks or len(disks.disks) != len(cell.each_disk):
            return ""
        steps = disk_steps(cell, "/guest", NO_DISKS)
        plugged = [s.model_dump() for s in steps if isinstance(s, AttachDisk | HostCommand)]
        return snapshots.key_of({"guest": self.key(cell.guest), "disks": plugged})

    def for_cell(self, cell: Cell, *, boots: bool, unsealed: bool) -> tuple[GuestJob, Plugged]:
        """Return the job that starts a guest for a cell fastest, and the guest's disks.

        ``boots``: without a snapshot. ``unsealed``: with network and SSH in virtual time.
        """
        if cell.guest.clock is Clock.VIRTUAL:
            return self.virtual_job(cell.guest, unsealed=unsealed), Plugged()
        if not boots and (ready := self.ready(cell)) is not None:
            return ready
        snapshot = None if boots else snapshots.find(self.key(cell.guest))
        return self.job(cell.guest, snapshot), Plugged()

    def ready(self, cell: Cell) -> tuple[GuestJob, Plugged] | None:
        """Return a job that restores a guest with a cell's disks; ``None``: no snapshot."""
        wide = self.wide.get((cell.guest, lasting(cell)), cell)
        key = self.key_with_disks(wide)
        state = snapshots.find(key) if key else None
        if state is None:
            return None
        return self.job_with_disks(wide, state), Plugged(disks=lasting(wide).disks)

    def job_with_disks(self, cell: Cell, state: Snapshot, save: str = "") -> GuestJob:
        """Return a job that restores a guest with a cell's disks; ``save``: to make that snapshot.

        ``state`` is the snapshot to restore; with ``save`` it does not have the disks yet.
        """
        job = self.job(cell.guest, state)
        place = self.platforms[cell.guest.system]
        site = site_of(place, str(paths.guests() / job.guest), as_root=accelerator.is_root())
        if save:
            procedure = disks_procedure(job.guest, site, saved(state), save, cell, job.scale)
        else:
            disks = lasting(cell)
            procedure = restore_procedure(job.guest, site, saved(state), job.scale, disks)
        return job.model_copy(update={"procedure": procedure, "foreground": bool(save)})

    def virtual_job(self, guest: Guest, *, unsealed: bool) -> GuestJob:
        """Return a job for a guest in virtual time, which boots again for each cell."""
        place = self.platforms[guest.system]
        name = guests.new_id()
        if unsealed and guest.engine is Engine.NATIVE:
            raise InputError(
                "guest.engine: a native guest has no network and no SSH: set it to emulated"
            )
        kit = kits.prepare(guest, place.image)
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
            guest,
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

    def job(self, guest: Guest, state: Snapshot | None, save: str = "") -> GuestJob:
        """Return a job that restores a guest; without ``state`` it boots, with ``save`` for a
        snapshot."""
        place = self.platforms[guest.system]
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
        # Concurrent boots share the CPUs, so each takes longer.
        slow = scale if save else scale * max(1.0, self.at_once / accelerator.cpus())
        return GuestJob(
            guest=name,
            scenario=self.scenario,
            image=image,
            host_key=host_key.public,
            private_key=str(keys.lab_key_path()),
            procedure=bake_procedure(guest, site, known, save, slow)
            if save
            else guest_procedure(guest, site, known, slow),
            scale=scale,
            foreground=bool(save),  # nothing measures yet, and the user waits
        )


def _identity(name: str, host_key: keys.KeyPair) -> Identity:
    return Identity(
        guest=name,
        host_name="lab",
        host_key_private=host_key.private,
        host_key_public=host_key.public,
        authorized_key=keys.lab_key().public,
    )
