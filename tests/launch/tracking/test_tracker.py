"""The ledger in training that zerobench does not run: it says what zerobench's own worker says, and leaves no trace."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import Swept
from tests.tools.at_least_one import at_least_one
from tests.tools.forked_zerobench import LAUNCHER
from tests.tools.known import known
from tests.tools.printed import shown_run
from zerobench.common.vocabulary import Category, Phase, Place, Status, StepKind
from zerobench.launch.run.launcher import free_port
from zerobench.launch.tracking.own_trial import LEDGER_ALONE
from zerobench.records.records import MemoryRow, RankRecord
from zerobench.records.store import Run, Trial, load_run
from zerobench.report.explain.memory_causes import MOMENTS

PROGRAMS = Path(__file__).parent / "programs"
SWEEP = """
name: tracked
axes:
  model: {family: llama, name: tiny, num_layers: 2, hidden_size: 64, num_heads: 4, vocab_size: 512,
          max_position_embeddings: 64}
  strategy: [zero2, zero3]
  world_size: 2
  micro_batch_size: 2
  gradient_accumulation_steps: 2
  sequence_length: 32
  precision: fp32
  ds_config: {reduce_bucket_size: 20000}
steps: {warmup: 1, timed: 2, memory: 1}
"""
STATES = (Category.PARAMETERS, Category.GRADIENTS, *MOMENTS)
RESIDUAL = (
    Category.REDUCE_BUFFERS,
    Category.GATHERED_PARAMETERS,
    Category.ACTIVATIONS,
    Category.LOGITS_AND_LOSS,
    Category.TEMPORARIES,
)
INSTANTS = [(step, phase) for step in StepKind for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.STEP)]
CPU = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "GLOO_SOCKET_IFNAME": "lo"}
SMALL = 4096
"""Scalars and counters of loops that are not the same: below this many bytes two figures are one."""


@contextmanager
def shared_memory_released(port: int) -> Iterator[None]:
    """DeepSpeed leaves 69 MB a rank in /dev/shm for good (csrc/cpu/comm/shm.cpp)."""
    try:
        yield
    finally:
        for path in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_{os.getuid()}_*_{port}_*"):
            path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def launch(forked_ranks: Mapping[str, str]) -> Callable[..., str]:
    """Run a program of a user's on two ranks, forks that have imported what it does; what it printed."""

    def run(program: str, *arguments: object) -> str:
        port = free_port()
        options = ["--hostfile", "/dev/null", "--num_nodes", "1", "--num_gpus", "2", "--no_local_rank"]
        options += ["--master_port", str(port)]
        command = [*LAUNCHER, *options, str(PROGRAMS / program), *map(str, arguments)]
        environ = {**os.environ, **CPU, **forked_ranks}
        with shared_memory_released(port):
            done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    return run


def runs_in(reports: Path) -> dict[str, Run]:
    """The runs under `reports` by the name before the time."""
    return {path.name.rpartition("_")[0]: load_run(path) for path in reports.iterdir()}


def only_trial(run: Run) -> Trial:
    (trial,) = run.trials()
    return trial


def rows(rank: RankRecord) -> dict[tuple[StepKind, Phase, Category], MemoryRow]:
    return {(row.step, row.phase, row.category): row for row in rank.memory if row.place is Place.DEVICE}


@pytest.fixture(scope="module")
def ours(forked_sweep: Callable[..., Swept]) -> Swept:
    """The work as zerobench's own worker measures it."""
    return forked_sweep(SWEEP)


