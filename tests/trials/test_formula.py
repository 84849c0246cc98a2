"""What a plan by formula says of a step, beside the real engine in the simulated world, over a grid of small trials."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.prediction.simulated import gpu_trial
from benchmarks.prediction.simulated import simulate as simulate_anew
from tests.report.sample_run import SampleTrial, trial_record
from tests.tools.at_least_one import at_least_one
from tests.tools.kept_simulator import Simulate
from tests.tools.known import known
from tests.tools.rank_memory import flops_by_phase
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.config.derived.cluster import Cluster, read_cluster
from zerobench.config.derived.flops import model_flops_per_token
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.estimate.memory import formula_record
from zerobench.estimate.time.bound import step_bound
from zerobench.estimate.time.expected import expected_step
from zerobench.records.instants import phase_peak
from zerobench.records.records import NvmeTraffic, RankRecord
from zerobench.report.explain.memory_causes import MOMENTS
from zerobench.report.figures.capacity import device_need
from zerobench.report.figures.fit import ROOM

WITHIN = 0.05
"""How far a plan by formula may be from one by simulation."""

LLAMA = resolve_model(
    {
        "family": "llama",
        "name": "small-llama",
        "num_layers": 3,
        "hidden_size": 512,
        "num_heads": 8,
        "num_kv_heads": 4,
        "intermediate_size": 1408,
        "vocab_size": 4096,
        "max_position_embeddings": 2048,
    }
)
GPT2 = resolve_model(
    {"family": "gpt2", "name": "small-gpt2", "num_layers": 3, "hidden_size": 512, "num_heads": 8, "vocab_size": 4096}
)
WIDE = resolve_model(
    {"family": "llama", "name": "wide", "num_layers": 1, "hidden_size": 24576, "num_heads": 192, "vocab_size": 4096}
    | {"intermediate_size": 49152}
)
"""Six billion parameters in one layer: quick to simulate, and its flat copy does not fit beside it on 24 GB."""

ON_HOST = {"offload_optimizer": "cpu", "optimizer": "cpu_adam"}
ON_DRIVE = {"offload_optimizer": "nvme", "optimizer": "cpu_adam", "nvme_path": "/nvme"}
PLAIN = {"activation_checkpointing": False}
PARTLY = {
    name: {"zero_optimization.offload_optimizer.ratio": ratio, "zero_optimization.sub_group_size": 200_000}
    for name, ratio in (("half", 0.5), ("most", 0.7), ("none", 0.0))
}
"""Of the optimizer offloaded, in sub-groups of which one rank has several."""

GRID: dict[str, tuple[Any, int, int, dict[str, Any]]] = {
    "zero0": (LLAMA, 0, 8, PLAIN),
    "zero1 n64": (LLAMA, 1, 64, PLAIN),
    "zero1 eager": (LLAMA, 1, 8, {"attention": "eager", "gradient_accumulation_steps": 2}),
    "zero2": (LLAMA, 2, 8, PLAIN),
    "zero2 ckpt": (LLAMA, 2, 8, {"gradient_accumulation_steps": 4}),
    "zero3": (LLAMA, 3, 8, PLAIN),
    "zero3 ckpt": (LLAMA, 3, 8, {}),
    "zero3 n64": (LLAMA, 3, 64, PLAIN),
    "zero2 host": (LLAMA, 2, 8, {**ON_HOST}),
    "zero3 host": (LLAMA, 3, 8, {**ON_HOST, **PLAIN, "offload_param": "cpu"}),
    "zero3 part": (LLAMA, 3, 8, {**ON_HOST, "ds_config": PARTLY["half"]}),
    "zero3 part n1": (LLAMA, 3, 1, {**ON_HOST, "ds_config": PARTLY["none"]}),
    "zero3 host part": (
        GPT2,
        3,
        8,
        {**ON_HOST, "offload_param": "cpu", "ds_config": PARTLY["most"], "gradient_accumulation_steps": 2},
    ),
    "zero3 drive": (LLAMA, 3, 8, {**ON_DRIVE, **PLAIN}),
    "zero2 host n1": (LLAMA, 2, 1, {**ON_HOST}),
    "zero1 gpt2": (GPT2, 1, 8, PLAIN),
    "zero2 gpt2 ckpt": (GPT2, 2, 8, {}),
    "zero3 gpt2 ckpt": (GPT2, 3, 8, {}),
    "zero2 full": (LLAMA, 2, 8, {**PLAIN, "micro_batch_size": 1000}),
    "zero3 ckpt full": (LLAMA, 3, 8, {"micro_batch_size": 2000}),
    "zero2 wide host n1": (WIDE, 2, 1, {**ON_HOST, "sequence_length": 64, "prediction": {"gpu": "h200"}}),
    "zero2 wide n8": (WIDE, 2, 8, {"sequence_length": 64, "prediction": {"gpu": "l4"}}),
}
"""Model, stage, ranks and what else is asked; checkpointing unless it says otherwise."""

FROZEN: dict[str, tuple[Any, int, int, dict[str, Any]]] = {
    **{f"zero{stage} lora": (LLAMA, stage, 8, {"adapter": "lora-8"}) for stage in (0, 1, 2, 3)},
    "zero2 wide lora": (WIDE, 2, 8, {"adapter": "lora-8"}),
    "zero2 frozen": (LLAMA, 2, 8, {"frozen": "embed_tokens|layers"}),
}

Pairs = dict[str, tuple[TrialSpec, RankRecord, RankRecord]]
"""Of each trial what was asked, the simulated rank and the formula's."""


