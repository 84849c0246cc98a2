"""GPT-2 and Llama in Keras, with the parameters of transformers under the same names and in the same layout.

The forward passes follow transformers 5 (models/gpt2/modeling_gpt2.py, models/llama/modeling_llama.py): GPT-2 with
learned positions, LayerNorm before each part, one projection for queries, keys and values, and tanh-approximated GELU;
Llama with RMSNorm, rotary positions in halves, grouped key and value heads, and a gated SiLU. Attention is explicit:
causal softmax in fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from zerobench.rank.tensorflow.start import Start

_MASKED = -1e9
"""Score of a masked position, whose softmax is 0 in fp32."""


class CausalModel(keras.Model):  # type: ignore[misc] # Keras publishes no types
    """Trainable variables of a causal language model, by transformers' names, and its loss."""

    def __init__(self, start: Start) -> None:
        super().__init__()
        self.settings = start.config
        self._by_name = {
            name: self.add_weight(shape=start.parameter(name).shape, dtype="float32", name=name.replace(".", "_"))
            for name in start.parameters
        }
        self.built = True

    def set_values(self, start: Start) -> None:
        """Set every variable, on every replica, to its initial value; one array in memory at a time."""
        for name, variable in self._by_name.items():
            variable.assign(start.parameter(name))

    def weight(self, name: str) -> Any:
        """Variable with transformers' `name`."""
        return self._by_name[name]

    def call(self, tokens: Any) -> Any:
        """Logits, fp32 [samples, sequence_length, vocab_size], of tokens, int64 [samples, sequence_length]."""
        raise NotImplementedError

    def loss_of(self, tokens: Any) -> Any:
        """Next-token loss, mean over all positions but the first."""
        logits = self(tokens)[:, :-1]
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tokens[:, 1:], logits=logits)
        return tf.reduce_mean(losses)


class Gpt2(CausalModel):
    """GPT-2 as transformers.GPT2LMHeadModel."""

    def call(self, tokens: Any) -> Any:
        """As CausalModel.call."""
        head = "lm_head.weight" if "lm_head.weight" in self._by_name else "transformer.wte.weight"
        positions = self.weight("transformer.wpe.weight")[: tf.shape(tokens)[1]]
        hidden = tf.gather(self.weight("transformer.wte.weight"), tokens) + positions
        for layer in range(self.settings["n_layer"]):
            hidden = self._block(hidden, f"transformer.h.{layer}.")
        return tf.matmul(self._norm(hidden, "transformer.ln_f"), self.weight(head), transpose_b=True)

    def _block(self, hidden: Any, prefix: str) -> Any:
        heads, normed = self.settings["n_head"], self._norm(hidden, f"{prefix}ln_1")
        parts = tf.split(self._dense(normed, f"{prefix}attn.c_attn"), 3, axis=-1)
        queries, keys, values = (_split_heads(part, heads) for part in parts)
        hidden += self._dense(_merge_heads(attention(queries, keys, values)), f"{prefix}attn.c_proj")
        normed = self._norm(hidden, f"{prefix}ln_2")
        inner = tf.nn.gelu(self._dense(normed, f"{prefix}mlp.c_fc"), approximate=True)
        return hidden + self._dense(inner, f"{prefix}mlp.c_proj")

    def _dense(self, hidden: Any, name: str) -> Any:
        """Apply transformers' Conv1D: a product with [inputs, outputs]."""
        return tf.matmul(hidden, self.weight(f"{name}.weight")) + self.weight(f"{name}.bias")

    def _norm(self, hidden: Any, name: str) -> Any:
        mean, variance = tf.nn.moments(hidden, axes=[-1], keepdims=True)
        scaled = (hidden - mean) * tf.math.rsqrt(variance + self.settings["layer_norm_epsilon"])
        return scaled * self.weight(f"{name}.weight") + self.weight(f"{name}.bias")


