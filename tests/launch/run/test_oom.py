"""The kernel's counters of killed processes, read from recorded files and from this machine."""

from pathlib import Path

import pytest

from zerobench.launch.run.oom import OomCounters, read_oom_counters


def record(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": cgroup, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMORY_EVENTS = "low 0\nhigh 12\nmax 340\noom 2\noom_kill {}\noom_group_kill 0\n"
OOM_CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
VMSTAT = "nr_free_pages 5732816\noom_kill {}\nswap_ra 0\n"


@pytest.mark.parametrize(
    ("cgroup", "counter", "text"),
    [
        ("0::/user.slice/job_7\n", "sys/fs/cgroup/user.slice/job_7/memory.events", MEMORY_EVENTS),
        ("4:memory:/\n0::/job\n", "sys/fs/cgroup/unified/job/memory.events", MEMORY_EVENTS),
        ("9:cpu:/\n4:memory:/slurm/job_7\n0::/\n", "sys/fs/cgroup/memory/slurm/job_7/memory.oom_control", OOM_CONTROL),
        ("4:memory:/docker/8f1c\n", "sys/fs/cgroup/memory/memory.oom_control", OOM_CONTROL),
    ],
    ids=["version 2", "version 2 beside 1", "version 1", "version 1 in a container"],
)
def test_a_kill_in_our_control_group_is_counted(tmp_path: Path, cgroup: str, counter: str, text: str) -> None:
    before = read_oom_counters(record(tmp_path, cgroup, {counter: text.format(0), "proc/vmstat": VMSTAT.format(5)}))
    after = read_oom_counters(record(tmp_path, cgroup, {counter: text.format(2), "proc/vmstat": VMSTAT.format(7)}))
    assert before.kills == {f"/{counter}": 0, "/proc/vmstat": 5}
    assert after.since(before) == f"oom_kill in /proc/vmstat rose by 2; oom_kill in /{counter} rose by 2"


def test_of_several_groups_that_count_the_innermost_is_ours(tmp_path: Path) -> None:
    """The groups above count the kills of others too."""
    inner, outer = (f"sys/fs/cgroup/{name}memory.events" for name in ("job/step/", "job/"))
    files = {inner: MEMORY_EVENTS.format(1), outer: MEMORY_EVENTS.format(9), "proc/vmstat": VMSTAT.format(9)}
    assert read_oom_counters(record(tmp_path, "0::/job/step\n", files)).kills == {f"/{inner}": 1, "/proc/vmstat": 9}


@pytest.mark.parametrize(("before", "after", "said"), [
    ({"/a": 1}, {"/a": 2}, "oom_kill in /a rose by 1"),
    ({"/a": 1, "/b": 4}, {"/a": 3, "/b": 5}, "oom_kill in /a rose by 2; oom_kill in /b rose by 1"),
    ({"/a": 1}, {"/a": 1}, None),
    ({"/a": 2}, {"/a": 1}, None),
    ({}, {"/a": 7}, None),
    ({"/a": 1}, {}, None),
])  # fmt: skip
def test_only_a_counter_that_was_read_before_and_rose_is_evidence(
    before: dict[str, int], after: dict[str, int], said: str | None
) -> None:
    assert OomCounters(after).since(OomCounters(before)) == said


@pytest.mark.parametrize("text", ["oom_kill many\n", "oom_kill_disable 0\n", ""])
def test_a_file_without_a_readable_count_is_none_of_the_counters(tmp_path: Path, text: str) -> None:
    assert read_oom_counters(record(tmp_path, "0::/\n", {"sys/fs/cgroup/memory.events": text})).kills == {}


def test_counters_that_stand_still_are_no_evidence(tmp_path: Path) -> None:
    root = record(tmp_path, "0::/\n", {"proc/vmstat": VMSTAT.format(3)})
    assert read_oom_counters(root).since(read_oom_counters(root)) is None


def test_a_kernel_without_counters_gives_no_evidence(tmp_path: Path) -> None:
    without = read_oom_counters(record(tmp_path, "not\n" * 0, {"proc/vmstat": "nr_free_pages 1\n"}))
    assert without.kills == {}
    assert without.since(without) is None


def test_this_machine_has_a_counter() -> None:
    assert read_oom_counters().kills["/proc/vmstat"] >= 0
