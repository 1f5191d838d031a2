"""A patch series is read with git's tools, is for md or mdadm, and applies or says where not."""

from __future__ import annotations

import base64
import quopri
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from email import policy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lab.compile.image.series import (
    Target,
    build_tree,
    depends,
    hunk_of,
    images_key,
    in_order,
    plain,
    target_of,
)
from lab.core.errors import InputError
from lab.host.images import recipes as image_recipes
from lab.host.images import series as image_series
from lab.host.images.series import Series
from lab.host.system.process import ProcessResult
from lab.model.image.manifest import ImageManifest

FILE = "drivers/md/raid5.c"
LINES = [f"line {n}" for n in range(1, 41)]


NINES = "9" * 5000


def test_numbers_without_end_are_no_order_and_no_error() -> None:
    """Python converts at most 4300 digits."""
    subjects = [f"[PATCH {NINES}/{NINES}] b", f"[PATCH 1/{NINES}] a", "[PATCH 2/3] c"]
    assert in_order(subjects) == [0, 1, 2]
    assert hunk_of(f"--- a/x\n@@ -{NINES},3 +1,3 @@\n", "x", 1) == ""


@pytest.mark.parametrize(
    "subject",
    [
        b"[PATCH " + NINES.encode() + b"/" + NINES.encode() + b"] md: x",
        b"=?utf-8?b?" + b"A" * 77 + b"?=",
        b"=?utf-8?q?=?=",
        b"=?" + b"\xff" * 50,
        b"a" * 100_000,
        b"\x00\x1b[31m",
        b"(" * 2000,
    ],
)
def test_a_hostile_subject_is_a_title_or_a_sentence(subject: bytes, tmp_path: Path) -> None:
    mail = b"From a Mon Sep 17 00:00:00 2001\nFrom: A <a@b>\nSubject: " + subject
    mail += b"\n\nx\n---\n" + change(20, "new").encode()
    (tmp_path / "m.mbox").write_bytes(mail)
    (tmp_path / "work").mkdir()
    try:
        series = image_series.read(str(tmp_path / "m.mbox"), None, tmp_path / "work")
    except InputError:
        return
    (patch,) = series.patches
    assert len(patch.title) <= 1100
    assert "\x1b" not in patch.title


def change(number: int, new: str, path: str = FILE, old: str = "") -> str:
    """Return a diff of one line, with the lines around it."""
    before, after = f" line {number - 1}", f" line {number + 1}"
    hunk = f"@@ -{number - 1},3 +{number - 1},3 @@ head"
    lines = (f"--- a/{path}", f"+++ b/{path}", hunk, before)
    lines += (f"-{old or f'line {number}'}", f"+{new}", after)
    return "\n".join(lines) + "\n"


def git(tree: Path, *words: str) -> str:
    own = ("-c", "user.name=A Tester", "-c", "user.email=tester@example.org")
    return subprocess.run(
        ["git", *own, *words], cwd=tree, check=True, capture_output=True, text=True, timeout=30
    ).stdout


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source with three commits on top: ``base..tip``."""
    tree = tmp_path_factory.mktemp("linux")
    (tree / FILE).parent.mkdir(parents=True)
    (tree / FILE).write_text("\n".join(LINES) + "\n", encoding="utf-8")
    git(tree, "init", "--quiet", "--initial-branch=base")
    git(tree, "add", ".")
    git(tree, "commit", "--quiet", "-m", "the source")
    git(tree, "checkout", "--quiet", "-b", "tip")
    for number, title in ((3, "md: die erste Ärmlichkeit"), (20, "md: second"), (38, "md: third")):
        text = (tree / FILE).read_text(encoding="utf-8")
        changed = text.replace(f"line {number}\n", f"line {number}, größer\n")
        (tree / FILE).write_text(changed, encoding="utf-8")
        git(tree, "commit", "--quiet", "-am", title)
    return tree


@pytest.fixture(scope="module")
def source(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source's tar file, as a build tree keeps it."""
    path = tmp_path_factory.mktemp("source") / "source.tar"
    with tarfile.open(path, "w") as tar:
        git(repository, "checkout", "--quiet", "base")
        tar.add(repository / "drivers", "drivers")
    return path


def mbox_of(repository: Path, *options: str) -> str:
    return git(repository, "format-patch", "--stdout", *options, "base..tip")


