"""A guest whose root writes every value wrong that the host reads: the region and the frames.

The worst that may come of it is a sentence.
"""

from __future__ import annotations

import os
import random
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import BinaryIO

import pytest

from drive import region, requests
from drive.drive import Kind, Parameters
from lab.compile.guest import program
from lab.compile.guest.program import OUTPUT, Answer, answers, begun
from lab.core.errors import LabError, ToolError
from lab.core.printable import printable
from lab.host.guest.watchdog import read_in_flight

SEEDS = 300
MIB = 1 << 20
SIZE = 64 * MIB
BLOCKS = 200
DRIVE = Parameters(kind=Kind.HDD, cache=64 * region.PAGE)
DISKS = (
    region.Disk(serial="root", size=32 * MIB, flags=region.BASE),
    region.Disk(serial="d1", size=1 << 30, drive=DRIVE, flags=region.WRITE_BACK),
    region.Disk(serial="d2", size=1 << 34),
)
AREAS = {"commands_size": 1 << 16, "output_size": 1 << 20, "log_size": 1 << 16}
FRAMES = b"".join(
    b"@lab begin %d %d.25\n@lab end %d 0 %d.50 6 4\nout %d\nerr\n" % (n, n, n, n, n)
    for n in range(5)
)
WORDS = (0, 1, 2, 255, 256, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1)


def made(path: Path) -> region.Region:
    """Return a region as a guest leaves it that has written to its disks and printed frames."""
    own = region.create(path, DISKS, size=SIZE, blocks=BLOCKS, commands=b"true\n", **AREAS)
    put(own, own.header.output[0], FRAMES)
    put(own, own.header.log[0], b"[    1.0] Linux\n")
    state = (2, 0x100, 8, 0, 0, 8, 0, len(FRAMES), 0, 16, 0, 9_000_000_000)
    put(own, own.header.state, region.STATE.pack(*state))
    for number, place in enumerate(own.places):
        put(own, place.map, struct.pack("<2I", 2 * number + 1, 2 * number + 2))
        put(own, place.present, b"\1")
    undo = b"".join(region.UNDO.pack(n, n + 1, 0xFF, 0x0F) for n in range(8))
    put(own, own.places[1].undo, undo)
    return own


def head(own: region.Region) -> tuple[int, ...]:
    """Return the numbers of the file's header."""
    with own.path.open("rb") as file:
        return region.HEADER.unpack(file.read(region.HEADER.size))


