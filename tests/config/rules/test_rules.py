"""Each reason why a point cannot run, with its numbers; and that what can run is left alone."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.config.machines import CPU, GIB, GPUS
from tests.config.rules.refusals import Asking
from tests.tools.known import known
from zerobench.config.derived.host_memory import PROCESS_BYTES, SUB_GROUP_SIZE, host_state_bytes
from zerobench.config.derived.machine import CPU_RANKS_PER_CORE, Accelerator
from zerobench.config.models.presets import resolve_model
from zerobench.config.rules.rules import AT_HAND, LAYOUT_RULES, RULES, Skip, find_skip
from zerobench.config.rules.situation import Situation, rules_of
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import TrialSpec

BLOOM, GPTJ, GPT_OSS = ({"model_type": name} for name in ("bloom", "gptj", "gpt_oss"))
GPU = GPUS.model_copy(update={"gpu_names": ("NVIDIA A100",) * 8, "has_flash_attention": True})
ASKING = Asking(strategy="zero3")
skip = ASKING.skip


@pytest.mark.parametrize(
    ("trial", "rule", "reason"),
    [
        (
            {"strategy": "zero0", "offload_optimizer": "cpu"},
            "offload_needs_stage_1",
            "offload_optimizer cpu at zero0: DeepSpeed silently ignores offload at stage 0; use stage 1 to 3",
        ),
        (
            {"strategy": "zero2", "offload_param": "cpu"},
            "param_offload_needs_stage_3",
            "offload_param cpu at zero2: parameter offload needs stage 3",
        ),
        (
            {"strategy": "zero1", "offload_optimizer": "nvme", "nvme_path": "/nvme"},
            "nvme_needs_stage_3",
            (
                "offload_optimizer nvme at zero1: DeepSpeed swaps to NVMe at stage 3 only; "
                "stages 1 and 2 would keep the states in host memory"
            ),
        ),
        (
            {"offload_optimizer": "cpu", "offload_param": "nvme"},
            "nvme_needs_path",
            (
                "offload_optimizer cpu and offload_param nvme: nvme_path is not set; "
                "give a folder on the NVMe device (--set nvme_path=...)"
            ),
        ),
        (
            {"precision": "fp16"},
            "precision_needs_device",
            "precision fp16: DeepSpeed does not support it on this CPU; use bf16 or fp32",
        ),
        ({"num_nodes": 2}, "nodes_exceed_machine", "num_nodes 2: only 1 available"),
        ({"gpus_per_node": 9}, "ranks_exceed_cores", "9 ranks on 2 CPU cores: at most 8 (4 per core)"),
        (
            {"model": "gpt2-10m", "sequence_length": 1025},
            "sequence_exceeds_positions",
            "sequence_length 1025: gpt2-10m has 1024 positions",
        ),
        (
            {"model": "llama-7b", "sequence_length": 4_000_000},
            "step_exceeds_records",
            "sequence_length 4000000: a step's 2.5e+19 FLOPs per GPU are more than a record counts; at most 4.6e+18",
        ),
        (
            {"model": "gemma2-2b"},
            "sdpa_needs_model",
            "attention sdpa: transformers' gemma2 does not support it; use eager",
        ),
        (
            {"model": GPTJ},
            "sdpa_needs_model",
            "attention sdpa: transformers' gptj does not support it; use eager",
        ),
        (
            {"attention": "flash_attention_2"},
            "flash_attention_needs_gpu",
            "attention flash_attention_2: needs GPUs; use sdpa or eager",
        ),
    ],
)
def test_a_point_that_cannot_run_on_cpu_ranks_is_skipped_by_its_rule_in_a_sentence(
    trial: dict[str, Any], rule: str, reason: str
):
    assert skip(**trial) == Skip(rule=rule, reason=reason)


@pytest.mark.parametrize(
    ("machine", "trial", "rule", "told"),
    [
        ({}, {"gpus_per_node": 9}, "ranks_exceed_gpus", "9 ranks on a node with 8 GPUs"),
        ({"supports_bf16": False}, {}, "precision_needs_device", "precision bf16: .* on NVIDIA A100"),
        (
            {"has_libaio": False},
            {"offload_param": "nvme", "nvme_path": "/nvme"},
            "nvme_needs_libaio",
            "offload_param nvme: libaio",
        ),
        (
            {"missing_kernels": ("cpu_adam",)},
            {"optimizer": "cpu_adam", "offload_optimizer": "cpu"},
            "cpu_adam_needs_compiler",
            "nvcc",
        ),
        (
            {"missing_kernels": ("fused_adam",)},
            {"optimizer": "fused_adamw"},
            "fused_adamw_needs_compiler",
            "compiles FusedAdam",
        ),
        ({}, {"attention": "flash_attention_2", "precision": "fp32"}, "flash_attention_needs_gpu", "precision fp32"),
        (
            {"has_flash_attention": False},
            {"attention": "flash_attention_2"},
            "flash_attention_needs_gpu",
            "flash-attn is not installed",
        ),
    ],
)
def test_a_point_that_cannot_run_on_this_gpu_machine_is_skipped_by_its_rule(
    machine: dict[str, Any], trial: dict[str, Any], rule: str, told: str
):
    found = known(skip(GPU.model_copy(update=machine), **trial))
    assert found.rule == rule
    assert re.search(told, found.reason)


test_what_can_run_on_cpu_ranks_is_not_skipped = ASKING.each_allowed(
    {"strategy": "zero0"},
    {"strategy": "single", "gpus_per_node": 1},
    {"strategy": "single", "gpus_per_node": 1, "optimizer": "fused_adamw"},
    {"strategy": "zero1", "offload_optimizer": "cpu", "optimizer": "cpu_adam"},
    {"strategy": "zero2", "offload_optimizer": "cpu"},
    {"offload_param": "cpu"},
    {"offload_param": "nvme", "offload_optimizer": "nvme", "nvme_path": "/nvme", "optimizer": "cpu_adam"},
    {"precision": "fp32", "optimizer": "sgd"},
    {"sequence_length": 2048},
    {"gpus_per_node": 2 * CPU_RANKS_PER_CORE},
    {"ds_config": {"zero_optimization.reduce_bucket_size": 1_000_000}},
)


def test_fp16_and_flash_attention_run_on_a_gpu_that_has_them():
    assert skip(GPU, precision="fp16", attention="flash_attention_2", optimizer="fused_adamw") is None


def test_fused_adamw_without_deepspeed_needs_no_compiler():
    machine = CPU.model_copy(update={"missing_kernels": ("fused_adam",)})
    assert skip(machine, strategy="single", gpus_per_node=1, optimizer="fused_adamw") is None


def test_a_users_config_that_says_something_else_is_skipped_with_both_sides(tmp_path: Path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}))
    found = known(skip(ds_config_file=str(file)))
    assert found.rule == "ds_config_contradicts"
    assert found.reason.startswith(f"{file}: zero_optimization.stage is 2, but the trial's zero_stage is 3")


def test_a_users_config_that_agrees_with_the_trial_is_not_skipped(tmp_path: Path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}))
    assert skip(ds_config_file=str(file)) is None


def test_an_override_that_belongs_to_an_axis_is_skipped_where_it_contradicts_it():
    ASKING.refused("ds_config_contradicts", "stage", ds_config={"zero_optimization.stage": 1})


def test_a_key_that_nothing_in_the_trial_reads_is_skipped_with_the_reason():
    reason = "only deepspeed.checkpointing reads it"
    ASKING.refused("ds_config_not_obeyed", reason, ds_config={"activation_checkpointing.cpu_checkpointing": True})
    assert skip(strategy="ddp", ds_config={"activation_checkpointing.cpu_checkpointing": True}) is None


def test_fp16_on_simulated_cpu_ranks_is_skipped_by_the_rule_of_the_measured_ones():
    measured, simulated = (skip(CPU, precision="fp16", evidence=evidence) for evidence in ("measured", "simulated"))
    assert measured == simulated
    assert known(measured).rule == "precision_needs_device"
    native = CPU.model_copy(update={"supports_fp16": True})
    assert skip(native, precision="fp16", evidence="simulated") is None
    assert skip(CPU, precision="fp16", evidence="simulated", prediction={"gpu": "H200 SXM"}) is None


@pytest.mark.parametrize("evidence", ["measured", "simulated"])
def test_a_model_that_is_no_causal_language_model_is_skipped_with_its_type(evidence: str):
    vit = ModelSpec(name="vit-tiny", hf_config={"model_type": "vit", "hidden_size": 64})
    found = skip(model=vit, evidence=evidence)
    assert found == Skip(
        rule="model_is_not_causal",
        reason="model vit-tiny: transformers has no causal language model of type vit; "
        "sweeps train causal language models only; for your own script use zerobench watch",
    )
    own_code = vit.model_copy(update={"hf_config": vit.hf_config | {"auto_map": {"AutoModelForCausalLM": "m.Model"}}})
    assert skip(model=own_code, evidence=evidence) is None


@pytest.mark.parametrize("evidence", ["measured", "simulated", "formula"])
def test_positions_that_transformers_does_not_have_are_skipped_with_the_choices(evidence: str):
    llama = resolve_model("llama-20m")
    scaled = llama.model_copy(update={"hf_config": llama.hf_config | {"rope_scaling": {"rope_type": "none-such"}}})
    found = known(skip(model=scaled, evidence=evidence))
    assert found.rule == "rope_type_is_unknown"
    assert found.reason.startswith(
        "model llama-20m: rope_type 'none-such' is not known to transformers; choices: default"
    )


def test_cpu_ranks_whose_states_exceed_the_host_are_skipped_with_the_figures():
    found = known(skip(model="llama-7b", strategy="zero1"))
    assert found.rule == "host_memory"
    # 2 ranks x (2 + 2 + 12/2) bytes x 6.74e9, and two processes: 126 GiB.
    assert found.reason == (
        "llama-7b (6.74 B parameters): the states 2 ranks hold in host memory take at least 126.16 GiB; "
        "the node has 16.00 GiB"
    )


def test_gpu_ranks_need_the_host_for_what_is_offloaded_alone():
    small = GPU.model_copy(update={"host_memory_bytes": 64 * GIB})
    assert skip(small, model="llama-70b", gpus_per_node=8) is None
    offloaded = {"gpus_per_node": 8, "offload_optimizer": "cpu", "optimizer": "cpu_adam"}
    ASKING.refused("host_memory", "64.00 GiB", small, model="llama-7b", **offloaded)
    on_nvme = {"offload_optimizer": "nvme", "offload_param": "nvme", "nvme_path": "/nvme", "optimizer": "cpu_adam"}
    assert skip(small, model="llama-70b", gpus_per_node=8, **on_nvme) is None


def test_a_model_without_a_closed_form_or_a_host_of_unknown_size_is_tried():
    trial = TrialSpec(model=resolve_model("llama-70b"), strategy="zero3", gpus_per_node=2)
    assert find_skip(Situation(trial, CPU, None)) is None
    unknown = CPU.model_copy(update={"host_memory_bytes": None})
    assert find_skip(Situation(trial, unknown, 70_000_000_000)) is None


P, N = 1_000_000, 4
UNPINNED = {"zero_optimization.offload_optimizer.pin_memory": False}


@pytest.mark.parametrize(
    ("trial", "bytes_per_parameter"),
    [
        ({"strategy": "single", "gpus_per_node": 1}, 16),
        ({"strategy": "zero0"}, 16 * N),
        ({"strategy": "zero1"}, 4 * N + 12),
        ({"strategy": "zero2"}, 2 * N + 14),
        ({"strategy": "zero3"}, 16),
        ({"strategy": "zero0", "precision": "fp32"}, 16 * N),
        ({"strategy": "zero3", "precision": "fp32"}, 16),
        ({"strategy": "zero3", "optimizer": "sgd"}, 8),
        ({"strategy": "zero3", "precision": "fp32", "optimizer": "sgd"}, 8),
        ({"strategy": "zero3", "offload_optimizer": "cpu", "offload_param": "cpu"}, 16),
        ({"strategy": "zero3", "offload_optimizer": "nvme"}, 4),
        ({"strategy": "zero3", "offload_optimizer": "nvme", "offload_param": "nvme"}, 2),
    ],
)
def test_cpu_ranks_hold_the_zero_papers_states_in_host_memory(trial: dict[str, Any], bytes_per_parameter: int):
    spec = ASKING.trial(**{"gpus_per_node": N} | trial)
    held = host_state_bytes(spec, P, Accelerator.CPU)
    assert held == spec.world_size * PROCESS_BYTES + bytes_per_parameter * P


OWN = P // N
WORDS, HALVES = 2**20, 2**19
"""What 4 and 2 bytes for each of a rank's parameters take page-locked: 1,000,000 and 500,000 up to powers of two."""


