"""Every strategy saved by real ranks over gloo and resumed in fresh processes: the same losses, to the bit."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import to_json

from tests.rank.conftest import in_fork  # noqa: F401 -- pytest finds it here
from tests.rank.real_ranks import LLAMA
from tests.tools.known import known
from tests.tools.rank_memory import apart
from tests.tools.rank_records import trial_record
from zerobench.common.vocabulary import Status, StepKind
from zerobench.config.deepspeed import build_ds_config
from zerobench.config.derived.checkpoint_size import checkpoint_bytes
from zerobench.config.derived.strategy import uses_deepspeed
from zerobench.config.models.parameters import count_parameters
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.launcher import PINNED_MALLOC, free_port
from zerobench.launch.run.recovery import run_twice
from zerobench.launch.run.stop import Stop
from zerobench.records.folder import TrialFolder
from zerobench.records.records import RankRecord, Recovery, TrialRecord
from zerobench.report.figures.parity import losses
from zerobench.report.figures.recovery import resumed

CONFIG = LLAMA | {"intermediate_size": 160, "vocab_size": 8192}
STEPS = {"warmup": 0, "timed": 2, "memory": 1}
NUM_STEPS = 4
EVERY = {"every_steps": 2}
SAVED_AT = 2
SMALL_BUCKETS = {
    "zero_optimization.reduce_bucket_size": 100_000,
    "zero_optimization.allgather_bucket_size": 100_000,
    "zero_optimization.stage3_param_persistence_threshold": 0,
}
AUTOTP = SMALL_BUCKETS | {"tensor_parallel.autotp_size": 2}
LORA = {"adapter": "lora-512"}  # adapters as large as the model, beside which names and headers are nothing
SETTINGS: dict[str, dict[str, Any]] = {
    "1f1b": {"strategy": "pipeline"},
    "deepspeed": {"strategy": "pipeline", "pipeline_schedule": "deepspeed", "precision": "bf16"},
    "hpz": {"strategy": "zero3", "ds_config": SMALL_BUCKETS, "hpz_partition_size": 2},
    "mics": {"strategy": "fsdp", "mics_shard_size": 2, "gpus_per_node": 4},
    "autotp": {"strategy": "zero3", "ds_config": AUTOTP},
    **{f"lora-{stage}": {"strategy": f"zero{stage}", "ds_config": SMALL_BUCKETS} | LORA for stage in (0, 2, 3)},
    "8bit": {"strategy": "ddp", "optimizer": "adamw_8bit"},
    **{
        f"8bit-{stage}": {"strategy": f"zero{stage}", "ds_config": SMALL_BUCKETS, "optimizer": "adamw_8bit"}
        for stage in (0, 2, 3)
    },
}
"""What is no strategy of its own; DeepSpeed's pipeline in bf16, where its engine cannot load what it has written."""
AS_SAVED = ["single", "ddp", "fsdp", "tensor", "parameter-server", "zero0", "zero2", "zero3", "rpc-pipeline", *SETTINGS]
ON_OTHER_RANKS = ["fsdp", "tensor", "zero1", "zero3"]
TIED = CONFIG | {"num_hidden_layers": 3, "tie_word_embeddings": True}


def spec(strategy: str, checkpoint: dict[str, Any], **fields: Any) -> TrialSpec:
    """A trial of few and short sequences on two ranks, or of the one process that stands for them."""
    alone = strategy == "single"
    work: dict[str, Any] = {"gpus_per_node": 1 if alone else 2, "gradient_accumulation_steps": 2 if alone else 1}
    work |= SETTINGS.get(strategy, {"strategy": strategy})
    if strategy.startswith("zero"):
        work["ds_config"] = SMALL_BUCKETS
    rates = {"learning_rate": 1e-3}
    more = {"sequence_length": 32, "precision": "fp32", "steps": STEPS, "hyperparameters": rates}
    model = ModelSpec(name="tiny", hf_config=CONFIG)
    return TrialSpec.model_validate({"model": model, "checkpoint": checkpoint, **more, **work, **fields})


