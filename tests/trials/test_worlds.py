"""One sweep in three worlds: what one process plays, and what no tensor backs, is what real ranks measured."""

from collections.abc import Callable
from pathlib import Path

import pytest

import zerobench
from tests.conftest import Swept, memory_row
from tests.tools.at_least_one import at_least_one
from tests.tools.rank_memory import live_bytes, unnamed
from tests.trials.worlds import BUFFERS, INSTANTS, MODEL_STATES, Worlds, check_same_bytes, in_each_world, nameless
from zerobench.common.vocabulary import Category, Phase, Place, Status, StepKind
from zerobench.config.trial.trial import Evidence, Offload
from zerobench.records.records import MemoryRow, RankRecord

pytestmark = pytest.mark.slow

MODEL = """{family: llama, name: small, num_layers: 4, hidden_size: 384, num_heads: 6, intermediate_size: 1024,
          vocab_size: 4096, max_position_embeddings: 128}"""
SWEEP = f"""
name: worlds
axes:
  model: {MODEL}
  strategy: [zero2, zero3]
  offload_optimizer: [none, cpu]
  evidence: [measured, solo, simulated]
  world_size: 2
  micro_batch_size: 2
  sequence_length: 128
  precision: bf16
  ds_config: {{reduce_bucket_size: 1e6, allgather_bucket_size: 1e6, sub_group_size: 4e6}}
steps: {{warmup: 0, timed: 1, memory: 1}}
"""
CELLS = [(strategy, offload) for strategy in ("zero2", "zero3") for offload in (Offload.NONE, Offload.CPU)]


@pytest.fixture(scope="module")
def swept(kernels: None, forked_sweep: Callable[..., Swept]) -> Swept:
    return forked_sweep(SWEEP)


@pytest.fixture(params=CELLS, ids=[f"{strategy}-{offload}" for strategy, offload in CELLS])
def worlds(request: pytest.FixtureRequest, swept: Swept) -> Worlds:
    strategy, offload = request.param
    return in_each_world(swept, strategy=strategy, offload_optimizer=offload)


def total(rank: RankRecord, step: StepKind, phase: Phase) -> MemoryRow:
    return memory_row(rank, phase, Category.TOTAL, step=step)


def test_the_sweep_runs_in_all_three_worlds(swept):
    assert swept.exit_code == 0, swept.output
    assert len(list(swept.run.trials())) == len(CELLS) * 3


def test_solo_equals_measured_to_the_byte_in_every_state_and_buffer(worlds):
    check_same_bytes(worlds, Evidence.SOLO, MODEL_STATES + BUFFERS, [[Place.DEVICE], [Place.HOST]])
    assert live_bytes(worlds[Evidence.MEASURED], Category.PARAMETERS, Phase.BACKWARD, places=[Place.DEVICE]) > 0


def test_solo_holds_what_measured_holds_to_a_thousandth(worlds):
    for step, phase in at_least_one(INSTANTS):
        real, alone = (total(worlds[world], step, phase).live_bytes for world in (Evidence.MEASURED, Evidence.SOLO))
        assert alone == pytest.approx(real, rel=1e-3), (step, phase)


def test_simulated_peaks_are_within_three_percent_of_measured_ones_in_every_phase(worlds):
    for step, phase in at_least_one(INSTANTS):
        real, predicted = (
            total(worlds[world], step, phase).foreseeable_peak_bytes
            for world in (Evidence.MEASURED, Evidence.SIMULATED)
        )
        assert predicted == pytest.approx(real, rel=0.03), (step, phase)


def test_simulated_live_bytes_are_within_half_a_percent_of_measured_ones_in_every_phase(worlds):
    for step, phase in at_least_one(INSTANTS):
        real, predicted = (
            total(worlds[world], step, phase).live_bytes for world in (Evidence.MEASURED, Evidence.SIMULATED)
        )
        assert predicted == pytest.approx(real, rel=0.005), (step, phase)


def test_offloaded_states_lie_on_the_host_in_every_world(swept):
    for trial in at_least_one(swept.trials(offload_optimizer=Offload.CPU)):
        rank = trial.ranks[0]
        on_host = live_bytes(rank, Category.FIRST_MOMENT, Phase.STEP, places=[Place.HOST])
        assert rank.parameters is not None
        assert on_host == pytest.approx(4 * rank.parameters.total / 2, rel=0.001), trial.spec.trial_id
        assert not live_bytes(rank, Category.FIRST_MOMENT, Phase.STEP, places=[Place.DEVICE])


def test_less_than_one_percent_of_every_peak_has_no_name_in_any_world(swept):
    assert nameless(swept) == []


def test_solo_and_simulated_hear_the_same_collectives(worlds):
    solo, simulated = worlds[Evidence.SOLO], worlds[Evidence.SIMULATED]
    heard = [
        {
            (row.step, row.phase, row.kind): (row.calls, row.message_bytes)
            for row in rank.collectives
            if row.step is StepKind.STEADY and row.kind in {"all_gather", "reduce_scatter", "all_reduce", "reduce"}
        }
        for rank in (solo, simulated)
    ]
    assert heard[0] == heard[1]
    assert sum(nbytes for _, nbytes in heard[0].values()) > 0


TABLE = f"""
name: table
axes:
  model: {MODEL}  # its parameters' partitions are below 1 MiB, which DeepSpeed does not swap
  strategy: zero0
  evidence: simulated
  gpu: A100 SXM 80GB
  world_size: 8
  sequence_length: 128
  precision: bf16
include:
  - {{strategy: [zero1, zero2], offload_optimizer: [none, cpu]}}
  - {{strategy: zero3, offload_optimizer: [none, cpu, nvme], offload_param: [none, cpu, nvme], nvme_path: NVME}}
"""


def test_every_stage_and_offload_completes_on_a_gpu_of_the_catalogue_with_every_byte_named(kept_simulator, tmp_path):
    (tmp_path / "table.yaml").write_text(TABLE.replace("NVME", str(tmp_path)), encoding="utf-8")
    with kept_simulator():
        run = zerobench.run(tmp_path / "table.yaml", reports=tmp_path / "reports").run
    cells = {(t.spec.strategy, t.spec.offload_optimizer, t.spec.offload_param) for t in run.trials()}
    assert len(cells) == 14
    for trial in run.trials():
        assert trial.record.status is Status.COMPLETED, trial.record.reason
        [rank] = trial.ranks
        assert unnamed(rank) == [], trial.spec.trial_id
        assert rank.device_memory
        swapped = live_bytes(rank, Category.OPTIMIZER_STATES_ON_NVME, Phase.STEP, places=[Place.NVME])
        assert (swapped > 0) is (trial.spec.offload_optimizer is Offload.NVME), trial.spec.trial_id
    assert not list(Path(tmp_path).rglob("*.swp"))