def put(own: region.Region, at: int, data: bytes) -> None:
    with own.path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def places(own: region.Region) -> dict[str, Callable[[random.Random], int]]:
    """Return all kinds of numbers in a region, each with a function that draws one of them."""
    header = own.header
    entries = [header.table + n * region.ENTRY for n in range(len(DISKS))]
    counters = region.STATISTICS_AT + 8 * 13

    def word(begin: int, size: int) -> Callable[[random.Random], int]:
        return lambda dice: begin + 8 * dice.randrange(size // 8)

    return {
        "header": word(0, region.HEADER.size),
        "state": word(header.state, region.STATE.size),
        "entry": lambda dice: dice.choice(entries) + 8 * dice.randrange(counters // 8),
        "drive": lambda dice: entries[1] + region.DRIVE_AT + 8 * dice.randrange(40),
        "map": lambda dice: dice.choice(own.places).map + 8 * dice.randrange(4),
        "present": lambda dice: dice.choice(own.places).present,
        "undo": word(own.places[1].undo, 9 * region.UNDO.size),
        "link": word(header.link, 64),
        "input": word(header.input[0], 64),
    }


def forged(own: region.Region, dice: random.Random) -> list[str]:
    """Overwrite one to four numbers, and say which."""
    kinds = places(own)
    chosen = dice.choices(list(kinds), k=dice.randint(1, 4))
    for kind in chosen:
        value = dice.choice([*WORDS, dice.getrandbits(64)])
        put(own, kinds[kind](dice), value.to_bytes(8, "little"))
    return chosen


def read_all(own: region.Region, other: Path) -> None:
    """Do all that a host does with the region of a guest that has run."""
    region.clock(own)
    begun(region.output(own))
    region.digest(own.path)
    state = region.read(own)
    assert {*state.disks} == {"root", "d1", "d2"}
    found = answers(state.output, 5)
    assert all(0 <= answer.status <= 255 for answer in found.values())
    region.contents(own, 1, 0, 128 << 10)
    new = region.create(other, DISKS, size=SIZE, blocks=BLOCKS, **AREAS)
    region.graft(own, new)
    lost = region.lose_cache(own)
    assert set(lost) == {"d1"}
    assert 0 <= lost["d1"] <= DRIVE.cache
    region.keep_cache(own)
    region.again(own, b"echo next\n")
    region.set_clock(own, 5)
    assert region.read(own).output == b""


def test_the_host_reads_a_region_of_an_honest_guest(tmp_path: Path) -> None:
    read_all(made(tmp_path / "region"), tmp_path / "other")


def test_300_regions_with_wrong_numbers_are_read_or_named(tmp_path: Path) -> None:
    refused = 0
    for seed in range(SEEDS):
        dice = random.Random(seed)
        own = made(tmp_path / "region")
        kinds = forged(own, dice)
        before = own.path.stat()
        tracemalloc.start()
        began = time.process_time()
        said = ""
        try:
            read_all(own, tmp_path / "other")
        except (region.RegionError, LabError) as error:
            said = str(error)
        refused += bool(said)
        used, peak = time.process_time() - began, tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        after = own.path.stat()
        assert printable(said) == said
        assert after.st_size == before.st_size, (seed, kinds)
        assert (after.st_blocks - before.st_blocks) * 512 < MIB, (seed, kinds)
        assert peak < 16 * MIB, (seed, kinds)
        assert used < 5, (seed, kinds)
    assert 100 < refused < SEEDS  # the rest changed nothing that is read


@pytest.mark.parametrize("number", range(len(region.HEADER.unpack(bytes(region.HEADER.size)))))
@pytest.mark.parametrize("value", [0, 2**31 - 1, 2**32 - 1, 2**40, 2**64 - 1])
def test_no_value_of_the_header_leads_the_host(tmp_path: Path, number: int, value: int) -> None:
    own = made(tmp_path / "region")
    words = list(head(own))
    words[number] = value & 0xFFFFFFFF if number in (1, 2) else value
    put(own, 0, region.HEADER.pack(*words))
    assert region.output(own) == FRAMES
    assert region.clock(own) == 9_000_000_000
    if number == 10:  # the length of the commands, which the host writes again
        assert region.read(own).output == FRAMES
    else:
        with pytest.raises(region.ForgedError, match="its header differs"):
            region.read(own)
    assert region.lose_cache(own) == {"d1": 8 * 8 * 512}
    region.again(own, b"next")
    assert head(own)[:10] == region.HEADER.unpack(own.header.pack())[:10]
    assert region.read(own).output == b""


@pytest.mark.parametrize("name", [f.name for f in fields(region._State)])
def test_a_wrong_number_of_the_state_is_named_or_only_counts(tmp_path: Path, name: str) -> None:
    own = made(tmp_path / "region")
    number = [f.name for f in fields(region._State)].index(name)
    words = [2, 0x100, 8, 0, 0, 8, 0, len(FRAMES), 0, 16, 0, 9_000_000_000]
    words[number] = 2**32 - 1 if number in (0, 1, 3, 4) else 2**64 - 1
    put(own, own.header.state, region.STATE.pack(*words))
    if name in ("reserved", "full", "output_lost", "log_lost"):
        region.read(own)
        return
    for call in (region.read, region.output, region.clock, lambda own: region.again(own, b"")):
        with pytest.raises(region.ForgedError, match=f"'{name}' is {words[number]}, expected at"):
            call(own)


def believed(own: region.Region) -> region.Region:
    """Return the layout that the file itself names, as the host read it before."""
    words = head(own)
    names = ("disks", "size", "table", "state", "blocks", "data", "link")
    areas = {"input": words[9:11], "output": words[11:13], "log": words[13:15]}
    named = dict(zip(names, words[2:9], strict=True))
    return replace(own, header=replace(own.header, **named, **areas))


def unchecked(file: BinaryIO, own: region.Region) -> region._State:
    return region._State(*region.STATE.unpack(region._at(file, own.header.state, 96)))


def test_the_same_numbers_lead_a_host_that_believes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: without the layout and the checks of the host the file decides."""
    monkeypatch.setattr(region, "_state", unchecked)
    broken = set()
    numbers = [("header", n, region.HEADER) for n in range(3, 15)]
    numbers += [("state", n, region.STATE) for n in (0, 2, 7, 9)]
    for what, number, form in numbers:
        own = made(tmp_path / "region")
        at = 0 if what == "header" else own.header.state
        with own.path.open("rb") as file:
            words = list(form.unpack(region._at(file, at, form.size)))
        words[number] = 99 if (what, number) == ("state", 0) else 2**40
        put(own, at, form.pack(*words))
        try:
            region.read(believed(own))
            region.again(believed(own), b"next")
        except (MemoryError, OverflowError, OSError, struct.error):
            broken.add((what, number))
        except ValueError as error:
            if not isinstance(error, region.RegionError):
                broken.add((what, number))
        if own.path.stat().st_size > 2 * SIZE:
            broken.add((what, number))
            own.path.unlink()
    assert {("header", 5), ("header", 11), ("state", 0), ("state", 7), ("state", 9)} <= broken


# --- frames ---------------------------------------------------------------------------------------


WRONG = (
    *("-100", "-1", "99999999999999999999", "1" * 5000, "nan", "inf", "1e308", "0x10", "", "+1"),
    *("²", "٣", "\x1b[2J", "1.5", "--", "4294967296", "1000000000000", "256", " "),
)


def rubbish(dice: random.Random) -> bytes:
    """Return an honest output in which one to three words of frames are wrong."""
    lines = FRAMES.split(b"\n")
    heads = [n for n, line in enumerate(lines) if line.startswith(b"@lab")]
    for n in dice.sample(heads, dice.randint(1, 3)):
        words = lines[n].split(b" ")
        if len(words) < 2:
            continue
        words[dice.randrange(1, len(words))] = dice.choice(WRONG).encode()
        lines[n] = b" ".join(words)
        if not dice.randrange(4):
            lines.insert(n, lines[dice.choice(heads)])
    return b"\n".join(lines)


def test_300_outputs_with_wrong_frames_are_read_or_named() -> None:
    refused = 0
    for seed in range(SEEDS):
        output = rubbish(random.Random(seed))
        began = time.process_time()
        number = begun(output)
        assert number is None or abs(number) < 10**9
        said, found = "", dict[int, Answer]()
        try:
            found.update(answers(output, 5))
        except ToolError as error:
            said = error.message
        refused += bool(said)
        assert printable(said) == said
        assert "\n" not in said
        assert len(said) < 400
        assert set(found) <= {-1, 0, 1, 2, 3, 4}
        assert all(0 <= a.status <= 255 for a in found.values())
        assert all(0 <= a.began <= a.ended < 10**10 for a in found.values())
        assert sum(len(a.out) + len(a.err) for a in found.values()) <= len(output)
        assert time.process_time() - began < 1, seed
    assert refused > SEEDS // 2


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (b"@lab end 0 0 1.0 5 -100\n", "expected numbers"),
        (b"@lab end 0 0 1.0 -100 0\n", "expected numbers"),
        (b"@lab end 0 300 1.0 0 0\n", "255 at most"),
        (b"@lab end 7 0 1.0 0 0\n", "there is no such command"),
        (b"@lab end -2 0 1.0 0 0\n", "there is no such command"),
        (b"@lab end 0 0 1.0 0 0\n@lab end 0 0 2.0 0 0\n", "has ended already"),
        (b"@lab begin 0 9.0\n@lab end 0 0 8.0 0 0\n", "was at 9.00 s already"),
        (b"@lab end 0 0 1.0 999999999 0\n", "at most 8MiB are read"),
        (b"@lab begin " + b"1" * 100_000 + b" 2\n", "expected numbers"),
    ],
)
def test_a_wrong_frame_is_one_sentence(output: bytes, said: str) -> None:
    with pytest.raises(ToolError, match=said):
        answers(output, 5)
    assert begun(output) in (None, 0, 7, -2)


def old_marks(output: bytes, rounds: int) -> Iterator[int]:
    """The control: how the host walked through frames before."""
    at = 0
    while (stop := output.find(b"\n", at)) >= 0 and rounds:
        rounds -= 1
        words = output[at:stop].decode(errors="replace").split()
        at = stop + 1
        if words[:2] == ["@lab", "end"] and len(words) == 7:
            at += int(words[5]) + int(words[6])
        yield at


def test_a_negative_length_let_the_host_walk_for_ever() -> None:
    output = b"some text, which is as long as the length says\n@lab end 0 0 1.0 5 -100\n"
    assert len(list(old_marks(output * 2, 10_000))) == 10_000
    with pytest.raises(ToolError):
        answers(output * 2, 5)


def test_progress_reads_no_output_twice_and_skips_what_a_command_prints() -> None:
    body = b"@lab begin 3 1.0\n" * 10_000  # what a command prints is not read as frames
    output = b"@lab begin 0 1.0\n@lab end 0 0 2.0 %d 0\n" % len(body) + body + b"@lab begin 1 3.0\n"
    read = 0

    def piece(at: int, size: int) -> bytes:
        nonlocal read
        read += min(size, max(0, len(output) - at))
        return output[at : at + size]

    progress = program.Progress()
    assert progress.follow(piece) == 1
    assert read < 2 * (1 << 16)
    read = 0
    assert progress.follow(piece) == 1
    assert read == 0


def test_an_output_of_64_mib_takes_little_more_than_itself() -> None:
    """Text of any kind: an emoji lets Python store four bytes for each character of a text."""
    one = b"\xff" * (OUTPUT - 4) + "\U0001f600".encode()
    output = b"".join(b"@lab end %d 0 1.0 %d 0\n" % (n, len(one)) + one for n in range(8))
    tracemalloc.start()
    found = answers(output, 8)
    for answer in found.values():
        assert len(answer.stdout) == OUTPUT - 3
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(output) + 128 * MIB


# --- other numbers that a guest prints ------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [b"", b"1 2", b"a b c", b"-1 -1 -1", b"1 1 -1", b"1 1 99999999999999999999999", b"1" * 9000],
)
def test_a_wrong_end_of_a_stopped_guest_is_none(line: bytes) -> None:
    assert requests.stop_of(b"said\n@lab requests " + line + b"\n" + os.urandom(40)) is None


def test_wrong_counts_of_waiting_requests_are_left_out() -> None:
    text = f"d1=3\nd2=-1\nd3=x\nd4={'9' * 5000}\nd5=²\nd6=7\n=\n"
    assert read_in_flight(text) == {"d1": 3, "d6": 7}


def test_an_answer_is_decoded_each_time() -> None:
    answer = Answer(status=0, out=b"a\xff", err=b"", began=0.0, ended=1.0)
    assert (answer.stdout, answer.stderr) == ("a�", "")
