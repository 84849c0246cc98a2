"""What happens to runs on a cluster, each played once on real daemons; the tests look at what is left."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.launch.slurm.cluster import Cluster
from tests.launch.slurm.on_cluster import OnCluster, standin_run, standin_trial
from zerobench.launch.run import tree
from zerobench.launch.slurm.submit.batch import template
from zerobench.records.folder import RunFolder
from zerobench.records.records import Start
from zerobench.records.store import read_record

NUM_NODES = 14
PARTITIONS = [
    "main Nodes=n[1-8] Default=YES MaxTime=60 PriorityTier=1",
    "low Nodes=n[9-10] MaxTime=60 PriorityTier=1 GraceTime=10",
    "spot Nodes=n[11-12] MaxTime=60 PriorityTier=1",
    "high Nodes=n[9-12] MaxTime=60 PriorityTier=10 PreemptMode=OFF",
    "frail Nodes=n[13-14] MaxTime=60 PriorityTier=1",
]
MAX_ARRAY_SIZE = 4

REAL_PATIENCE_S = 1400.0

HOSTILE = "it's $(touch pwned) `touch pwned` \"; touch pwned; #%j 100%"
"""Each of these means something to bash, to sbatch or to the file name patterns of both."""

TINY = """\
name: tiny
axes:
  model: {{family: llama, name: tiny, num_layers: 2, hidden_size: 64, num_heads: 4, vocab_size: 509}}
  strategy: {strategy}
  num_nodes: 2
  gpus_per_node: 2
  micro_batch_size: 2
  sequence_length: 64
  precision: fp32
steps: {{warmup: 1, timed: 2}}
timeout_s: 600
"""
FORMULAS = """\
name: '{name}'
axes:
  model: {{family: llama, name: '{name}', num_layers: 2, hidden_size: 64, num_heads: 4, vocab_size: 509}}
  strategy: [zero1, zero2]
  evidence: formula
  gpu: h200
  gpus_per_node: 2
"""


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit status."""

    output: str
    exit_code: int


@dataclass
class Played:
    """A run after its scenario, and what was seen meanwhile."""

    of: OnCluster
    seen: dict[str, str]
    said: dict[str, Said]


def zerobench(*arguments: str, cwd: Path | None = None) -> Said:
    """A command as its user types it."""
    command = [sys.executable, "-m", "zerobench", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=cwd)
    return Said(done.stdout + done.stderr, done.returncode)


def three_trials(
    cluster: Cluster, reports: Path, name: str, act: str = "hang_the_first_time", **options: object
) -> Played:
    """A job of three trials, of which the second hangs where the third of its ranks does `act`; it is in flight."""
    trials = [standin_trial("first"), standin_trial("second", {2: act}), standin_trial("third")]
    run = standin_run(cluster, reports, name, trials, **options)
    run.submit()
    run.await_in_flight("second")
    first = {path.name: path.read_text() for path in run.folder("first").path.glob("*.json")}
    return Played(run, first, {})


def requeued(cluster: Cluster, reports: Path) -> Played:
    played = three_trials(cluster, reports, "requeued")
    cluster.ask("scontrol", "requeue", played.of.task)
    played.of.await_ended()
    return played


def killed_and_requeued(cluster: Cluster, reports: Path) -> Played:
    """The job's runner is killed before it can say how its trial ended."""
    played = three_trials(cluster, reports, "killed-and-requeued")
    runner = runner_of(played.of, "second")
    os.kill(runner, signal.SIGSTOP)
    cluster.ask("scontrol", "requeue", played.of.task)
    os.kill(runner, signal.SIGKILL)
    played.of.await_ended()
    return played


def preempted_with_grace(cluster: Cluster, reports: Path) -> Played:
    return _preempted(cluster, reports, "low", "n[9-10]")


def preempted_at_once(cluster: Cluster, reports: Path) -> Played:
    return _preempted(cluster, reports, "spot", "n[11-12]")


def _preempted(cluster: Cluster, reports: Path, partition: str, nodes: str) -> Played:
    played = three_trials(cluster, reports, f"preempted-{partition}", partition=partition)
    higher = ["--partition=high", f"--nodelist={nodes}", "--nodes=2", "--exclusive", "--output=/dev/null"]
    cluster.ask("sbatch", *higher, "--wrap=sleep 1")
    played.of.await_ended()
    return played


