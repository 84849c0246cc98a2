"""What makes a part of a peak smaller follows from who holds it; what leaves the holder in place is not offered."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.report.figures.compare.runs import lay_out
from tests.report.predicted_trial import asked, row, trial
from tests.report.sample_run import GIB, SampleTrial
from tests.tools.known import known
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.records.instants import largest_peak
from zerobench.records.records import Holder, PeakPart
from zerobench.records.store import load_run
from zerobench.report.explain.find import named_trials
from zerobench.report.explain.memory_causes import cause
from zerobench.report.explain.remedies import remedies, remedy
from zerobench.report.explain.topic import as_data
from zerobench.report.explain.trial import explain
from zerobench.report.explain.why import why_not
from zerobench.report.figures.compare.comparison import compare
from zerobench.report.tables.causes import causes

AUTOGRAD, ENGINE = Holder.AUTOGRAD, Holder.ENGINE
EXPERTS = "held by autograd: saved for backward in layers.*.mlp.experts (Experts)"
LIMITS = "a smaller stage3_max_live_parameters or stage3_prefetch_bucket_size"
OWN_LINEAR = "memory_efficient_linear: true, so that autograd holds no gathered weights"
TORCHS_LINEAR = {"zero_optimization.memory_efficient_linear": False}
GATHERED = 55 * GIB


def part(*holders: Holder, module: str = "Experts", nbytes: int = GATHERED) -> PeakPart:
    return PeakPart(
        total_bytes=nbytes, count=96, site="f.py:wait", module=module, path="layers.*.mlp.experts", holders=[*holders]
    )


def held_trial(parts: Sequence[PeakPart], gathered: int = GATHERED, **fields: Any) -> SampleTrial:
    """A stage-3 trial with gathered parameters at its peak, in these parts."""
    sizes = {Category.PARAMETERS: GIB, Category.GATHERED_PARAMETERS: gathered}
    made = trial(asked("zero3", **fields), {(StepKind.STEADY, Phase.BACKWARD): sizes})
    memory = made.ranks[0].memory
    rows = [
        row.model_copy(update={"largest": [*parts] or None}) if row.category is Category.GATHERED_PARAMETERS else row
        for row in memory
    ]
    return made.with_ranks(memory=rows)


@pytest.mark.parametrize(
    ("holders", "fields", "told"),
    [
        ((AUTOGRAD,), {}, "activation_checkpointing: true"),
        ((AUTOGRAD,), {"activation_checkpointing": True}, None),
        ((AUTOGRAD,), {"ds_config": TORCHS_LINEAR}, "activation_checkpointing: true"),
        ((ENGINE,), {}, LIMITS),
        ((ENGINE,), {"activation_checkpointing": True}, LIMITS),
        ((AUTOGRAD, ENGINE), {}, f"activation_checkpointing: true together with {LIMITS}"),
        ((AUTOGRAD, ENGINE), {"activation_checkpointing": True}, None),
    ],
)
def test_gathered_parameters_are_freed_by_what_makes_each_of_their_holders_let_go(
    holders: tuple[Holder, ...], fields: dict[str, Any], told: str | None
) -> None:
    found = trial(asked("zero3", **fields))
    assert remedy(found, Category.GATHERED_PARAMETERS, GATHERED, part(*holders)) == told


def test_a_linear_layer_that_saves_its_weight_is_replaced_by_deepspeeds() -> None:
    found = trial(asked("zero3", ds_config=TORCHS_LINEAR))
    told = remedy(found, Category.GATHERED_PARAMETERS, GATHERED, part(AUTOGRAD, module="Linear"))
    assert told == f"{OWN_LINEAR} or activation_checkpointing: true"


def test_what_the_loop_holds_beside_autograd_is_made_smaller_by_what_acts_on_both() -> None:
    found = trial(asked("zero2", micro_batch_size=4))
    both = part(AUTOGRAD, Holder.LOOP)
    assert remedy(found, Category.LOGITS_AND_LOSS, GIB, both) == "a smaller micro_batch_size"


def test_a_holder_of_which_nothing_is_known_to_let_go_leaves_no_advice() -> None:
    assert remedies(trial(asked("zero3")), Category.GATHERED_PARAMETERS, GIB, part(Holder.LIBRARY)) == []
    assert remedies(trial(asked("zero3")), Category.WORKSPACES, GIB, part(Holder.LIBRARY)) == []


def test_a_record_without_holders_is_advised_as_by_the_usual_ones() -> None:
    assert remedy(trial(asked("zero3")), Category.GATHERED_PARAMETERS, GIB) == LIMITS
    assert known(remedy(trial(asked("zero3", ds_config=TORCHS_LINEAR)), Category.GATHERED_PARAMETERS, GIB)).startswith(
        OWN_LINEAR
    )


def test_a_remedy_applied_is_the_trial_with_that_setting() -> None:
    found = trial(asked("zero3", micro_batch_size=4))
    [both] = remedies(found, Category.GATHERED_PARAMETERS, GATHERED, part(AUTOGRAD, ENGINE))
    changed = both.applied(found.spec)
    assert changed.activation_checkpointing
    assert changed.ds_config["zero_optimization.stage3_max_live_parameters"] == 0
    [checkpoint, batch] = remedies(found, Category.ACTIVATIONS, GIB)
    assert batch.applied(found.spec).micro_batch_size == 2
    assert checkpoint.setting == "activation_checkpointing: true"


def test_a_cause_is_the_holder_of_the_largest_part_and_no_list_of_keys() -> None:
    found = held_trial([part(AUTOGRAD)])
    seen = known(largest_peak(found, StepKind.STEADY, Place.DEVICE))
    told = cause(found, Category.GATHERED_PARAMETERS, GATHERED, part=seen.largest_part(Category.GATHERED_PARAMETERS))
    assert told == f"55.00 GiB in 96 tensors {EXPERTS}"


def test_why_a_trial_does_not_fit_names_the_holder_and_what_lets_go() -> None:
    best = trial(asked("zero2"), {(StepKind.STEADY, Phase.BACKWARD): {Category.PARAMETERS: GIB}})
    rows = [row(made, 20 * GIB) for made in (best, held_trial([part(AUTOGRAD)]))]
    said = why_not(*rows)
    assert (
        f"gathered parameters: 55.00 GiB, 98% of the tensors (55.00 GiB in 96 tensors {EXPERTS}); less with "
        "activation_checkpointing: true"
    ) in said
    assert not any("stage3_max_live_parameters" in sentence for sentence in said)


def told(tmp_path: Path, *parts: PeakPart) -> dict[str, Any]:
    run = load_run(lay_out(tmp_path, "run", [held_trial(parts)]))
    [only] = named_trials(run)
    return as_data(explain(run, only.trial.trial_id))


def test_an_explanation_says_who_holds_a_part_and_what_lets_go(tmp_path: Path) -> None:
    found = told(tmp_path, part(AUTOGRAD))
    assert found["settings"][0] == f"To shrink gathered parameters, {EXPERTS}: activation_checkpointing: true."
    assert not any("stage3_max_live_parameters" in sentence for sentence in found["settings"])
    [gathered] = [one for one in found["categories"] if one["category"] == "gathered_parameters"]
    assert [one["holders"] for one in gathered["parts"]] == [["autograd"]]
    [memory] = [passage["sentences"] for passage in found["passages"] if "memory at the peak" in passage["title"]]
    assert f"55.00 GiB in 96 tensors {EXPERTS}" in memory


def test_parts_with_other_holders_have_settings_of_their_own(tmp_path: Path) -> None:
    found = told(tmp_path, part(ENGINE, nbytes=30 * GIB), part(AUTOGRAD, nbytes=24 * GIB), part(ENGINE, nbytes=GIB))
    assert found["settings"][:2] == [
        f"To shrink gathered parameters: {LIMITS}.",
        f"To shrink gathered parameters, {EXPERTS}: activation_checkpointing: true.",
    ]


def test_a_comparison_says_who_holds_what_became_more(tmp_path: Path) -> None:
    small = part(AUTOGRAD, nbytes=GIB)
    runs = [("base", held_trial([small], GIB)), ("new", held_trial([part(AUTOGRAD)]))]
    base, new = (load_run(lay_out(tmp_path, name, [made])) for name, made in runs)
    comparison = compare(base, new)
    [sentence] = causes(comparison, comparison.peaks)
    assert sentence.endswith(f"device: gathered parameters: in NEW 55.00 GiB in 96 tensors {EXPERTS}")


def test_a_pair_with_gathered_experts_blames_their_holder_and_no_limit(tmp_path: Path) -> None:
    whole = trial(asked("zero2"), {(StepKind.STEADY, Phase.BACKWARD): {Category.PARAMETERS: 10 * GIB}})
    run = load_run(lay_out(tmp_path, "run", [whole, held_trial([part(AUTOGRAD)])]))
    found = as_data(explain(run, "zero2", (run, "zero3")))
    [answer] = [passage["sentences"] for passage in found["passages"] if passage["title"] == "Answer"]
    assert answer[1].startswith("zero3 partitions the parameters, 9.00 GiB less, and holds 55.00 GiB gathered")
    assert answer[1].endswith(f"at its peak: 55.00 GiB in 96 tensors {EXPERTS}.")


def test_a_record_with_parts_is_explained_by_them_and_by_no_closed_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a closed form was asked")

    monkeypatch.setattr("zerobench.report.explain.category.explained", refuse)
    monkeypatch.setattr("zerobench.report.explain.category.closed_form_params", refuse)
    found = told(tmp_path, part(ENGINE, nbytes=30 * GIB), part(AUTOGRAD, nbytes=24 * GIB))
    by_category = {one["category"]: one for one in found["categories"]}
    gathered = by_category["gathered_parameters"]
    assert (gathered["terms"], gathered["not_explained_bytes"]) == ([], GIB)
    assert [one["total_bytes"] for one in gathered["parts"]] == [30 * GIB, 24 * GIB]
    [memory] = [passage["sentences"] for passage in found["passages"] if "memory at the peak" in passage["title"]]
    assert "1.00 GiB in smaller parts" in memory
