"""A prediction names the releases that it is of, and what an earlier transformers needs beside it."""

from dataclasses import replace
from typing import Any

import pytest

from tests.report.predicted_trial import asked, trial
from tests.report.sample_run import SampleTrial
from zerobench.common.vocabulary import Category, Phase, StepKind
from zerobench.report.figures.notes import sentences
from zerobench.report.figures.software import (
    FORMULAS_OF,
    OTHERS_DIFFER,
    installed,
    logits_notes,
    predicted_with,
    releases,
)

ENVIRONMENT = {
    "versions": {"torch": "2.13.0+cpu", "deepspeed": "0.19.8", "transformers": "5.23.0", "peft": "0.19.0"},
    "emulator": {"torch": "2.13.0+cu130"},
}
OWN = {"torch": "2.12.1+cu130", "transformers": "4.48.3", "peft": "0.14.0", "accelerate": "1.2"}
FIVE = {"transformers": "5.23.0"}


def predicted(
    versions: dict[str, str] | None = None, *, logits_bytes: int = 10, rest_bytes: int = 90, **fields: Any
) -> SampleTrial:
    held = {Category.LOGITS_AND_LOSS: logits_bytes, Category.ACTIVATIONS: rest_bytes}
    found = trial(asked(**fields), {(StepKind.STEADY, Phase.BACKWARD): held})
    return replace(found, ranks=[rank.model_copy(update={"versions": versions or {}}) for rank in found.ranks])


def test_what_acted_in_the_ranks_is_named_whatever_is_installed_beside() -> None:
    assert predicted_with(ENVIRONMENT, [predicted(OWN)]) == [
        "predicted with: torch 2.12.1+cu130, transformers 4.48.3, PEFT 0.14.0, accelerate 1.2" + OTHERS_DIFFER
    ]
    assert releases([predicted(OWN)]) == OWN


def test_an_older_record_is_of_the_engine_that_its_run_had() -> None:
    assert predicted_with(ENVIRONMENT, [predicted()]) == [
        "predicted with: DeepSpeed 0.19.8, torch 2.13.0+cpu, transformers 5.23.0; other releases may differ"
    ]
    assert installed(ENVIRONMENT) == "DeepSpeed 0.19.8, torch 2.13.0+cpu, transformers 5.23.0"


def test_trials_of_several_releases_name_them_all() -> None:
    assert releases([predicted(OWN), predicted(FIVE)])["transformers"] == "4.48.3 or 5.23.0"


def test_of_emulated_trials_the_cuda_build_that_they_ran_is_named_once() -> None:
    engine, emulated = predicted_with(ENVIRONMENT, [predicted(evidence="emulated")])
    assert engine.startswith("predicted with: DeepSpeed 0.19.8, torch 2.13.0+cpu")
    assert emulated == "emulated with: torch 2.13.0+cu130; other releases may differ"
    assert len(predicted_with(ENVIRONMENT, [predicted({"torch": "2.13.0+cu130"}, evidence="emulated")])) == 1


@pytest.mark.parametrize(
    ("evidence", "begins"), [("measured", []), ("solo", ["predicted with"]), ("simulated", ["predicted with"])]
)
def test_what_was_measured_is_no_prediction(evidence: str, begins: list[str]) -> None:
    prediction: dict[str, Any] = {} if evidence == "simulated" else {"prediction": {}}
    said = predicted_with(ENVIRONMENT, [predicted(OWN, evidence=evidence, **prediction)])
    assert [line.partition(":")[0] for line in said] == begins


def test_formulas_are_of_the_releases_whose_source_they_were_read_in() -> None:
    [line] = predicted_with(ENVIRONMENT, [predicted(evidence="formula")])
    assert line == f"by formula: for {FORMULAS_OF}; other releases may differ"
    assert "transformers 5" in FORMULAS_OF


def test_where_logits_weigh_a_note_says_what_transformers_4_needs_more() -> None:
    """One sequence of 1,024 tokens, 50,257 words, four bytes each."""
    note = (
        "transformers 4.x needs up to 196.32 MiB more for logits (it keeps an fp32 copy, or makes a shifted one); "
        "predicted for transformers 5.23.0"
    )
    found = predicted(FIVE)
    assert list(logits_notes(found)) == [note]
    assert note in list(sentences(found))


@pytest.mark.parametrize(
    ("versions", "fields"),
    [
        (FIVE, {"logits_bytes": 9, "rest_bytes": 91}),
        ({"transformers": "4.48.3"}, {}),
        ({"torch": "2.13.0"}, {}),
        (FIVE, {"cross_entropy": "chunked"}),
        (FIVE, {"evidence": "measured", "prediction": {}}),
    ],
    ids=["below a tenth", "of transformers 4 itself", "without transformers", "a loss of its own", "measured"],
)
def test_elsewhere_there_is_no_such_note(versions: dict[str, str], fields: dict[str, Any]) -> None:
    assert list(logits_notes(predicted(versions, **fields))) == []
