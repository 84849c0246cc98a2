"""The ZeRO paper's terms (zerobench.config.derived.zero_paper) as tables show them beside what was measured.

With hpZ the ZeRO++ paper's second copy of the parameters is a term more; MiCS divides by its group's ranks.
"""

from dataclasses import dataclass

from zerobench.config.derived.batch import model_parallel_size
from zerobench.config.derived.sharding import state_shard_size
from zerobench.config.derived.strategy import paper_stage
from zerobench.config.derived.zero_paper import ModelStates, bytes_per_parameter, model_states, shares
from zerobench.config.derived.zeropp import second_copy_bytes
from zerobench.config.trial.optimizers import OPTIMIZERS
from zerobench.config.trial.trial import TrialSpec


@dataclass(frozen=True)
class PaperTerms(ModelStates):
    """Bytes per rank by the paper, unrounded, and the terms as the paper writes them."""

    text: str


def paper_terms(spec: TrialSpec, num_params: int | None) -> PaperTerms | None:
    """The paper's bytes per rank for `spec`; None for strategies it does not speak of, an unknown size, and
    models of which some weights are frozen.
    """
    stage = paper_stage(spec)
    cut = model_parallel_size(spec) > 1  # the paper divides states, and not the matrices of the model
    knows_bytes = spec.knows("precision") and spec.knows("optimizer")
    if cut or stage is None or num_params is None or not spec.trains_all or not knows_bytes:
        return None
    if OPTIMIZERS[spec.optimizer].has_partial_states:  # of which the terms, bytes a parameter, cannot speak
        return None
    sizes, ranks = bytes_per_parameter(spec.precision, spec.optimizer), state_shard_size(spec)
    states = model_states(num_params, ranks, stage, sizes)
    terms = list(map(_term, sizes, shares(stage, ranks)))
    copy = second_copy_bytes(num_params, spec.hpz_partition_size, sizes)
    if spec.hpz_partition_size is not None:
        terms.insert(1, _term(sizes.parameters, spec.hpz_partition_size))
    return PaperTerms(
        states.parameters_bytes + copy, states.gradients_bytes, states.optimizer_bytes, text=" + ".join(terms)
    )


def _term(size: float, share: int) -> str:
    return f"{size:g}P" if share == 1 else f"{size:g}P/{share}"
