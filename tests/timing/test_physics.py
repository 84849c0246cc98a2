"""What any model of a step's time must keep to, whatever its constants."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest

from tests.report.sample_run import SampleTrial
from tests.timing.predicted_trials import expected, gpu, links, predicted
from zerobench.report.step_time.bound import step_bound
from zerobench.report.step_time.expected import expected_step, why_no_time
from zerobench.spec.presets import resolve_model
from zerobench.timing.step import Expected

GPUS = ("A100 SXM 80GB", "H100 SXM", "H200 SXM", "B200 SXM", "L40S")
STRATEGIES = ("ddp", "zero0", "zero1", "zero2", "zero3", "fsdp")


def tokens_per_s(trial: SampleTrial, **given: Any) -> float:
    return trial.spec.global_batch_tokens / expected(trial, **given).step_s


WIDE = random.Random(17).sample(  # noqa: S311 -- the same points each time
    list(
        product(
            (*GPUS, "A100 SXM 40GB", "H100 PCIe", "RTX 4090"),
            ("gpt2-125m", "llama-1b", "llama-13b", "llama-70b"),
            (512, 4096, 65536),
            (1, 8, 64),
            (1, 4, 128),
            STRATEGIES,
        )
    ),
    60,
)
"""Far beyond the rows: 125M to 70B, 512 to 65,536 tokens, micro batches of 1 to 64, 8 to 1024 GPUs."""


@pytest.mark.parametrize(("name", "model", "length", "batch", "nodes", "strategy"), WIDE)
def test_physics_holds_far_beyond_the_rows(
    name: str, model: str, length: int, batch: int, nodes: int, strategy: str
) -> None:
    at = links(name, network_gb_per_s=25)
    axes = {"model": resolve_model(model), "sequence_length": length, "micro_batch_size": batch, "strategy": strategy}

    def step_s(**changed: Any) -> float:
        return expected(predicted(name, **axes | {"num_nodes": nodes} | changed), name, at).step_s

    trial = predicted(name, **axes, num_nodes=nodes)
    bound, here = step_bound(trial, gpu(name), at), expected(trial, name, at)
    assert bound is not None
    assert bound.compute_s is not None, "a floor: all FLOPs at 100 % of the matrix peak"
    assert here.compute_s > bound.compute_s
    assert here.low_s > (bound.step_s or 0.0)
    assert step_s(num_nodes=2 * nodes) >= here.step_s
    assert step_s(activation_checkpointing=True) > here.step_s
    assert here.step_s < step_s(sequence_length=2 * length)
    assert here.step_s < step_s(micro_batch_size=2 * batch) <= 2 * here.step_s
    fast = at.model_copy(update={"link_gb_per_s": 2 * (at.link_gb_per_s or 0), "network_gb_per_s": 50.0})
    assert expected(trial, name, fast).step_s <= here.step_s


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_more_ranks_never_make_the_passes_shorter(strategy: str) -> None:
    """The update may become so: where states are divided, each rank has fewer of them."""
    times = [expected(predicted(strategy=strategy, num_nodes=nodes)) for nodes in (1, 2, 8, 64)]
    passes = [one.compute_s + one.exposed_communication_s for one in times]
    assert passes == sorted(passes)
    updates = [one.update_s for one in times]
    if strategy in {"ddp", "zero0"}:
        assert updates == sorted(updates)


@pytest.mark.parametrize(("strategy", "times"), [("ddp", 1), ("zero1", 1), ("zero2", 4), ("fsdp", 4)])
def test_gradients_are_reduced_once_a_step_or_in_each_micro_batch(strategy: str, times: int) -> None:
    one, four = (expected(predicted(strategy=strategy, gradient_accumulation_steps=steps)) for steps in (1, 4))
    assert four.exposed_communication_s == pytest.approx(times * one.exposed_communication_s, rel=0.01)


@pytest.mark.parametrize("rate", ["network_gb_per_s", "host_link_gb_per_s"])
def test_a_faster_link_is_never_slower(rate: str) -> None:
    trial = predicted(num_nodes=4, offload_optimizer="cpu", optimizer="cpu_adam")
    times = [expected(trial, at=links("H100 SXM", **{rate: value})).step_s for value in (5.0, 10.0, 50.0, 400.0)]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


def test_a_larger_micro_batch_uses_the_gpu_better() -> None:
    speeds = [tokens_per_s(predicted(micro_batch_size=size)) for size in (1, 2, 4, 8)]
    assert speeds == sorted(speeds)


def test_offload_and_other_chips_make_the_interval_wider_and_are_named() -> None:
    def width(found: Expected) -> float:
        return found.high_s / found.low_s

    here, offloaded = expected(predicted()), expected(predicted(offload_optimizer="cpu", optimizer="cpu_adam"))
    assert width(offloaded) > width(here)
    assert any("CPUAdam" in words for words in offloaded.assumptions)
    there = expected(predicted("L40S"), "L40S")
    assert width(there) > width(here)
    assert any("L40S" in words for words in there.assumptions)


def _tensor(**axes: Any) -> SampleTrial:
    return predicted(strategy="tensor", **axes)


def test_more_ranks_never_raise_the_efficiency_of_cut_matrices() -> None:
    """Of the passes: the update is divided too, and belongs to more tokens. Each rank has less to do within a node."""
    ranks = (1, 2, 4, 8)
    passes = []
    for count in ranks:
        trial = _tensor(gpus_per_node=count)
        found = expected(trial)
        passes.append((found.compute_s + found.exposed_communication_s) / trial.spec.global_batch_tokens)
    assert passes == sorted(passes, reverse=True)
    on_all = [count * seconds for count, seconds in zip(ranks, passes, strict=True)]
    assert on_all == sorted(on_all)


def test_cut_matrices_keep_to_the_bound_their_links_and_checkpointing() -> None:
    for axes in ({}, {"num_nodes": 2}, {"micro_batch_size": 8}, {"sequence_length": 512}):
        trial, at = _tensor(**axes), links()
        found, bound = expected(trial, at=at), step_bound(trial, gpu(), at)
        assert bound is not None
        assert found.low_s > (bound.step_s or 0.0) > 0.0
        fast = at.model_copy(update={"link_gb_per_s": 2 * (at.link_gb_per_s or 0.0), "network_gb_per_s": 100.0})
        assert expected(trial, at=fast).step_s < found.step_s
        assert expected(_tensor(**axes, activation_checkpointing=True)).step_s > found.step_s


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"attention": "eager"}, "eager attention"),
        ({"precision": "fp32"}, "precision fp32"),
        ({"strategy": "fsdp", "compile": "blocks"}, "compile blocks"),
        ({"strategy": "zero1", "ds_config": {"tensor_parallel.autotp_size": 2}}, "autotp_size"),
    ],
)
def test_no_time_is_given_for_work_that_the_model_does_not_know_and_it_says_why(
    axes: dict[str, Any], words: str
) -> None:
    assert expected_step(predicted(**axes), gpu(), links()) is None
    assert words in why_no_time(predicted(**axes), gpu())
