"""A worker that measures nothing and speaks the real worker's file contract, so that the launcher, the runner and its
judgement of failures are tested in seconds. What each rank does is said in the trial's model config under `acts`.
"""

import argparse
import faulthandler
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from zerobench.common.vocabulary import Phase, Status
from zerobench.config.trial.trial import TrialSpec
from zerobench.records.folder import TrialFolder, write_whole
from zerobench.records.progress import Progress
from zerobench.records.records import Failure, RankRecord

RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])


def report(folder: TrialFolder, phase: str, step: int) -> None:
    progress = Progress(
        rank=RANK,
        pid=os.getpid(),
        hostname=socket.gethostname(),
        phase=phase,
        step_index=step,
        num_steps=8,
        memory_bytes=10_000_000 * (RANK + 1),
        updated_at_s=time.time(),
    )
    write_whole(folder.progress(RANK), progress.model_dump_json())


def record(folder: TrialFolder, status: Status, failure: Failure | None = None) -> None:
    written = RankRecord(
        trial_id=folder.path.name,
        rank=RANK,
        local_rank=int(os.environ["LOCAL_RANK"]),
        world_size=WORLD_SIZE,
        hostname=socket.gethostname(),
        pid=os.getpid(),
        status=status,
        failure=failure,
        device_type="cpu",
        device_name=os.environ["MALLOC_TOP_PAD_"],  # shows that the environment arrived
        micro_batch_size=1,
    )
    write_whole(folder.rank_record(RANK), written.model_dump_json())


def complete(folder: TrialFolder) -> None:
    record(folder, Status.COMPLETED)


def abort_after_record(folder: TrialFolder) -> None:
    """Once every rank has left its record: the launcher ends the others when one dies."""
    complete(folder)
    while not all(folder.rank_record(rank).exists() for rank in range(WORLD_SIZE)):
        time.sleep(0.05)
    os.abort()


def hang_after_record(folder: TrialFolder) -> None:
    complete(folder)
    wait_for_a_peer_that_never_comes()


def crash(folder: TrialFolder) -> None:
    try:
        int("the planted fault")
    except ValueError as error:
        failure = Failure(
            message=f"{type(error).__name__}: {error}",
            phase=Phase.BACKWARD,
            step_index=3,
            exception="ValueError",
            traceback=traceback.format_exc(),
        )
        record(folder, Status.CRASH, failure)
    sys.exit(1)


def crash_when_a_peer_is_gone(folder: TrialFolder) -> None:
    """As gloo does: the peer's socket closes, and this rank has an error of its own."""
    while all(_alive(path) for path in folder.path.glob("progress_*.json")):
        time.sleep(0.001)
    record(folder, Status.CRASH, Failure(message="connection closed by peer"))
    sys.exit(1)


def _alive(path: Path) -> bool:
    pid = Progress.model_validate_json(path.read_bytes()).pid
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def wait_for_a_peer_that_never_comes(_folder: TrialFolder | None = None) -> None:
    while True:
        time.sleep(60)


def hang_the_first_time(folder: TrialFolder) -> None:
    """Until it is stopped; run again, it completes."""
    trace = folder.path.parents[1] / f"been_here_{RANK}"
    if not trace.exists():
        trace.touch()
        wait_for_a_peer_that_never_comes()
    complete(folder)


def die_by_sigkill(_folder: TrialFolder) -> None:
    time.sleep(0.7)  # until the runner has seen the progress file
    os.kill(os.getpid(), signal.SIGKILL)


def kill_the_launcher(folder: TrialFolder) -> None:
    """The process of it that is every rank's parent, once all have spoken."""
    while len(list(folder.path.glob("progress_*.json"))) < WORLD_SIZE:
        time.sleep(0.05)
    time.sleep(0.7)
    os.kill(os.getppid(), signal.SIGKILL)
    wait_for_a_peer_that_never_comes()


def exit_silently(_folder: TrialFolder) -> None:
    time.sleep(0.7)
    os._exit(3)


def ignore_sigterm(_folder: TrialFolder) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wait_for_a_peer_that_never_comes()


def leave_a_helper(folder: TrialFolder) -> None:
    """A process in a session of its own whose parent is gone: what a careless helper leaves."""
    script = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)"
    subprocess.run([sys.executable, "-c", script], check=True)
    complete(folder)


def exhaust_host_memory(_folder: TrialFolder) -> None:
    Path(os.environ["STANDIN_CGROUP"], "cgroup.procs").write_text(str(os.getpid()))
    time.sleep(0.7)
    hoard = []
    while True:
        hoard.append(b"1" * 10_000_000)


ACTS: dict[str, Callable[[TrialFolder], None]] = {
    act.__name__: act
    for act in (
        complete,
        abort_after_record,
        hang_after_record,
        crash,
        crash_when_a_peer_is_gone,
        wait_for_a_peer_that_never_comes,
        hang_the_first_time,
        die_by_sigkill,
        kill_the_launcher,
        exit_silently,
        ignore_sigterm,
        leave_a_helper,
        exhaust_host_memory,
    )
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trial-folder", type=Path, required=True)
    folder = TrialFolder(parser.parse_args().trial_folder)
    trial = TrialSpec.model_validate_json(folder.spec.read_bytes())
    stacks = folder.stacks(RANK).open("w")
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    report(folder, "import", 0)
    print(f"rank {RANK} of {WORLD_SIZE} begins")
    report(folder, "timed", 3)
    ACTS[trial.model.hf_config["acts"].get(str(RANK), "complete")](folder)
    report(folder, "done", 8)


if __name__ == "__main__":
    main()
