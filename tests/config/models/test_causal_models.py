"""Which types of model transformers can build, read from its table without importing it."""

import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from zerobench.config.models.causal_models import (
    causal_model_types,
    is_causal_model,
    model_module,
    rope_types,
    takes_attention,
    unknown_rope_type,
)
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import Attention

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


def class_of(model_type: str) -> Any:
    """The class that AutoModelForCausalLM builds."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    named = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
    return getattr(transformers, named if isinstance(named, str) else named[0])


def runs_with(cls: Any, attention: Attention) -> bool:
    """Whether transformers' own check, before it builds anything, lets the attention stand as it is."""
    bare, usual = cls.__new__(cls), getattr(cls.config_class, "prefix_lm", None)
    bare.__dict__["config"] = SimpleNamespace(_name_or_path="", dtype=None, prefix_lm=usual)
    try:
        return bool(cls._check_and_adjust_attn_implementation(bare, attention.value, True) == attention)
    except ValueError:
        return False


@pytest.fixture
def has_flash_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether flash-attn is installed here is another rule's question."""
    from transformers import PreTrainedModel

    monkeypatch.setattr(PreTrainedModel, "_flash_attn_import_error", lambda *_, **__: None)
    monkeypatch.setattr("transformers.modeling_utils.lazy_import_flash_attention", lambda *_, **__: None)


@pytest.mark.usefixtures("has_flash_kernels")
@pytest.mark.parametrize("model_type", sorted(causal_model_types() or ()))
def test_each_causal_model_takes_those_attentions_that_transformers_own_check_lets_pass(model_type: str) -> None:
    taken = {attention for attention in Attention if takes_attention(model(model_type), attention)}
    assert taken == {attention for attention in Attention if runs_with(class_of(model_type), attention)}


def test_all_causal_models_of_transformers_are_asked_and_only_one_looks_into_its_config_too() -> None:
    from transformers import PreTrainedModel
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    types = causal_model_types()
    assert types == frozenset(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    method = "_check_and_adjust_attn_implementation"
    usual = getattr(PreTrainedModel, method)
    assert [name for name in types if getattr(class_of(name), method) is not usual] == ["hrm_text"]


def test_where_the_prompt_attends_to_all_of_itself_there_is_no_flash_attention_unless_the_config_turns_that_off() -> (
    None
):
    asked = [model("hrm_text", **known) for known in ({}, {"prefix_lm": True}, {"prefix_lm": False})]
    assert [takes_attention(spec, Attention.FLASH_ATTENTION_2) for spec in asked] == [False, False, True]
    assert all(takes_attention(spec, Attention.SDPA) for spec in asked)


def test_of_code_that_comes_with_a_config_nobody_says_what_it_takes() -> None:
    own = model("gptj", auto_map={"AutoModelForCausalLM": "mine.Model"})
    assert takes_attention(own, Attention.SDPA)
    assert not takes_attention(model("gptj"), Attention.SDPA)


@pytest.mark.parametrize("model_type", ["../auto/modeling_auto", "no_such_model", ""])
def test_a_type_that_is_no_module_of_transformers_is_left_to_others(model_type: str) -> None:
    assert takes_attention(model(model_type), Attention.SDPA)


def test_a_type_with_a_hyphen_has_a_module_with_an_underscore(installed: Path) -> None:
    assert installed.is_file()
    assert model_module("two-words") == ("models", "two_words", "modeling_two_words.py")


CLASSES = """
from ..other.modeling_other import OtherPreTrainedModel
class Base:
    _supports_sdpa = False
class MambaForCausalLM(Base, OtherPreTrainedModel):
    _supports_flash_attn: bool = False
class RwkvForCausalLM(OtherPreTrainedModel):
    pass
"""


def test_a_class_has_what_its_bases_declare_in_the_order_of_python(installed: Path) -> None:
    installed.write_text(TABLE.replace('_newest("rwkv")', '("RwkvForCausalLM", "Rwkv")'), encoding="utf-8")
    for name, text in (
        ("mamba", CLASSES),
        ("rwkv", CLASSES),
        ("other", "class OtherPreTrainedModel(PreTrainedModel):\n    _supports_sdpa = _supports_flash_attn = True\n"),
    ):
        file = installed.parents[1] / name / f"modeling_{name}.py"
        file.parent.mkdir()
        file.write_text(text, encoding="utf-8")
    assert [takes_attention(model("mamba"), attention) for attention in Attention] == [False, True, False]
    assert [takes_attention(model("rwkv"), attention) for attention in Attention] == [True, True, True]
