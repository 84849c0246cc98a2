"""The table of how long emulated trials take is of processor seconds, and names what missed its goal."""

import subprocess
import sys

from benchmarks.emulated.speed import Clock, Timing, large_cells, rows, warm_cells
from tests.tools.imports import ROOT
from zerobench.config.trial.trial import Evidence

IMPORTS = Clock(wall_s=30.0, processor_s=10.0, peak_rss_bytes=5 * 10**8)


def test_processor_seconds_are_held_against_the_goal_and_wall_seconds_are_shown() -> None:
    slow = Timing("b", wall_s=25.0, processor_s=31.0, goal_s=30.0, peak_rss_bytes=2 * 10**9)
    loaded = Timing("a", wall_s=90.0, processor_s=29.0, goal_s=30.0, peak_rss_bytes=6 * 10**8)
    lines = rows(IMPORTS, [loaded, slow])
    assert lines[2] == "| a | 29.0 | 30 | reached | 2.9 | 90.0 | 0.60 |"
    assert lines[3] == "| b | 31.0 | 30 | MISSED: time, memory | 3.1 | 25.0 | 2.00 |"


def test_every_cell_is_played_in_the_emulated_world_and_no_two_are_one() -> None:
    trials = [*warm_cells(), *(trial for *_, trial in large_cells(tiny=False))]
    assert {trial.evidence for trial in trials} == {Evidence.EMULATED}
    assert len({trial.trial_id for trial in trials}) == len(trials)
    assert [trial.world_size for *_, trial in large_cells(tiny=False)] == [1024, 1024]


MEASURED = """
import subprocess, sys
from benchmarks.emulated.speed import processor_s
burn = "import time\\nwhile time.process_time() < 0.3: pass"
program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}]); print(flush=True); input()"
with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
    process.stdout.readline()
    print(process.poll() is None, processor_s())
    process.communicate(b"\\n")
"""


def test_processor_seconds_hold_a_process_that_was_waited_for_by_one_that_lives() -> None:
    """In a process of its own: the tests' own has others below it, which come and go."""
    done = subprocess.run([sys.executable, "-c", MEASURED], cwd=ROOT, capture_output=True, text=True, check=True)
    lives, seconds = done.stdout.split()
    assert lives == "True"
    assert float(seconds) >= 0.3
