"""ZeRO stages 0 to 3 by the real DeepSpeed engine."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from zerobench.common.vocabulary import Phase
from zerobench.config.trial.trial import Compile, Precision
from zerobench.rank.ledger.engine_config import engine_config
from zerobench.rank.ledger.engine_tensors import NamedTensor, walk_deepspeed
from zerobench.rank.optimizers import handed_to_deepspeed
from zerobench.rank.strategies.base import Phases, Strategy, causal_loss, only_learning_rate
from zerobench.rank.strategies.engine_checkpoint import load_engine, save_engine
from zerobench.rank.strategies.engine_norm import EngineNorm
from zerobench.rank.training import compilation
from zerobench.rank.training.compilation import compile_blocks
from zerobench.rank.training.loading import told_of_stage_3
from zerobench.records.checkpoint_files import ENGINE, UNIVERSAL

_STAGE_0_IN_16_BITS = ("FP16_Optimizer", "FP16_UnfusedOptimizer")
"""What DeepSpeed wraps the optimizer in at stage 0, in bf16 too."""


class Zero(Strategy):
    """deepspeed.initialize over a model built whole or, at stage 3 unless `zero_init` says no, partitioned as it is."""

    def build(self) -> None:
        """Build the model, at stage 3 under zero.Init so that no rank ever holds it whole, and the engine."""
        import deepspeed

        config = self.job.ds_config
        if config["zero_optimization"]["stage"] == 3 and self.job.trial.partitions_as_built:
            is_loaded = self.job.trial.is_loaded
            with told_of_stage_3(config) if is_loaded else deepspeed.zero.Init(config_dict_or_path=config):
                model = self.job.shape_model()
            self.job.fill_weights(model)
        else:
            model = self.job.build_model()
        model.train()
        compile_blocks(model, self.job.trial)
        self._is_partitioned_from_birth = any(hasattr(p, "ds_id") for p in model.parameters() if p.requires_grad)
        self._make_engine(model)
        self.module = self._engine.module
        if self.job.trial.compile is Compile.MODEL:
            self._engine.compile(backend=compilation.BACKEND)
        self._is_unscaled = (
            self.job.trial.precision is Precision.FP16 and type(self._engine.optimizer).__name__ in _STAGE_0_IN_16_BITS
        )

    def _make_engine(self, model: torch.nn.Module) -> None:
        """The engine over what is trained of `model`, at the same start as every other, and its norm."""
        import deepspeed

        self._engine, *_ = deepspeed.initialize(
            model=model,
            model_parameters=[p for p in model.parameters() if p.requires_grad],
            config=self.job.ds_config,
            optimizer=handed_to_deepspeed(self.job.trial),
        )
        _undo_start_up_step(self._engine.optimizer)
        self._norm = EngineNorm(self._engine, self.job.norms)

    def step(self, micro_batches: Sequence[torch.Tensor], learning_rate: float, phases: Phases) -> torch.Tensor:
        """The engine accumulates by itself: it updates at its own accumulation boundary."""
        self._set_rate(learning_rate)
        if self.job.trial.batch_ramp is not None:
            set_micro_batches(self._engine, len(micro_batches))
        losses = []
        for tokens in micro_batches[:-1]:
            losses.append(self._forward_backward(tokens, phases))
            self._engine.step()
        if self.job.trial.batch_ramp is not None:
            self._engine.set_gradient_accumulation_boundary(True)
        losses.append(self._forward_backward(micro_batches[-1], phases))
        with phases.phase(Phase.STEP):
            self._norm.before_update()
            self._engine.step()
        self._norm.after_update()
        return torch.stack(losses).mean()

    def _set_rate(self, learning_rate: float) -> None:
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate

    def save(self, folder: Path) -> None:
        """By the engine: stage 0 one file, stages 1 to 3 a file of partitions for each rank beside it."""
        save_engine(self._engine, folder, trains_all=self.job.trial.trains_all)

    def load(self, folder: Path) -> None:
        """What the engine wrote, or the universal checkpoint that was made of it."""
        is_universal = self.job.ds_config.get("checkpoint", {}).get("load_universal")
        tag = UNIVERSAL if is_universal else ENGINE
        load_engine(self._engine, folder, tag, trains_all=self.job.trial.trains_all)

    def walk(self) -> Iterable[NamedTensor]:
        """Everything that the engine holds."""
        return walk_deepspeed(self._engine)

    def learning_rate(self) -> float | None:
        """As the engine has it, and the optimizer that the engine wraps."""
        outer = self._engine.optimizer
        return only_learning_rate(outer, getattr(outer, "optimizer", outer))

    def effective_config(self) -> dict[str, Any]:
        """DeepSpeed's config with every default filled in, and the classes it chose."""
        return engine_config(self._engine) | {"zero_init": self._is_partitioned_from_birth}

    def _forward_backward(self, tokens: torch.Tensor, phases: Phases) -> torch.Tensor:
        with phases.phase(Phase.FORWARD):
            loss = causal_loss(self._engine, tokens)
            phases.mark_loss(loss)
        kept = loss.detach()
        with phases.phase(Phase.BACKWARD):
            self._engine.backward(loss * loss_scale_of(self._engine.optimizer) if self._is_unscaled else loss)
        return kept


def set_micro_batches(engine: Any, count: int) -> None:
    """Let the next step accumulate over `count` micro-batches, at least one, and begin before its end.

    `set_train_batch_size` (deepspeed/runtime/engine.py) is DeepSpeed's own way. In 0.19.8 whether a step ends is still
    told by the number of all micro-batches so far, divided by the new number, so that a step may end in its middle: it
    is told outright, by `set_gradient_accumulation_boundary`.
    """
    engine.set_train_batch_size(engine.train_micro_batch_size_per_gpu() * engine.dp_world_size * count)
    engine.set_gradient_accumulation_boundary(False)


def loss_scale_of(optimizer: Any) -> float:
    """What stage 0 in fp16 divides its gradients by, and DeepSpeed 0.19.8 does not multiply the loss by.

    runtime/engine.py, backward, scales the loss where the optimizer is a ZeROOptimizer. FP16_Optimizer and
    FP16_UnfusedOptimizer are none, and divide gradients all the same (runtime/fp16, `unscale_and_clip_grads`): by 2^16
    at first, after which SGD hardly moves and Adam's epsilon outweighs its moments.
    """
    return float(optimizer.loss_scale_config.cur_scale)


@torch.no_grad()
def _undo_start_up_step(optimizer: Any) -> None:
    """Give stage 0 in 16 bits the same start as every other stage.

    To allocate Adam's states, FP16_Optimizer and FP16_UnfusedOptimizer (deepspeed/runtime/fp16,
    `initialize_optimizer_states`) take a whole optimizer step with zero gradients: it decays the master weights and
    ages Adam's bias correction by one step, so the first real update is a quarter smaller. The states stay allocated;
    only their step counters and the masters are set back.
    """
    if type(optimizer).__name__ not in _STAGE_0_IN_16_BITS:
        return
    for state in optimizer.optimizer.state.values():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"].zero_()
        elif "step" in state:
            state["step"] = 0
    halves = getattr(optimizer, "fp16_groups_flat", None) or [p for group in optimizer.fp16_groups for p in group]
    masters = getattr(optimizer, "fp32_groups_flat", None) or [p for group in optimizer.fp32_groups for p in group]
    for half, master in zip(halves, masters, strict=True):
        master.copy_(half)
