"""Training FLOPs per token in closed form, the numerator of MFU.

PaLM (Chowdhery et al. 2022, arXiv:2204.02311, appendix B) counts 6 N + 12 L H Q T FLOPs a token for forward and
backward: every weight is multiplied and added once forward and twice backward, and so is every attention score with
each of T positions (L layers, H heads of size Q). Recomputation to save memory is not counted, and the causal mask is
not subtracted, as in PaLM and in Megatron-LM (Narayanan et al. 2021, arXiv:2104.04473, equation 3, of which this is the
dense case).

This applies if all weights are trained. Frozen ones are counted by the backward pass that is computed (backward.py).

N here is all parameters but the tables that are only looked up: positional embeddings, and token embeddings unless they
are also the output head. It includes biases and norms, below 0.1% of it in practical models.
"""

import math

from zerobench.config.models.architecture import complete, dimensions
from zerobench.config.models.parameters import ParameterCounts, count_parameters
from zerobench.config.trial.backward import BackwardPass
from zerobench.config.trial.model import ModelSpec

MODEL_FORMULA = "6*N + 12*L*H*Q*s per token (PaLM appendix B; N without looked-up embeddings)"
"""N parameters, L layers, H heads of size Q, s tokens of the sequence."""

FROZEN_FORMULA = (
    "2*N + 2*N_trained + 2*N_passed + (4 + 8*share)*L*H*Q*s per token (N_passed: weights through which a gradient is "
    "passed on to trained ones before them; share: of attention's backward products)"
)
"""The same with frozen weights; without any it equals 6*N + 12*L*H*Q*s."""

Flops = tuple[float, str] | tuple[None, None]
"""FLOPs per token and the formula's name; both None where not available."""

_DENSE_DECODERS = frozenset(
    (
        *("bloom", "codegen", "cohere", "falcon", "gemma", "glm", "glm4", "gpt2", "gpt_bigcode", "gpt_neox"),
        *("gptj", "granite", "helium", "llama", "mistral", "mpt", "nemotron", "olmo", "olmo2", "opt"),
        *("persimmon", "phi", "phi3", "qwen2", "qwen3", "smollm3", "stablelm", "starcoder2"),
    )
)
"""Decoders in which every weight is applied to every token and all layers attend alike."""


def model_flops_per_token(
    spec: ModelSpec,
    sequence_length: int,
    counts: ParameterCounts | None = None,
    backward: BackwardPass | None = None,
) -> Flops:
    """Model FLOPs of one token in a sequence of `sequence_length` tokens, forward and backward, and the formula's name.

    `counts`: parameters of the model as built, for architectures without a closed form; `backward`: computed parts of
    the backward pass, if some weights are frozen. Both results are None if the formula does not apply or a dimension is
    unknown (mixtures of experts, state-space layers).
    """
    attention = _attention_products(spec, sequence_length)
    counts = counts or count_parameters(spec)
    if attention is None or counts is None:
        return None, None
    if backward is None:
        return 6.0 * _multiplied(counts) + 12.0 * attention, MODEL_FORMULA
    products = 2.0 * (_multiplied(counts) + backward.trained + backward.passed)
    return products + (4.0 + 8.0 * backward.attention_share) * attention, FROZEN_FORMULA


def _multiplied(counts: ParameterCounts) -> int:
    """N: parameters multiplied with a token; a tied token embedding is the head."""
    looked_up = counts.positional_embeddings + (counts.token_embeddings if counts.head else 0)
    return counts.total - looked_up


def _attention_products(spec: ModelSpec, sequence_length: int) -> int | None:
    """L*H*Q*s, where s is the number of positions that a token's query is multiplied with."""
    size = dimensions(spec)
    positions = _attended_positions(spec, sequence_length)
    if spec.model_type not in _DENSE_DECODERS:
        return None
    factors = (size.num_layers, size.num_heads, size.head_dim, positions)
    known = [factor for factor in factors if factor is not None]
    return math.prod(known) if len(known) == len(factors) else None


def _attended_positions(spec: ModelSpec, sequence_length: int) -> int | None:
    """Positions a token attends to: the sequence, or mistral's window; None if only some layers have a window."""
    config = complete(spec)
    window = config.get("sliding_window")
    if not isinstance(window, int) or config.get("use_sliding_window") is False or window >= sequence_length:
        return sequence_length
    return window if spec.model_type == "mistral" else None
