"""Layers split over ranks by DeepSpeed's PipelineModule and its TrainSchedule, which is 1F1B.

The stages are those of torch's schedules (stages.py), each passed to DeepSpeed as one layer, so that a comparison is of
engines and not of divisions of the model. The engine runs a step as a list of instructions
(deepspeed/runtime/pipe/engine.py, _INSTRUCTION_MAP); phases bracket those that compute, and between them a rank waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from zerobench.common.vocabulary import Category, Phase
from zerobench.rank.ledger.engine_config import engine_config
from zerobench.rank.ledger.engine_tensors import NamedTensor
from zerobench.rank.strategies.base import Phases
from zerobench.rank.strategies.pipeline import own_part
from zerobench.rank.strategies.stages import Stage, build_stage
from zerobench.rank.strategies.zero import Zero, load_engine, save_engine
from zerobench.records.checkpoint_files import ENGINE


class DeepSpeedPipeline(Zero):
    """The engine over a PipelineModule of which this rank builds one layer: its stage."""

    waits_between_phases = True
    _phases: Phases

    def build(self) -> None:
        """Build this rank's stage, the module of stages and the engine."""
        from deepspeed.pipe import LayerSpec, PipelineModule

        world_size = dist.get_world_size()
        layers = [LayerSpec(_OwnStage, build=self._build_stage, index=index) for index in range(world_size)]
        module = PipelineModule(layers, num_stages=world_size, loss_fn=self._loss, partition_method="uniform")
        for parameter in module.parameters():
            parameter.model_parallel = True  # otherwise the global norm covers only the first stage
        self._make_engine(module)
        self.module = self._stage.model
        self.whole_parameters = self._stage.whole_parameters
        self._engine._INSTRUCTION_MAP = dict(self._bracketed(self._engine._INSTRUCTION_MAP))

    def _build_stage(self, index: int) -> Stage:
        self._stage = build_stage(self.job, index, dist.get_world_size())
        return self._stage

    def step(self, micro_batches: Sequence[torch.Tensor], learning_rate: float, phases: Phases) -> torch.Tensor:
        """Run one train_batch of the engine. Returns the loss on the last rank, elsewhere 0."""
        self._phases = phases
        self._set_rate(learning_rate)
        loss: torch.Tensor = self._engine.train_batch((tokens, tokens) for tokens in micro_batches)
        return loss.detach().clone() if self._stage.is_last else torch.zeros_like(loss)

    def _loss(self, logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        loss = self._stage.loss(logits, tokens)
        self._phases.mark_loss(loss)
        return loss

    def _bracketed(self, instructions: dict[Any, Callable[..., None]]) -> Iterator[tuple[Any, Callable[..., None]]]:
        """The engine's instructions; those that compute run within their phase."""
        around: dict[str, Callable[..., AbstractContextManager[None]]] = {
            "ForwardPass": self._forward,
            "BackwardPass": self._backward,
            "ReduceGrads": lambda _engine: self._phases.phase(Phase.BACKWARD),
            "OptimizerStep": self._update,
        }

        def within(name: str, run: Callable[..., None]) -> Callable[..., None]:
            def ran(engine: Any, **given: Any) -> None:
                with around[name](engine, **given):
                    run(engine, **given)

            return ran

        for instruction, run in instructions.items():
            name = instruction.__name__
            yield instruction, within(name, run) if name in around else run

    @contextmanager
    def _forward(self, engine: Any, buffer_id: int) -> Iterator[None]:
        with self._phases.phase(Phase.FORWARD):
            if not self._stage.is_first:
                self._moved("recv", engine.pipe_buffers["inputs"][buffer_id])
            yield
            if not self._stage.is_last:
                self._moved("send", engine.pipe_buffers["outputs"][buffer_id])

    @contextmanager
    def _backward(self, engine: Any, buffer_id: int) -> Iterator[None]:
        with self._phases.phase(Phase.BACKWARD):
            if not self._stage.is_last:
                self._moved("recv", engine.grad_layer)
            yield
            if not self._stage.is_first:
                self._moved("send", engine.pipe_buffers["inputs"][buffer_id].grad)

    @contextmanager
    def _update(self, engine: Any) -> Iterator[None]:
        if engine.gradient_clipping():  # the norm waits for the slowest rank, which is no time of the update
            dist.all_reduce(torch.zeros((), device=self.job.device.torch_device))
        with self._phases.phase(Phase.STEP):
            self._norm.prepare_update()
            yield
        self._norm.report()

    def _moved(self, kind: str, tensor: torch.Tensor) -> None:
        self.job.heard(kind, dist.get_world_size(), tensor.nbytes)

    def save(self, folder: Path) -> None:
        """Save through the engine: a file of weights and one of optimizer states for each stage."""
        save_engine(self._engine, folder)

    def load(self, folder: Path) -> None:
        """Load the engine's files for this rank's stage.

        In bf16 the optimizer is partitioned (BF16_Optimizer), and `load_checkpoint` reads its files only with ZeRO:
        otherwise it passes the content of the weights file to that optimizer and fails (runtime/engine.py,
        _load_checkpoint). So its files are loaded separately.
        """
        in_partitions = type(self._engine.optimizer).__name__ == "BF16_Optimizer"
        load_engine(self._engine, folder, optimizer=not in_partitions)
        if in_partitions and not self._engine._load_zero_checkpoint(str(folder), ENGINE):
            raise RuntimeError(f"DeepSpeed found no optimizer states in {folder}")

    def walk(self) -> Iterable[NamedTensor]:
        """Tensors of the engine, those that pass between stages, and the batches that it keeps.

        On the last stage it also keeps the logits, those of one micro-batch in each buffer, until they are replaced.
        """
        yield from super().walk()
        buffers, stage = self._engine.pipe_buffers, self._stage
        received = [] if stage.is_first else [tensor for tensor in buffers["inputs"] if tensor is not None]
        passing = [self._engine.pipe_recv_buf, *self._engine._grad_layer_buf, *received, *(x.grad for x in received)]
        yield from _name_all(passing, Category.PIPELINE_BUFFERS)
        yield from _name_all(buffers["labels"] + (buffers["inputs"] if stage.is_first else []), Category.INPUTS)
        yield from _name_all(buffers["outputs"] if stage.is_last else [], Category.LOGITS_AND_LOSS)

    def effective_config(self) -> dict[str, Any]:
        """DeepSpeed's config with every default filled in, and this rank's part of the pipeline."""
        engine = f"deepspeed.pipe.{type(self._engine).__name__}"
        return {**engine_config(self._engine), "pipeline": {**own_part(self._stage, self.job.trial), "engine": engine}}


def _name_all(tensors: Iterable[torch.Tensor | None], category: Category) -> Iterator[NamedTensor]:
    return (NamedTensor(tensor, category) for tensor in tensors if tensor is not None)


class _OwnStage(torch.nn.Module):
    """Wraps a stage for DeepSpeed, which builds layers from a class and its arguments, on the rank that gets it."""

    def __init__(self, build: Callable[[int], Stage], index: int) -> None:
        super().__init__()
        self.stage = build(index)

    def forward(self, received: torch.Tensor) -> torch.Tensor:
        """Run the stage."""
        output: torch.Tensor = self.stage(received)
        return output
