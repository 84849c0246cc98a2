"""Changes that make a trial fit: those that are shown fit, cost what the time model says, and are as few as can be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.app.search.by_arithmetic import predict_by_arithmetic
from tests.report.sample_run import GIB, SampleTrial, trial_record
from tests.tools.kept_simulator import Kept
from tests.tools.known import known
from tests.tools.no_emulator import no_emulator  # noqa: F401 -- a fixture
from zerobench.app.search import changes
from zerobench.app.search.changes import changed_trials, cluster_of, predict_changes
from zerobench.app.search.plan import Plan, read_plan
from zerobench.app.search.plan_request import PlanRequest
from zerobench.app.search.plan_world import PlanWorld
from zerobench.common.errors import UserError
from zerobench.config.trial.trial import Evidence, OwnScript
from zerobench.launch.run.observer import Observer
from zerobench.launch.run.runner import RunResult
from zerobench.records.records import NvmlDevice, NvmlSummary
from zerobench.report.explain.changes import ChangeOutcome, changes_topic, share_slower, smallest, unchanged_topic
from zerobench.report.explain.remedies import Remedy

pytestmark = pytest.mark.usefixtures("no_emulator")


def asked(**more: str) -> Plan:
    words = {"model": "gpt2-1.5b", "gpus": "8", "gpu": "a100-40", "sequence_length": "1024"}
    return read_plan(PlanRequest(**(words | more)))  # type: ignore[arg-type] # words, as the command line gives them


def test_the_changes_of_a_trial_and_of_its_own_file_are_the_same_trials(tmp_path: Path) -> None:
    plan = asked(stage="1", micro_batch="4")
    file = tmp_path / "ds.json"
    config = {"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}
    file.write_text(json.dumps(config))
    own = asked(ds_config=str(file))
    axes = ("strategy", "offload_optimizer", "offload_param", "micro_batch_size", "gradient_accumulation_steps")
    found = [
        {
            says: [getattr(trial, axis) for axis in (*axes, "activation_checkpointing", "optimizer")]
            for says, trial in changed_trials(one.planned[0].trial, one.cluster, tmp_path)
        }
        for one in (plan, own)
    ]
    assert found[0] == found[1]
    alone = {says[0]: values for says, values in found[0].items() if len(says) == 1}
    assert alone["micro batch 1 instead of 4"][3:5] == [1, 4]
    assert alone["activation checkpointing"][-2] is True
    assert alone["ZeRO stage 3"][0] == "zero3"
    assert alone["optimizer states offloaded to the host"][1] == "cpu"
    assert {trial.global_batch_size for _, trial in changed_trials(plan.planned[0].trial, plan.cluster, tmp_path)} == {
        32
    }


def test_who_is_stopped_begins_no_further_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for = []

    def stopped(*of: Any) -> RunResult:
        asked_for.append(of)
        return replace(predict_by_arithmetic(*of), interrupted=True)

    monkeypatch.setattr(changes, "predict", stopped)
    plan = asked(stage="0", micro_batch="8")
    with pytest.raises(KeyboardInterrupt):
        predict_changes(plan.planned[0].trial, plan.cluster, tmp_path, Observer())
    assert len(asked_for) == 1


def test_what_is_shown_fits_and_says_what_it_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "predict", predict_by_arithmetic)
    plan = asked(stage="0", micro_batch="8")
    found = predict_changes(plan.planned[0].trial, plan.cluster, tmp_path, Observer())
    assert found.unchanged is not None
    shown = smallest(found.changes)
    assert shown
    for one in shown:
        assert one.fits
        assert known(one.needed_bytes) <= plan.cluster.device_memory_bytes
    topic = changes_topic(found.changes)
    assert [line.text for line in topic.lines] == [one.text for one in shown]


def test_single_changes_come_first_and_of_as_many_the_fastest() -> None:
    slow, fast = ChangeOutcome(("a",), True, 1, slower=0.2), ChangeOutcome(("b",), True, 2, slower=0.1)
    both, unknown = ChangeOutcome(("a", "b"), True, 1, slower=-0.1), ChangeOutcome(("c",), True, 1)
    assert smallest([ChangeOutcome(("d",), False, 9), both, unknown, slow, fast], 4) == [fast, slow, unknown, both]
    assert fast.text == "b: 2 B per GPU, 10% slower"
    assert unknown.text.endswith("step time unknown")
    assert share_slower(3.0, 2.0) == 0.5
    assert changes_topic([ChangeOutcome(("d",), False, 9)]).title == "No change fits, of 1 predicted"


def test_what_has_no_stage_is_refused_in_one_line(tmp_path: Path) -> None:
    plan = asked(stage="1")
    trial = plan.planned[0].trial.model_copy(update={"strategy": "pipeline"})
    with pytest.raises(UserError, match="ZeRO stages only; this trial is pipeline"):
        predict_changes(trial, plan.cluster, tmp_path, Observer())


def test_a_setting_that_follows_from_a_holder_is_played_before_it_is_offered_under_any_strategy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "predict", predict_by_arithmetic)
    plan = asked(stage="3", micro_batch="4")
    limits = Remedy("fewer", "limits: 0", keys={"stage3_max_live_parameters": 0})
    shorter = Remedy("a shorter sequence_length", "sequence_length: 512", {"sequence_length": 512})
    found = predict_changes(plan.planned[0].trial, plan.cluster, tmp_path, Observer(), remedies=[limits, shorter])
    says = [change.says for change in found.changes]
    assert ("limits: 0",) in says
    assert ("sequence_length: 512",) not in says  # another training
    ddp = plan.planned[0].trial.model_copy(update={"strategy": "ddp"})
    recompute = Remedy("recompute", "activation_checkpointing: true", {"activation_checkpointing": True})
    [alone] = predict_changes(ddp, plan.cluster, tmp_path / "ddp", Observer(), remedies=[recompute]).changes
    assert (alone.says, alone.needed_bytes is not None) == (("activation_checkpointing: true",), True)


def test_a_tracked_scripts_engine_is_predicted_by_what_its_file_sets_beside_the_axes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "predict", predict_by_arithmetic)
    plan = asked(stage="1", micro_batch="4")
    engines = {
        "bf16.enabled": True,
        "train_micro_batch_size_per_gpu": 4,
        "wall_clock_breakdown": False,
        "zero_optimization.stage": 1,
        "zero_optimization.reduce_bucket_size": 1_000_000,
        "zero_optimization.round_robin_gradients": True,  # which stage 3 does not read
    }
    own = OwnScript(name="train", unknown=("data",))
    seen = plan.planned[0].trial.model_copy(update={"ds_config": engines, "own": own})
    made = dict(changed_trials(seen, plan.cluster, tmp_path))
    assert made[()].ds_config == {key: engines[key] for key in list(engines)[-2:]}
    assert list(made["ZeRO stage 3",].ds_config) == ["zero_optimization.reduce_bucket_size"]
    assert all(trial.own is None for trial in made.values())
    found = predict_changes(seen, plan.cluster, tmp_path, Observer())
    assert found.unchanged is not None
    assert any(change.fits for change in found.changes)
    unknown = seen.model_copy(update={"own": OwnScript(name="train", unknown=("precision",))})
    with pytest.raises(UserError, match="--changes: the script does not tell its precision"):
        predict_changes(unknown, plan.cluster, tmp_path, Observer())


def test_where_host_memory_ran_out_what_was_moved_there_is_changed(tmp_path: Path) -> None:
    plan = asked(stage="3")
    trial = next(one.trial for one in plan.planned if one.trial.offload_param == one.trial.offload_optimizer == "cpu")
    found = dict(changed_trials(trial, plan.cluster, tmp_path, of_host=True))
    pinned = [f"zero_optimization.{name}.pin_memory" for name in ("offload_optimizer", "offload_param")]
    assert dict(found["pin_memory false",].ds_config) == dict.fromkeys(pinned, False)
    assert found["parameters on the GPU",].offload_param == "none"
    assert found["optimizer states on the GPU",].offload_optimizer == "none"
    assert not any("micro batch" in word or "ZeRO" in word for says in found for word in says)


def test_where_the_node_is_too_small_its_gpus_are_not_blamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "predict", predict_by_arithmetic)
    plan = asked(stage="2", host_memory="16GB")
    trial = next(one.trial for one in plan.planned if one.trial.offload_optimizer == "cpu")
    found = predict_changes(trial, plan.cluster, tmp_path, Observer(), of_host=True)
    [topic] = unchanged_topic(found.unchanged)
    verdicts = [line.text for line in topic.lines if line.text.startswith("Needs")]
    assert [text.rpartition(": ")[2] for text in verdicts] == ["fits.", "does not fit."]
    assert "of each GPU's 39.49 GiB" in verdicts[0]
    assert "of a node's 14.90 GiB" in verdicts[1]


def test_a_key_of_the_trials_own_that_locks_no_pages_is_not_offered_again(tmp_path: Path) -> None:
    plan = asked(stage="2")
    trial = next(one.trial for one in plan.planned if one.trial.offload_optimizer == "cpu")
    trial = trial.model_copy(update={"ds_config": {"zero_optimization.offload_optimizer.pin_memory": False}})
    assert ("pin_memory false",) not in dict(changed_trials(trial, plan.cluster, tmp_path, of_host=True))


def test_without_page_locks_a_part_just_above_a_power_of_two_fits_a_smaller_host(
    kept_simulator: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """28 bytes a parameter of a part above 2^30 parameters with them, 18 without (docs/out-of-memory.md)."""
    monkeypatch.setattr(changes, "plan_world", lambda *_, **__: PlanWorld(Evidence.SIMULATED))
    shape = {"model_type": "gpt2", "n_embd": 4096, "n_layer": 5, "n_head": 32, "n_positions": 1024, "vocab_size": 15358}
    (tmp_path / "gpt2.json").write_text(json.dumps(shape))
    words = {"gpus": "1", "gpus_per_node": "1", "gpu": "h200", "host_memory": "24GB", "stage": "2"}
    plan = asked(model=str(tmp_path / "gpt2.json"), **words)
    trial = next(one.trial for one in plan.planned if one.trial.offload_optimizer == "cpu")
    with kept_simulator():
        found = predict_changes(trial, plan.cluster, tmp_path / "reports", Observer(), of_host=True)
    assert not known(found.unchanged).fits
    fitting = {change.says: change for change in found.changes if change.fits}
    assert fitting["pin_memory false",].slower is None
    assert fitting["pin_memory false",].host_node_bytes == pytest.approx(18.2 * 1.074e9, rel=0.01)
    assert ("optimizer states on the GPU",) in fitting


def test_a_trial_is_judged_by_the_memory_that_its_gpu_was_seen_to_have() -> None:
    spec = asked(stage="1").planned[0].trial
    nothing = dict.fromkeys(("reserved_bytes", "baseline_used_bytes", "peak_used_bytes", "energy_joules"))
    for seen, expected_gib in ((10 * GIB, 9.80), (39 * GIB, 39.49)):  # what the driver leaves of it
        device = NvmlDevice(gpu_uuid="GPU-1", name="A100", index=0, total_bytes=seen, mean_power_watts=None, **nothing)
        node = NvmlSummary(hostname="a", available=True, devices=[device])
        cluster = cluster_of(SampleTrial(spec, trial_record(spec, nvml=[node]), []))
        assert round(cluster.device_memory_bytes / GIB, 2) == expected_gib
