"""The device memory that formulas tell of a step is the engine's in a simulated trial."""

from typing import Any

import pytest

from benchmarks.prediction.simulated import gpu_trial
from tests.tools.kept_simulator import Simulate
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.config.models.hf_config import spec_from_config
from zerobench.config.models.shapes import Shape
from zerobench.config.trial.trial import Evidence
from zerobench.estimate.memory import formula_record
from zerobench.records.records import RankRecord

GPT = Shape(family="gpt2", num_layers=6, hidden_size=1024, num_heads=16, vocab_size=8000).model_spec()
TIED = Shape(
    family="llama", num_layers=3, hidden_size=1024, num_heads=16, vocab_size=32000, tie_word_embeddings=True
).model_spec()
WIDE = Shape(family="llama", num_layers=3, hidden_size=1024, num_heads=16, vocab_size=32000).model_spec()
QWEN3 = spec_from_config(
    {"model_type": "qwen3", "vocab_size": 8000, "hidden_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 16}
    | {"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 2816, "tie_word_embeddings": True},
    name="qwen3",
    where="model",
)
DRIVES: dict[str, Any] = {"offload_param": "nvme", "offload_optimizer": "nvme", "nvme_path": "/nvme"}
CPU: dict[str, Any] = {"offload_optimizer": "cpu", "optimizer": "cpu_adam"}
SMALL_BUCKET = {"zero_optimization.reduce_bucket_size": 20_000_000}
AXES: dict[str, dict[str, Any]] = {
    "both on drives": {"model": GPT, "stage": 3, "optimizer": "cpu_adam", "ds_config": SMALL_BUCKET, **DRIVES},
    "ends too small to swap": {"model": GPT, "stage": 3, "optimizer": "cpu_adam", "world_size": 3, **DRIVES},
    "normed heads": {
        "model": QWEN3,
        "stage": 3,
        "offload_param": "cpu",
        "activation_checkpointing": False,
        "world_size": 64,
        "micro_batch_size": 8,
        "ds_config": SMALL_BUCKET,
    },
    "tied head, whole": {"model": TIED, "stage": 1, "micro_batch_size": 1, "sequence_length": 128},
    "tied head, reduced": {"model": TIED, "stage": 2, "micro_batch_size": 1, "sequence_length": 128},
    "tied head, divided": {
        "model": TIED,
        "stage": 3,
        "micro_batch_size": 1,
        "sequence_length": 128,
        "world_size": 64,
        "ds_config": SMALL_BUCKET,
        **CPU,
    },
    "a head beyond the bucket": {
        "model": WIDE,
        "stage": 3,
        "world_size": 1,
        "gradient_accumulation_steps": 2,
        "micro_batch_size": 1,
        "ds_config": SMALL_BUCKET,
        "offload_param": "cpu",
        **CPU,
    },
    "within backward": {"model": WIDE, "stage": 2, "sequence_length": 512, "ds_config": SMALL_BUCKET},
    "beyond stage 1's bucket": {
        "model": TIED,
        "stage": 1,
        "micro_batch_size": 1,
        "activation_checkpointing": False,
        "ds_config": {"zero_optimization.reduce_bucket_size": 1_000_000, "zero_optimization.overlap_comm": True},
        **CPU,
    },
    "reduced at the end": {
        "model": WIDE,
        "stage": 1,
        "world_size": 1,
        "micro_batch_size": 1,
        "sequence_length": 128,
        "ds_config": SMALL_BUCKET,
        **CPU,
    },
    "its own gradients last": {"model": WIDE, "stage": 2, "micro_batch_size": 1, "sequence_length": 128},
}
PASSES = (Phase.FORWARD, Phase.BACKWARD)
USUAL: dict[str, Any] = {"world_size": 4, "sequence_length": 256, "micro_batch_size": 2}
ASKED = {name: gpu_trial(**USUAL | axes) for name, axes in AXES.items()}


@pytest.fixture(scope="module")
def simulated(simulate: Simulate) -> dict[str, RankRecord]:
    return dict(zip(ASKED, simulate(list(ASKED.values())), strict=True))


def peaks(rank: RankRecord) -> dict[tuple[StepKind, Phase], int]:
    rows = (row for row in rank.memory if (row.place, row.category) == (Place.DEVICE, Category.TOTAL))
    return {(row.step, row.phase): row.at_peak_bytes or 0 for row in rows}


@pytest.mark.parametrize("name", ASKED)
def test_a_steady_step_reaches_the_peak_that_the_formula_tells(simulated: dict[str, RankRecord], name: str) -> None:
    engine = peaks(simulated[name])
    formula = peaks(formula_record(ASKED[name].model_copy(update={"evidence": Evidence.FORMULA})))
    told, found = (max(each[StepKind.STEADY, phase] for phase in PASSES) for each in (formula, engine))
    assert told == pytest.approx(found, rel=0.025)
    step = StepKind.STEADY, Phase.STEP
    assert formula[step] == pytest.approx(engine[step], rel=0.005)


@pytest.mark.parametrize("name", ["both on drives", "ends too small to swap", "normed heads", "tied head, divided"])
def test_what_is_gathered_and_drawn_at_start_up_is_counted(simulated: dict[str, RankRecord], name: str) -> None:
    engine = peaks(simulated[name])
    formula = peaks(formula_record(ASKED[name].model_copy(update={"evidence": Evidence.FORMULA})))
    built = StepKind.FIRST, Phase.INIT
    assert formula[built] == pytest.approx(engine[built], rel=0.01)
