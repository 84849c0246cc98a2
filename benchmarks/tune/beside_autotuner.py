"""`zerobench tune --measure` beside DeepSpeed's own autotuner, on one small space: trials, minutes, result.

    python -m benchmarks.tune.beside_autotuner 2 h100 8 0,1 REPORTS    # ranks, the GPU to predict, sequences, stages

Both search stages and micro batches of one Llama for the same global batch: the autotuner by its `--autotuning tune`,
which varies the micro batch and so the batch of a step, `tune` by prediction and the four best measured. Then the
script is run with either's configuration, and with DeepSpeed's defaults at the first stage, and timed alike. Writes
beside_autotuner.csv, with the machine's load beside each; that the autotuner finds nothing is a result, too.

It needs tabulate (`pip install deepspeed[autotuning]`). On CPU ranks DeepSpeed 0.19.8 counts the machine's NUMA nodes
(accelerator/cpu_accelerator.py, device_count), so that two ranks on one node end it: "num_gpus in the autotuning
configuration must not be less than the --num_gpus value in the train script if any" (autotuning/autotuner.py).
LOCAL_SIZE says how many there are. After each experiment it calls `pkill -f` with the experiment's name through pdsh
on all nodes (autotuning/scheduler.py, clean_up): a pdsh that does nothing stands before it here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.csv_rows import as_csv

SCRIPT = Path(__file__).with_name("train_script.py")
FILE = Path(__file__).with_name("beside_autotuner.csv")
SEQUENCE_LENGTH = 64
SHAPE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
    "max_position_embeddings": SEQUENCE_LENGTH,
}
_MEASURED = "4"
_TRIALS = "measured-*/trials/*"
_MOST_S = 3600
_OPTIMIZER = {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}}


@dataclass(frozen=True)
class Side:
    """What one of the two came to."""

    name: str
    trials: int
    minutes: float
    config: dict[str, Any] | None
    """None where it found none."""
    tokens_per_s: float | None = None
    load: float = 0.0
    """Of the machine, the mean of the minute before it was timed."""


@dataclass(frozen=True)
class Figure:
    """A side as the file has it."""

    of: str
    trials: int
    minutes: str
    strategy: str
    micro_batch: str
    tokens_per_s: str
    load: str


def autotuner(folder: Path, ranks: int, batch: int, stages: list[int]) -> Side:
    """DeepSpeed's own."""
    tuning = {"enabled": True, "fast": False, "results_dir": str(folder / "results"), "exps_dir": str(folder / "exps")}
    limits = {"max_train_batch_size": batch, "num_tuning_micro_batch_sizes": 2, "tuner_type": "gridsearch"}
    asked = {
        "train_micro_batch_size_per_gpu": "auto",
        "bf16": {"enabled": True},
        "optimizer": _OPTIMIZER,
        "zero_optimization": {"stage": stages},
        "autotuning": tuning | limits,
    }
    begun = time.monotonic()
    _deepspeed(folder, ranks, asked, ["--autotuning", "tune"])
    minutes = (time.monotonic() - begun) / 60
    best = folder / "results" / "ds_config_optimal.json"
    config = json.loads(best.read_text(encoding="utf-8")) if best.is_file() else None
    experiments = sum(1 for _ in (folder / "results").rglob("exp.json"))
    return Side("DeepSpeed's autotuner", experiments, minutes, config)


def tune(folder: Path, ranks: int, gpu: str, batch: int, stages: list[int], reports: Path) -> Side:
    """zerobench's; trials are those that were measured."""
    written = folder / "tuned.json"
    words = [str(folder / "shape.json"), "--gpus", str(ranks), "--gpus-per-node", str(ranks), "--gpu", gpu]
    words += [
        "--stage",
        ",".join(map(str, stages)),
        "--global-batch",
        str(batch),
        "--sequence-length",
        str(SEQUENCE_LENGTH),
        "--measure",
        _MEASURED,
    ]
    before, begun = set(reports.glob(_TRIALS)), time.monotonic()
    command = [sys.executable, "-m", "zerobench", "tune", *words, "--write", str(written), "--reports", str(reports)]
    subprocess.run(command, check=False, timeout=_MOST_S)
    minutes = (time.monotonic() - begun) / 60
    config = json.loads(written.read_text(encoding="utf-8")) if written.is_file() else None
    return Side("zerobench tune", len(set(reports.glob(_TRIALS)) - before), minutes, config)


