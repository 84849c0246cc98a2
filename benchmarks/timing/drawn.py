"""Expected steps in closed form beside replays of the real engine's order, of configurations drawn by chance.

    python benchmarks/timing/drawn.py SEED NUMBER    # prints the farthest of the two times each; one takes two seconds

Each is drawn of sizes of decoders, ranks, batches, engines, offload, optimizers, losses, recomputation, GPUs and
networks, simulated (the real engine without a GPU), and timed by its trace and without it, at a host as usual and at
one so slow that an interval ends there. Those that no engine runs, or no time is expected of, are drawn anew.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.prediction.simulated import attempt, gpu_trial, table
from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Status
from zerobench.config.hardware.hardware import find_gpu
from zerobench.config.hardware.links import links_of
from zerobench.config.models.shapes import Shape
from zerobench.config.trial.optimizers import Optimizer
from zerobench.config.trial.trial import StepsSpec, TrialSpec
from zerobench.estimate.clock.step import TENTH
from zerobench.estimate.time.expected import TimedWork, parts_of, timed_work
from zerobench.launch.run.trial_record import trial_record
from zerobench.records.records import RankRecord
from zerobench.records.trials import PlainTrial

_JOBS = 2
_SHOWN = 12
_AHEAD = 24
"""Drawn before any of them is simulated."""
_GPUS = ("h100", "h200", "a100-80gb")
_NETWORKS_GB_PER_S = (None, None, 2.0)
_ENGINES: tuple[tuple[str, dict[str, Any]], ...] = (
    *((stage, {}) for stage in ("zero0", "zero1", "zero2", "zero3", "zero1", "zero2", "zero3")),
    *((f"zero{stage}", {"offload_optimizer": "cpu", "optimizer": Optimizer.CPU_ADAM}) for stage in (1, 2, 3)),
    ("zero3", {"offload_optimizer": "cpu", "offload_param": "cpu", "optimizer": Optimizer.CPU_ADAM}),
    ("fsdp", {"offload_optimizer": "cpu", "offload_param": "cpu", "optimizer": Optimizer.ADAMW}),
    *((strategy, {"optimizer": Optimizer.ADAMW}) for strategy in ("ddp", "fsdp", "fsdp", "tensor", "pipeline")),
)
_OPTIMIZERS = (None, None, None, Optimizer.ADAMW, Optimizer.LION, Optimizer.ADAMW_8BIT)
_LOSSES = ("full", "full", "full", "chunked", "model_dtype")
_RECOMPUTED = (True, True, False, "every-2", "ops")


class Drawn(NamedTuple):
    """One configuration, and what it is timed on."""

    spec: TrialSpec
    gpu: str
    network_gb_per_s: float | None

    @property
    def words(self) -> str:
        """What was drawn, but for its GPU."""
        spec, config = self.spec, self.spec.model.hf_config
        batches = f"{spec.gradient_accumulation_steps} x {spec.micro_batch_size} x {spec.sequence_length}"
        again, loss = spec.activation_checkpointing, spec.cross_entropy
        tied = "tied" if config.get("tie_word_embeddings") else "apart"
        words = f"{config['vocab_size']} {tied}, {batches}, recomputed {again}, loss {loss}, {spec.optimizer}"
        return f"{spec.trial_id.split('-simulated')[0]}: {words}"


class Both(NamedTuple):
    """Its step in closed form, and by the replay, in seconds."""

    drawn: Drawn
    host: str
    closed_s: float
    replayed_s: float

    @property
    def error(self) -> float:
        """Relative."""
        return self.closed_s / self.replayed_s - 1


def draw(random_: random.Random) -> Iterator[Drawn]:
    """Configurations without end that can be stated."""
    while True:
        with suppress(ValidationError, UserError):
            yield _one(random_)


def _one(random_: random.Random) -> Drawn:
    pick = random_.choice
    strategy, axes = pick(_ENGINES)
    hidden = pick((768, 1024, 2048, 3072, 4096, 5120))
    layers = pick((2, 4, 8, 12, 24))
    shape = Shape(
        family=pick(("gpt2", "llama")),
        num_layers=layers,
        hidden_size=hidden,
        num_heads=hidden // 128 if hidden > 768 else 12,
        vocab_size=pick((8000, 32000, 50257, 128256, 256000)),
        tie_word_embeddings=pick((True, False)),
    )
    optimizer = None if "offload_optimizer" in axes or strategy in {"tensor", "pipeline"} else pick(_OPTIMIZERS)
    world_size = pick((1, 2, 8, 8, 16, 64))
    if strategy in {"tensor", "pipeline"}:
        world_size = pick((2, 4, 8))
    spec = gpu_trial(
        shape.model_spec(),
        0,
        world_size,
        **{
            "strategy": strategy,
            "sequence_length": pick((128, 512, 1024, 2048, 4096)),
            "micro_batch_size": pick((1, 1, 2, 4, 8)),
            "gradient_accumulation_steps": pick((1, 1, 2, 4)),
            "activation_checkpointing": pick(_RECOMPUTED),
            "cross_entropy": pick(_LOSSES),
            "steps": StepsSpec(warmup=int(strategy == "ddp"), memory=1, timed=1),  # DDP deals its buckets anew
            **axes,
            **({} if optimizer is None else {"optimizer": optimizer}),
        },
    )
    return Drawn(spec, pick(_GPUS), pick(_NETWORKS_GB_PER_S))


def timed(drawn: Drawn, record: RankRecord) -> list[Both]:
    """At a usual and at a slow host; none where no time is expected of such work."""
    gpu = find_gpu(drawn.gpu)
    if gpu is None:
        raise UserError(f"gpu {drawn.gpu}: not in the catalogue")
    links = links_of(gpu, host_memory_gb_per_s=900)
    if drawn.network_gb_per_s is not None:
        links = links.model_copy(update={"network_gb_per_s": drawn.network_gb_per_s})
    ended = trial_record(drawn.spec, "drawn", (Status.COMPLETED, None), 1)
    asked = [
        timed_work(PlainTrial(drawn.spec, ended, (each,)), gpu, links)
        for each in (record.model_copy(update={"step_trace": None}), record)
    ]
    both = []
    for host, deviations in (("usual", 0.0), ("slow", TENTH)):
        seconds = [None if each is None else _step_s(each, deviations) for each in asked]
        if seconds[0] is not None and seconds[1] is not None:
            both.append(Both(drawn, host, seconds[0], seconds[1]))
    return both


def _step_s(asked: TimedWork, deviations: float) -> float | None:
    host = asked.device.host
    device = replace(asked.device, host=None if host is None else host.off(deviations))
    parts = parts_of(asked._replace(device=device))
    return None if parts is None else sum(parts)


def compared(seed: int) -> Iterator[list[Both]]:
    """The same of configurations that `seed` draws, without end."""
    drawing = draw(random.Random(seed))  # noqa: S311 - no secret
    while True:
        some = list(islice(drawing, _AHEAD))
        for drawn, record in zip(some, attempt([each.spec for each in some], _JOBS), strict=True):
            if not isinstance(record, str) and (both := timed(drawn, record)):
                yield both


def _main(seed: int, number: int) -> None:
    found = [each for both in islice(compared(seed), number) for each in both]
    found.sort(key=lambda each: -abs(each.error))
    rows = [
        (
            each.drawn.words,
            each.drawn.gpu,
            each.drawn.network_gb_per_s or "-",
            each.host,
            f"{1e3 * each.replayed_s:.1f}",
            f"{each.error:+.1%}",
        )
        for each in found[:_SHOWN]
    ]
    print("\n".join(table(("configuration", "GPU", "network GB/s", "host", "replayed ms", "closed form"), rows, 2)))
    far = sum(abs(each.error) > 0.1 for each in found)
    print(f"seed {seed}: {number} configurations, {far} of {len(found)} times beyond a tenth")


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]))
