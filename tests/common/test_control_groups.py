"""The memory limit of control groups, read from trees as the kernel shows them."""

from pathlib import Path

import psutil

from zerobench.common.control_groups import host_memory_bytes, memory_limit_bytes


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
