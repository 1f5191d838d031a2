"""Broken arrays to practise on: how each is made, from known files and a seed. Pure.

A drill is made in a guest by mdadm itself; then bytes of its images are changed as the accident
would have. The names of the disks say nothing of their order.
"""

from __future__ import annotations

import hashlib
import io
import random
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from lab.core.units import KIB, MIB

BEFORE, AFTER = "before", "after"
"""Directories of files: those from before the first event of a drill, and those after it."""
PASSPHRASE: Final = "drill"  # noqa: S105 - it is no secret
_FILES: Final = 24
_LARGEST: Final = 640 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Bytes of a member that are replaced after the guest has ended."""

    member: int
    at: int
    """Negative: from the end."""
    length: int
    random: bool = False
    """Random bytes instead of zeros."""
    unread: bool = False
    """The bytes are zeros, and ddrescue's map says that they could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """A broken array."""

    name: str
    title: str
    members: int
    script: str
    """Shell lines in the guest; ``$d0``, ``$d1``, … are the members."""
    changes: tuple[Change, ...] = ()
    left_out: frozenset[int] = frozenset()
    """Members that are not among the inputs."""
    extra: tuple[int, ...] = ()
    """Members that the script uses and that belong to no array: ``foreign``."""
    expected: tuple[str, ...] = (BEFORE, AFTER)
    """Directories whose files can be brought back."""
    size: int = 64 * MIB
    sector: int = 512
    passphrase: str = ""
    backup: bool = False
    """The guest leaves a reshape's backup file on the disk ``keep``."""
    shuffle: bool = True


def files_of(seed: int) -> dict[str, bytes]:
    """Return the drill's files by path."""
    dice = random.Random(seed)  # noqa: S311
    found = {}
    for directory in (BEFORE, AFTER):
        for number in range(_FILES):
            size = int(_LARGEST ** (0.4 + 0.6 * dice.random()))
            found[f"{directory}/{number % 5}/file-{number:02}"] = dice.randbytes(size)
    return found


