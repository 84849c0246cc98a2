"""The expected steps of a run for Perfetto."""

import json
from pathlib import Path

import pytest

from tests.estimate.time.predicted_trials import predicted, traced
from tests.report.sample_run import write_run
from zerobench.common.errors import UserError
from zerobench.estimate.time.predicted_speed import predicted_timeline
from zerobench.records import store
from zerobench.report.export.step_timeline import write_step_timelines


def test_a_trial_is_a_process_with_a_thread_for_each_lane_and_its_spans(tmp_path: Path) -> None:
    trial = traced(predicted(num_nodes=4))
    plain = predicted(num_nodes=2)
    run = store.load_run(write_run(tmp_path / "run", [trial, plain], samples=False).path)
    assert write_step_timelines(run, tmp_path / "steps.json") == 1, "what has no trace is left out"
    events = json.loads((tmp_path / "steps.json").read_text(encoding="utf-8"))["traceEvents"]
    lanes = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
    assert set(lanes.values()) == {"compute", "communication", "exposed"}
    step = predicted_timeline(trial)
    assert step is not None
    drawn = [one for one in events if one["ph"] == "X"]
    for lane in ("compute", "communication"):
        length = sum(one["dur"] for one in drawn if lanes[one["tid"]] == lane)
        assert length == pytest.approx(1e6 * (step.total_s(lane) + step.total_s(lane, passes=False)))
    exposed = sum(one["dur"] for one in drawn if lanes[one["tid"]] == "exposed")
    assert exposed == pytest.approx(1e6 * sum(step.exposed().values()), rel=1e-6)


def test_a_run_without_traces_and_a_place_that_cannot_be_written_are_said(run: store.Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--step-timeline: no trial has a trace"):
        write_step_timelines(run, tmp_path / "steps.json")
    known = store.load_run(write_run(tmp_path / "run", [traced(predicted())], samples=False).path)
    with pytest.raises(UserError, match=r"--step-timeline: .*cannot be written"):
        write_step_timelines(known, tmp_path / "nowhere" / "steps.json")
