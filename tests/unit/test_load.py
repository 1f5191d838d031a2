"""Memory that the limits of cgroups leave."""

from __future__ import annotations

from pathlib import Path

from lab.host.system import load

MIB = 1 << 20


def limited(group: Path, most: str, used: int, cache: int) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text(f"{most}\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {cache}\n")


def test_each_limited_cgroup_says_what_it_leaves(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    limited(root / "a", str(100 * MIB), 60 * MIB, 20 * MIB)
    limited(root / "a/b", "max", 50 * MIB, 0)
    limited(root / "a/b/c", str(40 * MIB), 50 * MIB, 0)
    own = "4:memory:/a\n1:name=systemd:/\n0::/a/b/c\n"
    assert list(load.left_in_cgroups(root, own)) == [0, 60 * MIB]
    assert list(load.left_in_cgroups(root, "0::/a/b\n")) == [60 * MIB]


def test_without_limits_all_that_is_available_counts(tmp_path: Path) -> None:
    limited(tmp_path / "a", "max", MIB, 0)
    assert list(load.left_in_cgroups(tmp_path, "0::/a\n")) == []
    assert list(load.left_in_cgroups(tmp_path, "4:memory:/a\n")) == []  # of version 1
    assert list(load.left_in_cgroups(tmp_path, "0::/../elsewhere\n")) == []  # another namespace
    assert load.available_memory() > MIB