@pytest.fixture(scope="module")
def looped(
    ours: Swept, launch: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Run], str]:
    """The same work in a user's loop, and what the loop printed."""
    reports = tmp_path_factory.mktemp("loop")
    printed = launch("training_loop.py", reports, *(trial.folder.path for trial in ours.run.trials()))
    return runs_in(reports), printed


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["zero2", "zero3"])
def test_a_users_loop_has_the_states_of_our_own_worker_to_the_byte(ours, looped, strategy):
    for own, tracked in at_least_one(
        zip(ours.trial(strategy=strategy).ranks, only_trial(looped[0][strategy]).ranks, strict=True)
    ):
        expected, found = rows(own), rows(tracked)
        for step, phase in INSTANTS:
            for category in STATES:
                key = (step, phase, category)
                assert key in expected or key not in found, key
                if key in expected:
                    assert abs(found[key].live_bytes - expected[key].live_bytes) <= 8, key  # a scalar norm or scale


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["zero2", "zero3"])
def test_a_users_loop_has_the_buffers_and_activations_of_our_own_worker(ours, looped, strategy):
    """What is live is the same; peaks differ from run to run, because gloo's threads let go of a collective's tensors
    when they come to it: by all 16-bit parameters at most, were every one still held once more.
    """
    for own, tracked in at_least_one(
        zip(ours.trial(strategy=strategy).ranks, only_trial(looped[0][strategy]).ranks, strict=True)
    ):
        expected, found = rows(own), rows(tracked)
        held = 2 * known(own.parameters).total
        assert held < 0.2 * max(row.own_peak_bytes or 0 for row in expected.values())
        for step, phase in INSTANTS:
            for category in (*RESIDUAL, Category.TOTAL):
                key = (step, phase, category)
                if key in expected:
                    own_peak, our_peak = found[key].own_peak_bytes or 0, expected[key].own_peak_bytes or 0
                    assert abs(found[key].live_bytes - expected[key].live_bytes) <= SMALL, key
                    assert abs(own_peak - our_peak) <= SMALL + held, key


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["zero2", "zero3"])
def test_a_tracked_run_says_what_the_work_was_and_reports_read_it(looped, strategy):
    trial = only_trial(looped[0][strategy])
    asked = trial.spec
    assert (asked.strategy, asked.world_size, asked.num_nodes) == (strategy, 2, 1)
    assert (asked.micro_batch_size, asked.gradient_accumulation_steps, asked.sequence_length) == (2, 2, 32)
    assert asked.model.model_type == "llama"
    assert trial.record.status is Status.COMPLETED
    assert len(trial.ranks[0].step_times) == 2
    assert "Model states of one rank beside the ZeRO paper" in shown(looped[0][strategy])


@pytest.mark.slow
def test_the_engine_is_let_go_when_the_tracked_steps_are_done(looped):
    # 6 tracked steps of two micro-steps: the last call of step() ends them.
    assert re.findall(r"(zero\d): tracked for (\d+) micro-steps, then True", looped[1]) == [
        (strategy, "11") for strategy in ("zero2", "zero2", "zero3", "zero3")
    ]


def shown(run: Run) -> str:
    return shown_run(run.folder.path, 160)


@pytest.fixture(scope="module")
def trained(launch: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Run], str]:
    """Hugging Face Trainers with configurations full of `auto`, and what they printed."""
    folder = tmp_path_factory.mktemp("trainer")
    configs = [PROGRAMS / f"trainer_zero{stage}.json" for stage in (2, 3)]
    printed = launch("training_with_trainer.py", folder, *configs)
    return runs_in(folder / "reports"), printed


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_the_trainers_engine_is_found_and_tracked(trained, stage):
    trial = only_trial(trained[0][f"trainer_zero{stage}"])
    assert (trial.record.status, trial.record.ranks_reported) == (Status.COMPLETED, 2)
    assert (trial.spec.strategy, trial.spec.world_size, trial.spec.num_nodes) == (f"zero{stage}", 2, 1)
    assert trial.spec.sequence_length == 32
    assert trial.spec.ds_config["zero_optimization.reduce_bucket_size"] == 64 * 64  # what `auto` became


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_the_trainers_states_are_those_of_the_paper_plus_what_deepspeed_keeps(trained, stage):
    trial = only_trial(trained[0][f"trainer_zero{stage}"])
    parameters = known(trial.ranks[0].parameters)
    whole = parameters.total * 4
    for rank in trial.ranks:
        found = rows(rank)
        after = {category: found[StepKind.STEADY, Phase.STEP, category].live_bytes for category in STATES[2:]}
        assert set(after.values()) == {whole // 2}
        kept = found[StepKind.STEADY, Phase.STEP, Category.PARAMETERS].live_bytes
        assert kept == (whole if stage == 2 else whole // 2)
        assert found[StepKind.STEADY, Phase.FORWARD, Category.ACTIVATIONS].live_bytes > 100_000


@pytest.mark.slow
def test_nearly_every_byte_of_a_trainers_step_has_a_name(trained):
    for rank in at_least_one(only_trial(trained[0]["trainer_zero2"]).ranks):
        found = rows(rank)
        for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.STEP):
            assert (found[StepKind.STEADY, phase, Category.UNATTRIBUTED].at_peak_bytes or 0) <= SMALL


@pytest.mark.slow
def test_the_trainers_engine_has_its_own_methods_again(trained):
    assert re.findall(r"(\w+): tracked True, left \[\]", trained[1]) == ["trainer_zero2"] * 2 + ["trainer_zero3"] * 2


def watch_own_model(reports: Path, *arguments: str) -> tuple[Trial, subprocess.CompletedProcess[str]]:
    """`zerobench watch` around the program that tracks itself: one run of both."""
    own = [sys.executable, "-m", "zerobench", "watch", "--reports", str(reports), "--"]
    command = [*own, sys.executable, str(PROGRAMS / "own_model.py"), *arguments]
    with shared_memory_released(29677):
        done = subprocess.run(
            command, env=os.environ | CPU, capture_output=True, text=True, timeout=300, check=False, cwd=Path.cwd()
        )
    (run,) = runs_in(reports).values()
    return only_trial(run), done


def test_a_watched_and_tracked_script_of_own_classes_makes_one_run(tmp_path):
    trial, done = watch_own_model(tmp_path / "r", "4")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "done"), done.stderr
    (rank,) = trial.ranks
    assert (trial.spec.strategy, trial.spec.model.name, trial.spec.trial_id) == ("zero1", "Net", "own_model")
    assert LEDGER_ALONE not in rank.notes
    assert not trial.spec.knows("sequence_length")
    assert rank.flops_per_step is None
    assert (trial.record.host[0].peak_rss_bytes or 0) > 100 * 2**20
    found = rows(rank)
    # Two linear layers keep their inputs, ReLU its output, which is one of them; the sum is kept by nobody.
    kept = found[StepKind.STEADY, Phase.FORWARD, Category.ACTIVATIONS].live_bytes
    assert kept >= 8 * 512 * 4
    assert (found[StepKind.STEADY, Phase.BACKWARD, Category.UNATTRIBUTED].at_peak_bytes or 0) <= 8 * 256 * 4 + SMALL