def asked(name: str) -> TrialSpec:
    model, stage, ranks, axes = (GRID | FROZEN)[name]
    return gpu_trial(model, stage, ranks, **({"sequence_length": 1024} | axes))


def by_formula(trial: TrialSpec) -> RankRecord:
    return formula_record(trial.model_copy(update={"evidence": Evidence.FORMULA}))


@pytest.fixture(scope="module")
def pairs(simulate: Simulate) -> Pairs:
    trials = {name: asked(name) for name in (*GRID, *FROZEN)}
    ranks = simulate(list(trials.values()))
    return {name: (trials[name], rank, by_formula(trials[name])) for name, rank in zip(trials, ranks, strict=True)}


def cluster(**words: str) -> Cluster:
    return read_cluster(**({"gpu": "h200", "gpus": "8", "host_memory": "1TB", "nvme": "7GB/s"} | words))


def step_s(trial: TrialSpec, rank: RankRecord) -> float:
    place = cluster(gpu=trial.prediction.gpu or "h200")
    bound = known(step_bound(SampleTrial(trial, trial_record(trial), [rank]), place.gpu, place.links))
    assert bound.is_whole
    return known(bound.step_s)


@pytest.mark.parametrize("name", GRID)
def test_the_bound_by_formula_is_that_by_simulation(pairs: Pairs, name: str) -> None:
    trial, simulated, formula = pairs[name]
    spec = trial.model_copy(update={"evidence": Evidence.FORMULA})
    assert step_s(spec, formula) == pytest.approx(step_s(trial, simulated), rel=WITHIN)


@pytest.mark.parametrize("name", GRID)
def test_the_flops_by_formula_are_those_that_were_counted(pairs: Pairs, name: str) -> None:
    _, simulated, formula = pairs[name]
    counted = flops_by_phase(simulated)
    assert flops_by_phase(formula) == {phase: counted[phase] for phase in (Phase.FORWARD, Phase.BACKWARD)}


@pytest.mark.parametrize("name", [name for name in GRID if "part" in name])
def test_a_partly_offloaded_optimizer_lies_where_the_engine_has_it(pairs: Pairs, name: str) -> None:
    def held(rank: RankRecord, *, at_peak: bool) -> dict[tuple[StepKind, Phase, Place, Category], int]:
        return {
            (row.step, row.phase, row.place, row.category): nbytes
            for row in rank.memory
            if (nbytes := (row.foreseeable_peak_bytes if at_peak else row.live_bytes) or 0) and row.category in STATES
            if not at_peak or (row.phase is Phase.STEP and row.place is Place.DEVICE)
        }

    for at_peak in (False, True):
        simulated, formula = (held(rank, at_peak=at_peak) for rank in pairs[name][1:])
        assert formula == simulated
        assert Place.DEVICE in {key[2] for key in simulated if key[3] is Category.FIRST_MOMENT}
    by_adamw = [_update_temporaries(rank) for rank in pairs[name][1:]]
    assert by_adamw[1] == pytest.approx(by_adamw[0], rel=0.005)


def _update_temporaries(rank: RankRecord) -> list[int]:
    return [
        row.foreseeable_peak_bytes or 0
        for row in rank.memory
        if row.category is Category.TEMPORARIES and row.phase is Phase.STEP and row.place is Place.DEVICE
    ]


STATES = (Category.PARAMETERS, Category.GRADIENTS, *MOMENTS)


@pytest.mark.parametrize("name", [name for name in GRID if "part" in name])
def test_its_time_in_closed_form_is_that_of_the_replay(pairs: Pairs, name: str) -> None:
    trial, simulated, _ = pairs[name]
    place = cluster()
    times = []
    for rank in (simulated, simulated.model_copy(update={"step_trace": None})):
        found = known(expected_step(SampleTrial(trial, trial_record(trial), [rank]), place.gpu, place.links))
        times.append(found.step_s)
    assert times[1] == pytest.approx(times[0], rel=0.1)