def run_rank(folder: str, rank: int, port: int) -> None:
    """One rank of the trial in `folder`, which leaves its record there; called in a process of its own."""
    from zerobench.rank.loop.__main__ import _write
    from zerobench.rank.loop.launched import read_rank
    from zerobench.rank.loop.rank import RankRun
    from zerobench.records.progress import ProgressFile

    where = TrialFolder(Path(folder))
    trial = TrialSpec.model_validate_json(where.spec.read_text())
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": trial.world_size, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in ranks.items()}, MASTER_ADDR="127.0.0.1")
    who = read_rank(trial.gpus_per_node)
    run = RankRun(trial, where, who, ProgressFile(where, who, NUM_STEPS))
    try:
        run.run()
    finally:
        _write(where, run.record)
    run.world.leave()


@dataclass(frozen=True)
class Ran:
    """A trial that was run twice."""

    spec: TrialSpec
    folder: TrialFolder
    record: TrialRecord

    @property
    def recovery(self) -> Recovery:
        return known(self.record.recovery)

    @property
    def ranks(self) -> list[RankRecord]:
        """What the first launch left."""
        return [RankRecord.model_validate_json(path.read_bytes()) for path in self.folder.rank_records()]


@pytest.fixture(scope="module")
def ran(in_fork: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[TrialSpec], Ran]:  # noqa: F811 -- the fixture
    """Run both launches of a trial, each rank in a process, once for all tests."""
    done: dict[str, Ran] = {}

    def launch(trial: TrialSpec, folder: TrialFolder) -> TrialRecord:
        port = free_port()
        with ThreadPoolExecutor() as threads:
            asks = [threads.submit(in_fork, run_rank, str(folder.path), rank, port) for rank in range(trial.world_size)]
            faults = [ask.exception() for ask in asks]
        own = next((fault for fault in faults if fault is not None), None)
        broken = isinstance(own, BrokenProcessPool) or any(isinstance(fault, BrokenProcessPool) for fault in faults)
        if own is not None and not broken:
            raise own
        return trial_record("run", trial, Status.CRASH if broken else Status.COMPLETED, started_at_s=1.0)

    def run(trial: TrialSpec) -> Ran:
        asked = trial.model_dump_json()
        if asked not in done:
            folder = TrialFolder(tmp_path_factory.mktemp("trial"))
            folder.spec.write_text(asked)
            if uses_deepspeed(trial):
                folder.ds_config.write_bytes(to_json(build_ds_config(trial)))
            with pytest.MonkeyPatch.context() as patch:
                for name, value in PINNED_MALLOC.items():
                    patch.setenv(name, value)
                record = run_twice(trial, folder, "run", launch, Stop())
            done[asked] = Ran(trial, folder, record)
        return done[asked]

    return run


def distance_of(found: Ran) -> float:
    """The largest difference of a loss from the uninterrupted one, of all steps."""
    ours, theirs = found.recovery.losses, found.ranks[0].losses
    assert len(ours) == len(theirs) == NUM_STEPS
    return apart(ours, theirs)


def has_size_by_formula(found: Ran) -> bool:
    """Whether each rank saw what was saved take what the closed form says, but for names and headers."""
    counts, built = known(count_parameters(found.spec.model)), known(found.ranks[0].parameters)
    expected = checkpoint_bytes(found.spec, counts.total if found.spec.trains_all else built.trainable)
    return [one.size_bytes for rank in found.ranks for one in rank.checkpoints] == [
        pytest.approx(expected, rel=0.03)
    ] * found.spec.world_size


