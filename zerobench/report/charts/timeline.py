"""Device memory within one step, phase by phase, with the driver's samples over it.

What the ledger says lies in torch: the most within each phase and what is left at its end. NVML's line lies above, by
what torch reserved and does not use and by what lies outside torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd

from zerobench.report.charts import palette
from zerobench.report.charts.render import WIDTH, Mark, Specification, arranged, data, layered, svg
from zerobench.report.charts.shown import KEY, completed, doubt_sentence, most_telling, prepared
from zerobench.report.charts.words import ByteAxis, byte_axis
from zerobench.report.column_units import time_unit
from zerobench.report.figure import Figure
from zerobench.report.frames.run_frames import RunFrames
from zerobench.report.nvml_samples import read_samples
from zerobench.report.nvml_view import bare_uuid
from zerobench.units import format_bytes, format_seconds

MOST_TRIALS = 6
_MOST_SAMPLES = 400
"""Samples drawn of one trial: more than a line can show."""
_KEY = "memory-within-a-step"
_ORDER = {"forward": 0, "backward": 1, "step": 2}


@dataclass(frozen=True)
class _Panel:
    """One trial's step: rows of phases with `begin` and `end` on the panel's axis, and samples with `at`."""

    name: str
    phases: list[dict[str, Any]]
    samples: list[dict[str, Any]]
    is_timed: bool
    """Whether the axis is seconds; else each phase has the same width."""


def figure(frames: RunFrames) -> Figure | None:
    """The steady step of a few trials; None where no trial completed with phases."""
    phases = frames.phases[(frames.phases["step"] == "steady") & (frames.phases["place"] == "device")]
    phases = phases[phases["peak_bytes"].notna() & phases["live_bytes"].notna()]
    trials = completed(prepared(frames.trials)).merge(phases[KEY].drop_duplicates(), on=KEY)
    if trials.empty:
        return None
    preferred = trials[trials["is_measured"]] if trials["is_measured"].any() else trials
    chosen = most_telling(preferred, preferred["device_peak_bytes"].fillna(0), MOST_TRIALS)
    panels = [_panel(frames, trial, phases) for _, trial in chosen.iterrows()]
    sizes = [row["peak"] for panel in panels for row in panel.phases]
    unit = byte_axis([*sizes, *(row["used"] for panel in panels for row in panel.samples)])
    drawn = arranged([_drawn(panel, unit, panels) for panel in panels], 1, 14)
    title = "Device memory within a step"
    caption = _caption(panels, chosen, len(preferred), len(trials) - len(preferred))
    return Figure(_KEY, title, caption, svg(drawn, _KEY, title), _table(panels, unit))


def _panel(frames: RunFrames, trial: pd.Series[Any], phases: pd.DataFrame) -> _Panel:
    """Phases of the rank with the largest peak."""
    own = phases[(phases["run_id"] == trial["run_id"]) & (phases["trial_id"] == trial["trial_id"])]
    own = own.sort_values("phase", key=lambda names: names.map(_ORDER), kind="stable")
    is_timed = bool(trial["is_measured"]) and bool(own["start_s"].notna().all() and own["end_s"].notna().all())
    origin = float(own["start_s"].min()) if is_timed else 0.0
    rows: list[dict[str, Any]] = []
    for position, (_, row) in enumerate(own.iterrows()):
        begin, end = (float(row["start_s"]), float(row["end_s"])) if is_timed else (position, position + 1)
        rows.append(
            {
                "phase": str(row["phase"]),
                "begin": begin - origin,
                "end": end - origin,
                "peak": int(row["peak_bytes"]),
                "live": int(row["live_bytes"]),
            }
        )
    samples = _samples(frames, trial, int(own["rank"].iloc[0]), origin, rows[-1]["end"]) if is_timed else []
    return _Panel(str(trial["name"]), rows, samples, is_timed)


def _samples(frames: RunFrames, trial: pd.Series[Any], rank: int, origin: float, length: float) -> list[dict[str, Any]]:
    """NVML's samples of the rank's device between the step's begin and its end, seconds from the begin."""
    ranks = frames.ranks[(frames.ranks["run_id"] == trial["run_id"]) & (frames.ranks["trial_id"] == trial["trial_id"])]
    own = ranks[ranks["rank"] == rank]
    if own.empty or own["device_uuid"].isna().all():
        return []
    uuid, node, hostname = own[["device_uuid", "node", "hostname"]].iloc[0]
    folder = frames.run(str(trial["run_id"])).folder.trial(str(trial["trial_id"]))
    path = folder.nvml_samples(str(hostname) if pd.isna(node) else int(node))
    if not path.exists():
        return []
    found: list[dict[str, Any]] = []
    for batch in read_samples(path):
        frame = batch.select(["gpu_uuid", "t_s", "used_bytes"]).to_pandas()
        inside = frame[frame["t_s"].between(origin, origin + length) & frame["used_bytes"].notna()]
        inside = inside[inside["gpu_uuid"].map(lambda one: bare_uuid(str(one))) == bare_uuid(str(uuid))]
        found += [
            {"at": float(at) - origin, "used": int(used)}
            for at, used in zip(inside["t_s"], inside["used_bytes"], strict=True)
        ]
    return thinned(found, _MOST_SAMPLES)


