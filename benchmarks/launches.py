"""Starts the two sides of the comparison under the same launcher, and reads from each when it did what."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import standin_driver
from benchmarks.processes import run_ranks
from tests.nvml_standin.standin import Standin
from zerobench.config.deepspeed import build_ds_config
from zerobench.config.derived.machine import Machine
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.optimizers import Optimizer
from zerobench.config.trial.trial import DataKind, DataSpec, Precision, StepsSpec, TrialSpec
from zerobench.launch.run.launcher import (
    MARK,
    NO_HOSTFILE,
    PINNED_MALLOC,
    deepspeed_argv,
    deepspeed_program,
    free_port,
    launch_environment,
)
from zerobench.launch.run.setup import lay_out_trial
from zerobench.rank.nvml.nvml import unavailable_reason
from zerobench.records.folder import TrialFolder
from zerobench.records.records import RankRecord

ROOT = Path(__file__).resolve().parent.parent
WARMUP_STEPS = 2
UNTIMED_STEPS = 1 + WARMUP_STEPS
"""Both sides take a first step and the warm-up before they are timed."""


_KINDS = ("on_s", "off_s")


@dataclass(frozen=True)
class Launch:
    """One launched process tree: what its wall-clock time went for, by rank 0."""

    side: str
    """`zerobench`, `bare`, or another script's name."""
    strategy: str
    pair: int
    wall_s: float
    """From the launcher's start to the last rank's end."""
    start_s: float
    """Until the engine's construction begins: launcher, interpreter, imports, process group."""
    build_s: float
    tracked_s: float
    """The steps under the memory tracker, which only zerobench takes."""
    untimed_s: float
    timed_s: float
    """From the first timed step's start to the last one's end, all between them included."""
    num_timed: int
    num_params: int
    recorded_s: float | None
    """The sum of the timed steps as zerobench records them, each by itself."""

    @property
    def steps_per_s(self) -> float:
        """Optimizer steps a second, sustained."""
        return self.num_timed / self.timed_s

    @property
    def recorded_steps_per_s(self) -> float:
        """Optimizer steps a second, as zerobench's record tells them; sustained for the bare loop."""
        return self.num_timed / (self.timed_s if self.recorded_s is None else self.recorded_s)

    @property
    def beyond_s(self) -> float:
        """Everything but steps."""
        return self.wall_s - self.tracked_s - self.untimed_s - self.timed_s

    @property
    def rest_s(self) -> float:
        """Neither start, construction nor steps: pauses between kinds of step, records, the way out."""
        return self.beyond_s - self.start_s - self.build_s


TORCH_NAMES = {Precision.FP32: "float32", Precision.BF16: "bfloat16", Precision.FP16: "float16"}


