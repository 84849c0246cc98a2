"""`zerobench tune --measure` beside DeepSpeed's own autotuner, on one small space: trials, minutes, result.

    python -m benchmarks.tune.beside_autotuner 2 h100 16 REPORTS      # ranks, the GPU to predict, sequences a step

For an idle machine. Both search stages and micro batches of one Llama for the same global batch: the autotuner by its
`--autotuning tune`, which varies the micro batch and so the batch of a step, `tune` by prediction and the four best
measured. Then the script is run with either's configuration, and with DeepSpeed's defaults at stage 0, and timed alike.
The autotuner's experiments are counted in the folder that it leaves; that it finds nothing is a result, too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

SCRIPT = Path(__file__).with_name("train_script.py")
SEQUENCE_LENGTH = 128
SHAPE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 4096,
    "max_position_embeddings": SEQUENCE_LENGTH,
}
_MEASURED = "4"
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


def autotuner(folder: Path, ranks: int, batch: int) -> Side:
    """DeepSpeed's own."""
    tuning = {"enabled": True, "fast": False, "results_dir": str(folder / "results"), "exps_dir": str(folder / "exps")}
    limits = {"max_train_batch_size": batch, "num_tuning_micro_batch_sizes": 3, "tuner_type": "gridsearch"}
    asked = {
        "train_micro_batch_size_per_gpu": "auto",
        "bf16": {"enabled": True},
        "optimizer": _OPTIMIZER,
        "zero_optimization": {"stage": "all"},
        "autotuning": tuning | limits,
    }
    begun = time.monotonic()
    _deepspeed(folder, ranks, asked, ["--autotuning", "tune"])
    minutes = (time.monotonic() - begun) / 60
    best = folder / "results" / "ds_config_optimal.json"
    config = json.loads(best.read_text(encoding="utf-8")) if best.is_file() else None
    experiments = sum(1 for _ in (folder / "results").rglob("exp.json"))
    return Side("DeepSpeed's autotuner", experiments, minutes, config)


def tune(folder: Path, ranks: int, gpu: str, batch: int, reports: Path) -> Side:
    """zerobench's; trials are those that were measured."""
    written = folder / "tuned.json"
    words = [str(folder / "shape.json"), "--gpus", str(ranks), "--gpus-per-node", str(ranks), "--gpu", gpu]
    words += ["--global-batch", str(batch), "--sequence-length", str(SEQUENCE_LENGTH), "--measure", _MEASURED]
    begun = time.monotonic()
    command = [sys.executable, "-m", "zerobench", "tune", *words, "--write", str(written), "--reports", str(reports)]
    subprocess.run(command, check=False, timeout=_MOST_S)
    minutes = (time.monotonic() - begun) / 60
    config = json.loads(written.read_text(encoding="utf-8")) if written.is_file() else None
    return Side("zerobench tune", int(_MEASURED), minutes, config)


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
    subprocess.run(command, check=False, cwd=folder, timeout=_MOST_S)


def table(sides: list[Side]) -> list[str]:
    """Markdown."""
    lines = ["| | trials | minutes | micro batch, stage | tokens/s |", "|---|---|---|---|---|"]
    for one in sides:
        config = one.config or {}
        stage = config.get("zero_optimization", {}).get("stage", 0)
        found = f"{config['train_micro_batch_size_per_gpu']}, {stage}" if config else "nothing"
        rate = "does not run" if one.tokens_per_s is None else f"{one.tokens_per_s:,.0f}"
        lines.append(f"| {one.name} | {one.trials} | {one.minutes:.1f} | {found} | {rate} |")
    return lines


def main(ranks: int, gpu: str, batch: int, reports: Path) -> None:
    """Both, and the defaults."""
    plain: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": batch // ranks}
    plain |= {"bf16": {"enabled": True}, "zero_optimization": {"stage": 0}}
    with tempfile.TemporaryDirectory(prefix="zerobench-tuners-") as name:
        folder = Path(name)
        (folder / "shape.json").write_text(json.dumps(SHAPE), encoding="utf-8")
        found = [Side("DeepSpeed's defaults", 0, 0.0, plain), autotuner(folder, ranks, batch)]
        found.append(tune(folder, ranks, gpu, batch, reports.absolute()))
        sides = [Side(**{**vars(one), "tokens_per_s": timed(folder, ranks, one.config)}) for one in found]
    sys.stdout.write("\n".join(table(sides)) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
