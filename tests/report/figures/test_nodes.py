"""Nodes of one trial are kept apart by their index, whatever their hostnames and their clocks say."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.report.export.test_nvml_samples import rows_and_energy
from tests.report.sample_run import MIB, completed_trial, sample_lines, spec, write_run
from tests.report.two_nodes import ASKED, HOSTNAME, two_node_trial, write_two_nodes
from zerobench.records.records import NvmlSummary
from zerobench.records.store import load_run
from zerobench.report.charts import timeline
from zerobench.report.export.run_frames import run_frames
from zerobench.report.figures.nodes import node_name, ranks_of, samples_file
from zerobench.report.figures.nvml_view import devices_of, missed_spike_bytes

Rows = list[dict[str, Any]]


def of_two_nodes(path: Path, ahead_s: float = 0.0) -> tuple[Rows, float | None]:
    """The rows of the table `nvml` of the trial on two nodes, and the energy of its timed steps."""
    run = write_two_nodes(path, two_node_trial(ahead_s=ahead_s), ahead_s=ahead_s)
    return rows_and_energy(load_run(run.path).trial(ASKED.trial_id))


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
def test_a_node_whose_clock_is_an_hour_wrong_has_the_rows_that_it_has_with_a_right_one(
    tmp_path: Path, ahead_s: float
) -> None:
    right, energy = of_two_nodes(tmp_path / "right")
    wrong, energy_of_wrong = of_two_nodes(tmp_path / "wrong", ahead_s)
    shifts = {0: 0.0, 1: ahead_s}
    assert [{**row, "t_s": row["t_s"] + shifts[row["node"]]} for row in right] == wrong
    assert energy_of_wrong == energy == pytest.approx(2 * 400 * (5 * 2.0))  # GPUs, watts, steps of two seconds


def test_samples_of_two_nodes_that_share_a_hostname_stay_apart(tmp_path: Path) -> None:
    rows, _ = of_two_nodes(tmp_path / "run")
    first = {row["t_s"]: row["used_bytes"] for row in rows if row["node"] == 0}
    second = {row["t_s"]: row["used_bytes"] for row in rows if row["node"] == 1}
    assert len(rows) == len(first) + len(second) == 800
    assert {second[t_s] - first[t_s] for t_s in first} == {MIB}
    assert {row["hostname"] for row in rows} == {HOSTNAME}


def test_devices_of_two_nodes_that_have_the_same_name_are_two_devices(tmp_path: Path) -> None:
    trial = two_node_trial()
    peaks = [device.peak_used_bytes or 0 for device in devices_of(trial)]
    assert len(peaks) == 2
    assert peaks[1] - peaks[0] == 100 * MIB
    used = dataclasses.replace(trial, ranks=trial.ranks[:1])
    assert [device.peak_used_bytes for device in devices_of(used)] == peaks[:1]


def test_a_spike_that_was_missed_on_one_node_is_not_covered_by_the_peak_of_its_namesake() -> None:
    trial = two_node_trial()
    reserved = max(row.peak_reserved_bytes for row in trial.ranks[0].device_memory)
    low, high = ({"peak_used_bytes": reserved + more} for more in (-5 * MIB, 9 * MIB))
    for peaks, missed in (((low, high), 5 * MIB), ((high, high), None)):
        nvml = [
            node.model_copy(update={"devices": [node.devices[0].model_copy(update=peak)]})
            for node, peak in zip(trial.record.nvml, peaks, strict=True)
        ]
        assert missed_spike_bytes(trial.with_record(nvml=nvml)) == missed


def test_the_curve_drawn_over_a_step_is_that_of_the_ranks_own_node(tmp_path: Path) -> None:
    trial = two_node_trial(ahead_s=3600.0)
    run = write_two_nodes(tmp_path / "run", trial, ahead_s=3600.0)
    frames = run_frames([load_run(run.path)])
    node = int(frames.phases["rank"].iloc[0])  # one rank a node
    drawn = timeline.figure(frames)
    run.trial(ASKED.trial_id).nvml_samples(1 - node).unlink()
    without_other = timeline.figure(frames)
    run.trial(ASKED.trial_id).nvml_samples(node).unlink()
    without_own = timeline.figure(frames)
    assert drawn is not None
    assert without_other is not None
    assert without_own is not None
    assert drawn.table.equals(without_other.table)
    assert not drawn.table.equals(without_own.table)


def test_records_without_an_index_are_joined_by_hostname(tmp_path: Path) -> None:
    asked = spec("zero1", gpus_per_node=2)
    run = write_run(tmp_path / "run", [completed_trial(asked)])
    trial = load_run(run.path).trial(asked.trial_id)
    [summary] = trial.record.nvml
    assert summary.node is None
    assert ranks_of(trial.ranks, summary) == list(trial.ranks)
    assert samples_file(trial.folder, summary).read_text() == sample_lines(trial.ranks)
    elsewhere = NvmlSummary(hostname="elsewhere", available=False)
    assert ranks_of(trial.ranks, elsewhere) == []


def test_a_node_is_called_as_the_trial_names_it_else_by_its_hostname_and_never_like_another() -> None:
    trial = two_node_trial()
    assert [node_name(trial, rank) for rank in trial.ranks] == ["localhost (node 0)", "localhost (node 1)"]
    named = two_node_trial(nodes=["gpu-7", "gpu-8"])
    assert [node_name(named, node) for node in named.record.nvml] == ["gpu-7", "gpu-8"]
    twice = two_node_trial(nodes=["gpu-7", "gpu-7"])
    assert len({node_name(twice, node) for node in twice.record.nvml}) == 2
    alone = completed_trial(spec("zero1", gpus_per_node=1))
    assert node_name(alone, alone.ranks[0]) == alone.ranks[0].hostname
    spoilt = alone.ranks[0].model_copy(update={"node": -5})
    assert node_name(named, spoilt) == alone.ranks[0].hostname


def test_the_tables_say_on_which_nodes_and_by_which_job_a_trial_ran(tmp_path: Path) -> None:
    trial = two_node_trial(nodes=["gpu-7", "gpu-8"], job="123_4.2")
    frames = run_frames([load_run(write_run(tmp_path / "run", [trial], samples=False).path)])
    assert frames.trials[["nodes", "job"]].to_numpy().tolist() == [["gpu-7 gpu-8", "123_4.2"]]
    assert frames.ranks["node"].tolist() == [0, 1]
