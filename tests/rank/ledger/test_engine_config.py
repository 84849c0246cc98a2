"""A model as built is counted whole: each weight once, with its full size, trained or not."""

from typing import Any

import torch

from zerobench.rank.ledger.engine_config import count_parameters_built, weights_built


class MLP(torch.nn.Linear):
    """A class that says what it is."""


def model() -> Any:
    """Two blocks and another layer, one weight of which is not trained."""
    made: Any = torch.nn.Module()
    made.model = torch.nn.Module()
    made.model.layers = torch.nn.ModuleList(torch.nn.Module() for _ in range(2))
    for block in made.model.layers:
        block.mlp = MLP(3, 5, bias=False)
    made.lm_head = torch.nn.Linear(5, 7, bias=False)
    made.model.layers[0].mlp.weight.requires_grad_(requires_grad=False)
    return made


def test_all_weights_are_counted_and_the_trained_ones_apart():
    counted = count_parameters_built(model())
    assert (counted.total, counted.trainable) == (2 * 15 + 35, 15 + 35)
    assert sum(counted.by_component.values()) == counted.total
    assert counted.by_component == {"mlp": 30, "other": 35}


def test_a_weight_of_which_this_rank_holds_a_part_counts_whole():
    made = model()
    made.lm_head.weight.ds_numel = 1000  # as stage 3 says it
    assert count_parameters_built(made).total == 2 * 15 + 1000
    assert [weight.size for weight in weights_built(made)] == [15, 15, 1000]


def test_a_weight_that_is_embedding_and_head_counts_once():
    made = model()
    made.model.embed_tokens = torch.nn.Embedding(7, 5)
    made.lm_head.weight = made.model.embed_tokens.weight
    assert count_parameters_built(made).total == 2 * 15 + 35
