"""A cell's procedure as programs for a sealed guest, and the answers from their output.

A sealed guest takes no input while it runs, because input would arrive in host time. All commands
of a procedure are in its memory before it starts, as one program per boot, and their output is
read when the guest has ended. A power cut ends a boot.

A program prints frames: a line with mark, number, status and lengths, then the command's standard
output and standard error.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from random import Random
from typing import Final

from lab.compile.guest.disturbance import HANGS, NEVER, disturbance
from lab.compile.guest.seeds import FIRST, addresses
from lab.core.errors import InputError, LimitError, ToolError
from lab.core.printable import printable
from lab.core.units import MIB, format_size
from lab.md.steps.verify import SUPERBLOCKS
from lab.model.execution.procedure import (
    AskServer,
    AttachDisk,
    BeginWorkload,
    EndWorkload,
    GuestCommand,
    LimitDisk,
    Pause,
    PowerCycle,
    Procedure,
    SealDisks,
    SpoilDisk,
    Step,
    Timed,
    UnplugDisk,
    Verify,
    WaitFor,
    WaitForSsh,
)

CUT: Final = "--8<-- lab --8<--"
"""Line between a workload's output and the counters before and after it."""
TIMED_OUT: Final = 124
"""Exit status of ``timeout(1)`` after a timeout."""
_STIRS: Final = 48
"""Files that are written to memory before a step, of 4 KiB to 1 MiB."""
POSSIBLE: Final = (
    AskServer,
    AttachDisk,
    BeginWorkload,
    EndWorkload,
    GuestCommand,
    LimitDisk,
    Pause,
    PowerCycle,
    SealDisks,
    SpoilDisk,
    Timed,
    UnplugDisk,
    Verify,
    WaitFor,
    WaitForSsh,
)
"""Steps that a sealed guest supports."""
_PLUG: Final = 60.0
STATISTICS: Final = "stats"
"""Command that requests a server's counters; in virtual time the host reads them in the region."""
PARAMETERS: Final = "/sys/module/lab_disk/parameters"
"""Directory of the driver's command files (``drive/README.md``)."""
FOREVER: Final = 2**64 - 1
"""Nanoseconds of a stall without end; a command releases it."""
LIMITS: Final = (
    *("total_bytes_sec", "read_bytes_sec", "write_bytes_sec"),
    *("total_iops_sec", "read_iops_sec", "write_iops_sec"),
)
"""libvirt's names of a throttled disk's limits, in the order of the driver's."""
EVIDENCE: Final = (
    f"cat /proc/mdstat 2>/dev/null || true\necho '{CUT}'\n"
    f"{SUPERBLOCKS}echo\necho '{CUT}'\ndmesg || true\n"
)
"""Shell lines that print md's state, each disk's superblock of md, and the kernel's log."""


def evidence(text: str) -> Mapping[str, str]:
    """Return the output of :data:`EVIDENCE` as raw output by name; empty: there is none."""
    superblocks, found, log = text.partition(f"{CUT}\n")[2].partition(f"\n{CUT}\n")
    return {"superblocks.txt": superblocks, "kernel.txt": log} if found else {}


def mdstat(text: str) -> str:
    """Return md's state in the output of :data:`EVIDENCE`."""
    return text.partition(f"{CUT}\n")[0]


_ARRAY: Final = re.compile(r"^(md\S+) : (\w+)(?: \(\S+\))*(?: (\w+))?")
_SYNC: Final = re.compile(
    r"\b(\w{1,30}) {0,9}= {0,9}(\S{1,30}?%|\w{1,30})(?: \((\d{1,20})/(\d{1,20})\))?"
)


def how_far(text: str) -> str:
    """Return how far md's syncs are, from ``/proc/mdstat``; empty: there is no array."""
    found: list[str] = []
    for line in text.splitlines():
        if array := _ARRAY.match(line):
            found.append(f"{array[1]} ({array[3] or array[2]}) is idle")
        elif found and (sync := _SYNC.search(line)):
            name = found[-1].removesuffix(" is idle")
            done = f", {sync[3]} of {sync[4]} KiB" if sync[3] else ""
            found[-1] = f"{name}: {sync[1]} {sync[2]}{done}"
    return "; ".join(found)


def timed_script(step: Timed) -> str:
    """Return a workload and its counters as one command; ``cut`` splits the output."""
    lines = [
        step.before or ":",
        f"echo '{CUT}'",
        *("set +e", "(", "set -e", step.script.rstrip("\n"), ")", "status=$?", "set -e"),
        *("echo", f"echo '{CUT}'"),
        step.after or ":",
        "exit $status",
    ]
    return "\n".join(lines)


