"""One process serves many simulated trials: each in a fork, so that what one does to itself is no other's affair."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.tools.laid_out import trial_laid_out
from tests.tools.tiny_trial import tiny
from zerobench.common.vocabulary import Category, Phase, Place, Status, StepKind
from zerobench.config.trial.trial import PredictionSpec, TrialSpec
from zerobench.records.folder import TrialFolder
from zerobench.records.records import RankRecord

REPOSITORY = Path(__file__).resolve().parents[3]
PATIENCE_S = 240.0


UNKNOWN = {"name": "unknown", "hf_config": {"model_type": "no_such_architecture"}}


@dataclass
class Simulator:
    """A running simulator, told of trials by lines."""

    process: subprocess.Popen[bytes]
    folders: dict[str, TrialFolder] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    forks: dict[str, int] = field(default_factory=dict)

    def send(self, *names: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(os.fsencode(self.folders[name].path) + b"\n" for name in names))
        self.process.stdin.flush()

    def answer(self) -> str:
        """Wait for the next trial that ends; its name."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        assert ready, "no trial has ended"
        verb, number, path = os.fsdecode(self.process.stdout.readline()).rstrip("\n").split(" ", 2)
        [name] = [name for name, folder in self.folders.items() if str(folder.path) == path]
        if verb == "begun":
            self.forks[name] = int(number)
            return self.answer()
        code = number
        self.codes[name] = int(code)
        self.order.append(name)
        return name

    def record(self, name: str) -> RankRecord:
        trial = TrialSpec.model_validate_json(self.folders[name].spec.read_text())
        return RankRecord.model_validate_json(self.folders[name].rank_record(trial.prediction.rank).read_bytes())


TRIALS = {
    "crash": tiny(model=UNKNOWN),
    "first": tiny(),
    "second": tiny(strategy="zero3"),
    "last rank": tiny(strategy="zero3", prediction=PredictionSpec(gpu="A100 SXM 80GB", rank=3)),
    "single": tiny(strategy="single", gpus_per_node=1),
    "on the CPU": tiny(prediction=PredictionSpec()),
}


def start() -> subprocess.Popen[bytes]:
    """A simulator that has not inherited to ignore Ctrl-C, as jobs in the background do."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "zerobench.rank.loop.simulator", "--jobs", "2"],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulator]:
    """All of TRIALS, one whose specification is missing, and one that comes late, two at a time."""
    root = tmp_path_factory.mktemp("trials")
    process = start()
    simulator = Simulator(process)
    try:
        for name, trial in TRIALS.items():
            simulator.folders[name] = trial_laid_out(root / f"{name} is here", trial)
        simulator.folders["late"] = trial_laid_out(root / "late", tiny(micro_batch_size=2))
        simulator.folders["missing"] = TrialFolder(root / "missing")
        simulator.folders["missing"].path.mkdir()
        simulator.send(*TRIALS, "missing")
        for _ in (*TRIALS, "missing"):
            simulator.answer()
        process.send_signal(signal.SIGINT)  # Ctrl-C reaches the whole group, and must not end what serves it
        simulator.send("late")
        simulator.answer()
        yield simulator
    finally:
        process.kill()
        process.wait()


def test_every_trial_is_answered_once_with_its_exit_status(served):
    assert sorted(served.order) == sorted(served.folders)
    good = {name: 0 for name in served.folders if name not in {"crash", "missing"}}
    assert served.codes == good | {"crash": 1, "missing": 1}


def test_every_trial_was_told_of_as_it_began_with_the_process_that_plays_it(served):
    assert sorted(served.forks) == sorted(served.folders)
    assert {name: served.record(name).pid for name in TRIALS} == {name: served.forks[name] for name in TRIALS}


def test_a_crash_leaves_a_record_with_its_traceback_and_the_next_trial_goes_on(served):
    record = served.record("crash")
    assert record.status is Status.CRASH
    assert record.failure is not None
    assert record.failure.rank == 0
    assert "no_such_architecture" in (record.failure.traceback or "")
    assert record.failure.traceback in served.folders["crash"].stderr.read_text()
    assert served.record("first").status is Status.COMPLETED


def test_a_folder_without_a_specification_says_so_in_its_own_file(served):
    assert "FileNotFoundError" in served.folders["missing"].stderr.read_text()


@pytest.mark.parametrize("name", ["first", "second", "last rank", "single", "on the CPU", "late"])
def test_a_completed_trial_has_a_whole_ledger_and_neither_losses_nor_times(served, name):
    record = served.record(name)
    assert (record.status, record.failure) == (Status.COMPLETED, None)
    assert (record.losses, record.step_times, record.process_memory) == ([], [], [])
    assert record.parameters is not None
    phases = {(r.step, r.phase) for r in record.memory if r.category is Category.TOTAL and r.place is Place.DEVICE}
    steps = {(step, phase) for step in StepKind for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.STEP)}
    assert phases == steps | {(StepKind.FIRST, Phase.INIT)}
    on_gpu = name != "on the CPU"
    assert bool(record.device_memory) is on_gpu
    assert (record.context is not None) is on_gpu
    assert sum(row.flops for row in record.flops) > 0
    assert bool(record.collectives) is (name != "single")


def test_the_rank_that_is_played_is_the_one_that_was_asked_for(served):
    record = served.record("last rank")
    assert (record.rank, record.world_size) == (3, 4)
    assert served.folders["last rank"].rank_record(3).exists()


def test_no_trial_finds_what_another_did_to_torch_and_deepspeed(served):
    """A trial on a GPU, one without DeepSpeed and one on the CPU, all forks of one process."""
    types = {name: served.record(name).device_type for name in ("first", "single", "on the CPU", "late")}
    assert types == {"first": "simgpu", "single": "simgpu", "on the CPU": "cpu", "late": "simgpu"}


def test_an_equal_trial_gives_equal_bytes(served, tmp_path):
    folder = trial_laid_out(tmp_path / "again", tiny())
    served.folders["again"] = folder
    served.send("again")
    assert served.answer() == "again"
    again, first = served.record("again"), served.record("first")
    assert (again.memory, again.device_memory) == (first.memory, first.device_memory)
    assert (again.collectives, again.flops) == (first.collectives, first.flops)


def spans(served: Simulator) -> list[tuple[float, float]]:
    records = [served.record(name) for name in TRIALS if name != "crash"]
    return [(record.marks[0].start_s, record.marks[-1].end_s) for record in records]


def test_as_many_trials_run_at_a_time_as_there_are_jobs_and_never_more(served):
    edges = sorted([(start, 1) for start, _ in spans(served)] + [(end, -1) for _, end in spans(served)])
    running = largest = 0
    for _, change in edges:
        running += change
        largest = max(largest, running)
    assert largest == 2


def test_the_simulator_ends_when_its_input_ends_and_the_trial_in_hand_is_done(served, tmp_path):
    """Runs last."""
    served.folders["in hand"] = trial_laid_out(tmp_path / "in_hand", tiny())
    served.send("in hand")
    forks: list[psutil.Process] = []
    while not forks:
        forks = psutil.Process(served.process.pid).children(recursive=True)
    served.process.stdin.close()
    assert served.answer() == "in hand"
    assert served.codes["in hand"] == 0
    assert served.process.wait(PATIENCE_S) == 0
    assert not any(fork.is_running() for fork in forks)
