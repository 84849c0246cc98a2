"""The comparison of a real run: the shipped sweep on two CPU cores, as it was left on disk, less what nobody compares.

It was run with shorter sequences and fewer timed steps than the sweep has now. Its seconds are those of a machine
that did other work too, and are here for their place in the tables.
"""

from pathlib import Path

import pandas as pd
import pytest

from tests.tools.golden import as_looked_at
from tests.tools.printed import shown_run
from zerobench.common.vocabulary import Category, Place, StepKind
from zerobench.records.instants import largest_peak
from zerobench.records.store import load_run
from zerobench.report.explain.category import Explainer
from zerobench.report.export import schema
from zerobench.report.export.joined_tables import strategies_frame, write_csv
from zerobench.report.export.run_frames import RunFrames, run_frames
from zerobench.report.figures.strategies.claim import Verdict
from zerobench.report.figures.strategies.claims import claims
from zerobench.report.figures.strategies.rows import ComparedSide

RUN = Path(__file__).with_name("records")
FSDP = next(trial for trial in load_run(RUN).trials() if (trial.spec.strategy, trial.spec.world_size) == ("fsdp", 2))
GOLDEN = Path(__file__).with_name("golden")
WEIGHTS = 4 * 10_227_072


@pytest.fixture(scope="module")
def frames() -> RunFrames:
    return run_frames([load_run(RUN)])


def row(frames: RunFrames, label: str, role: str = "worker") -> ComparedSide:
    return next(one for one in frames.comparison if one.label.startswith(label) and one.figures.role == role)


def section(width: int) -> str:
    """The two sections of the comparison, as the terminal has them."""
    lines = shown_run(RUN, width).splitlines()
    start = next(i for i, line in enumerate(lines) if line == "Distributed training compared")
    return (
        "\n".join(
            line.rstrip() for line in lines[start : lines.index("Device memory at the peak of a steady step, MiB")]
        )
        + "\n"
    )


@pytest.mark.parametrize("width", [80, 140])
def test_the_terminal_shows_the_comparison_and_the_claims(width: int):
    as_looked_at(section(width), GOLDEN / f"compared_{width}.txt")
    assert max(map(len, section(width).splitlines())) <= width
    assert "\N{HORIZONTAL ELLIPSIS}" not in section(width)


def test_every_strategy_of_the_run_has_its_row_and_the_server_one_of_its_own(frames: RunFrames):
    assert len(frames.comparison) == len(frames.trials) + 3
    assert [one.spec.strategy for one in frames.comparison if one.figures.is_server] == ["parameter-server"] * 3


def test_ddp_and_the_server_move_to_the_byte_what_the_papers_say(frames: RunFrames):
    ddp, worker = row(frames, "ddp n2 mb12").figures, row(frames, "parameter-server n3").figures
    server = row(frames, "parameter-server n3", "server").figures
    assert ddp.sent_bytes == ddp.formula_sent_bytes == WEIGHTS
    assert (worker.sent_bytes, worker.received_bytes) == (WEIGHTS, WEIGHTS)
    assert (server.sent_bytes, server.received_bytes) == (2 * WEIGHTS, 2 * WEIGHTS)


def test_exact_strategies_agree_and_others_differ_by_design(frames: RunFrames):
    verdicts = {one.label: one.verdict for one in frames.comparison if not one.figures.is_server}
    assert "disagrees" not in verdicts.values()
    by_design = {label for label, verdict in verdicts.items() if verdict == "by design"}
    assert len(by_design) == 4
    assert all(any(word in label for word in ("fp16", "powersgd", "onebit", "async")) for label in by_design)


def test_the_run_judges_every_claim_but_that_of_pipelines_which_it_has_none_of(frames: RunFrames):
    found = claims(frames.comparison)
    assert [claim.text.split(":")[0] for claim in found if claim.verdict is Verdict.UNJUDGED] == ["Pipeline bubble"]
    assert {claim.text.split()[0] for claim in found if claim.verdict is Verdict.HOLDS} >= {"Exact", "Data", "A"}


def test_the_table_as_csv_has_the_columns_that_it_says_and_bytes_that_are_bytes(frames: RunFrames, tmp_path: Path):
    write_csv(frames, tmp_path)
    table = pd.read_csv(tmp_path / "compared.csv")
    assert list(table) == list(schema.COMPARED)
    assert len(table) == len(strategies_frame(frames.comparison)) == len(frames.comparison)
    ddp = table[(table.strategy == "ddp") & (table.world_size == 2)].iloc[0]
    assert (ddp.sent_bytes, ddp.parameters_bytes) == (WEIGHTS, WEIGHTS)


def test_what_fsdp_divides_and_gathers_is_explained_to_the_byte():
    instant = largest_peak(FSDP, StepKind.STEADY, Place.DEVICE)
    assert instant is not None
    found = {one.category: one for one in Explainer(FSDP, instant.rank).instant(instant)}
    exact = {category for category, one in found.items() if one.terms and one.not_explained_bytes == 0}
    assert exact >= {
        Category.PARAMETERS,
        Category.FIRST_MOMENT,
        Category.SECOND_MOMENT,
        Category.GATHERED_PARAMETERS,
        Category.ALL_GATHER_BUFFERS,
        Category.REDUCE_BUFFERS,
    }
    assert sum(one.seen_bytes for one in found.values()) == instant.total_bytes
