"""Paths of a sweep, wherever it is read again."""

from pathlib import Path
from typing import Any

import pytest

from zerobench.config.sweep.paths import absolute_axis

BASE = Path("/base")


@pytest.mark.parametrize(
    ("axis", "raw", "found"),
    [
        ("checkpoint", {"every_steps": 4, "folder": "saved"}, {"every_steps": 4, "folder": "/base/saved"}),
        ("checkpoint", [None, {"every_steps": 4}], [None, {"every_steps": 4}]),
        ("nvme_path", ["drive", "/nvme"], ["/base/drive", "/nvme"]),
        ("model", {"config": "mine.json", "name": "mine"}, {"config": "/base/mine.json", "name": "mine"}),
        ("model", ["llama-7b", "org/model", "./mine", 3], ["llama-7b", "org/model", "/base/mine", 3]),
        ("nvme_path", ["", None, 7, "~nobody-is-called-so"], ["", None, 7, "~nobody-is-called-so"]),
        ("ds_config_file", ["zero2.json", "./zero2.json"], ["zero2.json", "/base/zero2.json"]),
        ("precision", "bf16", "bf16"),
    ],
)
def test_relative_paths_start_from_the_sweeps_folder_and_all_else_is_left_as_it_is(
    axis: str, raw: Any, found: Any
) -> None:
    assert absolute_axis(axis, raw, BASE) == found