def cut(text: str) -> tuple[str, str, str]:
    """Return the counters before, the workload's output, the counters after."""
    before, _, rest = text.partition(f"{CUT}\n")
    stdout, _, after = rest.rpartition(f"\n{CUT}\n")
    return before, stdout, after


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One command of a program, in the order of the step loop's requests."""

    script: str
    """Shell lines that the step loop requests, or a name if the item is no command."""
    step: int
    """Number of the step in its procedure."""
    lines: tuple[str, ...]
    """Lines of the program; ``%d`` is the item's number."""
    asked: int = 1
    """Number of requests for it by the step loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """The programs of a cell's guest."""

    items: tuple[Item, ...]
    boots: tuple[str, ...]
    """The program of each boot; all but the last end with a power cut."""
    limits: tuple[float, ...]
    """Timeout of each boot, in seconds of guest time."""
    loses: tuple[bool, ...] = ()
    """Whether each power cut loses the disks' volatile caches."""


FAILED: Final = -1
"""Number of the frame with :data:`EVIDENCE`, which follows the first command that failed."""
FUNCTIONS: Final = (
    f"""\
examine() {{
{EVIDENCE}}}
failed() {{ # once
  [ ! -e $work/failed.out ] || return 0
  examine >$work/failed.out 2>/dev/null
  frame {FAILED} 0 failed
}}
"""
    + """\
LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin
export LC_ALL PATH
work=/run/lab
mkdir -p $work
frame() { # number status name: what a command came to
  [ -e $work/$3.out ] || : >$work/$3.out
  [ -e $work/$3.err ] || : >$work/$3.err
  read -r clock _ </proc/uptime
  set -- "$@" $(wc -c <$work/$3.out) $(wc -c <$work/$3.err)
  printf '@lab end %s %s %s %s %s\\n' "$1" "$2" "$clock" "$4" "$5"
  cat $work/$3.out $work/$3.err
}
begun() { read -r clock _ </proc/uptime; printf '@lab begin %s %s\\n' "$1" "$clock"; }
item() { # number limit script
  begun "$1"
  printf '%s\\n' "$3" >$work/script
  status=0
  timeout -k 10 "$2" sh -e $work/script </dev/null >$work/item.out 2>$work/item.err || status=$?
  frame "$1" $status item
}
give_up() { failed; exit 0; } # the cell ends with what failed
must() { item "$@"; [ $status = 0 ] || give_up; }
agrees() { # expected lines, of what the last command printed
  for line; do grep -qxF -e "$line" $work/item.out || return 1; done
}
check() { # number limit script expected…
  item "$1" "$2" "$3"
  shift 3
  agrees "$@" || failed
}
wait_for() { # number limit interval hits script expected…
  begun "$1"
  number=$1 limit=$2 interval=$3 hits=$4
  printf '%s\\n' "$5" >$work/script
  shift 5
  end=$((${clock%.*} + limit)) found=0
  while :; do
    status=0
    timeout -k 10 "$limit" sh -e $work/script </dev/null >$work/item.out 2>$work/item.err ||
      status=$?
    if agrees "$@"; then found=$((found + 1)); else found=0; fi
    read -r clock _ </proc/uptime
    [ $found -lt "$hits" ] && [ ${clock%.*} -lt $end ] || break
    sleep "$interval"
  done
  frame $number $status item
  [ $found -ge "$hits" ] || give_up
}
begin() { # name limit script
  printf '%s\\n' "$3" >$work/$1.script
  : >$work/$1.out
  {
    status=0
    timeout -k 10 "$2" sh -e $work/$1.script </dev/null >$work/$1.out 2>$work/$1.err || status=$?
    echo $status >$work/$1.status
  } &
}
finish() { # number name: wait for what was begun
  begun "$1"
  wait
  status=$(cat $work/$2.status)
  frame "$1" "$status" "$2"
  [ "$status" = 0 ] || give_up
}
"""
)
"""Shell functions at the start of each program; an unsealed guest has them in a file."""


def trials(procedure: Procedure) -> tuple[Procedure, ...]:
    """Return a procedure's trials: each begins with :class:`SealDisks` and has its own guest."""
    starts = [n for n, step in enumerate(procedure.steps) if isinstance(step, SealDisks)]
    ends = [*starts[1:], len(procedure.steps)]
    return tuple(
        procedure.model_copy(update={"steps": procedure.steps[start:end]})
        for start, end in zip(starts, ends, strict=True)
    )


