"""The lower bound of a step, by numbers worked out by hand."""

import dataclasses
from typing import Any

import pytest

from tests.report.predicted_trial import Ledger, asked, collective, trial
from tests.report.sample_run import SampleTrial, failed_trial
from zerobench.common.vocabulary import Category, Phase, StepKind
from zerobench.config.hardware.hardware import Gpu
from zerobench.config.hardware.links import Links
from zerobench.estimate.time.bound import StepBound, step_bound
from zerobench.estimate.time.terms import Work
from zerobench.estimate.time.transfers import Recast, copies, fsdp_copies, offloaded_share, recast
from zerobench.records.records import Failure, NvmeTraffic
from zerobench.records.trials import case_of

GB = 10**9
GPU = Gpu(name="X", peak_tflops={"bf16": 1000}, memory_gb_per_s=1000, source="made up")
LINKS = Links(link_gb_per_s=100, network_gb_per_s=10, host_link_gb_per_s=50)
FLOPS = {Phase.FORWARD: 10**15, Phase.BACKWARD: 2 * 10**15}  # 3 s
NUM_PARAMS = 8 * GB  # 2 GB in 16 bits for each of eight ranks


def bound(sample: SampleTrial, links: Links = LINKS, gpu: Gpu = GPU) -> StepBound:
    found = step_bound(sample, gpu, links)
    assert found is not None
    return found


def eager(strategy: str = "zero2", **fields: Any) -> Any:
    return asked(strategy, attention="eager", **fields)


def work(spec: Any) -> Work:
    gathers = [collective("all_gather", phase, nbytes) for phase, nbytes in zip(FLOPS, (32 * GB, 16 * GB), strict=True)]
    sample = trial(spec, collectives=gathers, num_params=NUM_PARAMS)
    links = LINKS.model_copy(update={"host_memory_gb_per_s": 192})
    return Work(sample.ranks[0], spec, GPU, links, case_of(sample))


