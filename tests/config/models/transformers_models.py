"""Configurations of each architecture that has a closed form, and what transformers makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zerobench.config.trial.model import ModelSpec

if TYPE_CHECKING:
    import torch

SMALL = {"vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
GATED = SMALL | {"intermediate_size": 112, "num_key_value_heads": 2}
OPT = SMALL | {"ffn_dim": 128, "max_position_embeddings": 40}

CONFIGS: list[dict[str, Any]] = [
    {"model_type": "gpt2"},
    {"model_type": "gpt2", "tie_word_embeddings": False, "n_inner": 100},
    {"model_type": "gpt2", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
    {"model_type": "llama"},
    GATED | {"model_type": "llama"},
    GATED | {"model_type": "llama", "tie_word_embeddings": True},
    GATED | {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    GATED | {"model_type": "llama", "head_dim": 24},
    SMALL | {"model_type": "llama", "intermediate_size": 112},
    {"model_type": "mistral"},
    GATED | {"model_type": "mistral", "head_dim": 24, "attention_bias": True},
    {"model_type": "qwen2"},
    GATED | {"model_type": "qwen2", "tie_word_embeddings": True},
    {"model_type": "qwen3"},
    GATED | {"model_type": "qwen3", "head_dim": 24, "attention_bias": True},
    {"model_type": "mixtral"},
    GATED | {"model_type": "mixtral", "num_local_experts": 5, "tie_word_embeddings": True},
    {"model_type": "gemma2"},
    GATED | {"model_type": "gemma2", "head_dim": 24, "attention_bias": True, "tie_word_embeddings": False},
    {"model_type": "phi3"},
    GATED | {"model_type": "phi3", "pad_token_id": None},
    {"model_type": "gpt_neox"},
    SMALL | {"model_type": "gpt_neox", "intermediate_size": 112, "tie_word_embeddings": True},
    SMALL | {"model_type": "gpt_neox", "intermediate_size": 112, "attention_bias": False},
    {"model_type": "opt"},
    OPT | {"model_type": "opt", "word_embed_proj_dim": 32, "do_layer_norm_before": False},
    OPT | {"model_type": "opt", "enable_bias": False, "layer_norm_elementwise_affine": False},
    OPT | {"model_type": "opt", "_remove_final_layer_norm": True, "tie_word_embeddings": False},
]


def built(spec: ModelSpec) -> torch.nn.Module:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model: torch.nn.Module = AutoModelForCausalLM.from_config(AutoConfig.for_model(**spec.hf_config))
    return model


def configuration_name(config: dict[str, Any]) -> str:
    return "-".join(str(value) for key, value in config.items() if key not in SMALL and key != "ffn_dim")
