"""Figures of one DeepSpeed configuration for a number of ranks and parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zerobench.config.deepspeed.keys import default, known_keys
from zerobench.config.deepspeed.reading import (
    ELEMENT_BYTES,
    becomes_bf16_optimizer,
    device_of,
    get,
    optimizer_of,
    precision_of,
)
from zerobench.config.trial.optimizers import OPTIMIZERS, Optimizer, OptimizerInfo
from zerobench.config.trial.trial import Offload, Precision

RATIO = "offload_optimizer.ratio"
"""Share of stage 3's sub-groups whose states are offloaded."""


_OVERLAP = "zero_optimization.overlap_comm"


def left_out(key: str, stage: int | None) -> Any:
    """Value that DeepSpeed uses for an absent key, by default or by the stage (runtime/zero/config.py,
    overlap_comm_valid); None if unknown.
    """
    if key == _OVERLAP:
        return stage == 3
    return default(key) if key in known_keys().keys else None


@dataclass(frozen=True)
class Case:
    """Sizes in bytes are those of one rank."""

    config: Mapping[str, Any]
    world_size: int
    num_params: int
    """Parameters of the whole model."""
    handed: Optimizer | None = None
    """Optimizer object passed to DeepSpeed; None if DeepSpeed makes it from the configuration."""
    num_trained: int | None = None
    """Parameters with gradients and states; None: all."""

    @property
    def trained(self) -> int:
        return self.num_params if self.num_trained is None else self.num_trained

    @property
    def optimizer(self) -> OptimizerInfo:
        """Raises UserError for an optimizer that no trial can have."""
        return OPTIMIZERS[optimizer_of(self.config) if self.handed is None else self.handed]

    def zero(self, key: str) -> Any:
        """Value of a key of zero_optimization, or DeepSpeed's default."""
        return get(self.config, f"zero_optimization.{key}")

    @property
    def stage(self) -> int:
        return int(self.zero("stage"))

    @property
    def overlaps(self) -> bool:
        """Return whether gradients are reduced during the backward pass."""
        overlap = self.zero("overlap_comm")
        return bool(left_out(_OVERLAP, self.stage) if overlap is None else overlap)

    @property
    def element(self) -> int:
        """Bytes of one parameter element."""
        return 4 if precision_of(self.config) == Precision.FP32.value else 2

    @property
    def gradient_element(self) -> int:
        """Bytes of one element of the accumulated gradients (data_types.grad_accum_dtype)."""
        return ELEMENT_BYTES.get(str(get(self.config, "data_types.grad_accum_dtype")), self.element)

    @property
    def bucket_elements(self) -> int:
        return int(self.zero("reduce_bucket_size"))

    @property
    def bucket_bytes(self) -> int:
        """Bytes of one reduce bucket, in the communication's type at stage 3 (stage3.py, _setup_for_real_optimizer),
        the accumulator's at stage 1, the parameters' at stage 2 (stage_1_and_2.py, setup_buckets).
        """
        by_stage = {
            1: self.gradient_element,
            3: ELEMENT_BYTES.get(str(get(self.config, "communication_data_type")), self.element),
        }
        return self.bucket_elements * by_stage.get(self.stage, self.element)

    @property
    def replaces_linear(self) -> bool:
        """Return whether DeepSpeed's linear layer, which releases a gathered weight, replaces torch's
        (runtime/zero/partition_parameters.py, _enable_mem_efficient_linear).
        """
        return self.stage == 3 and bool(self.zero("memory_efficient_linear"))

    @property
    def runs_bf16_optimizer(self) -> bool:
        """Return whether stage 1 is DeepSpeed's BF16_Optimizer (runtime/engine.py, _do_optimizer_sanity_check)."""
        return becomes_bf16_optimizer(
            self.stage,
            is_bf16=bool(get(self.config, "bf16.enabled")),
            accumulates_in=get(self.config, "data_types.grad_accum_dtype"),
            offload=self.offload_optimizer,
        )

    @property
    def offload_optimizer(self) -> Offload:
        """Device of the optimizer states; DeepSpeed ignores the key at stage 0."""
        return Offload(device_of(self.config, "offload_optimizer")) if self.stage else Offload.NONE

    @property
    def offload_param(self) -> Offload:
        """Device of the parameters; DeepSpeed ignores the key below stage 3."""
        return Offload(device_of(self.config, "offload_param")) if self.stage == 3 else Offload.NONE

    def kept_sub_groups(self, count: int) -> int:
        """Number of a rank's first `count` sub-groups whose states stay on the device though the optimizer is offloaded
        (stage3.py, _create_fp32_partitions).
        """
        keeps = self.stage == 3 and self.offload_optimizer is not Offload.NONE
        return int((1 - float(self.zero(RATIO))) * count) if keeps else 0

    @property
    def micro_steps(self) -> int:
        """Backward passes per step."""
        return int(get(self.config, "gradient_accumulation_steps") or 1)
