"""`zerobench watch` on the screen: the command's own output above all, one line of ours, then the tables."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from zerobench.app.terminal.watch import LiveScreen, line, seconds
from zerobench.common.errors import UserError
from zerobench.launch.tracking.command import CommandProgress
from zerobench.records.progress import Progress
from zerobench.records.records import NvmlDevice, NvmlSummary

GIB = 2**30


def zerobench(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "zerobench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=cwd)


def test_standard_output_is_the_commands_alone_and_the_tables_come_after_it(tmp_path):
    done = zerobench("watch", "--name", "mine", "--", sys.executable, "-c", "print('a'); exit(5)", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (5, "a\n")
    assert "the command exited with 5" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("Run: reports/mine_")


def test_show_reads_the_run_again(tmp_path):
    zerobench("watch", "--", sys.executable, "-c", "import time; time.sleep(0.5)", cwd=tmp_path)
    done = zerobench("show", cwd=tmp_path)
    assert done.returncode == 0
    assert "Sampled process tree" in done.stdout
    reported = zerobench("report", "--html", "--markdown", cwd=tmp_path)
    assert (reported.returncode, reported.stderr) == (0, "")
    page, markdown = (Path(tmp_path, path).read_text() for path in reported.stdout.split())
    assert "script" in page
    assert "watched by `zerobench watch`" in markdown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--", "no-such-program-zb"], "COMMAND: 'no-such-program-zb' not found or not executable"),
        (["--interval", "0", "--", "true"], "--interval: '0'; choices: 1ms or more"),
        ([], "COMMAND"),
    ],
)
def test_mistakes_are_one_line_and_leave_no_folder(tmp_path, arguments, words):
    done = zerobench("watch", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "reports").exists()


@pytest.mark.parametrize(("text", "value"), [("10ms", 0.01), ("0.5s", 0.5), ("2", 2.0), ("1000 us", 0.001)])
def test_an_interval_has_its_unit(text, value):
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "0ms", "1us", "-1", "ten", "nan", "1e3"])
def test_an_interval_that_is_none_is_refused(text):
    with pytest.raises(UserError, match="--interval"):
        seconds(text)


def test_the_line_says_what_is_known():
    device = {"gpu_uuid": "GPU-1", "name": "H200", "index": 0, "total_bytes": None, "reserved_bytes": None}
    device |= {"baseline_used_bytes": 0, "peak_used_bytes": 3 * GIB, "energy_joules": None, "mean_power_watts": None}
    nvml = NvmlSummary(hostname="h", available=True, devices=[NvmlDevice.model_validate(device)])
    where = {"phase": "memory", "step_index": 3, "num_steps": 11, "memory_bytes": None, "updated_at_s": 0.0}
    spoken = [Progress(rank=0, pid=1, hostname="h", **where)]
    assert line(CommandProgress(5.2, [], 0, 0, None)) == "5 s"
    assert line(CommandProgress(65.2, spoken, 8, GIB, nvml)) == (
        "1 min 05 s | 8 ranks | host 1.00 GiB | GPU peak 3.00 GiB | tracked: memory, step 4 of 11"
    )


def test_a_terminal_gets_whole_lines_and_of_a_progress_bar_its_last_state():
    file = io.StringIO()
    with LiveScreen(Console(file=file, force_terminal=True, width=80, color_system=None)) as screen:
        screen.out(b"10%\r20%\r100%\nhalf a ")
        screen.out(b"line\n[bold]not markup[/bold]\nrest")
        screen.progress(CommandProgress(1.0, [], 0, 0, None))
    text = file.getvalue()
    assert "100%" in text
    assert "20%" not in text
    assert "half a line" in text
    assert "[bold]not markup[/bold]" in text
    assert "rest" in text
