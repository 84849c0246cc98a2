"""What of a trial's model is trained, as the time model takes it."""

from __future__ import annotations

from collections import Counter

from zerobench.config.models.architecture import dimensions
from zerobench.config.models.tensors import Matrix, named_weights
from zerobench.config.trial.adapter import Lora, lora_of
from zerobench.config.trial.backward import Use, uses
from zerobench.config.trial.trial import TrialSpec
from zerobench.estimate.memory.terms.passes import adapted_weights, frozen_backward
from zerobench.estimate.time.timing_tuned import Tuned, TunedMatrix


def tuned_of(spec: TrialSpec) -> Tuned | None:
    """None where every weight is trained."""
    backward = frozen_backward(spec)
    if backward is None:
        return None
    lora = None if spec.adapter is None else lora_of(spec.adapter)
    weights = named_weights(spec.model, spec.frozen)
    used = list(uses(weights.all if lora is None else adapted_weights(spec), depends=spec.passes_all))
    inside = {weight.name for block in weights.blocks for weight in block}
    blocks = Counter(
        _tuned(use, use.weight.size, lora)
        for use in used
        if use.weight.name in inside and isinstance(use.weight.size, Matrix)
    )
    return Tuned(
        blocks,
        _head(spec, used[-1], is_trained=lora is None and used[-1].weight.is_trained),
        1.0 if spec.passes_all else 1 - weights.first_passed / len(weights.blocks),
        1.0 if spec.passes_all else backward.attending_share,
        None if lora is None else lora.base,
    )


def _tuned(use: Use, matrix: Matrix, lora: Lora | None) -> TunedMatrix:
    if lora is None:
        return TunedMatrix(matrix.inputs, matrix.outputs, use.weight.is_trained, use.passes_on)
    rank = lora.rank * use.weight.is_trained
    return TunedMatrix(matrix.inputs, matrix.outputs, False, use.passes_on, rank, lora.dtype is not None)


def _head(spec: TrialSpec, use: Use, *, is_trained: bool) -> TunedMatrix:
    sizes = dimensions(spec.model)
    return TunedMatrix(sizes.hidden_size or 0, sizes.vocab_size or 0, is_trained, use.passes_on)
