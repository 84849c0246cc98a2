"""Puts the page together: every section as plain values, then one template that escapes them all."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from zerobench import __version__
from zerobench.report.charts import figures as all_figures
from zerobench.report.charts.words import counted
from zerobench.report.figure import Figure
from zerobench.report.figures.runs import RunFigures
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.headline.sentences import headline
from zerobench.report.memory_pool import given_back
from zerobench.report.notes import each_once, who_says
from zerobench.report.page import configuration, outcomes, overview
from zerobench.report.page.drawing import drawing
from zerobench.report.page.environment import environment_grids, utc_text
from zerobench.report.page.policy import content_security_policy
from zerobench.report.page.reasons import reasons
from zerobench.report.palette import colours
from zerobench.report.render.grid import Column, Grid, columns_grid, grid
from zerobench.report.render.html import listing_grid, table_grid
from zerobench.report.render.visible import visible
from zerobench.report.tables.host_parameters import TITLE as HOST
from zerobench.report.tables.host_parameters import host_parameters_table
from zerobench.report.tables.outcomes import TITLE as OUTCOMES
from zerobench.report.tables.outcomes import outcomes_table
from zerobench.report.tables.pipeline import TITLE as PIPELINE
from zerobench.report.tables.pipeline import pipeline_table
from zerobench.report.tables.server import TITLE as SERVERS
from zerobench.report.tables.server import server_table
from zerobench.report.tables.standing import TITLE as STOOD
from zerobench.report.tables.standing import standing_table
from zerobench.report.tables.strategies import CLAIMS_TITLE, claims_listing, compared_table
from zerobench.report.tables.strategies import TITLE as COMPARED
from zerobench.report.tables.trials import remarks, trials_table

ASSETS = Path(__file__).parent / "assets"


@dataclass(frozen=True)
class Drawn:
    """A figure as the template takes it; one without a drawing has no number."""

    key: str
    number: int | None
    title: str
    caption: str
    drawing: Markup | None
    grid: Grid

    @property
    def heading(self) -> str:
        """What its caption begins with."""
        return f"{self.title}." if self.number is None else f"Figure {self.number}. {self.title}."

    @property
    def rows(self) -> str:
        """How long its table is."""
        return counted(len(self.grid.rows), "row")


@dataclass(frozen=True)
class Entry:
    """A line of the contents."""

    key: str
    number: str
    title: str


def page_html(frames: RunFigures, figures: Iterable[Figure] | None = None) -> str:
    """The whole page for the runs of `frames`, as one HTML document that needs nothing else: `page_pieces` together."""
    return "".join(page_pieces(frames, figures))


def page_pieces(frames: RunFigures, figures: Iterable[Figure] | None = None) -> Iterable[str]:
    """The page a piece at a time, since all of its pieces together take ten times its text.

    `figures` are drawn from `frames` unless they are given.

    Raises:
        UserError: a document that the page shows is torn, corrupt or newer than this version.

    """
    with given_back():
        drawn = list(_drawn(all_figures(frames) if figures is None else figures))
    script = _asset("script.js")
    pieces: Iterable[str] = _template().generate(
        page=_sections(frames, drawn),
        policy=content_security_policy(script),
        style=Markup(_variables() + _asset("style.css")),  # noqa: S704 -- our own files, no value of a run in them
        script=Markup(script),  # noqa: S704 -- as above
        version=__version__,
    )
    return pieces


def _sections(frames: RunFigures, drawn: Sequence[Drawn]) -> Mapping[str, Any]:
    """What the template writes, as text that it escapes."""
    runs, trials = frames.runs, frames.figures
    compared = table_grid(compared_table(frames.comparison))
    stages = table_grid(pipeline_table(trials))
    failed, notes = [trial for trial in trials if not trial.summary.is_completed], _notes(trials)
    sides, held = table_grid(server_table(trials)), table_grid(host_parameters_table(trials))
    stood = table_grid(standing_table(failed))
    against = reasons(runs, trials)
    parts = (
        ("compared", compared.rows),
        ("reasons", against),
        ("pipeline", stages.rows),
        ("servers", sides.rows),
        ("host", held.rows),
        ("outcomes", failed),
        ("stood", stood.rows),
        ("notes", notes.rows),
    )
    absent = {key for key, is_there in parts if not is_there}
    return {
        "title": overview.title(runs),
        "description": overview.description(runs),
        "facts": overview.facts(runs, trials),
        "headline": [visible(sentence) for sentence in headline(frames)],
        "contents": list(_contents(drawn, absent)),
        "figures": drawn,
        "legend": overview.legend(trials),
        "compared": compared,
        "claims": listing_grid(f"{CLAIMS_TITLE}.", claims_listing(frames.comparison)),
        "trials": table_grid(trials_table(trials)),
        "remarks": [(visible(label), visible(words)) for label, words in remarks(trials)],
        "reasons": against and {"title": visible(against.title), "points": [visible(line) for line in against.points]},
        "stages": stages,
        "sides": sides,
        "held": held,
        "stood": stood,
        "notes": notes,
        "outcomes": table_grid(outcomes_table(failed)),
        "outcome_counts": outcomes.outcome_counts(failed),
        "evidence": list(outcomes.evidence_blocks(frames, failed)),
        "environment": environment_grids({run.run_id: run.environment for run in runs}),
        "sweeps": configuration.sweep_blocks(runs),
        "configurations": list(configuration.configurations(runs, trials)),
        "configuration_note": configuration.note(len(trials)),
        "more_configurations": configuration.more_grid(trials),
        "written_at": utc_text(time.time()),
    }


def _notes(trials: Sequence[TrialFigures]) -> Grid:
    """Each note with the trials that say it, in the order of first sight."""
    said = each_once((trial.label, note.note) for trial in trials for note in trial.notes)
    columns: list[Column[tuple[str, list[str]]]] = [
        Column("note", lambda note: note[0], is_number=False),
        Column("trials", lambda note: who_says(note[1], len(trials), 4), is_number=False),
    ]
    return grid("Unavailable figures and other remarks.", columns, list(said.items()))


def _drawn(figures: Iterable[Figure]) -> Iterator[Drawn]:
    numbers = count(1)
    for figure in figures:
        number = None if figure.svg is None else next(numbers)
        svg = None if figure.svg is None else Markup(drawing(figure.svg, figure.key))  # noqa: S704 -- drawing() checks
        title, caption = visible(figure.title.rstrip(".")), visible(figure.caption)
        yield Drawn(figure.key, number, title, caption, svg, columns_grid(f"{title}.", figure.columns))


_SECTIONS = {
    "compared": COMPARED,
    "trials": "Trials",
    "reasons": "Why not the others",
    "pipeline": PIPELINE,
    "servers": SERVERS,
    "host": HOST,
    "outcomes": OUTCOMES,
    "stood": STOOD,
    "notes": "Notes",
    "environment": "Environment",
    "configuration": "Configuration",
}
"""The sections after the figures, by their ids."""


def _contents(drawn: Sequence[Drawn], absent: Collection[str]) -> Iterator[Entry]:
    for figure in drawn:
        yield Entry(figure.key, str(figure.number or ""), figure.title)
    for key, title in _SECTIONS.items():
        if key not in absent:
            yield Entry(key, "", title)


def _variables() -> str:
    """The charts' colours in both themes; the page's own of the same name, which come later, prevail."""
    light, dark = colours("light"), colours("dark")
    return ":root {" + "".join(f" {name}: light-dark({light[name]}, {dark[name]});" for name in light) + " }\n"


def _template() -> Any:
    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2")


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