def programs(procedure: Procedure, stop: int | None = None) -> Programs:
    """Return the programs of a procedure; ``InputError``: a sealed guest cannot do a step.

    ``stop``: nanoseconds of the first guest's clock at which QEMU stops.
    """
    builder = _Builder(_stop=stop)
    for number, step in enumerate(procedure.steps):
        builder.add(number, step)
    return builder.done()


@dataclass(slots=True)
class _Builder:
    _items: list[Item] = field(default_factory=list)
    _boots: list[list[str]] = field(default_factory=lambda: [[]])
    _limits: list[float] = field(default_factory=lambda: [0.0])
    _loses: list[bool] = field(default_factory=list)
    _slots: dict[str, int] = field(default_factory=dict)
    """Number of each disk in the driver's table, by serial."""
    _running: list[str] = field(default_factory=list)
    _seed: int = 1
    _disturb: bool = False
    _stop: int | None = None

    def add(self, number: int, step: Step) -> None:
        match step:
            case SealDisks():  # 0 is the root file system's disk
                self._seed, self._disturb = step.seed, step.disturb
                self._slots = {disk.serial: n for n, disk in enumerate(step.disks, 1)}
            case GuestCommand():
                self._command(number, step.script, step.timeout)
            case Verify():
                expected = [f"{key}={value}" for key, value in step.expect.items()]
                words = shlex.join((f"{step.timeout:.0f}", step.script, *expected))
                self._item(number, step.script, (f"check %d {words}",), step.timeout)
            case Timed():
                self._free_pages(number)
                self._command(number, timed_script(step), step.timeout)
            case WaitFor():
                expected = [f"{key}={value}" for key, value in step.expect.items()]
                given = (
                    *(f"{step.timeout:.0f}", f"{step.interval:g}", str(step.hits)),
                    *(step.script, *expected),
                )
                line = f"wait_for %d {shlex.join(given)}"
                self._item(number, step.script, (line,), step.timeout, asked=step.hits)
            case BeginWorkload():
                if step.before:
                    self._command(number, step.before, step.before_timeout)
                self._free_pages(number)
                tag = f"{step.workload}.{step.trial}"
                self._lines(f"begin {tag} LIMIT {shlex.quote(step.script)}")
                self._running.append(tag)
            case EndWorkload():
                self._end(number, step)
            case Pause():
                self._lines(f"sleep {step.seconds:g}")
                self._limits[-1] += step.seconds
            case UnplugDisk():
                self._command(number, detach(self._slots[step.serial]), _PLUG)
            case AttachDisk():
                self._command(number, attach(self._slots[step.serial]), _PLUG)
            case AskServer():
                if step.line != STATISTICS:
                    self._command(number, order(self._slots[serial_of(step.socket)], step), _PLUG)
            case LimitDisk():
                self._command(number, limit(self._slots[step.serial], step), _PLUG)
            case SpoilDisk():
                self._command(number, spoil(self._slots[step.serial], step), _PLUG)
            case PowerCycle():
                self._loses.append(bool(step.lose))
                self._cut(number)
            case WaitForSsh():
                pass  # a boot's program begins when the boot has ended
            case _:
                raise InputError(
                    f"guest.clock: the step '{step.kind}' cannot be done in a sealed guest: set it "
                    "to real"
                )

    def _free_pages(self, number: int) -> None:
        """Let the seed decide which pages of memory are free, as ``addresses`` does for theirs."""
        if self._seed != FIRST:
            self._lines(*stir(self._seed, number))

    def done(self) -> Programs:
        texts = []
        stop = self._stop
        for lines, limit in zip(self._boots, self._limits, strict=True):
            within = [line.replace(" LIMIT ", f" {limit:.0f} ", 1) for line in lines]
            drawn = addresses(self._seed)
            if self._disturb or stop is not None:
                seed = self._seed if self._disturb else 0
                drawn = disturbance(seed, limit + HANGS, NEVER if stop is None else stop) + drawn
                stop = None
            texts.append(FUNCTIONS + drawn + "\n".join([*within, "exit 0"]) + "\n")
        return Programs(
            items=tuple(self._items),
            boots=tuple(texts),
            limits=tuple(self._limits),
            loses=tuple(self._loses),
        )

    def _lines(self, *lines: str) -> None:
        self._boots[-1].extend(lines)

    def _item(
        self, step: int, script: str, lines: tuple[str, ...], limit: float, *, asked: int = 1
    ) -> None:
        number = len(self._items)
        self._lines(*(line.replace("%d", str(number), 1) for line in lines))
        self._items.append(Item(script=script, step=step, lines=lines, asked=asked))
        self._limits[-1] += limit

    def _command(self, step: int, script: str, limit: float) -> None:
        self._item(step, script, (f"must %d {limit:.0f} {shlex.quote(script)}",), limit)

    def _end(self, number: int, step: EndWorkload) -> None:
        tag = f"{step.workload}.{step.trial}"
        if tag not in self._running:
            return  # the power cut ended it, and its output was stored then
        self._running.remove(tag)
        self._item(number, tag, (f"finish %d {tag}",), step.timeout)
        if step.after:
            self._command(number, step.after, 60.0)

    def _cut(self, number: int) -> None:
        for tag in self._running:
            self._item(number, tag, (f"frame %d 0 {tag}",), 0.0)
        self._running.clear()
        self._item(
            number,
            "the power cut",
            ("begun %d", "echo b > /proc/sysrq-trigger", "sleep 60", "exit 1"),
            0.0,
        )
        self._boots.append([])
        self._limits.append(0.0)


