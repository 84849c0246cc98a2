"""Trials as a file for node_exporter's textfile collector, written by prometheus_client.

    zerobench export RUN --prometheus /var/lib/node_exporter/zerobench.prom

Every sample carries `run`, `trial` and `evidence`, so that a prediction is never read as a measurement. The peaks by
category have no `total`: in Prometheus that is `sum by (run, trial) (zerobench_device_peak_bytes)`.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from zerobench.common.errors import UserError
from zerobench.records.folder import writing
from zerobench.report.export.exported import ExportRow, categories
from zerobench.report.export.figures import FIGURES
from zerobench.report.export.libraries import require

_PEAK_HELP = "Bytes in {place} memory at a steady step's peak, by category, largest rank."


def write_prometheus(trials: Iterable[ExportRow], path: Path) -> int:
    """Write `trials` to `path`, which appears whole, and return the number of samples.

    Raises UserError: prometheus_client is not installed, or `path` cannot be written.
    """
    library = require("prometheus_client", "prometheus-client", "--prometheus")
    core = require("prometheus_client.core", "prometheus-client", "--prometheus")
    if path.suffix != ".prom":
        raise UserError(f"--prometheus: {path}: node_exporter reads only files whose names end in .prom")
    families = _families(trials, core.GaugeMetricFamily)
    registry = library.CollectorRegistry()
    registry.register(_Collector(families))
    with writing(f"--prometheus: {path}"):
        library.write_to_textfile(str(path), registry)
    return sum(len(family.samples) for family in families)


class _Collector:
    """Collector that a CollectorRegistry asks for its metrics."""

    def __init__(self, families: list[Any]) -> None:
        self._families = families

    def collect(self) -> list[Any]:
        return self._families


def _families(trials: Iterable[ExportRow], gauge: Any) -> list[Any]:
    """A family of gauges for each metric that has a sample, in the order of their first ones."""
    families: dict[str, Any] = {}
    for row in trials:
        trial_labels = {"run": row.trial.run_id, "trial": row.trial.trial_id, "evidence": row.trial.spec.evidence.value}
        for name, text, labels, value in _samples(row):
            family = families.setdefault(name, gauge(f"zerobench_{name}", text))
            family.add_sample(family.name, trial_labels | labels, value)
    return list(families.values())


def _samples(row: ExportRow) -> Iterator[tuple[str, str, dict[str, str], float]]:
    """Name, help, further labels and value."""
    record = row.trial
    yield "trial_info", "Trial definition; the value is always 1.", _info(row), 1.0
    yield "trial_status", "Trial outcome; the value is always 1.", {"status": record.status.value}, 1.0
    times = {"started": record.started_at_s, "ended": record.ended_at_s}
    for name, at_s in times.items():
        if at_s is not None:
            yield f"trial_{name}_timestamp_seconds", f"When the trial {name}, Unix time.", {}, at_s
    for figure in FIGURES:
        if figure in row.figures:
            phase = {"phase": figure.phase} if figure.phase else {}
            yield figure.metric, figure.help, phase, row.figures[figure] * figure.scale
    for place, instant in row.peaks.items():
        where = {"rank": str(instant.rank), "phase": instant.phase.value}
        for category, size in categories(instant).items():
            text = _PEAK_HELP.format(place=place.value)
            yield f"{place.value}_peak_bytes", text, {**where, "category": category}, float(size)


def _info(row: ExportRow) -> dict[str, str]:
    """Settings as label values; names are made valid, DeepSpeed's dots among them."""
    named = ((_label_name(name), value) for name, value in row.settings.items() if name != "evidence")
    shown = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in named}
    return {"label": row.trial.label, **shown}


def _label_name(name: str) -> str:
    valid = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
    return f"_{valid}" if valid[:1].isdigit() else valid
