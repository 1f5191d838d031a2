"""A plan as a script that a person can read, and paste piece by piece."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import assert_never

from lab.model.plan import Plan
from lab.model.procedure import (
    AttachDisk,
    GuestCommand,
    HostCommand,
    MakeDirectory,
    StartGuest,
    Step,
    Timed,
    Verify,
    WaitFor,
    WaitForSsh,
    WriteFile,
)


def as_script(plan: Plan) -> str:
    """The whole plan: host commands as they are, guest commands through the function ``guest``."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: Plan) -> Iterator[str]:
    yield _comment(f"{plan.scenario}: what `lab run scenario {plan.scenario}` would do")
    yield _comment(f"accelerator: {plan.accelerator}")
    for note in plan.notes:
        yield _comment(f"note: {note}")
    yield ""
    directory = plan.guest_directory
    yield f"URI={shlex.quote(f'qemu:///embed?root={directory}')}"
    yield "# Keys: the lab makes a host key for each guest and pins it. By hand:"
    yield f"ssh-keygen -q -t ed25519 -N '' -f {shlex.quote(directory + '.host_key')}"
    yield (
        f'guest() {{ ssh -p "$PORT" -i {shlex.quote(plan.private_key)}'
        f" -o UserKnownHostsFile={shlex.quote(directory + '/known_hosts')}"
        " root@127.0.0.1 sh -e; }"
    )
    for number, guest in enumerate(plan.guests, 1):
        yield ""
        yield f"# ---- guest {number} of {len(plan.guests)}"
        for step in guest.procedure.steps:
            yield from _step(step, directory)
        for cell in guest.cells:
            yield ""
            axes = ", ".join(f"{k}: {v}" for k, v in cell.axes.items())
            yield _comment(f"---- cell {cell.id}" + (f" ({axes})" if axes else ""))
            for step in cell.procedure.steps:
                yield from _step(step, directory)
            yield "# and back:"
            for step in reversed(cell.procedure.steps):
                yield from _undo(step)
        yield ""
        yield 'virsh -c "$URI" destroy lab'
        yield f"rm -r {shlex.quote(directory)}"


def _comment(text: str) -> str:
    """One line, whatever the text holds: the next one would be a command."""
    return "# " + " ".join(text.splitlines())


def _here(command: str, text: str) -> Iterator[str]:
    """A command that is given a text as its input."""
    mark = "END"
    while f"\n{mark}\n" in f"\n{text}\n":
        mark += "_"
    yield f"{command} <<'{mark}'"
    yield text.rstrip("\n")
    yield mark


def _step(step: Step, directory: str) -> Iterator[str]:
    match step:
        case MakeDirectory():
            yield f"mkdir -p {shlex.quote(step.path)}"
        case WriteFile():
            if step.secret:
                yield "# put the keys where it says KEY:"
            yield from _here(f"cat > {shlex.quote(step.path)}", step.content)
        case HostCommand():
            yield shlex.join(step.argv)
        case StartGuest():
            yield from _here(f"cat > {shlex.quote(step.xml_path)}", step.xml)
            yield f'virsh -c "$URI" create {shlex.quote(step.xml_path)}'
            yield "PORT=$(virsh -c \"$URI\" qemu-monitor-command lab --hmp 'info usernet' |"
            yield "  sed -n 's/.*HOST_FORWARD\\] *[0-9]* *127.0.0.1 *\\([0-9]*\\).*/\\1/p')"
        case WaitForSsh():
            known = shlex.quote(directory + "/known_hosts")
            key = shlex.quote(directory + ".host_key.pub")
            yield f'echo "[127.0.0.1]:$PORT $(cut -d" " -f1,2 {key})" > {known}'
            yield f"# at most {step.timeout:.0f} seconds:"
            yield (
                'until timeout 5 sh -c "ssh-keyscan -p $PORT 127.0.0.1" 2>/dev/null |'
                " grep -q ssh-ed25519; do sleep 1; done"
            )
        case AttachDisk():
            yield from _here(f"cat > {shlex.quote(step.xml_path)}", step.xml)
            yield f'virsh -c "$URI" attach-device lab {shlex.quote(step.xml_path)} --live'
        case GuestCommand():
            yield _comment(f"{step.label}:")
            yield from _here("guest", step.script)
        case Timed():
            yield f"# workload {step.workload}, trial {step.trial}:"
            yield from _here("guest", step.script)
        case Verify():
            expected = ", ".join(f"{k}={v}" for k, v in step.expect.items())
            yield _comment(f"must print {expected}:")
            yield from _here("guest", step.script)
        case WaitFor():
            expected = ", ".join(f"{k}={v}" for k, v in step.expect.items())
            limit = f"{step.timeout:.0f} seconds"
            yield _comment(f"again until it prints {expected}, at most {limit}:")
            yield from _here("guest", step.script)
        case _:
            assert_never(step)


def _undo(step: Step) -> Iterator[str]:
    match step:
        case GuestCommand() if step.undo:
            yield from _here("guest", step.undo)
        case AttachDisk():
            yield f'virsh -c "$URI" detach-device lab {shlex.quote(step.xml_path)} --live'
            yield f"rm -f {shlex.quote(step.xml_path)}"
        case HostCommand() if step.creates:
            yield f"rm -f {shlex.join(step.creates)}"
        case _:
            pass
