"""The report of a validation: every figure and every mistake by name, alike in the terminal and in Markdown."""

from collections.abc import Sequence
from functools import partial

import pytest
from rich.cells import cell_len

from tests.estimate.time import predicted_trials as predicted_trials_of_gpus
from tests.report.sample_predictions import FORWARD, asked, ledger, measured, predicted, predicted_trials
from tests.report.sample_run import SampleTrial, completed_trial, failed_trial
from tests.tools.printed import printed
from zerobench.common.vocabulary import Category
from zerobench.config.trial.trial import TrialSpec
from zerobench.records.records import Failure
from zerobench.report.documents.markdown import document
from zerobench.report.documents.terminal import print_parts
from zerobench.report.figures.predictions.predicted import join
from zerobench.report.tables.part import Listing, Part
from zerobench.report.tables.validation import validation_answer, validation_parts
from zerobench.report.words.labels import labels

PARAMETERS = Category.PARAMETERS


def parts_of(trials: Sequence[SampleTrial]) -> list[Part]:
    """The report on these trials."""
    specs = [trial.spec for trial in trials]
    names = {spec.trial_id: name for spec, name in zip(specs, labels(specs), strict=True)}
    return list(validation_parts(trials, join(trials), names))


def shown(parts: Sequence[Part], width: int = 80) -> str:
    return printed(partial(print_parts, parts), width)


def two_trials() -> list[SampleTrial]:
    """One prediction 10% too large, one 5% too small at the peak."""
    works = [asked("zero1"), asked("zero2")]
    reals = [measured(work, ledger(FORWARD, {PARAMETERS: (1000, 2000)})) for work in works]
    said = [
        predicted(work, ledger(FORWARD, {PARAMETERS: sizes}))
        for work, sizes in zip(works, [(1100, 2200), (1000, 1900)], strict=True)
    ]
    return [*reals, *said]


def test_the_error_table_has_a_row_for_each_quantity_and_phase() -> None:
    lines = [line.split() for line in shown(parts_of(two_trials()), 140).splitlines()]
    assert ["live", "forward", "2", "5.00%", "+10.00%", "-", "zero1", "simulated", "-"] in lines
    assert ["peak", "forward", "2", "7.50%", "+10.00%", "-5.00%", "zero1", "simulated", "zero2", "simulated"] in lines
    assert ["peak", "all", "2", "7.50%", "+10.00%", "-5.00%", "zero1", "simulated", "zero2", "simulated"] in lines


def test_under_predictions_are_apart_and_named_with_their_cell() -> None:
    text = shown(parts_of(two_trials()))
    assert "Under-predictions beyond 1%: 1\n" in text
    words = "- zero2 simulated, forward, device peak: -5.00% (1.86 KiB predicted, 1.95 KiB measured)"
    assert words in " ".join(text.split())


def test_on_cpus_refusals_are_not_applicable() -> None:
    assert "Refusals: not applicable" in shown(parts_of(two_trials()))


def test_what_is_not_compared_is_named_with_its_reason() -> None:
    work = asked("zero3")
    trials = [*two_trials(), failed_trial(work, Failure(message="killed")), predicted(work, [])]
    text = shown(parts_of(trials), 140)
    assert "- zero3: did not complete (out of device memory): killed" in text
    assert "simulated: 3 trials, 3 completed, 2 predictions compared" in text


def test_many_mistakes_are_counted_where_they_are_not_named() -> None:
    works = [asked(micro_batch_size=1 + index) for index in range(23)]
    reals = [measured(work, ledger(FORWARD, {PARAMETERS: (100, 100)})) for work in works]
    said = [predicted(work, ledger(FORWARD, {PARAMETERS: (50, 50)})) for work in works]
    text = shown(parts_of([*reals, *said]))
    assert "Under-predictions beyond 1%: 23" in text
    assert text.count("-50.00% (50 B predicted") == 20
    assert "and 3 more: see errors.csv" in text


@pytest.mark.parametrize("width", [80, 140])
def test_no_line_is_wider_than_the_terminal_and_no_number_is_cut(width: int) -> None:
    text = shown(parts_of(predicted_trials()), width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert "…" not in text


def test_markdown_has_the_cells_of_the_terminal() -> None:
    parts = parts_of(two_trials())
    lines = document("Run 7", parts, level=1).splitlines()
    assert lines[0] == "# Run 7"
    assert "## Simulated against measured: device memory" in lines
    assert "| peak | forward | 2 | 7.50% | +10.00% | -5.00% | zero1 simulated | zero2 simulated |" in lines
    assert "| --- | --- | ---: | ---: | ---: | ---: | --- | --- |" in lines
    listing = next(part.table for part in parts if isinstance(part.table, Listing))
    headers = ["quantity", "phase", "cells", "median", "over", "under", "worst over", "worst under"]
    assert [column.header for column in listing.columns] == headers


@pytest.mark.parametrize(("times", "error", "inside"), [(0.5, 0.89, "no"), (1.0, -0.055, "yes"), (2.0, -0.53, "no")])
def test_expected_steps_stand_beside_measured_ones_inside_of_their_interval_or_not(
    times: float, error: float, inside: str
) -> None:
    """The sample's slowest rank takes a little longer than its step."""
    said = predicted_trials_of_gpus.predicted(micro_batch_size=2)
    expected = predicted_trials_of_gpus.expected(said).step_s
    work = TrialSpec.model_validate({**said.spec.model_dump(), "evidence": "measured"})
    text = shown(parts_of([completed_trial(work, step_s=expected * times), said]), 140)
    [line] = [line.split() for line in text.partition("Step time")[2].splitlines() if line.startswith("formula")]
    assert float(line[-2].rstrip("%")) / 100 == pytest.approx(error, abs=0.01)
    assert line[-1] == inside


def test_on_a_narrow_terminal_each_time_has_its_trial_its_unit_and_its_interval() -> None:
    said = predicted_trials_of_gpus.predicted(micro_batch_size=2)
    expected = predicted_trials_of_gpus.expected(said)
    work = TrialSpec.model_validate({**said.spec.model_dump(), "evidence": "measured"})
    text = shown(parts_of([completed_trial(work, step_s=expected.step_s), said]), 80).partition("Step time")[2]
    assert "trial  " in text
    assert "expected ms" in text
    assert f"{1e3 * expected.low_s:.1f}" in text
    assert f"{1e3 * expected.high_s:.1f}" in text


def test_on_cpus_no_step_time_is_expected_and_the_answer_says_so() -> None:
    assert "Step time" not in shown(parts_of(two_trials()))
    answer = validation_answer(join(two_trials()), {trial.spec.trial_id: "it" for trial in two_trials()})
    assert answer.points[0] == "Step time: none is expected of CPU ranks"
