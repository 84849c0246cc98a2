"""The simulator's own loop and forks around trials that simulate nothing: what each does its model says in `acts`."""

import os
import signal
import socket
import time
from pathlib import Path

from zerobench.common.vocabulary import Status
from zerobench.config.trial.trial import TrialSpec
from zerobench.rank.loop import forked_trial, simulator
from zerobench.rank.loop.launched import one_of
from zerobench.records.folder import TrialFolder, write_whole
from zerobench.records.progress import ProgressFile
from zerobench.records.records import RankRecord


def play(folder: TrialFolder) -> int:
    trial = TrialSpec.model_validate_json(folder.spec.read_bytes())
    progress = ProgressFile(folder, one_of(trial), 2)
    progress.say("init", -1, always=True)
    match trial.model.hf_config["acts"].get("0", "complete"):
        case "hang":
            time.sleep(600)
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "go on":
            for _ in range(12):
                time.sleep(0.25)
                progress.say("first", 0, always=True)
    record = RankRecord(
        trial_id=trial.trial_id,
        rank=0,
        local_rank=0,
        world_size=trial.world_size,
        hostname=socket.gethostname(),
        pid=os.getpid(),
        status=Status.COMPLETED,
        device_type="simgpu",
        device_name="none",
        micro_batch_size=1,
    )
    write_whole(folder.rank_record(0), record.model_dump_json())
    return 0


if __name__ == "__main__":
    if begun := os.environ.get("STANDIN_DIES_AT_START"):
        with Path(begun).open("a") as file:
            file.write("x")
        if len(Path(begun).read_text()) <= int(os.environ["STANDIN_DEATHS"]):
            os.kill(os.getpid(), signal.SIGKILL)
    simulator.import_everything = lambda world: None
    simulator.read_everything = lambda: None
    forked_trial._run_rank = lambda trial, folder, rank, *, with_room: play(folder)
    simulator.main()
