"""The global norm of the gradients before clipping, as a DeepSpeed engine knows it.

ZeRO's optimizers, and those that hold fp32 masters at stage 0, compute it in every step, clipped or not, and the engine
hands it out unscaled (runtime/engine.py, get_global_grad_norm). Two do otherwise in DeepSpeed 0.19.8:

- At stage 0 in fp32 the engine clips by itself and drops what `clip_grad_norm_` returns (clip_fp32_gradients).
- FP16_UnfusedOptimizer keeps the norm of the gradients as they are scaled (runtime/fp16/unfused_optimizer.py, step).

A step that is left out because its loss scale was too large has an infinite norm.
"""

from typing import Any

import torch

from zerobench.rank.training.grad_norms import GradNorms

_UNSCALES_NOTHING = "FP16_UnfusedOptimizer"


class EngineNorm:
    """Brackets the engine's update."""

    def __init__(self, engine: Any, norms: GradNorms) -> None:
        self._engine = engine
        self._norms = norms
        self._clipped: torch.Tensor | None = None
        self._divisor = 1.0
        has_wrapper = engine.fp16_enabled() or engine.bfloat16_enabled() or engine.zero_optimization()
        self._clips_itself = not has_wrapper  # as _take_model_step has it
        if self._clips_itself:
            engine.clip_fp32_gradients = lambda: self._clip(engine.gradient_clipping())
        reason = _why_unknown(engine)
        self._is_known = reason is None
        if reason is not None:
            norms.cannot_be_told(reason)

    def _clip(self, largest: float) -> None:
        """What the engine's own method does; what it drops is kept."""
        from deepspeed.runtime.utils import clip_grad_norm_

        self._clipped = clip_grad_norm_(self._engine.module.parameters(), max_norm=largest, mpu=self._engine.mpu)

    def before_update(self) -> None:
        """Once all gradients are there."""
        self._clipped = None
        optimizer = self._engine.optimizer
        if type(optimizer).__name__ == _UNSCALES_NOTHING:
            self._divisor = float(optimizer.loss_scale_config.cur_scale)
        largest = self._norms.largest
        if self._clips_itself and largest is not None and not self._engine.gradient_clipping():
            self._clip(largest)

    def after_update(self) -> None:
        """Tell the norm, outside of what is timed as the update."""
        norm = self._clipped if self._clips_itself else self._engine.get_global_grad_norm()
        if self._is_known and norm is not None:
            self._norms.tell(norm / self._divisor)


def _why_unknown(engine: Any) -> str | None:
    """Why the engine has no norm that is the single process's; None where it has."""
    if engine.has_moe_layers:
        return "DeepSpeed averages the norms of its experts over their ranks"
    if engine.zero_optimization() and not getattr(engine._config.zero_config, "compute_grad_norm", True):
        return "zero_optimization.compute_grad_norm is off"
    if engine.zero_optimization() and "muon" in type(engine.basic_optimizer).__name__.lower():
        return "DeepSpeed takes the norm of Muon's update, which no scale of the gradients changes"
    return None
