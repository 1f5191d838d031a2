"""A plan as a shell script that can be read, and pasted in pieces."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final, assert_never

import lab
from lab.model.execution.plan import Plan
from lab.model.execution.procedure import (
    AskServer,
    AttachDisk,
    BeginWorkload,
    BuildPlugin,
    DetachDisk,
    EndWorkload,
    GuestCommand,
    HostCommand,
    LimitDisk,
    MakeDirectory,
    PassDisk,
    Pause,
    PowerCycle,
    Procedure,
    RestoreGuest,
    SaveGuest,
    SealDisks,
    SendDirectory,
    SpoilDisk,
    StartGuest,
    StartServer,
    Step,
    Timed,
    UnplugDisk,
    Verify,
    WaitFor,
    WaitForSsh,
    WipeDisk,
    WriteFile,
)

PACKAGE: Final = Path(lab.__file__).resolve().parent
_ASK: Final = (
    "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); "
    "s.sendall(sys.argv[2].encode() + b'\\n'); print(s.makefile().readline(), end='')"
)
"""One line to a server's socket, and the line that comes back."""


def as_script(plan: Plan) -> str:
    """The plan as a script; guest commands go through the shell function ``guest``."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: Plan) -> Iterator[str]:
    scenario = _plain(plan.scenario)
    yield f"# {scenario}: what `lab run scenario {scenario}` would do"
    yield f"# accelerator: {_plain(plan.accelerator)}"
    for note in plan.notes:
        yield f"# note: {_plain(note)}"
    yield ""
    yield f"DIRECTORY={shlex.quote(plan.guest_directory)}"
    yield f"LAB_KEY={shlex.quote(plan.private_key)}"
    yield 'URI="qemu:///embed?root=$DIRECTORY"'
    yield "export LIBVIRT_LOG_OUTPUTS=4:stderr"
    yield 'mkdir -p "$DIRECTORY" "$(dirname "$LAB_KEY")"'
    yield 'chmod 700 "$DIRECTORY"'
    yield "# The lab's own key pair, and a host key for the guest, which is pinned:"
    yield '[ -f "$LAB_KEY" ] || ssh-keygen -q -t ed25519 -N "" -C lab -f "$LAB_KEY"'
    yield 'ssh-keygen -q -t ed25519 -N "" -C "" -f "$DIRECTORY/host_key"'
    yield 'HOST_KEY=$(awk \'{ printf "%s\\\\n", $0 }\' "$DIRECTORY/host_key")'
    yield 'HOST_KEY_PUBLIC=$(cut -d" " -f1,2 "$DIRECTORY/host_key.pub")'
    yield 'LAB_KEY_PUBLIC=$(cut -d" " -f1,2 "$LAB_KEY.pub")'
    yield (
        'guest() { ssh -F none -p "$PORT" -i "$LAB_KEY" -o LogLevel=ERROR'
        ' -o UserKnownHostsFile="$DIRECTORY/known_hosts" root@127.0.0.1'
        " PATH=/usr/sbin:/usr/bin:/sbin:/bin sh -e; }"
    )
    for number, guest in enumerate(plan.guests, 1):
        yield ""
        yield f"# ---- guest {number} of {len(plan.guests)}"
        for step in guest.procedure.steps:
            yield from _step(step)
        for cell in guest.cells:
            yield ""
            axes = ", ".join(f"{k}: {v}" for k, v in cell.axes.items())
            yield f"# ---- cell {cell.id}" + (f" ({_plain(axes)})" if axes else "")
            for step in cell.procedure.steps:
                yield from _step(step)
            yield "# and back:"
            for step in reversed(cell.procedure.steps):
                yield from _undo(step)
        yield ""
        yield 'PID=$(cat "$DIRECTORY/run/qemu/lab.pid") && kill "$PID"'
        yield 'while kill -0 "$PID" 2>/dev/null; do sleep 0.1; done'
    yield 'rm -r "$DIRECTORY"'


def cell_script(procedure: Procedure) -> str:
    """The commands of a cell, and those that undo them."""
    lines = [line for step in procedure.steps for line in _step(step)]
    undone = [line for step in reversed(procedure.steps) for line in _undo(step)]
    return "\n".join([*lines, *(["# and back:", *undone] if undone else [])]) + "\n"


def _plain(text: str) -> str:
    """The text on one line, so that it stays in its comment."""
    return " ".join(text.split())


def _comment(text: str) -> str:
    return f"# {_plain(text)}"


_PORT: Final = (
    "PORT=$(virsh -q -c \"$URI\" qemu-monitor-command lab --hmp 'info usernet' |",
    "  sed -n 's/.*HOST_FORWARD\\] *[0-9]* *127.0.0.1 *\\([0-9]*\\).*/\\1/p')",
)


def _here(
    command: str, text: str, *, variables: bool = False, background: bool = False
) -> Iterator[str]:
    """A command with a text as its input."""
    mark = "END"
    while f"\n{mark}\n" in f"\n{text}\n":
        mark += "_"
    end = " &" if background else ""
    yield f"{command} <<{mark}" if variables else f"{command} <<'{mark}'{end}"
    yield text.rstrip("\n")
    yield mark


def _step(step: Step) -> Iterator[str]:
    match step:
        case MakeDirectory():
            yield f"mkdir -p {shlex.quote(step.path)}"
        case WriteFile():
            path = shlex.quote(step.path)
            yield f"install -m {step.mode:o} /dev/null {path}"
            yield from _here(f"cat > {path}", step.content, variables=step.secret)
        case HostCommand():
            yield shlex.join(step.argv)
        case StartGuest():
            yield from _here(f"cat > {shlex.quote(step.xml_path)}", step.xml)
            yield f'virsh -q -c "$URI" create {shlex.quote(step.xml_path)}'
            yield from _PORT
        case SaveGuest() | RestoreGuest():
            yield "# a warm state spares the boot; by hand the guest boots"
        case WaitForSsh():
            yield 'echo "[127.0.0.1]:$PORT $HOST_KEY_PUBLIC" > "$DIRECTORY/known_hosts"'
            yield f"# at most {step.timeout:.0f} seconds:"
            yield 'until timeout 10 ssh-keyscan -p "$PORT" 127.0.0.1 2>/dev/null | grep -q ed25519'
            yield "do sleep 1; done"
        case BuildPlugin():
            source = str(PACKAGE / step.source)
            yield shlex.join(("gcc", *step.flags, "-o", step.link, source, *step.libraries))
        case StartServer():
            log, socket = shlex.quote(step.log), shlex.quote(step.socket)
            yield f"nohup {shlex.join(step.argv)} > {log} 2>&1 < /dev/null &"
            yield f"echo $! > {socket}.pid"
            yield f"until [ -S {socket} ]; do sleep 0.1; done"
        case AskServer():
            yield _comment(f"{step.label}:")
            yield f"python3 -c {shlex.quote(_ASK)} {shlex.join((step.socket, step.line))}"
        case AttachDisk():
            yield from _here(f"cat > {shlex.quote(step.xml_path)}", step.xml)
            yield f'virsh -q -c "$URI" attach-device lab {shlex.quote(step.xml_path)} --live'
        case PassDisk():
            yield _comment(f"the lab's guard claims {step.device} and hands QEMU what it opened:")
            yield _comment("no command here does that, for the disk's sake")
        case WipeDisk() | DetachDisk():
            yield "# by hand each cell has fresh disks"
        case UnplugDisk():
            yield from _here('virsh -q -c "$URI" detach-device lab /dev/stdin --live', step.xml)
        case LimitDisk():
            yield _comment(f"other limits for {step.serial}, whose name `virsh domblklist` has:")
            limits = (f"--{k.replace('_', '-')} {v}" for k, v in step.limits.items())
            words = " ".join(("blkdeviotune lab", f'"$NAME_OF_{step.serial}"', *limits))
            yield f'virsh -q -c "$URI" {words} --live'
        case SpoilDisk():
            yield _comment(f"bytes of {step.serial}, whose device `info block` has:")
            write = f"write -P {step.pattern} {step.offset} {step.length}"
            command = f'qemu-io -d $DEVICE_OF_{step.serial} \\"{write}\\"'
            yield f'virsh -q -c "$URI" qemu-monitor-command lab --hmp "{command}"'
        case SealDisks():
            yield _comment("a sealed guest has these disks from its start, by the lab's driver:")
            yield from (_comment(disk.model_dump_json()) for disk in step.disks)
        case PowerCycle():
            yield _comment("the power fails, and comes back:")
            yield 'virsh -q -c "$URI" dumpxml lab --inactive > "$DIRECTORY/again.xml"'
            yield 'PID=$(cat "$DIRECTORY/run/qemu/lab.pid") && kill -9 "$PID"'
            for socket in step.lose:
                yield f"python3 -c {shlex.quote(_ASK)} {shlex.join((socket, 'lose'))}"
            yield 'while kill -0 "$PID" 2>/dev/null; do sleep 0.1; done'
            yield 'virsh -q -c "$URI" create "$DIRECTORY/again.xml"'
            yield from _PORT
        case Pause():
            yield f"sleep {step.seconds:g}"
        case GuestCommand():
            yield _comment(f"{step.label}:")
            yield from _here("guest", step.script)
        case SendDirectory():
            yield _comment(
                f"{step.workload}, from {step.source or 'a directory that is not given'}:"
            )
            packed, target = '"$DIRECTORY/suite.tar"', f"root@127.0.0.1:{step.target}"
            source = shlex.quote(step.source) if step.source else '"$SUITE"'
            out = " ".join(f"--exclude={name}" for name in step.left_out)
            yield f"tar -c {out} -C {source} -f {packed} ."
            yield (
                'scp -q -F none -P "$PORT" -i "$LAB_KEY" -o LogLevel=ERROR'
                f' -o UserKnownHostsFile="$DIRECTORY/known_hosts" {packed} {shlex.quote(target)}'
            )
        case Timed():
            if step.before:
                yield _comment(f"before workload {step.workload}, trial {step.trial}:")
                yield from _here("guest", step.before)
            yield _comment(f"workload {step.workload}, trial {step.trial}:")
            yield from _here("guest", step.script)
            if step.after:
                yield _comment("and after it:")
                yield from _here("guest", step.after)
        case BeginWorkload():
            yield _comment(f"before workload {step.workload}, trial {step.trial}:")
            yield from _here("guest", step.before)
            yield _comment(f"workload {step.workload}, trial {step.trial}, while the rest goes on:")
            yield from _here("guest", step.script, background=True)
            yield "WORKLOAD=$!"
        case EndWorkload():
            yield _comment(f"the end of workload {step.workload}, trial {step.trial}:")
            yield 'wait "$WORKLOAD"'
            if step.after:
                yield from _here("guest", step.after)
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
            yield f'virsh -q -c "$URI" detach-device lab {shlex.quote(step.xml_path)} --live'
            yield f"rm -f {shlex.quote(step.xml_path)}"
        case StartServer():
            socket = shlex.quote(step.socket)
            yield f'PID=$(cat {socket}.pid) && kill "$PID"'
            yield f'while kill -0 "$PID" 2>/dev/null; do sleep 0.1; done; rm -f {socket}.pid'
        case BuildPlugin():
            yield f"rm -f {shlex.quote(step.link)}"
        case HostCommand() if step.creates:
            yield f"rm -f {shlex.join(step.creates)}"
        case _:
            pass
