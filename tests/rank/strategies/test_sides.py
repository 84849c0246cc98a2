"""The stages of a pipeline and the two sides of a parameter server, among real ranks and each of them played alone."""

import pytest

from tests.rank.strategies.test_parameter_server import TINY as SIDES
from tests.rank.strategies.test_pipeline import SCHEDULES, STATES
from tests.rank.strategies.test_pipeline import TINY as STAGES
from tests.tools.at_least_one import at_least_one
from tests.tools.rank_memory import FEW_BYTES, live_bytes, moved_bytes, total, unnamed
from zerobench.common.vocabulary import Category, Phase, Place, Status, StepKind

PLAYED = pytest.mark.parametrize(
    ("tiny", "rank", "peaks"),
    [(STAGES, 0, 7), (STAGES, 1, 7), (SIDES, 0, 5), (SIDES, 2, 7)],
    ids=["first stage", "last stage", "server", "worker"],
)
"""And in how many phases a device holds anything: a server has no forward pass."""
WORK = {"precision": "bf16"}
BUFFERS = (Category.MASTER_WEIGHTS, Category.PIPELINE_BUFFERS, Category.REDUCE_BUFFERS, Category.MODEL_BUFFERS)


@pytest.mark.parametrize(
    ("tiny", "work"),
    [
        *[(STAGES, {"pipeline_schedule": schedule}) for schedule in SCHEDULES],
        *[(SIDES, {"consistency": consistency}) for consistency in ("sync", "async")],
    ],
    ids=[*SCHEDULES, "sync", "async"],
)
def test_every_byte_at_every_peak_of_every_rank_has_a_name(ran, tiny, work):
    for rank in at_least_one(ran(tiny.spec(**work))):
        assert unnamed(rank) == [], (rank.role, rank.notes)


@PLAYED
@pytest.mark.parametrize("evidence", ["solo", "simulated"])
def test_a_rank_played_alone_holds_what_it_holds_among_others_to_the_byte(ran, tiny, rank, peaks, evidence):
    real = ran(tiny.spec(**WORK))[rank]
    [alone] = ran(tiny.spec(**WORK, evidence=evidence, prediction={"rank": rank}))
    assert (alone.role, alone.status) == (real.role, Status.COMPLETED)
    for step in StepKind:
        for phase in Phase:
            for category in (*STATES, *BUFFERS):
                there, here = (live_bytes(one, category, phase, step) for one in (real, alone))
                assert here == there, (step, phase, category)
    for kind in ("send", "recv"):
        assert moved_bytes(alone, kind) == moved_bytes(real, kind) > 0
    assert alone.staleness_steps is None
    assert {time.wait_s for time in alone.step_times} <= {None}


@PLAYED
def test_simulated_peaks_are_within_three_percent_of_the_real_ones(ran, tiny, rank, peaks):
    real = ran(tiny.spec(**WORK))[rank]
    [alone] = ran(tiny.spec(**WORK, evidence="simulated", prediction={"rank": rank}))
    rows = [row for row in real.memory if row.category is Category.TOTAL and row.place is Place.DEVICE]
    for row in rows:
        assert total(alone, row).at_peak_bytes == pytest.approx(row.at_peak_bytes, rel=0.03, abs=FEW_BYTES), row
    assert len(rows) == peaks


@pytest.mark.parametrize(
    ("tiny", "rank", "work"),
    [(STAGES, 1, {}), (SIDES, 0, {"consistency": "async"}), (SIDES, 1, {"consistency": "async"})],
    ids=["last stage", "server", "worker"],
)
def test_a_rank_on_a_gpu_of_the_catalogue_completes_with_every_byte_named(ran, tiny, rank, work):
    on_gpu = {"evidence": "simulated", "prediction": {"rank": rank, "gpu": "H200 SXM"}}
    [alone] = ran(tiny.spec(**WORK, **work, **on_gpu))
    assert alone.status is Status.COMPLETED
    assert alone.device_memory
    assert unnamed(alone) == []
