"""A plan's tables and what it recommends, on runs written by hand; whole tables are compared with what was looked at.

Set UPDATE_GOLDEN=1 to write the files anew, then read the difference.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from tests.report.documents.run import cluster, formula_trials, plan_trials, predicted_trial
from tests.report.predicted_trial import with_memory
from tests.report.sample_run import GIB, SampleTrial, refused_trial, spec, write_run
from tests.tools.golden import as_looked_at
from tests.tools.known import known
from tests.tools.printed import printed, without_trailing_blanks
from zerobench.common.vocabulary import Category, Place, Status
from zerobench.config.derived.cluster import Cluster
from zerobench.config.derived.training import Training
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.optimizers import Optimizer
from zerobench.config.trial.trial import Evidence
from zerobench.estimate.clock.step import expected
from zerobench.report.documents.terminal import print_parts
from zerobench.report.documents.view import plan_view
from zerobench.report.explain.choice import decide
from zerobench.report.explain.decided import decided
from zerobench.report.figures.make import trial_figures
from zerobench.report.figures.software import FORMULAS_OF
from zerobench.report.figures.training_cost import takes
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.plan_answer import answer, shortened
from zerobench.report.tables.plan_time import traffic
from zerobench.report.words.labels import labels

GOLDEN = Path(__file__).parent / "golden"


NOT_TRIED = "Not tried: activation checkpointing (less memory, slower)."


def shown(
    path: Path, trials: Sequence[SampleTrial], place: Cluster, width: int = 140, tokens: float | None = None
) -> tuple[str, TrialFigures | None]:
    """What `plan_view` shows of a run of these trials, and the row that it recommends."""
    write_run(path / "run", trials, samples=False)
    view = plan_view(path / "run", place, None if tokens is None else Training(tokens))
    parts = [*view.details]
    if view.answer is not None and view.table is not None:
        parts += [view.answer.with_next([], []), view.table]
    return without_trailing_blanks(printed(partial(print_parts, parts), width)), view.best


def taken(rows: Sequence[TrialFigures]) -> TrialFigures | None:
    """The row that is recommended."""
    choice = decide(rows)
    return None if choice is None else choice.best


def row(trial: SampleTrial, place: Cluster) -> TrialFigures:
    """A trial as a row of a plan."""
    return trial_figures(trial, trial.spec.strategy, place)


@pytest.mark.parametrize("width", [80, 140])
def test_the_tables_are_those_that_were_looked_at(tmp_path: Path, width: int) -> None:
    place = cluster(nvme="7GB/s")
    text, _ = shown(tmp_path, plan_trials(place), place, width, tokens=300e9)
    as_looked_at(text, GOLDEN / f"plan_{width}.txt")


def test_names_leave_the_optimizer_out_where_it_follows_from_the_offload_and_nowhere_else(tmp_path: Path) -> None:
    place = cluster()
    usual = [trial.spec for trial in plan_trials(place)]
    assert {spec.optimizer for spec in usual} == {Optimizer.FUSED_ADAMW, Optimizer.CPU_ADAM}
    assert not any("adam" in name for name in labels(usual))
    asked = [spec("zero2", optimizer="fused_adamw"), spec("zero3", optimizer="sgd")]
    assert labels(asked) == ["zero2 fused_adamw", "zero3 sgd"]
    offloaded = [
        spec(stage, offload_optimizer="cpu", optimizer=own)
        for stage, own in (("zero2", "cpu_adam"), ("zero3", "adamw"))
    ]
    assert labels(offloaded) == ["zero2 cpu_adam", "zero3 adamw"]


def test_the_header_says_of_which_form_adamw_is_and_of_another_optimizer_its_own_name(tmp_path: Path) -> None:
    text, _ = shown(tmp_path / "usual", plan_trials(cluster()), cluster())
    assert "cpu_adam where optimizer states are offloaded, else fused_adamw" in " ".join(text.split())
    text, _ = shown(tmp_path / "sgd", [predicted_trial(spec("zero2", evidence="formula", optimizer="sgd"))], cluster())
    assert ", sgd, " in text
    assert "adam" not in text


def test_a_plan_by_formula_says_so_and_shows_the_slack_that_is_in_its_total(tmp_path: Path) -> None:
    asked = spec("zero2", evidence="formula", prediction={"gpu": "H200 SXM"})
    text, best = shown(tmp_path, [predicted_trial(asked)], cluster())
    assert "1 configuration predicted by formula" in text
    assert "simulat" not in text
    assert "by formula, as DeepSpeed and torch move them" in text
    table = text.partition("Predicted (formula): what must fit")[2].partition("\n\n")[0].splitlines()
    header, cells = re.split(r"  +", table[-3].strip()), re.split(r"  +", table[-1].strip())
    parts = [float(cells[header.index(name)]) for name in ("tensors", "allocator slack", "context + NCCL")]
    assert parts[1] > 0
    assert sum(parts) == pytest.approx(float(cells[header.index("total")]), abs=0.02)
    assert best is not None


@pytest.mark.parametrize("width", [80, 100, 120, 140])
@pytest.mark.parametrize("tokens", [None, 15e12])
def test_no_line_is_wider_than_the_terminal_and_no_number_is_cut(
    tmp_path: Path, width: int, tokens: float | None
) -> None:
    place = cluster(gpus="1024", nvme="7GB/s")
    text, _ = shown(tmp_path, plan_trials(place), place, width, tokens)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert "…" not in text


def test_the_parts_of_the_device_add_up_to_the_total() -> None:
    one = row(plan_trials(cluster())[0], cluster())
    assert one.steady is not None
    reserved = max(r.peak_reserved_bytes for r in one.trial.ranks[0].device_memory)
    context = known(one.trial.ranks[0].context)
    assert known(one.need).total_bytes == reserved + (context.context_bytes or 0) + (context.collectives_bytes or 0)


def test_the_host_holds_all_ranks_of_a_node_and_not_the_simulating_process() -> None:
    asked = spec("zero3", offload_optimizer="cpu", optimizer="cpu_adam", evidence="simulated")
    trial = predicted_trial(asked)
    held = {r.category: r.at_peak_bytes or 0 for r in trial.ranks[0].memory if r.place is Place.HOST}
    tensors = held[Category.TOTAL] - held[Category.REST_OF_PROCESS]
    assert row(trial, cluster()).host.needed_bytes == 8 * tensors


def test_the_recommended_row_is_at_the_lowest_stage_that_fits_and_offloads_nothing(tmp_path: Path) -> None:
    """Seven billion parameters on 64 H100: stage 1 leaves three quarters free, and no bound speaks for stage 3."""
    place = cluster(gpu="h100", gpus="64")
    trials = plan_trials(place, model=resolve_model("llama-7b"))
    text, best = shown(tmp_path, trials, place)
    assert best is not None
    assert (best.spec.strategy, best.offloads()) == ("zero1", False)
    by_stage = {t.spec.zero_stage: row(t, place) for t in trials if t.ranks and not row(t, place).offloads()}
    assert not by_stage[0].has_room
    assert (by_stage[3].least_step_s or 0) < (best.least_step_s or 0)
    assert f": choose {best.label}\n" in text
    assert "least offload, lowest stage" in " ".join(text.split())


def test_without_host_memory_offloads_are_not_judged(tmp_path: Path) -> None:
    place = replace(cluster(), host_memory_bytes=None)
    rows = [row(trial, place) for trial in plan_trials(place) if trial.ranks]
    assert {one.fit.verdict for one in rows if one.offloads()} == {"not checked"}
    assert {one.fit.verdict for one in rows if not one.offloads()} == {"yes"}
    small = replace(place, gpu=cluster(gpu="t4").gpu)
    larger = [row(trial, small) for trial in plan_trials(small, micro_batch_size=64) if trial.ranks]
    assert {one.fit.verdict for one in larger if one.offloads()} == {"no: device"}
    offloaded = [trial for trial in plan_trials(place) if trial.ranks and row(trial, place).offloads()]
    text, best = shown(tmp_path, offloaded, place)
    assert best is not None
    assert "give --host-memory to check it" in " ".join(text.split())


def test_a_row_without_room_is_not_recommended() -> None:
    place = cluster()
    rows = [row(trial, place) for trial in plan_trials(place) if trial.ranks]
    full = [with_memory(one, one.device.needed_bytes or 0) for one in rows]
    assert full[0].fits
    assert not full[0].has_room
    assert taken(full) is None
    assert taken([*full, rows[-1]]) is rows[-1]


def timed(one: TrialFigures, step_s: float, spread: float = 0.08) -> TrialFigures:
    return replace(one, expected=expected((step_s, 0.0, 0.0), spread, {}))


def test_the_fastest_is_taken_and_of_those_about_as_fast_the_simplest() -> None:
    place = cluster()
    rows = [row(trial, place) for trial in plan_trials(place) if trial.ranks]
    stage_3 = next(one for one in rows if one.spec.zero_stage == 3 and not one.offloads())
    alone = [timed(one, 0.5 if one is stage_3 else 1.0) for one in rows]
    assert taken(alone) is alone[rows.index(stage_3)]
    tied = [timed(one, 0.995 if one is stage_3 else 1.0) for one in rows]
    simplest = taken([replace(one, expected=None) for one in rows])
    found = known(taken(tied))
    assert simplest is not None
    assert found.label == simplest.label


def test_what_is_offloaded_to_a_host_of_unknown_memory_is_counted_as_not_checked() -> None:
    unknown = replace(cluster(), host_memory_bytes=None)
    rows = [row(trial, unknown) for trial in plan_trials(unknown) if trial.ranks]
    found = known(decide(rows))
    specs = [one.spec for one in rows if one.has_room]
    assert found.num_unchecked == sum("cpu" in (spec.offload_optimizer, spec.offload_param) for spec in specs) > 0
    checked = known(decide([row(trial, cluster()) for trial in plan_trials(cluster()) if trial.ranks]))
    assert checked.num_unchecked == 0


def test_one_of_unknown_time_is_not_taken_and_where_none_is_known_memory_decides_alone() -> None:
    place = cluster()
    rows = [row(trial, place) for trial in plan_trials(place) if trial.ranks]
    offloaded = [timed(one, 0.1) if one.offloads() else replace(one, expected=None) for one in rows]
    best = known(taken(offloaded))
    assert best.offloads()
    found = known(decide([replace(one, expected=None) for one in rows]))
    assert (found.is_timed, found.best.offloads()) == (False, False)
    assert "step times unknown" in found.reason


def test_the_answer_is_on_a_screen_of_24_lines_with_the_choice_memory_speed_and_why(tmp_path: Path) -> None:
    place = cluster()
    write_run(tmp_path / "run", plan_trials(place), samples=False)
    view = plan_view(tmp_path / "run", place, Training(300e9, 2.5))
    answer, table = known(view.answer).with_next(["Next: one"], ["Run: two"]), known(view.table)
    text = printed(partial(print_parts, [answer, shortened(table, 6)]))
    lines = text.rstrip().splitlines()
    assert len(lines) <= 23  # the prompt takes the last line
    assert [line.partition(": ")[0] for line in lines[1:4]] == ["Memory", "Speed", "Next"]
    kept = [line.split("  ")[0] for line in lines if line.startswith("zero")]
    assert len(kept) == 6
    assert lines[-1] == f"{len(table.lines) - 6} more with --details"
    assert view.best is not None
    assert view.best.label in kept
    assert f": choose {view.best.label}" in text
    assert [
        word
        for word in ("Memory: ", "Speed: ", "300 B tokens: ", "Cost: ", "Energy: ", "Why: ", "Runner-up: ")
        if word not in text
    ] == []
    assert "tokens/s expected (" in text


def test_of_several_models_and_sizes_the_title_names_none() -> None:
    place = cluster()
    trials = plan_trials(place)
    first = trials[0].spec
    model = first.model.model_copy(update={"name": "another"})
    larger = replace(trials[0], spec=first.model_copy(update={"model": model, "num_nodes": 2}))
    asked = [[row(trial, place) for trial in some] for some in (trials, [*trials, larger])]
    titles = [answer(decided(rows), place, []).title.partition(":")[0] for rows in asked]
    assert titles == [f"{first.model.name} on 8 x H200 SXM", "2 models on 8 to 16 x H200 SXM"]


def test_where_nothing_fits_the_nearest_is_named_with_what_it_needs(tmp_path: Path) -> None:
    place = cluster(gpu="t4")
    text, best = shown(tmp_path, plan_trials(place, micro_batch_size=64), place)
    assert best is None
    assert "None of 9 fits with 5% room." in text
    assert "the closest, needs" in text
    assert NOT_TRIED in " ".join(text.split())


def test_one_that_does_not_fit_is_not_said_to_have_little_room(tmp_path: Path) -> None:
    place = cluster()
    [trial] = [trial for trial in plan_trials(place) if trial.spec.strategy == "zero0"]
    needed = known(row(trial, place).device.needed_bytes)
    for share, title, said in (
        (0.6, "nothing fits\n", "It does not fit: it"),
        (1.02, "with room\n", "It has less than"),
    ):
        small = replace(place, gpu=place.gpu.model_copy(update={"usable_memory_bytes": round(share * needed)}))
        text, best = shown(tmp_path / str(share), [trial], small)
        assert best is None
        assert f"{title}{said}" in text
        assert ("room" in text.partition(said)[2].partition("\n")[0]) == (share > 1)


def test_strategies_that_lack_the_adapters_are_left_out_in_one_sentence(tmp_path: Path) -> None:
    place = cluster()
    trials = formula_trials(place, adapter="lora-16-fp32")
    text, best = shown(tmp_path, trials, place)
    assert known(best).trial.spec.strategy == "ddp"
    lines = " ".join(text.split())
    assert "4 skipped: adapter lora-16-fp32 at zero0, zero1, zero2: DeepSpeed casts every parameter to bf16" in lines
    assert lines.count("at zero3: what stage 3 makes of fp32 parameters") >= 1
    assert labels([trial.spec for trial in trials if trial.ranks]) == ["ddp", "fsdp", "fsdp opt=cpu param=cpu"]


def test_checkpointing_is_named_where_offload_is_taken_without_having_tried_it(tmp_path: Path) -> None:
    place = cluster()

    def told(name: str, *, offloads: bool, **fields: Any) -> str:
        trials = [t for t in plan_trials(place, **fields) if t.ranks and row(t, place).offloads() is offloads]
        return " ".join(shown(tmp_path / name, trials, place)[0].split())

    assert NOT_TRIED in told("offloaded", offloads=True)
    assert NOT_TRIED not in told("not offloaded", offloads=False)
    assert NOT_TRIED not in told("tried", offloads=True, activation_checkpointing=True)


def test_skipped_cells_are_listed_with_their_reason(tmp_path: Path) -> None:
    text, _ = shown(tmp_path, plan_trials(cluster()), cluster())
    assert "9 configurations predicted by simulation, 5 skipped" in text
    assert text.count("--nvme 7GB/s") == 5
    assert "5 skipped: no NVMe drive\n" in text


def test_a_training_takes_as_long_as_its_steps_and_costs_and_draws_as_its_gpu_hours() -> None:
    place = cluster()
    one = row(plan_trials(place)[0], place)
    found = known(takes(one, place.gpu, Training(300e9, 2.5)))
    assert one.expected is not None
    steps = 300e9 / (8 * 2 * 1024)
    for told, step_s in zip(found, (one.expected.low_s, one.expected.step_s, one.expected.high_s), strict=True):
        assert told.days == pytest.approx(steps * step_s / 86400)
        assert told.gpu_hours == pytest.approx(8 * steps * step_s / 3600)
        assert told.cost == pytest.approx(2.5 * told.gpu_hours)
        assert told.most_energy_kwh == pytest.approx(0.7 * told.gpu_hours)  # an H200's 700 W
    assert takes(replace(one, expected=None), place.gpu, Training(300e9)) is None


def test_traffic_is_that_of_one_steady_step() -> None:
    trials = {t.spec.trial_id: t for t in plan_trials(cluster()) if t.ranks}
    by_stage = {t.spec.zero_stage: traffic(row(t, cluster())) for t in trials.values()}
    gathered, reduced = by_stage[3]["all_gather"], by_stage[3]["reduce_scatter"]
    assert gathered == 2 * reduced
    assert by_stage[0] == {"all_reduce": reduced}


def test_a_room_is_a_share_of_what_there_is() -> None:
    one = row(plan_trials(cluster())[0], cluster())
    half = with_memory(one, 2 * (one.device.needed_bytes or 0))
    assert half.device.room == pytest.approx(0.5)
    assert half.scaled_bytes == pytest.approx(one.device.needed_bytes, abs=2)
    assert with_memory(one, GIB).device.fits is False


def test_a_plan_says_of_which_releases_it_is(tmp_path: Path) -> None:
    place = cluster()
    text, _ = shown(tmp_path, plan_trials(place), place)
    assert "predicted with" not in text
    (tmp_path / "run" / "environment.json").write_text('{"versions": {"deepspeed": "0.19.8", "torch": "2.13.0"}}')
    view = plan_view(tmp_path / "run", place)
    assert view.software[0] == "predicted with: DeepSpeed 0.19.8, torch 2.13.0"
    said = "predicted with: DeepSpeed 0.19.8, torch 2.13.0; other releases may differ"
    assert said in printed(partial(print_parts, view.details), 140)


def test_a_plan_by_formula_says_whose_source_the_formulas_were_read_in(tmp_path: Path) -> None:
    text, _ = shown(
        tmp_path, [predicted_trial(spec("zero2", evidence="formula", prediction={"gpu": "H200 SXM"}))], cluster()
    )
    assert f"by formula: for {FORMULAS_OF}; other releases may differ" in text
    assert "predicted with" not in text


def test_what_an_emulated_gpu_refused_is_a_row_that_says_how_much_is_missing(tmp_path: Path) -> None:
    place = cluster(gpu="a10")
    simulated = [one for one in plan_trials(place) if one.record.status is Status.COMPLETED]
    too_large = [one for one in simulated if row(one, place).fit.verdict.startswith("no: device")]
    assert too_large
    emulated = [refused_trial(one, 99) if one in too_large else as_emulated(one) for one in simulated]
    text, best = shown(tmp_path, emulated, place)
    other, expected = shown(tmp_path / "simulated", simulated, place)
    assert f"{len(simulated)} configurations predicted on an emulated GPU" in text
    assert "could not be predicted" not in text
    assert len(rows_of(text, "emulated")) == len(simulated)
    assert rows_of(text, "emulated") == rows_of(other, "simulated")
    assert re.search(r"too much \((in steps|at start-up), ", text)
    assert "ran out of device memory" not in text
    assert (best and best.label) == (expected and expected.label)


def as_emulated(trial: SampleTrial) -> SampleTrial:
    asked = trial.spec.model_copy(update={"evidence": Evidence.EMULATED})
    told = {"trial_id": asked.trial_id}
    return replace(trial, spec=asked).with_record(**told).with_ranks(**told)


def rows_of(text: str, how: str) -> list[str]:
    """The rows of what must fit."""
    section = text.partition(f"Predicted ({how}): what must fit")[2].partition("\n\n")[0]
    return [line for line in section.splitlines() if line.startswith("zero")]


def test_what_was_refused_for_gaps_alone_does_not_fit(tmp_path: Path) -> None:
    place = cluster()
    fitting = next(one for one in plan_trials(place) if row(one, place).fit.verdict == "yes")
    judged = row(refused_trial(fitting, 99), place)
    assert (judged.fit.verdict, judged.has_room, judged.device.room) == ("no: device", False, 0.0)
    assert not judged.fits
    assert decide([judged]) is None
