"""Diagnosis, choice of attempts, ranking and the answer's texts."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from lab.capabilities.rescue import maps
from lab.capabilities.rescue.logic import attempts, drills, judge, repair
from lab.capabilities.rescue.logic.diagnosis import diagnose, named, needed
from lab.capabilities.rescue.logic.superblocks import SPARE, Reshape, Superblock
from lab.capabilities.rescue.model import Attempt, Diagnosis, Extent, Finding, Outcome, Part, Weight
from lab.capabilities.rescue.page import page
from lab.core.errors import InputError

MIB = 1024**2


def block(role: int, events: int = 20, **more: object) -> Superblock:
    facts: dict[str, object] = {
        "version": "1.2",
        "at": 4096,
        "stored_at": 4096,
        "checksum_ok": True,
        "array_uuid": "a" * 32,
        "name": "host:data",
        "created": 1_600_000_000,
        "updated": 1_700_000_000 + events,
        "level": 5,
        "layout": 2,
        "chunk": 65536,
        "raid_disks": 4,
        "size": 60 * MIB,
        "data_offset": MIB,
        "data_size": 63 * MIB,
        "device_uuid": f"{role:032x}",
        "device_number": role,
        "role": role,
        "roles": (0, 1, 2, 3),
        "events": events,
    }
    return Superblock(**{**facts, **more})  # type: ignore[arg-type]


def part(name: str, *blocks: Superblock, size: int = 64 * MIB, **more: object) -> Part:
    return Part(
        disk=ord(name) - 97, name=name, path=f"/dev/{name}", size=size, superblocks=blocks, **more
    )  # type: ignore[arg-type]


def kinds(found: Diagnosis) -> dict[str, Finding]:
    return {finding.kind: finding for finding in found.findings}


def four(*events: int) -> list[Part]:
    return [
        part(name, block(role, count))
        for role, (name, count) in enumerate(zip("abcd", events, strict=True))
    ]


def test_a_whole_array_is_no_problem() -> None:
    found = diagnose(four(20, 20, 20, 19))
    assert {finding.weight for finding in found.findings} == {Weight.NOTE}
    assert [attempt.name for attempt in attempts.choose(found)] == ["assemble"]


def test_a_stale_member_is_named_with_its_time() -> None:
    found = diagnose(four(20, 20, 7, 20))
    stale = kinds(found)["stale"]
    assert stale.parts == ("c",)
    assert "2023-11-14 22:13:27" in stale.sentence
    first, *_ = attempts.choose(found)
    assert first.parts == ("a", "b", "d")


def test_a_member_that_the_others_dropped_is_stale_at_the_same_count() -> None:
    parts = four(20, 20, 20, 20)
    parts = [replace(p, superblocks=(replace(p.superblocks[0], roles=(0, 1, 2)),)) for p in parts]
    assert [m.part for m in diagnose(parts).arrays[0].members if m.stale] == ["d"]


def test_two_lost_in_a_row_prefer_the_later_one() -> None:
    found = diagnose(four(20, 5, 17, 20))
    assert "too-few-fresh" in kinds(found)
    forced = [a for a in attempts.choose(found) if a.name.startswith("force-")]
    assert forced[0].uses_stale == ("c",)
    assert forced[0].freshness > forced[1].freshness


def test_truncated_doubled_foreign_and_missing() -> None:
    parts = [
        part("a", block(0), size=50 * MIB),
        part("b", block(1)),
        part("c", block(1, device_uuid="f" * 32)),
        part("d", block(0, array_uuid="b" * 32, created=1_500_000_000)),
        part("e"),
    ]
    found = kinds(diagnose(parts))
    assert found["truncated"].parts == ("a",)
    assert found["doubled"].parts == ("b", "c")
    assert found["foreign-disk"].parts == ("d",)
    assert found["no-superblock"].parts == ("e",)
    assert found["missing"].weight is Weight.DANGER


def test_two_generations_on_one_disk() -> None:
    older = block(0, version="1.0", at=60 * MIB, array_uuid="b" * 32, created=1_500_000_000)
    found = diagnose([part("a", block(0), older)])
    assert kinds(found)["generations"].parts == ("a",)
    assert [array.uuid[0] for array in found.arrays] == ["a", "b"]


def test_a_reshape_says_how_far_it_is() -> None:
    reshape = Reshape(position=90 * MIB, new_level=5, delta_disks=1, new_layout=2, new_chunk=65536)
    found = diagnose([part("a", block(0, reshape=reshape))])
    assert "50%" in kinds(found)["reshape"].sentence
    assert "3 to 4 members" in kinds(found)["reshape"].sentence
    names = [attempt.name for attempt in attempts.choose(found)]
    assert names[0] == "frozen"
    assert "revert" in names
    assert attempts.choose(found, backup=True)[0].name == "backup"


def test_a_lost_journal_is_a_danger() -> None:
    parts = [part(name, block(role, feature_journal=True)) for role, name in enumerate("abcd")]
    found = diagnose(parts)
    assert kinds(found)["journal-lost"].weight is Weight.DANGER
    assert attempts.choose(found)[0].fallback
    parts.append(part("e", block(0xFFFD, feature_journal=True)))
    assert "journal-lost" not in kinds(diagnose(parts))


def test_a_wrong_checksum_and_a_spare_have_no_slot() -> None:
    parts = [part("a", block(0, checksum_ok=False)), part("b", block(SPARE)), part("c", block(2))]
    found = diagnose(parts)
    assert "checksum" in kinds(found)
    assert [member.part for member in found.arrays[0].members] == ["c"]
    assert found.arrays[0].spares == ("b",)


def test_assembling_never_creates_and_never_starts_for_writing() -> None:
    reshape = Reshape(position=MIB, new_level=5, delta_disks=1, new_layout=2, new_chunk=65536)
    for parts in (four(20, 20, 20, 20), four(20, 5, 6, 20), [part("a", block(0, reshape=reshape))]):
        for attempt in attempts.choose(diagnose(parts)):
            for command in attempt.commands:
                assert command.startswith("mdadm --assemble --readonly ")
                assert attempt.writes or not {"--force", "--update"} & {
                    w.split("=")[0] for w in command.split()
                }


@pytest.mark.parametrize(
    ("level", "layout", "fewest"), [(5, 2, 3), (6, 2, 2), (1, 0, 1), (10, 0x102, 2), (0, 0, 4)]
)
def test_members_needed(level: int, layout: int, fewest: int) -> None:
    found = diagnose([part("a", block(0, level=level, layout=layout))])
    assert needed(found.arrays[0].shape) == fewest


# -- ranking


def outcome(name: str, **more: object) -> Outcome:
    attempt = Attempt(
        name=name, title=name, commands=(f"mdadm {name} {{a}}",), parts=("a",), writes=""
    )
    changes = {
        key: more.pop(key)
        for key in list(more)
        if key in ("freshness", "destructive", "fallback", "uses_stale", "moves_data")
    }
    facts: dict[str, object] = {"assembled": True, "mounted": 1, "files": 5}
    return Outcome(attempt=replace(attempt, **changes), **{**facts, **more})  # type: ignore[arg-type]


def first(*outcomes: Outcome) -> str:
    return judge.rank(outcomes)[0].outcome.attempt.name


def test_old_data_never_goes_before_new_data() -> None:
    assert first(outcome("old", freshness=5, files=9), outcome("new", freshness=20)) == "new"


def test_what_can_be_read_decides_first() -> None:
    assert (
        first(outcome("new", freshness=20, mounted=0, unmounted=1), outcome("old", freshness=5))
        == "old"
    )
    assert first(outcome("torn", fsck_errors=1), outcome("whole")) == "whole"
    assert first(outcome("torn", unreadable=3), outcome("whole")) == "whole"


def test_the_milder_way_goes_first() -> None:
    assert first(outcome("create", destructive=True), outcome("assemble")) == "assemble"
    assert first(outcome("without", fallback=True), outcome("with")) == "with"


def test_known_hashes_decide_over_all() -> None:
    assert (
        first(outcome("new", freshness=20, expected_wrong=("x",)), outcome("old", freshness=5))
        == "old"
    )


def test_nothing_works_is_said() -> None:
    found = diagnose(four(20, 20, 20, 20))
    report = repair.report(found, judge.rank([outcome("assemble", assembled=False, mounted=0)]))
    assert report.hopeless
    assert not any(step.command.startswith("mdadm") for step in report.steps)
    assert not judge.is_sound(report.ranking)


def test_a_diagnosis_alone_says_nothing_of_hope() -> None:
    found = diagnose(four(20, 20, 20, 20))
    assert repair.report(found, [], attempted=False).hopeless == ""
    assert repair.report(found, []).hopeless
    assert "tried" not in repair.as_mail(repair.report(found, [], attempted=False))


# -- the answer


def full_report() -> repair.Report:
    found = diagnose(
        [replace(p, path=f"/dev/disk/by-id/ata-SECRET{p.name}9876") for p in four(20, 20, 7, 20)]
    )
    written = {"a": (Extent(at=4096, length=2048),)}
    return repair.report(found, judge.rank([outcome("--assemble", written=written)]))


def test_commands_come_after_the_copies_and_say_what_they_write() -> None:
    steps = full_report().steps
    commands = [step.command for step in steps]
    assert commands.index("mdadm --assemble /dev/disk/by-id/ata-SECRETa9876") > max(
        number for number, command in enumerate(commands) if command.startswith("dd ")
    )
    assert all(step.writes for step in steps if step.command)
    (mdadm,) = [step for step in steps if step.command.startswith("mdadm --assemble")]
    assert "bytes 4096 to 6143" in mdadm.writes


def test_no_command_writes_to_a_given_disk_but_the_attempt() -> None:
    for step in full_report().steps:
        assert "of=/dev" not in step.command
        assert not step.command.startswith(
            ("mkfs", "fsck", "e2fsck", "mdadm --create", "mdadm --zero")
        )


@pytest.mark.parametrize(
    "change", [{"moves_data": True}, {"written": {"a": (Extent(at=0, length=5 * MIB),)}}]
)
def test_what_changes_data_is_run_on_copies_only(change: dict[str, object]) -> None:
    found = full_report().diagnosis
    report = repair.report(found, judge.rank([outcome("--assemble", **change)]))
    commands = [step.command for step in report.steps]
    assert "mdadm --assemble COPY-a" in commands
    assert not any(c.startswith("mdadm --assemble") and "/dev/disk" in c for c in commands)
    copied = next(n for n, c in enumerate(commands) if c.startswith("ddrescue") and "COPY-a" in c)
    assert copied < commands.index("mdadm --assemble COPY-a")


def test_the_mail_has_no_serial_numbers() -> None:
    text = repair.as_mail(full_report())
    assert "SECRET" not in text
    assert "events 7" in text


def test_the_page_escapes_and_has_no_contents() -> None:
    report = full_report()
    bad = replace(report, happened=("<script>", *report.happened[1:]))
    assert "<script>" not in page(bad)
    hashed = outcome("assemble", hashes={"private/name": "0" * 64})
    shown = repair.report(report.diagnosis, judge.rank([hashed]))
    assert "private/name" not in page(shown)
    assert "private/name" not in str(repair.as_document(shown))


def test_names_are_put_into_sentences() -> None:
    assert named("{a} and {b}: {", {"a": "x", "b": "y"}.__getitem__) == "x and y: {"


# -- what guests print


def test_output_of_an_attempt() -> None:
    output = (
        "=assembled 4096 readonly\n=layer ext4\n=hash \\"
        + "0" * 64
        + " odd\\nname\n=fs ext4 0 0 3 2 1\nsome log"
    )
    attempt = Attempt(name="x", title="x", commands=(), parts=(), writes="")
    found = attempts.outcome(attempt, 0, output)
    assert (found.size, found.files, found.directories, found.unreadable) == (4096, 3, 2, 1)
    assert found.works
    assert list(found.hashes) == ["odd\\nname"]
    assert not attempts.outcome(attempt, 0, "=assembled 4096 x\n=locked\n").mounted
    assert attempts.outcome(attempt, 0, "=assembled 4096 x\n=locked\n").works
    assert not attempts.outcome(attempt, None, "").ran


def test_hostile_output_is_not_believed() -> None:
    attempt = Attempt(name="x", title="x", commands=(), parts=(), writes="")
    for line in (
        "=fs a b c d e f",
        "=fs",
        "=assembled x y",
        "=hash",
        "=layer ",
        "=fs ext4 0 0 -1 2 3",
    ):
        assert not attempts.outcome(attempt, 0, line).works


# -- maps and drills


def test_map_of_ddrescue() -> None:
    text = "# Mapfile\n0x00 + 1\n0x0 0x1000 +\n0x1000 0x200 -\n0x1200 0x200 *\n0x1400 0x1000 +\n"
    assert maps.parse(text, 0x2000, "m") == [(0x1000, 0x400)]
    with pytest.raises(InputError, match="m:3"):
        maps.parse("# x\n0x0 + 1\nnonsense\n", 100, "m")


@pytest.mark.parametrize("name", drills.DRILLS)
def test_a_drill_follows_from_its_seed(name: str) -> None:
    for seed in (1, 2):
        drill = drills.DRILLS[name](seed)
        assert drill == drills.DRILLS[name](seed)
        assert drill.name == name
        order = drills.order(drill, seed)
        assert len(order) == drill.members - len(drill.left_out)
        assert not drill.left_out & set(order)
    files = drills.files_of(1)
    assert set(drills.expected_hashes(drills.DRILLS["far-behind"](1), 1)) == set(files)
    assert drills.files_of(2) != files


def test_files_of_all_file_systems_are_copied(tmp_path: Path) -> None:
    for name in ("first", "second", "third"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    (tmp_path / "second/link").symlink_to("./file")
    copied = attempts.COPY.replace("/mnt/x", f"{tmp_path}/$mounted")
    script = f"out={tmp_path}/out\nfor mounted in first second third; do\n{copied}\ndone\n"
    subprocess.run(["sh", "-euc", script], check=True)
    subprocess.run(["tar", "-x", "-f", tmp_path / "out", "-C", tmp_path], check=True)
    assert (tmp_path / "file").read_text() == "first"
    assert (tmp_path / "file-system-2/link").read_text() == "second"
    assert (tmp_path / "file-system-3/file").read_text() == "third"
