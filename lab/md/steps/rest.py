"""Brings md arrays to rest between two workloads: as they were after their creation.

Sources: kernel ``drivers/md/raid5.c``, ``md-bitmap.c``, ``md-llbitmap.c``, ``md.c``.

- *Journal.* A write to ``suspend_lo`` suspends the array. Up to Linux 6.5 RAID 5 then writes back
  what its journal caches (``raid5_quiesce``, ``r5l_quiesce``). Since 6.6 it does not (``md: don't
  quiesce in mddev_suspend()``), so a journal in ``write-back`` is reported.
- *Stripe cache.* Stripes keep their data until they are used again. ``stripe_cache_size`` frees the
  oldest first (``get_free_stripe``) and adds empty ones behind them. The smallest size is 17. So
  after 17, 128, 17 no old stripe is left.
- *Bitmap.* md clears a bit after two scans without a write, and writes the page at the next one.
  ``bitmap/time_base`` makes the scans fast. Counters of pages without a bit are freed
  (``md_bitmap_checkfree``), and ``/proc/mdstat`` has their number. With a missing member md clears
  no bit.
- *State.* The first write to a clean array writes the superblocks. An array becomes clean
  ``safe_mode_delay`` after the last write.
"""

from __future__ import annotations

from typing import Final

from lab.md.facts.levels import NAMES
from lab.md.steps.verify import has_bits
from lab.model.scenario.document import Array

LIMIT: Final = 120
"""Most seconds of all waits for md before one workload."""
_SCAN: Final = 0.2
"""Seconds between two scans for bits meanwhile."""
_SMALLEST: Final = 17
_ABOVE: Final = 128
_SETTLES: Final = 0.1
"""Seconds in which md's thread takes new stripes into its lists."""

_BEGIN: Final = f"""\
read -r now _ < /proc/uptime
end=$((${{now%.*}} + {LIMIT}))
late() {{ read -r now _ < /proc/uptime; [ ${{now%.*}} -ge $end ]; }}
for md in /sys/block/md*/md; do
  name=${{md%/md}} name=${{name##*/}} action=idle degraded=0
  [ -e $md/sync_action ] || continue
"""
_IDLE: Final = f"""\
  while read -r action < $md/sync_action; [ $action != idle ]; do
    ! late || break
    sleep {_SCAN}
  done
"""
_BUSY: Final = """\
  read -r action < $md/sync_action
  [ $action = idle ] || { unrest "$name was busy with $action"; continue; }
"""
_DEGRADED: Final = """\
  read -r degraded < $md/degraded
"""
_JOURNAL: Final = """\
  if read -r mode < $md/journal_mode; then
    echo 0 > $md/suspend_lo
    case "$(uname -r) $mode" in
    [0-5].* | 6.[0-5].*) ;;
    *"[write-back]"*) unrest "the journal of $name may have cached writes" ;;
    esac
  fi 2>/dev/null
"""
_STRIPES: Final = f"""\
  read -r stripes < $md/stripe_cache_size
  for size in {_SMALLEST} {_ABOVE} {_SMALLEST} $stripes; do
    echo $size > $md/stripe_cache_size || true
    sleep {_SETTLES}
  done
  read -r size < $md/stripe_cache_size
  [ $size = $stripes ] || unrest "$name has $size stripes instead of $stripes"
"""
_BITS: Final = f"""\
  marked() {{
    pages=0 of=
    while read -r word value _; do
      case $word in
      $name) of=1 ;;
      "") of= ;;
      bitmap:) [ -z "$of" ] || pages=${{value%%/*}} ;;
      esac
    done < /proc/mdstat
    [ $pages != 0 ]
  }}
  read -r base < $md/bitmap/time_base
  [ $degraded != 0 ] || echo {_SCAN} > $md/bitmap/time_base
  while marked && [ $degraded = 0 ]; do
    ! late || break
    sleep {_SCAN}
  done
  sleep {4 * _SCAN:g}
  echo $base > $md/bitmap/time_base
  if marked; then
    why_not="md had not cleared them in time"
    [ $degraded = 0 ] || why_not="md clears none while a member is missing"
    unrest "$pages pages of the bitmap of $name have bits of earlier writes: $why_not"
  fi
"""
_LOCKLESS: Final = """\
  marked() {
    pages=0
    while read -r word value _; do
      case $word in dirty | syncing) pages=$((pages + value)) ;; esac
    done < $md/llbitmap/bits
    [ $pages != 0 ]
  }
  while marked && [ $degraded = 0 ] && ! late; do sleep 1; done
  ! marked || unrest "$pages bits of the bitmap of $name are dirty"
"""
_CLEAN: Final = f"""\
  read -r delay < $md/safe_mode_delay
  while read -r state < $md/array_state; do
    case $state in active | active-idle | write-pending) ;; *) break ;; esac
    case $delay in 0 | 0.000) break ;; esac
    late && {{ unrest "$name was still $state"; break; }}
    sleep {_SCAN}
  done
"""
_END: Final = f"""\
done
for disk in /sys/block/*/inflight; do
  while read -r reads writes < $disk; [ "$reads $writes" != "0 0" ]; do
    late && {{ unrest "$disk had requests in flight: $reads $writes"; break; }}
    sleep {_SCAN}
  done
done
"""


def rest_script(array: Array, *, waits: bool) -> str:
    """Return shell lines that bring all md arrays of the guest to rest; empty: no workload changes
    them. ``waits``: until they are idle, which is not wanted if a sync runs on purpose.

    The shell function ``unrest`` is called with what stays.
    """
    level = NAMES.get(array.level)
    if level is None or not level.redundant:
        return ""
    lockless = array.bitmap == "lockless"  # it syncs regions at their first write
    parts = [_BEGIN, _IDLE if waits else "", "" if lockless else _BUSY, _DEGRADED]
    if level.parity:
        parts += [_JOURNAL, _STRIPES]
    if has_bits(array):
        parts.append(_BITS)
    elif lockless:
        parts.append(_LOCKLESS)
    return "".join((*parts, _CLEAN, _END))
