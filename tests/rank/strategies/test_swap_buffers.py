"""DeepSpeed's buffers for swapped parameters run out exactly at the limit of the rule."""

from typing import Any

import pytest

from tests.rank.real_ranks import RunTrial, Tiny
from zerobench.common.vocabulary import Status
from zerobench.config.deepspeed import build_ds_config
from zerobench.config.rules.swap_rules import held_buffers

WIDTH = 1024
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": WIDTH,
    "vocab_size": 2 * WIDTH,
}
LLAMA |= {"num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 8, "tie_word_embeddings": False}
"""Each matrix has a million elements and the head two: halves of 1 MiB in 16 bits, which are just swapped."""
TINY = Tiny(LLAMA, work={"steps": {"warmup": 1, "timed": 1, "memory": 1}})
SIXTH = 2 * (2 * WIDTH**2 + 4 * WIDTH**2 + 2 * WIDTH)
"""Elements from the use of the sixth matrix from the end to its next: the head, four matrices, two norms, twice."""


def asked(distance: int, **fields: Any) -> Any:
    keys = {"zero_optimization.stage3_max_reuse_distance": distance}
    offload = {"offload_param": "nvme", "offload_optimizer": "nvme", "nvme_path": "/nowhere"}
    where = {"evidence": "simulated", "prediction": {"gpu": "h100-sxm"}, "precision": "bf16"}
    return TINY.spec(strategy="zero3", ds_config=keys, **offload, **where, **fields)


@pytest.mark.parametrize(("distance", "held"), [(0, 0), (SIXTH, 5)])
def test_with_as_many_buffers_as_are_held_at_most_the_trial_completes(ran: RunTrial, distance: int, held: int) -> None:
    trial = asked(distance)
    assert held_buffers(trial, build_ds_config(trial)) == held
    assert ran(trial)[0].status is Status.COMPLETED


def test_a_little_further_a_sixth_is_held_and_deepspeed_has_five(ran: RunTrial) -> None:
    trial = asked(SIXTH + 2 * WIDTH + 1)  # the rule takes a block's first norm for one that comes after its matrices
    assert held_buffers(trial, build_ds_config(trial)) == 6
    with pytest.raises(Exception, match="Not enough buffers 0 for swapping 1"):
        ran(trial)
