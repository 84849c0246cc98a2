"""All ranks of a small world, each a process on an emulated GPU of its own, against each of them played alone."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.prediction.simulated import TINY, gpu_trial
from tests.report.sample_run import SampleTrial
from tests.tools.at_least_one import at_least_one
from tests.tools.kept_simulator import Simulate
from tests.tools.laid_out import trial_laid_out
from zerobench.common.vocabulary import Category, Place, Status, StepKind
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import Evidence, Offload, PredictionSpec, StepsSpec, TrialSpec
from zerobench.emulator.emulator import Emulator
from zerobench.launch.run.simulations import predict
from zerobench.launch.run.stop import Stop
from zerobench.records.instants import peaks_by_rank
from zerobench.records.records import RankRecord, TrialRecord
from zerobench.records.store import read_record
from zerobench.report.figures.stats import spread_over_ranks

ASKED, PLAYED = 5, 3
LARGE_BYTES = 4096
"""Not norms and flags, which no formula counts."""
NOTHING_KEPT = {
    f"zero_optimization.stage3_{key}": 0
    for key in ("param_persistence_threshold", "max_live_parameters", "max_reuse_distance", "prefetch_bucket_size")
}
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "stage 1": (1, {}),
    "stage 2, offloaded": (2, {"offload_optimizer": Offload.CPU, "optimizer": "cpu_adam"}),
    "stage 3": (3, {}),
    "stage 3, a second gather": (3, {"activation_checkpointing": True, "ds_config": NOTHING_KEPT}),
}


def trials(stage: int, more: dict[str, Any]) -> list[TrialSpec]:
    """One that is played whole, and the same of which three micro-batches are."""
    model = resolve_model(TINY)
    whole = gpu_trial(model, stage, 8, sequence_length=64, gradient_accumulation_steps=ASKED, **more)
    prediction = whole.prediction.model_copy(update={"micro_batches": PLAYED})
    return [whole, whole.model_copy(update={"prediction": prediction})]


@pytest.fixture(scope="module")
def records(simulate: Simulate) -> dict[str, list[RankRecord]]:
    """By case the record of the whole step, then of the short one."""
    found = simulate([trial for stage, more in CASES.values() for trial in trials(stage, more)])
    return {name: found[2 * index : 2 * index + 2] for index, name in enumerate(CASES)}


@pytest.mark.parametrize("name", CASES)
def test_a_short_step_holds_moves_and_computes_what_the_whole_step_does(
    name: str, records: dict[str, list[RankRecord]]
) -> None:
    whole, short = records[name]
    assert short.trial_id == whole.trial_id
    assert short.flops_per_step == whole.flops_per_step
    assert moved(short) == moved(whole)
    told, expected = rows(short), rows(whole)
    assert set(told) == set(expected)
    others = ASKED - PLAYED
    room = {  # token ids, and one number in a block of 512 bytes
        Category.INPUTS: 64 * 8 * others,
        Category.LOGITS_AND_LOSS: 4 * others,
        Category.UNATTRIBUTED: 4 * others,
        Category.ALLOCATOR_ROUNDING: 512 * others,
        Category.TOTAL: (64 * 8 + 512) * others,
    }
    for key, nbytes in expected.items():
        assert abs((told[key] or 0) - (nbytes or 0)) <= room.get(key[3], 0), key
    noted = [note for note in short.notes if "micro-batches" in note]
    assert noted == [f"{PLAYED} of {ASKED} micro-batches of a step played; the others add their inputs and losses"]


def rows(record: RankRecord) -> dict[tuple[str, str, str, Category], int | None]:
    return {(row.step, row.phase, row.place, row.category): row.at_peak_bytes for row in record.memory}


def moved(record: RankRecord) -> dict[tuple[str, ...], int]:
    """Bytes of a steady step's large messages, by phase and kind."""
    steady = [row for row in record.collectives if row.step == "steady" and row.message_bytes > LARGE_BYTES]
    return {(row.phase, row.kind): row.message_bytes for row in steady}


