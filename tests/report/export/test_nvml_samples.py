"""NVML samples laid over the ranks' phases, and the energy of the timed steps."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.report.sample_run import (
    HOSTNAME,
    START_S,
    completed_trial,
    gpu_uuid,
    rank_record,
    sample_lines,
    spec,
    write_run,
)
from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Phase
from zerobench.records.nvml_samples import HEADER
from zerobench.records.records import PhaseMark
from zerobench.records.store import Trial, load_run
from zerobench.report.export import schema
from zerobench.report.export.nvml_samples import EnergyMeter, PhaseLine, read_samples, timed_window, write_samples
from zerobench.report.export.sinks import TableSink

ASKED = spec("zero1", gpus_per_node=2)


class Kept:
    """A writer that keeps what it is given."""

    def __init__(self) -> None:
        self.tables: list[Any] = []

    def write_table(self, table: Any, _rows_per_group: int) -> None:
        self.tables.append(table)


def trial_on_disk(path: Path, samples: str) -> Trial:
    """A completed trial on two GPUs with this file of samples."""
    run = write_run(path, [completed_trial(ASKED, step_s=2.0)], samples=False)
    run.trial(ASKED.trial_id).nvml_samples(HOSTNAME).write_text(samples)
    return load_run(path).trial(ASKED.trial_id)


def rows_and_energy(trial: Trial) -> tuple[list[dict[str, Any]], float | None]:
    """What `write_samples` adds and returns."""
    kept = Kept()
    sink = TableSink(schema.NVML, [kept])
    energy = write_samples(trial, sink)
    sink.flush()
    rows: list[dict[str, Any]] = pa.concat_tables(kept.tables).to_pylist()
    return rows, energy


def samples_of(*lines: str) -> str:
    """A file of samples."""
    return HEADER + "".join(f"{line}\n" for line in lines)


def test_each_sample_has_the_phase_that_its_rank_was_in(tmp_path: Path) -> None:
    times = {5.0: "init", 10.2: None, 10.6: "forward", 11.2: "backward", 12.4: "step", 12.5: "forward", 99.0: None}
    lines = [f"{START_S + t:.6f},{gpu_uuid(1)},{index},7,400.0," for index, t in enumerate(times)]
    rows, _ = rows_and_energy(trial_on_disk(tmp_path / "run", samples_of(*lines)))
    assert [row["phase"] for row in rows] == list(times.values())
    assert [row["used_bytes"] for row in rows] == list(range(len(times)))
    assert {row["gpu_uuid"] for row in rows} == {gpu_uuid(1)}
    assert {row["hostname"] for row in rows} == {HOSTNAME}


def test_what_was_not_sampled_is_null(tmp_path: Path) -> None:
    rows, energy = rows_and_energy(trial_on_disk(tmp_path / "run", samples_of(f"{START_S},{gpu_uuid(0)},,,,")))
    assert [rows[0][name] for name in ("used_bytes", "reserved_bytes", "power_watts")] == [None] * 3
    assert energy is None


def mark(start: float, end: float, phase: Phase) -> PhaseMark:
    """A timed phase."""
    return PhaseMark(step_index=0, kind="timed", phase=phase, start_s=start, end_s=end)


def naive_phase(marks: list[PhaseMark], time_s: float) -> str | None:
    """The phase at a time, looked up one mark at a time: of two that touch, the later."""
    inside = [mark for mark in marks if mark.start_s <= time_s <= mark.end_s]
    return inside[-1].phase.value if inside else None


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), st.sampled_from(list(Phase))), max_size=8),
    st.lists(st.integers(-2, 60), max_size=20),
)
def test_phases_are_those_that_a_search_one_by_one_finds(spans: list[tuple[int, int, Phase]], times: list[int]) -> None:
    marks, now = [], 0.0
    for gap, length, phase in spans:
        marks.append(mark(now + gap, now + gap + length, phase))
        now += gap + length
    rank = rank_record(ASKED, 0).model_copy(update={"marks": marks[::-1]})
    found = PhaseLine.of(rank).at(np.array(times, dtype=np.float64)).to_pylist()
    assert found == [naive_phase(marks, float(time)) for time in times]


def batch(times: list[float], watts: list[float | None], joules: list[float | None]) -> Any:
    """Samples of one device."""
    columns = {"t_s": times, "power_watts": watts, "energy_joules": joules}
    return pa.record_batch({name: pa.array(values, pa.float64()) for name, values in columns.items()})


WINDOW = (1.0, 3.0)


def test_energy_is_the_rise_of_the_counter_between_the_readings_around_the_window() -> None:
    meter = EnergyMeter()
    meter.add("gpu", batch([0.0, 2.0, 4.0], [100.0, 100.0, 100.0], [5000.0, 5200.0, 5800.0]), WINDOW)
    assert meter.joules() == pytest.approx((5200 + 5800) / 2 - (5000 + 5200) / 2)


def test_energy_without_a_counter_is_power_over_time() -> None:
    meter = EnergyMeter()
    meter.add("gpu", batch([0.0, 2.0], [100.0, 300.0], [None, None]), WINDOW)
    meter.add("gpu", batch([3.0, 4.0], [None, 300.0], [None, None]), WINDOW)
    assert meter.joules() == pytest.approx((200 + 300) / 2 + 300)


def test_energy_of_several_devices_is_added_and_unknown_if_one_is() -> None:
    meter = EnergyMeter()
    meter.add("one", batch([0.0, 4.0], [100.0, 100.0], [0.0, 400.0]), WINDOW)
    meter.add("two", batch([0.0, 4.0], [50.0, 50.0], [None, None]), WINDOW)
    assert meter.joules() == pytest.approx(200 + 100)
    meter.add("three", batch([0.0, 2.0], [50.0, 50.0], [None, None]), WINDOW)
    assert meter.joules() is None


def test_energy_of_an_untimed_trial_is_none() -> None:
    meter = EnergyMeter()
    meter.add("gpu", batch([0.0, 4.0], [100.0, 100.0], [0.0, 400.0]), timed_window([]))
    assert meter.joules() is None


def test_the_energy_of_a_trial_is_that_of_its_timed_steps_on_its_devices(tmp_path: Path) -> None:
    trial = completed_trial(ASKED, step_s=2.0)
    idle = rank_record(ASKED, 7)
    lines = sample_lines([*trial.ranks, idle])
    _, energy = rows_and_energy(trial_on_disk(tmp_path / "run", lines))
    assert energy == pytest.approx(2 * 400 * (5 * 2.0))  # GPUs, watts, steps of two seconds


def test_a_last_line_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    whole = samples_of(f"{START_S},{gpu_uuid(0)},1,2,3.0,4.0")
    path = tmp_path / "nvml.csv"
    path.write_text(whole + whole.splitlines()[1][:-20])
    assert [sample.num_rows for sample in read_samples(path)] == [1]
    for begun in ("", whole[:10]):
        path.write_text(begun)
        assert list(read_samples(path)) == []


@pytest.mark.parametrize("text", ["t_s,gpu_uuid\n1,2\n", HEADER + "1,GPU-0\n", HEADER + "soon,GPU-0,1,2,3,4\n"])
def test_a_line_that_is_no_sample_names_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "nvml_node.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=r"nvml_node\.csv: torn or corrupt: [^\n]*; removing it [^\n]*$"):
        list(read_samples(path))


def test_a_device_that_no_rank_names_goes_by_the_first_rank(tmp_path: Path) -> None:
    lines = samples_of(f"{START_S + 5},GPU-unknown,1,2,,")
    rows, _ = rows_and_energy(trial_on_disk(tmp_path / "run", lines))
    assert rows[0]["phase"] == "init"


def test_samples_of_a_trial_whose_ranks_left_nothing_are_kept(tmp_path: Path) -> None:
    trial = trial_on_disk(tmp_path / "run", samples_of(f"{START_S + 5},{gpu_uuid(0)},1,2,,"))
    trial.ranks = ()
    rows, energy = rows_and_energy(trial)
    assert (rows[0]["phase"], rows[0]["used_bytes"], energy) == (None, 1, None)
