"""The predicting worlds' benchmarks: what joins, what adds up, what is refused. No trial is simulated here."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.csv_rows import as_csv, from_csv
from benchmarks.prediction import communication_lines, held_out, paper, paper_lines
from benchmarks.prediction.held_out_table import Figure, error_lines, figures, join
from benchmarks.prediction.simulated import TINY, gpu_trial, table
from benchmarks.prediction.speed import Timing, rows
from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Phase, StepKind
from zerobench.config.derived.machine import Accelerator, Machine
from zerobench.config.derived.zero_paper import model_states
from zerobench.config.models.presets import PRESETS, resolve_model
from zerobench.config.sweep.expand import expand
from zerobench.config.sweep.sweep import load_sweep
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.estimate.memory.record import formula_record
from zerobench.records.records import CollectiveTraffic, RankRecord

FOLDER = Path(held_out.__file__).parent
CPU_MACHINE = Machine(accelerator=Accelerator.CPU, cpu_cores=2)


def planned(name: str) -> list[TrialSpec]:
    return [one.trial for one in expand(load_sweep(FOLDER / name), CPU_MACHINE) if one.skipped is None]


def figure(**fields: object) -> Figure:
    usual = Figure(
        config_hash="0123456789ab",
        model="m",
        strategy="zero1",
        offload_optimizer="none",
        offload_param="none",
        world_size=2,
        micro_batch_size=1,
        gradient_accumulation_steps=1,
        sequence_length=64,
        precision="bf16",
        activation_checkpointing=0,
        step="steady",
        phase="step",
        live_bytes=1000,
        peak_bytes=2000,
    )
    return replace(usual, **fields)  # type: ignore[arg-type]


def shape(trial: TrialSpec) -> tuple[object, ...]:
    config = trial.model.hf_config
    names = ("hidden_size", "n_embd", "num_hidden_layers", "n_layer", "num_attention_heads", "n_head", "vocab_size")
    return tuple(config.get(name) for name in names)


def test_twenty_cells_are_held_out_and_each_is_both_measured_and_predicted() -> None:
    trials = planned("held_out.yaml")
    by_world = {world: {t.config_hash for t in trials if t.evidence is world} for world in Evidence}
    assert len(by_world[Evidence.MEASURED]) == 20
    assert by_world[Evidence.MEASURED] == by_world[Evidence.SIMULATED]


def test_no_held_out_shape_was_tuned_on_or_is_a_preset() -> None:
    held = {shape(trial) for trial in planned("held_out.yaml")}
    known = {shape(trial) for trial in planned("tuned.yaml")}
    known |= {shape(gpu_trial(name, 0, 1)) for name in PRESETS}
    assert len(held) == 10
    assert not held & known


def test_figures_read_back_from_csv_as_they_were_written() -> None:
    written = [figure(), figure(phase="forward", live_bytes=7)]
    assert from_csv(Figure, as_csv(Figure, written)) == written


def test_a_table_with_other_columns_is_refused() -> None:
    with pytest.raises(UserError, match="expected: config_hash"):
        from_csv(Figure, "a,b\n1,2\n")


def test_a_record_gives_a_figure_for_each_of_seven_phases() -> None:
    trial = gpu_trial(resolve_model(TINY), 2, 4, sequence_length=64, evidence=Evidence.FORMULA)
    found = list(figures(trial, formula_record(trial)))
    assert [(one.step, one.phase) for one in found][:2] == [("first", "init"), ("first", "forward")]
    assert len({one.key for one in found}) == 7
    assert all(0 < one.live_bytes <= one.peak_bytes for one in found)


def test_a_cell_that_was_only_predicted_is_refused() -> None:
    with pytest.raises(UserError, match="1 figures are only predicted or only measured"):
        join([figure(), figure(config_hash="ffffffffffff")], [figure()])


def test_median_and_worst_errors_are_those_of_the_figures() -> None:
    measured = [figure(config_hash=f"{number:012}", model=name) for number, name in enumerate("abc")]
    off = zip(measured, (2040, 1990, 2000), strict=True)
    predicted = [replace(one, peak_bytes=peak) for one, peak in off]
    lines = error_lines(join(predicted, measured))
    assert "| peak | steady step | 3 | 0.50% | +2.00% | -0.50% | a zero1 n2 | b zero1 n2 |" in lines
    assert "| live | all | 3 | 0 | - | - | - | - |" in lines
    assert "## Peaks predicted too small: 1 of 3, 0 of them by more than 1%" in lines
    assert "| b zero1 n2 | steady step | -0.500% | 1,990 | 2,000 |" in lines


@pytest.mark.parametrize(("peak", "verdict"), [(1981, "reached"), (1979, "MISSED")])
def test_a_peak_more_than_one_percent_too_small_misses_the_goal(peak: int, verdict: str) -> None:
    lines = error_lines(join([figure(peak_bytes=peak)], [figure()]))
    assert next(line for line in lines if "lowest error" in line).endswith(f"| {verdict} |")


def test_predictions_that_are_not_committed_are_not_measured(tmp_path: Path) -> None:
    sweep = tmp_path / "held_out.yaml"
    (tmp_path / "held_out_predicted.csv").write_text(as_csv(Figure, [figure()]))
    with pytest.raises(UserError, match="must be committed"):
        held_out.measure(sweep, tmp_path, uncommitted=False)


def test_what_was_measured_is_not_predicted_again(tmp_path: Path) -> None:
    (tmp_path / "held_out_measured.csv").write_text("")
    with pytest.raises(UserError, match="can no longer be made"):
        held_out.predict(tmp_path / "held_out.yaml", tmp_path)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("index", range(6))
def test_the_printed_figures_are_the_closed_form_of_7_5_billion(stage: int, index: int) -> None:
    total_gb = model_states(7_500_000_000, paper.WORLD_SIZES[index], stage).total_bytes / 1e9
    printed = paper.PRINTED[stage][index]
    unit = 10.0 ** -len(printed.partition(".")[2])
    assert abs(total_gb - float(printed)) <= unit / 2 + 1e-9


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("world_size", [1, 4, 64, 1024])
def test_causes_lead_from_the_paper_to_what_deepspeed_keeps(stage: int, world_size: int) -> None:
    """The states of DeepSpeed's closed form, which counts no scalars, are reached without anything else left over."""
    trial = gpu_trial(resolve_model(TINY), stage, world_size, sequence_length=64, evidence=Evidence.FORMULA)
    cell = paper_lines.Cell(trial, formula_record(trial))
    lines = paper_lines.from_formula_to_ledger(cell)
    norm = 0 if stage == 3 else paper_lines.NORM_BYTES
    assert lines[paper_lines.LEFT_OVER] == pytest.approx(-norm, abs=1e-3)
    assert list(lines.values())[-1] == cell.states_bytes


