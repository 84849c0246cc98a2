"""A model as built is counted whole: each weight once, with its full size, trained or not."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from zerobench.rank.ledger.engine_config import acting_versions, count_parameters_built, weights_built


def package(monkeypatch: pytest.MonkeyPatch, name: str, **members: object) -> None:
    module = ModuleType(name)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)


def test_what_is_imported_is_named_with_the_version_that_it_says_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    package(monkeypatch, "transformers", __version__="4.48.3")
    monkeypatch.delitem(sys.modules, "deepspeed", raising=False)
    assert acting_versions() == {"torch": torch.__version__, "transformers": "4.48.3"}


def test_peft_acts_where_a_module_of_the_model_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    package(monkeypatch, "peft", __version__="0.14.0")
    adapter = type("Linear", (torch.nn.Linear,), {"__module__": "peft.tuners.lora.layer"})(2, 2)
    assert "peft" not in acting_versions(torch.nn.Linear(2, 2))
    assert acting_versions(torch.nn.Sequential(adapter))["peft"] == "0.14.0"


@pytest.mark.parametrize(("state", "acts"), [({}, False), ({"device": "cpu"}, True)])
def test_accelerate_acts_once_a_program_has_asked_for_its_state(
    monkeypatch: pytest.MonkeyPatch, state: dict[str, str], acts: bool
) -> None:
    package(monkeypatch, "accelerate", __version__="1.15.0")
    package(monkeypatch, "accelerate.state", PartialState=SimpleNamespace(_shared_state=state))
    assert ("accelerate" in acting_versions()) == acts


def test_accelerate_itself_keeps_its_state_where_it_is_looked_for() -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.PartialState._reset_state()
    assert "accelerate" not in acting_versions()
    accelerate.state.PartialState(cpu=True)
    assert acting_versions()["accelerate"] == accelerate.__version__
    accelerate.state.PartialState._reset_state()


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
