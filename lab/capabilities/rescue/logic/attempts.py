"""Chooses ways to start an array, and writes the script that tries them in a guest. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, islice
from typing import Final

from lab.capabilities.rescue.logic.diagnosis import level_name, named, needed
from lab.capabilities.rescue.model import (
    Arrangement,
    Array,
    Attempt,
    Diagnosis,
    Member,
    Outcome,
    Part,
    Shape,
)
from lab.core.units import is_digits

ARRAY: Final = "/dev/md127"
BACKUP: Final = "{backup}"
"""Stands for the file of a reshape's critical section."""
MOST: Final = 20
_SETS: Final = 4
"""Most sets of old members that are tried with ``--force``."""
_WAYS: Final = 5000
"""Most sets that are compared: superblocks may name any number of members."""
_MEMBERS: Final = 400
"""Most members of an array that attempts are made with; each gets an overlay in each attempt."""
MOVES: Final = "data: the reshape goes on, although --readonly is given, and cannot be undone"
SUPERBLOCKS: Final = "the superblocks of the members (their event counts)"
RAID5_LAYOUTS: Final = (
    *("left-asymmetric", "right-asymmetric", "left-symmetric", "right-symmetric"),
    *("parity-first", "parity-last"),
)


def choose(diagnosis: Diagnosis, *, backup: bool = False) -> list[Attempt]:
    """Return attempts, the mildest first. ``backup``: a reshape's backup file is given."""
    found: list[Attempt] = []
    for number, array in enumerate(diagnosis.arrays):
        prefix = "" if number == 0 else f"older-{number}-"
        if 0 < len(array.members) <= _MEMBERS:
            found += _of_array(prefix, array, backup=backup)
    distinct: dict[tuple[str, ...], Attempt] = {}
    for attempt in found:
        distinct.setdefault(attempt.commands, attempt)
    return list(distinct.values())[:MOST]


def created(arrangements: Sequence[Arrangement]) -> list[Attempt]:
    """Return attempts that write new superblocks for arrangements that were found in the data."""
    return [_created(f"create-{number}", one) for number, one in enumerate(arrangements, 1)]


def _of_array(prefix: str, array: Array, *, backup: bool) -> list[Attempt]:
    shape, fresh = array.shape, list(array.fresh)
    everybody = _one_of_each(array.members)
    journal = [array.journal] if array.journal else []
    stale = [member for member in everybody if member.stale]
    newest = max(member.events for member in array.members)
    level = level_name(shape.level)
    lost = array.needs_journal and not array.journal
    found = []

    def add(
        name: str, title: str, members: Sequence[Member], options: str = "", **more: object
    ) -> None:
        parts = [member.part for member in members] + journal
        force = "--force" in options or "--update" in options
        writes = str(more.pop("writes", SUPERBLOCKS if force else ""))
        tail = " ".join(f"{{{part}}}" for part in parts)
        found.append(
            Attempt(
                name=prefix + name,
                title=title,
                commands=(f"mdadm --assemble --readonly --run {options}{ARRAY} {tail}",),
                parts=tuple(parts),
                writes=writes,
                uses_stale=tuple(member.part for member in members if member.stale),
                freshness=min((member.events for member in members), default=0),
                fallback=bool(more.pop("fallback", False)),
                moves_data=bool(more.pop("moves", False)),
                why=str(more.pop("why", "")),
            )
        )

    if array.reshaping:
        if backup:
            add(
                "backup",
                "assemble with the backup file",
                everybody,
                f"--backup-file={BACKUP} ",
                writes=MOVES,
                moves=True,
            )
        add("frozen", "assemble and leave the reshape where it is", everybody, "--freeze-reshape ")
        add("assemble", "assemble", everybody)
        add(
            "no-backup",
            "assemble without the reshape's backup file",
            everybody,
            "--invalid-backup --backup-file=/tmp/none ",
            fallback=True,
            moves=True,
            writes=MOVES,
            why="the section that was being moved may be corrupt",
        )
        add("force-frozen", "force, and leave the reshape", everybody, "--force --freeze-reshape ")
        add(
            "revert",
            "revert the reshape",
            everybody,
            "--update=revert-reshape ",
            fallback=True,
            moves=True,
        )
        return found
    if len(fresh) >= needed(shape):
        if lost:
            add(
                "without-journal",
                f"assemble the {level} without its journal",
                everybody,
                "--force ",
                fallback=True,
                why="writes that were only in the journal are lost",
            )
        add("assemble", f"assemble the {level}", fresh)
        if stale:
            add(
                "assemble-all",
                "assemble with all disks; mdadm leaves the stale ones out",
                everybody,
            )
        if lost or not array.clean:
            add("force", "assemble with --force", fresh, "--force ")
        return found
    add("assemble", f"assemble the {level}", everybody)
    lacking = needed(shape) - len(fresh)
    old = sorted(stale, key=lambda member: -member.events)
    # In the order of `old` the first sets are the newest ones, but for members of equal counts.
    ways = islice(combinations(old, lacking), _WAYS) if lacking <= len(old) else ()
    sets = sorted(ways, key=lambda s: [-m.events for m in s])[:_SETS]
    for number, chosen in enumerate(sets, 1):
        names = ", ".join(f"{{{member.part}}}" for member in chosen)
        behind = newest - min((member.events for member in chosen), default=newest)
        add(
            f"force-{number}",
            f"force, with the old member {names}",
            [*fresh, *chosen],
            "--force ",
            why=f"its oldest member is {behind} events behind",
        )
    if len(old) > lacking:
        add("force-all", "force, with all members", everybody, "--force ")
    return found


