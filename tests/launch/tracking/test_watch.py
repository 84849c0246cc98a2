"""A command of the user's own is run as it is, watched from outside, and leaves a run like any other."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.nvml_standin.standin import uuid
from tests.report.export.at_hand import trials_frame
from tests.tools.printed import shown_run
from tests.tools.rank_records import rank_record
from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Category, Status
from zerobench.launch.run.executor import LocalExecutor
from zerobench.launch.run.observer import Observer
from zerobench.launch.run.outcome import Ending, Stopped
from zerobench.launch.run.ranks import RankDeath
from zerobench.launch.run.runner import resume_run
from zerobench.launch.tracking.command import Show
from zerobench.launch.tracking.own_trial import LEDGER_ALONE
from zerobench.launch.tracking.watch import classify_script, watch
from zerobench.records.progress import Progress
from zerobench.records.records import Failure, HostStanding, TrialRecord
from zerobench.records.store import load_run


def message_of(failure):
    return None if failure is None else failure.message


KILL = "oom_kill in /proc/vmstat rose by 1"


def record(rank, status=Status.COMPLETED, message=None):
    failure = Failure(message=message, rank=rank) if message else None
    return rank_record("t", rank, world_size=2, status=status, failure=failure)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "the command exited with 3"),
        (255, "the command exited with 255"),  # sys.exit(-1), ssh: more often that than 256 - SIGHUP
        (-signal.SIGSEGV, "the command was killed by SIGSEGV"),
        (256 - signal.SIGKILL, "the first process to fail was killed by SIGKILL"),
        (128 + signal.SIGABRT, "the first process to fail was killed by SIGABRT"),
    ],
)
def test_a_crash_names_the_exit_status_or_the_signal_behind_it(code, words):
    status, failure, _ = classify_script(Ending(ranks_expected=1, exit_code=code))
    assert (status, message_of(failure)) == (Status.CRASH, words)


@pytest.mark.parametrize("code", [-signal.SIGKILL, 256 - signal.SIGKILL, 128 + signal.SIGKILL])
def test_a_kill_with_the_kernels_counter_risen_is_out_of_host_memory(code):
    status, failure, _ = classify_script(Ending(ranks_expected=1, exit_code=code, oom=KILL))
    assert (status, failure and failure.evidence) == (Status.OUT_OF_HOST_MEMORY, KILL)


def test_a_script_that_was_killed_leaves_its_trackers_last_account():
    held = HostStanding(at="the peak of start-up", by_category={Category.PARAMETERS: 5})
    fields = {"pid": 1, "hostname": "h", "phase": "first", "step_index": 0, "num_steps": 3, "memory_bytes": None}
    word = Progress(rank=3, updated_at_s=0.0, host_standing=held, **fields)
    ending = Ending(ranks_expected=1, exit_code=-signal.SIGKILL, oom=KILL, progress=[word])
    failure = classify_script(ending)[1]
    assert failure is not None
    assert failure.host_standing is not None
    assert failure.host_standing.is_last_account
    assert failure.host_standing.at == "the peak of start-up of rank 3"
    status, unproven, _ = classify_script(replace(ending, oom=None))
    assert status is Status.CRASH
    assert unproven is not None
    assert unproven.host_standing == failure.host_standing


def test_the_counter_alone_is_no_evidence_against_a_command_that_failed_by_itself():
    status, _, _ = classify_script(Ending(ranks_expected=1, exit_code=1, oom=KILL))
    assert status is Status.CRASH


def test_a_rank_that_recorded_its_failure_gives_the_reason():
    records = [record(0), record(1, Status.OUT_OF_DEVICE_MEMORY, "OutOfMemoryError in backward of step 0")]
    status, failure, _ = classify_script(Ending(ranks_expected=2, exit_code=1, records=records))
    assert status is Status.OUT_OF_DEVICE_MEMORY
    assert (failure and failure.rank, message_of(failure)) == (1, "OutOfMemoryError in backward of step 0")


def test_a_rank_that_died_after_its_tracked_steps_is_found_all_the_same():
    deaths = [RankDeath(1, 10.0, -signal.SIGSEGV)]
    ending = Ending(ranks_expected=2, exit_code=245, records=[record(0), record(1)], deaths=deaths)
    status, failure, _ = classify_script(ending)
    assert (status, failure and failure.rank) == (Status.CRASH, 1)


def test_a_script_that_was_stopped_is_interrupted():
    status, failure, _ = classify_script(Ending(ranks_expected=1, exit_code=-2, stopped=Stopped.INTERRUPTED))
    assert (status, message_of(failure)) == (Status.INTERRUPTED, "stopped before its end")


def test_a_script_that_was_stopped_after_all_tracked_steps_has_given_its_figures():
    ending = Ending(ranks_expected=2, exit_code=-2, records=[record(0), record(1)], stopped=Stopped.INTERRUPTED)
    status, failure, notes = classify_script(ending)
    assert (status, failure) == (Status.COMPLETED, None)
    assert notes == ["the script was stopped after its last tracked step"]


def test_a_script_that_was_stopped_with_its_ledger_alone_is_interrupted():
    records = [record(0).model_copy(update={"notes": [LEDGER_ALONE]}), record(1)]
    ending = Ending(ranks_expected=2, exit_code=-2, records=records, stopped=Stopped.INTERRUPTED)
    assert classify_script(ending)[0] is Status.INTERRUPTED


def test_a_failure_that_the_script_survived_is_a_note():
    records = [record(0, Status.CRASH, "boom")]
    status, failure, notes = classify_script(Ending(ranks_expected=1, exit_code=0, records=records))
    assert (status, failure, len(notes)) == (Status.COMPLETED, None, 1)


MIB = 2**20
HOLD = "import time; held = bytearray(b'x') * (300 << 20); time.sleep(1.5)"
TWO_RANKS = """
import os, subprocess, sys
hold = "import time; held = bytearray(b'x') * (int(__import__('os').environ['RANK']) * 100 + 50 << 20); time.sleep(2.5)"
world = {"WORLD_SIZE": "2", "LOCAL_SIZE": "2"}
ranks = [subprocess.Popen([sys.executable, "-c", hold], env={**os.environ, "RANK": str(r), **world}) for r in range(2)]
sys.exit(max(rank.wait() for rank in ranks))
"""
TRAPS = """
import signal, sys, time
signal.signal(signal.SIGINT, lambda *_: sys.exit(7))
print("ready", flush=True)
time.sleep(60)
"""


def test_the_output_is_passed_on_and_kept_byte_for_byte(watch_python):
    seen = watch_python(r"import sys; sys.stdout.buffer.write(b'a\xffb\r\n'); sys.stderr.write('oh\n')")
    folder = seen.trial.folder
    assert bytes(seen.screen.out) == folder.stdout.read_bytes() == b"a\xffb\r\n"
    assert bytes(seen.screen.err) == folder.stderr.read_bytes() == b"oh\n"


def test_a_command_that_ends_well_is_a_completed_trial(watch_python):
    seen = watch_python("print(1)")
    assert seen.watched.exit_code == 0
    assert seen.trial.record.status is Status.COMPLETED
    assert seen.trial.record.exit_code == 0
    assert seen.trial.record.started_at_s < seen.trial.record.ended_at_s


def test_its_exit_status_is_handed_back_and_recorded_as_a_crash_with_its_last_words(watch_python):
    seen = watch_python("import sys; sys.exit('no such file: weights.bin')")
    assert seen.watched.exit_code == 1
    assert seen.trial.record.status is Status.CRASH
    assert seen.trial.record.reason == "the command exited with 1"
    assert "no such file: weights.bin" in seen.trial.record.failure.evidence


def test_a_command_that_is_killed_is_a_crash_by_that_signal(watch_python):
    seen = watch_python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert seen.watched.exit_code == 128 + signal.SIGKILL
    assert seen.trial.record.status is Status.CRASH
    assert seen.trial.record.reason == "the command was killed by SIGKILL"


def test_host_memory_is_that_of_the_whole_tree(watch_python):
    (host,) = watch_python(
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLD!r}])"
    ).trial.record.host
    assert 300 * MIB < host.peak_rss_bytes < 400 * MIB
    assert 300 * MIB < host.peak_pss_bytes <= host.peak_rss_bytes
    assert host.num_samples >= 10
    assert max(process.peak_rss_bytes for process in host.processes) > 300 * MIB


def test_the_samples_lie_beside_the_record(watch_python):
    seen = watch_python(HOLD)
    (path,) = seen.trial.folder.path.glob("host_*.csv")
    header, *rows = path.read_text().splitlines()
    sizes = [int(row.split(",")[2]) for row in rows]
    assert header == "t_s,num_processes,rss_bytes,pss_bytes,group_bytes"
    assert max(sizes) == seen.trial.record.host[0].peak_rss_bytes


def test_ranks_are_known_by_their_environment_and_each_has_its_peak(watch_python):
    seen = watch_python(TWO_RANKS)
    ranks = [process for process in seen.trial.record.host[0].processes if process.rank is not None]
    assert [rank.rank for rank in ranks] == [0, 1]
    assert 80 * MIB < ranks[1].peak_rss_bytes - ranks[0].peak_rss_bytes < 120 * MIB
    assert (seen.trial.spec.world_size, seen.trial.spec.num_nodes) == (2, 1)
    assert seen.screen.told[-1].num_ranks == 2


def test_the_command_leads_a_process_group_of_its_own(watch_python):
    seen = watch_python("import os; print(os.getpid() == os.getpgrp() == os.getsid(0))")
    assert bytes(seen.screen.out) == b"True\n"


def test_arguments_never_pass_through_a_shell(watch_python):
    seen = watch_python("import sys; print(sys.argv[1:])", "$HOME; echo *", "a b", "")
    assert bytes(seen.screen.out) == b"['$HOME; echo *', 'a b', '']\n"


def test_secrets_in_arguments_and_environment_are_in_no_file_of_the_run(watch_python, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "11223344deadbeef")
    said = "import os; print('key', os.environ['WANDB_API_KEY'])"
    seen = watch_python(said, "--hf-token", "hunter2hunter2", "--api-key=s3cr3ts3cr3t", "--lr", "1e-4")
    text = b"".join(path.read_bytes() for path in seen.watched.folder.path.rglob("*") if path.is_file())
    for secret in (b"hunter2hunter2", b"s3cr3ts3cr3t", b"11223344deadbeef"):
        assert secret not in text
    assert seen.trial.folder.command.read_text().splitlines()[-2:] == ["--lr", "1e-4"]
    assert b"11223344deadbeef" in bytes(seen.screen.out)  # the user's own screen is his own


def test_what_nobody_knows_of_the_work_is_said_nowhere(watch_python):
    seen = watch_python(HOLD, name="mine")
    frame = trials_frame([seen.trial])
    unknown = ["num_params", "micro_batch_size", "sequence_length", "precision", "optimizer", "attention"]
    assert frame[[*unknown, "zero_stage", "device_peak_bytes", "offload_param"]].isna().all(axis=None)
    assert frame["host_peak_bytes"].item() > 300 * MIB
    text = shown(seen.watched.folder.path)
    assert "mine, script, 1 rank, measured" in " ".join(text.split())
    assert "micro batch" not in text


def test_show_has_a_table_of_what_was_seen_from_outside(watch_python):
    text = shown(watch_python(TWO_RANKS).watched.folder.path)
    assert "Sampled process tree, MiB" in text
    assert "Host memory sampling interval: 100 ms" in text


def shown(path: Path) -> str:
    return shown_run(path, 140)


def test_a_run_of_an_own_script_cannot_be_resumed(watch_python):
    seen = watch_python("raise SystemExit(1)")
    executor = LocalExecutor(num_cpus=1, num_gpus=0)
    with pytest.raises(UserError, match="zerobench watch"):
        resume_run(seen.watched.folder.path, environment={}, executor=executor, observer=Observer())


def test_a_command_that_is_not_there_is_refused_before_a_folder_is_made(tmp_path):
    for command, words in (["no-such-program-zb"], "not found"), ([], "COMMAND is missing"):
        with pytest.raises(UserError, match=words):
            watch(command, name=None, interval_s=0.01, reports=tmp_path / "r", show=Show(print, print, print))
    assert not (tmp_path / "r").exists()


def test_the_output_of_a_process_that_outlives_the_command_is_not_waited_for(watch_python):
    began_s = time.monotonic()
    seen = watch_python(
        "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(30)']).pid)"
    )
    try:
        assert time.monotonic() - began_s < 20
        assert any("leftover processes" in note for note in seen.trial.record.notes)
    finally:
        os.kill(int(seen.screen.out), signal.SIGKILL)


# A shell that runs the tests in the background has SIGINT ignored for them, and zerobench would honour that.
HEEDING_SIGINT = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("zerobench", run_name="__main__", alter_sys=True)
"""