@dataclass(frozen=True)
class Bench:
    """What both sides train, where, and for how long."""

    folder: Path
    machine: Machine
    model: ModelSpec
    steps: int
    micro_batch_size: int = 1
    sequence_length: int = 128
    optimizer: Optimizer = Optimizer.ADAMW
    activation_checkpointing: bool = False
    precision: Precision = Precision.BF16

    @property
    def tokens(self) -> Path:
        """The token file that both sides read."""
        path = self.folder / "tokens.npy"
        if not path.exists():
            samples = self.machine.ranks_per_node * self.micro_batch_size * (UNTIMED_STEPS + self.steps + 1)
            shape = (samples, self.sequence_length)
            np.save(path, np.random.default_rng(0).integers(0, self.model.hf_config["vocab_size"], shape))
        return path

    def trial(self, strategy: str) -> TrialSpec:
        """The trial that zerobench runs; the bare loop does the same work."""
        return TrialSpec(
            model=self.model,
            strategy=strategy,
            gpus_per_node=self.machine.ranks_per_node,
            micro_batch_size=self.micro_batch_size,
            sequence_length=self.sequence_length,
            precision=self.precision,
            optimizer=self.optimizer,
            activation_checkpointing=self.activation_checkpointing,
            data=DataSpec(kind=DataKind.TOKENS, path=str(self.tokens)),
            steps=StepsSpec(warmup=WARMUP_STEPS, timed=self.steps, memory=1),
        )

    def zerobench(self, strategy: str, pair: int) -> Launch:
        """Run zerobench's worker."""
        trial, folder = self.trial(strategy), TrialFolder(self.folder / f"zerobench-{strategy}-{pair}")
        lay_out_trial(folder, trial, build_ds_config(trial))
        argv = deepspeed_argv(trial, folder, free_port())
        results = [folder.rank_record(rank) for rank in range(trial.world_size)]
        begun_s, ended_s = run_ranks(argv, self._environment(trial, folder), _log(folder), results)
        record = RankRecord.model_validate_json(folder.rank_record(0).read_bytes())
        spans = {kind: _span(record, kind) for kind in ("first", "warmup", "timed", "memory")}
        init = next(mark for mark in record.marks if mark.phase == "init")
        return Launch(
            side="zerobench",
            strategy=strategy,
            pair=pair,
            wall_s=ended_s - begun_s,
            start_s=init.start_s - begun_s,
            build_s=init.end_s - init.start_s,
            tracked_s=spans["first"] + spans["memory"],
            untimed_s=spans["warmup"],
            timed_s=spans["timed"],
            num_timed=len(record.step_times),
            num_params=record.parameters.total if record.parameters else 0,
            recorded_s=sum(step.step_s for step in record.step_times),
        )

    def bare(self, strategy: str, pair: int, *, pinned_malloc: bool = False) -> Launch:
        """Run the bare loop, with glibc's malloc as it is, or as zerobench sets it."""
        return self.script("bare", "bare_loop.py", strategy, pair, pinned_malloc=pinned_malloc)

    def script(
        self, side: str, script: str, strategy: str, pair: int, *, pinned_malloc: bool = False, **more: Any
    ) -> Launch:
        """Run a script that trains the job which it is handed and reports as `bare_loop.py` does; `more` lies in it."""
        trial, folder = self.trial(strategy), TrialFolder(self.folder / f"{side}-{strategy}-{pair}")
        lay_out_trial(folder, trial, build_ds_config(trial))
        job = self._write_job(trial, folder, **more)
        argv = script_argv(trial, script, job)
        environment = self._environment(trial, folder, pinned_malloc=pinned_malloc)
        results = _results(trial, job)
        begun_s, ended_s = run_ranks(argv, environment, _log(folder), results)
        report = json.loads(results[0].read_text(encoding="utf-8"))
        return Launch(
            side=side,
            strategy=strategy,
            pair=pair,
            wall_s=ended_s - begun_s,
            start_s=report["build_s"][0] - begun_s,
            build_s=_length(report["build_s"]),
            tracked_s=0.0,
            untimed_s=_length(report["untimed_s"]),
            timed_s=_length(report["timed_s"]),
            num_timed=len(report["losses"]),
            num_params=report["num_params"],
            recorded_s=None,
        )

    def sampler_blocks(self, strategy: str, pairs: int, devices: int | None = None) -> dict[str, Any]:
        """Seconds of each block with the sampler on and off (the slowest rank's), the samplers' summaries and CPU time.

        The samplers watch the first `devices` of the node; None: those of the ranks. Without an NVIDIA driver they
        ask the stand-in one.
        """
        trial, folder = self.trial(strategy), TrialFolder(self.folder / "sampler")
        lay_out_trial(folder, trial, build_ds_config(trial))
        job = self._write_job(trial, folder, pairs=pairs, devices=devices)
        environment = self._environment(trial, folder, pinned_malloc=False)
        standin = unavailable_reason() is not None
        if standin:
            environment |= self._standin_variables(devices)
        results = _results(trial, job)
        run_ranks(script_argv(trial, "sampler_blocks.py", job), environment, _log(folder), results)
        ranks = [json.loads(path.read_text(encoding="utf-8")) for path in results]
        return {
            "on_s": [max(block) for block in zip(*(rank["on_s"] for rank in ranks), strict=True)],
            "off_s": [max(block) for block in zip(*(rank["off_s"] for rank in ranks), strict=True)],
            "summaries": [sampler["summary"] for sampler in ranks[0]["samplers"]],
            "cores": [sampler["cores"] for sampler in ranks[0]["samplers"]],
            "standin": standin,
        }

    def ledger_blocks(self, strategy: str, pairs: int) -> dict[str, Any]:
        """Seconds of each block with the ledger on and off (the slowest rank's), and rows that the ledger had."""
        trial, folder = self.trial(strategy), TrialFolder(self.folder / "ledger")
        lay_out_trial(folder, trial, build_ds_config(trial))
        job = self._write_job(trial, folder, pairs=pairs)
        results = _results(trial, job)
        environment = self._environment(trial, folder, pinned_malloc=False)
        run_ranks(script_argv(trial, "ledger_blocks.py", job), environment, _log(folder), results)
        ranks = [json.loads(path.read_text(encoding="utf-8")) for path in results]
        slowest = {kind: [max(block) for block in zip(*(rank[kind] for rank in ranks), strict=True)] for kind in _KINDS}
        return {**slowest, "rows": ranks[0]["rows"], "block_steps": trial.steps.timed}

    def _write_job(self, trial: TrialSpec, folder: TrialFolder, **more: Any) -> Path:
        path = folder.path / "job.json"
        job = {
            "hf_config": trial.model.hf_config | {"use_cache": False},
            "ds_config": str(folder.ds_config),
            "dtype": TORCH_NAMES[trial.precision],
            "tokens": str(self.tokens),
            "micro_batch_size": trial.micro_batch_size,
            "sequence_length": trial.sequence_length,
            "untimed_steps": UNTIMED_STEPS,
            "timed_steps": trial.steps.timed,
            "activation_checkpointing": trial.activation_checkpointing,
            **more,
        }
        path.write_text(json.dumps(job), encoding="utf-8")
        return path

    def _environment(self, trial: TrialSpec, folder: TrialFolder, *, pinned_malloc: bool = True) -> dict[str, str]:
        """What zerobench's own launches have; malloc's settings and zerobench's mark are not the bare loop's."""
        added = launch_environment(trial, folder, num_cpus=self.machine.cpu_cores, num_gpus=self.machine.num_gpus)
        kept = {k: v for k, v in added.items() if pinned_malloc or k not in {*PINNED_MALLOC, MARK}}
        return {**os.environ, **kept, "PYTHONPATH": _before(str(ROOT), "PYTHONPATH")}

    def _standin_variables(self, devices: int | None) -> dict[str, str]:
        scenario = standin_driver.scenario(max(standin_driver.DEVICES, devices or 0))
        variables = Standin.build(self.folder / "standin").environment(scenario)
        return {
            "LD_LIBRARY_PATH": _before(variables["LD_LIBRARY_PATH"], "LD_LIBRARY_PATH"),
            "FAKE_NVML_SCENARIO": variables["FAKE_NVML_SCENARIO"],
        }


