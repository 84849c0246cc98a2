"""The ZeRO paper's terms, held against the figures that the paper prints."""

import pytest

from tests.report.sample_run import spec
from tests.tools.known import known
from zerobench.report.figures.paper import paper_terms

FIGURE_1_GB = {"zero0": 120, "zero1": 31.4, "zero2": 16.6, "zero3": 1.9}
"""Figure 1 of arXiv 1910.02054: 7.5 billion parameters, 64 ranks, K = 12."""


@pytest.mark.parametrize("strategy", FIGURE_1_GB)
def test_the_terms_give_the_papers_first_figure(strategy: str) -> None:
    terms = known(paper_terms(spec(strategy, gpus_per_node=64), 7_500_000_000))
    assert terms.total_bytes / 1e9 == pytest.approx(FIGURE_1_GB[strategy], abs=0.05)


@pytest.mark.parametrize(
    ("strategy", "fields", "text"),
    [
        ("zero1", {}, "2P + 2P + 12P/8"),
        ("zero3", {}, "2P/8 + 2P/8 + 12P/8"),
        ("zero3", {"hpz_partition_size": 4}, "2P/8 + 2P/4 + 2P/8 + 12P/8"),
        ("fsdp", {"mics_shard_size": 4}, "2P/4 + 2P/4 + 12P/4"),
        ("zero1", {"precision": "fp32"}, "4P + 4P + 8P/8"),
        ("zero1", {"optimizer": "sgd"}, "2P + 2P + 4P/8"),
        ("zero1", {"optimizer": "sgd", "precision": "fp32"}, "4P + 4P + 0P/8"),
        ("single", {"gpus_per_node": 1}, "2P + 2P + 12P"),
        ("zero2", {"gpus_per_node": 1}, "2P + 2P + 12P"),
    ],
)
def test_the_terms_are_written_as_the_paper_writes_them(strategy: str, fields: dict[str, object], text: str) -> None:
    terms = known(paper_terms(spec(strategy, **fields), 1000))
    assert terms.text == text


def test_the_second_copy_of_hpz_and_the_smaller_groups_of_mics_are_in_the_bytes() -> None:
    parameters = {
        how: terms.parameters_bytes
        for how in (None, 4)
        if (terms := paper_terms(spec("zero3", hpz_partition_size=how), 8000)) is not None
    }
    assert parameters == {None: 2000, 4: 2000 + 4000}
    mics = known(paper_terms(spec("fsdp", mics_shard_size=4), 8000))
    assert mics.total_bytes == 16 * 8000 / 4


def test_there_are_no_terms_for_what_the_paper_does_not_speak_of() -> None:
    assert paper_terms(spec("parameter-server"), 1000) is None
    assert paper_terms(spec("tensor"), 1000) is None
    assert paper_terms(spec("zero1"), None) is None
