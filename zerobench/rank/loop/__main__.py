"""Entry of one rank: starts the node's sampler before any heavy import, runs the trial, and always leaves a record.

The process ends with os._exit, since some builds of torch abort at interpreter exit after correct results.
"""

import argparse
import faulthandler
import os
import signal
import sys
from pathlib import Path

from zerobench.common.rank_processes import leave
from zerobench.config.derived.step_plan import plan_steps
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.rank.loop.launched import find_own_programs, one_of, read_rank
from zerobench.rank.nvml.sampler import Sampler
from zerobench.records.folder import TrialFolder, write_whole
from zerobench.records.progress import ProgressFile
from zerobench.records.records import RankRecord

_SAMPLER_START_S = 10.0


def main() -> None:
    """Run the rank that the launcher's environment describes."""
    parser = argparse.ArgumentParser(prog="zerobench.rank.loop", description=__doc__)
    parser.add_argument("--trial-folder", type=Path, required=True, help="folder that holds trial.json")
    parser.add_argument("--local_rank", type=int, help="given by the deepspeed launcher; LOCAL_RANK is used instead")
    folder = TrialFolder(parser.parse_args().trial_folder)
    find_own_programs()
    trial = TrialSpec.model_validate_json(folder.spec.read_text(encoding="utf-8"))
    stacks = folder.stacks(int(os.environ.get("RANK", "0"))).open("w", encoding="utf-8")
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    leave(_run(trial, folder))


def _run(trial: TrialSpec, folder: TrialFolder) -> int:
    rank = read_rank(trial.gpus_per_node) if trial.evidence is Evidence.MEASURED else one_of(trial)
    progress = ProgressFile(folder, rank, len(plan_steps(trial)))
    progress.say("import", -1, always=True)
    sampler = _start_sampler(folder, rank.node)
    from zerobench.rank.ledger.failures import describe
    from zerobench.rank.loop.rank import RankRun

    run = RankRun(trial, folder, rank, progress)
    try:
        run.run()
    except BaseException as error:  # noqa: BLE001 - whatever ended the rank is its result
        run.record.status, run.record.failure = describe(error, run.marks, run.rank.rank, run.device)
        _write(folder, run.record)
        print(run.record.failure.traceback, file=sys.stderr)  # noqa: T201 - for whoever reads the rank's stderr
    else:
        _write(folder, run.record)
        run.world.leave()
    if sampler is not None:
        sampler.stop()
    return 0 if run.record.failure is None else 1


def _start_sampler(folder: TrialFolder, node: int) -> Sampler | None:
    """Start the node's sampler over the devices of the trial, in its first rank, before any CUDA context.

    Other ranks do not wait: importing torch takes longer than the sampler's baseline.
    """
    if os.environ.get("LOCAL_RANK", "0") != "0":
        return None
    sampler = Sampler.start(folder, node, uuids=None)
    sampler.wait_ready(_SAMPLER_START_S)
    return sampler


def _write(folder: TrialFolder, record: RankRecord) -> None:
    write_whole(folder.rank_record(record.rank), record.model_dump_json())


if __name__ == "__main__":
    main()
