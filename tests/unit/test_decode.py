"""YAML to data: the line of each value, and resistance to hostile files."""

from __future__ import annotations

import re
import resource
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.core import yaml as decode
from lab.core.errors import InputError
from lab.core.yaml import Document, dotted, override, parse_override, read_file, read_text, validate
from lab.model.scenario.document import Scenario
from tests.properties import examples
from tests.speed import reference, scale

TEXT = """\
title: T
question: Q
disks:
  count: 5
  throttle: {total_bytes_per_second: 5MiB}
workloads:
  - name: write
    tool: dd
    of: '{target}'
  - name: read
    tool: dd
    if: '{target}'
matrix:
  array.layout: [parity-last, left-symmetric]
"""


def read(text: str) -> Document:
    return read_text(text, source="q.yaml")


def refused(text: str) -> str:
    with pytest.raises(InputError) as error:
        read(text)
    return error.value.message


def test_every_key_and_item_has_its_line() -> None:
    document = read(TEXT)
    assert document.lines["disks",] == 3
    assert document.lines["disks", "throttle", "total_bytes_per_second"] == 5
    assert document.lines["workloads", 1] == 10
    assert document.lines["workloads", 1, "if"] == 12
    assert document.lines["matrix", "array.layout"] == 14
    assert document.place(("workloads", 1, "bs")) == "q.yaml:10"
    assert document.place(("nowhere",)) == "q.yaml:1"


def test_values_are_pythons_own_and_times_stay_text() -> None:
    data = read("a: 5\nb: 1.5\nc: yes\nd: true\ne: null\nf: 2025-06-10\ng: 0x10\nh: '5'\n").data
    assert data == {
        "a": 5,
        "b": 1.5,
        "c": "yes",
        "d": True,
        "e": None,
        "f": "2025-06-10",
        "g": 16,
        "h": "5",
    }
    assert [type(v) for v in data.values()] == [int, float, str, bool, type(None), str, int, str]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "q.yaml:1: the file is empty: expected a mapping that begins with a key such as"),
        ("# only this\n", "q.yaml:1: the file is empty"),
        ("---\n...\n", "q.yaml:1: the file is empty"),
        ("- a\n- b\n", "q.yaml:1: expected a mapping that begins with a key such as `title: …`, f"),
        (
            "hello\n",
            "q.yaml:1: expected a mapping that begins with a key such as `title: …`, found",
        ),
        ("a: 1\n---\nb: 2\n", "q.yaml:2: this is not YAML: a second document begins here"),
        ("a:\n\tb: 1\n", "q.yaml:2: this is not YAML: a tab is here, and YAML is indented with"),
        ("a: [1\nb: 2\n", "q.yaml:2: this is not YAML"),
        ("a: *b\n", "q.yaml:1: this is not YAML: found undefined alias 'b'"),
        (
            "a: 1\nb: 2\na: 3\n",
            "q.yaml:3: a: the key 'a' is there twice, on line 1 too: remove one",
        ),
        ("a: {b: 1, b: 2}\n", "q.yaml:1: a.b: the key 'b' is there twice"),
        ("a: \0\n", "q.yaml: this is not YAML: unacceptable character"),
        ("x: 1\na: !foo 1\n", "q.yaml:2: the tag '!foo' means nothing here"),
        ("a: !!python/object:os.system x\n", "q.yaml:1: the tag "),
        ("a: !!set {x, y}\n", "q.yaml:1: the tag "),
        ("a: !!omap [x: 1]\n", "q.yaml:1: the tag "),
        ("a: !!int foo\n", "q.yaml:1: 'foo' is no int"),
        ("a: " + "9" * 5000, "q.yaml:1: '9999999999999999999999999999999999999999' is no int"),
        ("? [a, b]\n: 1\n", "q.yaml:1: a key is a word"),
        ('a: "\\ud800"\n', "q.yaml:1: "),
        ("a:\n  <<: 3\n", "q.yaml:2: << merges keys and values"),
    ],
)
def test_what_is_no_scenario_is_refused_with_its_line(text: str, says: str) -> None:
    assert refused(text).startswith(says)


@pytest.mark.parametrize(
    "text", ["a: &a [*a]\n", "a: &a {b: *a}\n", "a: &a {<<: *a}\n", "a: &a [&b [*a]]\n"]
)
def test_an_alias_inside_itself_is_refused(text: str) -> None:
    assert "an alias contains itself" in refused(text)


def bomb() -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    return "\n".join(lines)


