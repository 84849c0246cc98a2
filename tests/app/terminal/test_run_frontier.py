"""`zerobench run --frontier`: what it finds is the very edge, begun from the prediction, and nothing measured is lost.

Trials are made by the sample's arithmetic, in which a measured rank takes a little more than the predicted one; a GPU
runs out of memory where the sum exceeds what it has. Folders, records, rounds and tables are the real ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.app.search.test_plan_world import Made
from tests.app.terminal.conftest import Call
from tests.report.documents.run import predicted_rank
from tests.report.sample_run import SampleTrial, completed_trial, failed_trial, on_cpu
from tests.tools.at_least_one import at_least_one
from tests.tools.known import known
from tests.tools.refusals import refused
from zerobench.app.search import measured as measured_search
from zerobench.app.search import plan_world
from zerobench.app.terminal import run
from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Status
from zerobench.config.derived.machine import Accelerator, Machine
from zerobench.config.sweep.expand import PlannedTrial, expand
from zerobench.config.sweep.sweep import load_sweep
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.launch.run.observer import Observer
from zerobench.launch.run.runner import RunResult
from zerobench.launch.run.setup import lay_out, new_run_folder, resolved_configs
from zerobench.records.folder import RunFolder, write_whole
from zerobench.records.instants import device_peak_bytes
from zerobench.records.records import Failure, TrialRecord
from zerobench.records.store import find_run, load_run

MIB, GIB = 2**20, 2**30
LAPTOP = Machine(accelerator=Accelerator.CPU, cpu_cores=2, host_memory_bytes=16 * GIB)
H100 = "NVIDIA H100 80GB HBM3"
NODE = Machine(
    accelerator=Accelerator.CUDA,
    num_gpus=2,
    gpu_names=(H100,) * 2,
    device_memory_bytes=81559 * MIB,
    host_memory_bytes=512 * GIB,
    cpu_cores=64,
)
SWEEP = """
name: edge
axes:
  model: llama-20m
  strategy: [zero1, zero2]
  micro_batch_size: [1, 2]
  sequence_length: 256
hyperparameters: {learning_rate: 1e-4}
"""
MICRO_BATCH = ["run", "edge.yaml", "--frontier", "micro-batch"]


class Bench:
    """Makes trials by arithmetic in place of processes."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.fails: Callable[[TrialSpec], Failure | None] = lambda _: None
        self.stops_in_round: int | None = None

    def run_sweep(
        self, planned: Sequence[PlannedTrial], sweep: Mapping[str, Any], *, reports: Path, **_: object
    ) -> RunResult:
        """What zerobench.launch.run.runner.run_sweep leaves on disk."""
        run = self._laid_out(planned, sweep, reports)
        for item in (item for item in planned if item.skipped is None):
            _leave(run, self._trial(item.trial))
        return RunResult(run, interrupted=sweep["name"] == f"round-{self.stops_in_round}")

    def predict(
        self, planned: Sequence[PlannedTrial], sweep: Mapping[str, Any], reports: Path, _: Observer
    ) -> RunResult:
        """What zerobench.app.search.predict leaves on disk."""
        run = self._laid_out(planned, sweep, reports)
        for item in (item for item in planned if item.skipped is None):
            done = SampleTrial(item.trial, completed_trial(item.trial).record, [predicted_rank(item.trial)])
            _leave(run, done if item.trial.prediction.gpu else on_cpu(done))
        return RunResult(run)

    def _laid_out(self, planned: Sequence[PlannedTrial], sweep: Mapping[str, Any], reports: Path) -> RunFolder:
        run = new_run_folder(reports, sweep["name"])
        lay_out(run, planned, resolved_configs(planned), sweep, {})
        return run

    def _trial(self, spec: TrialSpec) -> SampleTrial:
        if failure := self.fails(spec):
            return failed_trial(spec, failure, Status.CRASH)
        done = completed_trial(spec)
        if self.machine.accelerator is Accelerator.CPU:
            return on_cpu(done)
        if on_gpu_bytes(done) > known(self.machine.device_memory_bytes):
            return failed_trial(spec, Failure(message="the device ran out of memory"))
        return done


