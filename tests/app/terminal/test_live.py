"""What the screen shows while a sweep runs."""

import io
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from tests.report.sample_run import RUN_ID, sample_trials, write_run
from tests.tools.rank_records import progress, trial_record
from zerobench.app.terminal.live import LiveView, PlainView, screen
from zerobench.app.terminal.live_predictions import Doing, prediction_view
from zerobench.app.terminal.live_trial import COMPILING, EndedTrial, bars, describe, memory, speed
from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Place, Status
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.observer import Observer
from zerobench.records.folder import RunFolder
from zerobench.records.progress import Progress
from zerobench.records.records import TrialRecord
from zerobench.records.store import load_run
from zerobench.report.export.run_frames import run_frames

RUN = RunFolder(Path("/reports/stages_20250101-120000"))
TRIAL = TrialSpec(model=ModelSpec(name="small", hf_config={"model_type": "gpt2"}), strategy="zero2")


def word(rank: int, phase: str, step: int, memory_bytes: int | None = 2**20) -> Progress:
    said = {"phase": phase, "step_index": step, "num_steps": 9, "memory_bytes": memory_bytes}
    return progress(rank, updated_at_s=float(rank), **said)


def record(status: Status, seconds: float, reason: str | None = None) -> TrialRecord:
    times = {"started_at_s": 100.0, "ended_at_s": 100.0 + seconds}
    return trial_record(RUN.run_id, TRIAL, status, reason=reason, ranks_expected=2, **times)


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
        f"trial 2 of 2: {TRIAL.trial_id} (about 12 s left)",
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
    monkeypatch.setattr("zerobench.app.terminal.live.REPAINT_S", 0.0)
    screen = io.StringIO()
    return LiveView(Console(file=screen, width=100, force_terminal=True, color_system=None)), screen


def test_a_long_line_is_wrapped_at_words_on_a_terminal_and_whole_elsewhere(live: tuple[LiveView, io.StringIO]) -> None:
    view, screen = live
    text = "buckets " * 40
    view.say(text.strip())
    assert set(screen.getvalue().split()) == {"buckets"}
    assert max(map(len, screen.getvalue().splitlines())) <= 100
    piped, lines = plain()
    piped.say(text.strip())
    assert lines.getvalue() == f"{text.strip()}\n"


GIB = 2**30
H100 = "NVIDIA H100 80GB HBM3"
PEAK = {
    "parameters": 12 * GIB,
    "gradients": 3 * GIB,
    "master_weights": 10 * GIB,
    "first_moment": 10 * GIB,
    "second_moment": 10 * GIB,
    "activations": 15 * GIB,
    "logits_and_loss": 2 * GIB,
    "reduce_buffers": GIB,
    "temporaries": GIB // 2,
}


def gpu(rank: int, more_bytes: int = 0, tokens_per_s: float | None = 12_345.0) -> Progress:
    return word(rank, "timed", 4 if rank else 3, 50 * GIB).model_copy(
        update={
            "local_rank": rank,
            "device_name": H100,
            "capacity_bytes": 80 * GIB,
            "peak_by_category": {**PEAK, "activations": PEAK["activations"] + more_bytes},
            "tokens_per_s": tokens_per_s,
        }
    )