def timed(folder: Path, ranks: int, config: Mapping[str, Any] | None) -> float | None:
    """Tokens/s of the script with `config`; None where it does not run."""
    if config is None:
        return None
    times = folder / "times.json"
    times.unlink(missing_ok=True)
    _deepspeed(folder, ranks, {**config, "optimizer": _OPTIMIZER}, [], ["--times", str(times)])
    if not times.is_file():
        return None
    passes = int(config.get("gradient_accumulation_steps", 1))
    tokens = ranks * int(config["train_micro_batch_size_per_gpu"]) * passes * SEQUENCE_LENGTH
    return float(tokens / median(json.loads(times.read_text(encoding="utf-8"))))


def _deepspeed(
    folder: Path, ranks: int, config: Mapping[str, Any], options: list[str], more: list[str] | None = None
) -> None:
    (folder / "ds.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    launcher = str(Path(sys.executable).with_name("deepspeed"))
    words = ["--shape", str(folder / "shape.json"), "--sequence-length", str(SEQUENCE_LENGTH), *(more or [])]
    words += ["--deepspeed", "--deepspeed_config", str(folder / "ds.json")]
    command = [sys.executable, launcher, *options, "--num_gpus", str(ranks), str(SCRIPT), *words]
    subprocess.run(command, check=False, cwd=folder, timeout=_MOST_S, env=_environment(folder, ranks))


def _environment(folder: Path, ranks: int) -> dict[str, str]:
    """What lets the autotuner find its ranks and its launcher, and end nothing by name."""
    own = folder / "bin"
    own.mkdir(exist_ok=True)
    pdsh = own / "pdsh"
    pdsh.write_text("#!/bin/sh\nexit 0\n", encoding="ascii")
    pdsh.chmod(0o755)
    path = os.pathsep.join([str(own), str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "LOCAL_SIZE": str(ranks), "DS_ACCELERATOR": "cpu"}


def figure(side: Side) -> Figure:
    """With what has no value left empty."""
    config = side.config or {}
    stage = config.get("zero_optimization", {}).get("stage", 0)
    return Figure(
        side.name,
        side.trials,
        f"{side.minutes:.1f}",
        f"zero{stage}" if config else "",
        str(config.get("train_micro_batch_size_per_gpu", "")),
        "" if side.tokens_per_s is None else f"{side.tokens_per_s:.0f}",
        f"{side.load:.1f}",
    )


def table(figures: list[Figure]) -> list[str]:
    """Markdown."""
    lines = ["| | trials | minutes | found | tokens/s | load |", "|---|---|---|---|---|---|"]
    for side in figures:
        configuration = f"{side.strategy} mb{side.micro_batch}" if side.strategy else "nothing"
        rate = f"{int(side.tokens_per_s):,}" if side.tokens_per_s else "does not run"
        lines.append(f"| {side.of} | {side.trials} | {side.minutes} | {configuration} | {rate} | {side.load} |")
    return lines


def main(ranks: int, gpu: str, batch: int, stages: list[int], reports: Path) -> None:
    """Both, and the defaults."""
    plain: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": batch // ranks}
    plain |= {"bf16": {"enabled": True}, "zero_optimization": {"stage": stages[0]}}
    with tempfile.TemporaryDirectory(prefix="zerobench-tuners-") as name:
        folder = Path(name)
        (folder / "shape.json").write_text(json.dumps(SHAPE), encoding="utf-8")
        found = [autotuner(folder, ranks, batch, stages), tune(folder, ranks, gpu, batch, stages, reports.absolute())]
        sides = []
        for side in (Side("DeepSpeed's defaults", 0, 0.0, plain), *found):
            rate = timed(folder, ranks, side.config)
            sides.append(Side(**{**vars(side), "tokens_per_s": rate, "load": os.getloadavg()[0]}))
    figures = [figure(side) for side in sides]
    FILE.write_text(as_csv(Figure, figures), encoding="utf-8")
    sys.stdout.write("\n".join(table(figures)) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), [int(n) for n in sys.argv[4].split(",")], Path(sys.argv[5]))
