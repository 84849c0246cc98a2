"""Trials as TensorBoard runs, one folder each, by tensorboard's own writer and without torch or TensorFlow.

    zerobench export RUN --tensorboard DIR && tensorboard --logdir DIR

Curves (loss, learning rate, time of the timed steps) lie over the step index; what a trial has once stands at step 0.
Settings and outcome go to the HPARAMS tab, where trials are compared. A scalar is a float32 there, so that bytes are
exact to seven digits: the exact ones are in `memory.csv`.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from zerobench.common.vocabulary import Status
from zerobench.config.trial.trial import slug
from zerobench.records.folder import writing
from zerobench.report.export.exported import ExportRow, categories
from zerobench.report.export.libraries import require

Scalar = tuple[str, int, float, float]
"""Tag, step, Unix time, value."""


def write_tensorboard(trials: Iterable[ExportRow], folder: Path) -> int:
    """Write each of `trials` to `folder`/<run>/<trial>, over what lay there, and return their number.

    Raises UserError: tensorboard is not installed, or `folder` cannot be written.
    """
    library = _Library()
    count = 0
    with writing(f"--tensorboard: {folder}"):
        for row in trials:
            # A run's name and a trial's come from files: as names of folders they must not climb out of `folder`.
            events = folder / slug(row.trial.run_id) / slug(row.trial.trial_id)
            for old in events.glob("events.out.tfevents.*") if events.is_dir() else ():
                old.unlink()  # TensorBoard would lay an earlier export's curves over the new ones
            _write(row, events, library)
            count += 1
    return count


class _Library:
    """The parts of tensorboard that write."""

    def __init__(self) -> None:
        module = partial(require, package="tensorboard", option="--tensorboard")
        self.event = module("tensorboard.compat.proto.event_pb2").Event
        self.summary = module("tensorboard.compat.proto.summary_pb2").Summary
        self.writer = module("tensorboard.summary.writer.event_file_writer").EventFileWriter
        self.hparams = module("tensorboard.plugins.hparams.summary_v2")
        self.hparams_data = module("tensorboard.plugins.hparams.plugin_data_pb2")
        self.hparams_metadata = module("tensorboard.plugins.hparams.metadata")
        self.status = module("tensorboard.plugins.hparams.api_pb2").Status
        self.text_metadata = module("tensorboard.plugins.text.metadata").create_summary_metadata
        self.tensor = module("tensorboard.util.tensor_util").make_tensor_proto


def _write(row: ExportRow, folder: Path, library: _Library) -> None:
    writer = library.writer(str(folder))
    for summary, step, at_s in _summaries(row, library):
        writer.add_event(library.event(wall_time=at_s, step=step, summary=summary))
    writer.close()


def _summaries(row: ExportRow, library: _Library) -> Iterator[tuple[Any, int, float]]:
    """Summary, step and Unix time of each event."""
    start = library.hparams.hparams_pb(dict(row.settings), trial_id=row.trial.trial_id, start_time_secs=row.start_s)
    yield start, 0, row.start_s
    yield _text("outcome", _outcome(row), library), 0, row.end_s
    for tag, step, at_s, value in _scalars(row):
        yield library.summary(value=[library.summary.Value(tag=tag, simple_value=value)]), step, at_s
    yield _session_end(row, library), 0, row.end_s


def _session_end(row: ExportRow, library: _Library) -> Any:
    """Ending of the trial for the HPARAMS tab, as tensorboard's `session_end_pb` makes it, which takes TensorFlow."""
    succeeded = row.trial.status is Status.COMPLETED
    status = library.status.Value("STATUS_SUCCESS" if succeeded else "STATUS_FAILURE")
    info = library.hparams_data.SessionEndInfo(status=status, end_time_secs=row.end_s)
    data = library.hparams_data.HParamsPluginData(session_end_info=info)
    known = library.hparams_metadata
    metadata = known.create_summary_metadata(data)
    value = library.summary.Value(tag=known.SESSION_END_INFO_TAG, metadata=metadata, tensor=known.NULL_TENSOR)
    return library.summary(value=[value])


def _outcome(row: ExportRow) -> str:
    """Status and reason for the TEXT tab, which renders Markdown: the reason stands in a code block."""
    reason = " ".join((row.trial.reason or "").split())
    shown = "\n\n    " + reason if reason else ""
    return f"{row.trial.status.words}, {row.trial.spec.evidence.value}{shown}"


def _text(tag: str, text: str, library: _Library) -> Any:
    metadata = library.text_metadata(display_name=tag, description="How the trial ended, and why.")
    value = library.summary.Value(tag=tag, metadata=metadata, tensor=library.tensor(text.encode()))
    return library.summary(value=[value])


def _scalars(row: ExportRow) -> Iterator[Scalar]:
    for point in row.steps:
        curves = {"loss/loss": point.loss, "loss/learning_rate": point.learning_rate, "speed/step_time_s": point.step_s}
        for tag, value in curves.items():
            if value is not None:
                yield tag, point.step_index, point.at_s, value
    for figure, value in row.figures.items():
        yield figure.tag, 0, row.end_s, value
    for place, instant in row.peaks.items():
        for category, size in categories(instant).items():
            yield f"{place.value}_peak_bytes/{category}", 0, row.end_s, float(size)
