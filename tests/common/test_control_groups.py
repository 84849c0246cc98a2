"""The memory limit of control groups, read from trees as the kernel shows them."""

from pathlib import Path

import psutil
import pytest

from zerobench.common.control_groups import cores, host_memory_bytes, memory_bytes, memory_limit_bytes


def tree(root: Path, groups: str, limits: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for path, text in limits.items():
        file = root / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return root


def test_version_2_gives_the_smallest_limit_of_the_group_and_those_above_it(tmp_path: Path):
    limits = {"memory.max": "max", "job/memory.max": "4096", "job/step/memory.max": "8192"}
    assert memory_limit_bytes(tree(tmp_path, "0::/job/step\n", limits)) == 4096


def test_version_1_is_read_from_the_memory_controller_alone(tmp_path: Path):
    limits = {"memory/a/memory.limit_in_bytes": "1000", "cpu/a/memory.limit_in_bytes": "10"}
    assert memory_limit_bytes(tree(tmp_path, "5:cpu:/a\n4:memory:/a\n", limits)) == 1000


def test_a_container_whose_group_is_named_from_outside_has_the_limit_of_its_root(tmp_path: Path):
    limits = {"memory.max": "2048"}
    assert memory_limit_bytes(tree(tmp_path, "0::/host/path/of/container\n", limits)) == 2048


def test_without_a_limit_or_control_groups_there_is_none(tmp_path: Path):
    assert memory_limit_bytes(tree(tmp_path, "0::/a\n", {"a/memory.max": "max"})) is None
    assert memory_limit_bytes(tmp_path / "nothing") is None


def test_the_memory_of_this_machine_is_at_most_what_it_has():
    assert 0 < host_memory_bytes() <= psutil.virtual_memory().total


@pytest.mark.parametrize(("groups", "files", "expected"), [
    ("0::/job/step\n", {"job/step/cpu.max": "400000 100000", "job/cpu.max": "150000 100000"}, 1.5),
    ("0::/job/step\n", {"job/step/cpu.max": "50000 100000", "job/cpu.max": "150000 100000"}, 0.5),
    ("0::/job/step\n", {"job/step/cpu.max": "max 100000", "job/cpu.max": "300000 50000"}, 6.0),
    ("0::/job\n", {"job/cpu.max": "max 100000"}, None),
    ("0::/job\n", {"job/cpu.max": "100000"}, None),
    ("5:cpu,cpuacct:/a\n", {"cpu/a/cpu.cfs_quota_us": "200000", "cpu/a/cpu.cfs_period_us": "100000"}, 2.0),
    ("5:cpu,cpuacct:/a\n", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, None),
    ("4:memory:/a\n", {"cpu/a/cpu.cfs_quota_us": "200000", "cpu/a/cpu.cfs_period_us": "100000"}, None),
    ("0::/../outside\n", {"cpu.max": "200000 100000"}, None),
])  # fmt: skip
def test_the_smallest_quota_of_the_group_and_those_above_it_counts(
    tmp_path: Path, groups: str, files: dict[str, str], expected: float | None
):
    assert cores(tree(tmp_path, groups, files)) == expected


def test_what_is_held_now_is_that_of_the_innermost_group_that_keeps_an_account(tmp_path: Path):
    files = {"job/memory.current": "900", "job/step/memory.current": "700"}
    assert memory_bytes(tree(tmp_path / "two", "0::/job/step\n", files)) == 700
    assert memory_bytes(tree(tmp_path / "above", "0::/job/step/more\n", files)) == 700
    one = {"memory/a/memory.usage_in_bytes": "300"}
    assert memory_bytes(tree(tmp_path / "one", "4:memory:/a\n", one)) == 300
    assert memory_bytes(tree(tmp_path / "none", "4:memory:/a\n", {})) is None


@pytest.mark.parametrize(("written", "expected"), [
    (2**60 - 1, 2**60 - 1), (2**60, None), (9223372036854771712, None), (0, 0)
])  # fmt: skip
def test_what_version_1_writes_for_no_limit_is_none(tmp_path: Path, written: int, expected: int | None):
    limits = {"memory/a/memory.limit_in_bytes": str(written)}
    assert memory_limit_bytes(tree(tmp_path, "4:memory:/a\n", limits)) == expected
