"""Bytes that collectives move in a steady step, counted in the simulated world, against the ZeRO paper's 2, 2, 2 and 3.

    python benchmarks/prediction/communication.py [--tiny] [--out FILE]

The paper (arXiv 1910.02054, section 7) counts elements: with P parameters (its psi) a reduce-scatter, a reduce or an
all-gather of all of them moves P, an all-reduce 2 P; so 2 P at stages 0 to 2 and 3 P at stage 3. Here every collective
that rank 0 of 64 calls is counted, with DeepSpeed's defaults and with the settings that bring them to the paper's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.prediction.communication_lines import REGATHERED, Cell, causes
from benchmarks.prediction.paper_lines import LEFT_OVER, setting_of
from benchmarks.prediction.simulated import TINY, gpu_trial, num_params, origin, simulate, table
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import TrialSpec
from zerobench.records.folder import write_whole

WORLD_SIZE = 64
MODELS: tuple[str | dict[str, object], ...] = (TINY, "llama-7b")
ONE_OWNER = {"ds_config": {"zero_optimization.use_multi_rank_bucket_allreduce": False}}
NOTHING_KEPT = {
    "ds_config": {
        "zero_optimization.stage3_max_live_parameters": 0,
        "zero_optimization.stage3_max_reuse_distance": 0,
        "zero_optimization.stage3_prefetch_bucket_size": 0,
        "zero_optimization.stage3_param_persistence_threshold": 0,
    }
}
SETTINGS: tuple[tuple[int, str, dict[str, object]], ...] = (
    (0, "defaults", {}),
    (1, "defaults", {}),
    (1, "use_multi_rank_bucket_allreduce: false", {**ONE_OWNER}),
    (2, "defaults", {}),
    (2, "use_multi_rank_bucket_allreduce: false", {**ONE_OWNER}),
    (3, "defaults", {}),
    (3, "nothing kept: limits of live, reused, prefetched and persistent parameters 0", {**NOTHING_KEPT}),
    (3, "nothing kept, activation checkpointing", {**NOTHING_KEPT, "activation_checkpointing": True}),
    (2, "defaults, N = 48", {"num_nodes": 6}),
    (3, "defaults, N = 48", {"num_nodes": 6}),
)
"""Stage, what is set, and the axes that set it; 48 divides no tensor, so that padding shows."""


def trials(model: ModelSpec) -> list[tuple[str, TrialSpec]]:
    """Each setting's name and trial."""
    usual: dict[str, object] = {"sequence_length": 512, "activation_checkpointing": False}
    return [(name, gpu_trial(model, stage, WORLD_SIZE, **(usual | axes))) for stage, name, axes in SETTINGS]


def summary(cells: Sequence[Cell]) -> list[str]:
    """A row for each setting, the paper's volume and the counted one; then the lines between them, in columns."""
    numbers = range(1, len(cells) + 1)
    rows = [
        (*_setting(n, cell), f"{cell.paper_psi:g}", f"{cell.counted_psi:.6f}")
        for n, cell in zip(numbers, cells, strict=True)
    ]
    reasons = [causes(cell) for cell in cells]
    names = sorted(dict.fromkeys(name for reason in reasons for name in reason), key=_position)
    lines = [(name, *(_signed(reason.get(name, 0.0)) for reason in reasons)) for name in names]
    return [
        *table(("", "stage", "setting", "paper, P", "counted, P"), rows, texts=3),
        *("Counted minus the paper's, in P.", ""),
        *table(("", *(f"({n})" for n in numbers)), lines),
    ]


def collectives(cells: Sequence[Cell]) -> list[str]:
    """Every kind of collective of every phase."""
    rows = [
        (
            f"({n})",
            phase,
            traffic.kind,
            f"{traffic.calls:,}",
            f"{traffic.message_bytes:,}",
            f"{traffic.message_psi:.6f}",
            f"{traffic.volume_psi:.6f}",
        )
        for n, cell in enumerate(cells, 1)
        for phase, traffic in cell.traffic
    ]
    return table(("", "phase", "collective", "calls", "message, B", "message, P", "volume, P"), rows, texts=3)


def in_words(number: int, cell: Cell) -> str | None:
    """The line that is read off the count, in elements, with what bounds it; None where there is none."""
    elements = round(causes(cell)[REGATHERED] * num_params(cell.rank)) if cell.stage == 3 else 0
    if elements < 0:
        limit = int(setting_of(cell.trial).case.zero("stage3_max_live_parameters"))
        kept = f"({number}): {-elements:,} parameters stay from forward to backward"
        return f"{kept}; stage3_max_live_parameters is {limit:,}"
    if elements > 0:
        again = f"({number}): {elements:,} parameters are gathered a third time, for the forward pass computed again"
        return f"{again}: those of each block but its last module, with which the block's backward begins"
    return None


def _position(name: str) -> bool:
    """What is not explained comes last."""
    return name == LEFT_OVER


def _setting(number: int, cell: Cell) -> tuple[str, str, str]:
    return f"({number})", str(cell.stage), cell.setting


def _signed(volume: float) -> str:
    return f"{volume:+.6f}" if round(volume, 6) else "0"


def model_section(cells: Sequence[Cell]) -> list[str]:
    """All of one model."""
    name, number = cells[0].trial.model.name, num_params(cells[0].rank)
    return [
        *(f"## {name}: P = {number:,}", ""),
        *summary(cells),
        *(f"- {sentence}" for sentence in map(in_words, range(1, len(cells) + 1), cells) if sentence),
        *("", "Every collective of a steady step, as rank 0 calls it.", ""),
        *collectives(cells),
    ]


def report(models: Sequence[Sequence[Cell]]) -> str:
    """The Markdown document."""
    intro = (
        f"Rank 0 of {WORLD_SIZE} H200, or of 48 where it says so, bf16, one micro batch of one sequence. Volumes are "
        "in P, the model's parameters, as in the paper (section 7): an all-reduce counts twice, all else once. What a "
        "step moves does not depend on the length of sequences."
    )
    lines = ["# Bytes that collectives move in a step, against the ZeRO paper", "", *origin(), intro, ""]
    return "\n".join([*lines, *(line for cells in models for line in model_section(cells))])


def main() -> None:
    """Simulate all settings, write the tables, and print the summaries."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="the tiny model alone, to see whether it runs at all")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    parser.add_argument("--jobs", type=int, default=2, help="trials at the same time")
    asked = parser.parse_args()
    named = [pair for model in MODELS[: 1 if asked.tiny else None] for pair in trials(resolve_model(model))]
    records = simulate([trial for _, trial in named], asked.jobs, lambda ended: print(ended.trial_id, flush=True))
    cells = [Cell(name, trial, rank) for (name, trial), rank in zip(named, records, strict=True)]
    models = [cells[start : start + len(SETTINGS)] for start in range(0, len(cells), len(SETTINGS))]
    write_whole(asked.out, report(models))
    print("\n".join(line for model_cells in models for line in summary(model_cells)))
    print(asked.out)


if __name__ == "__main__":
    main()
