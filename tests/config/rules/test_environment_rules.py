"""Strategies in environments of their own: what they cannot do is refused before launch, with the reason."""

from pathlib import Path
from typing import Any

import pytest

from tests.config.machines import CPU, GPUS
from tests.config.rules.test_strategy_rules import ASKING, skip
from tests.tools.known import known
from zerobench.common.errors import UserError
from zerobench.config.derived.availability import needs
from zerobench.config.derived.batch import processes_of
from zerobench.config.derived.roles import Role, num_loss_ranks, role_of
from zerobench.config.derived.strategy import STRATEGIES, is_exact, paper_stage
from zerobench.config.hardware import tpu
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.checkpoint import CheckpointSpec, FaultSpec
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.slurm.options import refuse_own_environments

OPT = ModelSpec(name="opt", hf_config={"model_type": "opt"})
DROPS = ModelSpec(name="drops", hf_config={"model_type": "gpt2"})
OWN = [name for name, info in STRATEGIES.items() if info.environment]


@pytest.mark.parametrize("name", OWN)
def test_without_its_environment_a_strategy_is_refused_with_the_command_that_makes_it(name: str) -> None:
    absent = CPU.model_copy(update={"missing_environments": (STRATEGIES[name].environment,)})
    ASKING.refused("strategy_unavailable", f"zerobench setup {STRATEGIES[name].environment}", absent, strategy=name)
    assert f"zerobench setup {STRATEGIES[name].environment}" in needs(STRATEGIES[name])
    assert skip(strategy=name) is None


HOROVOD: list[tuple[dict[str, Any], str, str]] = [
    ({"precision": "bf16"}, "horovod_needs_fp32", "horovod with precision bf16"),
    ({"compression": "powersgd"}, "horovod_compresses_to_fp16", "Horovod supports none and fp16"),
    ({"evidence": "solo"}, "strategy_not_in_this_world", "horovod solo: its ranks run in a separate environment"),
    ({"evidence": "formula"}, "strategy_not_in_this_world", "horovod formula"),
    ({"offload_optimizer": "cpu"}, "offload_needs_engine", "offload_optimizer cpu at horovod"),
    ({"consistency": "async"}, "consistency_needs_server", "consistency async at horovod"),
]
TENSORFLOW: list[tuple[dict[str, Any], str, str]] = [
    ({"precision": "bf16"}, "tensorflow_needs_fp32", "tensorflow with precision bf16"),
    ({"activation_checkpointing": True}, "tensorflow_needs_fp32", "the Keras models keep all activations"),
    ({"tf_strategy": "tpu"}, "tensorflow_needs_a_tpu", "tf_strategy tpu: no TPU found"),
    (
        {"tf_strategy": "parameter-server", "consistency": "async"},
        "tensorflow_server_waits_for_all",
        "use the strategy parameter-server",
    ),
    ({"tf_strategy": "parameter-server", "gpus_per_node": 1}, "too_few_processes", "it needs 2 or more"),
    (
        {"tf_strategy": "parameter-server", "gpus_per_node": 3, "gradient_accumulation_steps": 1},
        "workers_cannot_share_batch",
        "2 workers cannot evenly share a step's 3 micro-batches",
    ),
    (
        {"tf_strategy": "mirrored", "checkpoint": CheckpointSpec(every_steps=2, fault=FaultSpec(rank=1, step=8))},
        "fault_out_of_place",
        "rank 1 of 1",
    ),
    ({"compression": "fp16"}, "compression_needs_ddp", "compression fp16 at tensorflow"),
    ({"optimizer": "fused_adamw"}, "tensorflow_has_one_of_each", "Keras has no fused AdamW"),
    ({"attention": "eager"}, "tensorflow_has_one_of_each", "leave it at sdpa"),
    ({"model": OPT}, "tensorflow_needs_its_models", "Keras models exist for gpt2 and llama"),
    ({"model": DROPS}, "tensorflow_needs_its_models", "a dropout of 0.1"),
    ({"evidence": "simulated"}, "strategy_not_in_this_world", "tensorflow simulated"),
]