def archive(seed: int) -> bytes:
    """Return the files as a tar archive, padded to whole sectors."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as tar:
        for path, data in files_of(seed).items():
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    raw = held.getvalue()
    return raw + bytes(-len(raw) % 4096)


def expected_hashes(drill: Drill, seed: int) -> dict[str, str]:
    """Return SHA-256 by path of the files that can be brought back."""
    return {
        path: hashlib.sha256(data).hexdigest()
        for path, data in files_of(seed).items()
        if path.split("/")[0] in drill.expected
    }


def order(drill: Drill, seed: int) -> list[int]:
    """Return the members in the order in which they become inputs."""
    given = [member for member in range(drill.members) if member not in drill.left_out]
    if drill.shuffle:
        random.Random(seed * 7919 + 1).shuffle(given)  # noqa: S311
    return given


PRELUDE: Final = r"""
set -e
md=/dev/md0
make() { mdadm --create $md --run --bitmap=none "$@" </dev/null; }
ext4() { mke2fs -q -t ext4 -E lazy_itable_init=0,lazy_journal_init=0 "${1:-$md}"; }
up() { mkdir -p /mnt/f; mount "${1:-$md}" /mnt/f; }
put() { tar -x -f /dev/vdc -C /mnt/f $1; sync; }
down() { umount /mnt/f; }
stop() { mdadm --wait-clean $md || true; mdadm --stop $md; }
idle() { mdadm --wait $md || true; mdadm --wait-clean $md || true; }
throttle() { echo $1 >/sys/block/md0/md/sync_speed_max; echo $1 >/sys/block/md0/md/sync_speed_min; }
# bump MEMBER: more events; a degraded array takes back those of clean and dirty
bump() { echo ${2:-}writemostly >/sys/block/md0/md/dev-${1#/dev/}/state; sleep 1; }
# until PERCENT: a reshape is so far
until_percent() {
  n=0
  while [ $n -lt 1500 ]; do
    part=$(sed -n 's/.*reshape *= *\([0-9]*\).*/\1/p' /proc/mdstat)
    if [ -z "$part" ]; then [ $n -lt 100 ] || break; part=0; fi
    if [ $((part + 20)) -lt "$1" ]; then throttle 3000; else throttle 600; fi # mdadm sets its own
    [ "$part" -lt "$1" ] || return 0
    n=$((n + 1))
    sleep 0.1
  done
  cat /proc/mdstat
  return 1
}
# until_moved: mdadm has moved the first of the sections that it copies to the backup file
until_moved() {
  n=0
  while [ $n -lt 300 ]; do
    throttle 3000 # mdadm sets its own
    [ "$(cat /sys/block/md0/md/suspend_lo)" = 0 ] || return 0
    n=$((n + 1))
    sleep 0.2
  done
  return 1
}
"""
"""Shell functions of the scripts. ``/dev/vdc`` has the files, ``/dev/vdd`` keeps a backup file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """What a seed chooses."""

    seed: int
    chunk: int
    """KiB."""
    disks: int
    dice: random.Random = field(compare=False)

    def all(self, *but: int) -> str:
        return " ".join(f"$d{n}" for n in range(self.disks) if n not in but)


def _choice(seed: int, least: int = 4, most: int = 5) -> _Choice:
    dice = random.Random(seed * 104729 + 17)  # noqa: S311
    return _Choice(
        seed=seed,
        chunk=dice.choice((32, 64, 128, 512)),
        disks=dice.randint(least, most),
        dice=dice,
    )


def _made(choice: _Choice, level: int = 5, more: str = "", put: str = f"{BEFORE} {AFTER}") -> str:
    return (
        f"make -l{level} -n{choice.disks} -c{choice.chunk} --assume-clean {more} {choice.all()}\n"
        f"ext4; up; put '{put}'\n"
    )


def _one_behind(seed: int) -> Drill:
    c = _choice(seed)
    last = c.dice.randrange(c.disks)
    script = (
        f"{_made(c)}down; sleep 1\n"
        f"dd if=$d{last} of=/tmp/sb bs=4k skip=1 count=1 2>/dev/null\n"
        f"bump $d{(last + 1) % c.disks}; stop\n"
        f"dd of=$d{last} if=/tmp/sb bs=4k seek=1 count=1 conv=notrunc oflag=direct 2>/dev/null\n"
    )
    return _drill("one-behind", "a member missed the last update", c, script)


def _far_behind(seed: int) -> Drill:
    c = _choice(seed)
    gone = c.dice.randrange(c.disks)
    script = (
        f"{_made(c, put=BEFORE)}mdadm $md -f $d{gone}; sleep 1; mdadm $md -r $d{gone}\n"
        f"put {AFTER}; down; stop\n"
    )
    return _drill("far-behind", "a member is far behind", c, script)


def _two_lost(seed: int) -> Drill:
    c = _choice(seed)
    first, second, other = c.dice.sample(range(c.disks), 3)
    script = (
        f"{_made(c, put=BEFORE)}mdadm $md -f $d{first}; put {AFTER}; down; idle\n"
        f"dd if=$d{second} of=/tmp/sb bs=4k skip=1 count=1 2>/dev/null\n"
        f"for n in 1 2 3; do bump $d{other}; bump $d{other} -; done; stop\n"
        f"dd of=$d{second} if=/tmp/sb bs=4k seek=1 count=1 conv=notrunc oflag=direct 2>/dev/null\n"
    )
    return _drill("two-lost", "two of RAID 5 failed, the first long ago", c, script)


def _controller(seed: int) -> Drill:
    c = replace(_choice(seed), disks=6)
    gone = c.dice.sample(range(6), 3)
    pull = " ".join(f"$d{n}" for n in gone)
    script = (
        f"{_made(c, level=6)}sleep 1\n"
        "(dd if=/dev/urandom of=/mnt/f/torn bs=64k count=200 oflag=direct 2>/dev/null || true) &\n"
        f"sleep 0.5; for d in {pull}; do echo 1 >/sys/block/${{d#/dev/}}/device/delete; done\n"
        "sleep 3\n"
    )
    return _drill("controller", "three of six vanished in mid-write", c, script)


def _zeroed_one(seed: int) -> Drill:
    c = _choice(seed)
    gone = c.dice.randrange(c.disks)
    script = f"{_made(c)}down; stop; mdadm --zero-superblock $d{gone}\n"
    return _drill("zeroed-one", "one superblock is zeroed", c, script)


def _zeroed_all(seed: int) -> Drill:
    c = _choice(seed)
    level = c.dice.choice((5, 5, 6, 0, 10))
    script = f"{_made(c, level=level)}down; stop; mdadm --zero-superblock {c.all()}\n"
    return _drill("zeroed-all", f"all superblocks of RAID {level} are zeroed", c, script)


def _recreated(name: str, title: str, again: Callable[[_Choice], str]) -> Callable[[int], Drill]:
    def made(seed: int) -> Drill:
        c = _choice(seed)
        return _drill(name, title, c, f"{_made(c)}down; stop; set +e\n{again(c)}")

    return made


def _wrong_order(c: _Choice) -> str:
    disks = [f"$d{n}" for n in range(c.disks)]
    while disks == [f"$d{n}" for n in range(c.disks)]:
        c.dice.shuffle(disks)
    return f"make -l5 -n{c.disks} -c{c.chunk} --assume-clean {' '.join(disks)}; stop\n"


def _wrong_chunk(c: _Choice) -> str:
    other = c.dice.choice([n for n in (32, 64, 128, 512) if n != c.chunk])
    return f"make -l5 -n{c.disks} -c{other} --assume-clean {c.all()}; stop\n"


def _wrong_version(c: _Choice) -> str:
    version = c.dice.choice(("1.0", "0.90"))
    return f"make -e{version} -l5 -n{c.disks} -c{c.chunk} --assume-clean {c.all()}; stop\n"


def _wrong_twice(c: _Choice) -> str:
    return f"{_wrong_order(c)}{_wrong_chunk(c)}"


def _table_lost(seed: int) -> Drill:
    c = _choice(seed)
    names = " ".join(f"$d{n}" for n in range(c.disks))
    kind = c.dice.choice(("gpt", "dos"))
    parts = "; ".join(f"p{n}=$(part $d{n})" for n in range(c.disks))
    made = _made(c).replace("$d", "$p")
    script = (
        "part() { ls ${1}1; }\n"
        f"for d in {names}; do echo 'label: {kind}\nstart=2048,' | sfdisk -q $d; "
        "blockdev --rereadpt $d || true; done; sleep 1\n"
        f"{parts}\n{made}down; stop\n"
    )
    changes = tuple(
        Change(member=n, at=at, length=length)
        for n in range(c.disks)
        for at, length in ((0, 34 * 512), (-33 * 512, 33 * 512))
    )
    return replace(
        _drill("table-lost", "the partition tables are lost", c, script), changes=changes
    )


def _holes(seed: int) -> Drill:
    c = _choice(seed)
    changes = []
    first = 6 * MIB
    for n, member in enumerate(c.dice.sample(range(c.disks), 3)):
        for k in range(6):
            at = first + (k * 3 + n) * 2 * MIB + c.dice.randrange(64) * 4096
            length = c.dice.randint(1, 24) * 4096
            changes.append(Change(member=member, at=at, length=length, unread=True))
    return replace(
        _drill("holes", "disks were copied by ddrescue, with holes", c, f"{_made(c)}down; stop\n"),
        changes=tuple(changes),
    )


def _reshape(name: str, percent: int) -> Callable[[int], Drill]:
    def made(seed: int) -> Drill:
        c = replace(_choice(seed, 3, 4), chunk=64)
        added = c.disks
        script = (
            f"{_made(c)}down; mdadm $md -a $d{added}; throttle 3000\n"
            f"mdadm --grow $md -n{c.disks + 1}; until_percent {percent}\n"
        )
        drill = _drill(name, f"a reshape to one more member was cut at {percent} %", c, script)
        return replace(drill, members=c.disks + 1)

    return made


def _backup(name: str, *, kept: bool) -> Callable[[int], Drill]:
    def made(seed: int) -> Drill:
        c = replace(_choice(seed, 3, 4), chunk=64)
        # 0.90 cannot move its data, so that the critical section is copied to a file.
        first = _made(c, more="-e0.90 -z 61440")
        script = (
            f"{first}down; mkdir -p /tmp/b; mke2fs -q /dev/vdd; mount /dev/vdd /tmp/b\n"
            "throttle 3000\n"
            "mdadm --grow $md -c128 --backup-file=/tmp/b/backup\n"
            f"until_moved; sleep {c.dice.random() * 2:.1f}\n"
            "sync -f /tmp/b\n"
        )
        words = "its backup file is here" if kept else "its backup file is lost"
        drill = _drill(name, f"a reshape in place was cut, and {words}", c, script)
        return replace(drill, backup=kept)

    return made


def _half(seed: int) -> Drill:
    c = replace(_choice(seed), disks=4)
    gone = frozenset({c.dice.choice((0, 1)), c.dice.choice((2, 3))})
    script = f"{_made(c, level=10)}down; stop\n"
    return replace(_drill("half", "RAID 10 with half of its mirrors", c, script), left_out=gone)


def _journal(seed: int) -> Drill:
    c = _choice(seed)
    script = (
        f"mdadm --create $md --run -l5 -n{c.disks} -c{c.chunk} --write-journal $d{c.disks} "
        f"{c.all()} </dev/null\n"
        f"idle; ext4; up; put '{BEFORE} {AFTER}'; down; sleep 1; stop\n"
    )
    drill = _drill("journal-lost", "the write journal is lost", c, script)
    return replace(drill, members=c.disks + 1, left_out=frozenset({c.disks}))


def _foreign(seed: int) -> Drill:
    c = _choice(seed)
    extra = (c.disks, c.disks + 1)
    gone = c.dice.randrange(c.disks)
    script = (
        f"mdadm --create /dev/md9 --run --bitmap=none -l1 -n2 --assume-clean $d{extra[0]} "
        f"$d{extra[1]}; mke2fs -q /dev/md9; mdadm --stop /dev/md9\n{_made(c)}down; stop\n"
    )
    drill = _drill("foreign", "disks were moved, one is lost and a foreign one is there", c, script)
    left = frozenset({gone, extra[1]})
    return replace(drill, members=c.disks + 2, left_out=left)


def _native_4k(seed: int) -> Drill:
    c = _choice(seed)
    gone = c.dice.randrange(c.disks)
    script = f"{_made(c, put=BEFORE)}mdadm $md -f $d{gone}; sleep 1\nput {AFTER}; down; stop\n"
    drill = _drill("native-4k", "disks of 4096-byte sectors, one far behind", c, script)
    return replace(drill, sector=4096)


def _lvm(seed: int) -> Drill:
    c = _choice(seed)
    gone = c.dice.randrange(c.disks)
    lvm = "--config 'activation{udev_sync=0 udev_rules=0} backup{backup=0 archive=0}'"
    made = (
        f"make -l5 -n{c.disks} -c{c.chunk} --assume-clean {c.all()}\n"
        f'L="{lvm}"; pvcreate -q -y $md; eval vgcreate $L -q -y vg $md\n'
        "for n in one two; do eval lvcreate $L -q -y -Wn -Zn -L 48M -n $n vg; done\n"
        "eval vgmknodes $L || true; ext4 /dev/mapper/vg-one; ext4 /dev/mapper/vg-two\n"
        f"up /dev/mapper/vg-one; put {BEFORE}; down; mdadm $md -f $d{gone}\n"
        f"up /dev/mapper/vg-two; put {AFTER}; down; eval vgchange $L -q -an vg; stop\n"
    )
    return _drill("lvm", "LVM above, a member far behind", c, made)


def _luks(seed: int) -> Drill:
    c = _choice(seed)
    gone = c.dice.randrange(c.disks)
    script = (
        f"make -l5 -n{c.disks} -c{c.chunk} --assume-clean {c.all()}\n"
        f"printf {PASSPHRASE} |"
        " cryptsetup luksFormat -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000"
        " $md -\n"
        f"printf {PASSPHRASE} | cryptsetup open $md secret --key-file -\n"
        f"ext4 /dev/mapper/secret; up /dev/mapper/secret; put {BEFORE}; mdadm $md -f $d{gone}\n"
        f"put {AFTER}; down; cryptsetup close secret; stop\n"
    )
    return replace(
        _drill("luks", "LUKS above, a member far behind", c, script), passphrase=PASSPHRASE
    )


def _file_systems(seed: int) -> Drill:
    c = _choice(seed)
    kind = ("xfs", "btrfs", "ext4")[seed % 3]
    form = {"xfs": "mkfs.xfs -q -f $md", "btrfs": "mkfs.btrfs -q -f $md", "ext4": "ext4"}[kind]
    size = 128 if kind == "xfs" else 64
    script = (
        f"make -l5 -n{c.disks} -c{c.chunk} --assume-clean {c.all()}\n"
        f"{form}; up; put '{BEFORE} {AFTER}'; down; stop; mdadm --zero-superblock {c.all()}\n"
    )
    drill = _drill("file-systems", f"{kind} above, all superblocks are zeroed", c, script)
    return replace(drill, size=size * MIB)


def _hopeless(seed: int) -> Drill:
    c = _choice(seed)
    gone = frozenset(c.dice.sample(range(c.disks), 2))
    drill = _drill("hopeless", "two members of RAID 5 are lost", c, f"{_made(c)}down; stop\n")
    return replace(drill, left_out=gone, expected=())


def _drill(name: str, title: str, choice: _Choice, script: str) -> Drill:
    return Drill(name=name, title=title, members=choice.disks, script=script)


DRILLS: Final[dict[str, Callable[[int], Drill]]] = {
    "one-behind": _one_behind,
    "far-behind": _far_behind,
    "two-lost": _two_lost,
    "controller": _controller,
    "zeroed-one": _zeroed_one,
    "zeroed-all": _zeroed_all,
    "wrong-order": _recreated("wrong-order", "created over in a wrong order", _wrong_order),
    "wrong-chunk": _recreated("wrong-chunk", "created over with a wrong chunk", _wrong_chunk),
    "wrong-version": _recreated(
        "wrong-version", "created over with another version", _wrong_version
    ),
    "wrong-twice": _recreated("wrong-twice", "created over twice", _wrong_twice),
    "table-lost": _table_lost,
    "holes": _holes,
    "reshape-10": _reshape("reshape-10", 10),
    "reshape-90": _reshape("reshape-90", 90),
    "backup-kept": _backup("backup-kept", kept=True),
    "backup-lost": _backup("backup-lost", kept=False),
    "half": _half,
    "journal-lost": _journal,
    "foreign": _foreign,
    "native-4k": _native_4k,
    "lvm": _lvm,
    "luks": _luks,
    "file-systems": _file_systems,
    "hopeless": _hopeless,
}
"""By name: what makes the drill of a seed."""