def time_limit(cluster: Cluster, reports: Path) -> Played:
    """Slurm counts in minutes, and sends the signal some seconds early."""
    played = three_trials(cluster, reports, "time-limit", time="2")
    played.of.await_ended()
    played.seen["missing"] = _missing(played.of)
    played.seen["status"] = played.of.record("second").status.value
    played.said["status"] = zerobench("status", str(played.of.run.path))
    played.said["resume"] = zerobench("submit", "--resume", str(played.of.run.path), "--time", "10")
    played.seen["tasks"] = played.of.run.slurm_tasks("2-nodes-2").read_text()
    played.of.job_ids += [int(job) for job in re.findall(r"2-nodes-2: job (\d+)", played.said["resume"].output)]
    played.of.await_ended()
    return played


def node_down(cluster: Cluster, reports: Path) -> Played:
    """The second node loses its power: nothing of it answers any more, Slurm is told, and later it is back."""
    played = three_trials(cluster, reports, "node-down", partition="frail")
    runner = runner_of(played.of, "second")
    frozen = cluster.freeze_node("n14")
    cluster.ask("scontrol", "update", "nodename=n14", "state=down", "reason=test")
    played.of.await_that("the end of its runner", lambda: not psutil.pid_exists(runner))
    cluster.restart_node("n14", frozen)
    played.of.await_ended()
    return played


def failing_rank(cluster: Cluster, reports: Path) -> Played:
    """A rank of the second node ends without a word while the others wait for it."""
    acts = {0: "hang", 1: "hang", 2: "hang", 3: "exit_silently"}
    trials = [standin_trial("first", acts), standin_trial("second", {2: "wait_to_be_told"})]
    run = standin_run(cluster, reports, "failing-rank", trials)
    run.submit()
    run.await_in_flight("second")
    left = tree.members(str(run.folder("first").path))
    (run.run.path / "go").touch()
    run.await_ended()
    return Played(run, {"left": " ".join(map(str, left))}, {})


def cancelled(cluster: Cluster, reports: Path) -> Played:
    played = three_trials(cluster, reports, "cancelled")
    cluster.ask("scancel", played.of.task)
    played.of.await_ended()
    played.said["finish"] = finish(played.of.run)
    played.said["status"] = zerobench("status", str(played.of.run.path))
    return played


def runner_killed(cluster: Cluster, reports: Path) -> Played:
    """With the report job, which says how the trial ended whose runner no longer can."""
    trials = [standin_trial("first"), standin_trial("second", {2: "hang"})]
    run = standin_run(cluster, reports, "runner-killed", trials)
    run.submit(report=True)
    run.await_in_flight("second")
    os.kill(runner_of(run, "second"), signal.SIGKILL)
    run.await_ended()
    return Played(run, {"left": " ".join(map(str, tree.members(str(run.folder("second").path))))}, {})


def hanging(cluster: Cluster, reports: Path) -> Played:
    acts = {**dict.fromkeys(range(3), "hang"), 3: "ignore_sigterm"}  # whose end is then a SIGKILL of ours
    trials = [standin_trial("first", acts, timeout_s=30), standin_trial("second")]
    run = standin_run(cluster, reports, "hanging", trials)
    run.submit()
    run.await_ended()
    return Played(run, {}, {})


def watched(cluster: Cluster, reports: Path) -> Played:
    """`zerobench status`, while it runs and when all is done."""
    trials = [standin_trial("first"), standin_trial("second", {1: "wait_to_be_told"}), standin_trial("third")]
    run = standin_run(cluster, reports, "watched", trials)
    run.submit()
    run.await_in_flight("second")
    during = zerobench("status", str(run.run.path))
    (run.run.path / "go").touch()
    run.await_ended()
    return Played(run, {}, {"during": during, "after": zerobench("status", str(run.run.path))})


def many_tasks(cluster: Cluster, reports: Path) -> Played:
    """More tasks than an array of this cluster may have."""
    trials = [standin_trial(f"trial{number}", num_nodes=1, gpus_per_node=1) for number in range(MAX_ARRAY_SIZE + 1)]
    run = standin_run(cluster, reports, "many-tasks", trials, trials_per_job=1, throttle=MAX_ARRAY_SIZE)
    run.submit()
    run.await_ended()
    return Played(run, {}, {})


