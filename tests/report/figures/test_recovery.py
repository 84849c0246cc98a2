"""Checkpoints and faults in reports: derived from the records of both launches, in terminal, frames, Markdown, page."""

from pathlib import Path
from typing import Any

import pytest

from tests.report.sample_run import SampleTrial, completed_trial, spec, write_run
from tests.tools.known import known
from zerobench.common.vocabulary import Status
from zerobench.records.records import CheckpointTransfer, RankRecord, Recovery
from zerobench.records.store import load_run
from zerobench.report.charts import checkpoints_figure
from zerobench.report.export.run_frames import run_frames
from zerobench.report.figures.parity import losses
from zerobench.report.figures.recovery import resumed, uninterrupted_losses

MIB = 2**20
EVERY = {"every_steps": 2}
FAULT = EVERY | {"fault": {"rank": 1, "step": 7}}


def transfer(kind: str, step: int, **fields: Any) -> CheckpointTransfer:
    figures: dict[str, Any] = {"seconds": 2.0, "own_s": 1.5, "size_bytes": 4_000_000_000, "start_s": 0.0}
    figures |= {"rss_before_bytes": 100 * MIB, "rss_peak_bytes": 150 * MIB}
    figures |= {"device_before_bytes": None, "device_peak_bytes": None}
    return CheckpointTransfer.model_validate({"kind": kind, "step": step, **figures, **fields})


def saves(rank: RankRecord) -> list[CheckpointTransfer]:
    """Three, of which rank 1 is slower; the last one after malloc was let loose."""
    slow = {"seconds": 2.0 + rank.rank}
    last = transfer("save", 6, **slow, rss_before_bytes=None, rss_peak_bytes=None)
    return [*(transfer("save", step, **slow) for step in (2, 4)), last]


def recovered(checkpoint: dict[str, Any], **fields: Any) -> SampleTrial:
    """A trial on two ranks of eight steps, resumed from step 6."""
    made = completed_trial(spec("zero1", gpus_per_node=2, checkpoint=checkpoint))
    told: dict[str, Any] = {"status": Status.COMPLETED, "world_size": 2, "from_step": 6, "steps_done": 9}
    told |= {"first_ended_at_s": 1010.0, "started_at_s": 1011.0, "ended_at_s": 1060.0}
    told |= {"loads": [transfer("load", 6), transfer("load", 6, seconds=4.0, rss_peak_bytes=300 * MIB)]}
    told |= {"losses": list(made.ranks[0].losses), "steps_ended_at_s": [1030.0, 1031.0, 1032.0]}
    recovery = Recovery.model_validate({**told, **fields})
    return made.with_record(recovery=recovery).with_ranks(checkpoints=saves)


@pytest.fixture
def uninterrupted() -> SampleTrial:
    return recovered(EVERY)


@pytest.fixture
def faulty() -> SampleTrial:
    """Rank 1 was killed with seven steps done; of what came after, nobody of the first launch has a loss."""
    made = recovered(FAULT, killed_at_s=1000.0, killed_rank=1, steps_done=7)
    assert made.record.recovery is not None
    off = [*made.record.recovery.losses[:-1], made.record.recovery.losses[-1] + 0.25]
    recovery = made.record.recovery.model_copy(update={"losses": off})
    return made.with_record(recovery=recovery).with_ranks(losses=lambda rank: rank.losses[:6])


