"""Trials whose ranks are forks of a process that has imported everything: seconds less than under the launcher."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from zerobench.ds_config import build_ds_config
from zerobench.folder import TrialFolder
from zerobench.records import RankRecord
from zerobench.running.launcher import free_port
from zerobench.spec.model import ModelSpec
from zerobench.spec.strategy import uses_deepspeed
from zerobench.spec.trial import Evidence, TrialSpec

Ranks = list[RankRecord]
RunTrial = Callable[[TrialSpec], Ranks]


@dataclass(frozen=True)
class Tiny:
    """Trials of a model that is trained in seconds."""

    config: dict[str, Any]
    keys: dict[str, Any] = field(default_factory=dict)
    """Of the DeepSpeed configuration."""
    work: dict[str, Any] = field(default_factory=dict)

    def spec(self, **fields: Any) -> TrialSpec:
        """Two ranks, each two micro batches of one sequence, unless `fields` say otherwise."""
        rate = 0.1 if fields.get("optimizer") == "sgd" else 1e-3
        work = {"gpus_per_node": 2, "gradient_accumulation_steps": 2, "sequence_length": 32, "precision": "fp32"}
        work |= {"steps": {"warmup": 0, "timed": 2, "memory": 1}, "hyperparameters": {"learning_rate": rate}}
        if str(fields["strategy"]).startswith("zero") and self.keys:
            work["ds_config"] = self.keys
        model = ModelSpec(name="tiny", hf_config=fields.pop("config", self.config))
        return TrialSpec.model_validate({"model": model, **work, **self.work, **fields})

    def alone(self, **fields: Any) -> TrialSpec:
        """One process on the same global batch."""
        return self.spec(strategy="single", gpus_per_node=1, gradient_accumulation_steps=4, **fields)


def run_rank(asked: str, folder: str, rank: int, port: int) -> str:
    """The record of one rank, as JSON; called in a process of its own."""
    from importlib import import_module

    from zerobench.progress import ProgressFile
    from zerobench.worker.launched import one_of, read_rank
    from zerobench.worker.rank import RankRun

    # Its shared-memory all-reduce is no part of training, and would have to be compiled.
    import_module("deepspeed.comm.torch").build_shm_op = lambda: None  # type: ignore[attr-defined]
    trial, where = TrialSpec.model_validate_json(asked), TrialFolder(Path(folder))
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": trial.world_size, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in ranks.items()}, MASTER_ADDR="127.0.0.1")
    who = read_rank(trial.gpus_per_node) if trial.evidence is Evidence.MEASURED else one_of(trial)
    run = RankRun(trial, where, who, ProgressFile(where, who, trial.steps.total))
    run.run()
    run.world.leave()
    return run.record.model_dump_json()


def run_rank_with_fp16(asked: str, folder: str, rank: int, port: int) -> str:
    """`run_rank` on a CPU that is said to have fp16: DeepSpeed asks for instructions, torch computes in software."""
    import torch
    from deepspeed.accelerator import get_accelerator

    kind = type(get_accelerator())
    kind.is_fp16_supported = lambda _self: True
    kind.supported_dtypes = lambda _self: [torch.float, torch.bfloat16, torch.half]
    return run_rank(asked, folder, rank, port)


def trials_in_forks(in_fork: Callable[..., Any], folders: pytest.TempPathFactory) -> RunTrial:
    """A function that runs a trial's ranks, each in a process of its own, once however often it is asked."""
    done: dict[str, Ranks] = {}

    def run(trial: TrialSpec) -> Ranks:
        asked = trial.model_dump_json()
        if asked not in done:
            folder, port = str(folders.mktemp("trial")), free_port()
            if uses_deepspeed(trial):
                config = json.dumps(build_ds_config(trial))
                TrialFolder(Path(folder)).ds_config.write_text(config, encoding="utf-8")
            numbers = range(trial.world_size) if trial.evidence is Evidence.MEASURED else [trial.prediction.rank]
            with ThreadPoolExecutor() as threads:
                asks = [threads.submit(in_fork, run_rank, asked, folder, rank, port) for rank in numbers]
                done[asked] = [RankRecord.model_validate_json(ask.result()) for ask in asks]
        return done[asked]

    return run
