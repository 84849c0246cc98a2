"""Live tensors are listed by category, module and allocation site; each list has the same total."""

from types import SimpleNamespace
from typing import Any

import torch

from zerobench.common.vocabulary import Category
from zerobench.rank.ledger.held import UNSEEN, Holdings, unowned
from zerobench.rank.ledger.sites import Site

CPU = "cpu"


class Block(torch.nn.Module):
    """A module of nobody's library around torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(3, 5))
        self.scale = torch.nn.Parameter(torch.ones(2))


def test_bytes_are_counted_by_category_by_site_and_by_the_module_where_one_is_known() -> None:
    held = Holdings()
    held.add(10, Category.ACTIVATIONS, Site("autograd:MulBackward0", None, on_host=False, module="Mlp"))
    held.add(5, Category.ACTIVATIONS, Site("autograd:MulBackward0", None, on_host=False))
    held.add(2, Category.PARAMETERS, None)
    assert held.by_category == {Category.ACTIVATIONS: 15, Category.PARAMETERS: 2}
    assert held.by_site == {"backward of MulBackward0": 15, UNSEEN: 2}
    assert held.by_module == {"Mlp": 10}


def test_weights_and_gradients_on_a_device_go_to_the_nearest_module_that_is_not_torchs() -> None:
    model, held = torch.nn.Module(), Holdings()
    model.block, model.head = Block(), torch.nn.Linear(5, 7, bias=False)
    model.block.scale.grad = torch.ones(2)
    held.add_states(model, "cuda")
    assert held.by_module == {}
    held.add_states(model, CPU)
    assert held.by_module == {"Block": 4 * (3 * 5 + 5 + 2 + 2), "Module": 4 * 5 * 7}


def test_of_a_partitioned_weight_this_ranks_part_counts() -> None:
    block, held = Block(), Holdings()
    block.scale.ds_tensor = torch.ones(1)  # type: ignore[attr-defined] # as stage 3 says it
    held.add_states(block, CPU)
    assert held.by_module == {"Block": 4 * (3 * 5 + 5 + 1)}


def test_of_deepspeeds_flat_optimizer_states_each_module_has_its_parameters_part() -> None:
    block = Block()
    flat, moment = torch.ones(10, requires_grad=True), torch.ones(10)
    flat.grad = torch.ones(10)
    adam = SimpleNamespace(state={flat: {"step": torch.tensor(1.0), "exp_avg": moment}})
    second = SimpleNamespace(single_partition_of_fp32_groups=[None, flat], optimizer=adam)
    scale: Any = block.scale
    scale._zero_optimizer = second
    scale._hp_mapping = SimpleNamespace(hp_fragment=flat.detach()[3:5], param_group_index=1)
    held, weights_bytes = Holdings(), 4 * (3 * 5 + 5 + 2)
    held.add_states(block, CPU)
    assert held.by_module == {"Block": weights_bytes + 3 * 4 * 2}

    third = SimpleNamespace(
        grad_position={7: [0, 3, 1]}, get_param_id=lambda _: 7, fp32_partitioned_groups_flat=[flat], optimizer=adam
    )
    scale._z3_optimizer = third
    held = Holdings()
    held.add_states(block, CPU)
    assert held.by_module == {"Block": weights_bytes + 3 * 4 * 1}
    third.fp32_partitioned_groups_flat = [torch.empty(0)]  # swapped out
    swapped = Holdings()
    swapped.add_states(block, CPU)
    assert swapped.by_module == {"Block": weights_bytes}
    third.grad_position = {}  # frozen
    frozen = Holdings()
    frozen.add_states(block, CPU)
    assert frozen.by_module == {"Block": weights_bytes}


def test_blocks_of_a_workspaces_size_are_workspaces_but_for_those_that_tensors_own() -> None:
    given_out, owned = {32: 3, 64: 1, 8: 5}, {32: 1, 64: 1}
    assert unowned({32, 64, 128}, given_out, owned) == 2 * 32
    assert unowned({32}, {32: 1}, {32: 2}) == 0
