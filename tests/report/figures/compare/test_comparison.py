"""Two runs side by side: which trials are the same, what may be said of memory and of speed, what the gate does."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.report.figures.compare.runs import (
    BASE_S,
    BIG_BUCKET,
    OUT_OF_MEMORY,
    SLOWER_S,
    compared,
    cpu_repeats,
    environment,
    lay_out,
    repeats,
    with_ranks_of,
)
from tests.report.sample_predictions import foretelling
from tests.report.sample_run import SampleTrial, completed_trial, failed_trial, skipped_trial, spec
from tests.tools.known import known
from tests.tools.refusals import one_line
from zerobench.common.vocabulary import Category, Place, StepKind
from zerobench.records.records import MemoryRow
from zerobench.records.store import load_run
from zerobench.report.documents.markdown import document
from zerobench.report.export.compare_document import comparison_document
from zerobench.report.figures.compare.comparison import Comparison, compare
from zerobench.report.figures.compare.environment import hardware_warnings
from zerobench.report.tables.gate import Verdict, headline, judge, parse_limits, refusal, why
from zerobench.report.tables.two_runs import TITLE, answer_part, document_parts
from zerobench.report.tables.two_runs_speed import speed_parts

SMALL = spec("zero1", gpus_per_node=1)


def verdict(comparison: Comparison, limit: str) -> Verdict:
    [found] = judge(comparison, parse_limits(limit))
    return found


def grown_by(trial: SampleTrial, nbytes: int, category: Category = Category.ACTIVATIONS) -> SampleTrial:
    """The same trial with so much more of one category at every peak of the device."""
    rows = [
        row.model_copy(update={"at_peak_bytes": (row.at_peak_bytes or 0) + nbytes})
        if row.place is Place.DEVICE and row.category in {category, Category.TOTAL} and row.step is StepKind.STEADY
        else row
        for row in trial.ranks[0].memory
    ]
    return trial.with_ranks(memory=rows)


def test_trials_are_the_same_by_their_work_and_not_by_their_folder_on_nvme(tmp_path: Path) -> None:
    swapped = {"gpus_per_node": 1, "offload_optimizer": "nvme"}
    comparison = compared(
        tmp_path,
        [completed_trial(spec("zero3", nvme_path="/old", **swapped)), completed_trial(SMALL)],
        [completed_trial(spec("zero3", nvme_path="/new", **swapped)), completed_trial(spec("zero2", gpus_per_node=1))],
    )
    assert [same.label for same in comparison.same] == ["zero3 opt=nvme"]
    assert (comparison.only_base, comparison.only_new) == (["zero1"], ["zero2"])


def test_two_devices_in_one_run_are_two_trials_and_not_repeats(tmp_path: Path) -> None:
    swapped = {"gpus_per_node": 1, "offload_optimizer": "nvme"}
    trials = [completed_trial(spec("zero3", nvme_path=path, **swapped)) for path in ("/a", "/b")]
    comparison = compared(tmp_path, trials, trials)
    assert [len(same.base) for same in comparison.same] == [1, 1]


def test_a_prediction_is_never_held_against_a_measurement(tmp_path: Path) -> None:
    real = completed_trial(SMALL)
    comparison = compared(tmp_path, [real], [foretelling(real, "simulated", 1.0)])
    assert comparison.same == []
    assert len(comparison.only_base) == len(comparison.only_new) == 1


def test_a_difference_of_memory_is_exact_and_its_category_named(tmp_path: Path) -> None:
    asked = spec("zero2", gpus_per_node=2)
    grown = with_ranks_of(asked, completed_trial(spec("zero2", gpus_per_node=2, ds_config=BIG_BUCKET)))
    comparison = compared(tmp_path, [completed_trial(asked)], [grown])
    steady = comparison.same[0].memory[0]
    assert steady.where == ("device", StepKind.STEADY)
    assert steady.more_bytes == 2 * (500_000_000 - 1_000_000)
    assert [(one.category, one.more_bytes) for one in steady.differences] == [
        (Category.REDUCE_BUFFERS, steady.more_bytes)
    ]


def test_growth_is_a_fraction_of_what_was_there_and_in_bytes_where_nothing_was(tmp_path: Path) -> None:
    base = completed_trial(SMALL)
    grown = compared(tmp_path, [base], [grown_by(base, 2**20)]).same[0].memory[0]
    assert grown.growth == grown.fraction == 2**20 / grown.base.instant.total_bytes
    from_nothing = replace(grown, base=replace(grown.base, instant=replace(grown.base.instant, total_bytes=0)))
    assert from_nothing.fraction is None
    assert from_nothing.growth == grown.new.instant.total_bytes


def test_equal_runs_are_equal_to_the_byte_and_pass_a_limit_of_nothing(tmp_path: Path) -> None:
    trials = repeats(SMALL, BASE_S)
    comparison = compared(tmp_path, trials, trials)
    assert all(change.is_equal for change in comparison.same[0].memory)
    assert all(one.passed for one in judge(comparison, parse_limits("memory:0%,speed:0%")))


def test_repeats_that_differ_are_stood_for_by_the_middle_one_and_their_range_is_kept(tmp_path: Path) -> None:
    base = repeats(SMALL, BASE_S[:3])
    new = [grown_by(trial, nbytes) for trial, nbytes in zip(base, (9000, 100, 300), strict=True)]
    change = compared(tmp_path, base, new).same[0].memory[0]
    assert (change.more_bytes, change.new.spread_bytes, change.base.spread_bytes) == (300, 8900, 0)
    assert change.new.middle.spec.repeat == 2
    assert change.is_within_spread


def test_of_two_repeats_the_smaller_one_stands_for_both(tmp_path: Path) -> None:
    base = repeats(SMALL, BASE_S[:2])
    new = [grown_by(trial, nbytes) for trial, nbytes in zip(base, (300, 100), strict=True)]
    assert compared(tmp_path, base, new).same[0].memory[0].more_bytes == 100


def test_cpu_ranks_are_held_to_their_resident_size_too(tmp_path: Path) -> None:
    base = cpu_repeats(SMALL, BASE_S[:1])
    rank = base[0].ranks[0]
    process = [row.model_copy(update={"peak_rss_bytes": 2 * (row.peak_rss_bytes or 0)}) for row in rank.process_memory]
    failures = verdict(compared(tmp_path, base, [base[0].with_ranks(process_memory=process)]), "memory:50%").failures
    assert [line.partition(" peak ")[0] for line in failures] == ["zero1, resident", "zero1, resident start-up"]


def test_host_memory_is_compared_where_states_are_kept_there_and_only_there(tmp_path: Path) -> None:
    trials = [completed_trial(SMALL), completed_trial(spec("zero3", gpus_per_node=1, offload_optimizer="cpu"))]
    comparison = compared(tmp_path, trials, trials)
    places = [{change.where[0] for change in same.memory} for same in comparison.same]
    assert places == [{"device", "reserved", "used"}, {"device", "reserved", "used", "host"}]


@pytest.mark.parametrize(
    ("limit", "passes"), [("memory:1MiB", False), ("memory:2MiB", True), ("memory:0%", False), ("memory:50%", True)]
)
def test_memory_fails_above_its_limit_and_not_at_it(tmp_path: Path, limit: str, passes: bool) -> None:
    base = completed_trial(SMALL)
    comparison = compared(tmp_path, [base], [grown_by(base, 2 * 2**20)])
    found = verdict(comparison, limit)
    assert (found.passed, found.num_judged) == (passes, 1)
    assert passes or "device peak" in found.failures[0]
    assert passes or "mostly activations" in found.failures[0]


def test_growth_is_explained_by_what_grew_though_something_else_shrank_by_more(tmp_path: Path) -> None:
    base = grown_by(completed_trial(SMALL), 3 * 2**20, Category.GRADIENTS)
    new = completed_trial(SMALL)
    for category in (Category.ACTIVATIONS, Category.TEMPORARIES):
        new = grown_by(new, 2 * 2**20, category)
    [failure] = verdict(compared(tmp_path, [base], [new]), "memory:0%").failures
    assert "+1.00 MiB" in failure
    assert failure.endswith("mostly activations")


def test_less_memory_and_faster_steps_pass(tmp_path: Path) -> None:
    base = [grown_by(trial, 2**30) for trial in repeats(SMALL, SLOWER_S)]
    comparison = compared(tmp_path, base, repeats(SMALL, BASE_S))
    assert known(comparison.same[0].speed).verdict == "faster"
    assert all(one.passed for one in judge(comparison, parse_limits("memory:0%,speed:0%")))


@pytest.mark.parametrize(("limit", "passes"), [("speed:5%", False), ("speed:10%", True)])
def test_speed_fails_where_a_significant_slowdown_exceeds_its_limit(tmp_path: Path, limit: str, passes: bool) -> None:
    found = verdict(compared(tmp_path, repeats(SMALL, BASE_S), repeats(SMALL, SLOWER_S)), limit)
    assert (found.passed, found.num_judged) == (passes, 1)


def test_a_slowdown_beyond_the_limit_that_may_be_chance_passes(tmp_path: Path) -> None:
    noisy = repeats(SMALL, (0.20, 0.35, 0.21, 0.34)), repeats(SMALL, (0.36, 0.22, 0.33, 0.23))
    comparison = compared(tmp_path, *noisy)
    assert known(comparison.same[0].speed).verdict == "not shown"
    assert verdict(comparison, "speed:1%").passed


def test_repeats_are_the_values_that_are_tested_and_not_their_steps(tmp_path: Path) -> None:
    speed = known(compared(tmp_path, repeats(SMALL, BASE_S), repeats(SMALL, SLOWER_S)).same[0].speed)
    assert speed.over_processes
    assert speed.base_s == pytest.approx([1.01 * seconds for seconds in BASE_S])  # steps are 1.00, 1.01 and 1.02 of it
    assert speed.change.p_value == pytest.approx(2 / 70)


@pytest.mark.parametrize("sides", [(1, 1), (1, 4), (3, 3)])
def test_a_speed_gate_that_can_never_fire_is_refused(tmp_path: Path, sides: tuple[int, int]) -> None:
    comparison = compared(tmp_path, repeats(SMALL, BASE_S[: sides[0]]), repeats(SMALL, SLOWER_S[: sides[1]]))
    speed = known(comparison.same[0].speed)
    assert speed.verdict == ("too few" if min(sides) > 1 else "steps only")
    assert speed.over_processes == (min(sides) > 1)
    refused = known(refusal(judge(comparison, parse_limits("speed:1%"))))
    assert f"{sides[0]} and {sides[1]} repeats" in refused
    assert "run both with --repeats 4 or more" in refused


def test_trials_that_a_gate_cannot_judge_are_named_beside_those_it_can(tmp_path: Path) -> None:
    other = completed_trial(spec("zero2", gpus_per_node=1))
    comparison = compared(tmp_path, [*repeats(SMALL, BASE_S), other], [*repeats(SMALL, BASE_S), other])
    found = verdict(comparison, "speed:5%")
    assert (found.num_judged, refusal([found])) == (1, None)
    assert [line.partition(",")[0] for line in found.not_judged] == ["zero2"]


def test_void_throughput_is_not_compared(tmp_path: Path) -> None:
    new = [completed_trial(one.spec, step_s=0.4, alloc_retries=2) for one in repeats(SMALL, BASE_S)]
    comparison = compared(tmp_path, repeats(SMALL, BASE_S), new)
    assert known(comparison.same[0].speed).verdict == "void"
    assert verdict(comparison, "speed:5%").not_judged == ["zero1, its throughput is void: 2 allocator retries"]


@pytest.mark.parametrize("limit", ["memory:90%", "speed:90%"])
def test_a_trial_that_stops_completing_fails_every_gate(tmp_path: Path, limit: str) -> None:
    base = repeats(SMALL, BASE_S)
    comparison = compared(tmp_path, base, [*base[:3], failed_trial(base[3].spec, OUT_OF_MEMORY)])
    assert verdict(comparison, limit).failures == [
        "zero1, completed in BASE, 3 completed, 1 out of device memory in NEW"
    ]


def test_a_trial_that_the_new_run_never_ended_fails(tmp_path: Path) -> None:
    trial = completed_trial(SMALL)
    paths = [lay_out(tmp_path, name, [trial]) for name in ("base", "new")]
    (paths[1] / "trials" / SMALL.trial_id / "record.json").unlink()
    found = verdict(compare(*map(load_run, paths)), "memory:2%")
    assert found.failures == ["zero1, completed in BASE, not ended in NEW"]


def test_what_failed_or_was_skipped_before_and_after_fails_no_gate(tmp_path: Path) -> None:
    trials = [failed_trial(SMALL, OUT_OF_MEMORY), skipped_trial(spec("zero2"), "rule"), completed_trial(spec("zero3"))]
    found = verdict(compared(tmp_path, trials, trials), "memory:2%")
    assert (found.passed, found.num_judged, found.not_judged) == (True, 1, [])


def test_losses_that_differ_between_the_runs_are_found(tmp_path: Path) -> None:
    comparison = compared(tmp_path, [completed_trial(SMALL)], [completed_trial(SMALL, loss_error=0.3)])
    assert comparison.same[0].losses_apart == pytest.approx((0.3, 2e-2))
    agreeing = compared(tmp_path / "more", [completed_trial(SMALL)], [completed_trial(SMALL)])
    assert agreeing.same[0].losses_apart is None


def with_norms(norms: list[float | None], **fields: Any) -> SampleTrial:
    return completed_trial(SMALL).with_ranks(grad_norms=norms, **fields)


def test_what_rounding_became_after_training_turned_unstable_is_no_difference(tmp_path: Path) -> None:
    base = with_norms([4.0, 3.0, 20.0, 2.0], losses=[9.0, 8.0, 7.0, 6.0])
    comparison = compared(tmp_path, [base], [with_norms([4.0, 3.0, 9.0, 6.0], losses=[9.0, 8.0, 5.0, 3.0])])
    assert (comparison.same[0].losses_apart, comparison.same[0].norms_apart) == (None, None)
    early = compared(tmp_path / "early", [base], [with_norms([4.0, 6.0, 20.0, 2.0], losses=[9.0, 8.5, 7.0, 6.0])])
    assert early.same[0].losses_apart == pytest.approx((0.5, 2e-2))
    assert early.same[0].norms_apart == pytest.approx((1.0, 0.1))


def test_gradients_of_another_scale_are_found_though_no_loss_differs(tmp_path: Path) -> None:
    """As AdamW hides it: it divides by what the gradients are multiplied with."""
    comparison = compared(tmp_path, [with_norms([1.0, 2.0, None])], [with_norms([2.0, 4.0, 1.0])])
    assert comparison.same[0].losses_apart is None
    assert comparison.same[0].norms_apart == pytest.approx((1.0, 0.1))
    [part] = [part for part in speed_parts(comparison) if "radient" in part.title]
    assert part.title == "Gradient norms that differ between the runs"
    assert list(part.points) == ["zero1: by 1 (tolerance 0.1)"]
    agreeing = compared(tmp_path / "more", [with_norms([1.0, None])], [with_norms([1.01, 7.0])])
    assert agreeing.same[0].norms_apart is None
    older = compared(tmp_path / "older", [with_norms([])], [with_norms([1.0])])
    assert older.same[0].norms_apart is None


def test_what_differs_between_the_environments_is_found_and_hardware_is_a_warning(tmp_path: Path) -> None:
    recorded = environment(deepspeed="0.19.8")
    recorded["gpus"] = [{"name": "NVIDIA H200"}] * 8
    recorded["driver"] = None
    trials = [completed_trial(SMALL)]
    runs = lay_out(tmp_path, "base", trials, environment()), lay_out(tmp_path, "new", trials, recorded)
    facts = compare(*map(load_run, runs)).facts
    assert [(fact.name, fact.base, fact.new) for fact in facts if fact.differs] == [
        ("deepspeed", "0.19.7", "0.19.8"),
        ("driver", "580.65.06", None),
        ("CUDA of driver", "13.0", None),
        ("GPUs", "8 x NVIDIA H100 80GB HBM3", "8 x NVIDIA H200"),
    ]
    assert hardware_warnings(facts) == [
        "different hardware: GPUs: 8 x NVIDIA H100 80GB HBM3 in BASE, 8 x NVIDIA H200 in NEW"
    ]


@pytest.mark.parametrize("recorded", [{}, {"versions": 3, "gpus": "x", "driver": [], "machine": {"cpu": None}}])
def test_an_environment_in_another_form_is_not_recorded_and_no_error(
    tmp_path: Path, recorded: dict[str, object]
) -> None:
    trials = [completed_trial(SMALL)]
    runs = lay_out(tmp_path, "base", trials, recorded), lay_out(tmp_path, "new", trials, recorded)
    assert [fact.name for fact in compare(*map(load_run, runs)).facts if fact.base is not None] == ["devices of ranks"]


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("", "limit missing; for example memory:2%,speed:5% or memory:100MiB"),
        ("memory", "'memory': limit missing"),
        ("memry:2%", "did you mean 'memory'? choices: memory, speed"),
        ("memory:2", "unit missing"),
        ("memory:-2%", "'-2' is not a percentage of 0 or more"),
        ("memory:nan%", "'nan' is not a percentage"),
        ("memory:2 parsecs", "is not a number of bytes"),
        ("memory:100G", "is ambiguous"),
        ("speed:100MiB", "speed takes a percentage"),
        ("speed:x%", "'x' is not a percentage"),
    ],
)
def test_a_limit_that_is_none_is_refused_in_one_line_that_says_what_to_write(written: str, words: str) -> None:
    with one_line(words):
        parse_limits(written)


def test_limits_are_read_as_shares_and_as_sizes() -> None:
    found = [(one.metric, one.fraction, one.nbytes) for one in parse_limits(" memory:2.5% ,memory:100MiB,speed:5%")]
    assert found == [("memory", 0.025, None), ("memory", None, 100 * 2**20), ("speed", 0.05, None)]


def test_predictions_take_no_part_in_a_speed_gate(tmp_path: Path) -> None:
    predicted = foretelling(completed_trial(SMALL), "simulated", 1.0)
    both = compared(tmp_path, [*repeats(SMALL, BASE_S), predicted], [*repeats(SMALL, BASE_S), predicted])
    found = verdict(both, "speed:5%")
    assert (found.num_judged, found.not_judged) == (1, [])
    alone = compared(tmp_path / "alone", [predicted], [predicted])
    assert "no trial timed steps in both runs" in (refusal([verdict(alone, "speed:5%")]) or "")
    assert verdict(alone, "memory:0%").num_judged == 1


@pytest.mark.parametrize("count", [1, 2])
def test_a_memory_gate_without_any_peak_is_refused(tmp_path: Path, count: int) -> None:
    trials = [
        completed_trial(spec(f"zero{stage}", gpus_per_node=1)).with_ranks(memory=[], device_memory=[])
        for stage in range(count)
    ]
    refused = known(refusal(judge(compared(tmp_path, trials, trials), parse_limits("memory:2%"))))
    assert "cannot be checked" in refused


HOST_BYTES = 40 * 2**30


def at_place(trial: SampleTrial, place: Place, nbytes: int) -> SampleTrial:
    """The same trial with `nbytes` in `place`, which it held nothing in before."""
    device = [row for row in trial.ranks[0].memory if row.place is Place.DEVICE]
    kinds = {(row.step, row.phase): row for row in device if row.category is Category.TOTAL}
    rows = [
        row.model_copy(
            update={"place": place, "category": category, "live_bytes": nbytes, "at_peak_bytes": nbytes}
            | {"own_peak_bytes": nbytes}
        )
        for row in kinds.values()
        for category in (Category.PINNED_BUFFERS, Category.TOTAL)
    ]
    return trial.with_ranks(memory=[*trial.ranks[0].memory, *rows])


def without(trial: SampleTrial, place: Place) -> SampleTrial:
    """The same trial with a ledger that has nothing in `place`."""
    return trial.with_ranks(memory=[row for row in trial.ranks[0].memory if row.place is not place])


@pytest.mark.parametrize("place", [Place.HOST, Place.NVME])
@pytest.mark.parametrize(
    ("limit", "passes"), [("memory:2%", False), ("memory:900%", False), ("memory:1GiB", False), ("memory:41GiB", True)]
)
def test_a_place_that_only_new_holds_anything_in_has_grown_from_0(
    tmp_path: Path, place: Place, limit: str, passes: bool
) -> None:
    base = without(completed_trial(SMALL), place)
    found = verdict(compared(tmp_path, [base], [at_place(base, place, HOST_BYTES)]), limit)
    assert (found.passed, found.num_judged) == (passes, 1)
    name = "NVMe" if place is Place.NVME else "host"
    expected = f"zero1, {name} peak 0 B to 40.00 GiB, +40.00 GiB (new), mostly pinned buffers"
    assert found.failures[:1] == ([] if passes else [expected])


def test_a_place_that_only_base_holds_anything_in_has_shrunk_and_passes(tmp_path: Path) -> None:
    new = without(completed_trial(SMALL), Place.NVME)
    comparison = compared(tmp_path, [at_place(new, Place.NVME, HOST_BYTES)], [new])
    assert verdict(comparison, "memory:0%").passed
    shrunk = [change.more_bytes for change in comparison.peaks if change.where[0] == "nvme"]
    assert shrunk == [-HOST_BYTES, -HOST_BYTES]


def test_a_counter_that_base_did_not_read_is_not_0_and_is_named(tmp_path: Path) -> None:
    new = completed_trial(SMALL)
    unread = [row.model_copy(update={"nvml_used_bytes": None}) for row in new.ranks[0].device_memory]
    found = verdict(compared(tmp_path, [new.with_ranks(device_memory=unread)], [new]), "memory:0%")
    assert (found.passed, found.num_judged) == (True, 1)
    assert found.not_judged == [f"zero1, used{when} peak, not measured in BASE" for when in ("", " start-up")]


def test_without_any_ledger_in_base_nothing_has_grown_from_0(tmp_path: Path) -> None:
    new = completed_trial(SMALL)
    found = verdict(compared(tmp_path, [new.with_ranks(memory=[], device_memory=[])], [new]), "memory:0%")
    assert (found.failures, found.num_judged) == ([], 0)


@pytest.mark.parametrize(
    ("limit", "more_bytes", "base_bytes", "is_beyond"),
    [
        ("memory:2%", HOST_BYTES, 0, True),
        ("memory:2%", 1, 0, True),
        ("memory:0%", 0, 0, False),
        ("memory:2%", 2, 100, False),
        ("memory:2%", 3, 100, True),
        ("memory:2%", 2**20, -(2**20), False),
        ("memory:2%", HOST_BYTES, -(2**20), True),
        ("memory:1GiB", HOST_BYTES, 0, True),
        ("memory:1GiB", 2**30, 0, False),
    ],
)
def test_growth_from_nothing_is_beyond_any_percentage(
    limit: str, more_bytes: int, base_bytes: int, is_beyond: bool
) -> None:
    [found] = parse_limits(limit)
    assert found.is_beyond(more_bytes, base_bytes) is is_beyond


def test_the_worst_growth_comes_first_and_growth_from_0_is_the_worst(tmp_path: Path) -> None:
    base = [without(completed_trial(spec(name, gpus_per_node=1)), Place.NVME) for name in ("zero1", "zero2")]
    new = [grown_by(base[0], 2**30), at_place(base[1], Place.NVME, 2**20)]
    failures = verdict(compared(tmp_path, base, new), "memory:0%").failures
    assert [line.partition(" peak ")[0] for line in failures[:2]] == ["zero2, NVMe", "zero2, NVMe start-up"]
    assert failures[-1].startswith("zero1, device")


def test_a_category_that_appears_behind_one_that_shrank_is_named(tmp_path: Path) -> None:
    base, new = (
        grown_by(completed_trial(SMALL), 2**30, part) for part in (Category.LOGITS_AND_LOSS, Category.PINNED_BUFFERS)
    )
    rows = [row for row in base.ranks[0].memory if row.category is not Category.PINNED_BUFFERS]
    kinds = {(row.step, row.phase) for row in rows if row.step is StepKind.STEADY}
    pinned = [
        row.model_copy(update={"category": Category.PINNED_BUFFERS, "at_peak_bytes": 2**30, "live_bytes": 2**30})
        for row in new.ranks[0].memory
        if row.place is Place.DEVICE and row.category is Category.TOTAL and (row.step, row.phase) in kinds
    ]
    comparison = compared(tmp_path, [base], [completed_trial(SMALL).with_ranks(memory=[*_total_of(rows), *pinned])])
    assert "zero1, new at the device peak: pinned buffers, 1.00 GiB" in why(comparison)


def _total_of(rows: Sequence[MemoryRow]) -> list[MemoryRow]:
    """The rows without the logits that `grown_by` added, under the same totals."""
    return [
        row.model_copy(update={"at_peak_bytes": (row.at_peak_bytes or 0) - 2**30})
        if row.category is Category.LOGITS_AND_LOSS and row.place is Place.DEVICE and row.step is StepKind.STEADY
        else row
        for row in rows
    ]


def with_config(path: Path, run: str, trial: SampleTrial, config: dict[str, Any]) -> None:
    """Lay the configuration that was handed to the engine in the trial's folder."""
    (path / run / "trials" / trial.spec.trial_id / "ds_config.json").write_text(json.dumps(config))


