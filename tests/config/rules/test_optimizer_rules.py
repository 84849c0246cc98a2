"""Where an optimizer cannot run is said in a sentence, made of its entry."""

import pytest

from zerobench.config.derived.machine import Accelerator, Machine
from zerobench.config.derived.strategy import STRATEGIES
from zerobench.config.rules.optimizer_rules import COMPILER_RULES, OPTIMIZER_RULES, STRATEGY_OPTIMIZER_RULES
from zerobench.config.rules.rules import AT_HAND, RULES, find_skip
from zerobench.config.rules.situation import Situation
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.optimizers import OPTIMIZERS, Optimizer
from zerobench.config.trial.trial import Evidence, TrialSpec

MODEL = ModelSpec(name="tiny", hf_config={"model_type": "llama", "num_hidden_layers": 2})


def reason(machine: dict[str, object], **fields: object) -> tuple[str, str] | None:
    trial = TrialSpec.model_validate({"model": MODEL, "strategy": "zero2", "gpus_per_node": 2, **fields})
    found = find_skip(Situation(trial, Machine(accelerator=Accelerator.CPU, cpu_cores=8, **machine), 1000))
    return None if found is None else (found.rule, found.reason)


def test_each_rule_of_an_optimizer_is_asked_and_those_of_compilers_where_something_runs() -> None:
    assert RULES.items() >= {**OPTIMIZER_RULES, **STRATEGY_OPTIMIZER_RULES}.items()
    assert all(not AT_HAND[name] & {Evidence.SIMULATED, Evidence.FORMULA} for name in COMPILER_RULES)


@pytest.mark.parametrize(
    ("machine", "fields", "rule", "expected"),
    [
        (
            {},
            {"optimizer": "cpu_adam"},
            "cpu_adam_needs_offload",
            "optimizer cpu_adam with offload_optimizer none: CPUAdam updates states in host memory",
        ),
        (
            {},
            {"optimizer": "fused_adamw", "offload_optimizer": "cpu"},
            "fused_adamw_needs_device_states",
            (
                "optimizer fused_adamw with offload_optimizer cpu: DeepSpeed would run CPUAdam instead; "
                "use cpu_adam or adamw"
            ),
        ),
        (
            {"missing_kernels": ("cpu_adam",)},
            {"optimizer": "cpu_adam", "offload_optimizer": "cpu"},
            "cpu_adam_needs_compiler",
            "optimizer cpu_adam: DeepSpeed compiles CPUAdam at first use, and a C++ compiler or ninja is missing",
        ),
        (
            {},
            {"strategy": "fsdp", "optimizer": "cpu_adam", "offload_optimizer": "cpu", "offload_param": "cpu"},
            "cpu_adam_needs_deepspeed",
            "optimizer cpu_adam at fsdp: CPUAdam is DeepSpeed's; use adamw",
        ),
        (
            {},
            {"strategy": "tensorflow", "optimizer": "fused_adamw", "precision": "fp32"},
            "tensorflow_has_one_of_each",
            "optimizer fused_adamw at tensorflow: Keras has no fused AdamW; use adamw",
        ),
    ],
)
def test_an_optimizer_that_cannot_run_is_refused_with_what_can(
    machine: dict[str, object], fields: dict[str, object], rule: str, expected: str
) -> None:
    assert reason(machine, **fields) == (rule, expected)


@pytest.mark.parametrize(
    ("changed", "fields", "expected"),
    [
        (
            {"not_on_nvme": "they are too small"},
            {"strategy": "zero3", "offload_optimizer": "nvme", "nvme_path": "/nvme"},
            ("optimizer_not_on_nvme", "optimizer sgd with offload_optimizer nvme: they are too small"),
        ),
        (
            {"unavailable": {"formula": "nobody has written it"}},
            {"strategy": "zero1", "evidence": "formula"},
            ("optimizer_not_in_this_world", "optimizer sgd formula: nobody has written it"),
        ),
        (
            {"not_saved": "nobody has tried"},
            {"strategy": "zero1", "checkpoint": {"every_steps": 2}},
            ("optimizer_not_saved", "checkpoint with optimizer sgd: nobody has tried"),
        ),
        (
            {"refused": {"ddp": "it is whole there"}},
            {"strategy": "ddp"},
            ("optimizer_not_at_strategy", "optimizer sgd at ddp: it is whole there"),
        ),
    ],
)
def test_what_an_entry_refuses_is_refused_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, object], fields: dict[str, object], expected: tuple[str, str]
) -> None:
    assert reason({}, optimizer="sgd", **fields) is None
    monkeypatch.setitem(OPTIMIZERS, Optimizer.SGD, OPTIMIZERS[Optimizer.SGD].model_copy(update=changed))
    assert reason({}, optimizer="sgd", **fields) == expected
    assert reason({}, optimizer="adamw", **fields) is None


def test_an_optimizer_whose_step_is_compiled_needs_a_compiler() -> None:
    muon = {"optimizer": "muon", "precision": "fp32"}
    found = reason({"has_inductor": False}, **muon)
    assert found is not None
    assert found[0] == "optimizer_needs_inductor"
    assert reason({}, **muon) is None


def test_a_refusal_names_a_strategy_and_each_of_them_says_why() -> None:
    for info in OPTIMIZERS.values():
        assert set(info.refused) <= set(STRATEGIES)
        assert all(info.refused.values())
    assert reason({}, optimizer=Optimizer.SGD) is None
