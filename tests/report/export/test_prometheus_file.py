"""The Prometheus file, read back by the library's own parser."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.report.export.conftest import HOSTILE
from tests.tools.at_least_one import at_least_one
from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Place
from zerobench.report.export.exported import ExportRow
from zerobench.report.export.prometheus_file import write_prometheus

parser = pytest.importorskip("prometheus_client.parser")


@pytest.fixture(scope="module")
def families(exported: list[ExportRow], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("prometheus") / "zerobench.prom"
    count = write_prometheus(exported, path)
    read = {family.name: family for family in parser.text_string_to_metric_families(path.read_text("utf-8"))}
    assert sum(len(family.samples) for family in read.values()) == count
    return read


def samples(family: Any, trial: ExportRow) -> list[Any]:
    return [sample for sample in family.samples if sample.labels["trial"] == trial.trial.trial_id]


def test_peaks_by_category_come_back_to_the_byte(families: dict[str, Any], exported: list[ExportRow]) -> None:
    found = samples(families["zerobench_device_peak_bytes"], exported[0])
    peak = exported[0].peaks[Place.DEVICE]
    assert {s.labels["category"]: s.value for s in found} == {str(c): size for c, size in peak.categories.items()}
    assert {(s.labels["rank"], s.labels["phase"]) for s in found} == {(str(peak.rank), str(peak.phase))}


def test_names_have_base_units_and_help_and_every_sample_says_its_evidence(families: dict[str, Any]) -> None:
    units = r"_(bytes|seconds|ratio|joules|per_second|parameters|info|status|first|last|difference)$"
    for name, family in at_least_one(families.items()):
        assert re.fullmatch(r"zerobench_[a-z_]+", name)
        assert re.search(units, name), name
        assert family.documentation.endswith(".")
        assert all(sample.labels["evidence"] == "measured" for sample in family.samples)


def test_speed_is_in_base_units(families: dict[str, Any], exported: list[ExportRow]) -> None:
    column = {figure.column: value for figure, value in exported[0].figures.items()}
    (flops,) = samples(families["zerobench_rank_flops_per_second"], exported[0])
    assert flops.value == pytest.approx(column["tflops_per_gpu"] * 1e12)
    phases = samples(families["zerobench_step_phase_time_seconds"], exported[0])
    assert {sample.labels["phase"] for sample in phases} == {"forward", "backward", "step"}


def test_a_failed_and_a_skipped_trial_have_their_status_and_no_figures(
    families: dict[str, Any], exported: list[ExportRow]
) -> None:
    status = families["zerobench_trial_status"]
    assert [samples(status, trial)[0].labels["status"] for trial in exported[2:4]] == [
        "out_of_device_memory",
        "skipped",
    ]
    assert samples(families["zerobench_step_time_seconds"], exported[2]) == []


def test_settings_are_labels_of_the_info_metric(families: dict[str, Any], exported: list[ExportRow]) -> None:
    (info,) = samples(families["zerobench_trial_info"], exported[1])
    assert info.labels["ds_config_zero_optimization_reduce_bucket_size"] == "500000000"
    assert (info.labels["strategy"], info.labels["learning_rate"]) == ("zero2", "0.0003")


def test_a_hostile_name_stays_one_label_value(families: dict[str, Any], exported: list[ExportRow]) -> None:
    (info,) = samples(families["zerobench_trial_info"], exported[4])
    assert info.labels["model"] == HOSTILE
    assert not [name for name in families if not name.startswith("zerobench_")]


def test_a_file_that_node_exporter_would_not_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"end in \.prom"):
        write_prometheus([], tmp_path / "metrics.txt")
    with pytest.raises(UserError, match="cannot be written"):
        write_prometheus([], tmp_path / "nowhere" / "x.prom")
    assert list(tmp_path.iterdir()) == []
