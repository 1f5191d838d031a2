"""The short form of a claim's ``expect``, one line of text, into the long form.

    write[parity-last, 5] = 10MB/s ± 8%          bound
    9MB/s <= write[parity-last] <= 11MB/s        bound
    full[parity-last, 5] >= 1.8 * full[3]        ratio
    0.9 * read[a] <= read[b] <= 1.1 * read[a]    ratio
    read[b] = 1.35 * read[a] ± about             ratio
    read[b] >= read[a] - negligible              ratio; also with <= and +
    read[a] > read[b] > read[c] by 10%           order
    read[a] = read[b] = read[c] ± 3%             same
    read[a] rises along array.chunk ± 3%         monotonic

A value is a workload or fault, ``.metric`` unless it is its throughput, ``@serial`` for the counter
of one disk, and the values of the cell's axes in the order of the matrix, or by name. A share is a
percentage or a word of ``WIDTHS``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, Final

from lab.core import yaml
from lab.core.yaml import Document
from lab.model.scenario.claim import WIDTHS

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<op>>=|<=|>|=)|(?P<number>-?\d[\w.]*(?:/s|%)?)|(?P<mark>[*\[\],:±@+-])"
    r"|(?P<word>[A-Za-z_][\w.-]*))"
)
_QUOTED: Final = re.compile(r"[^\],:]+(?=[\],:])")
_WORDS: Final = ("by", "rises", "falls", "along")


class Bare(float):
    """A number that a short form has without a unit."""


class ShortFormError(ValueError):
    """The text is not a short form."""

    def __init__(self, column: int, message: str) -> None:
        super().__init__(f"column {column}: {message}")
        self.column = column
        """In the text, from 1."""


@dataclass(frozen=True, slots=True)
class _Term:
    """A value, times a factor, or a quantity."""

    column: int
    value: dict[str, Any] | None = None
    factor: str = ""
    quantity: str = ""


def with_long_claims(document: Document) -> Document:
    """Return the scenario with the long form of each ``expect`` that is a line of text.

    ``InputError`` names the line and the column in the text.
    """
    claims = document.data.get("claims")
    if not isinstance(claims, list):
        return document
    axes, names = _axes(document), _names(document)
    found = []
    for number, claim in enumerate(claims):
        text = claim.get("expect") if isinstance(claim, dict) else None
        if isinstance(text, str):
            try:
                claim = {**claim, "expect": long_form(text, axes, names)}
            except ShortFormError as error:
                raise document.wrong(("claims", number, "expect"), str(error)) from error
        found.append(claim)
    return replace(document, data={**document.data, "claims": found})


def _axes(document: Document) -> list[str]:
    """The axes of the matrix, and those of its single cells, in the order of the file."""
    matrix, cases = document.data.get("matrix"), document.data.get("cases")
    names = [*matrix] if isinstance(matrix, dict) else []
    for case in cases if isinstance(cases, list) else ():
        names += [*case] if isinstance(case, dict) else []
    return [str(n) for n in dict.fromkeys(names) if n not in ("exclude", "include")]


def _names(document: Document) -> list[str]:
    """The names of workloads and faults that the file gives."""
    found = []
    for key in ("workloads", "faults"):
        named = document.data.get(key)
        every = named if isinstance(named, list) else ()
        found += [str(one["name"]) for one in every if isinstance(one, dict) and "name" in one]
    return found


def long_form(text: str, axes: Sequence[str], names: Sequence[str] = ()) -> dict[str, Any]:
    """Return the mapping that says the same; ``ShortFormError``.

    ``axes``: dotted names in the order of the matrix. ``names``: of workloads and faults.
    """
    return _Parser(text, axes, names).expectation()


class _Parser:
    def __init__(self, text: str, axes: Sequence[str], names: Sequence[str]) -> None:
        self._text, self._axes, self._names = text, axes, names
        self._at = 0

    def expectation(self) -> dict[str, Any]:
        terms, operators = [self._term()], []
        if (word := self._take("word", "rises", "falls")) is not None:
            return self._monotonic(terms[0], word)
        while (operator := self._take("op")) is not None:
            operators.append((self._column, operator))
            terms.append(self._term())
        if not operators:
            raise self._wrong("expected >=, <=, =, >, rises or falls")
        share = self._share("mark", "±") if operators[0][1] == "=" else None
        sides = operators[0][1] in (">=", "<=")
        less, more = (self._share("mark", sign) if sides else None for sign in "-+")
        margin = self._share("word", "by") if operators[0][1] == ">" else None
        self._end()
        for column, operator in operators:
            if operator != operators[0][1]:
                raise ShortFormError(column, f"{operators[0][1]} and {operator} cannot be mixed")
        kinds = {"=": self._equal, ">": self._order}
        if (made := kinds.get(operators[0][1])) is not None:
            return made(terms, share or margin)
        if less or more:
            limit = 1 - _decimal(less) if less else 1 + _decimal(more or "0%")
            return self._off(terms, operators[0][1], float(limit))
        return self._between(terms if operators[0][1] == "<=" else terms[::-1])

    def _between(self, terms: Sequence[_Term]) -> dict[str, Any]:
        """``low <= value``, ``value <= high`` or ``low <= value <= high``, in this order."""
        if len(terms) > 3:
            raise ShortFormError(terms[3].column, "expected two or three values")
        plain = [n for n, t in enumerate(terms) if t.value is not None and not t.factor]
        if len(terms) == 3:
            middle = 1
        elif len(plain) == 2:  # a ratio to 1: the first one written is compared with the other
            middle = min((0, 1), key=lambda n: terms[n].column)
        elif plain:
            middle = plain[0]
        else:
            column = min(term.column for term in terms)
            raise ShortFormError(column, "expected a value without a factor on one side")
        value = terms[middle]
        if value.value is None or value.factor:
            raise ShortFormError(value.column, "expected a value without a factor")
        limits = {"at_least": terms[middle - 1] if middle else None}
        limits["at_most"] = terms[middle + 1] if middle + 1 < len(terms) else None
        given = {name: term for name, term in limits.items() if term is not None}
        to = [term.value for term in given.values()]
        if all(one is None for one in to):
            quantities = {name: _quantity(term.quantity) for name, term in given.items()}
            return {"kind": "bound", "value": value.value, **quantities}
        if any(one != to[0] for one in to):
            column = max(term.column for term in given.values())
            raise ShortFormError(column, "expected the same kind of limit on both sides")
        factors = {name: _quantity(term.factor or "1") for name, term in given.items()}
        return {"kind": "ratio", "of": value.value, "to": to[0], **factors}

    def _off(self, terms: Sequence[_Term], operator: str, limit: float) -> dict[str, Any]:
        """``value >= other - share``, and with ``<=`` or ``+``."""
        if len(terms) > 2:
            raise ShortFormError(terms[2].column, "expected two values")
        of, to = _plain(terms)
        side = {">=": "at_least", "<=": "at_most"}[operator]
        return {"kind": "ratio", "of": of, "to": to, side: limit}

    def _equal(self, terms: Sequence[_Term], share: str | None) -> dict[str, Any]:
        if len(terms) == 2 and terms[1].factor:
            ((of,), to) = _plain(terms[:1]), terms[1].value
            factor, part = _decimal(terms[1].factor), _decimal(share or "0%")
            limits = {"at_least": factor * (1 - part), "at_most": factor * (1 + part)}
            return {"kind": "ratio", "of": of, "to": to} | {k: float(v) for k, v in limits.items()}
        if len(terms) == 2 and terms[0].value is not None and terms[1].quantity:
            near, within = _quantity(terms[1].quantity), share or 0
            _plain(terms[:1])
            return {"kind": "bound", "value": terms[0].value, "near": near, "within": within}
        found: dict[str, Any] = {"kind": "same", "values": _plain(terms)}
        return found | ({"within": share} if share else {})

    def _order(self, terms: Sequence[_Term], margin: str | None) -> dict[str, Any]:
        found: dict[str, Any] = {"kind": "order", "values": _plain(terms)}
        return found | ({"margin": margin} if margin else {})

    def _monotonic(self, term: _Term, word: str) -> dict[str, Any]:
        (value,) = _plain([term])
        if self._take("word", "along") is None:
            raise self._wrong("expected along and an axis")
        axis = self._take("word")
        if axis is None:
            raise self._wrong("expected an axis such as array.chunk")
        share = self._share("mark", "±")
        self._end()
        direction = {"rises": "rising", "falls": "falling"}[word]
        found = {"kind": "monotonic", "value": value, "along": axis, "direction": direction}
        return found | ({"tolerance": share} if share else {})

    # -- parts

    def _term(self) -> _Term:
        column = self._next_column()
        if (number := self._take("number")) is not None:
            if self._take("mark", "*") is None:
                return _Term(column, quantity=number)
            if not re.fullmatch(r"\d+(\.\d+)?%?", number):
                raise ShortFormError(column, f"'{number}' is no factor such as 1.5 or 95%")
            return replace(self._term_of_value(), factor=number, column=column)
        return self._term_of_value()

    def _term_of_value(self) -> _Term:
        column = self._next_column()
        name = self._take("word")
        if name is None or name in _WORDS:
            raise ShortFormError(column, "expected a workload, or a number such as 10MB/s")
        workload, dot, metric = name.partition(".")
        value: dict[str, Any] = {"workload": workload}
        if dot:
            value["metric"] = metric
        if self._take("mark", "@") is not None:
            value["disk"] = self._take("word") or self._take("number") or ""
        if self._take("mark", "[") is not None:
            try:
                value["where"] = self._where()
            except ShortFormError:
                if not self._names or workload in self._names:
                    raise
                near = get_close_matches(workload, self._names, n=1)
                guess = f"did you mean '{near[0]}'?" if near else f"there is {self._listed}"
                said = f"there is no workload '{workload}': {guess}"
                raise ShortFormError(column, said) from None
        return _Term(column, value=value)

    @property
    def _listed(self) -> str:
        return ", ".join(self._names)

    def _where(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for number in range(len(self._axes) + 1):
            column, first = self._next_column(), self._written()
            if self._take("mark", ":") is not None:
                name, first = first, self._written()
            elif number < len(self._axes):
                name = self._axes[number]
            else:
                listed = ", ".join(self._axes)
                said = f"there are fewer axes than values: {listed}"
                raise ShortFormError(column, said if listed else "there are no axes: remove [ ]")
            if name in found:
                raise ShortFormError(column, f"{name} is given twice")
            found[name] = _scalar(first)
            if self._take("mark", "]") is not None:
                return found
            if self._take("mark", ",") is None:
                break
        raise self._wrong("expected ] or a comma")

    def _written(self) -> str:
        match = _QUOTED.match(self._text, self._at)
        if match is None or not match[0].strip():
            raise self._wrong("expected a value and ]")
        self._at = match.end()
        return match[0].strip()

    def _share(self, kind: str, mark: str) -> str | None:
        if self._take(kind, mark) is None:
            return None
        column, word = self._next_column(), self._take("word", *WIDTHS)
        number = word or self._take("number")
        if number is None or not (word or re.fullmatch(r"\d+(\.\d+)?%", number)):
            raise ShortFormError(column, f"expected a share such as 8%, {' or '.join(WIDTHS)}")
        return number

    # -- tokens

    def _next_column(self) -> int:
        rest = self._text[self._at :]
        return self._at + len(rest) - len(rest.lstrip()) + 1

    def _take(self, kind: str, *texts: str) -> str | None:
        """Take the next token if it is of this kind, and one of these texts."""
        match = _TOKEN.match(self._text, self._at)
        if match is None or match.lastgroup != kind or (texts and match[kind] not in texts):
            return None
        self._column = self._next_column()
        self._at = match.end()
        return match[kind]

    def _end(self) -> None:
        if self._text[self._at :].strip():
            raise self._wrong("expected the end")

    def _wrong(self, expected: str) -> ShortFormError:
        rest = self._text[self._at :].split()
        return ShortFormError(
            self._next_column(), f"{expected}, found {f'{rest[0]!r}' if rest else 'the end'}"
        )


def _plain(terms: Sequence[_Term]) -> list[dict[str, Any]]:
    """The terms' values; ``ShortFormError``: one is a quantity or has a factor."""
    for term in terms:
        if term.value is None or term.factor:
            raise ShortFormError(term.column, "expected a value without a factor")
    return [term.value for term in terms if term.value is not None]


@functools.lru_cache(maxsize=1024)
def _scalar(text: str) -> Any:
    """A value as YAML reads it. Claims name few values, many times."""
    found: Mapping[str, Any] = yaml.read_text(f"value: {text}", source="", first="value").data
    return found["value"]


def _decimal(text: str) -> Decimal:
    """A factor or a share as an exact number."""
    if text in WIDTHS:
        return Decimal(str(WIDTHS[text]))
    return Decimal(text[:-1]) / 100 if text.endswith("%") else Decimal(text)


def _quantity(text: str) -> Any:
    return Bare(text) if re.fullmatch(r"-?\d+(\.\d+)?", text) else text
