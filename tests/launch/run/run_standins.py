"""A runner in a process of its own, so that it can be sent signals: `run REPORTS` or `resume RUN`."""

import signal
import sys
from pathlib import Path

from zerobench.config.sweep.expand import PlannedTrial
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.executor import LocalExecutor
from zerobench.launch.run.observer import Observer
from zerobench.launch.run.runner import resume_run, run_sweep


def planned(name: str, act: str) -> PlannedTrial:
    model = ModelSpec(name=name, hf_config={"model_type": "standin", "acts": {"0": act}})
    return PlannedTrial(trial=TrialSpec(model=model, strategy="single", timeout_s=120))


def main(verb: str, path: Path) -> int:
    executor, plan = LocalExecutor(2, 0, worker_module="standin_worker"), [planned("first", "complete")]
    plan += [planned("second", "hang_the_first_time"), planned("third", "complete")]
    if verb == "resume":
        return resume_run(path, environment={"when": "later"}, executor=executor, observer=Observer()).exit_code
    result = run_sweep(
        plan,
        {"name": "interrupted"},
        environment={"when": "first"},
        reports=path,
        executor=executor,
        observer=Observer(),
    )
    return result.exit_code


if __name__ == "__main__":
    # A shell that runs the tests in the background has SIGINT ignored for them, and the runner would honour that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