def painted(ranks: list[Progress], width: int, height: int, ended: int = 0) -> list[str]:
    """The lines of the screen while `ranks` run the second trial of five."""
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    view = LiveView(console)
    view.trial_ended(record(Status.COMPLETED, 60.0))
    view._ended = [EndedTrial(TRIAL, [("parameters", GIB)], f"{GIB} B  9,999 tokens/s", 80 * GIB)] * ended
    view._names = [f"zero{number}" for number in range(ended)]
    view._trial, view._number, view._to_do = TRIAL, 2, 5
    return ["".join(part.text for part in line).rstrip() for line in console.render_lines(view._screen(ranks, 12.0))]


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("ended", [0, 12])
@pytest.mark.parametrize("world_size", [1, 8, 64])
def test_a_screen_of_24_lines_shows_each_gpus_memory_by_category_the_phase_and_the_speed(
    width: int, ended: int, world_size: int
) -> None:
    lines = painted([gpu(rank, rank * 2**20) for rank in range(world_size)], width, 24, ended)
    assert len(lines) <= 24
    assert all(len(line) <= width for line in lines)
    whole = "\n".join(lines)
    assert "\N{HORIZONTAL ELLIPSIS}" not in whole
    for said in ("trial 2 of 5", "about", "timed, step 4 of 9", "12,345 tokens/s", f"{world_size} x {H100}"):
        assert said in whole
    for said in ("parameters 12.00 GiB", "optimizer 30.00 GiB", "logits 2.00 GiB", "buffers 1.00 GiB"):
        assert said in whole
    rows = [line for line in lines if "of 80.00 GiB" in line]
    assert len(rows) == min(world_size, 8)
    assert [int(row.split()[0]) for row in rows] == list(range(world_size))[-8:]
    assert (f"and {world_size - 8} more: peaks of 63.50 GiB to 63.55 GiB" in whole) == (world_size > 8)
    assert any(line.startswith("zero11") for line in lines) == (ended > 0)


def test_a_gpus_bar_is_as_long_as_its_share_of_what_it_has() -> None:
    half = gpu(0).model_copy(update={"peak_by_category": {"parameters": 10 * GIB, "gradients": 30 * GIB}})
    (row,) = [line for line in painted([half], 120, 40) if "of 80.00 GiB" in line]
    used, free = row.count("\N{FULL BLOCK}"), row.count("\N{BOX DRAWINGS LIGHT HORIZONTAL}")
    assert used > 20
    assert abs(used - free) <= 1


def test_ranks_of_several_nodes_have_their_nodes_names_and_a_cpu_has_no_capacity() -> None:
    there = gpu(1).model_copy(update={"hostname": "there", "local_rank": 0})
    whole = "\n".join(painted([gpu(0), there], 80, 24))
    assert "here 0" in whole
    assert "there 0" in whole
    on_cpu = gpu(0).model_copy(update={"capacity_bytes": None, "device_name": "AMD EPYC"})
    lines = painted([on_cpu], 80, 24)
    assert any(line.split()[:1] == ["rank"] and line.endswith("process") for line in lines)
    assert " of 80" not in "\n".join(lines)


def test_a_node_or_device_of_a_hostile_name_is_text() -> None:
    there = gpu(1).model_copy(update={"hostname": "[bold]\x1b[2J[/]", "device_name": "[red]H100"})
    whole = "\n".join(painted([gpu(0), there], 120, 40))
    assert "[bold]" in whole
    assert "[red]H100" in whole
    assert "\x1b[2J" not in whole


def test_a_rank_that_has_measured_nothing_yet_says_what_it_does() -> None:
    lines = painted([word(0, "import", -1, None), word(1, "init", -1)], 80, 24)
    assert any(line.startswith("0 ") and line.rstrip().endswith("import") for line in lines)
    assert any(line.startswith("1 ") and line.endswith("1.00 MiB") for line in lines)


def test_the_slowest_rank_says_the_speed_and_nobody_before_a_step_was_timed() -> None:
    assert speed([gpu(0, tokens_per_s=20.0), gpu(1, tokens_per_s=1234.5)]) == "20 tokens/s"
    assert speed([word(0, "first", 0)]) == ""


def test_a_terminal_shows_trial_phase_step_and_time_left(live: tuple[LiveView, io.StringIO]) -> None:
    view, screen = live
    view.run_started(RUN, to_do=2, kept=0, skipped=0)
    view.trial_started(TRIAL, 1, 2)
    view.trial_ended(record(Status.COMPLETED, 60.0))
    view.trial_started(TRIAL, 2, 2)
    view.trial_progress([word(0, "timed", 4), word(1, "timed", 3)])
    view.run_ended()
    shown = screen.getvalue()
    for said in ("trial 2 of 2", "timed, step 4 of 9", "1.00 MiB", "about 1 min 00 s left"):
        assert said in shown
    assert f"completed {TRIAL.trial_id} in 1 min 00 s" in shown