def _one_of_each(members: Sequence[Member]) -> list[Member]:
    """Return the newest member of each slot."""
    best: dict[int, Member] = {}
    for member in members:
        if member.role not in best or member.events > best[member.role].events:
            best[member.role] = member
    return [best[role] for role in sorted(best)]


def _created(name: str, arrangement: Arrangement) -> Attempt:
    shape = arrangement.shape
    words = ["mdadm --create --run --assume-clean --readonly"]
    words += [f"--metadata={shape.version} --level={level_word(shape.level)}"]
    words += [f"--raid-devices={shape.disks}"]
    if shape.chunk and shape.level != 1:
        words.append(f"--chunk={shape.chunk // 1024}")
    if layout := layout_word(shape):
        words.append(f"--layout={layout}")
    if shape.version in ("1.1", "1.2"):
        words.append(f"--data-offset={shape.data_offset // 1024}")
    if shape.level > 0:
        words.append("--bitmap=none")
    if shape.size and shape.level not in (-1, 0):
        words.append(f"--size={shape.size // 1024}")
    words.append(ARRAY)
    words += [f"{{{slot}}}" if slot else "missing" for slot in arrangement.slots]
    order = " ".join(f"{{{slot}}}" if slot else "missing" for slot in arrangement.slots)
    return Attempt(
        name=name,
        title=f"write new superblocks: {level_name(shape.level)}, chunk {shape.chunk // 1024} KiB, "
        f"in the order {order}",
        commands=(" ".join(words),),
        parts=tuple(slot for slot in arrangement.slots if slot),
        writes="new superblocks over what is at their place, and no data",
        destructive=True,
        arrangement=arrangement,
        why=arrangement.evidence,
    )


def level_word(level: int) -> str:
    """Return mdadm's word for a level."""
    return "linear" if level == -1 else str(level)


def layout_word(shape: Shape) -> str:
    """Return mdadm's word for a layout; empty: the level has none, or it is not known here."""
    if shape.level == 5 and shape.layout < len(RAID5_LAYOUTS):
        return RAID5_LAYOUTS[shape.layout]
    if shape.level == 6:
        if shape.layout < len(RAID5_LAYOUTS):
            return RAID5_LAYOUTS[shape.layout]
        return {8: "ddf-zero-restart", 9: "ddf-N-restart", 10: "ddf-N-continue"}.get(
            shape.layout, f"{RAID5_LAYOUTS[shape.layout - 16]}-6" if 16 <= shape.layout < 21 else ""
        )
    if shape.level == 10:
        near, far = shape.layout & 255, shape.layout >> 8 & 255
        if far > 1:
            return f"{'o' if shape.layout >> 16 else 'f'}{far}"
        return f"n{near}"
    return ""


# -- the guest

