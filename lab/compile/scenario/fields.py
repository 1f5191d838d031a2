"""A cell's fields by dotted name: values, and the list of names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, get_args

from pydantic import BaseModel

from lab.core.units import is_digits
from lab.model.scenario.claim import Claim
from lab.model.scenario.document import Array, AxisValue, Cell, Disk, Scenario, Workload
from lab.model.scenario.fault import Fault
from lab.model.scenario.filesystem import Filesystem
from lab.model.scenario.guest import Guest
from lab.plugins import catalog
from lab.plugins.fio_options.names import OPTIONS

_SECTIONS: Final[dict[str, type[BaseModel]]] = {
    "guest": Guest,
    "disks": Disk,
    "array": Array,
    "filesystem": Filesystem,
}


def look_up(parts: dict[str, Any], dotted: str) -> Any:
    """Return a validated field by its dotted name; ``None``: there is none."""
    node: Any = parts
    for name in dotted.split("."):
        if isinstance(node, dict):
            node = node.get(name)
        elif isinstance(node, tuple):
            if node and isinstance(node[0], Workload | Fault):
                named = next((w for w in node if w.name == name), None)
                numbered = node[int(name)] if is_digits(name) and int(name) < len(node) else None
                node = named or numbered
            elif is_digits(name):
                node = node[int(name)] if int(name) < len(node) else None
            else:  # one configuration of disks, written as a mapping
                node = getattr(node[0], name, None) if len(node) == 1 else None
        elif isinstance(node, Workload | Fault):
            node = _parameter(node, name)
        else:
            node = getattr(node, name, None)
        if node is None:
            return None
    return getattr(node, "value", node)


def _parameter(node: Workload | Fault, name: str) -> Any:
    """Return a parameter or a field; a parameter that is not written has its default."""
    if name in node.parameters or name in type(node).model_fields:
        return node.parameters.get(name, getattr(node, name, None))
    if isinstance(node, Workload):
        model = catalog.workload(node.tool).parameters
    else:
        model = catalog.fault_kind(node.fault).parameters
    field = next((f for n, f in model.model_fields.items() if name in (n, f.alias)), None)
    return field.get_default(call_default_factory=True) if field is not None else None


def fields_of(cell: Cell, claims: Iterable[Claim]) -> dict[str, AxisValue]:
    """Return the cell's axes, and its value of every other dotted name that a claim uses."""
    return values_of(cell, {name for c in claims for value in c.values for name in value.where})


def values_of(cell: Cell, names: Iterable[str]) -> dict[str, AxisValue]:
    """Return the cell's axes, and its values of these other dotted names."""
    parts = {
        "guest": cell.guest,
        "disks": cell.disks,
        "array": cell.array,
        "filesystem": cell.filesystem,
        "workloads": cell.workloads,
        "faults": cell.faults,
    }
    others = (name for name in names if name not in cell.axes)
    return {name: look_up(parts, name) for name in others} | dict(cell.axes)


def is_field(name: str, scenario: Scenario) -> bool:
    """Return whether cells of the scenario have such a field, even if it has no value."""
    section, _, rest = name.partition(".")
    if section == "disks":
        number, _, below = rest.partition(".")
        if is_digits(number):
            return int(number) < len(scenario.disks) and is_field(f"disks.{below}", scenario)
    known = set(field_names(scenario))
    parents = {name.rpartition(".")[0] for name in known if name.endswith(".*")}
    return name in known or any(name.startswith(f"{parent}.") for parent in parents)


def field_names(scenario: Scenario) -> Iterator[str]:
    """Yield every dotted name of a cell's fields; ``NAME.*`` if any key may follow."""
    for section, model in _SECTIONS.items():
        yield from _names_of(model, section)
    for workload in scenario.workloads:
        own = set(Workload.model_fields) - {"name", "parameters"}
        yield from (f"workloads.{workload.name}.{key}" for key in own)
        yield from _names_of(
            catalog.workload(workload.tool).parameters, f"workloads.{workload.name}"
        )
    for fault in scenario.faults:
        own = set(Fault.model_fields) - {"parameters"}
        yield from (f"faults.{fault.name}.{key}" for key in own)
        yield from _names_of(catalog.fault_kind(fault.fault).parameters, f"faults.{fault.name}")


def _names_of(model: type[BaseModel], below: str) -> Iterator[str]:
    if model.model_config.get("extra") == "allow":  # fio's options
        yield from (f"{below}.{option}" for option in OPTIONS)
    for key, field in model.model_fields.items():
        name = f"{below}.{field.alias or key}"
        kinds = (field.annotation, *get_args(field.annotation))
        inner = [k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)]
        if inner:
            yield from _names_of(inner[0], name)
        else:
            yield name
        if any(getattr(kind, "__origin__", kind) is dict for kind in kinds):
            yield f"{name}.*"
