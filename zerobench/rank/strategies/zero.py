"""ZeRO stages 0 to 3 with the real DeepSpeed engine: its build, its steps, its norm of gradients, its checkpoints.

Checkpoints are a file of weights, or one for each layer of a pipeline, and a file of optimizer states for each rank
that has its own. DeepSpeed unpickles its files (runtime/checkpoint_engine/torch_checkpoint_engine.py,
weights_only=False): they are read only from the folder in which the ranks of the same trial have just written them.
"""

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
from zerobench.rank.training import compilation
from zerobench.rank.training.compilation import compile_blocks
from zerobench.rank.training.grad_norms import GradNorms
from zerobench.rank.training.loading import announce_stage_3
from zerobench.records.checkpoint_files import ENGINE, UNIVERSAL


def save_engine(engine: Any, folder: Path, *, trains_all: bool = True) -> None:
    """Save the engine's checkpoint (deepspeed/runtime/engine.py, save_checkpoint), without frozen parameters unless
    `trains_all`; called by all ranks.
    """
    engine.save_checkpoint(str(folder), tag=ENGINE, save_latest=False, exclude_frozen_parameters=not trains_all)


def load_engine(
    engine: Any, folder: Path, tag: str = ENGINE, *, optimizer: bool = True, trains_all: bool = True
) -> None:
    """Load the checkpoint `tag`, with `optimizer` states; called by all ranks. Frozen parameters stay as built.

    Raises RuntimeError if there is no such checkpoint.
    """
    loaded, _ = engine.load_checkpoint(
        str(folder), tag=tag, load_optimizer_states=optimizer, load_module_strict=trains_all
    )
    if loaded is None:
        raise RuntimeError(f"DeepSpeed found no checkpoint {tag} in {folder}")


_UNSCALES_NOTHING = "FP16_UnfusedOptimizer"


class EngineNorm:
    """The global norm of the gradients before clipping, as a DeepSpeed engine knows it; brackets its update.

    ZeRO's optimizers, and those with fp32 masters at stage 0, compute it in every step, clipped or not, and the engine
    returns it unscaled (runtime/engine.py, get_global_grad_norm). Two exceptions in DeepSpeed 0.19.8:

    - At stage 0 in fp32 the engine clips by itself and drops the result of `clip_grad_norm_` (clip_fp32_gradients).
    - FP16_UnfusedOptimizer keeps the norm of the scaled gradients (runtime/fp16/unfused_optimizer.py, step).

    A step that is skipped because its loss scale was too large has an infinite norm.
    """

    def __init__(self, engine: Any, norms: GradNorms) -> None:
        self._engine = engine
        self._norms = norms
        self._clipped: torch.Tensor | None = None
        self._divisor = 1.0
        has_wrapper = engine.fp16_enabled() or engine.bfloat16_enabled() or engine.zero_optimization()
        self._clips_itself = not has_wrapper  # as _take_model_step has it
        if self._clips_itself:
            engine.clip_fp32_gradients = lambda: self._clip(engine.gradient_clipping())
        reason = _norm_obstacle(engine)
        self._is_known = reason is None
        if reason is not None:
            norms.disable(reason)

    def _clip(self, largest: float) -> None:
        """Clip as the engine's own method does, but keep the norm that it drops."""
        from deepspeed.runtime.utils import clip_grad_norm_

        self._clipped = clip_grad_norm_(self._engine.module.parameters(), max_norm=largest, mpu=self._engine.mpu)

    def prepare_update(self) -> None:
        """Prepare for the engine's update; call once all gradients are complete."""
        self._clipped = None
        optimizer = self._engine.optimizer
        if type(optimizer).__name__ == _UNSCALES_NOTHING:
            self._divisor = float(optimizer.loss_scale_config.cur_scale)
        largest = self._norms.largest
        if self._clips_itself and largest is not None and not self._engine.gradient_clipping():
            self._clip(largest)

    def report(self) -> None:
        """Report the norm of the last update; call outside of the update's time."""
        norm = self._clipped if self._clips_itself else self._engine.get_global_grad_norm()
        if self._is_known and norm is not None:
            self._norms.tell(norm / self._divisor)


def _norm_obstacle(engine: Any) -> str | None:
    """Reason why the engine's norm is not that of a single process; None if it is."""
    if engine.has_moe_layers:
        return "DeepSpeed averages the norms of its experts over their ranks"
    if engine.zero_optimization() and not getattr(engine._config.zero_config, "compute_grad_norm", True):
        return "zero_optimization.compute_grad_norm is off"
    if engine.zero_optimization() and "muon" in type(engine.basic_optimizer).__name__.lower():
        return "DeepSpeed takes the norm of Muon's update, which no scale of the gradients changes"
    return None