@pytest.mark.parametrize("strategy", AS_SAVED)
def test_a_resumed_trial_goes_on_with_the_very_losses_of_the_one_that_was_not_interrupted(ran, strategy):
    found = ran(spec(strategy, EVERY))
    assert found.record.status is Status.COMPLETED, found.record.reason
    assert found.recovery.from_step == SAVED_AT
    assert found.recovery.losses == found.ranks[0].losses
    assert len(found.recovery.losses) == NUM_STEPS


@pytest.mark.parametrize("strategy", AS_SAVED)
def test_its_size_is_that_of_the_closed_form_and_its_memory_is_told(ran, strategy):
    found = ran(spec(strategy, EVERY))
    assert has_size_by_formula(found)
    for rank in found.ranks:
        [save] = rank.checkpoints
        assert 0 <= save.own_s <= save.seconds
        assert known(save.rss_peak_bytes) >= known(save.rss_before_bytes)
    assert [load.kind for load in found.recovery.loads] == ["load"] * found.spec.world_size
    assert found.recovery.loads[0].page_cache_dropped


@pytest.mark.parametrize("strategy", ON_OTHER_RANKS)
def test_resumed_on_one_rank_it_goes_on_with_the_same_losses_but_for_the_order_of_additions(ran, strategy):
    found = ran(spec(strategy, EVERY | {"resume_world_size": 1}))
    assert found.record.status is Status.COMPLETED, found.record.reason
    assert distance_of(found) <= 5e-6
    assert (found.recovery.convert_s is not None) == strategy.startswith("zero")
    assert found.recovery.world_size == 1


def test_a_pipeline_of_two_stages_goes_on_in_three_of_which_the_ends_both_read_the_tied_embedding(ran):
    work = {"model": ModelSpec(name="tied", hf_config=TIED), "gradient_accumulation_steps": 3}
    work |= {"pipeline_schedule": "gpipe"}
    found = ran(spec("pipeline", EVERY | {"resume_world_size": 3}, **work))
    assert found.record.status is Status.COMPLETED, found.record.reason
    assert distance_of(found) <= 5e-6
    assert len(found.recovery.loads) == 3
    counts = known(count_parameters(found.spec.model))
    assert found.ranks[0].checkpoints[0].size_bytes == pytest.approx(
        checkpoint_bytes(found.spec, counts.total), rel=0.03
    )


def test_parts_of_autotp_go_on_with_half_as_many_copies_of_the_model_by_way_of_the_universal_checkpoint(ran):
    found = ran(spec("zero1", EVERY | {"resume_world_size": 2}, ds_config=AUTOTP, gpus_per_node=4))
    assert found.record.status is Status.COMPLETED, found.record.reason
    assert distance_of(found) <= 5e-6
    assert found.recovery.convert_s is not None
    assert has_size_by_formula(found)


def test_after_a_rank_was_killed_the_others_crash_and_fresh_processes_go_on_from_the_last_checkpoint(ran):
    found = ran(spec("zero3", EVERY | {"fault": {"rank": 1, "step": 3}}))
    assert found.record.status is Status.COMPLETED, found.record.reason
    assert (found.recovery.killed_rank, found.recovery.from_step, found.recovery.steps_done) == (1, SAVED_AT, 3)
    assert found.recovery.losses == ran(spec("zero3", EVERY)).ranks[0].losses
    killed = next(rank for rank in found.ranks if rank.killed_at_s is not None)
    assert "killed on purpose after 3 steps" in known(killed.failure).message
    assert {row.step for row in killed.memory} == set(StepKind)
    assert len(found.recovery.steps_ended_at_s) == NUM_STEPS - SAVED_AT
    row = known(resumed(found, losses(found)))
    assert row.steps_lost == 1
    assert known(row.recover_s) > 0


def test_masters_of_a_16_bit_model_are_saved_and_checkpoints_are_gone_when_all_is_measured(ran):
    found = ran(spec("ddp", EVERY, precision="bf16"))
    assert found.recovery.losses == found.ranks[0].losses
    assert not found.folder.checkpoints.exists()