class Llama(CausalModel):
    """Llama as transformers.LlamaForCausalLM."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        [name] = [name for name in start.buffers if name.endswith("rotary_emb.inv_freq")]
        self._frequencies = start.buffer(name)[:]

    def call(self, tokens: Any) -> Any:
        """As CausalModel.call."""
        hidden = tf.gather(self.weight("model.embed_tokens.weight"), tokens)
        angles = tf.range(tf.shape(tokens)[1], dtype=tf.float32)[:, None] * self._frequencies[None, :]
        angles = tf.concat([angles, angles], axis=-1)
        for layer in range(self.settings["num_hidden_layers"]):
            hidden = self._block(hidden, tf.cos(angles), tf.sin(angles), f"model.layers.{layer}.")
        head = "lm_head" if "lm_head.weight" in self._by_name else "model.embed_tokens"
        return self._dense(self._norm(hidden, "model.norm"), head)

    def _block(self, hidden: Any, cosines: Any, sines: Any, prefix: str) -> Any:
        normed = self._norm(hidden, f"{prefix}input_layernorm")
        groups = int(self.settings["num_attention_heads"] // self.settings["num_key_value_heads"])
        queries = self._heads(normed, f"{prefix}self_attn.q_proj", self.settings["num_attention_heads"])
        keys = self._heads(normed, f"{prefix}self_attn.k_proj", self.settings["num_key_value_heads"])
        values = self._heads(normed, f"{prefix}self_attn.v_proj", self.settings["num_key_value_heads"])
        queries, keys = (heads * cosines + _rotated(heads) * sines for heads in (queries, keys))
        keys, values = (tf.repeat(heads, groups, axis=1) for heads in (keys, values))
        hidden += self._dense(_merge_heads(attention(queries, keys, values)), f"{prefix}self_attn.o_proj")
        normed = self._norm(hidden, f"{prefix}post_attention_layernorm")
        gate = tf.nn.silu(self._dense(normed, f"{prefix}mlp.gate_proj"))
        return hidden + self._dense(gate * self._dense(normed, f"{prefix}mlp.up_proj"), f"{prefix}mlp.down_proj")

    def _heads(self, hidden: Any, name: str, count: int) -> Any:
        return _split_heads(self._dense(hidden, name), count)

    def _dense(self, hidden: Any, name: str) -> Any:
        """Apply torch's Linear without bias: a product with the transpose of [outputs, inputs]."""
        return tf.matmul(hidden, self.weight(f"{name}.weight"), transpose_b=True)

    def _norm(self, hidden: Any, name: str) -> Any:
        squares = tf.reduce_mean(tf.square(hidden), axis=-1, keepdims=True)
        return self.weight(f"{name}.weight") * (hidden * tf.math.rsqrt(squares + self.settings["rms_norm_eps"]))


def attention(queries: Any, keys: Any, values: Any) -> Any:
    """Causal scaled dot-product attention; all are fp32 [samples, heads, positions, head_dim]."""
    scores = tf.matmul(queries, keys, transpose_b=True) * (float(queries.shape[-1]) ** -0.5)
    mask = tf.linalg.band_part(tf.ones_like(scores[0, 0]), -1, 0)
    return tf.matmul(tf.nn.softmax(tf.where(mask > 0, scores, _MASKED)), values)


def make_model(start: Start) -> CausalModel:
    """Make the model of `start`, without values. Raises ValueError for an unsupported config."""
    config = start.config
    kinds: dict[str, tuple[Callable[[Start], CausalModel], dict[str, Any]]] = {
        "gpt2": (Gpt2, {"activation_function": "gelu_new", "scale_attn_by_inverse_layer_idx": False}),
        "llama": (Llama, {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}),
    }
    make, followed = kinds[config["model_type"]]
    for key, value in followed.items():
        if config.get(key, value) != value:
            raise ValueError(f"model: {key} {config[key]!r}: the Keras model of {config['model_type']} has {value!r}")
    return make(start)


def _split_heads(hidden: Any, heads: int) -> Any:
    """Reshape [samples, positions, width] to [samples, heads, positions, head_dim]."""
    shape = tf.shape(hidden)
    split = tf.reshape(hidden, [shape[0], shape[1], heads, hidden.shape[-1] // heads])
    return tf.transpose(split, [0, 2, 1, 3])


def _merge_heads(hidden: Any) -> Any:
    shape, width = tf.shape(hidden), hidden.shape[1] * hidden.shape[3]
    return tf.reshape(tf.transpose(hidden, [0, 2, 1, 3]), [shape[0], shape[2], width])


def _rotated(hidden: Any) -> Any:
    """Map (x1, x2) to (-x2, x1), in halves of the last dimension (modeling_llama.py, rotate_half)."""
    first, second = tf.split(hidden, 2, axis=-1)
    return tf.concat([-second, first], axis=-1)