def _leave(run: RunFolder, trial: SampleTrial) -> None:
    folder = run.trial(trial.spec.trial_id)
    for rank in trial.ranks:
        write_whole(folder.rank_record(rank.rank), rank.model_dump_json())
    record = trial.record.model_copy(update={"run_id": run.run_id, "ranks_reported": len(trial.ranks)})
    write_whole(folder.record, TrialRecord.model_validate(record.model_dump()).model_dump_json())


def on_gpu_bytes(trial: SampleTrial) -> int:
    """What the driver sees of the largest rank: all that is reserved, context and NCCL."""
    return 834 * MIB + max(row.peak_reserved_bytes for rank in trial.ranks for row in rank.device_memory)


@pytest.fixture(autouse=True)
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    """A laptop without GPU; a test may put another machine in its place."""
    made = Bench(LAPTOP)
    monkeypatch.setattr(run, "detect_machine", lambda num_nodes=1: made.machine)
    monkeypatch.setattr(measured_search, "run_sweep", made.run_sweep)
    monkeypatch.setattr(measured_search, "predict", made.predict)
    monkeypatch.setattr(measured_search, "capture_environment", dict)
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edge.yaml").write_text(SWEEP)
    return made


def answer() -> dict[str, Any]:
    """What the one search under `reports` found."""
    [path] = Path("reports").glob("*/frontier.json")
    read: dict[str, Any] = json.loads(path.read_text())
    return read


def tries(cell: Mapping[str, Any]) -> dict[int, int | None]:
    return {one["value"]: one["needed_bytes"] for one in cell["measured_tries"]}


