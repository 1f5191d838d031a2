"""Sizes, rates and times are exact; ambiguous ones are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.core.units import (
    format_rate,
    format_seconds,
    format_size,
    format_times,
    format_value,
    format_values,
    parse_rate,
    parse_seconds,
    parse_size,
    readings,
    same_value,
)
from tests.properties import examples


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("5MiB", 5 * 1024**2),
        ("250MB", 250_000_000),
        ("4096", 4096),
        (4096, 4096),
        (4096.0, 4096),
        ("0.5KiB", 512),
        (" 1 TiB ", 1024**4),
        ("10kB", 10_000),
        ("0", 0),
        ("9007199254740993", 9007199254740993),
        ("1.1GB", 1_100_000_000),
    ],
)
def test_a_size_is_read_to_the_byte(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        *("20 bananas", "5M", "5K", "5m", "-1", "", "MiB", "1.5", "0.3B", "1e6", "５０ＭiB"),
        *("9" * 400, "9" * 400 + "TiB", True, None, [1], 1.5, -1, float("inf"), float("nan")),
    ],
)
def test_what_is_no_size_is_refused_in_a_sentence(text: object) -> None:
    with pytest.raises(ValueError, match=r"is not|unknown unit|more than") as refused:
        parse_size(text)
    assert len(str(refused.value)) < 150


def test_a_bare_m_is_refused_with_both_readings() -> None:
    with pytest.raises(ValueError, match="MiB or MB"):
        parse_size("5M")


@given(st.integers(min_value=0, max_value=2**80))
def test_a_size_survives_being_written(size: int) -> None:
    assert parse_size(format_size(size)) == size


@examples(50)
@given(st.one_of(st.text(max_size=20), st.floats(), st.integers(), st.none(), st.booleans()))
def test_anything_is_a_size_or_a_value_error(value: object) -> None:
    for parse in (parse_size, parse_rate, parse_seconds):
        try:
            assert parse(value) >= 0
        except ValueError:
            continue


def test_rates_may_end_in_per_second() -> None:
    assert parse_rate("5MiB/s") == parse_rate("5MiB / s") == parse_rate("5MiB") == 5 * 1024**2
    assert parse_rate(100) == 100
    with pytest.raises(ValueError, match="is not a rate"):
        parse_rate("5MiB/min")


@pytest.mark.parametrize(
    ("text", "seconds"), [(90, 90), ("90s", 90), ("1.5min", 90), ("200ms", 0.2), ("2h", 7200)]
)
def test_times_are_read(text: object, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


def test_a_word_is_read_as_everything_that_it_may_be() -> None:
    assert list(readings("12.5%")) == [0.125]
    assert 64 * 1024 in readings("64k")
    assert 0.3 in readings("0.3s")
    assert list(readings("%")) == []


@pytest.mark.parametrize("text", ["5 minutes", "-1s", -1, "", True, float("nan"), float("inf")])
def test_what_is_no_time_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="time"):
        parse_seconds(text)


def test_figures_are_written_as_people_write_them() -> None:
    assert [format_size(s) for s in (0, 524288, 250_000_000, 1, 1536)] == [
        *("0", "512KiB", "250MB", "1", "1536")
    ]
    assert [format_size(s) for s in (4 * 10**12, 1_024_000_000, 1000 * 2**30, 64_000 * 2**10)] == [
        *("4TB", "1024MB", "1000GiB", "64000KiB")
    ]
    assert [format_rate(r) for r in (10.7e6, 123.4e6, 1.5e9, 5000)] == [
        *("10.7 MB/s", "123 MB/s", "1.50 GB/s", "5 kB/s")
    ]
    assert [format_rate(r) for r in (5.333e6, 62_430, 999_900, 300, 0)] == [
        *("5.33 MB/s", "62.4 kB/s", "1000 kB/s", "300 B/s", "0 B/s")
    ]
    assert [format_seconds(s) for s in (0.42, 26.2, 192, 3661)] == [
        *("0.4 s", "26 s", "3 min 12 s", "1 h 01 min")
    ]


@pytest.mark.parametrize(
    ("unit", "value", "said"),
    [
        ("B/s", 7_043_072.0, "7.04 MB/s"),
        ("B/s", 16_130_000.0, "16.1 MB/s"),
        ("s", 0.380249, "380 ms"),
        ("s", 0.0, "0.0 s"),
        ("s", 5.738278, "5.74 s"),
        ("s", 1.445, "1.45 s"),
        ("s", 26.2, "26 s"),
        ("s", 192.0, "3 min 12 s"),
        ("s", 0.0359, "35.9 ms"),
        ("s", 2.19e-5, "21.9 µs"),
        ("1/s", 25.04, "25.04/s"),
        ("1/s", 1032.0, "1032/s"),
        ("1/s", 12345.6, "12,346/s"),
        ("B", 806_500_352.0, "769 MiB"),
        ("B", 55_296.0, "54 KiB"),
        ("B", 12.0, "12 B"),
        ("flushes", 960.0, "960 flushes"),
        ("sectors", 8.0, "8 sectors"),
        ("°C", 41.5, "41.5 °C"),
        ("1", 304.0, "304"),
        ("", 304.0, "304"),
    ],
)
def test_a_value_is_written_by_its_unit(unit: str, value: float, said: str) -> None:
    assert format_value(value, unit) == said


@pytest.mark.parametrize("unit", ["B/s", "1/s", "s", "B", "1", "sectors", "°C"])
@pytest.mark.parametrize("value", [3.0, 70.0, 6144.0 * 2**30, 0.25, 1e7, 123456789.0])
@pytest.mark.parametrize("off", [1e-3, 1e-5, 1e-7, 1e-9, 1e-11])
def test_values_that_differ_are_written_differently(unit: str, value: float, off: float) -> None:
    """An array of 6144 GiB that is one chunk too small was "6144 GiB", and "expected 6144 GiB"."""
    texts = format_values([value, value * (1 + off), value * (1 - off), value], unit)
    assert len(set(texts)) == 3
    assert texts[0] == texts[-1]
    assert format_values([value, value], unit) == [format_value(value, unit)] * 2


def test_a_quotient_has_as_many_digits_as_can_matter() -> None:
    said = [format_times(v) for v in (0.0202, 0.56757, 1.00011, 2.6335, 60.0, 1234.5)]
    assert said == ["0.020", "0.568", "1.000", "2.63", "60", "1234"]


def test_two_spellings_of_a_value_are_one_value() -> None:
    assert same_value("512KiB", 524288)
    assert same_value("parity-last", "parity-last")
    assert same_value(None, None)
    assert not same_value("512KiB", "512kB")
    assert not same_value(None, "None")
    assert not same_value("parity-last", "parity-first")