def _before(path: str, variable: str) -> str:
    """`path` before what the variable has: packages may lie beside the interpreter's."""
    return os.pathsep.join(filter(None, [path, os.environ.get(variable)]))


def script_argv(trial: TrialSpec, script: str, job: Path) -> list[str]:
    """The command that runs one of our own scripts under the launcher, as zerobench starts its worker."""
    ranks = ("--num_nodes", "1", "--num_gpus", str(trial.world_size), "--no_local_rank")
    where = ("--hostfile", NO_HOSTFILE, *ranks, "--master_port", str(free_port()))
    return [*deepspeed_program(), *where, str(ROOT / "benchmarks" / script), str(job)]


def _span(record: RankRecord, kind: str) -> float:
    """Seconds of the steps of `kind` with the pauses between them; init is no step, and steps apart do not join."""
    seconds = 0.0
    first = last = None
    for mark in (m for m in record.marks if m.kind == kind and m.phase != "init"):
        if first is None or last is None or mark.step_index > last.step_index + 1:
            seconds += 0.0 if first is None or last is None else last.end_s - first.start_s
            first = mark
        last = mark
    return seconds if first is None or last is None else seconds + last.end_s - first.start_s


def _results(trial: TrialSpec, job: Path) -> list[Path]:
    return [job.with_name(f"{job.name}.rank{rank}") for rank in range(trial.world_size)]


def _log(folder: TrialFolder) -> Path:
    return folder.path / "launcher.log"


def _length(span: list[float]) -> float:
    return span[1] - span[0]
