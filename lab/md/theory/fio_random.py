"""fio's random sequence: the same generator, so that theory simulates the same requests.

With the default ``randrepeat`` fio uses the same offsets in each run (fio's manual), otherwise
those of its ``randseed``. Sources: fio's ``lib/rand.c`` (P. L'Ecuyer's combined Tausworthe
generator of
three parts, Mathematics of Computation 65, 1996, pages 203-213, started from 53 and the seed by a
linear congruence), ``filesetup.c`` and ``init.c`` (``setup_random_seeds``,
``td_fill_rand_seeds_internal``), ``io_u.c`` (a draw is scaled to the number of blocks; a used block
is replaced by the next free one). The tests compare it with fio's ``write_iolog``.
"""

from __future__ import annotations

from collections.abc import Iterator

_WORD = 0xFFFFFFFF
_REPEATED = 0xB1899BED
"""Seed of the first job with ``randrepeat`` (``FIO_RANDSEED``)."""
_DEFAULT = 0x89
"""``randseed`` if it is not given (``options.c``)."""
_DIRECTIONS, _OFFSETS = 4, 6
"""Numbers of the generators of directions and of offsets (``FIO_RAND_MIX_OFF``,
``FIO_RAND_BLOCK_OFF``)."""
_FACTOR = 0x9E370001
"""fio multiplies ``randseed`` four times, and then for each generator before the wanted one."""
_PARTS = ((13, 19, 12, 1), (2, 25, 4, 7), (3, 11, 17, 15))
"""For each part: left shift, right shift, shift of the kept bits, and the dropped bits."""


def seed_of(randseed: int | None, job: int = 1) -> int:
    """Return the seed of the offsets of a job, from 1; ``randseed`` is ``None`` with
    ``randrepeat``."""
    if randseed is None:
        return _REPEATED * job & _WORD
    return _seed(randseed, _OFFSETS, job)


def mix_seed_of(randseed: int | None, job: int = 1) -> int:
    """Return the seed of a job's choices between reads and writes; see `seed_of`."""
    return _seed(_DEFAULT if randseed is None else randseed, _DIRECTIONS, job)


def _seed(randseed: int, number: int, job: int) -> int:
    return randseed * pow(_FACTOR, 4 + number, 1 << 32) * job + number & _WORD


def draws(seed: int) -> Iterator[float]:
    """Yield random numbers from 0 to below 1."""
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
        if count > 6:  # fio drops the first six
            yield (parts[0] ^ parts[1] ^ parts[2]) / 2**32


def directions(seed: int, read_share: float) -> Iterator[bool]:
    """Yield whether each request of a job reads (``io_u.c: get_rand_ddir``)."""
    percent = read_share * 100
    for draw in draws(seed):
        yield int(100 * draw) < percent


def places(seed: int, blocks: int, *, repeats: bool) -> Iterator[int]:
    """Yield block numbers of a job's requests; without ``repeats`` every block once per pass."""
    if repeats:
        yield from (int(blocks * draw) for draw in draws(seed))
    after: dict[int, int] = {}
    """A block that is not used yet, or nearer to one, for each used block."""
    for draw in draws(seed):
        if len(after) >= blocks:
            after.clear()
        block = drawn = int(blocks * draw)
        while block in after:
            block = after[block]
        while drawn != block:
            after[drawn], drawn = block, after[drawn]
        after[block] = (block + 1) % blocks
        yield block