def test_without_a_terminal_a_long_trial_says_every_half_a_minute_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    view, screen = plain()
    now = [100.0]
    monkeypatch.setattr("zerobench.app.terminal.live.time.monotonic", lambda: now[0])
    view.trial_started(TRIAL, 1, 1)
    for seconds in (1.0, 31.0, 32.0, 62.0):
        now[0] = 100.0 + seconds
        view.trial_progress([gpu(0)])
    assert (
        screen.getvalue().splitlines()[1:]
        == ["timed, step 4 of 9 | 50.00 GiB on the largest rank | 12,345 tokens/s"] * 2
    )


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
    assert "minutes, once per machine | 42 s" in screen.getvalue()
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
    monkeypatch.setattr("zerobench.app.terminal.live_predictions.time.monotonic", lambda: now[0])
    view = prediction_view()
    view.run_started(RUN, 9, 0, 2)
    for _ in range(9):
        now[0] += 2
        view.trial_ended(record(Status.COMPLETED, 2.0))
    assert said.getvalue().splitlines()[1:] == ["3 of 9 predicted", "6 of 9 predicted"]


def test_a_plan_in_a_pipe_says_where_the_trials_in_hand_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said, now = io.StringIO(), [0.0]
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setattr("zerobench.app.terminal.live_predictions.time.monotonic", lambda: now[0])
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


def test_an_emulation_in_a_pipe_says_each_thing_done_and_every_few_seconds_for_how_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setattr("zerobench.app.terminal.live_predictions.SAID_EVERY_S", 0.01)

    def wait_for(line: str) -> None:
        until_s = time.monotonic() + 10
        while line not in said.getvalue().splitlines() and time.monotonic() < until_s:
            time.sleep(0.005)
        assert line in said.getvalue().splitlines()

    with Doing() as view:
        view.say("rank 0 of 8")
        view.say("rank 0 of 8", [word(0, "timed", 1)])
        wait_for("rank 0 of 8: timed, step 2 of 9, 0 s")
        view.say("rank 0 of 8", [word(0, "done", 9)])
        wait_for("rank 0 of 8, 0 s")
        view.say("trying: batch size 1")
        wait_for("trying: batch size 1, 0 s")
    assert [said.getvalue().splitlines().count(line) for line in ("rank 0 of 8", "trying: batch size 1")] == [1, 1]


def test_an_emulation_on_a_terminal_moves_one_line_and_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Doing() as view:
        view.say("rank 0 of 8")
        time.sleep(0.3)
    assert "rank 0 of 8" in said.getvalue()
    assert said.getvalue().endswith("\x1b[2K")


def test_a_terminal_keeps_the_memory_by_category_of_the_trials_that_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = sample_trials()
    folder = write_run(tmp_path / RUN_ID, trials)
    screen = io.StringIO()
    monkeypatch.setattr("zerobench.app.terminal.live.MOST_BARS", len(trials))
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
    assert f"{format_bytes(peak.total_bytes)}  {zero0.tokens_per_s:,.0f} tokens/s" in line
    assert "parameters" in last
    assert "optimizer" in last
    assert any("out of device memory" in line and "\N{FULL BLOCK}" not in line for line in last.splitlines())


def test_bars_are_as_long_as_their_bytes_whatever_their_parts_round_to() -> None:
    parts = [("parameters", 7), ("gradients", 7), ("optimizer", 7), ("activations", 79)]
    whole = EndedTrial(TRIAL, parts, "")
    half = EndedTrial(TRIAL, [("parameters", 50)], "")
    screen = io.StringIO()
    Console(file=screen, width=200).print(bars([whole, half], ["whole", "half"], 200))
    long, short = [line.count("\N{FULL BLOCK}") for line in screen.getvalue().splitlines()[:2]]
    assert abs(long - 2 * short) <= 1
    assert long > 100


@pytest.mark.parametrize(
    ("term", "is_terminal", "view"),
    [("xterm-256color", "1", LiveView), ("dumb", "1", PlainView), ("xterm-256color", "0", PlainView)],
)
def test_only_a_terminal_that_can_move_its_cursor_has_a_moving_screen(
    monkeypatch: pytest.MonkeyPatch, term: str, is_terminal: str, view: type[PlainView]
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("TTY_COMPATIBLE", is_terminal)
    assert type(screen()) is view
