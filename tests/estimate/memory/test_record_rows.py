"""Every row of a formula's record, to the byte, for a trial of each strategy and of each of its branches.

golden/records.json has what each trial's record says; `python -m tests.estimate.memory.test_record_rows` writes it
again, and whoever does so explains each line that then differs.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from zerobench.common.errors import UserError
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import TrialSpec
from zerobench.estimate.memory import formula_record

GOLDEN = Path(__file__).parent / "golden" / "records.json"
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "vocab_size": 101,
}
LLAMA |= {"num_attention_heads": 4, "num_key_value_heads": 2}
CPU = {"offload_optimizer": "cpu"}
TRIALS: dict[str, dict[str, Any]] = {
    "single": {"strategy": "single", "gpus_per_node": 1},
    "single sgd on a cpu": {"strategy": "single", "gpus_per_node": 1, "optimizer": "sgd", "prediction": {}},
    "single cpu_adam": {"strategy": "single", "gpus_per_node": 1, "optimizer": "cpu_adam", "precision": "fp32"},
    "ddp": {"strategy": "ddp"},
    "ddp fp32 ga2": {"strategy": "ddp", "precision": "fp32", "gradient_accumulation_steps": 2},
    "ddp buckets": {"strategy": "ddp", "bucket_bytes": 20_000, "num_nodes": 2, "gpus_per_node": 2},
    "fsdp": {"strategy": "fsdp"},
    "fsdp kept": {"strategy": "fsdp", "reshard_after_forward": False},
    "fsdp ga2 fp32": {"strategy": "fsdp", "gradient_accumulation_steps": 2, "precision": "fp32"},
    "fsdp cpu": {"strategy": "fsdp", **CPU, "offload_param": "cpu", "optimizer": "cpu_adam"},
    "fsdp cpu ga2": {"strategy": "fsdp", **CPU, "offload_param": "cpu", "gradient_accumulation_steps": 2},
    "fsdp mics": {"strategy": "fsdp", "mics_shard_size": 2, "num_nodes": 2, "gpus_per_node": 2},
    "fsdp mics across": {"strategy": "fsdp", "mics_shard_size": 2, "num_nodes": 4, "gpus_per_node": 1},
    "tensor": {"strategy": "tensor", "gpus_per_node": 2},
    "tensor ckpt ga2": {
        "strategy": "tensor",
        "gpus_per_node": 2,
        "activation_checkpointing": True,
        "gradient_accumulation_steps": 2,
    },
    "tensor last rank": {"strategy": "tensor", "gpus_per_node": 2, "prediction": {"gpu": "h200", "rank": 1}},
    "zero0": {"strategy": "zero0", "gradient_accumulation_steps": 2},
    "zero1 ga2": {"strategy": "zero1", "gradient_accumulation_steps": 2},
    "zero2 ga2": {"strategy": "zero2", "gradient_accumulation_steps": 2, "num_nodes": 2},
    "zero2 cpu": {"strategy": "zero2", **CPU, "optimizer": "cpu_adam"},
    "zero3 ga2": {"strategy": "zero3", "gradient_accumulation_steps": 2},
    "zero3 hpz ga2": {"strategy": "zero3", "hpz_partition_size": 2, "gradient_accumulation_steps": 2},
    "zero3 hpz": {"strategy": "zero3", "hpz_partition_size": 2, "num_nodes": 2, "gpus_per_node": 2},
    "zero3 nvme": {"strategy": "zero3", "offload_optimizer": "nvme", "offload_param": "nvme"},
    "zero3 chunked eager ckpt": {
        "strategy": "zero3",
        "cross_entropy": "chunked",
        "attention": "eager",
        "activation_checkpointing": True,
    },
    "zero3 eager ckpt of one block": {"strategy": "zero3", "attention": "eager", "activation_checkpointing": "every-2"},
    "zero2 ckpt of operations": {"strategy": "zero2", "activation_checkpointing": "ops"},
    "zero3 eager ckpt of operations": {"strategy": "zero3", "attention": "eager", "activation_checkpointing": "ops"},
    "zero1 tied": {"strategy": "zero1", "tied": True, "precision": "fp16"},
}


def trial(fields: dict[str, Any]) -> TrialSpec:
    tied = fields.get("tied", False)
    usual = {"gpus_per_node": 4, "evidence": "formula", "sequence_length": 16, "micro_batch_size": 3}
    asked = {
        **usual,
        "prediction": {"gpu": "h200"},
        **{name: value for name, value in fields.items() if name != "tied"},
    }
    model = ModelSpec(name="m", hf_config={**LLAMA, "tie_word_embeddings": tied})
    return TrialSpec.model_validate({**asked, "model": model})


def told(name: str) -> dict[str, Any]:
    """What the record says, a line for each row."""
    record = formula_record(trial(TRIALS[name]))
    memory: dict[str, str] = {}
    for row in record.memory:
        place = f"{row.step.value} {row.phase.value} {row.place.value}"
        figures = f"{row.category.value} {row.live_bytes} {row.at_peak_bytes} {row.own_peak_bytes}"
        memory[place] = f"{memory[place]}, {figures}" if place in memory else figures
    collectives = [
        f"{row.step.value} {row.phase.value}: {row.calls} {row.kind} of {row.group_size} on {row.num_nodes}, "
        f"{row.message_bytes} B"
        for row in record.collectives
    ]
    about = {
        name: getattr(record, name) for name in ("rank", "local_rank", "world_size", "device_name", "flops_per_step")
    }
    counts: dict[str, Any] = {"parameters": record.parameters and record.parameters.total}
    counts["flops"] = ", ".join(f"{row.step.value} {row.phase.value} {row.flops}" for row in record.flops)
    return {**about, **counts, "notes": record.notes, "collectives": collectives, "memory": memory}


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    """What was said when it was last looked at."""
    found: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", TRIALS)
def test_the_record_says_this_of_each_place_and_collective(name: str, golden: dict[str, Any]) -> None:
    assert told(name) == golden[name]


def test_no_trial_is_told_that_is_not_asked(golden: dict[str, Any]) -> None:
    assert set(golden) == set(TRIALS)


def test_the_last_rank_has_a_record_and_the_one_behind_it_is_refused() -> None:
    last = {"strategy": "zero1", "prediction": {"gpu": "h200", "rank": 3}}
    assert formula_record(trial(last)).rank == 3
    with pytest.raises(UserError, match="rank: 4 of 4; choices: 0 to 3"):
        formula_record(trial({**last, "prediction": {"gpu": "h200", "rank": 4}}))


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({name: told(name) for name in TRIALS}, indent=1) + "\n", encoding="utf-8")
