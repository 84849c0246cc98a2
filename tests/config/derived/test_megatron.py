"""Collectives of tensor parallelism, by the paper and by torch's loss over cut logits."""

import re
from typing import Any

import pytest

from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Phase
from zerobench.config.derived.megatron import tensor_moves
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import TrialSpec


def trial(checkpointing: bool | str = False, **config: int) -> TrialSpec:
    """Five blocks of width 64 over ten tokens, three micro-batches a step on each of two ranks' one copy."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4, "vocab_size": 512, **config}
    model = ModelSpec(name="m", hf_config={"model_type": "llama", **sizes})
    return TrialSpec.model_validate(
        {
            "model": model,
            "strategy": "tensor",
            "gpus_per_node": 2,
            "precision": "bf16",
            "sequence_length": 5,
            "micro_batch_size": 2,
            "gradient_accumulation_steps": 3,
            "activation_checkpointing": checkpointing,
        }
    )


@pytest.mark.parametrize(("recomputed", "backward"), [(False, 2 * 5 + 1), (True, 3 * 5 + 1)])
def test_each_block_reduces_twice_each_way_and_once_more_where_it_is_recomputed(
    recomputed: bool, backward: int
) -> None:
    assert tensor_moves(trial(recomputed)) == (
        (Phase.FORWARD, "all_gather", 6, 6 * 640),
        (Phase.FORWARD, "all_reduce", 6 * (10 + 3), 6 * (10 * 640 + 3 * 10 * 4 // 2)),
        (Phase.BACKWARD, "all_reduce", 6 * backward, 6 * backward * 640),
    )


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"model_type": "gpt2"}, "strategy: tensor: a model of type gpt2"),
        ({"model_type": "llama", "hidden_size": 0}, "model: 'odd' has no hidden_size and num_hidden_layers"),
    ],
)
def test_a_model_that_cannot_be_cut_or_has_no_dimensions_is_refused(config: dict[str, Any], why: str) -> None:
    unknown = trial().model_copy(update={"model": ModelSpec(name="odd", hf_config=config)})
    with pytest.raises(UserError, match=re.escape(why)):
        tensor_moves(unknown)
