"""Ranks attempts, with reasons. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from lab.capabilities.rescue.model import Outcome, Ranked


def rank(outcomes: Sequence[Outcome]) -> list[Ranked]:
    """Return the outcomes, the best first.

    What can be read decides first; then how current the members are, since an old member gives old
    data that looks right; then what the attempt writes.
    """
    newest = max((outcome.attempt.freshness for outcome in outcomes if outcome.works), default=0)
    ordered = sorted(outcomes, key=lambda outcome: _key(outcome, newest), reverse=True)
    return [Ranked(outcome=outcome, reasons=_reasons(outcome, newest)) for outcome in ordered]


def is_sound(ranking: Sequence[Ranked]) -> bool:
    """Return whether the best attempt leaves no reason to search for another arrangement."""
    if not ranking or not ranking[0].outcome.works:
        return False
    best = ranking[0].outcome
    return not best.unmounted and not (best.fsck_errors and best.mismatches)


def _key(outcome: Outcome, newest: int) -> tuple[float, ...]:
    attempt = outcome.attempt
    clean = not outcome.fsck_errors and not outcome.unreadable and not outcome.unmounted
    return (
        outcome.works,
        -len(outcome.expected_wrong),
        clean,
        -outcome.unmounted,
        -round(outcome.mismatches or 0.0, 2),
        attempt.freshness or (newest if attempt.arrangement else 0),
        -outcome.fsck_errors,
        -outcome.unreadable,
        outcome.files,
        not attempt.fallback,
        not attempt.moves_data,
        not attempt.destructive,
        not attempt.writes,
        attempt.arrangement.score if attempt.arrangement else 1.0,
    )


def _reasons(outcome: Outcome, newest: int) -> tuple[str, ...]:
    attempt = outcome.attempt
    if not outcome.ran:
        return ("the guest ended before the attempt did",)
    if not outcome.assembled:
        return ("the array does not start",)
    said = []
    if outcome.locked:
        said.append("LUKS is there, and no passphrase was given")
    elif not outcome.mounted:
        return ("the array starts, and no file system on it can be mounted",)
    else:
        said.append(f"{outcome.files} files and {outcome.directories} directories are readable")
    if outcome.unreadable:
        said.append(f"{outcome.unreadable} errors while reading files")
    if outcome.unmounted:
        said.append(f"{outcome.unmounted} file systems cannot be mounted")
    said.append("fsck finds errors" if outcome.fsck_errors else "fsck finds no error")
    if outcome.mismatches is not None:
        said.append(f"{outcome.mismatches:.1%} of the sampled rows contradict each other")
    if outcome.expected_wrong:
        said.append(f"{len(outcome.expected_wrong)} files differ from the hashes that you know")
    if attempt.uses_stale:
        said.append(f"it uses members that are behind: {', '.join(attempt.uses_stale)}")
    if attempt.freshness and newest and attempt.freshness < newest:
        said.append("another attempt uses newer members")
    if attempt.why:
        said.append(attempt.why)
    return tuple(said)
