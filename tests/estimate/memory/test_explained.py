"""Closed forms explain records without parts: their own to the byte, and nothing that they do not come near to."""

import pytest

from tests.report.predicted_trial import asked
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import OwnScript, TrialSpec
from zerobench.estimate.memory.explained import Account, closed_form_params, explained
from zerobench.estimate.memory.record import formula_record
from zerobench.estimate.memory.terms.activations import activations

ACTIVATIONS, REDUCE, WEIGHTS = Category.ACTIVATIONS, Category.REDUCE_BUFFERS, Category.MASTER_WEIGHTS


def terms(spec: TrialSpec, category: Category, nbytes: int, phase: Phase = Phase.BACKWARD) -> Account:
    return explained(spec, category, nbytes, StepKind.STEADY, phase, Place.DEVICE, on_gpu=True)


@pytest.mark.parametrize("category", [Category.PARAMETERS, REDUCE, WEIGHTS, Category.INPUTS])
def test_the_terms_of_a_closed_form_are_its_own_bytes(category: Category) -> None:
    spec = asked("zero3", evidence="formula")
    [row] = [
        row
        for row in formula_record(spec, plays_allocator=False).memory
        if (row.step, row.phase, row.place, row.category) == (StepKind.STEADY, Phase.BACKWARD, Place.DEVICE, category)
    ]
    nbytes = row.at_peak_bytes or 0
    assert nbytes > 0
    assert sum(term.nbytes for term in terms(spec, category, nbytes)) == nbytes


def test_bytes_far_from_every_instant_have_no_terms() -> None:
    spec = asked("zero3")
    near = sum(term.nbytes for term in terms(spec, REDUCE, 1_000_000_000))
    assert near == 1_000_000_000
    assert terms(spec, REDUCE, 3_000_000_000) == ()


def test_layers_whose_activations_are_freed_are_counted_off() -> None:
    spec = asked("zero2")
    [layer, *_] = activations(spec).layers
    [term] = terms(spec, ACTIVATIONS, 5 * layer)
    assert term.nbytes == 5 * layer
    assert "x 5 of " in term.words


@pytest.mark.parametrize(
    "fields",
    [
        {"model": ModelSpec(name="odd", hf_config={"model_type": "never_heard_of"})},
        {"own": OwnScript(name="train", unknown=("micro_batch_size",))},
    ],
)
def test_a_trial_without_closed_forms_has_no_terms(fields: dict[str, object]) -> None:
    spec = asked("zero3").model_copy(update=fields)
    assert terms(spec, Category.PARAMETERS, 10**6) == ()
    assert terms(spec, ACTIVATIONS, 10**6) == ()
    assert closed_form_params(spec) is None
