"""Memory within a step, and the waterfall from the driver's figure."""

from dataclasses import replace
from pathlib import Path

from tests.report.charts.conftest import frames_of
from tests.report.charts.drawing import numbers, said, texts
from tests.report.sample_courses import write_courses
from tests.report.sample_predictions import predicted_trials
from tests.report.sample_run import RUN_ID, completed_trial, model, spec
from tests.tools.known import known
from zerobench.common.units import format_bytes
from zerobench.config.trial.trial import Evidence
from zerobench.report.charts import course, timeline, waterfall
from zerobench.report.export.run_frames import RunFrames
from zerobench.report.figures.nvml_view import waterfall as waterfall_of
from zerobench.report.tables.figure import Figure

MIB = 2**20


def test_a_phase_says_its_peak_and_what_is_left_at_its_end(
    gpu_frames: RunFrames, gpu_figures: dict[str, Figure]
) -> None:
    figure = gpu_figures["memory-within-a-step"]
    trials = gpu_frames.trials
    trial_id = trials.loc[trials["label"] == "zero3", "trial_id"].iloc[0]
    phases = gpu_frames.phases
    (row,) = [
        row
        for _, row in phases[(phases["trial_id"] == trial_id) & (phases["phase"] == "backward")].iterrows()
        if (row["step"], row["place"]) == ("steady", "device")
    ]
    peak, live = format_bytes(row["peak_bytes"]), format_bytes(row["live_bytes"])
    assert f"zero3, backward in 158 ms: peak {peak}, {live} at the end" in said(figure)
    assert {"forward", "backward", "step"} <= set(texts(figure))


def test_samples_of_the_driver_lie_over_the_step_they_were_taken_in(gpu_figures: dict[str, Figure]) -> None:
    figure = gpu_figures["memory-within-a-step"]
    # A reading every 100 ms, of as many MiB as readings came before it. The memory step of `single` is its ninth step,
    # 1.52 s long, and begins 10.5 + 8 x 1.52 s after the start: readings 227 to 241 lie in it.
    begin = 10.5 + 8 * 1.52
    inside = [tick for tick in range(400) if begin <= tick / 10 <= begin + 1.52]
    found = [text for text in said(figure) if text.startswith("single n1 ga8, NVML: ")]
    assert [round(numbers(text.partition("NVML:")[2])[0]) for text in found] == inside
    assert "used memory by NVML" in figure.caption


def test_of_many_samples_the_peak_is_never_lost() -> None:
    samples = [timeline.Sample(float(tick), 1000 if tick == 777 else tick % 10) for tick in range(1001)]
    few = timeline.thinned(samples, 100)
    assert len(few) <= 100
    assert timeline.Sample(777.0, 1000) in few
    assert timeline.thinned(samples[:100], 100) == samples[:100]


def test_a_predicted_step_has_phases_of_equal_width_and_no_times(predicted_frames: RunFrames) -> None:
    only = [one for one in predicted_frames.figures if one.spec.evidence is Evidence.SIMULATED]
    figure = known(timeline.figure(replace(predicted_frames, figures=only)))
    [times] = [name for name in figure.table if str(name).startswith("time (")]
    assert set(figure.table[times]) == {"-"}
    assert "equal width" in figure.caption
    assert not any("seconds" in text for text in texts(figure))


def test_the_waterfall_is_that_of_the_fullest_device_and_adds_up(
    gpu_frames: RunFrames, gpu_figures: dict[str, Figure]
) -> None:
    figure = gpu_figures["nvml-to-categories"]
    ranks = gpu_frames.ranks
    fullest = ranks["trial_id"].iloc[int(ranks["nvml_used_peak_bytes"].astype(float).argmax())]
    found = known(waterfall_of(gpu_frames.run(str(gpu_frames.trials["run_id"].iloc[0])).trial(str(fullest))))
    steps = waterfall.steps_of(found)
    levels = [step for step in steps if step.colour == "none"]
    assert [step.name for step in levels] == ["used (NVML)", "reserved by torch", "tensors"]
    for level, below in zip(levels, [*levels[1:], None], strict=True):
        parts = steps[steps.index(level) + 1 : steps.index(below) if below else None]
        assert level.num_bytes - sum(part.num_bytes for part in parts) == (below.num_bytes if below else 0)
    assert f"used (NVML): {format_bytes(found.used_bytes)}, 100% of used memory" in said(figure)
    assert f"CUDA context: {format_bytes(514 * MIB)}" in " ".join(said(figure))
    assert len(figure.table) == len(steps)


def test_on_cpus_the_step_is_drawn_without_samples(cpu_frames: RunFrames) -> None:
    figure = known(timeline.figure(cpu_frames))
    assert not any("NVML" in text for text in said(figure))
    assert set(figure.table.iloc[:, -1]) == {"-"}
    assert set(figure.table["trial"]) == set(cpu_frames.trials["label"])


def test_a_step_that_would_flatten_the_others_has_an_axis_of_its_own(tmp_path: Path) -> None:
    few = [completed_trial(spec(name)) for name in ("zero1", "zero2")]
    frames = frames_of(tmp_path, [*few, completed_trial(spec("zero1", model=model("large", 48, 6400)))], samples=False)
    alone = [text for text in texts(timeline.figure(frames)) if "(own axis)" in text]
    assert len(alone) == 1
    assert "(own axis)" not in " ".join(texts(timeline.figure(frames_of(tmp_path / "two", few, samples=False))))


def test_the_course_of_a_step_is_drawn_by_category_with_its_peak_and_sites(tmp_path: Path) -> None:
    trials = predicted_trials()
    frames = frames_of(tmp_path, trials, samples=False)
    assert course.figure(frames) is None
    write_courses(frames.run(RUN_ID).folder, {trials[at].spec.trial_id: top for at, top in enumerate((3, 900, 4))})
    figure = known(course.figure(frames))
    label = {one.trial_id: one.marked_label for one in frames.figures}[trials[0].spec.trial_id]
    site = "main allocation site: deepspeed/engine.py:step"
    assert f"{label}, optimizer step, gradients: up to 3.00 MiB\n{site}" in said(figure)
    assert {"start-up", "forward", "backward", "optimizer step", "peak 4.00 MiB", "peak 901.00 MiB"} <= set(
        texts(figure)
    )
    assert [text for text in texts(figure) if "(own axis)" in text] != []
    assert list(figure.table.columns) == ["trial", "phase", "category", "largest (MiB)", "main allocation site"]
    drawn_by_blocks = known(timeline.figure(frames))
    assert label not in set(drawn_by_blocks.table["trial"])
