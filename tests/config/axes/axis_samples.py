"""Two trials that differ in one axis alone, for every axis but those of the layout."""

from enum import StrEnum
from typing import Any

from tests.report.sample_run import model
from zerobench.config.axes.axes import AXES
from zerobench.config.derived.strategy import STRATEGIES

ZERO3 = {"strategy": "zero3"}
PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "model": ({}, {"model": model("gpt2-other", 3, 64)}),
    "strategy": ({}, {"strategy": "zero1"}),
    "nvme_path": (
        ZERO3 | {"offload_optimizer": "nvme", "nvme_path": "/one"},
        ZERO3 | {"offload_optimizer": "nvme", "nvme_path": "/two"},
    ),
    "batch_ramp": ({}, {"batch_ramp": {"start_tokens": 1024, "over_tokens": 4096, "increment_tokens": 1024}}),
    "checkpoint": ({}, {"checkpoint": {"every_steps": 2}}),
    "adapter": ({}, {"adapter": "lora-8"}),
    "frozen": ({}, {"frozen": "embed"}),
    "ds_config": ({}, {"ds_config": {"zero_optimization.reduce_bucket_size": 1000}}),
    "ds_config_file": ({}, {"ds_config_file": "/my/ds.json"}),
    "gpu": (
        {"evidence": "simulated", "prediction": {"gpu": "H200 SXM"}},
        {"evidence": "simulated", "prediction": {"gpu": "A100 SXM 80GB"}},
    ),
    "rank": ({"evidence": "simulated"}, {"evidence": "simulated", "prediction": {"rank": 1}}),
}
"""Those whose other value does not follow from their default."""


def pair(axis: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two trials that differ in the axis alone, of a strategy to which it means something."""
    if axis in PAIRS:
        return PAIRS[axis]
    able = [info.name for info in STRATEGIES.values() if axis in info.axes]
    base = {"strategy": able[-1]} if able else {}
    default = AXES[axis].default
    if isinstance(default, StrEnum):
        other: object = next(one for one in type(default) if one is not default)
    else:
        other = not default if isinstance(default, bool) else (default or 0) + 2
    return base, base | {axis: other}
