"""zerobench from Python: plans, predictions and runs as objects, for notebooks, scripts and gates.

    plan = zerobench.plan(model="llama-7b", gpus=8, gpu="h100", host_memory="1TB")
    plan.best.name, plan.best.expected_tokens_per_s, plan.table()
    fastest = zerobench.tune("llama-7b", gpus=8, gpu="h100", host_memory="1TB", global_batch=256).best
    one = zerobench.predict("llama-7b", "ds_config.json", gpus=8, gpu="h100", micro_batch_size=4)
    one.fits, one.peak_bytes, one.by_category
    run = zerobench.load("reports/quickstart_20261121-101500")
    run.trials, run.memory, run.charts
    run = zerobench.run("zero-stages", only=["strategy=zero2,zero3"])

Each predicts or reads what the command of its name does (`zerobench plan --help`); what is wrong is a
zerobench.common.errors.UserError of one line. `predict` leaves nothing on disk unless it is given `reports`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any
from weakref import finalize

from zerobench.app.search.changes import keep_config
from zerobench.app.search.outcome import Outcome, outcome
from zerobench.app.search.plan import read_plan
from zerobench.app.search.plan_request import request_of
from zerobench.common.errors import UserError
from zerobench.config.derived.cluster import Cluster
from zerobench.config.sweep.expand import expand
from zerobench.config.sweep.sweep import load_sweep
from zerobench.launch.machine.this_machine import detect_machine, measure_arithmetic
from zerobench.launch.run.executor import LocalExecutor
from zerobench.launch.run.observer import Observer
from zerobench.launch.run.runner import start_sweep
from zerobench.launch.run.setup import resolved_configs
from zerobench.records.store import Run, find_run, load_run
from zerobench.report.documents.document import categories_of
from zerobench.report.explain.decided import Decided
from zerobench.report.explain.decision import Decision
from zerobench.report.figures.trial import TrialFigures

if TYPE_CHECKING:
    from zerobench.report.documents.plan_frame import Frame
    from zerobench.report.tables.figure import Drawing, Figure

REPORTS = Path("reports")


@dataclass(frozen=True, repr=False)
class Prediction:
    """One configuration on one cluster; bytes are of one GPU and None where not known."""

    row: TrialFigures
    """As `zerobench plan` has it."""
    cluster: Cluster
    """Cluster that it was predicted for."""

    @property
    def name(self) -> str:
        """In the plan's tables."""
        return self.row.label

    @property
    def fits(self) -> bool:
        """True if device and host hold it, as far as is known."""
        return self.row.fits

    @property
    def needed_bytes(self) -> int | None:
        """GPU memory at the worst moment, with allocator slack, CUDA context and NCCL."""
        return self.row.device.needed_bytes

    @property
    def capacity_bytes(self) -> int | None:
        """Memory of the GPU."""
        return self.row.device.capacity_bytes

    @property
    def peak_bytes(self) -> int | None:
        """Tensors at the larger of the peaks of start-up and of a steady step."""
        steady = None if self.row.steady_peak is None else self.row.steady_peak.total_bytes
        return max((size for size in (steady, self.row.start_up_bytes) if size is not None), default=None)

    @property
    def by_category(self) -> dict[str, int]:
        """Bytes at the peak of a steady step, by the ledger's names; empty where not known."""
        return categories_of(self.row)

    @property
    def host_needed_bytes(self) -> int | None:
        """Memory of a node that all of its ranks need."""
        return self.row.host.needed_bytes

    @property
    def expected_step_s(self) -> float | None:
        """None where the time model does not know such work."""
        return None if self.row.expected is None else self.row.expected.step_s

    @property
    def expected_step_interval_s(self) -> tuple[float, float] | None:
        """80% interval of the expected step."""
        expected = self.row.expected
        return None if expected is None else (expected.low_s, expected.high_s)

    @property
    def expected_tokens_per_s(self) -> float | None:
        """Over all GPUs."""
        return self.row.expected_tokens_per_s

    def table(self) -> Frame:
        """Its figures as a frame of one row."""
        return _frame([self.row])

    def __repr__(self) -> str:
        from zerobench.report.documents.notebook import row_lines  # noqa: PLC0415 -- pandas is for who asks

        return "\n".join(row_lines(self.row, self.cluster))

    def _repr_html_(self) -> str:
        from zerobench.report.documents.notebook import row_html  # noqa: PLC0415 -- as above

        return row_html(self.row, self.cluster)


