"""What a config says of a model, held against transformers' own config classes."""

from typing import Any

import pytest

from zerobench.config.models.architecture import DEFAULTS, complete, dimensions, has_dropout, max_positions
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.model import ModelSpec


def model(**config: Any) -> ModelSpec:
    return ModelSpec(name="test", hf_config=config)


@pytest.mark.parametrize("model_type", DEFAULTS)
def test_what_a_config_leaves_out_is_what_transformers_fills_in(model_type: str) -> None:
    from transformers import AutoConfig

    # transformers blanks the window's size where the window is off
    window = {"use_sliding_window": True} if "use_sliding_window" in DEFAULTS[model_type] else {}
    filled = AutoConfig.for_model(model_type, **window)
    ours = {key: value for key, value in (DEFAULTS[model_type] | window).items() if value is not None}
    assert ours == {key: getattr(filled, key) for key in ours}


@pytest.mark.parametrize("model_type", DEFAULTS)
def test_dropout_that_transformers_turns_on_by_default_is_seen(model_type: str) -> None:
    from transformers import AutoConfig

    filled = AutoConfig.for_model(model_type).to_dict()
    on = {key for key, value in filled.items() if "drop" in key and value} - {
        "summary_first_dropout",
        "classifier_dropout",
    }
    assert has_dropout(model(model_type=model_type)) == bool(on)


@pytest.mark.parametrize(
    ("config", "dropped"),
    [
        ({"model_type": "gpt2", "resid_pdrop": 0.0, "embd_pdrop": 0, "attn_pdrop": 0.0}, False),
        ({"model_type": "gpt2", "resid_pdrop": 0.0, "embd_pdrop": 0.1, "attn_pdrop": 0.0}, True),
        ({"model_type": "llama", "attention_dropout": 0.1}, True),
        ({"model_type": "falcon", "hidden_dropout": 0.2}, True),
        ({"model_type": "falcon", "classifier_dropout": 0.2}, False),
        ({"model_type": "gemma3", "text_config": {"attention_dropout": 0.3}}, True),
        ({"model_type": "llama", "use_dropout": True}, False),
    ],
)
def test_dropout_anywhere_in_the_language_model_is_seen(config: dict[str, Any], dropped: bool) -> None:
    assert has_dropout(model(**config)) is dropped


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        ({"model_type": "gpt2", "n_positions": 77}, 77),
        ({"model_type": "gpt2", "max_position_embeddings": 78}, 78),
        ({"model_type": "gpt2"}, 1024),
        ({"model_type": "llama", "max_position_embeddings": 99}, 99),
        ({"model_type": "mpt", "max_seq_len": 55}, 55),
        ({"model_type": "gemma3", "text_config": {"max_position_embeddings": 44}}, 44),
        ({"model_type": "mamba"}, None),
    ],
)
def test_the_longest_sequence_is_found_in_every_spelling(config: dict[str, Any], positions: int | None) -> None:
    assert max_positions(model(**config)) == positions


def test_both_spellings_of_a_gpt2_size_are_one() -> None:
    one = complete(model(model_type="gpt2", hidden_size=64, num_hidden_layers=2))
    assert one == complete(model(model_type="gpt2", n_embd=64, n_layer=2))


def test_heads_have_their_share_of_the_hidden_size_unless_they_say_otherwise() -> None:
    assert dimensions(resolve_model("llama-8b")).head_dim == 128
    assert dimensions(model(model_type="mistral", head_dim=100)).head_dim == 100


def test_dimensions_that_a_config_does_not_say_are_none() -> None:
    size = dimensions(model(model_type="mamba", d_model=64))
    assert (size.hidden_size, size.num_heads, size.head_dim, size.num_kv_heads) == (64, None, None, None)
