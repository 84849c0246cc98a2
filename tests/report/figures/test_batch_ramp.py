"""A batch that grows is shown size by size beside the fixed one; figures of the whole trial are the full batch's."""

from pathlib import Path

import pytest

from tests.report.sample_run import MIB, SampleTrial, completed_trial, spec, write_run
from tests.tools.known import known
from zerobench.records.records import StepBatch, StepTime
from zerobench.records.store import load_run
from zerobench.report.charts import batch_ramp as chart
from zerobench.report.export.run_frames import RunFrames, run_frames
from zerobench.report.figures.batch_ramp import batch_figures, ramped_and_fixed
from zerobench.report.figures.speed import full_batch_values, speed_of, step_seconds_by_rank, timed_tokens
from zerobench.report.tables.batch_ramp import batch_ramp_table
from zerobench.report.words.labels import labels

FULL = 2 * 4 * 8 * 1024
"""Two ranks, four micro-batches of eight sequences."""
RAMP = {"start_tokens": FULL // 4, "over_tokens": 4 * FULL}
STEPS = [
    ("first", FULL // 4, 900),
    ("memory", FULL // 4, 700),
    ("timed", FULL // 4, None),
    ("memory", FULL // 2, 750),
    ("timed", FULL // 2, None),
    ("timed", FULL // 2, None),
    ("memory", FULL, 760),
    ("timed", FULL, None),
    ("timed", FULL, None),
]
SECONDS = [0.2, 0.3, 0.4, 0.5, 0.7]
"""Of the timed steps, on the slower rank."""


def step(seconds: float) -> StepTime:
    return StepTime(step_s=seconds, forward_s=0.1, backward_s=0.1, optimizer_s=seconds - 0.2)


def ramped() -> SampleTrial:
    """Rank 1 is slower and holds one MiB more."""
    trial = completed_trial(spec("zero2", gpus_per_node=2, gradient_accumulation_steps=4, batch_ramp=RAMP))
    return trial.with_ranks(
        batches=lambda rank: [
            StepBatch(kind=kind, tokens=tokens, device_peak_bytes=held and (held + rank.rank) * MIB)
            for kind, tokens, held in STEPS
        ],
        step_times=lambda rank: [step(seconds - 0.01 * (1 - rank.rank)) for seconds in SECONDS],
    )


def fixed() -> SampleTrial:
    trial = completed_trial(spec("zero2", gpus_per_node=2, gradient_accumulation_steps=4))
    batches = [StepBatch(kind="memory", tokens=FULL, device_peak_bytes=770 * MIB)]
    batches += [StepBatch(kind="timed", tokens=FULL)] * len(trial.ranks[0].step_times)
    return trial.with_ranks(batches=batches)


def other() -> SampleTrial:
    """Work that nobody ramps."""
    return completed_trial(spec("zero3", gpus_per_node=2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trials = [fixed(), ramped(), other()]
    return write_run(tmp_path_factory.mktemp("runs") / "run", trials, samples=False).path


@pytest.fixture(scope="module")
def frames(folder: Path) -> RunFrames:
    return run_frames([load_run(folder)])


def test_each_size_has_the_median_of_its_steps_its_tokens_per_second_and_its_own_peak() -> None:
    small, middle, full = batch_figures(ramped())
    assert [(one.tokens, one.first_step, one.last_step, one.timed_steps) for one in (small, middle, full)] == [
        (FULL // 4, 0, 2, 1),
        (FULL // 2, 3, 5, 2),
        (FULL, 6, 8, 2),
    ]
    assert [one.step_s for one in (small, middle, full)] == pytest.approx([0.2, 0.35, 0.6])
    assert [one.tokens_per_s for one in (small, middle, full)] == pytest.approx(
        [FULL / 4 / 0.2, FULL / 2 / 0.35, FULL / 0.6]
    )
    assert [one.peak_bytes for one in (small, middle, full)] == [701 * MIB, 751 * MIB, 761 * MIB]


def test_the_figures_of_a_ramped_trial_are_those_of_its_full_batch() -> None:
    trial = ramped()
    speed = known(speed_of(trial))
    assert [one.step_s for one in speed.steps] == [0.5, 0.7]
    assert speed.tokens_per_s == pytest.approx(FULL / 0.6)
    assert step_seconds_by_rank(trial) == pytest.approx({0: 0.59, 1: 0.6})
    assert sum(timed_tokens(trial)) == FULL // 4 + 2 * (FULL // 2) + 2 * FULL
    assert full_batch_values(trial, "abcde") == ["d", "e"]


def test_records_from_before_batches_could_grow_are_of_one_size() -> None:
    trial = other()
    assert batch_figures(trial) == []
    assert timed_tokens(trial) == [2 * 8 * 1024] * 7
    assert full_batch_values(trial, "abc") == ["a", "b", "c"]


def test_a_ramped_trial_stands_beside_the_same_work_with_a_fixed_batch_and_no_other() -> None:
    trials = [other(), fixed(), ramped()]
    assert ramped_and_fixed(trials) == [fixed(), ramped()]
    assert ramped_and_fixed(trials[:2]) == []


def test_names_tell_the_ramp_from_the_fixed_batch() -> None:
    assert labels([fixed().spec, ramped().spec]) == ["zero2", f"ramp={FULL // 4}+{FULL // 4}/{4 * FULL}"]


def test_the_figure_has_a_point_and_a_row_for_each_size(frames: RunFrames) -> None:
    figure = known(chart.figure(frames))
    assert "tokens per step" in known(figure.svg)
    assert list(figure.table["tokens per step"]) == ["65,536", "16,384", "32,768", "65,536"]
    assert f"{FULL / 0.6:,.0f}" in set(figure.table["tokens/s"])


def test_a_run_without_a_ramp_has_no_such_table_or_figure(tmp_path: Path) -> None:
    plain = run_frames([load_run(write_run(tmp_path / "run", [fixed(), other()], samples=False).path)])
    assert chart.figure(plain) is None
    assert batch_ramp_table(plain.figures).lines == []