@pytest.fixture
def folder(uninterrupted: SampleTrial, faulty: SampleTrial, tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", [uninterrupted, faulty], samples=False).path


def test_a_save_is_as_slow_as_its_slowest_rank_and_memory_is_that_of_the_rank_that_takes_most(
    uninterrupted: SampleTrial,
) -> None:
    found = known(resumed(uninterrupted, losses(uninterrupted)))
    assert found.save is not None
    assert found.load is not None
    assert (found.save.seconds, found.save.host_bytes) == (3.0, 50 * MIB)
    assert found.save.bytes_per_s == pytest.approx(4e9 / 3)
    assert (found.load.seconds, found.load.host_bytes, found.load.device_bytes) == (4.0, 200 * MIB, None)
    assert (found.loss_distance, found.steps_lost, found.recover_s, found.restart_s) == (0.0, None, None, 20.0)


def test_recovery_lasts_from_the_death_to_the_end_of_the_first_step_that_is_new(
    faulty: SampleTrial, uninterrupted: SampleTrial
) -> None:
    twin = uninterrupted_losses(faulty, [faulty, uninterrupted])
    found = known(resumed(faulty, twin))
    assert (found.steps_lost, found.recover_s) == (1, 31.0)
    assert found.loss_distance == pytest.approx(0.25)


def test_without_the_same_work_uninterrupted_there_is_no_distance(faulty: SampleTrial) -> None:
    other = completed_trial(spec("zero2", gpus_per_node=2))
    found = known(resumed(faulty, uninterrupted_losses(faulty, [faulty, other])))
    assert found.loss_distance is None


def test_the_same_work_without_any_checkpoint_will_do(faulty: SampleTrial) -> None:
    plain = completed_trial(spec("zero1", gpus_per_node=2))
    assert list(uninterrupted_losses(faulty, [faulty, plain])) == list(plain.ranks[0].losses)


def test_losses_of_a_trial_with_a_fault_are_those_of_the_launch_that_went_to_the_end(faulty: SampleTrial) -> None:
    assert list(losses(faulty)) == known(faulty.record.recovery).losses


def test_a_trial_that_did_not_complete_or_saved_nothing_has_no_row(uninterrupted: SampleTrial) -> None:
    assert resumed(uninterrupted.with_record(status=Status.CRASH), ()) is None
    assert resumed(completed_trial(spec("zero1")), ()) is None


def test_each_resume_is_held_against_the_run_without_a_fault(folder: Path) -> None:
    frames = run_frames([load_run(folder)])
    found = [one.resumed for one in frames.figures if one.resumed is not None]
    assert found[1].steps_lost == 1
    assert [one.loss_distance for one in found] == pytest.approx([0.0, 0.25])
    assert [one.save and one.save.seconds for one in found] == [3.0, 3.0]
    drawn = known(checkpoints_figure(frames))
    assert drawn.table["recovered, s"].tolist() == ["-", "31.0"]
    assert drawn.table["loss difference"].tolist() == ["0", "2.5e-01"]


@pytest.mark.parametrize(("steps_done", "ends", "lost", "recover_s"), [
    (6, (1030.0,), 0, 30.0),
    (7, (1030.0, 1031.0, 1032.0), 1, 31.0),
    (8, (1030.0, 1031.0, 1032.0), 2, 32.0),
    (9, (1030.0, 1031.0, 1032.0), 3, None),  # which was never done again
    (12, (1030.0, 1031.0, 1032.0), 6, None),
    (6, (), 0, None),
])  # fmt: skip
def test_a_trial_has_recovered_once_it_is_further_than_it_was(
    steps_done: int, ends: tuple[float, ...], lost: int, recover_s: float | None
) -> None:
    made = recovered(FAULT, killed_at_s=1000.0, killed_rank=1, steps_done=steps_done, steps_ended_at_s=list(ends))
    found = known(resumed(made, ()))
    assert (found.steps_lost, found.recover_s) == (lost, recover_s)
    assert found.restart_s == (20.0 if ends else None)


def test_a_checkpoint_is_as_large_as_the_last_one_and_takes_the_median_of_all_saves() -> None:
    """Of each the slowest rank's seconds."""
    figures = ((2, 100, 5.0), (4, 200, 1.0), (6, 300, 3.0))
    made = recovered(EVERY).with_ranks(
        checkpoints=lambda rank: [
            transfer("save", step, size_bytes=size, seconds=seconds * (1 + rank.rank))
            for step, size, seconds in figures
        ]
    )
    save = known(known(resumed(made, ())).save)
    assert (save.size_bytes, save.seconds, save.bytes_per_s) == (300, 6.0, 50.0)


@pytest.mark.parametrize(("before", "peak", "more"), [
    ((100, 100), (150, 190), 90), ((100, None), (150, 190), 50), ((100, 100), (150, None), 50),
    ((100, 100), (90, 80), 0), ((None, None), (150, 190), None), ((0, 100), (70, 150), 70),
])  # fmt: skip
def test_a_transfer_takes_as_much_more_as_the_rank_that_takes_most_and_never_less_than_nothing(
    before: tuple[int | None, ...], peak: tuple[int | None, ...], more: int | None
) -> None:
    def figures(place: str) -> list[CheckpointTransfer]:
        names = (f"{place}_before_bytes", f"{place}_peak_bytes")
        pairs = zip(before, peak, strict=True)
        return [transfer("load", 6, **dict(zip(names, pair, strict=True))) for pair in pairs]

    host, device = (known(known(resumed(recovered(EVERY, loads=figures(one)), ())).load) for one in ("rss", "device"))
    assert (host.host_bytes, device.device_bytes) == (more, more)
    assert known(resumed(recovered(EVERY, loads=[]), ())).load is None
