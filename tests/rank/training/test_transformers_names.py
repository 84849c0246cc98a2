"""Releases 4 and 5 of transformers are called by the names that each has."""

import sys
from contextlib import nullcontext
from types import ModuleType

import pytest
import torch

from zerobench.rank.training import transformers_names


@pytest.mark.parametrize(("release", "name"), [("4.48.1", "torch_dtype"), ("4.56.0", "dtype"), ("5.23.0", "dtype")])
def test_the_type_of_a_model_is_set_by_the_argument_of_its_release(
    release: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers_names, "version", lambda _package: release)
    assert transformers_names.dtype_argument(torch.bfloat16) == {name: torch.bfloat16}


def test_release_4_leaves_weights_unset_by_its_own_module(monkeypatch: pytest.MonkeyPatch) -> None:
    modeling = ModuleType("transformers.modeling_utils")
    own = modeling.no_init_weights = nullcontext  # type: ignore[attr-defined] # of a module that is made here
    monkeypatch.setitem(sys.modules, "transformers", ModuleType("transformers"))
    monkeypatch.setitem(sys.modules, "transformers.initialization", None)
    monkeypatch.setitem(sys.modules, "transformers.modeling_utils", modeling)
    assert isinstance(transformers_names.skip_initialization(), own)