def rounds() -> list[Path]:
    """The measured rounds' run folders, in their order."""
    return sorted(plan.parent for plan in Path("reports").glob("*/measured/*/plan.json"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "edge.yaml", "--frontier", "modle", "--capacity", "1GiB"], "did you mean 'model'"),
        (["run", "edge.yaml", "--capacity", "1GiB"], "--capacity needs --frontier"),
        (MICRO_BATCH, "--capacity is missing: CPU ranks have no device limit"),
        ([*MICRO_BATCH, "--capacity", "lots"], "--capacity: 'lots' is not a number of bytes"),
        ([*MICRO_BATCH, "--capacity", "0"], "--capacity: '0': must be above 0"),
        ([*MICRO_BATCH, "--capacity", "12GiB"], "2 ranks of 12.00 GiB are more than the machine has: 16.00 GiB"),
        ([*MICRO_BATCH, "--resume", "earlier"], "--resume does not go with --frontier"),
        ([*MICRO_BATCH, "--dry-run"], "--dry-run does not go with --frontier"),
        ([*MICRO_BATCH, "--repeats", "2"], "--repeats does not go with --frontier"),
        (["run", "--frontier", "model", "--capacity", "1GiB"], "SWEEP is missing"),
        ([*MICRO_BATCH, "--capacity", "1GiB", "--set", "evidence=simulated"], "edge measures nothing"),
        ([*MICRO_BATCH, "--capacity", "1GiB", "--set", "world_size=4096"], "no trial of edge can run: 4,096 ranks"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(call: Call, arguments: list[str], words: str) -> None:
    refused(call(*arguments), words)
    assert not Path("reports").exists()


@pytest.mark.parametrize(("axis", "unit"), [("micro-batch", 1), ("sequence-length", 128), ("model", 1)])
def test_what_is_named_fits_and_one_step_more_does_not(call: Call, axis: str, unit: int) -> None:
    code, out, _ = call("run", "edge.yaml", "--frontier", axis, "--capacity", "1GiB")
    assert code == 0
    assert f"Measured: largest {axis.replace('-', ' ')} that fits" in out
    for cell in answer()["cells"]:
        largest, next_one = (known(tries(cell)[cell["measured"] + more]) for more in (0, unit))
        assert largest <= GIB < next_one


def test_a_sweep_that_repeats_and_predicts_is_searched_once(call: Call) -> None:
    Path("edge.yaml").write_text(f"{SWEEP}repeats: 3\n")
    code, _, _ = call(*MICRO_BATCH, "--capacity", "3GiB", "--set", "evidence=measured,simulated,formula")
    assert code == 0
    assert [cell["name"] for cell in answer()["cells"]] == ["zero1", "zero2"]


def test_the_measured_search_begins_at_the_prediction_and_needs_three_tries_at_most(call: Call) -> None:
    call(*MICRO_BATCH, "--capacity", "3GiB")
    for cell in at_least_one(answer()["cells"]):
        assert next(iter(tries(cell))) == cell["predicted"]
        assert 2 <= len(cell["measured_tries"]) <= 3
        assert len(cell["predicted_tries"]) > 3


def test_predicted_and_measured_stand_in_one_table(call: Call) -> None:
    _, out, _ = call(*MICRO_BATCH, "--capacity", "3GiB")
    table = out.partition("Measured: ")[2].splitlines()
    assert "in sequences per rank" in table[0]
    header = next(line for line in table if line.startswith("trial "))
    assert header.split()[:5] == ["trial", "predicted", "measured", "error", "too"]
    for cell in answer()["cells"]:
        [row] = [line.split() for line in table if line.startswith(f"{cell['name']} ")]
        assert row[1:3] == [str(cell["predicted"]), str(cell["measured"])]
        assert row[-2:] == [str(len(cell["measured_tries"])), "capacity"]


def test_trials_that_differ_in_the_axis_alone_are_one_search(call: Call) -> None:
    call(*MICRO_BATCH, "--capacity", "3GiB")
    assert [cell["name"] for cell in answer()["cells"]] == ["zero1", "zero2"]
    (found,) = Path("reports").iterdir()
    call("run", "edge.yaml", "--frontier", "sequence-length", "--capacity", "3GiB")
    [other] = [path for path in Path("reports").iterdir() if path != found]
    cells = json.loads((other / "frontier.json").read_text())["cells"]
    assert [cell["name"] for cell in cells] == ["zero1 mb1", "zero1 mb2", "zero2 mb1", "zero2 mb2"]


def test_each_try_is_an_ordinary_trial_of_few_steps_in_an_ordinary_run(call: Call) -> None:
    _, out, _ = call(*MICRO_BATCH, "--capacity", "3GiB")
    [folder] = Path("reports").iterdir()
    assert re.fullmatch(r"edge-frontier-micro-batch_\d{8}-\d{6}", folder.name)
    assert out.splitlines()[-1] == f"Runs: {folder.resolve()}"
    for path in rounds():
        assert (path / "trials.csv").is_file()
        for trial in load_run(path).trials():
            steps = trial.spec.steps
            assert (steps.warmup, steps.memory, steps.timed) == (1, 1, 2)
            assert trial.spec.evidence is Evidence.MEASURED
    tried = [trial.spec.micro_batch_size for path in rounds() for trial in load_run(path).trials()]
    assert sorted(tried) == sorted(value for cell in answer()["cells"] for value in tries(cell))


def test_a_rounds_sweep_file_says_the_rounds_trials(call: Call) -> None:
    call(*MICRO_BATCH, "--capacity", "3GiB")
    for path in at_least_one(rounds()):
        again = expand(load_sweep(str(path / "sweep.yaml")), LAPTOP)
        assert [item.trial for item in again] == [trial.spec for trial in load_run(path).trials()]


def test_one_rank_of_many_is_searched_by_itself_beside_real_ranks(call: Call) -> None:
    many = [*MICRO_BATCH, "--capacity", "3GiB", "--only", "strategy=zero2", "--set", "evidence=measured,solo"]
    code, _out, err = call(*many, "--set", "world_size=2,64")
    assert (code, err) == (0, "")
    names = [cell["name"] for cell in answer()["cells"]]
    assert len(names) == 2  # sixty-four real ranks are more than two cores hold
    assert sum("solo" in name for name in names) == 1
    tried = [trial.spec for path in rounds() for trial in load_run(path).trials()]
    assert {(one.evidence, one.world_size) for one in tried} == {(Evidence.MEASURED, 2), (Evidence.SOLO, 64)}
    for path in rounds():
        again = expand(load_sweep(str(path / "sweep.yaml")), LAPTOP)
        assert [item.trial for item in again] == [trial.spec for trial in load_run(path).trials()]


def test_on_gpus_running_out_of_memory_is_the_answer(call: Call, bench: Bench) -> None:
    bench.machine = NODE
    code, out, _ = call(*MICRO_BATCH)
    assert code == 0
    assert f"completes on {H100} of 79.65 GiB" in out
    for cell in answer()["cells"]:
        [row] = [line.split() for line in out.splitlines() if re.match(rf"{cell['name']} +\d", line)]
        assert row[-2:] == ["device", "memory"]
        too_large = min(value for value, needed in tries(cell).items() if needed is None)
        assert 1 <= too_large - cell["measured"] <= max(1, 0.01 * cell["measured"])
        assert len(cell["measured_tries"]) <= 7
        assert cell["predicted"] == pytest.approx(cell["measured"], rel=0.1)


@pytest.mark.parametrize(("is_there", "world"), [(True, Evidence.EMULATED), (False, Evidence.SIMULATED)])
def test_the_search_begins_in_the_world_that_plans_are_made_in(
    call: Call, bench: Bench, monkeypatch: pytest.MonkeyPatch, is_there: bool, world: Evidence
) -> None:
    def find() -> Made:
        if is_there:
            return Made()
        raise UserError("emulator: not set up")

    bench.machine = NODE
    monkeypatch.setattr(plan_world, "find_emulator", find)
    code, out, _ = call(*MICRO_BATCH)
    assert code == 0
    runs = [load_run(path.parent) for path in Path("reports").glob("*/predicted/*/plan.json")]
    assert {trial.spec.evidence for one in runs for trial in one.trials()} == {world}
    assert f"predicted, {world}: zero1: " in out


def test_a_capacity_below_the_gpus_is_held_against_the_tensors_peak(call: Call, bench: Bench) -> None:
    bench.machine = NODE
    call(*MICRO_BATCH, "--capacity", "24GiB")
    for cell in answer()["cells"]:
        measured = tries(cell)
        assert (measured[cell["measured"]] or 0) <= 24 * GIB
        assert None not in measured.values()
    largest = answer()["cells"][0]["measured"]
    runs = [trial for path in rounds() for trial in load_run(path).trials()]
    [trial] = [one for one in runs if (one.spec.strategy, one.spec.micro_batch_size) == ("zero1", largest)]
    assert device_peak_bytes(trial) == tries(answer()["cells"][0])[largest]


def test_a_gpu_that_nobody_has_catalogued_is_searched_without_a_prediction(call: Call, bench: Bench) -> None:
    bench.machine = NODE.model_copy(update={"gpu_names": ("NVIDIA Unheard-Of 9000",) * 2})
    code, out, _ = call(*MICRO_BATCH)
    assert code == 0
    assert "not predicted; the search starts at the sweep's own values" in out
    for cell in answer()["cells"]:
        assert cell["predicted"] is None
        assert next(iter(tries(cell))) == 1
        assert cell["measured"] > 100


def test_what_host_memory_cannot_hold_is_not_tried_and_ends_the_search(call: Call, bench: Bench) -> None:
    bench.machine = NODE.model_copy(update={"host_memory_bytes": 3 * GIB})
    offload = ["--set", "offload_optimizer=cpu", "--set", "micro_batch_size=1"]
    code, out, _ = call("run", "edge.yaml", "--frontier", "model", *offload)
    assert code == 0
    for cell in answer()["cells"]:
        assert re.search(rf"^{cell['name']} .* host memory *$", out, re.MULTILINE)
        assert tries(cell)[cell["measured"]] is not None
        assert cell["measured"] == cell["predicted"]
    skipped = [trial for path in rounds() for trial in load_run(path).trials() if not trial.ranks]
    assert {trial.record.rule for trial in skipped} == {"host_memory"}


def test_a_trial_that_fails_gives_up_its_own_search_alone(call: Call, bench: Bench) -> None:
    planted = Failure(message="rank 0: ValueError: the planted fault")
    bench.fails = lambda spec: planted if spec.strategy == "zero1" else None
    code, out, _ = call(*MICRO_BATCH, "--capacity", "3GiB")
    assert code == 1
    assert re.search(r"no answer: zero1: rank 0: ValueError: the planted fault; see /.*/measured/round-1_", out)
    assert {cell["name"]: cell["measured"] is not None for cell in answer()["cells"]} == {"zero1": False, "zero2": True}


def test_stopped_in_a_round_what_was_measured_stays_and_the_exit_status_is_130(call: Call, bench: Bench) -> None:
    bench.stops_in_round = 2
    code, out, err = call(*MICRO_BATCH, "--capacity", "3GiB")
    assert (code, err) == (130, "")
    [folder] = Path("reports").iterdir()
    assert out.splitlines()[-1] == f"stopped; measurements are kept in: {folder.resolve()}"
    assert len(rounds()) == 2
    assert find_run(None, folder / "measured").name.startswith("round-2")
    assert all(load_run(rounds()[0]).trials())