def test_the_bytes_on_the_drive_by_formula_are_those_that_were_swapped(pairs: Pairs) -> None:
    def moved(rows: list[NvmeTraffic]) -> Iterator[tuple[StepKind, Phase, int, int]]:
        return ((r.step, r.phase, r.read_bytes, r.written_bytes) for r in rows if r.phase is not Phase.INIT)

    _, simulated, formula = pairs["zero3 drive"]
    assert list(moved(formula.nvme)) == list(moved(simulated.nvme))
    assert any(row.read_bytes for row in formula.nvme)


@pytest.mark.parametrize(
    ("name", "place", "within"),
    [
        # One rank that offloads has no second copies, and what does not fit twice is flattened on the host.
        *((name, Place.DEVICE, WITHIN) for name in ("zero2 wide host n1", "zero2 wide n8", "zero2", "zero3")),
        *((name, Place.DEVICE, 0.001) for name in FROZEN),
        ("zero2 wide n8", Place.HOST, WITHIN),
    ],
)
def test_start_up_by_formula_takes_what_the_engine_takes(pairs: Pairs, name: str, place: Place, within: float) -> None:
    engine, formula = (known(phase_peak(rank, StepKind.FIRST, Phase.INIT, place)) for rank in pairs[name][1:])
    assert formula.total_bytes == pytest.approx(engine.total_bytes, rel=within)


@pytest.mark.parametrize("name", ["zero2 full", "zero3 ckpt full"])
def test_near_the_frontier_tensors_by_formula_are_those_of_the_engine(pairs: Pairs, name: str) -> None:
    """What the allocator cannot give back comes on top: by default much of it, which no formula knows."""
    trial, *ranks = pairs[name]
    needs = [known(device_need(SampleTrial(trial, trial_record(trial), [rank]))) for rank in ranks]
    assert needs[1].tensors_bytes == pytest.approx(needs[0].tensors_bytes, rel=0.01)
    assert needs[1].context_bytes == needs[0].context_bytes
    assert needs[1].collectives_bytes == needs[0].collectives_bytes


FRONTIERS = ("zero2 full", "zero3 ckpt full")


def need_bytes(trial: TrialSpec, rank: RankRecord) -> int:
    need = known(device_need(SampleTrial(trial, trial_record(trial), [rank])))
    return need.total_bytes


def frontier_by_formula(name: str, capacity_bytes: float) -> int:
    """The largest micro batch that a plan by formula finds room for."""
    sizes = range(1, 100_000)
    found = bisect_right(
        sizes, capacity_bytes, key=lambda size: need_bytes(spec := with_batch(name, size), by_formula(spec))
    )
    return sizes[found - 1]


def with_batch(name: str, size: int) -> TrialSpec:
    return asked(name).model_copy(update={"micro_batch_size": size})


def test_the_largest_micro_batch_by_formula_is_the_simulated_one_with_expandable_segments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    capacity = cluster().device_memory_bytes * (1 - ROOM)
    around = [
        (with_batch(name, round(largest * factor)), factor < 1)
        for name in FRONTIERS
        for largest in [frontier_by_formula(name, capacity)]
        for factor in (1 - WITHIN, 1 + WITHIN)
    ]
    ranks = simulate_anew([trial for trial, _ in around])  # in a process that reads the variable
    for (trial, fits), rank in at_least_one(zip(around, ranks, strict=True)):
        assert (need_bytes(trial, rank) <= capacity) == fits, trial.micro_batch_size
        assert any("expandable_segments:True, as asked" in note for note in rank.notes)


@pytest.mark.parametrize("name", GRID)
def test_checkpointing_is_never_faster(name: str) -> None:
    steps = []
    for again in (False, True):
        spec = asked(name).model_copy(update={"activation_checkpointing": again, "evidence": Evidence.FORMULA})
        steps.append(step_s(spec, formula_record(spec)))
    assert steps[1] >= steps[0]


@pytest.mark.parametrize("length", [128, 2048, 32768, 524288])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("again", [False, True])
def test_mfu_at_the_bound_is_never_above_what_the_causal_mask_allows(length: int, attention: str, again: bool) -> None:
    """Model FLOPs count the square of attention; a kernel that skips what the mask hides does half of it at least."""
    axes = {"sequence_length": length, "attention": attention, "activation_checkpointing": again}
    spec = gpu_trial("llama-7b", 3, 8, **axes).model_copy(update={"evidence": Evidence.FORMULA})
    rank, gpu = formula_record(spec), cluster().gpu
    bound = known(step_bound(SampleTrial(spec, trial_record(spec), [rank]), gpu, cluster().links))
    mfu = known(rank.flops_per_step) / known(bound.compute_s) / (gpu.peak_tflops["bf16"] * 1e12)
    counted, _ = model_flops_per_token(spec.model, length)
    assert counted is not None
    hidden = 0 if attention == "eager" else 12 * 32 * 4096 * length * (1 - (length + 1) / (2 * length))
    norms_multiply_nothing = 1.0001
    assert mfu <= counted / (counted - hidden) * norms_multiply_nothing