def merge_bomb() -> str:
    chain = [f"a{i}: &a{i} {{<<: *a{i - 1}, k{i}: 1}}" for i in range(1, 2000)]
    return "\n".join(["a0: &a0 {k0: 1}", *chain])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (bomb(), "its aliases grow to more than 100000 values"),
        (merge_bomb(), "its aliases grow to more than 100000 values"),
        ("a: " + "[" * 100_000, "its brackets lie deeper than 50"),
        ("a: " + "[" * 60 + "]" * 60, "lists lie deeper than 50"),
        ("a: " + "{b: " * 3000, "its brackets lie deeper than 50"),
        ("".join("  " * i + "a:\n" for i in range(400)), ""),
        ("- " * 3000, ""),
    ],
    ids=["aliases", "merges", "brackets", "lists", "braces", "blocks", "dashes"],
)
def test_a_bomb_ends_within_a_second_and_takes_no_memory(text: str, says: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    assert says in refused(text)
    assert (time.process_time() - began) * scale(reference()) < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024  # KiB


def test_aliases_that_stay_small_are_welcome() -> None:
    data = read("a: &a {x: 1, y: 2}\nb: *a\nc: [*a, *a]\n").data
    assert data["c"] == [{"x": 1, "y": 2}] * 2
    assert data["b"] == data["a"]


def test_merge_keys_give_way_to_own_ones_and_earlier_to_later() -> None:
    document = read("a: &a {x: 1, y: 1}\nb: &b {x: 2, z: 2}\nc:\n  y: 3\n  <<: [*a, *b]\n")
    assert document.data["c"] == {"x": 1, "y": 3, "z": 2}
    assert document.lines["c", "y"] == 4
    assert document.lines["c", "z"] == 2  # the line of the value


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "huge").write_text("a: 1\n" + "# x\n" * 100_000)
    (tmp_path / "latin").write_bytes(b"a: \xe9\n")
    for name, says in (
        ("huge", "larger than 256KiB"),
        ("latin", "is not UTF-8 text (byte 3)"),
        ("absent", "cannot be read: No such file"),
        ("", "cannot be read: it is a directory"),
    ):
        with pytest.raises(InputError) as error:
            read_file(tmp_path / name, shown="shown.yaml")
        assert error.value.message.startswith("shown.yaml: ")
        assert says in error.value.message


def test_a_file_may_have_a_byte_order_mark_and_dos_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "q.yaml"
    path.write_bytes("\ufeffa: 1\r\nb: 2\r\n".encode())
    document = read_file(path)
    assert document.data == {"a": 1, "b": 2}
    assert document.lines["b",] == 2


# -- --set


def changed(*texts: str) -> Document:
    return override(read(TEXT), [parse_override(t) for t in texts])


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("disks.count=3", ("disks", "count"), 3),
        ("disks.throttle.total_bytes_per_second=4MiB", *((), None)),
        ("array.chunk=256KiB", ("array", "chunk"), "256KiB"),
        ("workloads.write.bs=2MiB", ("workloads", 0, "bs"), "2MiB"),
        ("workloads.1.bs=2MiB", ("workloads", 1, "bs"), "2MiB"),
        ("matrix={}", ("matrix",), {}),
        ("notes=", ("notes",), None),
        ("notes=a=b", ("notes",), "a=b"),
        ("notes='5'", ("notes",), "5"),
        ("guest.kernel_arguments=[a, b]", ("guest", "kernel_arguments"), ["a", "b"]),
    ],
)
def test_an_override_puts_its_value_where_its_name_says(
    text: str, path: tuple[str | int, ...], value: Any
) -> None:
    node: Any = changed(text).data
    if not path:
        assert node["disks"]["throttle"] == {"total_bytes_per_second": "4MiB"}
        return
    for part in path:
        node = node[part]
    assert node == value
    assert changed(text).place(path) == f"--set {text}"


def test_the_document_itself_is_not_touched() -> None:
    document = read(TEXT)
    override(document, [parse_override("workloads.write.bs=2MiB"), parse_override("disks.count=1")])
    assert document.data == read(TEXT).data


def test_later_overrides_come_after_earlier_ones() -> None:
    document = changed("array={level: 6, chunk: 8KiB}", "array.chunk=4KiB", "disks.count=1")
    assert document.data["array"] == {"level": 6, "chunk": "4KiB"}


def test_what_an_override_replaced_has_no_line_any_more() -> None:
    assert changed("disks={count: 3}").place(("disks", "count")) == "--set disks={count: 3}"
    assert changed("disks.size=1GiB").place(("disks", "count")) == "q.yaml:4"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("disks", "expected PATH=VALUE"),
        ("=3", "expected PATH=VALUE"),
        ("a..b=3", "expected PATH=VALUE"),
        ("a b=3", "expected PATH=VALUE"),
        ("a=[1", "this is not YAML"),
        ("a=" + "[" * 3000, "brackets lie deeper"),
        ("a=&a [*a]", "an alias contains itself"),
        ("a=!foo 1", "the tag '!foo'"),
        ("title.x=3", "title is 'T' in q.yaml, and has nothing below it"),
        ("workloads.wriet.bs=1", "workloads has no 'wriet' (it has write, read)"),
        ("workloads.2.bs=1", "workloads has no '2'"),
    ],
)
def test_an_override_that_cannot_be_done_is_named(text: str, says: str) -> None:
    with pytest.raises(InputError) as error:
        changed(text)
    assert error.value.message.startswith(f"--set {text[:100]}")
    assert says in error.value.message


