"""`zerobench tune --measure`: the best few are measured on this machine, and the fastest of them is what is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.app.terminal.conftest import Call
from tests.app.terminal.test_run_frontier import LAPTOP, NODE, Bench
from tests.tools.refusals import refused
from zerobench.app.search import measured_best, predict
from zerobench.app.terminal import planning
from zerobench.config.trial.trial import TrialSpec
from zerobench.records.records import Failure

TUNE = ["tune", "llama-20m", "--gpus", "2", "--gpus-per-node", "2", "--gpu", "h100", "--global-batch", "8"]
TUNE += ["--sequence-length", "256", "--evidence", "formula", "--write", "ds.json"]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Trials by the sample's arithmetic on a laptop without GPU; a test may put another machine in its place."""
    made = Bench(LAPTOP)
    monkeypatch.setattr(planning, "detect_machine", lambda: made.machine)
    monkeypatch.setattr(measured_best, "run_sweep", made.run_sweep)
    for module in (measured_best, predict):
        monkeypatch.setattr(module, "capture_environment", dict)
    return made


def found() -> dict[str, Any]:
    [path] = Path("reports").glob("tune-*/search.json")
    read: dict[str, Any] = json.loads(path.read_text())
    return read


def test_what_fails_is_told_and_the_fastest_of_the_others_is_written(call: Call, bench: Bench) -> None:
    asked: list[TrialSpec] = []

    def first_fails(trial: TrialSpec) -> Failure | None:
        asked.append(trial)
        return Failure(message="it fell over") if len(asked) == 1 else None

    bench.fails = first_fails
    code, out, _ = call(*TUNE, "--measure", "2")
    assert code == 0
    assert "Measured on 2 CPU ranks:" in out
    assert ": it fell over" in out
    failed, done = found()["measured"]["trials"]
    assert (failed["status"], failed["step_s"]) == ("crash", None)
    assert (done["status"], done["step_s"], done["tokens_per_s"]) == (
        "completed",
        0.2525,
        pytest.approx(8 * 256 / 0.2525),
    )
    assert failed["expected_step_s"] <= done["expected_step_s"]
    assert "Why: measured to be the fastest, on 2 CPU ranks." in out
    [decision] = [json.loads(path.read_text()) for path in Path("reports").glob("tune-*/decision.json")]
    assert f": choose {decision['configuration']}\n" in out
    assert f"written: ds.json, the configuration of {decision['configuration']}\n" in out
    assert found()["chosen"]["strategy"] == asked[1].strategy
    written = json.loads(Path("ds.json").read_text())
    taken = asked[1]
    assert (f"zero{written['zero_optimization']['stage']}", written["train_micro_batch_size_per_gpu"]) == (
        taken.strategy,
        taken.micro_batch_size,
    )


def test_json_has_what_the_training_takes_with_each_configuration_that_is_shown(call: Call) -> None:
    code, out, _ = call(*TUNE, "--tokens", "1B", "--price", "2", "--json")
    assert code == 0
    said = json.loads(out)
    best = {one["configuration"]: one for one in said["configurations"]}[said["best"]]
    low, middle, high = (best["training"][end] for end in ("low", "expected", "high"))
    assert middle["gpu_hours"] == pytest.approx(1e9 / best["tokens_per_s"] * 2 / 3600)
    assert low["cost"] < middle["cost"] == 2 * middle["gpu_hours"] < high["cost"]
    assert middle["most_energy_kwh"] > 0


def test_keys_that_the_fastest_sets_are_all_said_above_the_table(call: Call) -> None:
    place = ["--gpus", "8", "--gpu", "rtx 4090", "--host-memory", "1TB", "--global-batch", "256"]
    code, out, _ = call("tune", "llama-7b", *place, "--evidence", "formula", "--write", "ds.json")
    said = " ".join(out.partition("\nSet: ")[2].partition("\nBatch: ")[0].split())
    assert (code, said.partition(", reduce_bucket_size")[0]) == (
        0,
        "offload_optimizer.ratio 0.75, sub_group_size 1e8",
    ), out
    zero = json.loads(Path("ds.json").read_text())["zero_optimization"]
    assert (zero["offload_optimizer"]["ratio"], zero["sub_group_size"]) == (0.75, 100_000_000)


def test_without_it_nothing_is_measured(call: Call, bench: Bench) -> None:
    bench.fails = lambda trial: pytest.fail(f"{trial.trial_id} was run")
    code, out, _ = call(*TUNE)
    assert (code, "Measured" in out, "measured" in found()) == (0, False, False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--gpus", "4", "--gpus-per-node", "4"], "the plan has 4 GPUs, this machine 2"),
        (["--gpus", "4", "--gpus-per-node", "2"], "the plan has 2 nodes"),
    ],
)
def test_a_machine_that_is_too_small_is_refused_before_anything_is_predicted(
    call: Call, bench: Bench, options: list[str], words: str
) -> None:
    bench.machine = NODE
    refused(call(*TUNE, *options, "--measure", "2"), words)
    assert not Path("reports").exists()


def test_adapters_are_trained_where_they_are_asked_for(call: Call, bench: Bench) -> None:
    code, _, _ = call(*TUNE, "--lora", "8")
    assert code == 0
    trials = [json.loads(path.read_text()) for path in Path("reports").glob("tune-*/trials/*/trial.json")]
    assert {trial["adapter"] for trial in trials} == {"lora-8"}
