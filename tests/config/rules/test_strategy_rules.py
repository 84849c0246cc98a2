"""What a strategy has not, needs, or cannot be in is refused before launch, in a sentence; what it has is not."""

from typing import Any

from tests.config.machines import CPU, GPUS
from tests.config.rules.refusals import Asking
from tests.tools.at_least_one import at_least_one
from zerobench.config.derived.availability import needs, unavailable
from zerobench.config.derived.strategy import STRATEGIES, StrategyInfo, is_exact, paper_stage
from zerobench.config.rules.strategy_rules import STRATEGY_RULES
from zerobench.config.trial.trial import Evidence

BOTH = {"offload_optimizer": "cpu", "offload_param": "cpu"}
ODD = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 257}
ASKING = Asking(strategy="ddp", precision="fp32")
trial, skip = ASKING.trial, ASKING.skip


test_a_combination_that_a_strategy_has_not_is_refused_with_its_reason = ASKING.each_refused(
    ({"offload_optimizer": "cpu"}, "offload_needs_engine", "offload_optimizer cpu at ddp: it cannot offload"),
    ({"strategy": "zero2", "compression": "fp16"}, "compression_needs_ddp", "compression fp16 at zero2"),
    ({"strategy": "fsdp", "compression": "onebit"}, "compression_needs_ddp", "compression hooks need ddp"),
    ({"compression": "fp16", "precision": "bf16"}, "compression_needs_fp32", "gradients are 16-bit already"),
    ({"compression": "bf16"}, "bf16_compression_needs_nccl", "compression bf16 on gloo"),
    ({"compression": "powersgd"}, "powersgd_needs_one_bucket", "set bucket_bytes to 4"),
    ({"compression": "powersgd", "bucket_bytes": 10**6}, "powersgd_needs_one_bucket", "all gradients"),
    ({"compression": "onebit", "steps": {"warmup": 0}}, "compression_needs_warmup", "steps.warmup 0"),
    ({"compression": "fp16", "evidence": "simulated"}, "compression_needs_values", "use measured or solo"),
    ({"strategy": "fsdp", "offload_param": "cpu"}, "fsdp_offloads_together", "set both"),
    ({"strategy": "fsdp", "offload_optimizer": "cpu"}, "fsdp_offloads_together", "optimizer states together"),
    ({"strategy": "fsdp", **BOTH, "offload_param": "nvme"}, "fsdp_offloads_together", "to the CPU only"),
    ({"strategy": "fsdp", **BOTH, "optimizer": "cpu_adam"}, "cpu_adam_needs_deepspeed", "use adamw"),
)


def _cut(parts: int, **fields: Any) -> dict[str, Any]:
    return {"strategy": "zero1", "ds_config": {"tensor_parallel.autotp_size": parts}, **fields}


test_autotp_is_refused_where_ranks_or_the_vocabulary_are_not_divided_and_in_predictions = ASKING.each_refused(
    (_cut(3), "autotp_not_divisible", "2 ranks cannot be divided into groups of 3"),
    (_cut(2, evidence="simulated"), "autotp_not_divisible", "AutoTP is not predicted"),
    (_cut(2, model=ODD), "autotp_not_divisible", "a vocabulary of 257 splits unevenly"),
)


test_what_ddp_and_fsdp_have_is_not_refused = ASKING.each_allowed(
    {},
    {"compression": "fp16"},
    {"compression": "onebit", "precision": "bf16"},
    {"compression": "powersgd", "bucket_bytes": 10**9},
    {"strategy": "fsdp"},
    {"strategy": "fsdp", **BOTH},
    {"strategy": "fsdp", "reshard_after_forward": False, "evidence": "simulated"},
)


def test_bf16_and_several_buckets_are_no_trouble_to_nccl():
    assert skip(GPUS, compression="bf16") is None
    assert skip(GPUS, compression="powersgd") is None


def test_a_strategy_whose_package_is_missing_is_refused_with_the_remedy():
    info = StrategyInfo(name="far", summary="far away", packages=("torch", "no_such_package_here"))
    why = unavailable(info, CPU.model_copy(update={"missing_packages": ("no_such_package_here",)}))
    assert why == "the package no_such_package_here is not installed (pip install no_such_package_here)"


def test_a_machine_without_the_frameworks_skips_nothing_since_trials_may_run_elsewhere():
    login = GPUS.model_copy(update={"missing_packages": ("deepspeed", "torch")})
    assert unavailable(STRATEGIES["zero1"], login) is not None
    assert skip(login, strategy="zero1") is None


def test_what_a_strategy_needs_of_ranks_and_gpus_is_said_and_refused():
    info = StrategyInfo(name="wide", summary="wide", least_processes=16, needs_gpu=True)
    assert needs(info) == "16 ranks or more, GPUs, torch"
    assert unavailable(info, CPU) == "needs a GPU"
    assert unavailable(info, GPUS) == "needs 16 ranks; 8 can run here"


def test_each_strategy_says_why_it_is_not_in_the_worlds_that_it_is_not_in():
    for info in at_least_one(STRATEGIES.values()):
        assert set(info.unavailable) == set(Evidence) - set(info.evidences), info.name
        assert info.tolerance_reason


def test_compressed_gradients_are_not_exact_and_everything_else_shipped_is():
    assert not is_exact(trial(compression="fp16"))
    assert all(is_exact(trial(strategy=name)) for name in STRATEGIES)


def test_the_paper_counts_ddp_as_stage_0_and_fsdp_as_stage_3_and_does_not_speak_of_servers_and_tensor_parallelism():
    stages = [paper_stage(trial(strategy=name)) for name in STRATEGIES]
    assert stages == [0, 0, 0, 1, 2, 3, 3, None, None, None, None, 0, 0]
    assert paper_stage(trial(strategy="script")) is None


def test_the_strategies_own_rules_are_asked_before_the_others():
    from zerobench.config.rules.rules import RULES

    assert list(RULES)[: len(STRATEGY_RULES)] == list(STRATEGY_RULES)
    order = ["strategy_not_in_this_world", "environment_needs_one_node", "too_few_processes", "zeropp_needs_stage_3"]
    order += ["rpc_not_in_torch", "compression_needs_ddp", "nvme_needs_libaio", "swap_buffers_run_out"]
    order += ["precision_needs_device", "optimizer_not_on_nvme", "sequence_exceeds_positions"]
    assert [name for name in RULES if name in order] == order


def test_a_field_that_came_later_changes_the_hash_only_where_it_says_something():
    plain = trial()
    assert plain.config_hash == trial(bucket_bytes=None, compression="none", reshard_after_forward=True).config_hash
    changed = [trial(bucket_bytes=1), trial(compression="fp16"), trial(strategy="fsdp", reshard_after_forward=False)]
    assert len({one.config_hash for one in [plain, trial(strategy="fsdp"), *changed]}) == 5
    assert len({one.parity_hash for one in [plain, *changed]}) == 1
