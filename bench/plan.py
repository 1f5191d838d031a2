"""What a benchmark consists of: arms, units, rounds, and in which order they run; pure.

A *unit* is the smallest thing that is measured and stored: one cell by hand, or one command of the
lab. Units of all arms are interleaved, so that a machine that gets slower or faster in the meantime
does so for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

LAYOUTS = (
    "left-asymmetric",
    "right-asymmetric",
    "left-symmetric",
    "right-symmetric",
    "parity-first",
    "parity-last",
)
DISKS = (3, 5)
CELLS = tuple(f"{layout}-{disks}" for layout in LAYOUTS for disks in DISKS)
"""Those of ``bench/layouts.yaml``; the driver checks that they are."""

QUICK_CELLS = ("left-symmetric-3", "left-symmetric-5")

ARMS: Mapping[str, str] = {
    "by-hand-sync": "by_hand.sh, a cell each, waiting for mdadm's own initial sync",
    "by-hand-clean": "by_hand.sh, a cell each, with --assume-clean",
    "lab-cold": "lab run scenario bench/layouts.yaml --cold: all cells",
    "lab-warm": "lab run scenario bench/layouts.yaml, with a saved guest there: all cells",
    "lab-alone": "the same with --jobs 1: one cell at a time, nothing beside it",
    "up-cold": "lab up scenario bench/layouts.yaml --no-run --cold: one guest and its array",
    "up-warm": "the same from a saved guest",
    "help": "lab --help",
    "killed": "kill -9 in the middle: of by_hand.sh, and of lab run",
}
BY_HAND = ("by-hand-sync", "by-hand-clean")
WARM = ("lab-warm", "lab-alone", "up-warm")
"""Arms that need saved guests."""
REPEATS: Mapping[str, int] = {"lab-warm": 3, "up-warm": 5, "up-cold": 2}
"""How often a round has an arm that is not once per round; an arm by hand has one unit a cell."""

QUICK_REPEATS: Mapping[str, int] = {"lab-warm": 2, "up-warm": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One thing to measure."""

    arm: str
    round: int
    """From 1."""
    repeat: int = 1
    cell: str | None = None
    """Of an arm by hand."""

    @property
    def key(self) -> tuple[str, int, int, str | None]:
        """What tells it from all others of a file."""
        return self.arm, self.round, self.repeat, self.cell

    def label(self) -> str:
        """For people."""
        what = self.cell or (f"no. {self.repeat}" if self.repeat > 1 else "")
        return f"round {self.round}: {self.arm} {what}".rstrip()


def split(cell: str) -> tuple[str, int]:
    """Layout and number of disks of a cell."""
    layout, _, disks = cell.rpartition("-")
    return layout, int(disks)


def product(cells: Sequence[str]) -> tuple[list[str], list[int]]:
    """The layouts and numbers of disks whose product the cells are; ``ValueError`` if of none."""
    pairs = [split(c) for c in cells]
    layouts = list(dict.fromkeys(layout for layout, _ in pairs))
    disks = list(dict.fromkeys(count for _, count in pairs))
    if len(set(pairs)) != len(layouts) * len(disks):
        raise ValueError(
            f"the cells {', '.join(cells)} are not some layouts on some numbers of disks each:"
            " name every combination"
        )
    return layouts, disks


def one_round(
    number: int, arms: Iterable[str], cells: Sequence[str], repeats: Mapping[str, int]
) -> list[Unit]:
    """The units of a round, interleaved: each arm's are spread evenly over it.

    Arms whose units fall on the same place take turns at being first, from round to round.
    """
    chosen = list(arms)
    turn = number % len(chosen)
    placed: list[tuple[float, int, Unit]] = []
    for order, arm in enumerate(chosen[turn:] + chosen[:turn]):
        if arm in BY_HAND:
            units = [Unit(arm=arm, round=number, cell=c) for c in cells]
        else:
            times = range(1, repeats.get(arm, 1) + 1)
            units = [Unit(arm=arm, round=number, repeat=n) for n in times]
        placed += [((i + 0.5) / len(units), order, unit) for i, unit in enumerate(units)]
    return [unit for _, _, unit in sorted(placed, key=lambda p: p[:2])]


def first_round(done: Iterable[Unit], arms: Iterable[str]) -> int:
    """The round after the last that any of these arms has."""
    chosen = set(arms)
    return 1 + max((u.round for u in done if u.arm in chosen), default=0)
