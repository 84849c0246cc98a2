"""A run as a ladder: what each trial gained in speed by the settings in which it differs from the one before it.

    python benchmarks/gpu_campaign/ladder.py RUN [--out FILE.md]

RUN is a run folder, or a folder that holds runs, of which the newest is taken. Trials stand in the sweep's order. A
trial that did not complete is no rung: it is listed with its end, and the next one is held against the last that did.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.prediction.simulated import origin, table
from zerobench.common.errors import UserError
from zerobench.common.units import format_bytes
from zerobench.config.trial.trial import TrialSpec
from zerobench.records.instants import device_peak_bytes
from zerobench.records.store import load_run
from zerobench.records.trials import Trial, completed
from zerobench.report.figures.speed import Speed, speed_of

SETTINGS = (
    "strategy",
    "attention",
    "optimizer",
    "cross_entropy",
    "compile",
    "micro_batch_size",
    "gradient_accumulation_steps",
    "activation_checkpointing",
)
"""What a rung may differ in, by the axis's name; another model begins a ladder of its own."""

MISSING = "n/a"


@dataclass(frozen=True)
class Rung:
    """One trial that completed."""

    spec: TrialSpec
    speed: Speed


def rungs_table(trials: Iterable[Trial]) -> list[str]:
    """Markdown: each trial with what it changed, tokens/s, the ratio to the rung below and to the first, and MFU."""
    first: Rung | None = None
    below: Rung | None = None
    rows = []
    for trial in trials:
        if first is None or trial.spec.model != first.spec.model:
            first = below = None
        speed = speed_of(trial)
        changed = settings_of(trial.spec) if below is None else changes(below.spec, trial.spec)
        if speed is None or speed.tokens_per_s is None:
            rows.append((trial.spec.model.name, changed, *[MISSING] * 5, _end(trial, speed)))
            continue
        rung = Rung(trial.spec, speed)
        first = first or rung
        rows.append((trial.spec.model.name, changed, *_figures(trial, rung, below or rung, first), ""))
        below = rung
    heads = ("model", "changed", "tokens/s", "of the one before", "of the first", "MFU", "device peak", "end")
    return table(heads, rows, texts=2)


def _figures(trial: Trial, rung: Rung, below: Rung, first: Rung) -> tuple[str, ...]:
    own = rung.speed.tokens_per_s or 0.0
    peak, mfu = device_peak_bytes(trial), rung.speed.mfu
    return (
        f"{own:,.0f}",
        *(f"{own / (other.speed.tokens_per_s or own):.2f}" for other in (below, first)),
        MISSING if mfu is None else f"{mfu:.1%}",
        MISSING if peak is None else format_bytes(peak),
    )


def _end(trial: Trial, speed: Speed | None) -> str:
    """Why a trial is no rung, in a cell of a table."""
    if completed(trial):
        return f"throughput is void: {speed.void}" if speed is not None and speed.void else "no step was timed"
    why = " ".join((trial.record.reason or "").split()).replace("|", "/")
    return f"{trial.record.status}: {why[:120]}" if why else str(trial.record.status)


def settings_of(spec: TrialSpec) -> str:
    """All settings of the first rung."""
    return ", ".join(f"{name} {_text(spec, name)}" for name in SETTINGS)


def changes(below: TrialSpec, spec: TrialSpec) -> str:
    """In what a rung differs from the one below it: `attention eager -> sdpa`."""
    settings = ((name, _text(below, name), _text(spec, name)) for name in SETTINGS)
    return ", ".join(f"{name} {old} -> {new}" for name, old, new in settings if old != new) or "nothing"


def _text(spec: TrialSpec, name: str) -> str:
    value = getattr(spec, name)
    return str(value).lower() if isinstance(value, bool) else str(value)


def newest_run(folder: Path) -> Path:
    """`folder`, or the newest run in it. Raises UserError where there is none."""
    plans = [folder / "plan.json", *folder.glob("*/plan.json")]
    there = [path for path in plans if path.is_file()]
    if not there:
        raise UserError(f"RUN: {folder}: it neither is a run nor holds one")
    return max(there, key=lambda path: path.stat().st_mtime_ns).parent


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, and keep it where asked; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, help="a Markdown file to write it to as well")
    asked = parser.parse_args(arguments)
    try:
        trials = load_run(newest_run(asked.run)).trials()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    text = "\n".join([*origin(), "", *rungs_table(trials)])
    print(text)
    if asked.out is not None:
        asked.out.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
