"""A rank's record names the packages that act in its process, and none that merely lies beside them."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from zerobench.rank.ledger.acting_versions import acting_versions


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