LIBRARY: Final = r"""
cat >/tmp/lib <<'LIB'
md=/dev/md127
lvm() {
  command lvm "$@" --config 'devices { filter=["a|^/dev/mapper/(top|open.*)$|","r|.*|"]
    use_devicesfile=0 md_component_detection=0 }
    activation { udev_sync=0 udev_rules=0 monitoring=0 } backup { backup=0 archive=0 }'
}
# part NAME DISK SECTORS START: DISK's part as /dev/mapper/NAME; ranges to fail on standard input
part() {
  at=0
  {
    while read -r begin length; do
      [ "$begin" -le $at ] || echo "$at $((begin - at)) linear $2 $(($4 + at))"
      echo "$begin $length error"
      at=$((begin + length))
    done
    [ $at -ge $3 ] || echo "$at $(($3 - at)) linear $2 $(($4 + at))"
  } | dmsetup create --noudevsync "$1"
  dmsetup mknodes "$1"
}
fs() { # device type
  mkdir -p /mnt/x
  echo "=layer $2"
  mount -t "$2" -o ro "$1" /mnt/x; m=$?
  options=ro
  if [ $m != 0 ]; then
    case $2 in
      ext*) options=ro,noload;;
      xfs) options=ro,norecovery;;
      btrfs) options=ro,rescue=all;;
    esac
    mount -t "$2" -o $options "$1" /mnt/x; m=$?
  fi
  [ $m != 0 ] || umount /mnt/x
  case $2 in
    ext*) timeout @FSCK@ e2fsck -fn "$1" >/tmp/fsck 2>&1;;
    xfs) timeout @FSCK@ xfs_repair -n "$1" >/tmp/fsck 2>&1;;
    btrfs) timeout @FSCK@ btrfs check --readonly "$1" >/tmp/fsck 2>&1;;
    vfat) timeout @FSCK@ fsck.vfat -n "$1" >/tmp/fsck 2>&1;;
    *) false;;
  esac
  f=$?
  head -c 3000 /tmp/fsck
  [ $m != 0 ] || mount -t "$2" -o $options "$1" /mnt/x || m=$?
  files=0 dirs=0 bad=0
  if [ $m = 0 ]; then
    dirs=$(cd /mnt/x && find . -xdev -type d 2>/dev/null | wc -l)
    (cd /mnt/x && find . -xdev -type f -print0 2>/tmp/found | head -z -n @FILES@ |
      timeout @READ@ xargs -0 -r sha256sum >/tmp/sums 2>>/tmp/found)
    files=$(wc -l </tmp/sums) bad=$(wc -l </tmp/found)
    sed 's,^\(\\\?[0-9a-f]*\)  \./,=hash \1 ,' /tmp/sums
    head -n 5 /tmp/found
    @COPY@
    umount /mnt/x
  fi
  echo "=fs $2 $f $m $files $dirs $bad"
}
look() { # device depth
  [ "$2" -lt 5 ] || return 0
  t=$(blkid -p -o value -s TYPE "$1")
  case "$t" in
    LVM2_member)
      echo "=layer lvm"
      vg=$(lvm pvs --noheadings -o vg_name "$1" | tr -d ' ')
      [ -n "$vg" ] || return 0
      lvm vgchange -ay "$vg"; lvm vgmknodes
      for lv in $(lvm lvs --noheadings -o lv_name "$vg"); do
        n=/dev/mapper/$(echo "$vg" | sed 's/-/--/g')-$(echo "$lv" | sed 's/-/--/g')
        look "$n" $(($2 + 1))
      done
      lvm vgchange -an "$vg" >/dev/null;;
    crypto_LUKS)
      echo "=layer luks"
      if [ -s /tmp/passphrase ]; then
        if cryptsetup open --disable-keyring "$1" open$2 --key-file /tmp/passphrase; then
          look /dev/mapper/open$2 $(($2 + 1)); cryptsetup close open$2
        else echo "=fs luks 1 1 0 0 0"; fi
      else echo "=locked"; fi;;
    swap) echo "=layer swap";;
    '')
      p=$(sfdisk -d "$1" 2>/dev/null | sed -n 's/.*start= *\([0-9]*\), size= *\([0-9]*\).*/\1 \2/p')
      [ -n "$p" ] || { echo "=nothing"; return 0; }
      k=0
      echo "$p" | while read -r s l; do
        k=$((k + 1))
        dmsetup create --noudevsync open$2p$k --table "0 $l linear $1 $s"
        dmsetup mknodes open$2p$k
        look /dev/mapper/open$2p$k $(($2 + 1)); dmsetup remove --noudevsync open$2p$k
      done;;
    *) fs "$1" "$t";;
  esac
}
judge() {
  grep -A3 '^md127' /proc/mdstat
  [ -e /sys/block/md127 ] || return 0
  n=0
  while [ "$(blockdev --getsz $md)" = 0 ] && [ $n -lt 20 ]; do sleep 0.1; n=$((n + 1)); done
  s=$(blockdev --getsz $md)
  [ "$s" != 0 ] || { mdadm --detail $md; mdadm --stop $md; return 0; }
  echo "=assembled $((s * 512)) $(cat /sys/block/md127/md/array_state)"
  echo 4096 >/sys/block/md127/md/stripe_cache_size 2>/dev/null || true
  dmsetup create --noudevsync top --table "0 $s snapshot $md $cow N 8" && dmsetup mknodes top
  look /dev/mapper/top 0
  dmsetup remove --noudevsync top
  mdadm --stop $md
}
LIB
for d in /sys/block/vd*; do echo "$(cat $d/serial)=/dev/${d##*/}" >>/tmp/lib; done
. /tmp/lib
"""
COPY: Final = """\
copies=$((${copies:-0} + 1))
    set -- -cf
    [ $copies = 1 ] || set -- --transform "s,^\\.,file-system-$copies,S" -rf
    (cd /mnt/x && find . ! -type b ! -type c -print0) |
      tar -C /mnt/x --null --no-recursion -T - "$@" $out"""