def states(nbytes: int) -> Ledger:
    """Adam's states of a partition after the step, its gradients after backward."""
    kinds = (Category.MASTER_WEIGHTS, Category.FIRST_MOMENT, Category.SECOND_MOMENT)
    return {
        (StepKind.STEADY, Phase.BACKWARD): {Category.GRADIENTS: nbytes // 6, **dict.fromkeys(kinds, nbytes // 3)},
        (StepKind.STEADY, Phase.STEP): dict.fromkeys(kinds, nbytes // 3),
    }


def test_compute_is_counted_flops_over_the_peak() -> None:
    one = bound(trial(eager(gpus_per_node=1), flops=FLOPS))
    assert one.compute_s == one.step_s == 3.0
    assert bound(trial(eager(gpus_per_node=1), flops={Phase.STEP: 10**15})).step_s == 1.0
    assert one.limited_by == "compute"
    assert one.tokens_per_s == pytest.approx(1024 / 3)
    assert one.communication_s == 0


def test_by_formula_the_flops_of_both_passes_count_and_are_said_to_be_by_formula() -> None:
    one = bound(trial(eager(gpus_per_node=1, evidence="formula"), flops=FLOPS))
    assert one.compute_s == 3.0
    assert one.terms[0].startswith("compute: 3,000 TFLOP by formula at 1000 TFLOP/s")
    assert bound(trial(eager(gpus_per_node=1, evidence="formula"))).step_s is None


def test_what_the_causal_mask_hides_is_taken_off_for_fused_attention() -> None:
    """GPT-2 with 24 layers, 16 heads of 64 and 1,024 tokens: 14 products, of which 1,023 pairs in 2,048 are hidden."""
    one = bound(trial(asked(gpus_per_node=1), flops=FLOPS))
    hidden = 14 * 24 * 16 * 64 * 1024**2 * (1 - 1025 / 2048)
    assert one.compute_s == pytest.approx((3e15 - hidden) / 1e15, rel=1e-12)
    again = bound(trial(asked(gpus_per_node=1, activation_checkpointing=True), flops=FLOPS))
    assert again.compute_s == pytest.approx((3e15 - hidden * 18 / 14) / 1e15, rel=1e-12)


def test_the_mask_never_hides_more_than_was_counted() -> None:
    one = bound(trial(asked(gpus_per_node=1), flops={Phase.FORWARD: 1000}))
    assert one.compute_s == pytest.approx(1000 * 1025 / 2048 / 1e15)


def test_collectives_of_the_passes_hide_behind_compute_and_the_last_gather_does_not() -> None:
    """Messages of 80 GB: 70 GB over 100 GB/s within the passes; 7 GB after the update."""
    traffic = [collective("reduce_scatter", Phase.BACKWARD, 80 * GB), collective("all_gather", Phase.STEP, 8 * GB)]
    one = bound(trial(eager(), flops=FLOPS, collectives=traffic))
    assert one.communication_s == pytest.approx(0.77)
    assert one.step_s == pytest.approx(3.0 + 0.07)
    assert one.limited_by == "compute"
    updated = bound(trial(eager(), flops=FLOPS | {Phase.STEP: 5 * 10**14}, collectives=traffic))
    assert updated.compute_s == 3.5
    assert updated.step_s == pytest.approx(3.5 + 0.07, rel=1e-14)
    slow = bound(trial(eager(), flops=FLOPS, collectives=traffic), LINKS.model_copy(update={"link_gb_per_s": 10}))
    assert slow.step_s == pytest.approx(7.7)
    assert slow.limited_by == "communication"


def test_the_update_reads_and_writes_the_states_reads_gradients_and_writes_parameters() -> None:
    """12 GB of states are 2 x 12 GB, 2 GB of gradients once, 2 GB of new parameters once: 28 GB over 1,000 GB/s."""
    one = bound(trial(eager(gpus_per_node=1), states(12 * GB), flops=FLOPS))
    assert one.optimizer_s == pytest.approx(0.028)
    assert one.step_s == pytest.approx(3.028)


def test_offloaded_states_leave_the_optimizer_out_until_the_hosts_bandwidth_is_given() -> None:
    spec = eager(offload_optimizer="cpu", optimizer="cpu_adam")
    sample = trial(spec, host=states(12 * GB), flops=FLOPS, collectives=[collective("all_gather", Phase.STEP, 8)])
    one = bound(sample)
    assert one.optimizer_s is None
    assert "optimizer: left out, host memory bandwidth not given" in one.terms
    given = bound(sample, LINKS.model_copy(update={"host_memory_gb_per_s": 192}))
    assert given.optimizer_s == pytest.approx(8 * 24 / 192)


def test_gradients_go_down_in_the_passes_and_parameters_up_at_the_update() -> None:
    """ZeRO-Offload: 2P/N each way; 2 GB over 50 GB/s, once hidden behind compute and once not."""
    spec = eager(offload_optimizer="cpu", optimizer="cpu_adam")
    gather = [collective("all_gather", Phase.STEP, 0)]
    one = bound(trial(spec, flops=FLOPS, collectives=gather, num_params=NUM_PARAMS))
    assert one.offload_s == pytest.approx(0.08)
    assert one.step_s == pytest.approx(3.04)


def test_offloaded_parameters_come_up_for_every_gather() -> None:
    """Three gathers of the whole model are three times 2 GB a rank up, beside 2 GB of gradients down."""
    spec = eager("zero3", offload_optimizer="cpu", offload_param="cpu", optimizer="cpu_adam")
    gathers = [collective("all_gather", phase, 16 * GB) for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD)]
    one = bound(trial(spec, flops=FLOPS, collectives=gathers, num_params=NUM_PARAMS))
    assert one.offload_s == pytest.approx(6 / 50)


def test_nvme_counts_the_larger_of_reads_and_writes_of_the_whole_node() -> None:
    spec = eager("zero3", offload_optimizer="nvme", nvme_path="/nvme", optimizer="cpu_adam")
    moved = NvmeTraffic(step=StepKind.STEADY, phase=Phase.STEP, read_bytes=7 * GB, written_bytes=5 * GB, seconds=1.0)
    sample = trial(spec, flops=FLOPS, nvme=[moved], collectives=[collective("all_gather", Phase.FORWARD, 8)])
    assert bound(sample).nvme_s is None
    one = bound(sample, LINKS.model_copy(update={"nvme_gb_per_s": 7}))
    assert one.nvme_s == pytest.approx(8.0)
    assert one.step_s == pytest.approx(11.0)
    assert one.limited_by == "nvme"


def test_an_update_that_may_overlap_with_the_passes_adds_nothing_to_them() -> None:
    for strategy, key, value in (
        ("zero2", "zenflow", {"overlap_step": True}),
        ("zero3", "offload_optimizer.super_offload", True),
    ):
        settings = {f"zero_optimization.{key}": value}
        spec = eager(strategy, offload_optimizer="cpu", optimizer="cpu_adam", ds_config=settings)
        gather = [collective("all_gather", Phase.STEP, 8 * GB)]
        one = bound(trial(spec, flops=FLOPS, collectives=gather, num_params=NUM_PARAMS))
        assert one.step_s == pytest.approx(3.0)


STATES = {"offload_optimizer": "cpu", "gradient_accumulation_steps": 2}
PARAMETERS = {"offload_param": "cpu", "gradient_accumulation_steps": 2}


@pytest.mark.parametrize(
    ("strategy", "fields", "up_gb", "down_gb"),
    [
        ("fsdp", STATES | PARAMETERS, (0, 0), []),
        ("zero1", STATES, (0, 0), [0, 4]),
        ("zero2", STATES, (0, 0), [2, 4 + 4]),
        ("zero2", STATES | {"gradient_accumulation_steps": 1}, (0, 0), [4]),
        ("zero3", STATES | PARAMETERS, (4, 2), [4, 4 + 4]),
        ("zero3", PARAMETERS, (4, 2), [0, 0]),
    ],
)
def test_2_gb_of_gradients_go_down_by_micro_batch_and_a_part_of_what_is_gathered_comes_up(
    strategy: str, fields: dict[str, Any], up_gb: tuple[int, int], down_gb: list[int]
) -> None:
    up_s, down_s = copies(work(eager(strategy, **fields)))
    assert up_s == pytest.approx([each / 50 for each in up_gb])
    assert down_s == pytest.approx([each / 50 for each in down_gb])


def test_of_states_that_are_left_on_the_device_in_part_the_share_elsewhere_is_moved() -> None:
    sample = trial(eager("zero3", **STATES), states(3 * GB), states(9 * GB))
    assert offloaded_share(Work(sample.ranks[0], sample.spec, GPU, LINKS, None)) == 0.75


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (STATES, Recast(up=0.75 * GB)),
        (STATES | PARAMETERS, Recast(down=0.25 * GB)),
        (PARAMETERS, Recast(down=GB)),
        (STATES | {"precision": "fp32"}, Recast()),
    ],
)
def test_new_weights_are_cast_of_the_states_that_do_not_lie_beside_them(
    asked: dict[str, Any], expected: Recast
) -> None:
    sample = trial(eager("zero3", **asked), states(3 * GB), states(9 * GB), num_params=NUM_PARAMS)
    assert recast(Work(sample.ranks[0], sample.spec, GPU, LINKS, None)) == expected