Read = Callable[..., Series]


@pytest.fixture
def read(tmp_path: Path, lab_home: Path) -> Read:
    def reading(given: object, tree: Path | None = None) -> Series:
        work = tempfile.mkdtemp(dir=tmp_path)
        return image_series.read(str(given), tree, Path(work))

    return reading


def applied(series: Series, source: Path, tmp_path: Path) -> str:
    tree = tmp_path / "tree"
    image_series.begin(source, tree)
    image_series.apply(series, tree)
    return (tree / FILE).read_text(encoding="utf-8")


TITLES = ["md: die erste Ärmlichkeit", "md: second", "md: third"]


def titles(series: Series) -> list[str]:
    return [patch.title for patch in series.patches]


def test_an_mbox_with_a_cover_letter_and_a_reply(
    repository: Path, source: Path, read: Read, tmp_path: Path
) -> None:
    cover = mbox_of(repository, "--cover-letter")
    reply = (
        "From 0123456789012345678901234567890123456789 Mon Sep 17 00:00:00 2001\n"
        "From: B <b@example.org>\nSubject: Re: [PATCH 1/3] md\n\n> +line\nLooks good.\n"
    )
    (tmp_path / "my.mbox").write_text(cover + reply, encoding="utf-8")
    series = read(tmp_path / "my.mbox")
    assert titles(series) == TITLES
    assert all(patch.paths == (FILE,) for patch in series.patches)
    text = applied(series, source, tmp_path)
    assert [n for n, line in enumerate(text.splitlines(), 1) if "größer" in line] == [3, 20, 38]


def test_mails_in_another_order_follow_their_numbers(
    repository: Path, read: Read, tmp_path: Path
) -> None:
    git(repository, "format-patch", "--quiet", f"--output-directory={tmp_path / 'd'}", "base..tip")
    mails = sorted((tmp_path / "d").iterdir())
    mixed = "".join(mail.read_text(encoding="utf-8") for mail in reversed(mails))
    (tmp_path / "my.mbox").write_text(mixed, encoding="utf-8")
    assert titles(read(tmp_path / "my.mbox")) == TITLES
    assert titles(read(tmp_path / "d")) == TITLES


@pytest.mark.parametrize("encoding", ["quoted-printable", "base64"])
def test_mails_are_decoded(
    repository: Path, source: Path, read: Read, tmp_path: Path, encoding: str
) -> None:
    body = git(repository, "format-patch", "--stdout", "tip~2..tip~1").split("\n\n", 1)[1]
    code = quopri.encodestring if encoding == "quoted-printable" else base64.encodebytes
    head = (
        "From: A <a@example.org>\nSubject: =?utf-8?q?md=3A_gr=C3=B6=C3=9Fer?=\n"
        "MIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\n"
        f"Content-Transfer-Encoding: {encoding}\n\n"
    )
    (tmp_path / "one.eml").write_bytes(head.encode() + code(body.encode()))
    series = read(tmp_path / "one.eml")
    assert titles(series) == ["md: größer"]
    assert "line 20, größer" in applied(series, source, tmp_path)


def test_a_directory_is_read_in_the_order_of_names(read: Read, tmp_path: Path) -> None:
    for name, number in (("10-b.patch", 20), ("09-a.diff", 10), ("README", 30)):
        (tmp_path / name).write_text(change(number, "x"), encoding="utf-8")
    assert titles(read(tmp_path)) == ["09-a.diff", "10-b.patch"]  # without mails, by file


@pytest.mark.parametrize("form", ["DIR:BASE..TIP", "--tree"])
def test_a_git_range(repository: Path, source: Path, read: Read, tmp_path: Path, form: str) -> None:
    words = ("base..tip", repository) if form == "--tree" else (f"{repository}:base..tip", None)
    series = read(*words)
    assert titles(series) == TITLES
    assert "line 3, größer" in applied(series, source, tmp_path)


