"""Which types of model transformers can build, read from its table without importing it."""

import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from zerobench.spec.causal_models import causal_model_types, is_causal_model, rope_types, unknown_rope_type
from zerobench.spec.model import ModelSpec

TABLE = """
OTHER = OrderedDict([("bert", "BertModel")])
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = OrderedDict([("mamba", "MambaForCausalLM"), ("rwkv", _newest("rwkv"))])
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a transformers that has the table above."""
    package = ModuleType("transformers")
    package.__spec__ = ModuleSpec("transformers", None, is_package=True)
    package.__spec__.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "transformers", package)
    file = tmp_path / "models" / "auto" / "modeling_auto.py"
    file.parent.mkdir(parents=True)
    file.write_text(TABLE, encoding="utf-8")
    causal_model_types.cache_clear()
    yield file
    causal_model_types.cache_clear()


def model(model_type: str, **config: object) -> ModelSpec:
    return ModelSpec(name="m", hf_config={"model_type": model_type, **config})


@pytest.mark.usefixtures("installed")
def test_the_types_are_the_first_of_each_pair_of_the_one_table_whatever_stands_second() -> None:
    assert causal_model_types() == frozenset({"mamba", "rwkv"})


@pytest.mark.usefixtures("installed")
def test_a_type_is_known_by_the_table_by_ourselves_or_by_code_of_its_own() -> None:
    assert is_causal_model(model("mamba"))
    assert is_causal_model(model("llama"))
    assert not is_causal_model(model("bert"))
    assert is_causal_model(model("bert", auto_map={"AutoModelForCausalLM": "mine.Model"}))


@pytest.mark.parametrize("content", ["", "a table that is no Python"])
def test_where_the_table_is_not_there_nobody_says_that_a_type_is_none(installed: Path, content: str) -> None:
    installed.write_text(content, encoding="utf-8")
    assert causal_model_types() is None
    assert is_causal_model(model("bert"))


def test_types_of_rotary_positions_are_those_that_transformers_itself_has() -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    assert rope_types() == {"default", *ROPE_INIT_FUNCTIONS}


@pytest.mark.parametrize(
    "config", [{"rope_scaling": {"rope_type": "none-such"}}, {"rope_parameters": {"type": "none-such"}}]
)
def test_a_type_of_rotary_positions_that_transformers_has_not_is_told_with_those_that_it_has(config: Any) -> None:
    assert unknown_rope_type(model("llama", **config)) == ("none-such", sorted(rope_types()))
    assert unknown_rope_type(model("gpt2", **config)) is None  # its positions are learned


@pytest.mark.parametrize("scaling", [None, {}, {"rope_type": "llama3", "factor": 8.0}, {"full_attention": {}}])
def test_a_type_that_it_has_or_none_at_all_is_taken(scaling: Any) -> None:
    assert unknown_rope_type(model("llama", rope_scaling=scaling)) is None
