"""What the sentences say. That the engine does so is held in test_shipped_run.py, by a count of its storages."""

from __future__ import annotations

import re
from typing import Any

import pytest

from zerobench.ds_config import load_user_config
from zerobench.formulas.deepspeed.departures import departures
from zerobench.resources import shipped
from zerobench.spec.model import ModelSpec
from zerobench.spec.trial import TrialSpec

MEGA = 2**20


def said(strategy: str, **fields: Any) -> str:
    """All sentences for 64 Mi parameters, on four ranks unless told otherwise."""
    model = ModelSpec(name="llama", hf_config={"model_type": "llama"})
    trial = TrialSpec(**{"model": model, "strategy": strategy, "gpus_per_node": 4} | fields)
    return "\n".join(departures(trial, num_params=64 * MEGA))


def buckets(elements: int) -> dict[str, Any]:
    return {"ds_config": {"zero_optimization.reduce_bucket_size": elements}}


def test_stage_3_says_that_its_bucket_stays_for_the_whole_run() -> None:
    assert "keeps its reduce bucket of 1,048,576 elements (2.00 MiB) for the whole run" in said(
        "zero3", **buckets(MEGA)
    )
    assert "elements (4.00 MiB) for the whole run" in said("zero3", precision="fp32", **buckets(MEGA))


@pytest.mark.parametrize("strategy", ["zero1", "zero2"])
def test_stages_1_and_2_say_that_their_bucket_is_there_in_backward(strategy: str) -> None:
    text = said(strategy)
    assert f"stage {strategy[-1]} allocates a reduce bucket of 500,000,000 elements (953.67 MiB)" in text
    assert "whole run" not in text


def test_overlapping_reduction_doubles_the_bucket() -> None:
    assert "allocates two reduce buckets" in said("zero2", ds_config={"zero_optimization.overlap_comm": True})


def test_without_contiguous_gradients_there_is_no_bucket() -> None:
    off = {"ds_config": {"zero_optimization.contiguous_gradients": False}}
    assert "reduce bucket" not in said("zero1", **off) + said("zero3", **off)


def test_moments_appear_at_the_first_step_but_for_stage_0_in_16_bits_and_never_with_sgd() -> None:
    first = "Adam's moments (128.00 MiB) appear at the first step"  # 8 bytes x 64 Mi parameters / 4 ranks
    assert all(first in said(strategy) for strategy in ("zero1", "zero2", "zero3"))
    assert "Adam's moments (512.00 MiB) appear at the first step" in said("zero0", precision="fp32")
    assert "moments (512.00 MiB) are there from initialisation on" in said("zero0")
    assert "oments" not in said("zero2", optimizer="sgd")


def test_stage_1_says_what_it_holds_of_the_gradients() -> None:
    text = said("zero1")
    assert "stage 1 holds all gradients (128.00 MiB) in backward, as in the paper, and from its end to the step" in text
    assert "its own partition (32.00 MiB)" in text
    assert "into a copy (32.00 MiB) and casts that to fp32 (64.00 MiB)" in text


def test_fp32_says_that_master_weights_are_kept_twice_and_no_cast_is_made() -> None:
    for strategy in ("zero1", "zero2", "zero3"):
        text = said(strategy, precision="fp32")
        assert "although the parameters are fp32 already: a second copy of its partition (64.00 MiB)" in text
        assert "casts that to fp32" not in text


def test_accumulating_in_fp32_changes_the_optimizer_of_stage_1() -> None:
    fp32 = {"ds_config": {"data_types.grad_accum_dtype": "fp32"}}
    text = said("zero1", **fp32)
    assert "keeps all gradients in fp32 on every rank for the whole run (256.00 MiB)" in text
    assert "resets the device's peak counters" in text
    assert "allocates a reduce bucket" not in text
    assert "stage 2 sums the gradients of its partition in fp32 (64.00 MiB)" in said("zero2", **fp32)


def test_small_models_stay_gathered_at_stage_3_unless_reuse_is_off() -> None:
    kept = "from the second forward on all parameters are gathered at its end (128.00 MiB)"
    assert kept in said("zero3")
    off = {"zero_optimization.stage3_max_reuse_distance": 0, "zero_optimization.stage3_prefetch_bucket_size": 0}
    assert "second forward" not in said("zero3", ds_config=off)


def test_the_sub_group_bounds_what_stage_3_copies_at_the_step() -> None:
    text = said("zero3", ds_config={"zero_optimization.sub_group_size": MEGA})
    assert "one sub-group after the other into a copy (2.00 MiB) and casts that to fp32 (4.00 MiB)" in text


def test_hpz_says_how_large_its_second_copy_is_and_how_long_it_lives() -> None:
    text = said("zero3", hpz_partition_size=2)
    assert "a second copy of the parameters, divided among 2 ranks (64.00 MiB), of each from its release" in text
    assert "second copy of the parameters" not in said("zero3")


def test_offloading_says_what_the_host_holds_beside_the_states() -> None:
    text = said("zero2", optimizer="cpu_adam", offload_optimizer="cpu")
    assert (
        "gradients of the partition in fp32 (64.00 MiB) and a staging copy of its updated parameters (32.00 MiB)"
        in text
    )
    assert "flattens" not in text
    text = said("zero3", optimizer="cpu_adam", offload_optimizer="cpu", offload_param="cpu")
    assert "gradients of the partition in fp32 too (64.00 MiB)" in text
    assert "from backward to step (32.00 MiB in host memory)" in text
    assert "lies in one host buffer (32.00 MiB), page-locked whatever pin_memory says" in text


def test_nvme_says_what_its_buffers_take_and_what_is_never_swapped() -> None:
    text = said("zero3", optimizer="cpu_adam", offload_optimizer="nvme", offload_param="nvme", nvme_path="/nvme")
    assert "4 page-locked host buffers of one sub-group in fp32 (256.00 MiB)" in text
    assert "5 page-locked host buffers of 100,000,000 elements (953.67 MiB)" in text
    assert "tensors smaller than 1.00 MiB are not swapped" in text
    assert "max_in_cpu" not in text  # 0 in the generated configuration


def test_one_rank_s_figures_shrink_with_the_ranks() -> None:
    assert "moments (32.00 MiB)" in said("zero1", gpus_per_node=16)


@pytest.mark.parametrize("path", sorted(shipped("ds_configs").glob("*.json")), ids=lambda path: path.stem)
def test_every_shipped_config_has_departures_in_plain_sentences(path: Any) -> None:
    sentences = departures(load_user_config(path), world_size=8, num_params=7_000_000_000)
    assert len(sentences) >= 4
    assert len(set(sentences)) == len(sentences)
    for sentence in sentences:
        assert not re.search(r"None|nan|\{|\}|\n", sentence), sentence
