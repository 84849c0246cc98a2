"""The frames that every view is rendered from."""

import shutil
from pathlib import Path

import pytest

from tests.report.export.at_hand import trials_frame
from tests.report.sample_run import RUN_ID, completed_trial, sample_trials, spec, write_run
from tests.tools.at_least_one import at_least_one
from zerobench.common.vocabulary import Place
from zerobench.records.store import load_run
from zerobench.report.export import schema, tidy_tables
from zerobench.report.export.run_frames import RunFrames, run_frames

FRAMES = {
    "trials": schema.SUMMARY,
    "peaks": schema.PEAKS,
    "ranks": schema.RANKS,
    "phases": schema.PHASES,
    "steps": schema.STEPS,
    "errors": schema.ERRORS,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample run."""
    path = tmp_path_factory.mktemp("reports") / RUN_ID
    write_run(path, sample_trials())
    return path


@pytest.fixture(scope="module")
def frames(folder: Path) -> RunFrames:
    """Its frames."""
    return run_frames([load_run(folder)])


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_has_the_columns_and_dtypes_of_its_schema_even_when_empty(frames: RunFrames, name: str) -> None:
    for found in (getattr(frames, name), getattr(run_frames([]), name)):
        assert found.dtypes.astype(str).to_dict() == dict(FRAMES[name])


def test_every_trial_is_there_and_has_what_the_tidy_table_says(frames: RunFrames) -> None:
    tidy = trials_frame(sample_trials())
    same = frames.trials[list(schema.TRIALS)]
    assert same.equals(tidy)
    assert set(frames.trials["status"]) == {"completed", "out_of_device_memory", "timeout", "skipped"}
    assert frames.trials["label"].is_unique


def test_the_categories_at_a_peak_add_up_to_the_peak_of_that_rank(frames: RunFrames) -> None:
    on_device = frames.peaks[frames.peaks["place"] == Place.DEVICE.value]
    summed = on_device.groupby(["run_id", "trial_id", "rank"])["bytes"].sum()
    peaks = frames.ranks.set_index(["run_id", "trial_id", "rank"])["device_peak_bytes"]
    assert len(summed) == (frames.trials["status"] == "completed").sum()
    assert (summed == peaks.loc[summed.index]).all()
    largest = frames.ranks.groupby(["run_id", "trial_id"])["device_peak_bytes"].max()
    assert (summed.droplevel("rank") == largest.loc[summed.droplevel("rank").index]).all()


def test_phases_of_the_steady_step_follow_each_other_on_the_clock(frames: RunFrames) -> None:
    steady = frames.phases[(frames.phases["step"] == "steady") & (frames.phases["place"] == "device")]
    for _, trial in at_least_one(steady.groupby("trial_id")):
        assert list(trial["phase"]) == ["forward", "backward", "step"]
        assert (trial["start_s"].to_numpy()[1:] >= trial["end_s"].to_numpy()[:-1]).all()
        assert (trial["peak_bytes"] >= trial["live_bytes"]).all()


def test_losses_that_disagree_are_marked_as_such(frames: RunFrames) -> None:
    judged = frames.trials.dropna(subset="loss_parity_holds")
    assert list(judged.loc[~judged["loss_parity_holds"], "label"]) == ["zero1 mb4 ga2"]


def test_gradients_of_another_size_are_marked_beside_losses_that_agree(tmp_path: Path) -> None:
    trials = [
        completed_trial(spec(f"zero{stage}"), norm_factor=factor) for stage, factor in ((1, 1.0), (2, 1.0), (3, 2.0))
    ]
    write_run(tmp_path / RUN_ID, trials, samples=False)
    found = run_frames([load_run(tmp_path / RUN_ID)]).trials
    assert list(found["norm_parity"].fillna(-1)) == pytest.approx([-1, 0, 1])
    assert list(found["norm_parity_holds"].fillna(value=True)) == [True, True, False]
    assert list(found["loss_parity_holds"].fillna(value=True)) == [True, True, True]


def test_a_prediction_says_which_gpu_it_is_about_and_how_much_that_holds(tmp_path: Path) -> None:
    asked = spec("zero2", evidence="simulated", prediction={"gpu": "H200 SXM"})
    write_run(tmp_path / RUN_ID, [completed_trial(asked).with_record(nvml=[])], samples=False)
    [trial] = run_frames([load_run(tmp_path / RUN_ID)]).trials.to_dict("records")
    assert (trial["evidence"], trial["gpu"]) == ("simulated", "H200 SXM")
    assert trial["capacity_bytes"] == 143_156 * 2**20


def test_trials_and_runs_are_told_apart_where_two_runs_have_the_same(
    folder: Path, frames: RunFrames, tmp_path: Path
) -> None:
    again = tmp_path / "sample_20260103-000000"
    shutil.copytree(folder, again)
    for document in (again / "plan.json", *again.glob("trials/*/record.json")):
        document.write_text(document.read_text().replace(RUN_ID, again.name))
    both = run_frames([load_run(folder), load_run(again)])
    assert both.trials["label"].is_unique
    assert list(both.trials["label"][: len(frames.trials)]) == [f"{name} @ A" for name in frames.trials["label"]]
    assert both.letters_sentence == f"Runs: A is {RUN_ID}, B is {again.name}"
    assert not frames.letters_sentence
    assert [both.run(name).run_id for name in (RUN_ID, again.name)] == [RUN_ID, again.name]


def test_rows_become_columns_some_at_a_time_and_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidy_tables, "_ROWS_AT_ONCE", 2)
    table = tidy_tables.rows_table({"rank": schema.INTEGER}, ({"rank": rank} for rank in range(5)))
    assert table["rank"].to_pylist() == [0, 1, 2, 3, 4]
    assert table["rank"].num_chunks == 3