def configured(path: Path, base: SampleTrial, new: SampleTrial, *buckets: int) -> Comparison:
    """The comparison of two runs whose trials run under reduce buckets of these sizes."""
    runs = lay_out(path, "base", [base]), lay_out(path, "new", [new])
    for run, trial, bucket in zip(("base", "new"), (base, new), buckets, strict=True):
        zero = {"stage": 2, "reduce_bucket_size": bucket, "nvme_path": f"/swap/{run}"}
        with_config(path, run, trial, {"zero_optimization": zero})
    return compare(*map(load_run, runs))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"ds_config_file": "/a/zero2.json"}, {"ds_config_file": "/b/larger.json"}),
        ({"ds_config_file": "/a/zero2.json"}, {"ds_config_file": "/a/zero2.json"}),
        ({"ds_config_file": "/a/zero2.json"}, {"ds_config_file": "/elsewhere/zero2.json"}),
        ({}, {"ds_config_file": "/a/zero2.json"}),
        ({"ds_config": {"zero_optimization.reduce_bucket_size": 100_000_000}}, {"ds_config": BIG_BUCKET}),
    ],
)
def test_another_configuration_is_the_same_trial_and_the_second_line_of_the_answer(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any]
) -> None:
    base, new = (completed_trial(spec("zero2", gpus_per_node=1, **how)) for how in (before, after))
    comparison = configured(tmp_path, base, new, 100_000_000, 900_000_000)
    assert (len(comparison.same), comparison.only_base, comparison.only_new) == (1, [], [])
    line = "configuration changed: reduce_bucket_size 1e8 -> 9e8"
    assert headline(comparison, [])[1] == line
    verdicts = judge(comparison, parse_limits("memory:2%"))
    assert headline(comparison, verdicts)[1] == line
    assert answer_part(comparison, verdicts).points[1] == line
    assert line.replace("->", r"-\>") in document(TITLE, document_parts(comparison, []), level=2)
    assert comparison_document(comparison, [])["configuration_changed"] == [
        {"key": "zero_optimization.reduce_bucket_size", "base": "1e8", "new": "9e8", "trials": ["zero2"]}
    ]


