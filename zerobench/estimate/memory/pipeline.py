"""Memory, sends and receives of a stage of a pipeline, in closed forms.

Of a micro-batch that is under way a stage keeps what its blocks save, and beside it what it handed on, until the
gradient of that comes back (torch/distributed/pipelining/stage.py, `fwd_cache`). It has a buffer for what it receives
of each micro-batch of a step, which stays from the first step on (`_RecvInfo`).
"""

from __future__ import annotations

from dataclasses import replace

from zerobench.common.vocabulary import Category, Phase, StepKind
from zerobench.config.derived.batch import micro_batches_of_share
from zerobench.config.derived.pipeline import is_last_stage, micro_batches_in_flight, own_blocks
from zerobench.config.models.architecture import complete
from zerobench.config.models.tensors import parameter_tensors
from zerobench.config.trial.trial import PipelineSchedule, TrialSpec
from zerobench.estimate.memory.deepspeed.setting import Instants, Setting
from zerobench.estimate.memory.deepspeed.stage_0 import plain_device
from zerobench.estimate.memory.terms.activations import Activations, Logits, activations, trial_logits, trial_shape
from zerobench.estimate.memory.terms.terms import Bytes, Terms, add, hold
from zerobench.estimate.memory.torch_strategies import CollectiveVolume


def passes_with_gradients(trial: TrialSpec) -> int:
    """Micro-batches of a step, less those that are under way before the first has a gradient, and that one."""
    return micro_batches_of_share(trial) - micro_batches_in_flight(trial, trial.prediction.rank) + 1


def stage_activations(trial: TrialSpec) -> Activations:
    """Activations that the predicted rank keeps of one micro-batch: of its blocks, and all that they give to the next
    stage; of the last one what comes after them.
    """
    shape, blocks = trial_shape(trial), own_blocks(trial)
    kept = activations(trial)
    handed_on = shape.element * shape.tokens * shape.hidden_size
    return replace(
        kept,
        outside_layers_bytes=kept.outside_layers_bytes if is_last_stage(trial) else handed_on,
        layers=kept.layers[blocks.start : blocks.stop],
        again=kept.again[blocks.start : blocks.stop],
    )


def stage_logits(trial: TrialSpec) -> Logits:
    """Logits of the last stage, which keeps those too that it would hand on; none of the others."""
    if not is_last_stage(trial):
        return Logits(0, 0, 0, 0)
    shape, logits = trial_shape(trial), trial_logits(trial)
    handed_on = shape.element * shape.tokens * shape.vocab_size
    return replace(
        logits,
        saved_bytes=logits.saved_bytes + handed_on,
        backward_peak_bytes=logits.backward_peak_bytes + handed_on,
        gradient_bytes=logits.gradient_bytes + handed_on,
    )


def stage_device(trial: TrialSpec, setting: Setting, step: StepKind) -> Instants:
    """As the plain loop over the stage's own tensors, beside what it receives in and other micro-batches keep."""
    instants, rank = plain_device(setting, step), trial.prediction.rank
    buffers, others = _buffers(trial), micro_batches_in_flight(trial, rank) - 1
    kept, logits = stage_activations(trial), stage_logits(trial)

    words = f"of {others} micro-batches more under way"
    under_way = add(
        hold(Category.ACTIVATIONS, others * kept.saved_bytes, words),
        hold(Category.LOGITS_AND_LOSS, others * logits.saved_bytes, words),
    )

    def among(held: Bytes) -> Terms:
        return add(held, buffers, under_way)

    next_loss = logits.backward_peak_bytes - logits.saved_bytes if others else 0
    is_filled = passes_with_gradients(trial) > 1
    sent_back = _hidden(trial, int(rank > 0 and is_filled), _SENT_BACK)
    left = add(buffers, _hidden(trial, _sent_last(trial) if rank else 0, _SENT_BACK))
    return Instants(
        init=instants.init,
        gathering=add(among(instants.gathering), sent_back, _at_work(trial, 3, 2) if any(kept.again) else {}),
        forward=add(among(instants.forward), sent_back),
        first_gradient=add(among(instants.first_gradient), sent_back),
        bucketed=add(among(instants.bucketed), sent_back, {} if is_last_stage(trial) else _at_work(trial, 2, 1)),
        reduction=tuple(add(instant, left, under_way, _loss(next_loss)) for instant in instants.reduction),
        backward_end=add(instants.backward_end, left),
        step=tuple(add(instant, buffers) for instant in instants.step),
    )


_SENT_BACK = "gradients on their way back"


def _sent_last(trial: TrialSpec) -> int:
    """Micro-batches whose gradients a stage still holds when its last pass ends: under GPipe all, which it waits for
    then, else the last and the one before (torch/distributed/pipelining/schedules.py).
    """
    micro_batches = micro_batches_of_share(trial)
    return micro_batches if trial.pipeline_schedule is PipelineSchedule.GPIPE else min(2, micro_batches)


def _at_work(trial: TrialSpec, wide: int, narrow: int) -> Terms:
    """Temporaries of a block at work: tensors of the MLP's width, and of hidden states.

    Three and two in a forward pass that will be run again, two gradients and one in backward. The last stage has more
    in its logits.
    """
    shape = trial_shape(trial)
    elements = shape.tokens * (wide * shape.intermediate_size + narrow * shape.hidden_size)
    return hold(Category.TEMPORARIES, shape.element * elements, "of the block at work")


def _loss(nbytes: int) -> Terms:
    return hold(Category.LOGITS_AND_LOSS, nbytes, "of the next micro-batch")


def _buffers(trial: TrialSpec) -> Terms:
    """For hidden states from the stage before, and for gradients from the one after, of each micro-batch."""
    micro_batches = micro_batches_of_share(trial)
    return add(
        _hidden(trial, 0 if trial.prediction.rank == 0 else micro_batches, "buffers to receive activations in"),
        _hidden(trial, 0 if is_last_stage(trial) else micro_batches, "buffers to receive gradients in"),
    )


def _hidden(trial: TrialSpec, count: int, what: str) -> Terms:
    shape = trial_shape(trial)
    nbytes = shape.element * shape.tokens * shape.hidden_size
    return hold(Category.PIPELINE_BUFFERS, count * nbytes, f"{what}: {count} micro-batches x {nbytes:,} bytes")


def stage_moves(trial: TrialSpec) -> tuple[CollectiveVolume, ...]:
    """Elements that the predicted rank sends to the stages beside it and receives from them."""
    shape, times = trial_shape(trial), micro_batches_of_share(trial)
    before, after = trial.prediction.rank > 0, not is_last_stage(trial)
    asked = (
        (Phase.FORWARD, "recv", before),
        (Phase.FORWARD, "send", after),
        (Phase.BACKWARD, "recv", after),
        (Phase.BACKWARD, "send", before),
    )
    each = shape.tokens * shape.hidden_size
    return tuple(CollectiveVolume(phase, kind, times, times * each) for phase, kind, there in asked if there)


def shared_elements(trial: TrialSpec) -> int:
    """Elements of the gradient that the first and the last stage sum, of an embedding that is the head too."""
    is_shared = bool(complete(trial.model)["tie_word_embeddings"]) and (
        trial.prediction.rank == 0 or is_last_stage(trial)
    )
    return parameter_tensors(trial.model)[0] if is_shared else 0