def counted(stage: int, *rows: tuple[Phase, str, int, int]) -> communication_lines.Cell:
    """A cell of a rank that called these collectives: phase, kind, calls, message bytes."""
    trial = gpu_trial(resolve_model(TINY), stage, 64, sequence_length=64, evidence=Evidence.FORMULA)
    record: RankRecord = formula_record(trial)
    record.collectives = [
        CollectiveTraffic(
            step=StepKind.STEADY, phase=phase, kind=kind, group_size=64, calls=calls, message_bytes=message_bytes
        )
        for phase, kind, calls, message_bytes in rows
    ]
    return communication_lines.Cell("defaults", trial, record)


def test_an_all_reduce_of_gradients_is_one_more_than_the_paper_has() -> None:
    whole = counted(1).psi_bytes
    cell = counted(
        1,
        (Phase.BACKWARD, "all_reduce", 1, whole),
        (Phase.STEP, "all_gather", 1, whole),
        (Phase.STEP, "all_reduce", 2, 5),
    )
    lines = communication_lines.causes(cell)
    assert cell.paper_psi == 2
    assert cell.counted_psi == pytest.approx(3, abs=1e-4)
    assert lines["gradients all-reduced, not reduced to their owners: once more"] == 1
    assert lines[paper_lines.LEFT_OVER] == pytest.approx(0, abs=1e-12)


def test_a_message_too_many_is_left_over() -> None:
    whole = counted(2).psi_bytes
    cell = counted(2, (Phase.BACKWARD, "reduce", 1, whole), (Phase.STEP, "all_gather", 1, 2 * whole))
    assert communication_lines.causes(cell)[paper_lines.LEFT_OVER] == pytest.approx(1)


def test_the_tiny_model_is_all_persistent_at_stage_3() -> None:
    whole = counted(3).psi_bytes
    cell = counted(3, (Phase.BACKWARD, "reduce_scatter", 1, whole), (Phase.STEP, "all_gather", 29, whole))
    lines = communication_lines.causes(cell)
    assert lines["persistent parameters, gathered once a step instead of twice"] == -1
    assert lines[paper_lines.LEFT_OVER] == pytest.approx(0, abs=1e-12)


WATCHED = """
import os, subprocess
from benchmarks.prediction.peak_memory import PeakMemory, high_water_bytes
own = high_water_bytes(os.getpid())
with PeakMemory() as memory:
    subprocess.run(["sleep", "0.3"], check=True)
    assert 0 < memory.take_bytes() < 10 * own
    assert memory.take_bytes() == 0
assert high_water_bytes(2**22 + 1) is None
"""


def test_the_largest_process_below_is_seen() -> None:
    """In a process of its own: this one may have children that other tests share, a browser for one."""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", WATCHED], cwd=root, check=True)


def test_what_missed_its_goal_is_named() -> None:
    lines = rows([Timing("a", 9.0, 10.0, 10**8), Timing("b", 11.0, 10.0, 2 * 10**9)])
    assert lines[2] == "| a | 9.0 | 10 | reached | 0.10 |"
    assert lines[3] == "| b | 11.0 | 10 | MISSED: time, memory | 2.00 |"


def test_texts_of_a_table_stand_left_and_numbers_right() -> None:
    assert table(("", "n"), [("a", 1)]) == ["|  | n |", "| --- | ---: |", "| a | 1 |", ""]