_STAGE_0_IN_16_BITS = ("FP16_Optimizer", "FP16_UnfusedOptimizer")
"""DeepSpeed's wrappers of the optimizer at stage 0 in fp16 and bf16."""


class Zero(Strategy):
    """deepspeed.initialize over a model that is built whole or, at stage 3 with `zero_init`, already partitioned."""

    def build(self) -> None:
        """Build the model, at stage 3 under zero.Init so that no rank ever holds it whole, and the engine."""
        import deepspeed

        config = self.job.ds_config
        if config["zero_optimization"]["stage"] == 3 and self.job.trial.partitions_as_built:
            is_loaded = self.job.trial.is_loaded
            with announce_stage_3(config) if is_loaded else deepspeed.zero.Init(config_dict_or_path=config):
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
        """Make the engine over the trained parameters of `model`, at the same start as other stages, and its norm."""
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
        """Take one step; the engine accumulates by itself and updates at its accumulation boundary."""
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
            self._norm.prepare_update()
            self._engine.step()
        self._norm.report()
        return torch.stack(losses).mean()

    def _set_rate(self, learning_rate: float) -> None:
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate

    def save(self, folder: Path) -> None:
        """Save through the engine: one file at stage 0, at stages 1 to 3 also a file of partitions for each rank."""
        save_engine(self._engine, folder, trains_all=self.job.trial.trains_all)

    def load(self, folder: Path) -> None:
        """Load the engine's checkpoint, or the universal checkpoint converted from it."""
        is_universal = self.job.ds_config.get("checkpoint", {}).get("load_universal")
        tag = UNIVERSAL if is_universal else ENGINE
        load_engine(self._engine, folder, tag, trains_all=self.job.trial.trains_all)

    def walk(self) -> Iterable[NamedTensor]:
        """All tensors of the engine."""
        return walk_deepspeed(self._engine)

    def learning_rate(self) -> float | None:
        """Learning rate of the engine and of the optimizer that it wraps."""
        outer = self._engine.optimizer
        return only_learning_rate(outer, getattr(outer, "optimizer", outer))

    def effective_config(self) -> dict[str, Any]:
        """DeepSpeed's config with every default filled in, and the classes it chose."""
        return engine_config(self._engine) | {"zero_init": self._is_partitioned_from_birth}

    def _forward_backward(self, tokens: torch.Tensor, phases: Phases) -> torch.Tensor:
        with phases.phase(Phase.FORWARD):
            loss = causal_loss(self._engine, tokens)
            phases.mark_loss(loss)
        detached = loss.detach()
        with phases.phase(Phase.BACKWARD):
            self._engine.backward(loss * loss_scale_of(self._engine.optimizer) if self._is_unscaled else loss)
        return detached


def set_micro_batches(engine: Any, count: int) -> None:
    """Make the next step accumulate over `count` micro-batches (at least 1).

    DeepSpeed's own way is `set_train_batch_size` (deepspeed/runtime/engine.py). In 0.19.8 the end of a step is still
    computed from the number of all micro-batches so far, divided by the new number, so a step could end in its middle:
    `set_gradient_accumulation_boundary` overrides that.
    """
    engine.set_train_batch_size(engine.train_micro_batch_size_per_gpu() * engine.dp_world_size * count)
    engine.set_gradient_accumulation_boundary(False)


def loss_scale_of(optimizer: Any) -> float:
    """Loss scale that DeepSpeed 0.19.8 at stage 0 in fp16 divides gradients by, but does not multiply the loss by.

    runtime/engine.py, backward, scales the loss only for a ZeROOptimizer. FP16_Optimizer and FP16_UnfusedOptimizer are
    none, but divide gradients all the same (runtime/fp16, `unscale_and_clip_grads`): initially by 2^16, after which SGD
    hardly moves and Adam's epsilon outweighs its moments.
    """
    return float(optimizer.loss_scale_config.cur_scale)


@torch.no_grad()
def _undo_start_up_step(optimizer: Any) -> None:
    """Undo the start-up step of stage 0 in 16 bits, so that it starts like every other stage.

    To allocate Adam's states, FP16_Optimizer and FP16_UnfusedOptimizer (deepspeed/runtime/fp16,
    `initialize_optimizer_states`) take a whole optimizer step with zero gradients: it decays the master weights and
    advances Adam's bias correction by one step, so the first real update is a quarter smaller. The states stay
    allocated; only their step counters and the masters are reset.
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
