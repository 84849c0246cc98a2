"""Model states beside the ZeRO paper's terms."""

import pytest

from tests.report.charts.drawing import said, texts
from zerobench.report.export.run_frames import RunFrames
from zerobench.report.tables.figure import Figure
from zerobench.report.tables.model_states import states_rows

GB = 10**9


def test_each_bar_is_what_a_rank_holds_and_its_mark_the_papers_sum_in_gb(
    gpu_frames: RunFrames, gpu_figures: dict[str, Figure]
) -> None:
    drawn = gpu_figures["model-states"]
    (trial,) = [one for one in gpu_frames.figures if one.label == "zero2"]
    (row,) = states_rows(trial)
    assert row.paper is not None
    words = f"zero2, ZeRO paper: {row.paper.total_bytes / GB:.2f} GB = 2P + 2P/8 + 12P/8"
    assert words in said(drawn)
    assert f"zero2, gradients: {row.states.gradients_bytes / GB:.2f} GB" in said(drawn)
    assert f"{row.states.total_bytes / GB:.2f}, paper {row.paper.total_bytes / GB:.2f} GB" in texts(drawn)
    line = drawn.table[drawn.table["trial"] == "zero2"].iloc[0]
    assert float(line["total (GB)"]) * GB == pytest.approx(row.states.total_bytes, abs=GB / 1000)
    assert float(line["total by the paper (GB)"]) * GB == pytest.approx(row.paper.total_bytes, abs=GB / 1000)