@pytest.mark.parametrize(
    ("strategy", "case"),
    [*(("horovod", case) for case in HOROVOD), *(("tensorflow", case) for case in TENSORFLOW)],
    ids=str,
)
def test_what_they_have_not_is_refused(strategy: str, case: tuple[dict[str, Any], str, str]) -> None:
    fields, rule, reason = case
    ASKING.refused(rule, reason, strategy=strategy, **fields)


@pytest.mark.parametrize("tf_strategy", ["mirrored", "multi-worker-mirrored", "parameter-server"])
def test_tensorflows_strategies_run_with_a_checkpoint_and_without(tf_strategy: str) -> None:
    assert skip(strategy="tensorflow", tf_strategy=tf_strategy) is None
    assert skip(strategy="tensorflow", tf_strategy=tf_strategy, checkpoint=CheckpointSpec(every_steps=2)) is None


def test_a_server_of_tensorflow_is_a_server_in_all_that_is_said_of_its_ranks() -> None:
    trial = TrialSpec(
        model=resolve_model("llama-10m"), strategy="tensorflow", tf_strategy="parameter-server", gpus_per_node=3
    )
    assert [role_of(trial, rank) for rank in range(3)] == [Role.SERVER, Role.WORKER, Role.WORKER]
    assert (num_loss_ranks(trial), paper_stage(trial), processes_of(trial)) == (2, None, 3)
    assert is_exact(trial)


@pytest.mark.parametrize("fields", [{"compression": "fp16"}, {"bucket_bytes": 1000}, {"optimizer": "sgd"}])
def test_what_horovod_has_is_not_refused(fields: dict[str, Any]) -> None:
    assert skip(strategy="horovod", **fields) is None


@pytest.mark.parametrize("name", OWN)
def test_ranks_in_an_environment_of_their_own_are_on_the_cpu_of_one_node(name: str) -> None:
    on_gpu, on_two_nodes = known(skip(GPUS, strategy=name)), known(skip(strategy=name, num_nodes=2))
    assert (on_gpu.rule, on_two_nodes.rule) == ("environment_needs_cpu", "environment_needs_one_node")


def test_jobs_of_a_cluster_refuse_them_before_anything_is_submitted() -> None:
    trials = [TrialSpec(model=resolve_model("llama-10m"), strategy=name) for name in ("ddp", *OWN)]
    refuse_own_environments(trials[:1])
    with pytest.raises(UserError, match=r"strategy: horovod.*use zerobench run"):
        refuse_own_environments(trials)


def test_a_tpu_may_answer_where_one_is_named_or_attached(tmp_path: Path) -> None:
    assert not tpu.may_answer({"TPU_NAME": ""}, tmp_path)
    assert all(tpu.may_answer({name: "grpc://10.0.0.1:8470"}, tmp_path) for name in tpu.VARIABLES)
    (tmp_path / "accel").mkdir()  # Linux's own class of accelerators lies in a folder
    assert not tpu.may_answer({}, tmp_path)
    (tmp_path / "accel0").touch()
    assert tpu.may_answer({}, tmp_path)
    with_tpu = CPU.model_copy(update={"has_tpu": True})
    assert skip(with_tpu, strategy="tensorflow", tf_strategy="tpu") is None


def test_a_tpu_of_this_machine_is_called_local_and_one_elsewhere_by_the_variable_that_names_it() -> None:
    assert tpu.address({}) == tpu.address({"TPU_NAME": "local"}) == "local"
    assert tpu.address({"TPU_NAME": "node-1"}) is None


def test_replicas_on_a_tpu_are_one_process_whose_losses_are_shown_and_not_judged() -> None:
    trial = TrialSpec(model=resolve_model("llama-10m"), strategy="tensorflow", tf_strategy="tpu", gpus_per_node=8)
    assert processes_of(trial) == 1
    assert not is_exact(trial)
