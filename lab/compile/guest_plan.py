"""A guest and its cells for plans and bundles."""

from __future__ import annotations

from collections.abc import Sequence

from lab.compile.cell.procedure import cell_procedure
from lab.compile.guest.cloud_init import Identity
from lab.compile.guest.steps import Site, guest_procedure
from lab.compile.scenario.identity import cell_id
from lab.model.execution.plan import PlannedCell, PlannedGuest
from lab.model.scenario.document import Cell
from lab.model.scenario.guest import Guest


def planned_guest(guest: Guest, cells: Sequence[Cell], site: Site) -> PlannedGuest:
    """Return a guest that boots, with its cells; its keys are variables of the plan's script."""
    identity = Identity(
        guest="gplan",
        host_name="lab",
        host_key_private="$HOST_KEY",
        host_key_public="$HOST_KEY_PUBLIC",
        authorized_key="$LAB_KEY_PUBLIC",
    )
    return PlannedGuest(
        procedure=guest_procedure(guest, site, identity),
        cells=tuple(
            PlannedCell(id=cell_id(c), axes=c.axes, procedure=cell_procedure(c, site.directory))
            for c in cells
        ),
    )
