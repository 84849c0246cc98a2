"""The processor's name, from the files of recorded machines."""

import platform
from pathlib import Path

import pytest

from zerobench.common.processor import processor_name


def recorded(root: Path, cpuinfo: str, board: str | None = None) -> Path:
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text(cpuinfo)
    if board is not None:
        folder = root / "sys/devices/virtual/dmi/id"
        folder.mkdir(parents=True)
        (folder / "product_name").write_text(board + "\n")
    return root


def test_the_first_model_name_is_the_processors(tmp_path: Path) -> None:
    cpuinfo = "processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9654 96-Core: rev B\nmodel name\t: another\n"
    assert processor_name(recorded(tmp_path, cpuinfo, board="PowerEdge")) == "AMD EPYC 9654 96-Core: rev B"


def test_where_the_processor_has_numbers_only_the_board_stands_in(tmp_path: Path) -> None:
    arm = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"
    assert processor_name(recorded(tmp_path, arm, board="Grace C1")) == "Grace C1"


def test_a_machine_that_tells_nothing_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "processor", lambda: "")
    assert processor_name(tmp_path) is None