def thinned(samples: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """At most `most` of `samples`: of neighbours the one with the largest `used`, so that no peak is lost."""
    stride = -(-len(samples) // most)
    if stride <= 1:
        return samples
    return [max(samples[at : at + stride], key=lambda one: one["used"]) for at in range(0, len(samples), stride)]


def _drawn(panel: _Panel, unit: ByteAxis, panels: list[_Panel]) -> Specification:
    top = max(
        [row["peak"] for one in panels for row in one.phases] + [r["used"] for one in panels for r in one.samples]
    )
    y = alt.Y(
        "size:Q",
        title=unit.name,
        axis=alt.Axis(tickCount=4, titleAngle=0, titleAlign="right", titleY=-6, titleX=-6),
        scale=alt.Scale(domain=[0, unit.of(top) * 1.2], nice=False),
    )
    end = panel.phases[-1]["end"]
    title = "seconds from the step's begin" if panel is panels[-1] else None
    axis = alt.Axis(title=title, tickCount=8) if panel.is_timed else None
    x = alt.X("begin:Q", axis=axis, scale=alt.Scale(domain=[0, end], nice=False))
    layers = [_peaks(panel, unit, x, y), *_live(panel, unit, x, y), *_phase_names(panel, x)]
    if panel.samples:
        layers += _nvml(panel, unit, x, y)
    return layered(layers, WIDTH - 70, 110, panel.name)


def _peaks(panel: _Panel, unit: ByteAxis, x: alt.X, y: alt.Y) -> Mark:
    """A block a phase, as high as the most within it."""
    rows = [{**row, "size": unit.of(row["peak"]), "said": _said(panel, row)} for row in panel.phases]
    fill = palette.category_colour("buffers")
    mark = alt.Chart(data(rows)).mark_rect(fill=fill, fillOpacity=0.35, stroke="var(--muted)", strokeWidth=0.7)
    return mark.encode(x=x, x2=alt.X2("end:Q"), y=y, y2=alt.datum(0), description=alt.Description("said:N"))


def _said(panel: _Panel, row: dict[str, Any]) -> str:
    took = f" in {format_seconds(row['end'] - row['begin'])}" if panel.is_timed else ""
    peak, live = format_bytes(row["peak"]), format_bytes(row["live"])
    return f"{panel.name}, {row['phase']}{took}: {peak} at the peak, {live} at the end"


def _live(panel: _Panel, unit: ByteAxis, x: alt.X, y: alt.Y) -> list[Mark]:
    """From each phase's end to the next: what is live between them."""
    first = panel.phases[-1]["live"]  # a steady step begins with what the one before it left
    rows = [{"begin": 0.0, "size": unit.of(first)}]
    rows += [{"begin": row["end"], "size": unit.of(row["live"])} for row in panel.phases]
    colour = palette.category_colour("parameters")
    line = alt.Chart(data(rows)).mark_line(color=colour, strokeWidth=2, aria=False)
    dots = alt.Chart(data(rows)).mark_point(color=colour, filled=True, size=40, opacity=1, aria=False)
    return [line.encode(x=x, y=y), dots.encode(x=x, y=y)]


def _phase_names(panel: _Panel, x: alt.X) -> list[Mark]:
    whole = panel.phases[-1]["end"]
    rows = [
        {"begin": (row["begin"] + row["end"]) / 2, "text": row["phase"]}
        for row in panel.phases
        if (row["end"] - row["begin"]) / whole > 0.05
    ]
    place = {"x": x, "y": alt.value(1), "text": alt.Text("text:N")}
    halo = alt.Chart(data(rows)).mark_text(fontSize=11, baseline="top", stroke="var(--paper)", strokeWidth=4)
    name = alt.Chart(data(rows)).mark_text(fontSize=11, baseline="top", color="var(--muted)")
    return [halo.encode(**place), name.encode(**place)]


def _nvml(panel: _Panel, unit: ByteAxis, x: alt.X, y: alt.Y) -> list[Mark]:
    rows = [
        {
            "begin": row["at"],
            "size": unit.of(row["used"]),
            "said": f"{panel.name}, NVML: {format_bytes(row['used'])} used",
        }
        for row in panel.samples
    ]
    line = alt.Chart(data(rows)).mark_line(color="var(--ink)", strokeWidth=1.4, strokeDash=[4, 2], aria=False)
    dots = alt.Chart(data(rows)).mark_point(color="var(--ink)", filled=True, size=14, opacity=1)
    return [line.encode(x=x, y=y), dots.encode(x=x, y=y, description=alt.Description("said:N"))]


def _caption(panels: list[_Panel], chosen: pd.DataFrame, known: int, predicted: int) -> str:
    text = (
        "A block is as high as the most that a phase of a steady step held on the device, on the rank with the largest"
        " peak; the line joins what is live at the phases' ends."
    )
    if any(panel.samples for panel in panels):
        text += " Dashed, with points: what NVML sampled as used, torch's reserve and all else on the device included."
    elif any(panel.is_timed for panel in panels):
        text += " There are no samples of NVML in these steps."
    if any(panel.is_timed for panel in panels):
        text += " This step is watched by the ledger, which slows it."
    if not all(panel.is_timed for panel in panels):
        text += " Phases of equal width: predicted steps have no times."
    left_out = (
        f" {len(panels)} of {known:,} trials: of each stage and offload in turn the largest."
        if known > len(panels)
        else ""
    )
    beside = f" The {predicted:,} predicted beside them are not drawn." if predicted else ""
    return text + doubt_sentence(chosen) + left_out + beside


def _table(panels: list[_Panel], unit: ByteAxis) -> pd.DataFrame:
    time = time_unit(row["end"] - row["begin"] for panel in panels if panel.is_timed for row in panel.phases)
    rows = []
    for panel in panels:
        for row in panel.phases:
            used = [s["used"] for s in panel.samples if row["begin"] <= s["at"] <= row["end"]]
            rows.append(
                {
                    "trial": panel.name,
                    "phase": row["phase"],
                    f"time ({time.name})": time.show(row["end"] - row["begin"] if panel.is_timed else None),
                    f"peak ({unit.name})": unit.show(row["peak"]),
                    f"live at the end ({unit.name})": unit.show(row["live"]),
                    f"largest NVML sample ({unit.name})": unit.show(max(used, default=None)),
                }
            )
    return pd.DataFrame(rows)
