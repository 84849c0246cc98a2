"""Why a trial loses: sentences held against ledgers made by hand."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.report.predicted_trial import Ledger, asked, row, trial
from tests.report.sample_run import GIB, MIB, SampleTrial
from zerobench.common.vocabulary import Category, Phase, StepKind
from zerobench.estimate.clock.step import ExpectedStep, expected
from zerobench.records.records import ContextMemory
from zerobench.report.explain.memory_causes import cause
from zerobench.report.explain.remedies import remedy
from zerobench.report.explain.why import name_of
from zerobench.report.explain.why import why_not as why_row_not

H100 = (80 * GIB, 1000 * GIB)
BUCKET = 1_000_000_000  # 5e8 elements of two bytes
PSI = 100_000_000
LIVE = "stage3_max_live_parameters 1e9"


def why_not(
    best: SampleTrial,
    other: SampleTrial,
    capacity: tuple[int, int | None],
    times: Sequence[ExpectedStep | None] = (None, None),
) -> list[str]:
    """The same of rows of these trials, whose steps are expected to take these `times`."""
    rows = [row(sample, *capacity, expected) for sample, expected in zip((best, other), times, strict=True)]
    return why_row_not(*rows)


def at_peak(**sizes: int) -> Ledger:
    return {(StepKind.STEADY, Phase.BACKWARD): {Category(name): size for name, size in sizes.items()}}


def stage_2(**fields: Any) -> SampleTrial:
    """0.1 B parameters on eight ranks, its peak where no bucket is allocated."""
    return trial(asked("zero2", **fields), at_peak(parameters=2 * PSI, activations=GIB), num_params=PSI)


def stage_3(**fields: Any) -> SampleTrial:
    sizes = {"parameters": 2 * PSI // 8, "activations": GIB, "reduce_buffers": BUCKET}
    return trial(asked("zero3", **fields), at_peak(**sizes), num_params=PSI)


def test_a_bucket_that_eats_what_sharding_saves_is_told_with_the_setting_that_undoes_it() -> None:
    bucket = "its reduce bucket of 5e8 elements of 2 bytes (reduce_bucket_size)"
    larger = "its reduce bucket of 5e8 elements makes it larger by more than the 166.89 MiB saved in other "
    larger += "categories"
    smaller = "with reduce_bucket_size 5e7 its tensors at that point would be 71.53 MiB less than those of stage 2"
    sentences = why_not(stage_2(), stage_3(), H100)
    assert sentences == [
        "stage 3 needs 786.78 MiB more device memory than stage 2",
        f"reduce buffers: +953.67 MiB, 953.67 MiB against 0 B at the peak ({bucket})",
        "parameters: -166.89 MiB, 23.84 MiB against 190.73 MiB at the peak (2 bytes x 100 M parameters / 8 ranks)",
        f"{larger}; {smaller}",
    ]


def test_nothing_is_said_of_a_bucket_that_the_ledger_does_not_show() -> None:
    """Half a bucket's bytes are something else, whatever the configuration says."""
    odd = trial(asked("zero3"), at_peak(parameters=2 * PSI, reduce_buffers=BUCKET // 2), num_params=PSI)
    sentences = why_not(trial(asked("zero2"), at_peak(parameters=2 * PSI), num_params=PSI), odd, H100)
    assert sentences[1] == "reduce buffers: +476.84 MiB, 476.84 MiB against 0 B at the peak (reduce_bucket_size 5e8)"
    assert len(sentences) == 2


def test_a_bucket_that_is_small_already_is_not_advised_away() -> None:
    small = {"zero_optimization.reduce_bucket_size": 50_000_000}
    other = trial(
        asked("zero3", ds_config=small), at_peak(parameters=2 * PSI, reduce_buffers=BUCKET // 10), num_params=PSI
    )
    sentences = why_not(trial(asked("zero2"), at_peak(parameters=2 * PSI), num_params=PSI), other, H100)
    assert not any("with reduce_bucket_size" in sentence for sentence in sentences)


def test_two_buckets_are_two_with_overlap_at_stages_1_and_2() -> None:
    sample = trial(asked("zero2", ds_config={"zero_optimization.overlap_comm": True}), num_params=PSI)
    said = cause(sample, Category.REDUCE_BUFFERS, 2 * BUCKET)
    assert said == "its two reduce buckets (overlap_comm) of 5e8 elements of 2 bytes (reduce_bucket_size)"


def test_a_trial_that_does_not_fit_says_by_how_much_and_what_would_have_to_shrink() -> None:
    large = trial(asked("zero2", micro_batch_size=8), at_peak(parameters=2 * GIB, activations=90 * GIB), num_params=GIB)
    sentences = why_not(stage_2(), large, H100)
    assert sentences[0] == (
        "does not fit: needs 92.00 GiB of 80.00 GiB per GPU, 12.00 GiB too much (in steps), most "
        "tensors in backward of a steady step"
    )
    assert sentences[1] == (
        "activations: 90.00 GiB, 98% of the tensors (8 x 1,024 tokens per micro batch, without activation "
        "checkpointing); less with activation_checkpointing: true or a smaller micro_batch_size"
    )
    assert sentences[2] == "it would fit there with activations of 78.00 GiB, all else equal"


def test_adams_states_are_one_part_of_twelve_bytes() -> None:
    sizes = dict.fromkeys(("master_weights", "first_moment", "second_moment"), 40 * GIB)
    large = trial(asked("zero0"), at_peak(**sizes), num_params=10 * GIB)
    assert why_not(stage_2(), large, H100)[1] == (
        "master weights and moments: 120.00 GiB, 100% of the tensors (12 bytes x 10.7 B parameters); less with "
        "stage 1 or higher or offload_optimizer: cpu from stage 1 on"
    )


def test_where_no_part_alone_is_what_is_over_several_are_named() -> None:
    large = trial(asked("zero1"), at_peak(parameters=60 * GIB, gradients=60 * GIB, activations=60 * GIB))
    sentences = why_not(stage_2(), large, H100)
    assert sum(", 33% of the tensors" in sentence for sentence in sentences) == 2
    assert not any(sentence.startswith("all else") for sentence in sentences)


def test_context_and_nccl_count_and_are_told() -> None:
    heavy = trial(
        asked("zero3"),
        at_peak(parameters=2 * PSI, activations=GIB),
        context=ContextMemory(before_bytes=None, context_bytes=512 * MIB, collectives_bytes=256 * MIB),
        num_params=PSI,
    )
    assert why_not(stage_2(), heavy, H100) == [
        "stage 3 needs 768.00 MiB more device memory than stage 2 (+512.00 MiB CUDA context, +256.00 MiB NCCL)"
    ]


@pytest.mark.parametrize(("other_s", "words"), [(1.05, "about as fast"), (2.0, "slower")])
def test_of_two_that_fit_the_expected_times_say_which_is_slower_or_that_none_is(other_s: float, words: str) -> None:
    device = at_peak(parameters=GIB)
    offloaded = asked("zero2", offload_optimizer="cpu", optimizer="cpu_adam")
    ours, theirs = trial(asked("zero2"), device), trial(offloaded, device)
    times = lasting(1.0), lasting(other_s)
    assert why_not(ours, theirs, H100, times)[0].startswith(f"fits, {words}: ")
    assert not any("fits, " in sentence for sentence in why_not(ours, theirs, H100))
    small = (GIB // 2, None)
    assert not any("fits, " in sentence for sentence in why_not(ours, theirs, small, times))


def lasting(step_s: float) -> ExpectedStep:
    return expected((step_s, 0.0, 0.0), 0.05, {})


def test_more_host_memory_is_told_with_what_lies_there() -> None:
    device, small = at_peak(parameters=2 * PSI), at_peak(staging=GIB)
    states = at_peak(staging=GIB, master_weights=PSI * 4 // 8)
    best = trial(asked("zero2"), device, small, num_params=PSI)
    other = trial(asked("zero2", offload_optimizer="cpu", optimizer="cpu_adam"), device, states, num_params=PSI)
    assert why_not(best, other, H100) == [
        "stage 2 with optimizer states on cpu needs 8.37 GiB of host memory per node, stage 2 8.00 GiB",
        "master weights on the host: +47.68 MiB per rank (4 bytes x 100 M parameters / 8 ranks)",
    ]


def test_a_host_that_is_too_small_is_told_for_the_whole_node() -> None:
    host = at_peak(master_weights=100 * GIB)
    sample = trial(asked("zero2", offload_optimizer="cpu", optimizer="cpu_adam"), at_peak(parameters=GIB), host)
    sentences = why_not(stage_2(), sample, (80 * GIB, 700 * GIB))
    assert sentences[0] == ("does not fit: needs 800.00 GiB of 700.00 GiB host memory per node, 100.00 GiB too much")


def test_nothing_speaks_against_an_equal_trial() -> None:
    assert why_not(stage_2(), stage_2(), H100) == []


def test_of_a_trial_that_nobody_watched_nothing_is_known() -> None:
    assert why_not(stage_2(), trial(asked("zero3")), H100) == ["memory need unknown (no memory recorded)"]


@pytest.mark.parametrize(
    ("fields", "category", "nbytes", "expected"),
    [
        ({}, Category.PARAMETERS, 2 * PSI, "2 bytes x 100 M parameters"),
        ({"strategy": "zero3"}, Category.PARAMETERS, 2 * PSI // 8, "2 bytes x 100 M parameters / 8 ranks"),
        ({}, Category.PARAMETERS, 3 * PSI, None),
        ({"precision": "fp32"}, Category.GRADIENTS, 4 * PSI, "4 bytes x 100 M parameters"),
        (
            {"micro_batch_size": 2},
            Category.LOGITS_AND_LOSS,
            8 * 2 * 1024 * 50257,
            "8 bytes x vocabulary of 50,257 x 2 x 1,024 tokens per micro batch",
        ),
        ({}, Category.GATHERED_PARAMETERS, 5, None),
        (
            {"strategy": "zero3"},
            Category.GATHERED_PARAMETERS,
            5,
            f"{LIVE}, stage3_prefetch_bucket_size 5e7, stage3_param_persistence_threshold 100000",
        ),
    ],
)
def test_a_cause_is_a_formula_only_where_the_bytes_are_what_it_gives(
    fields: dict[str, Any], category: Category, nbytes: int, expected: str | None
) -> None:
    assert cause(trial(asked(**fields), num_params=PSI), category, nbytes) == expected


@pytest.mark.parametrize(
    ("fields", "category", "expected"),
    [
        ({"strategy": "zero0"}, Category.MASTER_WEIGHTS, "stage 1 or higher or offload_optimizer: cpu from stage 1 on"),
        ({}, Category.MASTER_WEIGHTS, "offload_optimizer: cpu"),
        ({"offload_optimizer": "cpu", "optimizer": "cpu_adam"}, Category.MASTER_WEIGHTS, None),
        ({"strategy": "zero1"}, Category.GRADIENTS, "stage 2 or higher"),
        ({}, Category.GRADIENTS, None),
        ({}, Category.PARAMETERS, "stage 3 or offload_param: cpu at stage 3"),
        ({"activation_checkpointing": True}, Category.ACTIVATIONS, "a shorter sequence_length"),
        ({}, Category.REDUCE_BUFFERS, "reduce_bucket_size 5e7 (95.37 MiB)"),
        ({}, Category.UNATTRIBUTED, None),
    ],
)
def test_a_remedy_is_one_that_the_trial_has_not_used(
    fields: dict[str, Any], category: Category, expected: str | None
) -> None:
    assert remedy(trial(asked(**fields), num_params=PSI), category, BUCKET) == expected


def test_names_say_the_stage_and_what_is_offloaded() -> None:
    assert name_of(asked("zero3", offload_optimizer="nvme", offload_param="cpu", nvme_path="/n")) == (
        "stage 3 with optimizer states on nvme and parameters on cpu"
    )
    assert name_of(asked("single")) == "single"