# -- models


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("question: Q\n", "", "q.yaml:1: question: this key is missing: expected text"),
        ("count: 5", "count: 65", "q.yaml:4: disks.count: "),
        (
            "tool: dd\n    if",
            "toool: dd\n    if",
            "q.yaml:10: workloads[1].tool: this key is missing: expected a tool's name, such as",
        ),
        ("name: read", "name: write", "q.yaml:6: workloads: two workloads have the name 'write'"),
        ("name: read", "name: Read", "q.yaml:10: workloads[1].name: "),
    ],
)
def test_what_a_model_refuses_has_file_line_and_key(old: str, new: str, says: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(InputError) as error:
        validate(Scenario, read(TEXT.replace(old, new)))
    assert error.value.message.startswith(says), error.value.message
    assert "\n" not in error.value.message


def test_the_text_itself_is_a_scenario() -> None:
    assert validate(Scenario, read(TEXT)).disks[0].count == 5


def test_paths_are_written_as_people_write_them() -> None:
    assert dotted(("claims", 2, "expect", "near")) == "claims[2].expect.near"
    assert dotted(()) == ""


PIECES = [
    *("title: ", "disks:", "\n", "  ", "- ", "[", "]", "{", "}", ": ", "&a ", "*a", "<<: *a"),
    *("'", '"', "|", ">", "# ", "count: 5", "5MiB", "---", "...", "? ", "\t", "é", "%", "@", "`"),
    *("claims:", "matrix:", "exclude", "kind: bound", "array: none", ".inf", "2025-01-01", "null"),
    *(",", "!!int ", "!!set", "\r", "\ufeff"),
]


def validated(document: Document) -> str:
    """Return the error, or an empty text."""
    try:
        validate(Scenario, document)
    except InputError as error:
        return error.message
    return ""


@examples(150)
@given(
    st.one_of(
        st.lists(st.sampled_from(PIECES), max_size=25).map("".join),
        st.text(max_size=60),
        st.lists(st.sampled_from(TEXT.splitlines()), max_size=12).map("\n".join),
    )
)
def test_any_text_is_a_document_or_an_input_error(text: str) -> None:
    try:
        document = read(text)
    except InputError as refusal:
        said = refusal.message
    else:
        assert isinstance(document.data, dict)
        said = validated(document)
    assert said.startswith("q.yaml") or not said


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = sorted(Scenario.model_fields)


@examples(150)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4))
def test_any_data_is_a_scenario_or_an_input_error(data: dict[str, Any]) -> None:
    whole = {"title": "T", "question": "Q", **data}
    said = validated(Document(source="q.yaml", data=whole))
    assert said.startswith("q.yaml: ") or not said


WORDS = """\
[~, yes, No, on, 010, 0o17, 0x1f, 0b1, 1_000, 1e3, .5, .inf, 1:30, 2026-11-23, <<, =, '~', "a\\tb",
  é, "\\x41", '', null, TRUE, 5MiB, -1, +1, !!str 5, !!int '5', &a x, *a]
"""
"""Values that YAML 1.1 and 1.2, or two parsers, may read differently."""
FILES = [
    path
    for directory in ("scenarios", "matrices", "images")
    for path in sorted((Path(__file__).parents[2] / directory).glob("*.yaml"))
]


@pytest.mark.parametrize(
    "text",
    [f"a: {WORDS}", f"%YAML 1.2\n---\na: {WORDS}", "a: &0:0", "{'a':&b:c d}"]
    + ["a: |\n  x\n   y\n\nb: >-\n  x\n  y\n\n  z\n", "? a\n: - b\n  - ? c\n    : d\n"]
    + [p.read_text(encoding="utf-8") for p in FILES],
)
def test_libyaml_and_the_parser_in_python_read_the_same(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = read(text)
    monkeypatch.setattr(decode, "_SLOW", re.compile(""))  # every text is slow
    slow = read(text)
    assert (quick.data, dict(quick.lines)) == (slow.data, dict(slow.lines))


@examples(1000)
@given(st.text(alphabet="ab:-?[]{},&*!|>'\"%#~<= \n\t0", max_size=60))
def test_libyaml_reads_in_the_same_way_whatever_both_can_read(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "_SLOW", re.compile(""))
        try:
            slow = read(f"a: {text}")
        except InputError:
            return
    quick = read(f"a: {text}")
    assert (quick.data, dict(quick.lines)) == (slow.data, dict(slow.lines))


@pytest.mark.parametrize("opening", ["- ", "? ", "-\t"])
def test_blocks_however_deep_do_not_end_the_process(opening: str) -> None:
    with pytest.raises(InputError):
        read(f"a:\n  {opening * 60_000}x\n")
    with pytest.raises(InputError):
        read("".join(f"{' ' * n}a:\n" for n in range(600)))
