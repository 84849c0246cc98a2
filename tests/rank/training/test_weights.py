"""Initial weights depend on the parameter's name and the seed alone."""

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard

from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import TrialSpec
from zerobench.rank.ledger.engine_config import count_parameters_built
from zerobench.rank.training.model import prepare_model
from zerobench.rank.training.weights import draw, fill_weights, keep_part

SMALL = {
    "llama": {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96, "num_hidden_layers": 2},
    "gpt2": {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 64},
}


def model(model_type, seed=1, **more):
    config = {"model_type": model_type, "vocab_size": 128, **SMALL[model_type]}
    trial = TrialSpec(model=ModelSpec(name="m", hf_config=config), strategy="single", precision="fp32", **more)
    made = prepare_model(trial, torch.device("cpu"), trial.attention)()
    fill_weights(made, seed)
    return made


@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
def test_every_parameter_is_set_and_the_first_loss_is_that_of_a_guess(model_type):
    made = model(model_type)
    tokens = torch.randint(0, 128, (4, 32))
    loss = made(input_ids=tokens, labels=tokens).loss
    assert loss.item() == pytest.approx(torch.log(torch.tensor(128.0)).item(), abs=0.2)


def test_the_same_name_and_seed_give_the_same_values_whatever_came_before():
    one, two = torch.empty(8, 8), torch.empty(8, 8)
    draw(torch.empty(100), "other.weight_x", 1, 0.02, 2)
    draw(one, "a.weight", 1, 0.02, 2)
    draw(two, "a.weight", 1, 0.02, 2)
    assert torch.equal(one, two)
    draw(two, "a.weight", 2, 0.02, 2)
    assert not torch.equal(one, two)


def test_residual_projections_of_gpt2_are_drawn_narrower():
    made = model("gpt2")
    weights = dict(made.named_parameters())
    narrow = weights["transformer.h.0.attn.c_proj.weight"].std().item()
    wide = weights["transformer.h.0.attn.c_attn.weight"].std().item()
    assert narrow / wide == pytest.approx(0.5, rel=0.1)  # 1 / sqrt(2 L) with L = 2


def test_a_model_is_counted_by_component():
    counted = count_parameters_built(model("llama"))
    assert counted.by_component["token_embeddings"] == 128 * 64
    assert sum(counted.by_component.values()) == counted.total


class Sharded:
    """The used part of a DTensor on one of two ranks; `copies`: number of groups of two with the same parts."""

    def __init__(self, rank, local, placement=None, copies=1):
        self.device_mesh = self
        self.placements = ([Replicate()] if copies > 1 else []) + [placement or Shard(0)]
        self._rank, self._local = rank, local
        self._shape = (copies, 2) if copies > 1 else (2,)

    def to_local(self):
        return self._local

    def size(self, dim):
        return self._shape[dim]

    def get_local_rank(self, dim):
        return self._rank % 2 if dim == len(self._shape) - 1 else self._rank // 2


def test_groups_that_hold_copies_of_each_other_keep_the_same_rows():
    whole = torch.arange(8.0).reshape(4, 2)
    parts = [torch.empty(2, 2) for _ in range(4)]
    for rank, part in enumerate(parts):
        keep_part(Sharded(rank, part, copies=2), whole)
    assert torch.equal(torch.cat(parts), torch.cat([whole, whole]))


def test_each_rank_keeps_its_rows_of_a_whole_also_where_they_are_not_divided_evenly():
    whole = torch.arange(10.0).reshape(5, 2)
    first, second = torch.empty(3, 2), torch.empty(2, 2)
    keep_part(Sharded(0, first), whole)
    keep_part(Sharded(1, second), whole)
    assert torch.equal(torch.cat([first, second]), whole)


def test_each_rank_keeps_its_columns_of_a_matrix_that_is_cut_by_columns_and_the_whole_of_one_that_is_not_cut():
    whole = torch.arange(10.0).reshape(2, 5)
    first, second, uncut = torch.empty(2, 3), torch.empty(2, 2), torch.empty(2, 5)
    keep_part(Sharded(0, first, Shard(1)), whole)
    keep_part(Sharded(1, second, Shard(1)), whole)
    keep_part(Sharded(1, uncut, Replicate()), whole)
    assert torch.equal(torch.cat([first, second], dim=1), whole)
    assert torch.equal(uncut, whole)


@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
def test_a_model_made_on_meta_has_the_parameters_and_the_buffers_of_one_that_was_not(model_type):
    config = {"model_type": model_type, "vocab_size": 128, **SMALL[model_type]}
    trial = TrialSpec(model=ModelSpec(name="m", hf_config=config), strategy="fsdp", precision="bf16")
    make = prepare_model(trial, torch.device("cpu"), trial.attention)
    real, meta = make(), make(on_meta=True)
    assert all(p.is_meta and p.dtype is torch.float32 for p in meta.parameters())
    assert [(n, p.shape) for n, p in meta.named_parameters()] == [(n, p.shape) for n, p in real.named_parameters()]
    buffers = [dict(one.named_buffers()) for one in (real, meta)]
    assert buffers[0].keys() == buffers[1].keys()
    assert all(torch.equal(buffers[0][name], buffers[1][name]) for name in buffers[0])
    assert not any(p.is_meta for p in make().parameters())  # torch registers parameters as before
