"""Every sentence about what DeepSpeed does otherwise than the paper, for settings that take each of their branches.

That the engine does so is held in tests/config/deepspeed/test_shipped_run.py, by a count of its storages.

golden/departures.json has the sentences; `python -m tests.estimate.memory.test_departures` writes it again, and
whoever does so explains each line that then differs.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from zerobench.common.resources import shipped
from zerobench.config.deepspeed import load_user_config
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import TrialSpec
from zerobench.estimate.memory.deepspeed.departures import departures

GOLDEN = Path(__file__).parent / "golden" / "departures.json"
NUM_PARAMS = 64 * 2**20


def keys(**zero: Any) -> dict[str, Any]:
    return {"ds_config": {f"zero_optimization.{name}": value for name, value in zero.items()}}


SETTINGS: dict[str, dict[str, Any]] = {
    "": {},
    " fp32": {"precision": "fp32"},
    " fp16": {"precision": "fp16"},
    " ga2": {"gradient_accumulation_steps": 2},
    " fp32 ga2": {"gradient_accumulation_steps": 2, "precision": "fp32"},
    " sgd": {"optimizer": "sgd"},
    " lion": {"optimizer": "lion"},
    " cpu": {"offload_optimizer": "cpu"},
    " cpu ga2": {"offload_optimizer": "cpu", "gradient_accumulation_steps": 2},
    " cpu fp32": {"offload_optimizer": "cpu", "precision": "fp32"},
    " cpu sgd": {"offload_optimizer": "cpu", "optimizer": "sgd"},
    " nvme": {"offload_optimizer": "nvme", "nvme_path": "/nvme"},
    " params cpu": {"offload_optimizer": "cpu", "offload_param": "cpu"},
    " params nvme": {"offload_optimizer": "nvme", "offload_param": "nvme", "nvme_path": "/nvme"},
    " overlap": keys(overlap_comm=True),
    " overlap ga2": {**keys(overlap_comm=True), "gradient_accumulation_steps": 2},
    " not contiguous": keys(contiguous_gradients=False),
    " small buckets": keys(reduce_bucket_size=10**6, allgather_bucket_size=10**6),
    " no prefetch": keys(stage3_prefetch_bucket_size=0, stage3_max_live_parameters=0),
    " few persist": keys(stage3_param_persistence_threshold=0, stage3_max_live_parameters=10**6),
    " multi rank": keys(use_multi_rank_bucket_allreduce=False),
    " fp32 sums": {"ds_config": {"data_types.grad_accum_dtype": "fp32"}},
    " fp32 sums ga2": {"ds_config": {"data_types.grad_accum_dtype": "fp32"}, "gradient_accumulation_steps": 2},
    " one rank": {"gpus_per_node": 1},
    " nodes": {"num_nodes": 2},
    " small sub-groups": keys(sub_group_size=2**20),
    " torch's linear": keys(memory_efficient_linear=False),
    " no reuse": keys(stage3_max_reuse_distance=0, stage3_prefetch_bucket_size=0),
    " half reused": keys(stage3_max_reuse_distance=NUM_PARAMS + 1, stage3_prefetch_bucket_size=0),
    " all reused": keys(stage3_max_reuse_distance=2 * NUM_PARAMS, stage3_max_live_parameters=0),
    " hpz": {"hpz_partition_size": 2},
}
STRATEGIES = ("zero0", "zero1", "zero2", "zero3")


def told() -> dict[str, list[str]]:
    """What is said of each setting that DeepSpeed can be set up with."""
    found = {}
    for strategy in STRATEGIES:
        for name, fields in SETTINGS.items():
            model = ModelSpec(name="llama", hf_config={"model_type": "llama"})
            asked = {"model": model, "strategy": strategy, "gpus_per_node": 4, **fields}
            found[f"{strategy}{name}"] = departures(TrialSpec.model_validate(asked), num_params=NUM_PARAMS)
    return found


@pytest.fixture(scope="module")
def said() -> dict[str, list[str]]:
    """What is said now."""
    return told()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", SETTINGS)
def test_these_sentences_are_said_of_a_setting(said: dict[str, list[str]], strategy: str, name: str) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert said[f"{strategy}{name}"] == golden[f"{strategy}{name}"]


@pytest.mark.parametrize("path", sorted(shipped("ds_configs").glob("*.json")), ids=lambda path: path.stem)
def test_every_shipped_config_has_departures_in_plain_sentences(path: Path) -> None:
    sentences = departures(load_user_config(path), world_size=8, num_params=7_000_000_000)
    assert len(sentences) >= 4
    assert len(set(sentences)) == len(sentences)
    for sentence in sentences:
        assert not re.search(r"None|nan|\{|\}|\n", sentence), sentence


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(told(), indent=1) + "\n", encoding="utf-8")
