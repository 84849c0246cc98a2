"""Every way a sweep may name a model, and what is refused."""

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.at_least_one import at_least_one
from tests.tools.refusals import at_most_one_line, one_line
from zerobench.config.models.architecture import has_dropout, max_positions
from zerobench.config.models.parameters import count_parameters
from zerobench.config.models.presets import PRESETS, RELEASED, bare, is_model, resolve_model
from zerobench.config.trial.model import ModelSpec


@pytest.fixture(autouse=True, scope="module")
def _no_network() -> Iterator[None]:
    """A made-up name may look like a hub id; nobody is asked about it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        yield


PUBLISHED = {
    "gpt2-125m": 124_439_808,
    "gpt2-350m": 354_823_168,
    "gpt2-774m": 774_030_080,
    "gpt2-1.5b": 1_557_611_200,
    **{name: model.parameters for name, model in RELEASED.items()},
}
"""Parameters of the released checkpoints, as their model cards and safetensors headers give them."""


def total(name: str) -> int:
    counts = count_parameters(resolve_model(name))
    assert counts is not None
    return counts.total


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_a_preset_of_a_released_model_has_its_parameters_exactly(name: str, parameters: int) -> None:
    assert total(name) == parameters


@pytest.mark.parametrize("name", [name for name in PRESETS if name not in RELEASED])
def test_a_shape_has_the_size_its_name_says_within_a_tenth(name: str) -> None:
    size = name.rsplit("-", 1)[1]
    said = float(size[:-1]) * {"m": 1e6, "b": 1e9}[size[-1]]
    assert total(name) == pytest.approx(said, rel=0.1)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_keeps_its_name_drops_nothing_and_caches_nothing(name: str) -> None:
    spec = resolve_model(name)
    assert spec.name == name
    assert not has_dropout(spec)
    assert spec.hf_config["use_cache"] is False


@pytest.mark.parametrize("name", RELEASED)
def test_the_hub_id_of_a_preset_is_the_preset_in_any_case_and_without_a_network(name: str) -> None:
    for hub_id in at_least_one(RELEASED[name].hub_ids):
        assert resolve_model(hub_id) == resolve_model(hub_id.upper()) == resolve_model(name)


def test_no_hub_id_means_two_models() -> None:
    hub_ids = [hub_id.lower() for model in RELEASED.values() for hub_id in model.hub_ids]
    assert len(hub_ids) == len(set(hub_ids))


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("llama-2-13b", "llama-13b"),
        ("Llama-2-7b-hf", "llama-7b"),
        ("llama3-8b", "llama-8b"),
        ("Llama-3.1-70B", "llama3.1-70b"),
        ("Qwen-2.5-7B-Instruct", "qwen2.5-7b"),
        ("GPT2-1.5B", "gpt2-1.5b"),
        ("phi_4", "phi4"),
    ],
)
def test_a_preset_answers_to_its_name_as_people_write_it(written: str, name: str) -> None:
    assert resolve_model(written).name == name
    assert is_model(written)


def test_no_name_as_people_write_it_means_two_models() -> None:
    meant: dict[str, set[str]] = {bare(name): {name} for name in PRESETS}
    for model in RELEASED.values():
        for hub_id in model.hub_ids:
            meant.setdefault(bare(hub_id.partition("/")[2]), set()).add(model.name)
    assert {name: models for name, models in meant.items() if len(models) > 1} == {}


def test_small_llamas_are_untied_so_that_every_strategy_can_split_them() -> None:
    small = [resolve_model(name) for name in ("llama-10m", "llama-20m", "llama-50m")]
    assert not any(spec.hf_config["tie_word_embeddings"] for spec in small)


def test_the_longest_sequence_of_a_preset_is_its_number_of_positions() -> None:
    names = ("gpt2-125m", "gpt3-175b", "llama-7b", "llama-8b")
    assert [max_positions(resolve_model(name)) for name in names] == [1024, 2048, 4096, 8192]


def test_a_shape_written_out_takes_the_rest_from_its_family() -> None:
    spec = resolve_model({"family": "llama", "num_layers": 32, "hidden_size": 4096, "num_heads": 32})
    assert spec.hf_config == resolve_model("llama-7b").hf_config
    spec = resolve_model({"family": "gpt2", "num_layers": 12, "hidden_size": 768, "num_heads": 12})
    assert spec.hf_config == resolve_model("gpt2-125m").hf_config


def test_a_shape_written_out_without_a_name_is_named_by_its_dimensions() -> None:
    assert resolve_model({"family": "gpt2", "num_layers": 2, "hidden_size": 64, "num_heads": 4}).name == "gpt2-2x64"


def test_a_shape_written_out_is_followed_to_the_letter() -> None:
    shape = {
        "family": "llama",
        "name": "mine",
        "num_layers": 3,
        "hidden_size": 96,
        "num_heads": 6,
        "num_kv_heads": 2,
        "intermediate_size": 200,
        "vocab_size": 500,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
    }
    spec = resolve_model(shape)
    config = spec.hf_config
    assert spec.name == "mine"
    assert (config["num_hidden_layers"], config["hidden_size"], config["intermediate_size"]) == (3, 96, 200)
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (6, 2)
    assert (config["vocab_size"], max_positions(spec), config["tie_word_embeddings"]) == (500, 64, True)


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    """A config.json as transformers writes it, with what does not define the work."""
    folder = tmp_path / "my-model"
    folder.mkdir()
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": 64,
        "n_head": 4,
        "n_layer": 2,
        "n_positions": 32,
        "vocab_size": 100,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.25,
        "dtype": "bfloat16",
        "torch_dtype": "float16",
        "transformers_version": "4.40.0",
        "_name_or_path": "somewhere",
        "quantization_config": {"bits": 4},
        "auto_map": {"AutoModelForCausalLM": "modeling.Model"},
        "use_cache": True,
    }
    file = folder / "config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    return file


def test_a_config_is_found_by_its_file_and_by_its_folder_and_named_after_the_folder(config_file: Path) -> None:
    by_file, by_folder = resolve_model(str(config_file)), resolve_model(str(config_file.parent))
    assert by_file == by_folder
    assert by_file.name == "my-model"


def test_a_config_of_another_name_is_named_after_its_file(config_file: Path) -> None:
    assert resolve_model(str(config_file.rename(config_file.with_name("small.json")))).name == "small"


def test_a_config_keeps_what_defines_the_work_and_nothing_else(config_file: Path) -> None:
    config = resolve_model(str(config_file)).hf_config
    assert (config["model_type"], config["n_embd"], config["resid_pdrop"]) == ("gpt2", 64, 0.25)
    assert config["use_cache"] is False
    assert not {"dtype", "torch_dtype", "transformers_version", "_name_or_path", "quantization_config"} & set(config)


def test_code_that_ships_with_a_config_keeps_where_it_lies(config_file: Path) -> None:
    config = resolve_model(str(config_file)).hf_config
    assert config["auto_map"] == {"AutoModelForCausalLM": f"{config_file.parent}--modeling.Model"}


def test_a_config_may_be_given_a_name_of_its_own(config_file: Path) -> None:
    spec = resolve_model({"config": str(config_file), "name": "tiny"})
    assert spec.name == "tiny"
    assert spec.hf_config == resolve_model(str(config_file)).hf_config


@pytest.mark.parametrize(
    "config",
    [{"model_type": "gpt2", "n_layer": 3}, {"family": "gpt2", "num_layers": 3, "hidden_size": 64, "num_heads": 4}],
)
def test_a_config_under_a_name_may_be_written_out_too(config: dict[str, Any]) -> None:
    assert resolve_model({"name": "mine", "config": config}) == resolve_model(config).model_copy(
        update={"name": "mine"}
    )


def test_a_transformers_config_may_be_written_out_in_the_sweep() -> None:
    spec = resolve_model({"model_type": "mistral", "name": "small", "hidden_size": 64, "num_attention_heads": 8})
    assert spec.name == "small"
    assert spec.hf_config == {"model_type": "mistral", "hidden_size": 64, "num_attention_heads": 8, "use_cache": False}


def test_a_language_model_nested_in_a_config_caches_nothing_either() -> None:
    config = resolve_model({"model_type": "gemma3", "text_config": {"hidden_size": 64, "dtype": "bfloat16"}}).hf_config
    assert config["text_config"] == {"hidden_size": 64, "use_cache": False}


@pytest.mark.parametrize("name", ["gpt2-10m", "llama-20m"])
def test_what_a_model_wrote_reads_back_as_the_same_model(name: str) -> None:
    spec = resolve_model(name)
    assert resolve_model(spec.model_dump(mode="json")) == spec


SHAPE = {"family": "llama", "num_layers": 2, "hidden_size": 64, "num_heads": 4}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("lama-7b", "did you mean 'llama-7b'"),
        ("", "choices: gpt2-10m"),
        ("x" * 300, "choices: gpt2-10m"),
        ("a\0b", "choices: gpt2-10m"),
        ("no-such-folder/config.json", "No such file"),
        ("/no/such/folder", "No such file"),
        (5, "neither a name nor a mapping"),
        (None, "neither a name nor a mapping"),
        ({}, "family: Field required"),
        (SHAPE | {"family": "bert"}, "family: .*'llama' or 'gpt2'"),
        (SHAPE | {"he\nads": 4}, "unknown field"),
        (SHAPE | {"heads": 4}, "did you mean 'num_heads'"),
        (SHAPE | {"num_heads": 3}, "hidden_size 64 is not divisible by num_heads 3"),
        (SHAPE | {"num_kv_heads": 3}, "num_heads 4 is not divisible by num_kv_heads 3"),
        (SHAPE | {"family": "gpt2", "num_kv_heads": 2}, "gpt2 has no grouped-query attention"),
        (SHAPE | {"num_layers": 0}, "num_layers: .*greater than or equal to 1"),
        (SHAPE | {"vocab_size": -1}, "vocab_size: .*greater than or equal to 1"),
        (SHAPE | {"vocab_size": 1.5}, "vocab_size: .*valid integer"),
        (SHAPE | {"num_layers": True}, "num_layers: .*valid integer"),
        ({"config": "llama-7b", "nam": "x"}, "did you mean 'name'"),
        ({"config": 7}, "config: 7 is not a name"),
        ({"model_type": ""}, "model_type"),
        ({"model_type": "llama", "hidden_size": "big"}, "hidden_size: 'big'; must be a positive integer"),
        ({"model_type": "llama", "num_hidden_layers": 0}, "num_hidden_layers: 0; must be a positive integer"),
        ({"model_type": "llama", "hidden_size": 100}, "hidden size 100 is not divisible by the number of heads 32"),
        ({"model_type": "qwen2", "num_attention_heads": 16}, "16 is not divisible by num_key_value_heads 32"),
        ({"model_type": "gpt2", "n_embd": 64, "hidden_size": 32}, "mean the same size"),
        ({"model_type": "gpt2", 3: 4}, "valid string"),
        ({"model_type": "gpt2", "n_layer": None}, "n_layer: null; must be a positive integer; without the key: 12"),
        ({"model_type": "gpt2", "num_hidden_layers": None}, "n_layer: null; must be a positive integer"),
        ({"model_type": "gpt2", "n_positions": None}, "n_positions: null; must be a positive integer"),
        ({"model_type": "llama", "intermediate_size": None}, "intermediate_size: null; must be a positive integer"),
        (
            {"model_type": "llama", "hidden_size": 10**400},
            "hidden_size: a number with too many digits; at most 2147483647",
        ),
        ({"model_type": "llama", "num_hidden_layers": 10**12}, "num_hidden_layers: 1000000000000; at most 100000"),
        ({"model_type": "gpt2", "n_layer": 10**8}, "n_layer: 100000000; at most 100000"),
        ({"model_type": "unheard-of", "n_layers": 10**8}, "n_layers: 100000000; at most 100000"),
        (SHAPE | {"num_layers": 10**8}, "num_hidden_layers: 100000000; at most 100000"),
        ({"model_type": "\ud800"}, r"'\\ud800' is not valid text"),
        ({"model_type": "gpt2", "a": {"b": ["x\udfff"]}}, r"a: b: 'x\\udfff' is not valid text"),
        ({"model_type": "llama", "rms_norm_eps": math.nan}, "rms_norm_eps: nan is not a finite number"),
        ({"model_type": "gpt2", "a": [{"b": -math.inf}]}, "a: b: -inf is not a finite number"),
        ({"model_type": "gpt2", "\ud800": 1}, r"'\\ud800' is not valid text"),
        ({"name": "x", "hf_config": {"vocab_size": 5}}, "model_type"),
        ({"name": "", "hf_config": {"model_type": "gpt2"}}, "name: .*at least 1 character"),
    ],
)
def test_nonsense_is_refused_in_one_line(value: Any, said: str) -> None:
    with one_line(match=said):
        resolve_model(value)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama", "num_key_value_heads": None, "head_dim": None},
        {"model_type": "mistral", "num_key_value_heads": None},
        {"model_type": "gpt2", "n_inner": None},
        {"model_type": "unheard-of", "num_hidden_layers": None},
    ],
)
def test_a_null_that_means_the_usual_size_is_no_nonsense(config: dict[str, Any]) -> None:
    assert resolve_model(config).hf_config.items() >= config.items()


@pytest.mark.parametrize(
    ("content", "said"),
    [("{", "invalid JSON"), ("[1]", "a JSON object, not list"), ("{}", "model_type: None"), ("\ud800", "invalid JSON")],
)
def test_a_config_file_that_is_none_is_refused_with_its_path(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content.encode("utf-8", "surrogatepass"))
    with one_line(str(file), match=said):
        resolve_model(str(file))


def test_a_hub_id_that_cannot_be_had_is_refused_in_one_line() -> None:
    with one_line("'no-one/nothing' is neither a preset nor a path"):
        resolve_model("no-one/nothing")


def test_a_hub_id_is_read_from_the_cache_when_the_hub_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "models--some--model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text('{"model_type": "llama", "hidden_size": 256}', encoding="utf-8")
    reference = tmp_path / "models--some--model" / "refs" / "main"
    reference.parent.mkdir()
    reference.write_text("abc", encoding="utf-8")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    spec = resolve_model("some/model")
    assert (spec.name, spec.hf_config["hidden_size"]) == ("some/model", 256)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
known_keys = st.sampled_from(
    (
        *("family", "name", "num_layers", "hidden_size", "num_heads", "num_kv_heads", "vocab_size", "model_type"),
        *("hf_config", "config", "n_embd", "n_head", "num_attention_heads", "num_key_value_heads", "head_dim"),
    )
)
known_values = st.sampled_from(["llama", "gpt2", "mistral", "llama-7b", 1, 4, 64, 0, -1])


@given(st.dictionaries(known_keys | st.text(max_size=5), known_values | json_values, max_size=8) | json_values)
def test_any_value_is_a_model_or_one_line_of_refusal(value: Any) -> None:
    with at_most_one_line():
        assert isinstance(resolve_model(value), ModelSpec)


def test_resolving_and_counting_start_without_torch_or_transformers() -> None:
    code = (
        "import sys; from zerobench.config.models.presets import resolve_model;"
        "from zerobench.config.models.parameters import count_parameters;"
        "from zerobench.config.derived.flops import model_flops_per_token; import zerobench.config.hardware.hardware;"
        "spec = resolve_model('llama-7b'); count_parameters(spec); model_flops_per_token(spec, 128);"
        "print(sorted({'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("llama-7b", True),
        ("meta-llama/Llama-3.1-8B", True),
        ("somewhere/config.json", True),
        ("somewhere/model.json", False),
        ("nobody/nothing", False),
    ],
)
def test_presets_hub_ids_and_paths_of_configs_are_models(name: str, *, is_one: bool) -> None:
    assert is_model(name) is is_one
