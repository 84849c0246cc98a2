"""What a tracked engine's record says of the work, by a user's own engine in a fork."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.rank.conftest import in_fork  # noqa: F401 -- pytest finds it here
from zerobench.config.derived.flops import FROZEN_FORMULA
from zerobench.launch.run.launcher import free_port
from zerobench.records.records import RankRecord
from zerobench.records.store import load_run

SHAPE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
SHAPE |= {"num_key_value_heads": 4, "vocab_size": 300, "max_position_embeddings": 64, "use_cache": False}
SEQUENCE, MICRO_BATCH, ACCUMULATED = 32, 2, 2


def track_head_alone(reports: str, port: int, stage: int) -> tuple[str, int]:
    """Track an engine that trains the head of a decoder: its record, and the products that torch counts in a step."""
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    import deepspeed
    import torch
    from deepspeed.comm import torch as comm
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoConfig, AutoModelForCausalLM

    import zerobench

    comm.build_shm_op = lambda: None  # its shared-memory all-reduce would have to be compiled
    torch.set_num_threads(1)
    config = {
        "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "gradient_accumulation_steps": ACCUMULATED,
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 10**5},
        "zero_allow_untested_optimizer": True,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    }
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=stage == 3):
        model: Any = AutoModelForCausalLM.from_config(
            AutoConfig.for_model("llama", **SHAPE), attn_implementation="eager"
        )
    model.requires_grad_(requires_grad=False)
    model.lm_head.weight.requires_grad_(requires_grad=True)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=[model.lm_head.weight], config=config)
    tokens = torch.zeros(MICRO_BATCH, SEQUENCE, dtype=torch.long)

    def step() -> None:
        for _ in range(ACCUMULATED):
            engine.backward(engine(input_ids=tokens, labels=tokens).loss)
            engine.step()

    with FlopCounterMode(display=False) as counter:
        step()
    with zerobench.track(engine, name="frozen", reports=reports, warmup=0, memory=1, timed=1) as tracker:
        while not tracker.done:
            step()
    [run] = [path for path in Path(reports).iterdir() if path.is_dir()]
    [trial] = load_run(run).trials()
    return trial.ranks[0].model_dump_json(), counter.get_total_flops()


@pytest.mark.parametrize("stage", [1, 3])
def test_flops_of_frozen_weights_are_those_that_are_computed(
    in_fork: Callable[..., Any],  # noqa: F811 -- pytest's fixture, imported above
    tmp_path: Path,
    stage: int,
):
    kept, counted = in_fork(track_head_alone, str(tmp_path), free_port(), stage)
    rank = RankRecord.model_validate_json(kept)
    norms = 2 * (2 * 2 + 1) * 64 * SEQUENCE * MICRO_BATCH * ACCUMULATED  # in the formula's N and in no product
    assert rank.flops_formula == FROZEN_FORMULA
    assert rank.flops_per_step == pytest.approx(counted + norms, rel=1e-5)
    assert {"torch", "deepspeed", "transformers"} == set(rank.versions)
