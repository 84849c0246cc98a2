"""Each category of the site table is proven by a place where the real engines, run as trials, do allocate."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.rank.conftest import in_fork  # noqa: F401 -- pytest finds it here
from zerobench.common.vocabulary import Category
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import PredictionSpec, TrialSpec
from zerobench.rank.ledger import sites
from zerobench.rank.ledger.sites import Origin

CONFIG = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
CONFIG |= {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 509, "max_position_embeddings": 64}
Births = set[tuple[str, str]]


def births(asked: str, folder: str) -> Births:
    """Category and name of each site at which a storage was born during the trial."""
    from zerobench.config.deepspeed import build_ds_config
    from zerobench.config.derived.strategy import uses_deepspeed
    from zerobench.rank.loop.launched import one_of
    from zerobench.rank.loop.rank import RankRun
    from zerobench.records.folder import TrialFolder
    from zerobench.records.progress import ProgressFile

    seen: Births = set()
    find = sites.SiteFinder.__call__

    def observed(finder: sites.SiteFinder) -> sites.Site:
        site = find(finder)
        seen.add((str(site.proves), site.name))
        return site

    sites.SiteFinder.__call__ = observed  # type: ignore[method-assign, assignment] # under another name
    trial, where = TrialSpec.model_validate_json(asked), TrialFolder(Path(folder))
    if uses_deepspeed(trial):
        where.ds_config.write_text(json.dumps(build_ds_config(trial)), encoding="utf-8")
    rank = one_of(trial)
    RankRun(trial, where, rank, ProgressFile(where, rank, trial.steps.total)).run()
    return seen


def simulated(strategy: str, **fields: Any) -> TrialSpec:
    work = {
        "model": ModelSpec(name="tiny", hf_config=CONFIG),
        "strategy": strategy,
        "gpus_per_node": 4,
        "sequence_length": 32,
        "precision": "bf16",
        "evidence": "simulated",
        "prediction": PredictionSpec(gpu="A100 SXM 80GB"),
        "steps": {"warmup": 0, "timed": 1, "memory": 1},
    }
    return TrialSpec.model_validate(work | fields)


TRIALS: dict[str, TrialSpec] = {
    "zero2": simulated("zero2"),
    "zero3": simulated("zero3", offload_optimizer="nvme", nvme_path="/nvme", optimizer="cpu_adam"),
    "fsdp": simulated("fsdp"),
    "pipeline": simulated(
        "pipeline",
        gpus_per_node=2,
        gradient_accumulation_steps=2,
        precision="fp32",
        prediction=PredictionSpec(gpu="A100 SXM 80GB", rank=1),
    ),
}

PROVEN: tuple[tuple[Category | Origin, str, str], ...] = (
    (Category.REDUCE_BUFFERS, "zero2", "deepspeed/runtime/zero/stage_1_and_2.py:setup_buckets"),
    (Category.REDUCE_BUFFERS, "zero3", "deepspeed/runtime/comm/coalesced_collectives.py:reduce_scatter_coalesced"),
    (Category.REDUCE_BUFFERS, "fsdp", "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:foreach_reduce"),
    (Category.GRADIENTS, "zero2", "deepspeed/runtime/zero/stage_1_and_2.py:copy_grads_in_partition"),
    (Category.GRADIENTS, "zero3", "deepspeed/runtime/zero/stage3.py:partition_grads"),
    (Category.PARAMETERS, "zero3", "deepspeed/runtime/zero/utils.py:defragment"),
    (Category.PARAMETERS, "fsdp", "zerobench/rank/strategies/fsdp.py:_with_memory"),
    (Category.MASTER_WEIGHTS, "zero3", "deepspeed/runtime/zero/stage3.py:_create_fp32_partitions"),
    (Category.STAGING, "zero3", "deepspeed/runtime/swap_tensor/utils.py:__init__"),
    (
        Category.GATHERED_PARAMETERS,
        "zero3",
        "deepspeed/runtime/zero/partition_parameters.py:_allgather_params_coalesced",
    ),
    (
        Category.ALL_GATHER_BUFFERS,
        "fsdp",
        "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:foreach_all_gather",
    ),
    (Category.PIPELINE_BUFFERS, "pipeline", "torch/distributed/pipelining/_utils.py:_make_tensor_from_meta"),
    (Category.INPUTS, "pipeline", "zerobench/rank/strategies/pipeline.py:_one_batch"),
    (Category.INPUTS, "fsdp", "zerobench/rank/worlds/simulated.py:micro_batches"),
    (Category.TEMPORARIES, "fsdp", "torch/nn/utils/clip_grad.py:_get_total_norm"),
    (Category.TEMPORARIES, "zero3", "deepspeed/ops/adam/cpu_adam.py:step"),
    (Origin.FORWARD, "zero2", "transformers/models/llama/modeling_llama.py:forward"),
    (Origin.LOSS, "zero2", "transformers/loss/loss_utils.py:ForCausalLMLoss"),
    (Origin.LOSS, "pipeline", "zerobench/rank/strategies/pipeline.py:_loss"),
    (Origin.BUILD, "zero3", "transformers/models/llama/modeling_llama.py:__init__"),
)
"""What is proven, in which trial, by which place."""


@pytest.fixture(scope="module")
def born(in_fork: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Births]:  # noqa: F811
    """The births of a trial, which runs once."""

    @cache
    def of(name: str) -> Births:
        seen: Births = in_fork(births, TRIALS[name].model_dump_json(), str(tmp_path_factory.mktemp(name)))
        return seen

    return of


@pytest.mark.parametrize(("proves", "trial", "place"), PROVEN)
def test_what_is_born_in_a_place_of_the_table_is_what_the_table_says(born, proves, trial, place):
    assert {said for said, name in born(trial) if name == place} == {str(proves)}


def test_every_category_of_the_table_is_among_those_places():
    assert {proves for _, _, proves in sites._RULES} == {proves for proves, _, _ in PROVEN}