def test_a_range_merges_three_ways(repository: Path, read: Read, tmp_path: Path) -> None:
    """The repository has the file that the patch was made from; the same patch as a mail fails."""
    other = tmp_path / "other"
    (other / "drivers/md").mkdir(parents=True)
    nearby = [*LINES[:4], "line 5, Debian's", *LINES[5:]]
    (other / FILE).write_text("\n".join(nearby) + "\n", encoding="utf-8")
    with tarfile.open(tmp_path / "source.tar", "w") as tar:
        tar.add(other / "drivers", "drivers")
    first = git(repository, "format-patch", "--stdout", "tip~3..tip~2")
    alone = tmp_path / "alone"
    alone.mkdir()
    (tmp_path / "first.mbox").write_text(first, encoding="utf-8")
    with pytest.raises(InputError, match="does not apply"):
        applied(read(tmp_path / "first.mbox"), tmp_path / "source.tar", alone)
    ranged = read(f"{repository}:tip~3..tip~2")
    text = applied(ranged, tmp_path / "source.tar", tmp_path)
    assert "line 3, größer" in text
    assert "line 5, Debian's" in text


@pytest.mark.parametrize(
    ("path", "says"),
    [(FILE, f"'{FILE}', @@ -1,3 +1,3 @@ head"), ("drivers/md/raid7.c", "'drivers/md/raid7.c': ")],
)
def test_what_does_not_apply_is_named(
    source: Path, read: Read, tmp_path: Path, path: str, says: str
) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p/1.patch").write_text(change(30, "good"), encoding="utf-8")
    wrong = change(2, "y", path=path, old="line X")
    (tmp_path / "p/2.patch").write_text(wrong, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        applied(read(tmp_path / "p"), source, tmp_path)
    assert "patch 2 of 2 ('2.patch')" in caught.value.message
    assert says in caught.value.message


def test_documentation_is_left_out(source: Path, read: Read, tmp_path: Path) -> None:
    text = (
        "--- a/Documentation/admin-guide/md.rst\n+++ b/Documentation/admin-guide/md.rst\n"
        "@@ -1 +1 @@\n-old\n+new\n"
    )
    (tmp_path / "one.patch").write_text(text + change(5, "line five"), encoding="utf-8")
    series = read(tmp_path / "one.patch")
    assert target_of(image_series.titles(series)) is Target.MD
    assert "line five" in applied(series, source, tmp_path)


HOSTILE = ["../../etc/passwd", "drivers/md/../../../x", "/etc/passwd", "a/../b"]


@pytest.mark.parametrize("path", HOSTILE)
def test_paths_outside_of_the_source_are_refused(
    source: Path, read: Read, tmp_path: Path, path: str
) -> None:
    text = f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+owned\n"
    (tmp_path / "one.patch").write_text(text, encoding="utf-8")
    with pytest.raises(InputError):  # git refuses on its own, too
        applied(read(tmp_path / "one.patch"), source, tmp_path)
    with pytest.raises(InputError, match="outside of the source"):
        target_of({"1: x": [path]})
    assert not (tmp_path / "x").exists()


def test_no_link_leads_out_of_the_source(source: Path, read: Read, tmp_path: Path) -> None:
    (tmp_path / "aim").mkdir()
    text = (
        "diff --git a/drivers/md/md-out b/drivers/md/md-out\nnew file mode 120000\n--- /dev/null\n"
        f"+++ b/drivers/md/md-out\n@@ -0,0 +1 @@\n+{tmp_path / 'aim'}\n"
        "\\ No newline at end of file\n"
        "diff --git a/drivers/md/md-out/x b/drivers/md/md-out/x\nnew file mode 100644\n"
        "--- /dev/null\n+++ b/drivers/md/md-out/x\n@@ -0,0 +1 @@\n+owned\n"
    )
    (tmp_path / "one.patch").write_text(text, encoding="utf-8")
    with pytest.raises(InputError):
        applied(read(tmp_path / "one.patch"), source, tmp_path)
    assert not list((tmp_path / "aim").iterdir())


def test_settings_and_hooks_of_the_user_are_not_used(
    source: Path, read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text("[apply]\n\twhitespace = error\n", encoding="utf-8")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "not-this-one"))
    (tmp_path / "one.patch").write_text(change(5, "line five "), encoding="utf-8")
    assert "line five" in applied(read(tmp_path / "one.patch"), source, tmp_path)
    assert not (tmp_path / "not-this-one").exists()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
@example(b"From x\nSubject: y\n\n--- a/f\n+++ b/f\n@@ -1,9 +1 @@\n-a\n")
@example(b"\0\xff")
def test_any_bytes_are_a_series_or_bad_input(read: Read, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "any").write_bytes(data)
    with pytest.raises(InputError):
        read(tmp_path / "any")