@pytest.mark.parametrize(("ranks", "gb"), [(8, (4, 2, 4, 3 * 8 * 4 / 192 * 50)), (1, (32, 32, 32, 3 * 32 / 192 * 50))])
def test_fsdp_copies_in_fp32_what_is_gathered_and_all_gradients(ranks: int, gb: tuple[float, ...]) -> None:
    found = fsdp_copies(work(eager("fsdp", gpus_per_node=ranks, **STATES, offload_param="cpu")))
    assert found == pytest.approx([each / 50 for each in gb], rel=1e-12)


def test_a_missing_figure_is_none_and_never_nothing() -> None:
    one = bound(trial(eager()), gpu=Gpu(name="Y", source="made up"), links=Links())
    assert (one.step_s, one.compute_s, one.communication_s, one.optimizer_s) == (None, None, None, None)
    assert (one.limited_by, one.tokens_per_s) == (None, None)
    no_peak = bound(trial(eager(precision="fp32"), flops=FLOPS))
    assert no_peak.compute_s is None
    assert any("no fp32 peak for X" in term for term in no_peak.terms)
    assert step_bound(failed_trial(eager(), Failure(message="it stopped")), GPU, LINKS) is None


def test_the_slowest_rank_decides() -> None:
    fast = trial(eager("ddp", gpus_per_node=1), flops=FLOPS)
    slow = trial(eager("ddp", gpus_per_node=1), flops={Phase.FORWARD: 9 * 10**15})
    both = dataclasses.replace(fast, ranks=[*fast.ranks, *slow.ranks])
    assert bound(both).step_s == 9.0


def test_every_term_says_how_it_comes_about() -> None:
    one = bound(trial(eager(), flops=FLOPS, collectives=[collective("all_gather", Phase.STEP, 8 * GB)]))
    assert one.terms[0] == "compute: 3,000 TFLOP counted at 1000 TFLOP/s (bf16, dense): 3.00 s"
    assert one.terms[1] == (
        "communication: all_gather of 7.45 GiB among 8 ranks over 100 GB/s each way between GPUs: 70.0 ms"
    )
