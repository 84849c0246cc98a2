"""What the closed form has stage 3 gather, reduce and read is what DeepSpeed does in a simulated trial, to the byte."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.prediction.simulated import gpu_trial
from tests.estimate.time.predicted_trials import expected, links
from tests.report.sample_run import SampleTrial, trial_record
from tests.tools.kept_simulator import Simulate
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.config.models.shapes import Shape
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.estimate.memory import formula_record
from zerobench.estimate.memory.deepspeed.gathers import Gathers, gathers
from zerobench.estimate.memory.explained import explained
from zerobench.estimate.memory.record import formula_setting
from zerobench.estimate.memory.terms.module_order import module_order
from zerobench.records.instants import phase_peak
from zerobench.records.records import RankRecord

GPT = Shape(family="gpt2", num_layers=3, hidden_size=1024, num_heads=16, vocab_size=8000).model_spec()
LLAMA = Shape(family="llama", num_layers=3, hidden_size=1024, num_heads=16, vocab_size=8000).model_spec()
SPEAKING = 1000
"""Bytes that norms and flags are below of."""


def limits(live: int, reuse: int, bucket: int, persistent: int = 100_000) -> dict[str, int]:
    names = ("max_live_parameters", "max_reuse_distance", "prefetch_bucket_size", "param_persistence_threshold")
    values = zip(names, (live, reuse, bucket, persistent), strict=True)
    return {f"zero_optimization.stage3_{name}": value for name, value in values}


FEW = limits(25_000_000, 25_000_000, 3_000_000)
NONE = limits(0, 0, 0, 0)
DRIVES = {"offload_param": "nvme", "nvme_path": "/nvme", "world_size": 2}
AXES: dict[str, dict[str, Any]] = {
    "all kept": {"activation_checkpointing": False},
    "few kept": {"activation_checkpointing": False, "ds_config": FEW},
    "none kept": {"activation_checkpointing": False, "ds_config": NONE},
    "checkpointed": {"ds_config": FEW},
    "checkpointed, none kept": {"ds_config": NONE},
    "every other block": {"activation_checkpointing": "every-2", "ds_config": FEW},
    "checkpointed, persistent": {"ds_config": limits(25_000_000, 12_000_000, 3_000_000, 1_500_000)},
    "small buckets": {"ds_config": {"zero_optimization.reduce_bucket_size": 1_000_000}},
    "small buckets, whole": {"stage": 2, "ds_config": {"zero_optimization.reduce_bucket_size": 1_000_000}},
    "tied": {"model": GPT, "ds_config": FEW, "gradient_accumulation_steps": 2},
    "tied, none kept": {"model": GPT, "activation_checkpointing": False, "ds_config": NONE},
    "adapters": {"adapter": "lora-8", "activation_checkpointing": False, "ds_config": FEW},
    "adapters, checkpointed": {"adapter": "lora-8", "ds_config": FEW},
    "adapters, none kept": {"adapter": "lora-8", "ds_config": NONE},
    "adapters, tied": {"model": GPT, "adapter": "lora-8", "activation_checkpointing": False},
    "adapters, tied, checkpointed": {"model": GPT, "adapter": "lora-8"},
    "codes": {"adapter": "lora-16-nf4", "activation_checkpointing": False, "ds_config": NONE},
    "codes, checkpointed": {"adapter": "lora-16-nf4", "ds_config": FEW},
    "lower blocks frozen": {"frozen": r"embed|layers\.[01]\.", "ds_config": FEW},
    "second copy": {"model": GPT, "ds_config": FEW, "hpz_partition_size": 2, "gradient_accumulation_steps": 2},
    "drives": {**DRIVES, "activation_checkpointing": False, "ds_config": FEW},
    "drives, checkpointed": {**DRIVES, "ds_config": NONE},
}
USUAL: dict[str, Any] = {"model": LLAMA, "stage": 3, "world_size": 4, "sequence_length": 256, "micro_batch_size": 2}
ASKED = {name: gpu_trial(**USUAL | axes) for name, axes in AXES.items()}


@pytest.fixture(scope="module")
def simulated(simulate: Simulate) -> dict[str, RankRecord]:
    return dict(zip(ASKED, simulate(list(ASKED.values())), strict=True))


def by_formula(spec: TrialSpec) -> RankRecord:
    return formula_record(spec.model_copy(update={"evidence": Evidence.FORMULA}))


def moved(rank: RankRecord) -> dict[tuple[Phase, str, int], tuple[int, int]]:
    """Calls and bytes in a steady step."""
    calls: Counter[tuple[Phase, str, int]] = Counter()
    nbytes: Counter[tuple[Phase, str, int]] = Counter()
    for row in rank.collectives:
        if row.step is StepKind.STEADY and row.message_bytes > SPEAKING:
            calls[row.phase, row.kind, row.group_size] += row.calls
            nbytes[row.phase, row.kind, row.group_size] += row.message_bytes
    return {key: (calls[key], nbytes[key]) for key in nbytes}


def swapped(rank: RankRecord) -> dict[Phase, tuple[int, int]]:
    return {row.phase: (row.read_bytes, row.written_bytes) for row in rank.nvme if row.step is StepKind.STEADY}


def left(rank: RankRecord) -> int:
    """Bytes of gathered parameters as a steady step's forward pass ends."""
    where = (StepKind.STEADY, Phase.FORWARD, Place.DEVICE, Category.GATHERED_PARAMETERS)
    return sum(row.live_bytes for row in rank.memory if (row.step, row.phase, row.place, row.category) == where)