@dataclass(frozen=True, repr=False)
class PlanResult:
    """Configurations that were predicted, and the recommended one."""

    path: Path
    """The run's folder."""
    predictions: Sequence[Prediction]
    decided: Decided
    decision: Decision
    """As it is kept with the run, and shown on its page."""
    cluster: Cluster

    @property
    def best(self) -> Prediction | None:
        """The one to take; None where nothing fits with room."""
        return None if self.decided.best is None else Prediction(self.decided.best, self.cluster)

    @property
    def reason(self) -> str:
        """Reason for the recommendation, or for none."""
        return self.decision.reason

    @property
    def runner_up(self) -> str | None:
        """The next best with what it costs; None where nothing else fits with room."""
        return self.decision.runner_up

    def table(self) -> Frame:
        return _frame(self.decided.rows)

    def __repr__(self) -> str:
        from zerobench.report.documents.notebook import plan_lines  # noqa: PLC0415 -- pandas is for who asks

        return "\n".join(plan_lines(self.decided, self.cluster))

    def _repr_html_(self) -> str:
        from zerobench.report.documents.notebook import plan_html  # noqa: PLC0415 -- as above

        return plan_html(self.decided, self.cluster)


@dataclass(frozen=True, repr=False)
class RunTables:
    """The tables of a run; their columns are those of the files beside it."""

    run: Run

    @property
    def path(self) -> Path:
        return self.run.folder.path

    @cached_property
    def trials(self) -> Frame:
        """One row for each trial that ended."""
        from zerobench.report.export.tidy_tables import trials_frame  # noqa: PLC0415 -- pandas is for who asks

        return trials_frame(self.run)

    @cached_property
    def memory(self) -> Frame:
        """One row for each rank, step, phase, place and category."""
        from zerobench.report.export.tidy_tables import memory_frame  # noqa: PLC0415 -- as above

        return memory_frame(self.run)

    @cached_property
    def decisions(self) -> list[Decision]:
        """Recommended configurations, one for each kind of work; empty where there is nothing to choose among."""
        from zerobench.report.explain.decisions import decisions  # noqa: PLC0415 -- as above
        from zerobench.report.figures.run.runs import run_figures  # noqa: PLC0415 -- as above

        return decisions(run_figures([self.run]))

    @cached_property
    def charts(self) -> Charts:
        """The charts of its page, by their keys (needs the extra `report`)."""
        from zerobench.report.charts import figures  # noqa: PLC0415 -- altair is for who asks
        from zerobench.report.export.run_frames import run_frames  # noqa: PLC0415 -- as above

        return Charts(
            (figure.key, Chart(figure, figure.drawing))
            for figure in figures(run_frames([self.run]))
            if figure.drawing is not None
        )

    def __repr__(self) -> str:
        from zerobench.report.documents.notebook import run_line  # noqa: PLC0415 -- pandas is for who asks

        return run_line(self.run)

    def _repr_html_(self) -> str:
        from zerobench.report.documents.notebook import run_html  # noqa: PLC0415 -- as above

        return run_html(self.run)


@dataclass(frozen=True, repr=False)
class Chart:
    """One chart of a run, which a notebook draws."""

    figure: Figure
    drawing: Drawing
    """Drawing of the figure, which has one."""

    @property
    def table(self) -> Frame:
        """The figures that it shows, as people read them."""
        return self.figure.table

    @property
    def altair(self) -> Any:
        """The chart as altair's own object, in light colours: to change, to combine, to save."""
        from zerobench.report.charts.render import chart_of  # noqa: PLC0415 -- altair is for who asks
        from zerobench.report.words.palette import resolved  # noqa: PLC0415 -- as above

        return chart_of(self.drawing, resolved)

    def __repr__(self) -> str:
        return self.figure.title

    def _repr_html_(self) -> str:
        from zerobench.report.words.palette import colours  # noqa: PLC0415 -- altair is for who asks

        declared = ";".join(f"{name}:{colour}" for name, colour in colours("light").items())
        title, caption = escape(self.figure.title), escape(self.figure.caption)
        style = f"{declared};color:var(--ink);background:var(--paper)"
        return f'<figure style="{style}"><b>{title}</b>{self.drawing.draw()}<figcaption>{caption}</figcaption></figure>'


class Charts(dict[str, Chart]):
    """Charts by their keys, which a notebook draws one below the other."""

    def _repr_html_(self) -> str:
        return "\n".join(chart._repr_html_() for chart in self.values())


def plan(
    *,
    model: str,
    gpus: int,
    gpu: str,
    gpus_per_node: int = 8,
    host_memory: str | None = None,
    nvme: str | None = None,
    blocks: str | None = None,
    micro_batch_size: int | None = None,
    gradient_accumulation_steps: int | None = None,
    sequence_length: int | None = None,
    precision: str | None = None,
    activation_checkpointing: bool = False,
    lora: int | str | None = None,
    stages: Sequence[int] | None = None,
    ds_config: str | Path | Mapping[str, Any] | None = None,
    evidence: str | None = None,
    reports: str | Path = REPORTS,
) -> PlanResult:
    """Each ZeRO stage and offload of `model` on the cluster, or `ds_config` alone.

    Where nothing fits, what makes it fit is tried too, as the command does. Raises UserError.
    """
    return _planned(locals(), relieves=True)