"""Shell lines that add the mounted file system to the archive, without devices; further ones get a
directory."""
SECONDS: Final = 900
"""Most seconds of an attempt in the guest."""


def script(
    attempts: Sequence[tuple[int, Attempt]],
    parts: Mapping[str, Part],
    *,
    passphrase: int = 0,
    backup: int = 0,
    files: int = 20000,
    copy: bool = False,
) -> str:
    """Return the script that tries attempts; each has a number, its disks are that SCSI target.

    ``passphrase``, ``backup``: bytes on the disks of these names. ``copy``: files go to the disk
    ``out`` as a tar archive; those of further file systems to ``file-system-2`` and so on in it.
    """
    library = (
        LIBRARY.replace("@FSCK@", "300").replace("@READ@", "600").replace("@FILES@", str(files))
    )
    lines = [library.replace("@COPY@", COPY if copy else ":")]
    if passphrase:
        lines.append(f"head -c {passphrase} $passphrase >/tmp/passphrase")
    if backup:
        lines.append(f"head -c {backup} $backup >/tmp/backup")
    for target, attempt in attempts:
        devices = {}
        for lun, name in enumerate(attempt.parts):
            part = parts[name]
            device = f"$(disk {target} {lun})"
            if part.at or part.unread or part.table:
                ranges = "\n".join(
                    f"{begin // 512} {-(-(begin + length) // 512) - begin // 512}"
                    for begin, length in part.unread
                )
                alias = f"m{target}x{lun}"
                words = f"part {alias} {device} {part.size // 512} {part.at // 512}"
                lines.append(f"{words} <<'R'\n{ranges}\nR" if ranges else f"{words} </dev/null")
                device = f"/dev/mapper/{alias}"
            devices[name] = device
        devices["backup"] = "/tmp/backup"  # noqa: S108 - in the guest
        commands = "; ".join(named(command, devices.__getitem__) for command in attempt.commands)
        lines.append(f'item a{target} {SECONDS} "{commands}; judge"')
    return "\n".join(lines)


def outcome(attempt: Attempt, status: int | None, output: str) -> Outcome:
    """Return what an attempt's output says; ``None``: the guest ended before it was finished."""
    if status is None:
        return Outcome(attempt=attempt, ran=False, log=output)
    size, state, locked = 0, "", False
    layers: list[str] = []
    hashes: dict[str, str] = {}
    mounted = unmounted = errors = files = directories = bad = 0
    log = []
    for line in output.splitlines():
        words = line.split(" ")
        if line.startswith("=assembled ") and len(words) == 3 and is_digits(words[1]):
            size, state = int(words[1]), words[2]
        elif line.startswith("=layer "):
            layers.append(words[1])
        elif line == "=locked":
            locked = True
        elif line.startswith("=hash ") and len(words) > 2:
            hashes[" ".join(words[2:])] = words[1].lstrip("\\")
        elif line.startswith("=fs ") and len(words) == 7 and all(map(is_digits, words[2:])):
            check, mount, some, many, wrong = (int(word) for word in words[2:])
            mounted += mount == 0
            unmounted += mount != 0
            errors += check != 0
            files, directories, bad = files + some, directories + many, bad + wrong
        elif not line.startswith("="):
            log.append(line)
    return Outcome(
        attempt=attempt,
        assembled=size > 0,
        size=size,
        state=state,
        layers=tuple(layers),
        mounted=mounted,
        unmounted=unmounted,
        fsck_errors=errors,
        files=files,
        directories=directories,
        unreadable=bad,
        hashes=hashes,
        locked=locked,
        log="\n".join(log),
    )
