"""Saves and loads by ranks of any framework: when, where, and what they leave in the record."""

from pathlib import Path

import pytest

from tests.tools.rank_records import rank_record
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.checkpoint import CheckpointSpec
from zerobench.config.trial.trial import StepsSpec, TrialSpec
from zerobench.rank.loop.checkpoint_saves import Checkpoints
from zerobench.records.checkpoint_files import Position, ResumeFrom, checkpoints_folder, last
from zerobench.records.folder import TrialFolder
from zerobench.records.progress import Rank
from zerobench.records.records import RankRecord

RANK = Rank(0, 0, 1, "here", 1)


class Words:
    """Saves some words, and notes what it has been asked."""

    def __init__(self) -> None:
        self.waited = 0
        self.loaded: str | None = None

    def save(self, folder: Path) -> None:
        (folder / "words").write_text("twelve bytes")

    def load(self, folder: Path) -> None:
        self.loaded = (folder / "words").read_text()

    def barrier(self) -> None:
        self.waited += 1

    def synchronize(self) -> None:
        """There is no device."""

    def start_device_peak(self) -> int | None:
        return None

    def device_peak(self) -> int | None:
        return None


@pytest.fixture
def trial() -> TrialSpec:
    return TrialSpec(
        model=resolve_model("llama-10m"),
        strategy="ddp",
        checkpoint=CheckpointSpec(every_steps=2),
        steps=StepsSpec(warmup=0, timed=4, memory=1),
    )


def checkpoints(trial: TrialSpec, folder: TrialFolder, words: Words) -> tuple[Checkpoints, RankRecord]:
    record = rank_record(trial.trial_id)
    return Checkpoints(trial, folder, RANK, words, record), record


def test_all_wait_for_all_and_the_checkpoint_before_is_gone_once_the_next_is_whole(
    trial: TrialSpec, tmp_path: Path
) -> None:
    folder, words = TrialFolder(tmp_path), Words()
    found, record = checkpoints(trial, folder, words)
    assert [step for step in range(1, 7) if found.is_due(step)] == [2, 4]  # none after the last
    for step in (2, 4):
        found.save(words, step, [1.0] * step)
    base = checkpoints_folder(trial, folder)
    assert [path.name for path in base.iterdir()] == ["step_000004"]
    assert [(save.kind, save.step, save.size_bytes) for save in record.checkpoints] == [
        ("save", 2, 12),
        ("save", 4, 12),
    ]
    assert words.waited >= 2 * 4


def test_a_second_launch_goes_on_from_what_the_first_wrote_and_saves_nothing_more(
    trial: TrialSpec, tmp_path: Path
) -> None:
    first, words = TrialFolder(tmp_path), Words()
    checkpoints(trial, first, words)[0].save(words, 2, [3.0, 2.0])
    whole = last(checkpoints_folder(trial, first))
    assert whole is not None
    second = first.resumed
    second.path.mkdir()
    second.resume_from.write_text(ResumeFrom(checkpoint=whole).model_dump_json())
    found, record = checkpoints(trial, second, words)
    found.load(words)
    assert words.loaded == "twelve bytes"
    assert found.position == Position(step=2, losses=[3.0, 2.0])
    assert not found.is_due(4)
    [load] = record.checkpoints
    assert (load.kind, load.step, load.page_cache_dropped) == ("load", 2, True)
