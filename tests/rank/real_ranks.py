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

from tests.tools.rank_memory import apart
from zerobench.common.vocabulary import Status
from zerobench.config.deepspeed import build_ds_config
from zerobench.config.derived.strategy import uses_deepspeed
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.launch.run.launcher import free_port
from zerobench.records.folder import TrialFolder
from zerobench.records.records import RankRecord

Ranks = list[RankRecord]
RunTrial = Callable[[TrialSpec], Ranks]

LLAMA: dict[str, Any] = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
LLAMA |= {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 512}
GPT2: dict[str, Any] = {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 4, "vocab_size": 509}
GPT2 |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


@dataclass(frozen=True)
class Tiny:
    """Trials of a model that is trained in seconds."""

    config: dict[str, Any] = field(default_factory=lambda: LLAMA)
    keys: dict[str, Any] = field(default_factory=dict)
    """Of the DeepSpeed configuration."""
    work: dict[str, Any] = field(default_factory=dict)

    def spec(self, **fields: Any) -> TrialSpec:
        """Two ranks, each two micro batches of one sequence, unless `work` or `fields` say otherwise."""
        rate = 0.1 if fields.get("optimizer") == "sgd" else 1e-3
        work: dict[str, Any] = {"gpus_per_node": 2, "gradient_accumulation_steps": 2, "sequence_length": 32}
        work |= {"steps": {"warmup": 0, "timed": 2, "memory": 1}, "hyperparameters": {"learning_rate": rate}}
        work |= {"precision": "fp32", **self.work, **fields}
        if work["strategy"].startswith("zero"):
            work = {"ds_config": self.keys, **work}
        model = ModelSpec(name="tiny", hf_config=work.pop("config", self.config))
        return TrialSpec.model_validate({"model": model, **work})

    def alone(self, **fields: Any) -> TrialSpec:
        """One process on the same global batch."""
        work = {"gpus_per_node": 2, "gradient_accumulation_steps": 2, **self.work, **fields}
        batch = work["gpus_per_node"] * work["gradient_accumulation_steps"]
        return self.spec(**{**fields, "strategy": "single", "gpus_per_node": 1, "gradient_accumulation_steps": batch})


def check_same_steps(ranks: Ranks, reference: Ranks, within: float = 5e-6) -> None:
    """Each rank trained as the one process of `reference` did, which learns: a wrong update would show."""
    assert {rank.status for rank in (*ranks, *reference)} == {Status.COMPLETED}
    expected = reference[0].losses
    assert expected[-1] < expected[0] - 0.01
    for rank in ranks:
        assert apart(rank.losses, expected) <= within, rank.rank


def run_rank(asked: str, folder: str, rank: int, port: int) -> str:
    """The record of one rank, as JSON; called in a process of its own."""
    from importlib import import_module

    from zerobench.rank.loop.launched import one_of, read_rank
    from zerobench.rank.loop.rank import RankRun
    from zerobench.records.progress import ProgressFile

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


def trials_in_forks(
    in_fork: Callable[..., Any], folders: pytest.TempPathFactory, of_rank: Callable[..., str] = run_rank
) -> RunTrial:
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
                asks = [threads.submit(in_fork, of_rank, asked, folder, rank, port) for rank in numbers]
                done[asked] = [RankRecord.model_validate_json(ask.result()) for ask in asks]
        return done[asked]

    return run