@pytest.mark.parametrize("name", AXES)
def test_a_formula_gathers_reduces_and_reads_to_the_byte_what_the_engine_does(
    simulated: dict[str, RankRecord], name: str
) -> None:
    engine, formula = simulated[name], by_formula(ASKED[name])
    assert moved(formula) == moved(engine)
    assert swapped(formula) == swapped(engine)
    if name not in {"drives", "drives, checkpointed"}:  # where a part on its way from the host is counted, too
        assert left(formula) == pytest.approx(left(engine), rel=0.01)


@pytest.mark.parametrize("name", [name for name in AXES if "drives" not in name])
def test_an_explanation_leaves_nothing_of_what_is_gathered_at_a_peak(
    simulated: dict[str, RankRecord], name: str
) -> None:
    engine, spec = simulated[name], ASKED[name]
    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.STEP):
        instant = phase_peak(engine, StepKind.STEADY, phase, Place.DEVICE)
        assert instant is not None
        if nbytes := instant.categories.get(Category.GATHERED_PARAMETERS):
            terms = explained(
                spec, Category.GATHERED_PARAMETERS, nbytes, StepKind.STEADY, phase, Place.DEVICE, on_gpu=False
            )
            assert sum(term.nbytes for term in terms) == nbytes, (phase, terms)


@pytest.mark.parametrize("name", [name for name, axes in AXES.items() if "frozen" not in axes])
def test_its_step_takes_as_long_within_ten_percent(simulated: dict[str, RankRecord], name: str) -> None:
    spec = ASKED[name]
    engine = SampleTrial(spec, trial_record(spec), [simulated[name]])
    form = replace(engine, ranks=[by_formula(spec)])
    for there in ("H200 SXM", "A100 SXM 80GB"):
        told, found = (expected(each, there, links(there)).step_s for each in (engine, form))
        assert found == pytest.approx(told, rel=0.1), there


def played(name: str) -> Gathers:
    spec = ASKED[name]
    setting = formula_setting(spec)
    return gathers(module_order(spec, setting.frozen, setting.tensors), setting.case, frozenset())


def test_what_runs_once_more_is_gathered_a_third_time() -> None:
    """The backward pass releases the frozen weights of a block that has run again, and gathers them for its own."""
    backward, forward = (played("adapters, none kept").elements[phase] for phase in (Phase.BACKWARD, Phase.FORWARD))
    assert 1.5 * forward < backward < 2 * forward
    assert played("none kept").elements[Phase.BACKWARD] == played("none kept").elements[Phase.FORWARD]


def test_autograd_holds_the_weights_of_one_block_that_runs_again_and_lets_go_of_them() -> None:
    spec = ASKED["adapters, none kept"]
    setting = formula_setting(spec)
    outside = 2 * LLAMA.hf_config["vocab_size"] * 1024 + 1024  # embedding, head and the last norm
    block = (setting.model_elements - outside) // 3
    held = [held.by_autograd for held in played("adapters, none kept").held[Phase.BACKWARD]]
    assert 0.9 * block < max(held) <= block
