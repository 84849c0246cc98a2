"""The other project of the same import name is found by the file that only it has."""

import sys
from pathlib import Path

import pytest

from zerobench.common.distribution import namesake, release_numbers


@pytest.mark.parametrize(("file", "expected"), [("zerobench/_benchmark.py", "0.5"), ("zerobench/cli.py", None)])
def test_the_other_package_is_told_from_an_older_install_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, expected: str | None
) -> None:
    about = tmp_path / "zerobench-0.5.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: zerobench\nVersion: 0.5\n")
    (about / "RECORD").write_text(f"{file},,\nzerobench-0.5.dist-info/METADATA,,\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert namesake() == expected


def test_without_it_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert namesake() is None


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("2.13.0+cu130", (2, 13, 0)), ("0.19.8", (0, 19, 8)), ("5.17", (5, 17)), ("2.15.0.dev3", (2, 15, 0, 3))],
)
def test_a_release_is_its_numbers_without_the_local_build(version: str, numbers: tuple[int, ...]) -> None:
    assert release_numbers(version) == numbers
