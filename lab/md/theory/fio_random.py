"""The places that fio draws: its own generator, so that theory follows the very requests.

In the default of ``randrepeat`` fio draws the same places in each run (fio's manual). Facts from
fio's sources: ``lib/rand.c`` (P. L'Ecuyer's combined Tausworthe generator of three parts,
Mathematics of Computation 65, 1996, pages 203-213, begun from 53 by a linear congruence that takes
the seed in), ``filesetup.c`` and ``init.c`` (job number n has n times the seed), ``io_u.c`` (a draw
is scaled to the number of blocks; a block that had its turn gives way to the next free one). Held
against fio's own ``write_iolog`` in the tests.
"""

from __future__ import annotations

from collections.abc import Iterator

_WORD = 0xFFFFFFFF
_PARTS = ((13, 19, 12, 1), (2, 25, 4, 7), (3, 11, 17, 15))
"""Of each part: shift left, shift right, shift of the kept bits, and the bits that are not kept."""


def draws(seed: int) -> Iterator[float]:
    """Numbers from 0 up to, and without, 1."""
    parts, state = [], 53
    for *_, low in _PARTS:
        state = ((state * 69069) ^ seed) & _WORD
        if state < low:
            state += low
        parts.append(state)
    count = 0
    while True:
        for i, (left, right, kept, low) in enumerate(_PARTS):
            state = parts[i]
            mixed = (((state << left) & _WORD) ^ state) >> right
            parts[i] = (((state & ~low) << kept) & _WORD) ^ mixed
        count += 1
        if count > 6:  # the first six are thrown away
            yield (parts[0] ^ parts[1] ^ parts[2]) / 2**32


def places(seed: int, blocks: int, *, repeats: bool) -> Iterator[int]:
    """Blocks in the order of one job's requests; without ``repeats`` each has its turn."""
    taken: set[int] = set()
    for draw in draws(seed):
        block = int(blocks * draw)
        if not repeats:
            if len(taken) >= blocks:
                taken.clear()
            while block in taken:
                block = (block + 1) % blocks
            taken.add(block)
        yield block
