"""What a stage of a pipeline holds, moves and computes by formula, beside torch's own schedules, simulated."""

from typing import Any

import pytest

from benchmarks.prediction.simulated import gpu_trial
from tests.tools.kept_simulator import Simulate
from tests.tools.rank_memory import flops_by_phase, live_bytes
from tests.trials.test_formula import GPT2, LLAMA, PLAIN
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.config.trial.optimizers import Optimizer
from zerobench.config.trial.trial import Evidence, PredictionSpec, TrialSpec
from zerobench.estimate.memory import formula_record
from zerobench.records.instants import phase_peak
from zerobench.records.records import RankRecord

DEEP = LLAMA.model_copy(update={"name": "deep", "hf_config": {**LLAMA.hf_config, "num_hidden_layers": 6}})
TIED = GPT2.model_copy(update={"name": "tied", "hf_config": {**GPT2.hf_config, "n_layer": 4}})
CELLS: dict[str, tuple[Any, int, int, dict[str, Any]]] = {
    "first of four": (DEEP, 4, 0, PLAIN),
    "second of four": (DEEP, 4, 1, PLAIN),
    "last of four": (DEEP, 4, 3, PLAIN),
    "first, few micro-batches": (DEEP, 4, 0, {**PLAIN, "gradient_accumulation_steps": 1}),
    "gpipe first": (DEEP, 2, 0, {**PLAIN, "pipeline_schedule": "gpipe"}),
    "gpipe last": (DEEP, 2, 1, {**PLAIN, "pipeline_schedule": "gpipe"}),
    "recomputed": (DEEP, 2, 0, {}),
    "recomputed last": (DEEP, 2, 1, {}),
    "tied first": (TIED, 2, 0, PLAIN),
    "tied last": (TIED, 2, 1, PLAIN),
}
"""Model, stages, which of them, and what else is asked; checkpointing unless it says otherwise."""
WITHIN = 0.05
STATES = (
    Category.PARAMETERS,
    Category.MASTER_WEIGHTS,
    Category.FIRST_MOMENT,
    Category.SECOND_MOMENT,
    Category.GRADIENTS,
    Category.PIPELINE_BUFFERS,
)

Pair = tuple[TrialSpec, RankRecord, RankRecord]


@pytest.fixture(scope="module")
def pairs(simulate: Simulate) -> dict[str, Pair]:
    asked = {}
    for name, (model, stages, rank, axes) in CELLS.items():
        usual = {"strategy": "pipeline", "optimizer": Optimizer.ADAMW, "gradient_accumulation_steps": 2}
        usual |= {"sequence_length": 512, "micro_batch_size": 2, "prediction": PredictionSpec(gpu="h200", rank=rank)}
        asked[name] = gpu_trial(model, 0, stages, **(usual | axes))
    records = simulate(list(asked.values()))
    return {
        name: (spec, record, formula_record(spec.model_copy(update={"evidence": Evidence.FORMULA})))
        for (name, spec), record in zip(asked.items(), records, strict=True)
    }


@pytest.mark.parametrize("name", CELLS)
def test_a_stages_states_and_buffers_are_to_the_byte_those_of_the_engine(pairs: dict[str, Pair], name: str) -> None:
    _, simulated, formula = pairs[name]
    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.STEP):
        for category in STATES:
            here, there = (live_bytes(one, category, phase, places=[Place.DEVICE]) for one in (formula, simulated))
            assert here == there, (phase, category)


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.BACKWARD, Phase.STEP])
def test_a_stages_peaks_are_within_five_percent(pairs: dict[str, Pair], name: str, phase: Phase) -> None:
    _, simulated, formula = pairs[name]
    for step in StepKind:
        here, there = (_peak_bytes(one, step, phase) for one in (formula, simulated))
        assert 0 < here == pytest.approx(there, rel=WITHIN), step


def _peak_bytes(rank: RankRecord, step: StepKind, phase: Phase) -> int:
    """Without what no formula of a stage counts: the matrix library's workspaces, and the rounding of small blocks."""
    peak = phase_peak(rank, step, phase, Place.DEVICE)
    assert peak is not None
    left_out = (Category.WORKSPACES, Category.ALLOCATOR_ROUNDING)
    return peak.total_bytes - sum(peak.categories.get(category, 0) for category in left_out)


@pytest.mark.parametrize("name", CELLS)
def test_a_stages_flops_and_messages_are_those_that_were_counted(pairs: dict[str, Pair], name: str) -> None:
    _, simulated, formula = pairs[name]
    flops = [flops_by_phase(one) for one in (simulated, formula)]
    flops[0].pop(Phase.STEP, None)
    assert flops[0] == flops[1]
    moved = [
        {
            (row.phase, row.kind, row.group_size): (row.calls, row.message_bytes)
            for row in one.collectives
            if row.step is StepKind.STEADY
        }
        for one in (simulated, formula)
    ]
    assert moved[0] == moved[1]
