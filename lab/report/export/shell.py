"""Plans and cells as shell scripts; any part of them can be pasted into a shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from urllib.parse import quote

from lab.model.execution.plan import Plan
from lab.model.execution.procedure import SSH_FILES, Procedure, plain


def as_script(plan: Plan) -> str:
    """Return the plan as a script; guest commands go through the shell function ``guest``."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: Plan) -> Iterator[str]:
    scenario = plain(plan.scenario)
    yield f"# {scenario}: what `lab run scenario {scenario}` would do"
    yield f"# accelerator: {plain(plan.accelerator)}"
    for note in plan.notes:
        yield f"# note: {plain(note)}"
    yield ""
    yield f"DIRECTORY={shlex.quote(plan.guest_directory)}"
    yield f"LAB_KEY={shlex.quote(plan.private_key)}"
    root = quote(plan.guest_directory, safe="/@")  # a bundle's script replaces @DIRECTORY@
    shown = "$DIRECTORY" if root == plan.guest_directory else root
    yield f'URI="qemu:///embed?root={shown}"'
    yield "export LIBVIRT_LOG_OUTPUTS=4:stderr"
    yield 'export LAB_KEY LAB_KNOWN_HOSTS="$DIRECTORY/known_hosts"'
    yield 'mkdir -p "$DIRECTORY" "$(dirname "$LAB_KEY")"'
    yield 'chmod 700 "$DIRECTORY"'
    yield "# The lab's own key pair, and a host key for the guest, which is pinned:"
    yield '[ -f "$LAB_KEY" ] || ssh-keygen -q -t ed25519 -N "" -C lab -f "$LAB_KEY"'
    yield 'ssh-keygen -q -t ed25519 -N "" -C "" -f "$DIRECTORY/host_key"'
    yield 'HOST_KEY=$(awk \'{ printf "%s\\\\n", $0 }\' "$DIRECTORY/host_key")'
    yield 'HOST_KEY_PUBLIC=$(cut -d" " -f1,2 "$DIRECTORY/host_key.pub")'
    yield 'LAB_KEY_PUBLIC=$(cut -d" " -f1,2 "$LAB_KEY.pub")'
    yield (
        f'guest() {{ ssh -F none -p "$PORT" {SSH_FILES} -o LogLevel=ERROR root@127.0.0.1'
        " PATH=/usr/sbin:/usr/bin:/sbin:/bin sh -e; }"
    )
    for number, guest in enumerate(plan.guests, 1):
        yield ""
        yield f"# ---- guest {number} of {len(plan.guests)}"
        for step in guest.procedure.steps:
            yield from step.shell()
        for cell in guest.cells:
            yield ""
            axes = ", ".join(f"{k}: {v}" for k, v in cell.axes.items())
            yield f"# ---- cell {cell.id}" + (f" ({plain(axes)})" if axes else "")
            for step in cell.procedure.steps:
                yield from step.shell()
            yield "# and back:"
            for step in reversed(cell.procedure.steps):
                yield from step.shell_undo()
        yield ""
        yield 'PID=$(cat "$DIRECTORY/run/qemu/lab.pid") && kill "$PID"'
        yield 'while kill -0 "$PID" 2>/dev/null; do sleep 0.1; done'
    yield 'rm -r "$DIRECTORY"'


def cell_script(procedure: Procedure) -> str:
    """Return a cell's commands as they were run, and the commands that undid them."""
    lines = [line for step in procedure.steps for line in step.shell()]
    undone = [line for step in reversed(procedure.steps) for line in step.shell_undo()]
    return "\n".join([*lines, *(["# and back:", *undone] if undone else [])]) + "\n"