def start(tmp_path: Path, *command: str, **variables: str) -> subprocess.Popen[str]:
    own = [sys.executable, "-c", HEEDING_SIGINT, "watch", "--reports", str(tmp_path / "r"), "--", *command]
    pipe = subprocess.PIPE
    return subprocess.Popen(own, env={**os.environ, **variables}, stdout=pipe, stderr=pipe, text=True)


def await_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def only_record(tmp_path: Path) -> TrialRecord:
    (path,) = (tmp_path / "r").glob("*/trials/*/record.json")
    return TrialRecord.model_validate_json(path.read_bytes())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_handed_to_the_command_and_the_trial_is_interrupted_whole(tmp_path, number):
    process = start(tmp_path, sys.executable, "-c", TRAPS.replace("SIGINT", number.name))
    assert await_line(process) == "ready\n"
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 7, told
    assert only_record(tmp_path).status == "interrupted"
    assert list(load_run(next((tmp_path / "r").iterdir())).trials())


def test_a_warning_signal_reaches_the_command_and_ends_nothing(tmp_path):
    """As a scheduler sends it some time before its limit."""
    program = "import signal, sys; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0)); print('ready', flush=True)"
    process = start(tmp_path, sys.executable, "-c", f"{program}; signal.pause()")
    assert await_line(process) == "ready\n"
    process.send_signal(signal.SIGUSR1)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 0, told
    assert only_record(tmp_path).status == "completed"