@pytest.mark.parametrize(
    ("trial", "bytes_on_rank"),
    [
        ({"strategy": "zero3"}, 0),
        ({"strategy": "zero2", "offload_optimizer": "cpu"}, 2 * WORDS + HALVES + 8 * OWN),
        ({"strategy": "zero3", "offload_optimizer": "cpu"}, 12 * OWN + WORDS + HALVES),
        ({"strategy": "zero3", "offload_optimizer": "cpu", "offload_param": "cpu"}, 14 * OWN + WORDS + HALVES),
        ({"strategy": "zero3", "offload_optimizer": "cpu", "optimizer": "sgd"}, 4 * OWN + WORDS + HALVES),
        ({"strategy": "zero2", "offload_optimizer": "cpu", "precision": "fp32"}, 2 * WORDS + 8 * OWN),
        ({"strategy": "zero2", "offload_optimizer": "cpu", "ds_config": UNPINNED}, 16 * OWN),
        ({"strategy": "fsdp", "offload_optimizer": "cpu", "offload_param": "cpu"}, 16 * OWN),
        ({"strategy": "zero3", "offload_param": "cpu", "precision": "fp32"}, 4 * OWN),
        ({"strategy": "zero3", "offload_optimizer": "nvme", "offload_param": "nvme"}, 0),
        (
            {"strategy": "zero3", "offload_optimizer": "cpu", "num_nodes": 2, "gpus_per_node": N // 2},
            12 * OWN + WORDS + HALVES,
        ),
    ],
)
def test_gpu_ranks_hold_offloaded_states_in_their_nodes_host_memory(trial: dict[str, Any], bytes_on_rank: int):
    spec = ASKING.trial(**{"gpus_per_node": N} | trial)
    held = host_state_bytes(spec, P, Accelerator.CUDA)
    assert held == spec.gpus_per_node * (PROCESS_BYTES + bytes_on_rank)


@pytest.mark.parametrize(("more", "is_rounded"), [(0, True), (1, False)])
def test_gradients_of_one_sub_group_are_page_locked_as_a_whole_and_those_of_several_are_not_rounded(
    more: int, is_rounded: bool
):
    share = SUB_GROUP_SIZE + more
    spec = ASKING.trial(strategy="zero3", offload_optimizer="cpu", gpus_per_node=1)
    held = host_state_bytes(spec, share, Accelerator.CUDA)
    gradients = 2**32 if is_rounded else 4 * share
    assert held == PROCESS_BYTES + 4 * share + gradients + 2**31 + 8 * share


def test_a_7b_model_whose_page_locked_states_exceed_the_host_is_skipped():
    node = GPU.model_copy(update={"num_gpus": 1, "host_memory_bytes": 128 * GIB})
    offloaded: dict[str, Any] = {"gpus_per_node": 1, "offload_optimizer": "cpu", "optimizer": "cpu_adam"}
    # 2 x 32 GiB of fp32 weights and gradients, 16 GiB in 16 bits, 8 bytes x 6.74e9 of moments, and the process.
    reason = "take at least 130.53 GiB; the node has 128.00 GiB"
    ASKING.refused("host_memory", reason, node, model="llama-7b", strategy="zero1", **offloaded)


def test_rules_that_come_before_what_is_no_rule_are_not_left_out_unseen():
    def _one(s: Situation) -> str | None:
        return None

    def _counts(s: Situation) -> int:
        return 0

    module = {"_one": _one, "_counts": _counts, "one": _one}
    assert rules_of(module, {"one": {"other": _one}}) == {"other": _one, "one": _one}
    assert list(rules_of(module, {"one": {"other": _one}})) == ["other", "one"]
    with pytest.raises(LookupError, match=r"^before: counts: no rule; choices: one$"):
        rules_of(module, {"counts": {"other": _one}})


def test_the_rules_about_ranks_are_rules():
    assert set(LAYOUT_RULES) <= set(RULES)


BARE = CPU.model_copy(
    update={
        "host_memory_bytes": GIB,
        "supports_bf16": False,
        "has_libaio": False,
        "missing_kernels": ("cpu_adam", "fused_adam"),
    }
)
"""A machine on which next to nothing can be measured."""

NOT_HERE: list[tuple[dict[str, Any], str]] = [
    ({"offload_param": "nvme"}, "nvme_needs_path"),
    ({"offload_param": "nvme", "nvme_path": "/nvme"}, "nvme_needs_libaio"),
    ({"precision": "fp16"}, "precision_needs_device"),
    ({"precision": "fp32", "num_nodes": 8, "gpus_per_node": 8}, "nodes_exceed_machine"),
    ({"precision": "fp32", "gpus_per_node": 64}, "ranks_exceed_cores"),
    ({"precision": "fp32", "offload_optimizer": "cpu", "optimizer": "cpu_adam"}, "cpu_adam_needs_compiler"),
    ({"precision": "fp32", "optimizer": "fused_adamw"}, "fused_adamw_needs_compiler"),
    ({"precision": "fp32", "model": "llama-7b"}, "host_memory"),
]
PREDICTED = [{"evidence": evidence, "prediction": {"gpu": "H200 SXM"}} for evidence in ("simulated", "formula")]


@pytest.mark.parametrize(("trial", "rule"), NOT_HERE)
def test_what_is_not_at_hand_keeps_a_trial_from_its_device_and_from_no_prediction(trial: dict[str, Any], rule: str):
    assert known(skip(BARE, **trial)).rule == rule
    if rule not in LAYOUT_RULES:
        assert known(skip(BARE, evidence="solo", **trial)).rule == rule
    for predicted in PREDICTED:
        here = {"nvme_path": "/nvme"} if "offload_param" in trial else {}  # what a sweep gives every prediction
        assert skip(BARE, **predicted | trial | here) is None


def test_each_rule_about_what_is_at_hand_is_a_rule_and_holds_for_measured_trials():
    assert set(AT_HAND) <= set(RULES)
    assert all("measured" in evidences for evidences in AT_HAND.values())
    assert not any({"simulated", "formula"} & evidences for evidences in AT_HAND.values())


@pytest.mark.parametrize(
    ("trial", "rule"),
    [
        ({"strategy": "zero2", "offload_param": "cpu"}, "param_offload_needs_stage_3"),
        ({"strategy": "zero0", "offload_optimizer": "cpu"}, "offload_needs_stage_1"),
        ({"strategy": "zero1", "offload_optimizer": "nvme"}, "nvme_needs_stage_3"),
        ({"optimizer": "cpu_adam"}, "cpu_adam_needs_offload"),
        ({"optimizer": "fused_adamw", "offload_optimizer": "cpu"}, "fused_adamw_needs_device_states"),
        ({"model": "gpt2-10m", "sequence_length": 1025}, "sequence_exceeds_positions"),
        ({"model": "llama-7b", "sequence_length": 4_000_000}, "step_exceeds_records"),
        ({"model": "gemma2-2b"}, "sdpa_needs_model"),
        ({"model": BLOOM, "attention": "flash_attention_2"}, "flash_attention_needs_model"),
        ({"ds_config": {"zero_optimization.stage": 1}}, "ds_config_contradicts"),
        ({"attention": "flash_attention_2", "precision": "fp32"}, "flash_attention_needs_gpu"),
    ],
)
@pytest.mark.parametrize("evidence", ["measured", "solo", "simulated", "formula"])
def test_nonsense_is_nonsense_in_every_evidence(trial: dict[str, Any], rule: str, evidence: str):
    gpu = None if evidence in {"measured", "solo"} else "H200 SXM"
    assert known(skip(GPU, evidence=evidence, prediction={"gpu": gpu}, **trial)).rule == rule


def test_flash_attention_is_predicted_for_a_gpu_and_not_for_cpu_ranks():
    flash = {"attention": "flash_attention_2", "evidence": "simulated"}
    assert skip(CPU, prediction={"gpu": "H200 SXM"}, **flash) is None
    assert known(skip(CPU, **flash | {"evidence": "solo"})).rule == "flash_attention_needs_gpu"
    for machine in (CPU, GPU):
        found = skip(machine, **flash)
        assert found == Skip(
            rule="flash_attention_needs_gpu", reason="attention flash_attention_2: needs GPUs; use sdpa or eager"
        )


@pytest.mark.parametrize(
    ("model", "attention", "reason"),
    [
        (GPTJ, "sdpa", "attention sdpa: transformers' gptj does not support it; use eager or flash_attention_2"),
        (BLOOM, "sdpa", "attention sdpa: transformers' bloom does not support it; use eager"),
        (
            GPT_OSS,  # for which transformers would run another kernel
            "flash_attention_2",
            "attention flash_attention_2: transformers' gpt_oss does not support it; use eager",
        ),
    ],
)
def test_an_attention_that_the_model_lacks_is_refused_with_those_that_run_on_gpus(
    model: dict[str, Any], attention: str, reason: str
):
    assert known(skip(GPU, model=model, attention=attention)).reason == reason
    assert skip(GPU, model=model, attention="eager") is None


def test_a_solo_trial_needs_one_device_whatever_the_world_size():
    one_gpu = GPU.model_copy(update={"num_gpus": 1})
    for machine in (CPU, one_gpu):
        assert skip(machine, evidence="solo", num_nodes=128, gpus_per_node=8) is None
        assert known(skip(machine, num_nodes=128, gpus_per_node=8)).rule in LAYOUT_RULES


def test_a_solo_trial_needs_the_host_memory_of_one_rank():
    trial: dict[str, Any] = {"model": "llama-7b", "strategy": "zero3", "gpus_per_node": 8}
    needed = host_state_bytes(ASKING.trial(**trial), 6_738_415_616, Accelerator.CPU)
    enough = CPU.model_copy(update={"host_memory_bytes": needed // 8})
    assert skip(enough, evidence="solo", **trial) is None
    too_small = enough.model_copy(update={"host_memory_bytes": needed // 8 - 1})
    alone = "the states one rank holds in host memory take at least 12.87 GiB"
    ASKING.refused("host_memory", alone, too_small, evidence="solo", **trial)
    ASKING.refused("host_memory", "8 ranks hold in host memory take at least 102.99 GiB", enough, **trial)