def test_an_equal_configuration_has_changed_nothing(tmp_path: Path) -> None:
    trial = completed_trial(spec("zero2", gpus_per_node=1, ds_config_file="/a/zero2.json"))
    comparison = configured(tmp_path, trial, trial, 100_000_000, 100_000_000)
    assert comparison.configuration == []
    assert headline(comparison, []) == ["No peak grew"]


def test_secrets_in_a_changed_configuration_stay_out_of_the_answer(tmp_path: Path) -> None:
    trial = completed_trial(spec("zero2", gpus_per_node=1))
    runs = lay_out(tmp_path, "base", [trial]), lay_out(tmp_path, "new", [trial])
    with_config(tmp_path, "base", trial, {"api_key": "hunter2hunter2"})
    with_config(tmp_path, "new", trial, {"api_key": "hunter3hunter3"})
    [change] = compare(*map(load_run, runs)).configuration
    assert change.text == "api_key [REDACTED] -> [REDACTED]"


def files(*paths: str) -> list[SampleTrial]:
    return [completed_trial(spec("zero2", gpus_per_node=1, ds_config_file=path)) for path in paths]


@pytest.mark.parametrize(
    ("base", "new", "matched"),
    [
        (("/a/1.json", "/a/2.json"), ("/a/2.json", "/a/3.json"), 1),
        (("/a/1.json", "/a/2.json"), ("/a/3.json", "/a/4.json"), 0),
        (("/a/1.json", "/a/2.json"), ("/b/2.json", "/b/1.json"), 2),
        (("/a/1.json", "/a/2.json"), ("/a/3.json",), 0),
        (("/a/1.json",), ("/a/3.json",), 1),
    ],
)
def test_trials_under_other_configurations_are_matched_only_where_one_can_be_meant(
    tmp_path: Path, base: tuple[str, ...], new: tuple[str, ...], matched: int
) -> None:
    comparison = compared(tmp_path, files(*base), files(*new))
    assert len(comparison.same) == matched
    assert len(comparison.only_base) == len(base) - matched
    assert len(comparison.only_new) == len(new) - matched
    names = [
        [Path(str(repeats[0].spec.ds_config_file)).name for repeats in (one.base, one.new)] for one in comparison.same
    ]
    assert matched < 2 or all(old == late for old, late in names)