@pytest.mark.slow
def test_a_fault_in_a_tracked_step_is_recorded_with_its_phase_and_what_was_measured_before(tmp_path):
    trial, done = watch_own_model(tmp_path / "r", "4", "1")
    (rank,) = trial.ranks
    assert done.returncode == 1
    assert "the data set is too large" in done.stderr
    assert trial.record.status is rank.status is Status.OUT_OF_HOST_MEMORY
    assert rank.failure is not None
    assert (rank.failure.phase, rank.failure.step_index) == (Phase.FORWARD, 1)
    assert (StepKind.FIRST, Phase.STEP, Category.TOTAL) in rows(rank)
    assert not any(row.step is StepKind.STEADY for row in rank.memory)


@pytest.mark.slow
def test_a_training_shorter_than_the_tracked_steps_says_so(tmp_path):
    trial, done = watch_own_model(tmp_path / "r", "1")
    (rank,) = trial.ranks
    assert (done.returncode, trial.record.status) == (0, Status.COMPLETED), done.stderr
    assert any("ended after 1 of 3 tracked steps" in note for note in rank.notes)


def check_ledger_alone(trial: Trial) -> None:
    """First and steady steps are accounted for, and nothing is said of times."""
    (rank,) = trial.ranks
    assert rank.status is Status.COMPLETED
    assert {(step, Phase.STEP, Category.TOTAL) for step in StepKind} <= rows(rank).keys()
    assert (rank.step_times, rank.notes.count(LEDGER_ALONE)) == ([], 1)


@pytest.mark.slow
def test_a_training_that_is_killed_after_its_memory_step_leaves_its_ledger(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with shared_memory_released(29677):
        command = [sys.executable, str(PROGRAMS / "own_model.py"), "4", "2", "kill"]
        done = subprocess.run(command, env=os.environ | CPU, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (run,) = runs_in(tmp_path / "reports").values()
    trial = only_trial(run)
    check_ledger_alone(trial)
    assert (trial.record.status, trial.record.notes) == (Status.COMPLETED, [LEDGER_ALONE])
    assert "Model states of one rank" in shown(run)


@pytest.mark.slow
def test_a_watched_training_that_is_killed_after_its_memory_step_is_a_crash_with_its_ledger(tmp_path):
    trial, done = watch_own_model(tmp_path / "r", "4", "2", "kill")
    assert done.returncode == 128 + signal.SIGKILL
    check_ledger_alone(trial)
    assert trial.record.status is Status.CRASH
    assert "SIGKILL" in (trial.record.reason or "")
