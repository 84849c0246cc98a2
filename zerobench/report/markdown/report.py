"""A run as Markdown for a pull request or a model card, and the name under which it is kept.

    text = markdown_report(run_frames([load_run(path)]))
    (folder / kept_name(frames)).write_text(text)

The order is that of a reader: what came out, how it was measured, the figures, what to beware of, how to have it again.
Nothing from a run becomes Markdown (text.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from zerobench.report.environment_facts import at
from zerobench.report.frames.run_frames import RunFrames, TrialFrames
from zerobench.report.headline.sentences import headline
from zerobench.report.markdown.setting import configuration_lines, hardware_lines, reproduce_lines, version_lines
from zerobench.report.markdown.tables import (
    Row,
    caveat_lines,
    error_lines,
    memory_lines,
    outcome_lines,
    rows_of,
    throughput_lines,
)
from zerobench.report.markdown.text import bullets, prose
from zerobench.report.render.markdown import lines, listing_lines
from zerobench.report.tables import batch_ramp, checkpoints, compared, pipeline, server
from zerobench.spec.hardware import find_gpu
from zerobench.spec.trial import slug
from zerobench.store import Run

_CPU = "CPU ranks"
_STAMP = re.compile(r"_(\d{8})-\d{6}")
"""How a run's name says when it began (store.STAMP)."""


def markdown_report(frames: RunFrames) -> str:
    """The runs of `frames` as one document in GitHub's Markdown.

    Raises UserError: a trial's spec is torn, corrupt or newer than this version.
    """
    lines = [f"# {prose(_title(frames))}", "", *bullets(headline(frames)), ""]
    for title, section in _sections(frames):
        body = list(section)
        if body:
            lines += [f"## {prose(title)}", "", *body, ""]
    return "\n".join(lines)


def _sections(frames: RunFrames) -> Iterator[tuple[str, Iterator[str] | list[str]]]:
    several = len(frames.runs) > 1
    yield "Memory by category", memory_lines(frames)
    yield "Throughput", throughput_lines(frames)
    yield batch_ramp.TITLE, lines(batch_ramp.batch_ramp_table(frames.lines.batches))
    yield server.TITLE, lines(server.server_table(frames.lines.sides))
    yield checkpoints.TITLE, lines(checkpoints.checkpoints_table(frames.lines.checkpoints))
    yield pipeline.TITLE, lines(pipeline.pipeline_table(frames.lines.stages))
    yield compared.TITLE, lines(compared.compared_table(frames.comparison))
    yield compared.CLAIMS_TITLE, listing_lines(compared.claims_listing(frames.comparison))
    yield "Outcomes", outcome_lines(frames)
    yield "Predicted against measured", error_lines(frames)
    yield "Beware", caveat_lines(frames)
    for run in frames.runs:
        of_run = f" of {run.run_id}" if several else ""
        yield f"Hardware{of_run}", hardware_lines(frames, run)
        yield f"Versions and date{of_run}", version_lines(run)
        yield f"Configuration{of_run}", configuration_lines(frames, run)
        yield f"How to reproduce{of_run}", reproduce_lines(run)


def _title(frames: RunFrames) -> str:
    """`quickstart on H200 SXM`, or `quickstart on CPU ranks`; where nothing was measured, it says so."""
    rows = rows_of(frames.trials)
    measured = _places(frames, [row for row in rows if row["evidence"] == "measured"])
    predicted = _places(frames, [row for row in rows if row["evidence"] != "measured"])
    where = ", ".join(measured) or f"{', '.join(predicted) or _CPU}{', predicted' if predicted else ''}"
    more = f"; predicted for {', '.join(predicted)}" if measured and predicted not in ([], measured) else ""
    return f"{', '.join(_sweeps(frames))} on {where}{more}"


def _sweeps(frames: TrialFrames) -> list[str]:
    """The names of the sweeps, each once."""
    return list(dict.fromkeys(str(run.sweep.get("name") or run.run_id) for run in frames.runs))


def _places(frames: TrialFrames, rows: Sequence[Row]) -> list[str]:
    """What the trials of `rows` ran on or are about: GPUs by the catalogue's name, else by the driver's, or CPU ranks.

    Where no rank said what it ran on (each failed early, or nobody looked into a script), it is the GPUs of the node.
    """
    seen = frames.ranks[frames.ranks["device_uuid"].notna()]
    on_gpu = set(zip(seen["run_id"], seen["trial_id"], strict=True))
    found: dict[str, None] = {}
    for row in rows:
        if row["gpu"] or (row["run_id"], row["trial_id"]) in on_gpu:
            found[row["gpu"] or row["device_name"]] = None
        elif row["device_name"] is None and row["evidence"] == "measured":
            gpus = at(frames.environments[row["run_id"]], "gpus")
            names = [str(at(gpu, "name")) for gpu in gpus] if isinstance(gpus, list) else []
            found |= dict.fromkeys(known.name if (known := find_gpu(name)) else name for name in names or [_CPU])
        else:
            found[_CPU] = None
    return list(found)


def kept_name(frames: TrialFrames) -> str:
    """`<sweep>_<gpu>_<date>.md`, the file name of a kept report: `zero-stages_h200_20261121.md`, `quickstart_cpu_...`.

    Torchtitan's rule for benchmark submissions without the entity. Several sweeps or GPUs have hyphens between them.
    """
    places = [place for place in _places(frames, rows_of(frames.trials)) if place != _CPU]
    gpus = "-".join(map(_short, places)) or "cpu"
    parts = ("-".join(_sweeps(frames)), gpus, _date(frames.runs[0]))
    return "_".join(slug(re.sub(r"[\s_/]+", "-", part.strip())) for part in parts) + ".md"


def _short(gpu: str) -> str:
    """The shortest name without blanks that the catalogue has for a GPU: h200 for `H200 SXM`, else all of its name."""
    known = find_gpu(gpu)
    names = [name for name in (known.name, *known.names) if " " not in name] if known else []
    return min(names, key=len, default=known.name if known else gpu).lower()


def _date(run: Run) -> str:
    """The day on which the run began, YYYYMMDD: as its name says, else in UTC by its environment; `undated` without."""
    stamp = _STAMP.search(run.run_id)
    if stamp is not None:
        return stamp[1]
    at_s = run.began_at_s
    is_time = isinstance(at_s, int | float) and 0 <= at_s < 2**35
    return f"{datetime.fromtimestamp(at_s, UTC):%Y%m%d}" if is_time else "undated"