def test_another_strategy_or_batch_is_another_trial_whatever_the_configuration(tmp_path: Path) -> None:
    how = {"gpus_per_node": 1, "ds_config_file": "/a/1.json"}
    base = [completed_trial(spec("zero2", **how)), completed_trial(spec("zero3", micro_batch_size=2, **how))]
    new = [completed_trial(spec("zero1", **how)), completed_trial(spec("zero3", micro_batch_size=4, **how))]
    assert compared(tmp_path, base, new).same == []


def test_the_cause_is_in_the_answer_where_the_engine_took_other_settings_by_itself(tmp_path: Path) -> None:
    asked = spec("zero2", gpus_per_node=2)
    grown = with_ranks_of(asked, completed_trial(spec("zero2", gpus_per_node=2, ds_config=BIG_BUCKET)))
    _, cause, settings = headline(compared(tmp_path, [completed_trial(asked)], [grown]), [])
    bucket = "in NEW its reduce bucket of 5e8 elements of 2 bytes (reduce_bucket_size)"
    assert cause == f"zero2: device start-up: reduce buffers: {bucket}"
    assert settings == "zero2: DeepSpeed reports zero_optimization.reduce_bucket_size 1e6 -> 5e8"


def test_a_slowdown_without_growth_has_its_settings_in_the_answer(tmp_path: Path) -> None:
    new = [
        one.with_ranks(effective_config=one.ranks[0].effective_config | {"wall_clock_breakdown": True})
        for one in repeats(SMALL, SLOWER_S)
    ]
    base = [
        one.with_ranks(effective_config=one.ranks[0].effective_config | {"wall_clock_breakdown": False})
        for one in repeats(SMALL, BASE_S)
    ]
    answer = headline(compared(tmp_path, base, new), [])
    assert answer[-1] == "zero1: DeepSpeed reports wall_clock_breakdown false -> true"


@pytest.mark.parametrize(("times", "words"), [(1.34, "34.0% longer"), (2.61, "2.6 times as long")])
def test_a_slowdown_is_a_share_below_twice_and_a_factor_from_there(tmp_path: Path, times: float, words: str) -> None:
    slow = repeats(SMALL, [times * seconds for seconds in BASE_S])
    answer = headline(compared(tmp_path, repeats(SMALL, BASE_S), slow), [])
    assert f"zero1, a step takes {words}, p = 0.029" in answer