def attach(slot: int) -> str:
    """Return shell lines that attach a disk of the lab's driver and wait for udev."""
    return (
        f"[ -e /sys/block/lab{slot} ] || echo {slot} > {PARAMETERS}/attach\n"
        "udevadm settle --timeout=30"
    )


def detach(slot: int) -> str:
    """Return a shell line that detaches a disk of the lab's driver."""
    return f"echo {slot} > {PARAMETERS}/detach"


def serial_of(socket: str) -> str:
    """Return the serial of the disk whose server would have this control socket."""
    return PurePosixPath(socket).stem


def order(slot: int, step: AskServer) -> str:
    """Return a shell line that makes the driver do a disk server's command (``nbdkit_disk.c:
    command``).

    ``InputError``: the driver cannot.
    """
    match step.line.split():
        case ["error", "read" | "write" as way, offset, length, *times]:
            flags = {"read": 1, "write": 2}[way]
            words = ("bad", offset, length, str(flags), *times)
        case ["rot", offset, length, *flip]:
            words = ("rot", offset, length, *(flip or ["255"]))
        case ["misread", offset, length, *flip]:
            words = ("bad", offset, length, "4", *(flip or ["255"]))
        case ["stall", "release"]:
            words = ("stall", str(FOREVER))
        case ["stall", seconds]:
            words = ("stall", str(round(float(seconds) * 1e9)))
        case ["release"]:
            words = ("stall", "0")
        case _:
            raise InputError(
                f"guest.clock: a sealed guest's disks do not know '{step.line}': set it to real"
            )
    return f"echo {slot} {' '.join(words[1:])} > {PARAMETERS}/{words[0]}"


def stir(seed: int, number: int) -> tuple[str, ...]:
    """Return shell lines before step ``number``: they write files to the guest's memory, over those
    of the step before, and remove half of them.

    Free pages are other ones then. How contiguous a buffer is decides into how many requests its
    I/O is split (``bio_split_rw`` in Linux's ``block/blk-merge.c``). Without this it is the boot
    that decides, which is the same for all seeds, and other code boots another way.
    """
    drawn = Random(seed << 16 | number)  # noqa: S311
    names = [f"/tmp/.stir.{n}" for n in range(_STIRS)]  # noqa: S108  in the guest
    made = [f"head -c {int(2 ** drawn.uniform(12, 20))} /dev/zero >{name}" for name in names]
    return (*made, f"rm {' '.join(name for name in names if drawn.random() < 0.5)}")


def limit(slot: int, step: LimitDisk) -> str:
    """Return a shell line that sets other limits of a throttled disk of the driver."""
    values = " ".join(str(step.limits.get(name, 0)) for name in LIMITS)
    return f"echo {slot} {values} > {PARAMETERS}/limit"


def spoil(slot: int, step: SpoilDisk) -> str:
    """Return a shell line that changes bytes of the driver's disk: exclusive or with the
    pattern."""
    return f"echo {slot} {step.offset} {step.length} {step.pattern} > {PARAMETERS}/rot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of one item."""

    status: int
    out: bytes
    """Standard output. It is decoded on each use: text may take four times the memory."""
    err: bytes
    began: float
    ended: float
    """Seconds of the guest's clock, since its boot."""

    @property
    def stdout(self) -> str:
        return self.out.decode(errors="replace")

    @property
    def stderr(self) -> str:
        return self.err.decode(errors="replace")


