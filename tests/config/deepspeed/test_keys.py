import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.at_least_one import at_least_one
from tests.tools.refusals import one_line
from zerobench.common.errors import UserError
from zerobench.config.deepspeed import resolve_key
from zerobench.config.deepspeed.keys import canonical, find, known_keys

TOOL = Path(__file__).parents[2] / "tools" / "deepspeed_keys.py"
DATA_FILE = Path(sys.modules["zerobench.config.deepspeed"].__file__ or "").with_name("known_keys.json")


def test_the_table_is_what_the_installed_deepspeed_knows() -> None:
    asked = subprocess.run([sys.executable, str(TOOL)], capture_output=True, text=True, timeout=300, check=False)
    assert asked.returncode == 0, asked.stderr[-2000:]
    installed, ours = json.loads(asked.stdout), json.loads(DATA_FILE.read_text())
    new, gone = set(installed["keys"]) - set(ours["keys"]), set(ours["keys"]) - set(installed["keys"])
    assert (sorted(new), sorted(gone)) == ([], []), f"run python {TOOL} --write"
    assert installed == ours, f"run python {TOOL} --write"


def test_the_table_holds_keys_of_every_kind_that_deepspeed_reads() -> None:
    assert find("zero_optimization.stage") is not None  # a field of a pydantic model
    assert find("aio.block_size") is not None  # looked up in a dict
    assert find("gradient_clipping") is not None  # at the top
    assert find("sequence_parallel_size") is not None  # read outside DeepSpeedConfig
    assert find("optimizer.params.anything") is not None  # handed on to the optimizer
    assert len(known_keys().keys) > 300


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("reduce_bucket_size", "zero_optimization.reduce_bucket_size"),
        ("zero_optimization.reduce_bucket_size", "zero_optimization.reduce_bucket_size"),
        ("offload_optimizer.pin_memory", "zero_optimization.offload_optimizer.pin_memory"),
        ("offload_optimizer", "zero_optimization.offload_optimizer"),
        ("train_batch_size", "train_batch_size"),
        ("optimizer.params.lr", "optimizer.params.lr"),
        ("prefetch_bucket_size", "zero_optimization.stage3_prefetch_bucket_size"),
        ("zero_optimization.prefetch_bucket_size", "zero_optimization.stage3_prefetch_bucket_size"),
        ("bfloat16.check_grad_overflow", "bf16.check_grad_overflow"),
    ],
)
def test_a_short_name_stands_for_one_full_path(name: str, path: str) -> None:
    assert resolve_key(name) == path


def test_every_full_path_stands_for_itself() -> None:
    assert all(resolve_key(path) == path for path in known_keys().keys)


def test_an_ambiguous_name_is_refused_with_all_that_it_may_mean() -> None:
    with one_line("zero_optimization.offload_optimizer.pin_memory, zero_optimization.offload_param.pin_memory"):
        resolve_key("pin_memory")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("reduce_bucket_sise", "did you mean 'zero_optimization.reduce_bucket_size'?"),
        ("zero_optimisation.stage", "did you mean 'zero_optimization.stage'?"),
        ("gradient_clip", "did you mean 'gradient_clipping'?"),
        ("offload_optimiser.device", "did you mean 'zero_optimization.offload_optimizer.device'?"),
        ("cpu_offload", "use zero_optimization.offload_optimizer"),
        ("elasticity", "Elastic training has been removed"),
        ("mics_shard_size", "MiCS ZeRO-3 sharding has been removed"),
        ("aio.", "did you mean 'aio'?"),
        ("aio.xyzzy", "choices: block_size, intra_op_parallelism"),
        ("", "choices: activation_checkpointing"),
        ("xyzzy", "choices: activation_checkpointing"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_right_one(name: str, hint: str) -> None:
    with one_line("ds_config: ", hint):
        resolve_key(name)


def test_second_names_lead_to_keys_that_exist() -> None:
    for alias, path in at_least_one(known_keys().aliases.items()):
        assert canonical(alias) == path
        assert path in known_keys().keys


def test_a_key_below_a_section_that_takes_anything_is_found_by_the_sections_last_name() -> None:
    with pytest.raises(UserError, match=r"one of optimizer\.params\.lr, scheduler\.params\.lr"):
        resolve_key("params.lr")
    assert resolve_key("post_init_quant.num_bits") == "weight_quantization.post_init_quant.num_bits"
    with pytest.raises(UserError, match="'params' is in several sections"):
        resolve_key("params")


@pytest.mark.parametrize(("path", "is_found"), [
    ("datastates_ckpt", True),
    ("datastates_ckpt.host_cache_size", True),
    ("datastates_ckpt.a.b", True),
    ("optimizer.params.lr", True),
    ("optimizer.params.a.b.c", True),
    ("autotuning.arg_mappings.x", True),
    ("optimizer.params.", False),
    ("optimizer.param.lr", False),
    ("zero_optimization.stage.x", False),
    ("zero_optimization.nothing", False),
    ("", False),
])  # fmt: skip
def test_below_a_section_that_takes_anything_every_key_is_found_however_deep(path: str, is_found: bool) -> None:
    assert (find(path) is not None) is is_found
