"""Joining a cluster with this host, and listing all hosts of a cluster."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from typing import Any

from lab.capabilities.cluster import client as cluster
from lab.capabilities.cluster import logic as resources
from lab.capabilities.cluster import serve as cluster_serve
from lab.capabilities.cluster.client import Door
from lab.capabilities.cluster.model import HostFacts
from lab.host import images
from lab.host.guest.libvirt import hypervisor
from lab.host.system import accelerator, load
from lab.run.environment import host_facts
from lab.run.guests import sweep
from lab.run.preparation.real import check_offer
from lab.run.scheduling import admission


def facts_of_host(name: str | None, disks: Sequence[str]) -> HostFacts:
    """Return the facts that this host reports when it joins, with the real disks that it offers.

    ``HostError``: no guest can run here. ``InputError``: one of the disks cannot be passed.
    """
    check_offer(disks)
    accelerator.emulator()
    hypervisor.require()
    here = images.list_images().images
    kernel = next((image.kernel for image in here if image.kernel), None)
    found = accelerator.find(kernel)
    environment = host_facts(found)
    own = name or platform.node()
    environment["host"] = environment["host"] | {"name": own}
    return HostFacts(
        name=own,
        programs=cluster.programs(),
        environment=environment,
        accelerator=found.kind,
        guests=admission.limit(found.kind, None),
        virtual=admission.virtual_limit(None),
        images=tuple(image.directory.name for image in here),
        disks=tuple(dict.fromkeys(disks)),
    )


def serve_worker(
    to: Door,
    *,
    name: str | None,
    disks: Sequence[str],
    share: int,
    ready: Callable[[str], None],
    lifeline: bool,
) -> None:
    """Join a cluster with this host, and run its cells until a signal or the lifeline ends it."""
    sweep()
    facts = facts_of_host(name, disks)
    offer = resources.offered(
        accelerator=facts.accelerator,
        guests=facts.guests,
        virtual=facts.virtual,
        memory=load.available_memory(),
        space=load.free_space(),
        images=facts.images,
        disks=facts.disks,
        share=share,
    )
    cluster_serve.serve_worker(to, facts, offer, ready, lifeline=lifeline)


def hosts_table(to: Door) -> list[dict[str, Any]]:
    """Return a row for each host of a cluster: facts and resources."""
    with cluster.connected(to) as link:
        hosts, strange = link.hosts()
        offers = link.offers()
    rows = [
        {
            "host": facts.name,
            "address": address,
            "accelerator": facts.accelerator,
            "offers": offers.get(address, {}),
            "programs": facts.programs,
        }
        for address, facts in hosts.items()
    ]
    return [*rows, *({"problem": sentence} for sentence in strange)]