OUTPUT: Final = 8 * MIB
"""Most bytes of output of one command."""
_LONGEST: Final = 120
"""More bytes than the first line of a frame has."""
_BEGIN: Final = re.compile(rb"@lab begin (-?\d{1,9}) (\d{1,10}(?:\.\d{1,9})?)")
_END: Final = re.compile(
    rb"@lab end (-?\d{1,9}) (\d{1,3}) (\d{1,10}(?:\.\d{1,9})?) (\d{1,12}) (\d{1,12})"
)
_FRAMES: Final = (b"@lab begin ", b"@lab end ")


@dataclass(frozen=True, slots=True)
class _Frame:
    """A ``begin`` frame, or an ``end`` frame with a result; ``at``: where its output begins."""

    number: int
    clock: float
    status: int | None = None
    at: int = 0
    out: int = 0
    err: int = 0

    @property
    def end(self) -> int:
        return self.at + self.out + self.err


@dataclass(slots=True)
class Progress:
    """Follows the output of a running guest, without reading any of it twice."""

    number: int | None = None
    """Number of the current item; ``None``: the first one has not begun."""
    _at: int = 0
    """Offset of the next line."""

    def follow(self, read: Callable[[int, int], bytes]) -> int | None:
        """Return the number of the current item; ``read`` returns output from an offset on.

        Wrong frames are skipped: :func:`answers` reports them.
        """
        while True:
            piece = read(self._at, _PIECE)
            at = 0
            while (stop := piece.find(b"\n", at)) >= 0:
                try:
                    frame = _frame(piece[at:stop], self._at + stop + 1)
                except ToolError:
                    frame = None
                at = stop + 1
                if frame is None:
                    continue
                if frame.status is None:
                    self.number = frame.number
                elif frame.end - self._at <= len(piece):
                    at = frame.end - self._at
                else:
                    self._at, at = frame.end, 0
                    break
            else:
                # A longer line is no frame.
                self._at += at or (len(piece) if len(piece) == _PIECE else 0)
                if len(piece) < _PIECE:
                    return self.number


_PIECE: Final = 1 << 16


def begun(output: bytes) -> int | None:
    """Return the number of the current item, from the output so far."""
    return Progress().follow(lambda at, size: output[at : at + size])


def answers(output: bytes, items: int | None = None) -> Mapping[int, Answer]:
    """Return results by item number, without items that were not reached.

    ``items``: how many the program has. ``ToolError``: the output has a frame that the program did
    not write. Root in the guest can write anything there.
    """
    found: dict[int, Answer] = {}
    began: dict[int, float] = {}
    clock, at = 0.0, 0
    while (stop := output.find(b"\n", at)) >= 0:
        line = output[at : min(stop, at + _LONGEST)]
        frame = _frame(line, stop + 1)
        at = stop + 1
        if frame is None:
            continue
        if frame.number < FAILED or (items is not None and frame.number >= items):
            raise _forged(line, "there is no such command")
        if frame.clock < clock:
            raise _forged(line, f"the guest's clock was at {clock:.2f} s already")
        if frame.number in found:
            raise _forged(line, "this command has ended already")
        clock = frame.clock
        if frame.status is None:
            began[frame.number] = clock
            continue
        if frame.end > len(output):
            break  # the guest ended there
        body = frame.at + frame.out
        found[frame.number] = Answer(
            status=frame.status,
            out=output[frame.at : body],
            err=output[body : frame.end],
            began=began.get(frame.number, clock),
            ended=clock,
        )
        at = frame.end
    return found


def _frame(line: bytes, at: int) -> _Frame | None:
    """Return the frame that a line begins; ``None``: it begins none. ``ToolError``: a wrong one."""
    if not line.startswith(_FRAMES):
        return None
    if match := _BEGIN.fullmatch(line):
        return _Frame(int(match[1]), float(match[2]))
    match = _END.fullmatch(line)
    if match is None:
        raise _forged(line, "expected numbers")
    out, err = int(match[4]), int(match[5])
    if int(match[2]) > 255:
        raise _forged(line, "expected an exit status of 255 at most")
    if out + err > OUTPUT:
        raise LimitError(
            f"command {int(match[1])} of the guest printed {format_size(out + err)}, at most"
            f" {format_size(OUTPUT)} are read: make it print less"
        )
    return _Frame(int(match[1]), float(match[3]), int(match[2]), at, out, err)


def _forged(line: bytes, why: str) -> ToolError:
    shown = printable(line.decode(errors="replace"))
    return ToolError(
        f"the guest printed a line that only the lab's program may print: '{shown}': {why}"
    )
