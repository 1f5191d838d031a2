"""The stripe cache and rmw or rcw, compared with a simulation of single stripe heads."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.md.facts.geometry import PAGE, Geometry
from lab.md.facts.levels import Level
from lab.md.theory.bucket import Direction
from lab.md.theory.stripe import (
    PageCache,
    RunCache,
    StripeCache,
    StripeRules,
    StripeWork,
    decide_read,
    decide_write,
    members_of,
    row_spans,
)
from tests.geometries import geometry as made
from tests.properties import examples

KIB = 1024
READ, WRITE = Direction.READ, Direction.WRITE


class OnePageAtATime:
    """The same rules in the simplest form: a set of members for each stripe head."""

    def __init__(self, array: Geometry, rules: StripeRules) -> None:
        self.array = array
        self.rules = rules
        self.cache: OrderedDict[int, set[int]] = OrderedDict()
        self.moved: Counter[tuple[int, str]] = Counter()

    def enter(self, direction: Direction, offset: int, size: int) -> None:
        array = self.array
        pages: dict[int, set[int]] = {}
        for at in range(offset, offset + size, PAGE):
            (place,) = array.locate(at)
            pages.setdefault(place.offset // PAGE, set()).add(place.member)
        for page in sorted(pages):
            fresh = self.cache.pop(page, set())
            row = array.row(page * PAGE // array.chunk)
            wanted, data, checks = pages[page], set(row.data), set(row.checks)
            everyone = data | checks
            present = everyone - array.failed
            if direction is READ:
                read = wanted - fresh
                if read & array.failed:
                    read, fresh = present - fresh, everyone
                written: set[int] = set()
            else:
                read = set()
                if len(array.failed) >= 2:
                    broken = array.failed - fresh
                    forced = broken & (wanted | checks)
                    if forced and any(m in data and m not in wanted for m in broken):
                        read, fresh = present - fresh, everyone
                old, rest = (wanted | checks) - fresh, data - wanted - fresh
                cost = {
                    "rmw": sum(1 if m in present else 2 * len(everyone) for m in old),
                    "rcw": sum(1 if m in present else 2 * len(everyone) for m in rest),
                }
                if self.rules.rmw_level == 0:
                    cost = {"rmw": 2, "rcw": 1}
                tie = cost["rmw"] == cost["rcw"] and self.rules.rmw_level == 2
                modify = cost["rmw"] < cost["rcw"] or tie
                read = read | ((old if modify else rest) & present)
                written = (wanted | checks) & present
                fresh = fresh | wanted | checks
            self.cache[page] = fresh | read
            while len(self.cache) > self.rules.cache_size:
                self.cache.popitem(last=False)
            for member in read:
                self.moved[member, "read"] += PAGE
            for member in written:
                self.moved[member, "write"] += PAGE


@st.composite
def arrays(draw: st.DrawFn) -> Geometry:
    level = draw(st.sampled_from([Level.RAID4, Level.RAID5, Level.RAID6]))
    members = draw(st.integers(4, 8))
    most = 2 if level is Level.RAID6 else 1
    failed = draw(st.sets(st.integers(0, members - 1), max_size=most))
    layouts = {Level.RAID5: ["left-symmetric", "right-asymmetric", "parity-first"]}
    return made(
        level,
        members,
        1024 * PAGE,
        layout=draw(st.sampled_from(layouts.get(level, [None]))),
        chunk=PAGE * draw(st.sampled_from([1, 2, 4, 8])),
        failed=failed,
    )


@examples(300)
@pytest.mark.parametrize("kind", [RunCache, PageCache])
@given(array=arrays(), data=st.data())
def test_both_caches_agree_with_the_plain_rules(
    kind: Callable[[int], StripeCache], array: Geometry, data: st.DataObject
) -> None:
    rules = StripeRules(
        cache_size=data.draw(st.integers(1, 24)), rmw_level=data.draw(st.integers(0, 2))
    )
    fast = StripeWork(array, rules, kind(rules.cache_size))
    plain = OnePageAtATime(array, rules)
    moved: Counter[tuple[int, str]] = Counter()
    steps = st.tuples(st.sampled_from([WRITE, WRITE, READ]), st.integers(0, 60), st.integers(1, 40))
    for direction, page, pages in data.draw(st.lists(steps, min_size=1, max_size=12)):
        # the cache admits a request as a whole; requests larger than the cache are not tested here
        enter = fast.write if direction is WRITE else fast.read
        for start, end, decision in enter(page * PAGE, pages * PAGE):
            for member in members_of(decision.reads):
                moved[member, "read"] += end - start
            for member in members_of(decision.writes):
                moved[member, "write"] += end - start
        plain.enter(direction, page * PAGE, pages * PAGE)
    assert moved == plain.moved


@given(array=arrays(), page=st.integers(0, 100), pages=st.integers(1, 200))
def test_segments_cover_the_request_once(array: Geometry, page: int, pages: int) -> None:
    covered: Counter[int] = Counter()
    for row, start, end, indices in row_spans(array, page * PAGE, pages * PAGE):
        for index in indices:
            inside = start - row * array.chunk
            base = (row * array.data_members + index) * array.chunk + inside
            covered.update(range(base, base + end - start, PAGE))
    assert covered == Counter(range(page * PAGE, (page + pages) * PAGE, PAGE))


def cold(members: int, checks: int, written: int, rmw_level: int = 1) -> tuple[int, int]:
    """Return pages read and written for a first write of so many data pages."""
    everyone = (1 << members) - 1
    parity = ((1 << checks) - 1) << (members - checks)
    decision = decide_write(0, (1 << written) - 1, everyone & ~parity, parity, 0, rmw_level)
    return decision.reads.bit_count(), decision.writes.bit_count()


@pytest.mark.parametrize(
    ("members", "checks", "reads"),
    [(3, 1, 1), (4, 1, 2), (5, 1, 2), (8, 1, 2), (4, 2, 1), (5, 2, 2), (6, 2, 3), (7, 2, 3)],
)
def test_reads_of_a_small_cold_write(members: int, checks: int, reads: int) -> None:
    # the counts of md-raid's table of small writes: RAID 5 from 5 and RAID 6 from 7 modify
    assert cold(members, checks, 1) == (reads, 1 + checks)


def test_a_tie_reconstructs_unless_told_otherwise() -> None:
    # 4 members, one page written: the old page and P, or the two others
    assert decide_write(0, 0b0001, 0b0111, 0b1000, 0).reads == 0b0110
    assert decide_write(0, 0b0001, 0b0111, 0b1000, 0, 2).reads == 0b1001


def test_a_whole_row_reads_nothing() -> None:
    assert cold(5, 1, 4) == (0, 5)
    assert cold(6, 2, 4) == (0, 6)


def test_what_is_fresh_is_not_read_again() -> None:
    first = decide_write(0, 0b0011, 0b01111, 0b10000, 0)
    assert first.reads == 0b01100
    assert decide_write(first.fresh, 0b1100, 0b01111, 0b10000, 0).reads == 0


def test_never_modify_when_told() -> None:
    assert decide_write(0, 0b00001, 0b01111, 0b10000, 0, 0).reads == 0b01110


def test_a_missing_member_is_computed_from_all_others() -> None:
    assert decide_read(0, 0b00010, 0b11111, 0b00010).reads == 0b11101
    assert decide_read(0, 0b00001, 0b11111, 0b00010).reads == 0b00001


def test_writes_to_a_missing_member_go_to_parity() -> None:
    decision = decide_write(0, 0b00001, 0b01111, 0b10000, 0b00001)
    assert decision.reads == 0b01110
    assert decision.writes == 0b10000