@pytest.mark.parametrize(
    "given_",
    ["nowhere.mbox", "nowhere:a..b", "a..b", "--tree"],
)
def test_what_is_no_series_is_bad_input(read: Read, tmp_path: Path, given_: str) -> None:
    with pytest.raises(InputError):
        read(given_)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InputError, match=r"\*\.patch"):
        read(empty)


# --- what it is for ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paths", "against", "found"),
    [
        (["drivers/md/raid5.c"], None, Target.MD),
        (["drivers/md/md-bitmap.h", "Documentation/admin-guide/md.rst"], None, Target.MD),
        (["drivers/md/Makefile", "drivers/md/raid1-10.c"], "md", Target.MD),
        (["super1.c", "tests/00raid5"], None, Target.MDADM),
        (["mdadm.8.in"], "mdadm", Target.MDADM),
    ],
)
def test_the_paths_decide(paths: list[str], against: str | None, found: Target) -> None:
    assert target_of({"1: x": paths}, against) is found


@pytest.mark.parametrize(
    ("paths", "against", "names"),
    [
        (["drivers/md/raid5.c", "block/bio.c"], None, "block/bio.c"),
        (["drivers/md/dm-raid.c"], None, "drivers/md/dm-raid.c"),
        (["drivers/md/bcache/md.c"], None, "drivers/md/bcache/md.c"),
        (["drivers/md/raid5.c", "Grow.c"], None, "Grow.c"),
        (["Grow.c"], "md", "Grow.c"),
        (["drivers/md/md.c"], "mdadm", "drivers/md/md.c"),
        (["Documentation/x.rst"], None, "documentation only"),
        ([], None, "no file"),
    ],
)
def test_other_code_is_refused(paths: list[str], against: str | None, names: str) -> None:
    with pytest.raises(InputError, match=names.replace(".", r"\.")):
        target_of({"1: x": paths}, against)


@given(st.lists(st.text(alphabet="ab./-_md5c\n\\", max_size=20), max_size=4))
def test_any_paths_are_a_target_or_bad_input(paths: list[str]) -> None:
    try:
        target_of({"1: x": paths})
    except InputError:
        return
    assert not any(".." in path.split("/") or path.startswith("/") for path in paths)


@pytest.mark.parametrize(
    ("subjects", "order"),
    [
        (["[PATCH 2/2] b", "[PATCH 1/2] a"], [1, 0]),
        (["[PATCH v3 10/11] b", "[PATCH v3 09/11] a"], [1, 0]),
        (["[PATCH] b", "[PATCH 1/2] a"], [0, 1]),
        (["[PATCH 1/2] b", "[PATCH 1/2] a"], [0, 1]),
        ([], []),
    ],
)
def test_the_order_of_subjects(subjects: list[str], order: list[int]) -> None:
    assert in_order(subjects) == order


def test_parts_of_a_patch() -> None:
    assert plain("[PATCH v2 1/3] [md] md: x") == "md: x"
    assert plain("[PATCH]") == "[PATCH]"
    text = (
        "--- a/x\n+++ b/x\n@@ -7,2 +7 @@ f()\n a\n-b\n--- a/y\n+++ b/y\n@@ -7 +7 @@ g()\n-a\n+b\n"
    )
    assert hunk_of(text, "y", 7) == "@@ -7 +7 @@ g()"
    assert hunk_of(text, "y", 9) == ""
    assert depends(b"x\0depends=md-mod,async_tx\0y") == ("async_tx", "md-mod")
    assert depends(b"") == ()
    assert images_key({"a": b"1"}) != images_key({"a": b"2"})


# --- build trees ------------------------------------------------------------------------------


def manifest(**more: object) -> ImageManifest:
    digest = "0" * 64
    files = {name: {"size": 1, "sha256": digest} for name in ("disk.qcow2", "kernel", "initrd")}
    facts = {
        "name": "debian-12",
        "digest": digest,
        "built": "2026-11-24T00:00:00Z",
        "source": "built",
        "boot": "kernel",
        "files": files,
        "packages": {"linux-image-6.1.0-1-cloud-amd64": "6.1.9-1"},
        "kernel_version": "6.1.0-1-cloud-amd64",
        "mdadm_version": "4.2-5",
    }
    return ImageManifest.model_validate(facts | more)


