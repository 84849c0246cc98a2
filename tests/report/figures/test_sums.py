"""Each table of memory adds up: the columns that its caption calls parts come to its total, in every world."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.report.predicted_trial import asked, reserved, trial
from tests.report.sample_run import GIB, SampleTrial, cpu_trials, sample_trials, write_run
from zerobench.app.search.formula import formula_trial
from zerobench.common.vocabulary import Category, Phase, StepKind
from zerobench.config.derived.cluster import read_cluster
from zerobench.records.records import ContextMemory
from zerobench.records.store import load_run
from zerobench.report.documents.view import read_plan
from zerobench.report.figures.run.runs import run_figures
from zerobench.report.tables.memory import device_table, host_table
from zerobench.report.tables.model import Line, Table
from zerobench.report.tables.model_states import states_table
from zerobench.report.tables.nvml import nvml_rows, nvml_table
from zerobench.report.tables.plan_memory import memory_tables
from zerobench.report.words.column_units import MISSING

MEASURED = Path(__file__).parent / "strategies" / "records"
EMULATED = Path(__file__).parents[1] / "documents" / "records"

NEED = (["tensors", "allocator slack", "context + NCCL"], "total")
LASTING = ["parameters", "gradients", "optimizer", "buffers"]
DEVICE = ([*LASTING, "activations", "logits", "temporaries", "small", "unattributed"], "peak")
HOST = ([*LASTING, "other tensors", "process", "unattributed"], "peak")
STATES = (LASTING[:3], "total")
NVML = (
    ["others", "context", "NCCL", "slack", *LASTING, "rest", "unattributed", "unexplained"],
    "used",
)


def numbers(table: Table[Any], line: Line[Any], names: Sequence[str]) -> list[str]:
    """The cells of the columns called `names`, of which each is there once."""
    columns = {name: [column for column in table.columns if column.name == name] for name in names}
    assert {name: len(found) for name, found in columns.items()} == dict.fromkeys(names, 1)
    return [columns[name][0].cell(line.figures) for name in names]


def sums(table: Table[Any], parts: Sequence[str], total: str) -> Iterator[tuple[str, float, float, float]]:
    """Of each line with a total: its name, what its parts come to, the total, and how far rounding may part them."""
    for line in table.lines:
        shown = numbers(table, line, parts)
        [whole] = numbers(table, line, [total])
        if whole == MISSING or all(cell == MISSING for cell in shown):
            continue
        cells = [cell.replace(",", "") for cell in shown if cell != MISSING]
        decimals = max(len(cell.partition(".")[2]) for cell in [*cells, whole])
        rounding = 0.5 * 10**-decimals * (len(cells) + 1)
        yield line.trial.label, sum(map(float, cells)), float(whole.replace(",", "")), rounding + 1e-9


def by_formula(tmp_path: Path) -> Path:
    offloaded = {"offload_optimizer": "cpu", "optimizer": "cpu_adam"}
    ways: list[tuple[str, dict[str, Any]]] = [
        *((f"zero{stage}", {}) for stage in range(4)),
        ("zero2", offloaded),
        ("zero3", offloaded),
        ("zero3", {"activation_checkpointing": True}),
    ]
    cells = [
        asked(strategy, evidence="formula", gpus_per_node=gpus, **axes) for gpus in (2, 4) for strategy, axes in ways
    ]
    found = [formula_trial(cell, plays_allocator=True) for cell in cells]
    write_run(tmp_path / "run", [SampleTrial(one.spec, one.record, one.ranks) for one in found], samples=False)
    return tmp_path / "run"


def simulated(tmp_path: Path) -> Path:
    """Start-up needs more than steps, though its tensors hold less; and the other way round."""
    ledger = {
        (StepKind.FIRST, Phase.STEP): {Category.PARAMETERS: 10 * GIB},
        (StepKind.STEADY, Phase.BACKWARD): {Category.PARAMETERS: 10 * GIB, Category.ACTIVATIONS: 4 * GIB},
    }
    context = ContextMemory(before_bytes=None, context_bytes=GIB, collectives_bytes=2 * GIB)
    host = {(StepKind.STEADY, Phase.STEP): {Category.MASTER_WEIGHTS: 3 * GIB}}
    trials = [
        trial(
            asked("zero2", micro_batch_size=batch, offload_optimizer="cpu", optimizer="cpu_adam"),
            ledger,
            host,
            allocator=[reserved(*step, size) for step, size in zip(ledger, sizes, strict=True)],
            context=context,
        )
        for batch, sizes in ((1, (21 * GIB, 15 * GIB)), (2, (11 * GIB, 19 * GIB)))
    ]
    write_run(tmp_path / "run", trials, samples=False)
    return tmp_path / "run"


def sample(tmp_path: Path) -> Path:
    write_run(tmp_path / "run", sample_trials())
    return tmp_path / "run"


def on_cpu(tmp_path: Path) -> Path:
    write_run(tmp_path / "run", cpu_trials(), samples=False)
    return tmp_path / "run"


RUNS: Mapping[str, Callable[[Path], Path]] = {
    "formula": by_formula,
    "simulated": simulated,
    "emulated": lambda _: EMULATED,
    "measured": sample,
    "measured on CPU ranks": on_cpu,
    "measured and kept": lambda _: MEASURED,
}


def tables(path: Path) -> Iterator[tuple[Table[Any], tuple[list[str], str]]]:
    figures = run_figures([load_run(path)]).figures
    yield states_table(figures), STATES
    cluster = read_cluster(gpu="h100", gpus="8", host_memory="1TB")
    named, rows = read_plan(path, cluster)
    categories, need = memory_tables(rows, cluster)
    yield need, NEED
    sampled = [
        Line(figure.name, row) for figure, (_, one) in zip(figures, named, strict=False) for row in nvml_rows(one)
    ]
    yield nvml_table(sampled, []), NVML
    if path != MEASURED:  # whose records were cut to the categories of model states
        yield device_table(figures), DEVICE
        yield host_table(figures), HOST
        yield categories, DEVICE


LINES = {
    "formula": 14 * 3,
    "simulated": 2 * 3,
    "emulated": 3 * 3,
    "measured": 3 * 3,
    "measured on CPU ranks": 3,
    "measured and kept": 3,
}
"""At least so many lines of a world have a total to hold: none is passed by an empty table."""


@pytest.mark.parametrize("world", RUNS)
def test_the_parts_of_every_memory_table_add_up_to_its_total(world: str, tmp_path: Path) -> None:
    found = [
        (table.title, *one)
        for table, (parts, total) in tables(RUNS[world](tmp_path))
        for one in sums(table, parts, total)
    ]
    assert len(found) >= LINES[world]
    assert [one for one in found if abs(one[2] - one[3]) > one[4]] == []


def test_slack_that_the_closed_forms_count_is_shown(tmp_path: Path) -> None:
    cluster = read_cluster(gpu="h100", gpus="4")
    _, rows = read_plan(by_formula(tmp_path), cluster)
    [need] = [table for table in memory_tables(rows, cluster) if "what must fit" in table.title]
    slack = [cell for line in need.lines for cell in numbers(need, line, ["allocator slack"])]
    assert slack != []
    assert MISSING not in slack
