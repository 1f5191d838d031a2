"""Kinds of guest: what makes a saved one fit, and the job that brings one up."""

from __future__ import annotations

from dataclasses import dataclass

from lab.app.place import Place, site_of
from lab.compile.cloud_init import Identity
from lab.compile.domain_xml import domain_xml
from lab.compile.procedure import (
    Saved,
    bake_procedure,
    guest_procedure,
    machine_of,
    restore_procedure,
)
from lab.host import accelerator, guests, hypervisor, keys, paths, warm
from lab.host.warm import WarmState
from lab.model.job import GuestJob
from lab.model.scenario import Guest


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """The guests that a run may need."""

    scenario: str
    places: dict[str, Place]
    """By the name of the image."""
    at_once: int
    """Guests that may boot side by side."""

    def key(self, kind: Guest) -> str:
        """Everything that a restored guest must share with the one that was saved."""
        place = self.places[kind.image]
        site = site_of(place, "/guest", as_root=accelerator.is_root())
        return warm.key_of(
            {
                "domain": domain_xml(machine_of(kind, site)),
                "image": place.image.digest,
                "qemu": accelerator.qemu_identity(),
                "libvirt": hypervisor.version(),
                "key": keys.lab_key().public,
            }
        )

    def job(self, kind: Guest, state: WarmState | None, bake: str = "") -> GuestJob:
        """A guest restored from a state; or one that boots, and with ``bake`` is saved so."""
        place = self.places[kind.image]
        name = guests.new_id()
        site = site_of(place, str(paths.guests() / name), as_root=accelerator.is_root())
        image = f"{place.image.name}-{place.image.digest[:12]}"
        scale = accelerator.slowness(place.accelerator.kind)
        if state is not None:
            saved = Saved(
                key=state.key,
                memory=str(state.memory),
                root=str(state.root),
                seed=str(state.seed),
                saved_directory=state.saved_directory,
            )
            return GuestJob(
                guest=name,
                scenario=self.scenario,
                image=image,
                warm=state.key,
                host_key=state.host_key,
                private_key=str(keys.lab_key_path()),
                procedure=restore_procedure(name, site, saved, scale),
                captures=state.captures,
                scale=scale,
            )
        host_key = keys.make()
        known = Identity(
            guest=name,
            host_name="lab",
            host_key_private=host_key.private,
            host_key_public=host_key.public,
            authorized_key=keys.lab_key().public,
        )
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
