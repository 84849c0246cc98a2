"""Swapped bytes are the kernel's count of block-device traffic."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from zerobench.common.block_io import read_block_io, swap_file_bytes


def test_direct_writes_are_counted_to_the_byte(tmp_path):
    path = tmp_path / "swap"
    try:
        file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT)
    except OSError:
        pytest.skip("this file system has no O_DIRECT")
    page = mmap.mmap(-1, 1 << 20)
    before = read_block_io()
    for _ in range(4):
        os.write(file, page)
    os.close(file)
    after = read_block_io()
    assert before is not None
    assert after is not None
    assert 4 << 20 <= after.written_bytes - before.written_bytes < (4 << 20) + (1 << 20)


def test_swap_files_are_sorted_by_what_they_hold_and_by_rank(tmp_path):
    optimizer = tmp_path / "zero_stage_3" / "optimizer" / "rank1"
    parameters = tmp_path / "zero_stage_3" / "bfloat16params" / "rank1"
    other = tmp_path / "zero_stage_3" / "optimizer" / "rank0"
    for folder, size in ((optimizer, 100), (parameters, 20), (other, 999)):
        folder.mkdir(parents=True)
        (folder / "0.tensor.swp").write_bytes(b"x" * size)
    assert swap_file_bytes(tmp_path, 1) == {"optimizer": 100, "parameters": 20}


def test_a_kernel_without_counters_tells_none(monkeypatch):
    def refused(*_arguments: object, **_named: object) -> str:
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", refused)
    assert read_block_io() is None
