"""TensorBoard's event files, read back by tensorboard's own reader."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.report.export.conftest import HOSTILE
from tests.tools.at_least_one import at_least_one
from zerobench.common.vocabulary import Place
from zerobench.report.export.exported import ExportRow
from zerobench.report.export.tensorboard_events import write_tensorboard

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
hparams = pytest.importorskip("tensorboard.plugins.hparams.metadata")
api = pytest.importorskip("tensorboard.plugins.hparams.api_pb2")

RUN = "sample_20260102-030405"


@pytest.fixture(scope="module")
def folder(exported: list[ExportRow], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tensorboard")
    assert write_tensorboard(exported, path) == len(exported)
    return path


def events(folder: Path, trial: ExportRow) -> Any:
    return accumulator.EventAccumulator(str(folder / RUN / trial.trial.trial_id)).Reload()


def plugin_data(read: Any, tag: str) -> Any:
    return hparams.parse_session_start_info_plugin_data(read.SummaryMetadata(tag).plugin_data.content)


def test_curves_lie_over_the_step_index_at_the_time_of_their_steps(folder: Path, exported: list[ExportRow]) -> None:
    read, trial = events(folder, exported[0]), exported[0]
    losses = read.Scalars("loss/loss")
    assert [(e.step, e.wall_time) for e in losses] == [(p.step_index, p.at_s) for p in trial.steps]
    assert [e.value for e in losses] == pytest.approx([p.loss for p in trial.steps], rel=1e-6)
    assert [e.step for e in read.Scalars("speed/step_time_s")] == [3, 4, 5, 6, 7]


def test_memory_by_category_comes_back(folder: Path, exported: list[ExportRow]) -> None:
    read = events(folder, exported[0])
    for category, size in at_least_one(exported[0].peaks[Place.DEVICE].categories.items()):
        (event,) = read.Scalars(f"device_peak_bytes/{category}")
        assert event.value == pytest.approx(size, rel=1e-6)


def test_settings_and_outcome_are_hyperparameters(folder: Path, exported: list[ExportRow]) -> None:
    start = plugin_data(events(folder, exported[1]), hparams.SESSION_START_INFO_TAG)
    assert start.hparams["strategy"].string_value == "zero2"
    assert start.hparams["ds_config.zero_optimization.reduce_bucket_size"].number_value == 500_000_000
    assert start.hparams["activation_checkpointing"].bool_value is False
    ends = []
    for trial in exported:
        content = events(folder, trial).SummaryMetadata(hparams.SESSION_END_INFO_TAG).plugin_data.content
        ends.append(hparams.parse_session_end_info_plugin_data(content).status)
    good, bad = api.STATUS_SUCCESS, api.STATUS_FAILURE
    assert ends == [good, good, bad, bad, good]


def test_a_failure_says_why(folder: Path, exported: list[ExportRow]) -> None:
    (event,) = events(folder, exported[2]).Tensors("outcome")
    assert event.tensor_proto.string_val[0].decode() == (
        "out of device memory, measured\n\n    the device ran out of memory"
    )


def test_a_hostile_name_is_a_value_and_makes_no_folder(folder: Path, exported: list[ExportRow]) -> None:
    start = plugin_data(events(folder, exported[4]), hparams.SESSION_START_INFO_TAG)
    assert start.hparams["model"].string_value == HOSTILE
    assert sorted(path.name for path in (folder / RUN).iterdir()) == sorted(t.trial.trial_id for t in exported)


def test_a_second_export_takes_the_place_of_the_first(exported: list[ExportRow], tmp_path: Path) -> None:
    for _ in range(2):
        write_tensorboard(exported[:1], tmp_path)
    assert len(events(tmp_path, exported[0]).Scalars("loss/loss")) == 9


def test_neither_torch_nor_tensorflow_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path;"
        "from zerobench.report.export.tensorboard_events import write_tensorboard;"
        "write_tensorboard([], Path(sys.argv[1])); print(sorted({'torch', 'tensorflow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
