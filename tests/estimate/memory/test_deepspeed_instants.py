"""Every instant that DeepSpeed's formulas name, to the byte, for settings that take each of their branches.

The formulas as a whole are held against real ranks (test_deepspeed.py), where a small term hides in a tolerance. Here
each term stands for itself: golden/instants.json has what each category holds at each instant, so that a change of one
shows as that line. `python -m tests.estimate.memory.test_deepspeed_instants` writes it again, and whoever does so
explains each line that then differs.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from zerobench.common.vocabulary import Place, StepKind
from zerobench.config.deepspeed.case import Case
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.optimizers import Optimizer
from zerobench.config.trial.trial import TrialSpec
from zerobench.estimate.memory.deepspeed import deepspeed_instants
from zerobench.estimate.memory.deepspeed.setting import Instants, Setting
from zerobench.estimate.memory.deepspeed.stage_0 import plain_device
from zerobench.estimate.memory.deepspeed.stage_1_and_2 import flattens_on_host
from zerobench.estimate.memory.record import formula_setting
from zerobench.estimate.memory.terms.terms import Bytes

GOLDEN = Path(__file__).parent / "golden" / "instants.json"
TENSORS = (700, 64, 32, 300, 64, 1001)
ADAM, FUSED, SGD = Optimizer.ADAMW, Optimizer.FUSED_ADAMW, Optimizer.SGD
CPU: dict[str, Any] = {"offload_optimizer": {"device": "cpu"}}
PARAMS: dict[str, Any] = {"offload_param": {"device": "cpu"}}
NVME: dict[str, Any] = {"offload_optimizer": {"device": "nvme", "nvme_path": "/nvme"}}
PARAMS_ON_NVME: dict[str, Any] = {"offload_param": {"device": "nvme", "nvme_path": "/nvme"}}
SMALL: dict[str, Any] = {"reduce_bucket_size": 800, "allgather_bucket_size": 500, "stage3_prefetch_bucket_size": 90}
SMALL |= {"stage3_param_persistence_threshold": 64, "stage3_max_live_parameters": 1200, "sub_group_size": 400}
SMALL |= {"stage3_max_reuse_distance": 0}


def setting(
    stage: int,
    optimizer: Optimizer = FUSED,
    *,
    precision: str = "bf16",
    world_size: int = 4,
    micro_steps: int = 1,
    tied: bool = False,
    on_gpu: bool = True,
    rank: int = 0,
    zero_init: bool = True,
    config: Mapping[str, Any] | None = None,
    **zero: Any,
) -> Setting:
    numbers = {} if precision == "fp32" else {precision: {"enabled": True}}
    whole = {**numbers, "gradient_accumulation_steps": micro_steps, **(config or {})}
    case = Case({**whole, "zero_optimization": {"stage": stage, **SMALL, **zero}}, world_size, sum(TENSORS))
    return Setting(case, TENSORS, optimizer, rank, on_gpu, tied, zero_init=zero_init)


FP32_SUMS: dict[str, Any] = {"data_types": {"grad_accum_dtype": "fp32"}}
BELOW_3: dict[str, dict[str, Any]] = {
    "": {},
    " adamw": {"optimizer": ADAM},
    " adamw on a cpu": {"optimizer": ADAM, "on_gpu": False},
    " sgd": {"optimizer": SGD},
    " sgd on a cpu": {"optimizer": SGD, "on_gpu": False},
    " fp32": {"precision": "fp32", "optimizer": ADAM},
    " fp16": {"precision": "fp16"},
    " ga2": {"micro_steps": 2},
    " fp32 ga2 tied": {"precision": "fp32", "micro_steps": 2, "tied": True, "optimizer": ADAM},
    " tied": {"tied": True},
    " one rank": {"world_size": 1},
}
PARTED: dict[str, dict[str, Any]] = {
    " last rank": {"rank": 3},
    " overlap": {"overlap_comm": True},
    " overlap ga2": {"overlap_comm": True, "micro_steps": 2},
    " not contiguous": {"contiguous_gradients": False},
    " not contiguous ga2": {"contiguous_gradients": False, "micro_steps": 2},
    " fp32 sums": {"config": FP32_SUMS},
    " fp32 sums ga2": {"config": FP32_SUMS, "micro_steps": 2},
    " cpu": CPU,
    " cpu ga2": {**CPU, "micro_steps": 2},
    " cpu fp32": {**CPU, "precision": "fp32", "optimizer": ADAM},
    " cpu overlap": {**CPU, "overlap_comm": True},
    " cpu sgd": {**CPU, "optimizer": SGD},
    " large bucket": {"reduce_bucket_size": 5000, "allgather_bucket_size": 5000},
}
STAGE_3: dict[str, dict[str, Any]] = {
    " no prefetch": {"stage3_prefetch_bucket_size": 0, "stage3_max_reuse_distance": 900},
    " all live": {"stage3_max_live_parameters": 10**9},
    " all used again": {"stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 10**9},
    " none live": {"stage3_max_live_parameters": 0, "stage3_param_persistence_threshold": 0},
    " params cpu": {**CPU, **PARAMS},
    " params cpu ga2": {**CPU, **PARAMS, "micro_steps": 2},
    " params cpu one rank": {**CPU, **PARAMS, "world_size": 1},
    " nvme": NVME,
    " nvme ga2": {**NVME, "micro_steps": 2},
    " nvme adamw": {**NVME, "optimizer": ADAM},
    " nvme params nvme": {**NVME, **PARAMS_ON_NVME},
    " nvme params cpu": {**NVME, **PARAMS},
    " hpz": {"zero_hpz_partition_size": 2},
    " hpz ga2": {"zero_hpz_partition_size": 2, "micro_steps": 2},
    " built whole": {"zero_init": False},
    " built whole params cpu": {"zero_init": False, **PARAMS},
    " leaf of one group": {"sub_group_size": 10**9},
}
SETTINGS: dict[str, tuple[int, dict[str, Any]]] = {
    **{f"stage {stage}{name}": (stage, fields) for stage in range(4) for name, fields in BELOW_3.items()},
    **{f"stage {stage}{name}": (stage, fields) for stage in (1, 2, 3) for name, fields in PARTED.items()},
    **{f"stage 3{name}": (3, fields) for name, fields in STAGE_3.items()},
}
"""By name: a stage, and what is not as usual."""


def held(nbytes: Bytes) -> str:
    return ", ".join(f"{category.value} {size}" for category, size in sorted(nbytes.items()) if size) or "nothing"


def instants(moments: Instants) -> Iterator[tuple[str, str]]:
    for name in ("init", "gathering", "forward", "first_gradient", "bucketed", "reduction", "backward_end", "step"):
        found = getattr(moments, name)
        if isinstance(found, Mapping):
            yield name, held(found)
        else:
            yield from ((f"{name} {number}", held(one)) for number, one in enumerate(found))
    yield from ((f"filled by {passed}", held(instant)) for passed, instant in moments.filled.items())


def told(name: str) -> dict[str, dict[str, str]]:
    """What the formulas say of a setting, by step and place."""
    stage, fields = SETTINGS[name]
    asked = setting(stage, **fields)
    found = {
        f"{step.value} {place.value}": dict(instants(moments))
        for step in StepKind
        for place, moments in deepspeed_instants(asked, step).items()
    }
    if stage == 0:
        found |= {f"{step.value} plain loop": dict(instants(plain_device(asked, step))) for step in StepKind}
    return {where: lines for where, lines in found.items() if set(lines.values()) != {"nothing"}}


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    """What was said when it was last looked at."""
    found: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", SETTINGS)
def test_each_category_holds_these_bytes_at_each_instant(name: str, golden: dict[str, Any]) -> None:
    assert told(name) == golden[name]


def test_no_setting_is_told_that_is_not_asked(golden: dict[str, Any]) -> None:
    assert set(golden) == set(SETTINGS)


@pytest.mark.parametrize(("name", "again"), [(" none live", 364), (" all live", 0)])
def test_a_block_that_runs_again_is_there_at_each_bucket_where_nothing_is_gathered_ahead(name: str, again: int) -> None:
    plain = setting(3, **STAGE_3[name])
    before, after = (
        deepspeed_instants(one, StepKind.STEADY)[Place.DEVICE].filled
        for one in (plain, replace(plain, block_again=364))
    )
    more = {passed: sum(after[passed].values()) - sum(instant.values()) for passed, instant in before.items()}
    assert before
    assert more == dict.fromkeys(before, 2 * again)


@pytest.mark.parametrize(("less", "is_on_host"), [(0, False), (1, True)])
def test_the_model_is_flattened_on_the_host_once_the_device_lacks_a_byte_for_the_flat_copy(
    less: int, is_on_host: bool
) -> None:
    trial = {
        "model": resolve_model("llama-10m"),
        "strategy": "zero2",
        "gpus_per_node": 2,
        "prediction": {"gpu": "h200"},
    }
    setting = formula_setting(TrialSpec.model_validate(trial | {"evidence": "formula", "precision": "bf16"}))
    enough_bytes = 2 * setting.num_params + 2 * 2 * setting.flat_partition
    assert flattens_on_host(replace(setting, capacity_bytes=enough_bytes - less)) is is_on_host


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({name: told(name) for name in SETTINGS}, indent=1) + "\n", encoding="utf-8")
