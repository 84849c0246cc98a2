"""What the screen shows while a sweep runs."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tests.report.sample_run import RUN_ID, sample_trials, write_run
from zerobench.cli.live import COMPILING, LiveView, PlainView, describe, memory, prediction_view
from zerobench.cli.live_bars import EndedTrial, bars
from zerobench.folder import RunFolder
from zerobench.progress import Progress
from zerobench.records import Place, Status, TrialRecord
from zerobench.report.frames.run_frames import run_frames
from zerobench.run.observer import Observer
from zerobench.spec.model import ModelSpec
from zerobench.spec.trial import TrialSpec
from zerobench.store import load_run
from zerobench.units import format_bytes

RUN = RunFolder(Path("/reports/stages_20250101-120000"))
TRIAL = TrialSpec(model=ModelSpec(name="small", hf_config={"model_type": "gpt2"}), strategy="zero2")


def word(rank: int, phase: str, step: int, memory_bytes: int | None = 2**20) -> Progress:
    return Progress(
        rank=rank,
        pid=1,
        hostname="here",
        phase=phase,
        step_index=step,
        num_steps=9,
        memory_bytes=memory_bytes,
        updated_at_s=float(rank),
    )


def record(status: Status, seconds: float, reason: str | None = None) -> TrialRecord:
    return TrialRecord(
        run_id=RUN.run_id,
        trial_id=TRIAL.trial_id,
        config_hash=TRIAL.config_hash,
        status=status,
        reason=reason,
        started_at_s=100.0,
        ended_at_s=100.0 + seconds,
        ranks_expected=2,
    )


def plain() -> tuple[PlainView, io.StringIO]:
    screen = io.StringIO()
    return PlainView(Console(file=screen, width=80)), screen


def test_without_a_terminal_each_event_is_a_whole_line_however_long() -> None:
    view, screen = plain()
    view.run_started(RUN, to_do=2, kept=1, skipped=3)
    view.trial_started(TRIAL, 1, 2)
    view.trial_ended(record(Status.CRASH, 12.0, "rank 1: " + "a long reason " * 12))
    view.trial_started(TRIAL, 2, 2)
    view.run_ended()
    assert screen.getvalue().splitlines() == [
        "stages_20250101-120000: 2 trials to run, 1 done before, 3 skipped",
        f"trial 1 of 2: {TRIAL.trial_id}",
        f"    crash {TRIAL.trial_id} in 12.0 s: rank 1: " + ("a long reason " * 12),
        f"trial 2 of 2: {TRIAL.trial_id} (about 12.0 s left)",
    ]


def test_compiling_is_said_once_because_it_takes_minutes() -> None:
    view, screen = plain()
    for _ in range(3):
        view.trial_progress([word(0, "init", -1), word(1, "compile", -1)])
    assert screen.getvalue() == f"{COMPILING}\n"


def test_each_kernel_that_is_compiled_before_the_first_trial_is_said_once_and_how_it_ended() -> None:
    view, screen = plain()
    for spent_s in (0.5, 1.0):
        view.compiling("cpu_adam", spent_s)
    view.note("compiled cpu_adam in 1.0 s")
    assert screen.getvalue().splitlines() == [
        "compiling cpu_adam, a DeepSpeed C++ kernel: minutes, once per machine",
        "compiled cpu_adam in 1.0 s",
    ]


def test_names_are_not_taken_for_markup() -> None:
    view, screen = plain()
    view.say("[bold]as it is[/bold] :smile:")
    assert screen.getvalue() == "[bold]as it is[/bold] :smile:\n"


def test_the_time_left_is_told_by_the_trials_that_ended() -> None:
    view, _ = plain()
    assert view.time_left_s(3) is None
    for seconds in (10.0, 100.0, 20.0):
        view.trial_ended(record(Status.COMPLETED, seconds))
    assert view.time_left_s(3) == 60.0
    assert view.time_left_s(3, spent_s=5.0) == 55.0
    assert view.time_left_s(1, spent_s=90.0) == 0.0


def test_a_trial_is_where_its_rank_furthest_behind_is() -> None:
    assert describe([]) == "starting"
    assert describe([word(0, "timed", 4), word(1, "warmup", 1)]) == "warmup, step 2 of 9"
    assert describe([word(0, "timed", 0), word(1, "init", -1)]) == "init"
    assert describe([word(0, "done", 9), word(1, "done", 9)]) == "done"
    assert describe([word(0, "init", -1), word(1, "compile", -1)]) == COMPILING


def test_the_memory_is_that_of_the_largest_rank_and_nothing_when_none_has_said() -> None:
    assert memory([word(0, "timed", 4, 2**30), word(1, "timed", 4, 3 * 2**29)]) == "1.50 GiB on the largest rank"
    assert memory([word(0, "import", -1, None)]) == ""


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> tuple[LiveView, io.StringIO]:
    monkeypatch.setattr("zerobench.cli.live.REPAINT_S", 0.0)
    screen = io.StringIO()
    return LiveView(Console(file=screen, width=100, force_terminal=True, color_system=None)), screen


def test_a_terminal_shows_trial_phase_step_memory_and_time_left(live: tuple[LiveView, io.StringIO]) -> None:
    view, screen = live
    view.run_started(RUN, to_do=2, kept=0, skipped=0)
    view.trial_started(TRIAL, 1, 2)
    view.trial_ended(record(Status.COMPLETED, 60.0))
    view.trial_started(TRIAL, 2, 2)
    view.trial_progress([word(0, "timed", 4), word(1, "timed", 3)])
    view.run_ended()
    shown = screen.getvalue()
    assert "trial 2 of 2 | timed, step 4 of 9 | 1.00 MiB on the largest rank | 0 s | about 1 min 00 s left" in shown
    assert f"completed {TRIAL.trial_id} in 1 min 00 s" in shown


def test_a_terminal_gets_its_cursor_back(live: tuple[LiveView, io.StringIO]) -> None:
    view, screen = live
    view.run_started(RUN, to_do=1, kept=0, skipped=0)
    view.trial_started(TRIAL, 1, 1)
    view.run_ended()
    assert screen.getvalue().rindex("\x1b[?25h") > screen.getvalue().rindex("\x1b[?25l")


def test_a_terminal_shows_for_how_long_a_kernel_is_being_compiled(live: tuple[LiveView, io.StringIO]) -> None:
    view, screen = live
    view.run_started(RUN, to_do=1, kept=0, skipped=0)
    view.compiling("cpu_adam", 42.4)
    view.note("compiled cpu_adam in 43.0 s")
    view.run_ended()
    assert "minutes, once per machine | 42.0 s" in screen.getvalue()
    assert "\x1b[2Kcompiled cpu_adam in 43.0 s\n" in screen.getvalue()


def test_a_terminal_is_not_repainted_more_often_than_twice_a_second() -> None:
    screen = io.StringIO()
    view = LiveView(Console(file=screen, width=80, force_terminal=True))
    view.run_started(RUN, to_do=1, kept=0, skipped=0)
    view.trial_started(TRIAL, 1, 1)
    painted = len(screen.getvalue())
    for step in range(100):
        view.trial_progress([word(0, "timed", step)])
    assert len(screen.getvalue()) == painted
    view.run_ended()


def test_both_views_are_what_the_runner_expects() -> None:
    views: list[Observer] = [PlainView(Console(file=io.StringIO())), LiveView(Console(file=io.StringIO()))]
    assert len(views) == 2


def test_a_plan_in_a_pipe_counts_what_is_predicted_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    said, now = io.StringIO(), [0.0]
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setattr("zerobench.cli.live.time.monotonic", lambda: now[0])
    view = prediction_view()
    view.run_started(RUN, 9, 0, 2)
    for _ in range(9):
        now[0] += 2
        view.trial_ended(record(Status.COMPLETED, 2.0))
    assert said.getvalue().splitlines()[1:] == ["3 of 9 predicted", "6 of 9 predicted"]


def test_a_plan_in_a_pipe_says_where_the_trials_in_hand_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said, now = io.StringIO(), [0.0]
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setattr("zerobench.cli.live.time.monotonic", lambda: now[0])
    view = prediction_view()
    trials = sample_trials()
    view.run_started(write_run(tmp_path / RUN_ID, trials), 9, 0, 0)
    [plain, offloaded] = [
        next(trial.spec for trial in trials if (trial.spec.strategy, trial.spec.offload_optimizer) == wanted)
        for wanted in (("zero2", "none"), ("zero3", "cpu"))
    ]
    for at in (1.0, 6.0, 7.0):
        now[0] = at
        view.playing([(plain, word(0, "timed", 1)), (offloaded, None)])
    assert said.getvalue().splitlines()[1:] == [
        "0 of 9 predicted | zero2: timed, step 2 of 9 | zero3 opt=cpu: starting"
    ]


def test_a_terminal_keeps_the_memory_by_category_of_the_trials_that_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = sample_trials()
    folder = write_run(tmp_path / RUN_ID, trials)
    screen = io.StringIO()
    monkeypatch.setattr("zerobench.cli.live.MOST_BARS", len(trials))
    view = LiveView(Console(file=screen, width=140, force_terminal=True, color_system=None))
    view.run_started(folder, to_do=len(trials), kept=0, skipped=0)
    for number, trial in enumerate(trials, start=1):
        view.trial_started(trial.spec, number, len(trials))
        view.trial_ended(trial.record)
    view.trial_started(trials[0].spec, len(trials), len(trials))
    view.run_ended()
    last = screen.getvalue()[screen.getvalue().rindex(f"trial {len(trials)} of") :]
    (line,) = [line for line in last.splitlines() if line.startswith("zero0  ")]
    zero0 = next(one for one in run_frames([load_run(folder.path)]).figures if one.label == "zero0")
    peak = zero0.peak(Place.DEVICE)
    assert peak is not None
    assert f"{format_bytes(peak.total_bytes)}  {zero0.summary.tokens_per_s:,.0f} tokens/s" in line
    assert "parameters" in last
    assert "optimizer" in last
    assert any("out of device memory" in line and "\N{FULL BLOCK}" not in line for line in last.splitlines())


def test_bars_are_as_long_as_their_bytes_whatever_their_parts_round_to() -> None:
    parts = [("parameters", 7), ("gradients", 7), ("optimizer", 7), ("activations", 79)]
    whole = EndedTrial(TRIAL, parts, "")
    half = EndedTrial(TRIAL, [("parameters", 50)], "")
    screen = io.StringIO()
    Console(file=screen, width=200).print(bars([whole, half], ["whole", "half"], None, 200))
    long, short = [line.count("\N{FULL BLOCK}") for line in screen.getvalue().splitlines()[:2]]
    assert abs(long - 2 * short) <= 1
    assert long > 100
