"""What `zerobench doctor` finds, and that it always ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from zerobench.run import doctor
from zerobench.run.doctor import SHARED_MEMORY, Finding, Standing, can_run, run_checks, write_bytes_per_s
from zerobench.spec.availability import FRAMEWORKS

ALL = {*FRAMEWORKS, "GPUs", "torch for CUDA", "compilers", SHARED_MEMORY, "emulated GPU", "Slurm"}


def test_a_check_that_never_ends_is_a_finding_and_holds_up_no_other() -> None:
    never = threading.Event()

    def hangs() -> Iterator[Finding]:
        never.wait()
        yield from ()

    def fails() -> Iterator[Finding]:
        raise PermissionError(13, "not allowed")
        yield

    began_s = time.monotonic()
    found = run_checks({"driver": hangs, "disk": fails, "good": lambda: iter([Finding("a", Standing.GOOD, "b")])}, 0.2)
    assert time.monotonic() - began_s < 5
    never.set()
    assert [(one.what, one.standing.value) for one in found] == [
        ("driver", "missing"),
        ("disk", "limited"),
        ("a", "ok"),
    ]
    assert found[0].finding == "no answer within 0.2 s"


@pytest.mark.parametrize(
    ("lacking", "cannot"),
    [
        (set(), set()),
        ({"GPUs"}, {"measured on GPUs"}),
        ({"torch for CUDA"}, {"measured on GPUs"}),
        ({SHARED_MEMORY}, {"measured on CPU ranks"}),
        ({"emulated GPU", "Slurm"}, {"emulated", "submitted to Slurm"}),
        ({"torch"}, {"measured on GPUs", "measured on CPU ranks", "simulated", "emulated"}),
    ],
)
def test_what_can_run_follows_from_what_is_there(lacking: set[str], cannot: set[str]) -> None:
    standing = {True: Standing.MISSING, False: Standing.GOOD}
    kinds = can_run([Finding(name, standing[name in lacking], "") for name in ALL])
    assert {name for name, can in kinds.items() if not can} == cannot


def test_a_lock_that_nobody_holds_is_told_of_and_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    lock = tmp_path / "cpu_adam" / "lock"
    lock.parent.mkdir()
    lock.touch()
    [found] = doctor._locks()
    assert str(lock) in found.finding
    assert lock.exists()


def test_the_disk_is_tried_within_bounds_and_left_as_it_was(tmp_path: Path) -> None:
    assert write_bytes_per_s(tmp_path) > 0
    assert list(tmp_path.iterdir()) == []
