"""Twelve models on GPUs, and the full grid of sixty that a practitioner would try by hand on each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from zerobench.config.derived.cluster import Cluster, read_cluster
from zerobench.config.sweep.plan import cells, read_work
from zerobench.config.trial.trial import Offload, TrialSpec

SHARE = 32
"""Sequences of the global batch that each GPU trains, in every case."""
HOST_MEMORY = "2TB"


@dataclass(frozen=True)
class Case:
    """One model on one cluster, at a global batch of SHARE sequences a GPU."""

    model: str
    gpus: int
    gpu: str
    sequence_length: int

    @property
    def name(self) -> str:
        """`llama-7b on 8 x H100 SXM`."""
        return f"{self.model} on {self.gpus} x {self.gpu}"

    @property
    def global_batch(self) -> int:
        """Sequences a step."""
        return SHARE * self.gpus

    @property
    def cluster(self) -> Cluster:
        """Nodes of eight GPUs."""
        return read_cluster(gpu=self.gpu, gpus=str(self.gpus), host_memory=HOST_MEMORY)


CASES = (
    Case("gpt2-1.5b", 8, "A100 SXM 40GB", 1024),
    Case("llama-1b", 4, "L40S", 2048),
    Case("llama3.2-3b", 8, "A100 SXM 40GB", 2048),
    Case("llama-7b", 8, "H100 SXM", 2048),
    Case("llama-7b", 2, "H100 SXM", 2048),
    Case("llama-8b", 64, "H200 SXM", 4096),
    Case("llama-13b", 8, "A100 SXM 80GB", 2048),
    Case("mistral-7b", 8, "RTX 4090", 2048),
    Case("qwen2.5-14b", 16, "H100 SXM", 4096),
    Case("qwen2.5-32b", 8, "H200 SXM", 4096),
    Case("llama-70b", 64, "H100 SXM", 4096),
    Case("llama-70b", 8, "B200 SXM", 4096),
)

PLACES = (
    ("zero1", Offload.NONE, Offload.NONE),
    ("zero2", Offload.NONE, Offload.NONE),
    ("zero3", Offload.NONE, Offload.NONE),
    ("zero3", Offload.CPU, Offload.NONE),
    ("zero3", Offload.CPU, Offload.CPU),
)
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)


def grid(case: Case) -> Iterator[TrialSpec]:
    """Five stages and offloads, checkpointing off and on, six micro batches; all else is DeepSpeed's default."""
    work = read_work({"model": case.model, "sequence_length": case.sequence_length})
    planned = cells(work, case.cluster, (1, 2, 3))
    by_place = {
        (item.trial.strategy, item.trial.offload_optimizer, item.trial.offload_param): item.trial for item in planned
    }
    for place, checkpointing, micro in itertools.product(PLACES, (False, True), MICRO_BATCHES):
        varied = {
            "activation_checkpointing": checkpointing,
            "micro_batch_size": micro,
            "gradient_accumulation_steps": SHARE // micro,
        }
        yield by_place[place].model_copy(update=varied)