def by_hand(cluster: Cluster, reports: Path) -> Played:
    """The shipped script for one trial, with the ranks' interpreter written into it and the rest said to sbatch."""
    run = standin_run(cluster, reports, "by-hand", [standin_trial("first"), standin_trial("second")])
    run.run.slurm_logs.mkdir(parents=True)
    script = reports / "trial.sbatch"
    text, python = template("trial"), shlex.quote(str(run.options.python))
    script.write_text(re.sub("^worker_python=", f"worker_python={python}", text, flags=re.MULTILINE), encoding="utf-8")
    options = ["--nodes=2", "--gpus-per-node=2", f"--output={run.run.slurm_logs}/by-hand-%j.out"]
    export = f"--export=ALL,ZEROBENCH_CORE={sys.executable}"
    trial_id = run.trials["first"].trial_id
    job_id = cluster.ask("sbatch", "--parsable", *options, export, str(script), str(run.run.path), trial_id)
    run.job_ids.append(int(job_id))
    run.await_ended()
    return Played(run, {}, {})


@dataclass(frozen=True)
class Swept:
    """A run that `zerobench submit` made, and what that printed."""

    run: RunFolder
    said: Said


def hostile(cluster: Cluster, reports: Path) -> Swept:
    """Names that are commands, in the sweep, in its folder, and in options."""
    sweep = reports / "hostile.yaml"
    sweep.write_text(FORMULAS.format(name=HOSTILE.replace("'", "''")), encoding="utf-8")
    folder = reports / f"reports of {HOSTILE.replace('/', '')}"
    options = ["--gpus-per-node", "2", "--sbatch", f"comment={HOSTILE}"]
    return _swept(cluster, sweep, folder, options, cwd=reports)


def stage_by_srun(cluster: Cluster, reports: Path) -> Swept:
    """Real training on two nodes."""
    return _real_sweep(cluster, reports, "srun", "zero3", [])


def stage_by_deepspeed(cluster: Cluster, reports: Path) -> Swept:
    return _real_sweep(cluster, reports, "deepspeed", "zero1", ["--launcher", "deepspeed"])


def _real_sweep(cluster: Cluster, reports: Path, name: str, strategy: str, options: list[str]) -> Swept:
    sweep = reports / f"{name}.yaml"
    sweep.write_text(TINY.format(strategy=strategy), encoding="utf-8")
    ours = ["--nodes", "2", "--gpus-per-node", "0", "--cpus-per-node", "2"]
    return _swept(cluster, sweep, reports / name, [*ours, *options], cwd=reports)


def _swept(cluster: Cluster, sweep: Path, folder: Path, options: list[str], cwd: Path) -> Swept:
    said = zerobench("submit", str(sweep), "--reports", str(folder), *options, cwd=cwd)
    assert said.exit_code == 0, said.output
    [path] = [path for path in folder.iterdir() if path.is_dir()]
    job_ids = [int(job_id) for job_id in re.findall(r": job (\d+)", said.output)]
    OnCluster(cluster, RunFolder(path), {}, job_ids=job_ids).await_ended(REAL_PATIENCE_S)
    return Swept(RunFolder(path), said)


def finish(run: RunFolder) -> Said:
    """What the report job begins with."""
    command = [sys.executable, "-m", "zerobench.launch.slurm.job", str(run.path), "--finish"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return Said(done.stdout + done.stderr, done.returncode)


def runner_of(run: OnCluster, name: str) -> int:
    """The process that runs a trial."""
    start = read_record(run.folder(name).start, Start)
    return int(start.runner.split()[1])


def _missing(run: OnCluster) -> str:
    return " ".join(name for name in run.trials if not run.folder(name).record.exists())


SCENARIOS: dict[str, Callable[[Cluster, Path], Played | Swept]] = {
    scenario.__name__: scenario
    for scenario in (
        # What takes longest begins first: the cluster has room for four pairs of nodes in its main partition.
        stage_by_srun,
        time_limit,
        preempted_with_grace,
        preempted_at_once,
        node_down,
        stage_by_deepspeed,
        hanging,
        requeued,
        killed_and_requeued,
        failing_rank,
        cancelled,
        runner_killed,
        watched,
        many_tasks,
        by_hand,
        hostile,
    )
}