def test_a_screen_that_takes_no_more_does_not_stop_the_command_and_all_it_said_is_kept(tmp_path):
    program = "for number in range(40_000): print(number)"
    own = [sys.executable, "-m", "zerobench", "watch", "--reports", str(tmp_path / "r"), "--", sys.executable, "-c"]
    with open("/dev/full", "wb") as full:  # noqa: PTH123 -- a device
        done = subprocess.run([*own, program], stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 0
    (kept,) = (tmp_path / "r").glob("*/trials/*/stdout.txt")
    assert kept.read_text() == "".join(f"{number}\n" for number in range(40_000))
    assert any("No space left on device" in note for note in only_record(tmp_path).notes)


def test_a_second_signal_kills_what_did_not_heed_the_first(tmp_path):
    deaf = (
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(60)"
    )
    process = start(tmp_path, sys.executable, "-c", deaf)
    await_line(process)
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL
    assert only_record(tmp_path).status == "interrupted"


def test_nvml_watches_the_devices_that_the_command_may_use(tmp_path, standin):
    environment = standin.environment("gpus 2\nmem 0/0 0:1073741824\nmem 1 0:3221225472")
    environment["CUDA_VISIBLE_DEVICES"] = "1"
    process = start(tmp_path, sys.executable, "-c", "import time; time.sleep(1)", **environment)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 0, told
    (summary,) = only_record(tmp_path).nvml
    (device,) = summary.devices
    assert (device.gpu_uuid, device.peak_used_bytes) == (uuid(1), 3221225472)
    assert summary.not_sampled == [uuid(0)]
    assert "1024" not in told
    assert "3072" in told
