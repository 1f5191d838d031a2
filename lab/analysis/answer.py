"""The answer to a scenario's question, from the verdicts of its key claims. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from lab.core.units import format_times, format_value, format_values
from lab.model.result.document import Answer, ClaimResult, ComparedValue
from lab.model.scenario.claim import Bound, Claim, Monotonic, Order, Ratio, Same, Verdict, names_in

_COUNTED: Final = {
    Verdict.HOLDS: ("holds", "hold"),
    Verdict.REFUTED: ("is refuted", "are refuted"),
    Verdict.INCONCLUSIVE: ("is not decided", "are not decided"),
    Verdict.NOT_TESTED: ("was not tested", "were not tested"),
}
"""Each verdict of one claim, and of several."""


def verdict_counts(claims: Sequence[ClaimResult], other: str = "") -> str:
    """Return a sentence with the number of claims of each verdict; empty: there are none.

    ``other``: ``"other "`` if these are not all.
    """
    counts = {v: sum(claim.verdict is v for claim in claims) for v in Verdict}
    said = [f"{n} {_COUNTED[v][n > 1]}" for v, n in counts.items() if n]
    if len(said) > 1:
        return f"Of {len(claims)} {other}claims {', '.join(said)}."
    if not said:
        return ""
    (verdict,) = {claim.verdict for claim in claims}
    one, several = _COUNTED[verdict]
    if len(claims) == 1:
        return f"The {other or 'one '}claim {one}."
    if verdict in (Verdict.INCONCLUSIVE, Verdict.NOT_TESTED):
        return f"None of the {len(claims)} {other}claims {one.replace('not ', '')}."
    return f"All {len(claims)} {other}claims {several}."


def answer(question: str, claims: Sequence[Claim], found: Sequence[ClaimResult]) -> Answer:
    """Return the sentences of the key claims with their values.

    A key claim that is not decided, or lacks a value, gets a sentence with the reason. Without key
    claims the first claim answers, and the others are counted.
    """
    results = {result.id: result for result in found}
    own = [claim for claim in claims if claim.id in results]
    keys = [claim for claim in own if claim.key]
    shown = [results[claim.id] for claim in keys or own[:1]]
    said = [_sentence(claim, claims, results) for claim in keys]
    used = [results[one] for _, ids in said for one in ids] or shown
    return Answer(
        question=" ".join(question.split()),
        sentences=tuple(sentence for sentence, _ in said) or tuple(_without_keys(shown, found)),
        claims=tuple(result.id for result in shown),
        values=tuple(dict.fromkeys(value for result in used for value in result.values)),
    )


def _sentence(
    claim: Claim, claims: Sequence[Claim], results: Mapping[str, ClaimResult]
) -> tuple[str, list[str]]:
    """Return a key claim's sentence, and the ids of the claims whose values it has."""
    result = results[claim.id]
    sentences = {Verdict.HOLDS: claim.if_holds, Verdict.REFUTED: claim.if_refuted}
    sentence = sentences.get(result.verdict)
    if sentence is None:
        return _as_claimed(result), [claim.id]
    known = {c.id: c for c in claims}
    text, others = " ".join(sentence.split()), [claim.id]
    for name in names_in(sentence):
        other, dot, own = name.rpartition(".")
        whose = known.get(other, claim) if dot else claim
        found = results.get(whose.id)
        value = _texts(whose, found).get(own) if found else None
        if value is None:
            return _as_claimed(result), [claim.id]
        others.append(whose.id)
        text = text.replace(f"{{{name}}}", value)
    return text, others


def _texts(claim: Claim, found: ClaimResult) -> dict[str, str]:
    """Return a claim's values by their names in a sentence; empty: nothing was measured."""
    values = found.values
    if not values or found.measured is None:
        return {}
    texts = [format_value(value.measured, value.unit) for value in values]
    if isinstance(claim.expect, Order) or found.verdict is Verdict.REFUTED:
        texts = shown_values(values)
    words: dict[str, str] = {}
    match claim.expect:
        case Bound():
            words["value"] = found.shown or texts[0]
            if claim.published is not None:
                words["published"] = format_value(claim.published, values[0].unit)
        case Ratio():
            words |= dict(zip(("of", "to"), texts, strict=True))
            words |= _quotient(found.measured)
            if claim.published is not None:
                words["published"] = _times(claim.published)
        case Monotonic():
            words |= {"first": texts[0], "last": texts[-1]}
            words |= _quotient(_divided(values[-1], values[0]))
        case Order() | Same():
            words |= {str(number): text for number, text in enumerate(texts, 1)}
            words |= _quotient(_divided(values[0], values[-1]))
    return words


def shown_values(values: Sequence[ComparedValue]) -> list[str]:
    """Return values as text; those of one unit have as many digits as differ."""
    units = {value.unit for value in values}
    if len(units) != 1:
        return [format_value(value.measured, value.unit) for value in values]
    (unit,) = units
    return format_values([value.measured for value in values], unit)


def _times(quotient: float) -> str:
    return f"{format_times(quotient)} times"


def _divided(one: ComparedValue, other: ComparedValue) -> float | None:
    return one.measured / other.measured if other.measured else None


def _quotient(value: float | None) -> dict[str, str]:
    if value is None:
        return {}
    return {"times": _times(value), "percent": f"{abs(value - 1):.1%}"}


def _as_claimed(result: ClaimResult) -> str:
    """Return one sentence with a claim, its verdict, and the reason."""
    says = " ".join(result.says.split()).rstrip(".")
    if result.pending:
        return f"“{says}” is not decided yet."
    reason = result.reason
    if len(reason) > _LONGEST:
        reason = f"{reason[:_LONGEST].rstrip()}…"
    why = f": {reason}" if reason else ""
    return f"“{says}” {_COUNTED[result.verdict][0]}{why}."


_LONGEST: Final = 240
"""Most characters of a reason in the answer; the list of claims has all of it."""


def _without_keys(first: Sequence[ClaimResult], found: Sequence[ClaimResult]) -> Iterator[str]:
    """Yield two sentences at most: the first claim and how the others end. A run with tests of
    suites alone has no first one: its tests are counted, and the first that failed is named."""
    if first:
        yield _as_claimed(first[0])
        others = [result for result in found if result not in first]
        if others:
            yield verdict_counts(others, "other ")
    elif found:
        yield from _tests(found)


_TESTED: Final = {
    Verdict.HOLDS: "passed",
    Verdict.REFUTED: "failed",
    Verdict.INCONCLUSIVE: "did not finish",
    Verdict.NOT_TESTED: "did not run",
}


def _tests(found: Sequence[ClaimResult]) -> Iterator[str]:
    counts = {v: sum(test.verdict is v for test in found) for v in Verdict}
    said = ", ".join(f"{n} {_TESTED[v]}" for v, n in counts.items() if n)
    yield f"Of {len(found)} tests {said}." if len(found) > 1 else f"The one test {said[2:]}."
    for verdict in (Verdict.REFUTED, Verdict.INCONCLUSIVE):
        for test in found:
            if test.verdict is verdict:
                yield f"{test.id} {_TESTED[verdict]}: {test.reason}."
                return