def tune(
    model: str,
    *,
    gpus: int,
    gpu: str,
    global_batch: int,
    gpus_per_node: int = 8,
    host_memory: str | None = None,
    nvme: str | None = None,
    blocks: str | None = None,
    sequence_length: int | None = None,
    precision: str | None = None,
    lora: int | str | None = None,
    stages: Sequence[int] | None = None,
    evidence: str | None = None,
    reports: str | Path = REPORTS,
) -> PlanResult:
    """The configuration with the most expected tokens/s at `global_batch` sequences a step. Raises UserError."""
    wanted = read_plan(request_of(locals() | {"reports": Path(reports), "tunes": True}))
    return _result(outcome(wanted, Path(reports), Observer()), wanted.cluster)


def predict(
    model: str,
    ds_config: str | Path | Mapping[str, Any],
    *,
    gpus: int,
    gpu: str,
    gpus_per_node: int = 8,
    host_memory: str | None = None,
    nvme: str | None = None,
    blocks: str | None = None,
    micro_batch_size: int | None = None,
    gradient_accumulation_steps: int | None = None,
    sequence_length: int | None = None,
    precision: str | None = None,
    activation_checkpointing: bool = False,
    lora: int | str | None = None,
    evidence: str | None = None,
    reports: str | Path | None = None,
) -> Prediction:
    """Predict what `model` under `ds_config`, a file or its keys, takes on `gpus` GPUs.

    The run is kept under `reports`; without it nothing stays on disk, so that a prediction in a test is not the newest
    run of a project. Raises UserError, also where it could not be predicted, with the reason.
    """
    arguments = locals()
    if reports is not None:
        return _predicted(arguments)
    folder = Path(mkdtemp(prefix="zerobench-"))
    try:
        prediction = _predicted(arguments | {"reports": folder})
    except BaseException:
        rmtree(folder, ignore_errors=True)
        raise
    finalize(prediction.row.trial, rmtree, folder, ignore_errors=True)  # it reads its files when asked
    return prediction


def load(run: str | None = None, reports: str | Path = REPORTS) -> RunTables:
    """The run called `run`, a folder or its name; the newest one. Raises UserError: there is none."""
    return RunTables(load_run(find_run(run, Path(reports))))


def run(
    sweep: str | Path,
    *,
    sets: Sequence[str] = (),
    only: Sequence[str] = (),
    repeats: int | None = None,
    reports: str | Path = REPORTS,
) -> RunTables:
    """Run a sweep file, or a shipped sweep, on this machine as `zerobench run` does, in silence; its tables.

    `sets` and `only` are as the options: `["micro_batch_size=1,2"]`. How each trial ended stands in `trials`. Raises
    UserError: a mistake in the request, before anything is started.
    """
    loaded = load_sweep(str(sweep), list(sets), list(only), repeats)
    machine = measure_arithmetic(detect_machine(), loaded)
    planned = expand(loaded, machine)
    resolved_configs(planned)
    executor = LocalExecutor(machine.cpu_cores, machine.num_gpus, None)
    result = start_sweep(loaded, planned, machine, reports=Path(reports), executor=executor, observer=Observer())
    return load(str(result.folder.path))


def _predicted(arguments: Mapping[str, Any]) -> Prediction:
    planned = _planned(arguments, relieves=False)  # the question is of this configuration alone
    if not planned.predictions:
        [trial, *_] = load_run(planned.path).trials()
        raise UserError(f"predict: {trial.record.reason or trial.record.status.value}")
    return planned.predictions[0]


def _file_of(ds_config: str | Path | Mapping[str, Any], reports: Path) -> str:
    """The path of a configuration; of one that is given by its keys, of a file that is kept beside the runs."""
    return keep_config(ds_config, reports) if isinstance(ds_config, Mapping) else str(ds_config)


def _planned(arguments: Mapping[str, Any], *, relieves: bool) -> PlanResult:
    """The plan that the arguments of `plan` ask for."""
    ds_config, folder = arguments["ds_config"], Path(arguments["reports"])
    user_file = None if ds_config is None else _file_of(ds_config, folder)
    wanted = read_plan(request_of({**arguments, "ds_config": user_file, "reports": folder}))
    return _result(outcome(wanted, folder, Observer(), relieves=relieves), wanted.cluster)


def _result(made: Outcome, cluster: Cluster) -> PlanResult:
    predictions = [Prediction(row, cluster) for row in made.decided.rows]
    return PlanResult(made.path, predictions, made.decided, made.keep(), cluster)


def _frame(rows: Sequence[TrialFigures]) -> Frame:
    from zerobench.report.documents.plan_frame import plan_frame  # noqa: PLC0415 -- pandas is for who asks

    return plan_frame(rows)