GPU = "H200 SXM"
ODD = resolve_model(
    {
        "family": "llama",
        "name": "odd",
        "num_layers": 2,
        "hidden_size": 264,
        "num_heads": 4,
        "num_kv_heads": 2,
        "intermediate_size": 523,
        "vocab_size": 5003,
        "max_position_embeddings": 64,
    }
)
"""None of its sizes is a multiple of three."""
RANKS = 3
STAGES = ("zero2", "zero3")
LARGE = 2**17


def asked(strategy: str, **prediction: Any) -> TrialSpec:
    return TrialSpec(
        model=ODD,
        strategy=strategy,
        gpus_per_node=RANKS,
        micro_batch_size=prediction.pop("micro_batch_size", 1),
        sequence_length=64,
        steps=StepsSpec(warmup=0, memory=1, timed=1),
        evidence=Evidence.EMULATED,
        prediction=PredictionSpec(gpu=GPU, **prediction),
    )


def play(trials: list[TrialSpec], folder: Path) -> list[tuple[TrialRecord, list[RankRecord]]]:
    """The record of each, and those of its ranks."""
    pairs = [(one, trial_laid_out(folder / one.trial_id, one)) for one in trials]
    predict(pairs, "run", 2, Stop(), lambda _: None, lambda _: None)
    return [
        (read_record(place.record, TrialRecord), [read_record(path, RankRecord) for path in place.rank_records()])
        for _, place in pairs
    ]


Ended = dict[str, tuple[TrialRecord, list[RankRecord]]]


@pytest.fixture(scope="module")
def ended(emulator: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Each stage by all ranks together, then by one after the other; and one that no GPU of theirs can hold."""
    together = {stage: asked(stage, all_ranks=True) for stage in STAGES}
    alone = {f"{stage} {rank}": asked(stage, rank=rank) for stage in STAGES for rank in range(RANKS)}
    large = {"large": asked("zero2", all_ranks=True, micro_batch_size=LARGE)}
    trials = together | alone | large
    return dict(zip(trials, play(list(trials.values()), tmp_path_factory.mktemp("peers")), strict=True))


@pytest.mark.parametrize("stage", STAGES)
def test_every_rank_of_a_world_leaves_its_record(ended: Ended, stage: str) -> None:
    record, ranks = ended[stage]
    assert (record.status, record.reason) == (Status.COMPLETED, None)
    assert (record.ranks_expected, record.ranks_reported) == (RANKS, RANKS)
    assert [(rank.rank, rank.local_rank) for rank in ranks] == [(0, 0), (1, 1), (2, 2)]
    assert len({rank.pid for rank in ranks}) == RANKS


@pytest.mark.parametrize("stage", STAGES)
def test_each_rank_among_its_peers_holds_what_it_holds_alone_to_the_byte(ended: Ended, stage: str) -> None:
    for rank in at_least_one(ended[stage][1]):
        [alone] = ended[f"{stage} {rank.rank}"][1]
        assert rank.device_memory == alone.device_memory
        assert rank.memory == alone.memory
        assert rank.collectives == alone.collectives
        assert rank.context == alone.context


def test_ranks_of_a_world_that_does_not_divide_differ(ended: Ended) -> None:
    assert any(one.memory != other.memory for stage in STAGES for one, *_, other in [ended[stage][1]])


def test_a_world_that_does_not_fit_says_what_each_rank_needs(ended: Ended) -> None:
    record, ranks = ended["large"]
    assert record.status is Status.OUT_OF_DEVICE_MEMORY
    assert str(record.reason).startswith("it needs ")
    assert len({rank.failure.bytes_needed for rank in ranks if rank.failure}) == 1
    assert record.ranks_reported == RANKS


def test_reports_take_the_least_and_the_most_over_the_ranks_of_a_world(ended: Ended) -> None:
    record, ranks = ended["zero2"]
    trial = SampleTrial(asked("zero2", all_ranks=True), record, ranks)
    peaks = {rank: peak.total_bytes for rank, peak in peaks_by_rank(trial, StepKind.STEADY, Place.DEVICE, None).items()}
    spread = spread_over_ranks(peaks)
    assert sorted(peaks) == [0, 1, 2]
    assert spread is not None
    assert (spread.minimum, spread.maximum) == (min(peaks.values()), max(peaks.values()))
