"""Trials that an emulated GPU refused and that were played again with room for everything: their need is drawn."""

import pytest

from tests.report.charts.drawing import texts
from tests.report.sample_run import GIB, completed_trial, refused_trial, spec, write_run
from zerobench.records.store import load_run
from zerobench.report.charts import figures
from zerobench.report.explain.sentences import headline
from zerobench.report.export.run_frames import RunFrames, run_frames
from zerobench.report.tables.figure import Figure


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> RunFrames:
    emulated = [
        completed_trial(spec(name, evidence="emulated", prediction={"gpu": "H100 SXM"})) for name in ("zero0", "zero2")
    ]
    path = tmp_path_factory.mktemp("refused")
    write_run(path, [refused_trial(emulated[0], 99 * GIB), emulated[1]])
    return run_frames([load_run(path)])


@pytest.fixture(scope="module")
def drawn(frames: RunFrames) -> dict[str, Figure]:
    return {figure.key: figure for figure in figures(frames)}


def test_the_bar_of_a_refused_trial_stands_with_the_others(drawn: dict[str, Figure]) -> None:
    memory = drawn["memory-per-gpu"]
    assert list(memory.table["trial"]) == ["zero0", "zero2"]
    said = texts(memory)
    assert any("needs 99" in text for text in said)
    assert "out of device memory" not in said


def test_its_model_states_stand_beside_the_paper_s(drawn: dict[str, Figure]) -> None:
    assert list(drawn["model-states"].table["trial"]) == ["zero0", "zero2"]


def test_the_headline_says_how_much_it_needs(frames: RunFrames) -> None:
    first = headline(frames)[0]
    assert "zero0 (99.00 GiB in steps) does not fit" in first


def test_the_refusal_s_own_words_are_not_repeated_behind_the_count(frames: RunFrames) -> None:
    assert "1 of 2 trials completed; 1 out of device memory." in headline(frames)