def test_a_build_tree_has_the_headers_of_the_images_own_kernel() -> None:
    recipe = image_recipes.load("debian-12")[1]
    tree = build_tree(Target.MD, recipe, manifest(), "hook")
    assert "linux-headers-6.1.0-1-cloud-amd64" in tree.packages
    words = tree.command(Path("/w"))
    assert "bookworm" in words
    assert any("/w/buildtree.sh" in word for word in words)
    again = build_tree(Target.MD, recipe, manifest(), "hook")
    newer = manifest(packages={"linux-image-6.1.0-1-cloud-amd64": "6.1.9-2"})
    keys = [build_tree(Target.MD, recipe, newer, "hook").key]
    keys += [build_tree(Target.MD, recipe, manifest(), "other").key]
    keys += [build_tree(Target.MDADM, recipe, manifest(), "hook").key]
    assert again.key == tree.key
    assert len({tree.key, *keys}) == 4


@pytest.mark.parametrize(
    ("name", "more", "target", "says"),
    [
        ("debian-12", {"packages": {}}, Target.MD, "not a Debian package"),
        ("debian-12", {"mdadm_version": None}, Target.MDADM, "no mdadm"),
        ("debian-sid-lockless", {}, Target.MD, "modules of its own"),
    ],
)
def test_an_image_without_headers_is_refused(
    name: str, more: dict[str, object], target: Target, says: str
) -> None:
    with pytest.raises(InputError, match=says):
        build_tree(target, image_recipes.load(name)[1], manifest(**more), "hook")


def test_git_reads_a_series_within_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.patch").write_text("Subject: md: x\n\nx\n---\n" + change(20, "new"))
    seen = []
    run = image_series.process.run

    def watched(argv: Sequence[str], **given: Any) -> ProcessResult:
        seen.append(argv[:3])
        return run(argv, **given)

    monkeypatch.setattr(image_series.process, "run", watched)
    (tmp_path / "work").mkdir()
    assert image_series.read(str(tmp_path / "m.patch"), None, tmp_path / "work").patches
    assert {tuple(words) for words in seen} == {("prlimit", "--as=2147483648", "--cpu=300")}
    assert len(seen) == 3  # mailsplit, mailinfo, apply --numstat


def test_a_small_patch_of_a_large_file_ends_at_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = ["git", "-C", str(tmp_path / "tree"), "-c", "core.bigFileThreshold=1g"]
    tree = tmp_path / "tree"
    tree.mkdir()
    subprocess.run([*git, "init", "-q"], check=True)
    (tree / "large").write_bytes(bytes(96 << 20))
    subprocess.run([*git, "add", "-A"], check=True)
    words = [*git, "diff", "--cached", "--binary", "--full-index"]
    diff = subprocess.run(words, check=True, capture_output=True).stdout
    assert len(diff) < 1 << 20
    (tmp_path / "m.patch").write_bytes(b"Subject: md: x\n\nx\n---\n" + diff)
    (tmp_path / "one").mkdir()
    assert image_series.read(str(tmp_path / "m.patch"), None, tmp_path / "one").patches
    monkeypatch.setattr(image_series, "_LIMITED", ("prlimit", f"--as={96 << 20}"))
    (tmp_path / "two").mkdir()
    with pytest.raises(InputError, match=r"the patch 'md: x' .* memory"):
        image_series.read(str(tmp_path / "m.patch"), None, tmp_path / "two")


def test_a_subject_is_read_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    parse = policy.EmailPolicy.header_fetch_parse

    def watched(self: policy.EmailPolicy, name: str, value: str) -> Any:
        given.append(len(value))
        return parse(self, name, value)

    monkeypatch.setattr(policy.EmailPolicy, "header_fetch_parse", watched)
    head = b"From: A <a@b>\nsubject: =?utf-8?q?md=3A?=\n x"
    assert image_series._subject(head + b"\n\nSubject: no\n") == "md: x"
    assert len(image_series._subject(head + b" y" * 500_000 + b"\n\nbody\n")) == 998
    assert max(given) == 4096
    assert image_series._subject(b"From: A <a@b>\n\nSubject: no\n") == ""
