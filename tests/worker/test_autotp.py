"""DeepSpeed's AutoTP at stage 3, on real ranks: two groups of two, or one.

The model is built partitioned over all ranks. What AutoTP then cuts, ZeRO divides among the groups, and what it leaves
whole, among all ranks, so that a rank has an equal part of every state.
"""

from typing import Any

import pytest

from tests.tools.rank_memory import unnamed
from tests.worker.real_ranks import RunTrial
from zerobench.records import Category, Phase, Status, StepKind
from zerobench.spec.batch import AUTOTP_SIZE
from zerobench.spec.model import ModelSpec
from zerobench.spec.trial import TrialSpec

CONFIG: dict[str, Any] = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
CONFIG |= {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 512, "max_position_embeddings": 64}
SETTINGS = {AUTOTP_SIZE: 2, "zero_optimization.reduce_bucket_size": 10**6}
ON_FOUR: dict[str, Any] = {"gpus_per_node": 4, "gradient_accumulation_steps": 1, "optimizer": "adamw"}
ON_TWO: dict[str, Any] = {"gpus_per_node": 2, "gradient_accumulation_steps": 2, "optimizer": "sgd"}
FEW_BYTES = 4096


def spec(strategy: str = "zero3", **fields: Any) -> TrialSpec:
    """A trial of four micro-batches a step."""
    rates = {"learning_rate": 0.1 if fields["optimizer"] == "sgd" else 1e-3}
    work = {"strategy": strategy, "sequence_length": 32, "precision": "fp32", "hyperparameters": rates}
    work |= {"steps": {"warmup": 0, "timed": 2, "memory": 1}, "ds_config": {} if strategy == "single" else SETTINGS}
    return TrialSpec.model_validate({"model": ModelSpec(name="tiny", hf_config=CONFIG), **work, **fields})


@pytest.mark.parametrize("fields", [ON_FOUR, ON_TWO], ids=["adamw on 4", "sgd on 2"])
def test_ranks_that_are_cut_and_divided_lose_what_one_process_loses_to_5e_6(ran: RunTrial, fields: dict[str, Any]):
    alone = {**fields, "gpus_per_node": 1, "gradient_accumulation_steps": 4}
    reference = ran(spec("single", **alone))[0].losses
    assert reference[-1] < reference[0] - 0.01  # the model learns, so a wrong update would show
    for rank in ran(spec(**fields)):
        assert rank.status is Status.COMPLETED
        assert max(abs(a - b) for a, b in zip(rank.losses, reference, strict=True)) <= 5e-6


def test_every_rank_holds_an_equal_part_of_every_state_to_the_byte(ran: RunTrial):
    for rank in ran(spec(**ON_FOUR)):
        assert rank.parameters is not None
        for category, phase in (
            (Category.PARAMETERS, Phase.STEP),
            (Category.GRADIENTS, Phase.BACKWARD),
            (Category.FIRST_MOMENT, Phase.STEP),
            (Category.SECOND_MOMENT, Phase.STEP),
        ):
            found = [row for row in rank.memory if (row.category, row.phase) == (category, phase)]
            steady = [row.live_bytes for row in found if row.step is StepKind.STEADY]
            assert sum(steady) == 4 * rank.parameters.total // 4, category


def test_matrices_are_gathered_from_the_groups_and_the_rest_from_all_ranks(ran: RunTrial):
    [embedding, norms] = 512 * 64, 5 * 64
    matrices = ran(spec(**ON_FOUR))[0].parameters.total - embedding - norms  # type: ignore[union-attr]
    for rank in ran(spec(**ON_FOUR)):
        reduced = {
            row.group_size: row.message_bytes
            for row in rank.collectives
            if (row.step, row.phase, row.kind) == (StepKind.STEADY, Phase.BACKWARD, "reduce_scatter")
        }
        micro_batches = 2  # of each group
        assert reduced == {2: micro_batches * 4 * matrices // 2, 4: micro_batches * 4 * (embedding + norms)}


@pytest.mark.parametrize("fields", [ON_FOUR, ON_TWO], ids=["adamw on 4", "sgd on 2"])
def test_every_byte_at_every_peak_has_a_name(ran: RunTrial, fields: dict[str, Any]):
    for rank in ran(spec(**fields)):
        assert unnamed(rank, share=0) == []
