"""DeepSpeed's optimizer processes, within the rank: SuperOffload's, and ZenFlow's with `overlap_step`.

Both delegate the update of offloaded states to a new process, without the replacements of this one. Its host memory is
allocated here, at the same size, so that it counts as the rank's: its moments, and SuperOffload's buffer for gradients.
Updates complete immediately, and do nothing.
"""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import torch

_CONTROL_BYTES = 256


def install() -> None:
    """Replace both processes, for the rest of this one."""
    with suppress(ImportError):  # DeepSpeed before 0.18 has none
        from deepspeed.runtime.superoffload import superoffload_stage3

        superoffload_stage3.SuperOffloadCPUOptimizer = HelperOptimizer
    with suppress(ImportError):  # before 0.17.5
        from deepspeed.runtime.zenflow import zenflow_stage_1_and_2

        zenflow_stage_1_and_2.start_optimizer_process = start_zenflow
    with suppress(ImportError):  # whose stage 3 came later
        from deepspeed.runtime.zenflow import engine_stage3

        engine_stage3.start_optimizer_process = start_zenflow


class HelperOptimizer:
    """SuperOffloadCPUOptimizer (runtime/superoffload/superoffload_utils.py); moments are created on demand."""

    def __init__(
        self,
        optimizer_config: Any,  # noqa: ARG002 -- DeepSpeed's own signature
        cpuadam_cores_perc: float = 0.8,  # noqa: ARG002 -- as above
        max_grad_numel: int = 1_000_000,
        pin_memory: bool = True,
    ) -> None:
        from deepspeed.runtime.superoffload.superoffload_utils import _allocate_worker_grad_buffer

        self.gradient_buffer: torch.Tensor = _allocate_worker_grad_buffer(max_grad_numel, pin_memory)
        self.state: dict[int, dict[str, torch.Tensor]] = {}
        """By sub-group, as a torch optimizer's by parameter."""
        self._results: list[dict[str, Any]] = []

    def async_step(
        self,
        param_group_id: int,
        sub_group_id: int,
        fp32_param: torch.Tensor,
        fp32_grad: torch.Tensor,  # noqa: ARG002 -- DeepSpeed's own signature
        rollback: bool = False,
        lr: float | None = None,  # noqa: ARG002 -- as above
    ) -> None:
        """Completes before it returns."""
        from deepspeed.runtime.superoffload.superoffload_utils import EventTypes, ResultKeys, TaskKeys

        if sub_group_id not in self.state:
            self.state[sub_group_id] = {name: torch.zeros_like(fp32_param.data) for name in ("exp_avg", "exp_avg_sq")}
        self._results.append(
            {
                TaskKeys.PARAM_GROUP_ID: param_group_id,
                TaskKeys.SUB_GROUP_ID: sub_group_id,
                ResultKeys.UPDATED_PARAM: fp32_param.data,
                ResultKeys.EVENT_TYPE: EventTypes.ROLLBACK if rollback else EventTypes.ADAM_STEP,
            }
        )

    def get_result(self, expected_event_type: str | None = None) -> dict[str, Any] | None:  # noqa: ARG002 -- as above
        """Oldest result that was not fetched."""
        return self._results.pop(0) if self._results else None

    def close(self) -> None:
        """No process to end."""


def start_zenflow(zero: Any) -> None:
    """start_optimizer_process (runtime/zenflow/zenflow_utils.py): two sets of moments per master, and a snapshot."""
    firsts = (group["params"][0] for group in zero.optimizer.param_groups)
    for master in list(zero.fp32_partitioned_groups_flat if zero.zf_stage3 else firsts):
        if not hasattr(master, "stale_param"):
            master.stale_param = torch.zeros_like(master.data)
        for name in ("overlap_exp_avg", "overlap_exp_avg_sq"):
            setattr(master, name, [torch.zeros_like(master.data) for _ in range(2)])
    zero.zf_op = SimpleNamespace(zenflow_adam_submit=_done, zenflow_adam_wait=_done)
    zero.zf_ctrl = torch.zeros(_CONTROL_BYTES, dtype=torch.uint8)
    zero.process_optimizer_established = True


def _done(*_: Any) -> bool:
    return True
