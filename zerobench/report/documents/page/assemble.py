"""The page of runs: every section as plain values, for the template that escapes them all."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from zerobench.common.collection import return_memory
from zerobench.report.charts import figures as all_figures
from zerobench.report.documents.page import configuration, overview
from zerobench.report.documents.page.environment import environment_grids
from zerobench.report.documents.page.reasons import reasons
from zerobench.report.documents.page.sheet import PageFigure, drawn, sheet_pieces
from zerobench.report.documents.views import Document, in_order
from zerobench.report.explain.sentences import headline
from zerobench.report.figures.notes import each_once, listed, who_says
from zerobench.report.figures.run.runs import RunFigures
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.figure import Figure
from zerobench.report.tables.grid import Grid, grid, listing_grid, table_grid
from zerobench.report.tables.model import Column, Table
from zerobench.report.tables.outcomes import outcome_counts
from zerobench.report.tables.strategies import CLAIMS_TITLE, claims_listing, strategies_table
from zerobench.report.tables.trials import remarks, trials_table
from zerobench.report.words.labels import shared_lines


class _Section(NamedTuple):
    """A section after the figures."""

    key: str
    title: str
    grid: Grid | None = None
    """None where the template has something else there."""

    @classmethod
    def of(cls, key: str, table: Table[Any]) -> "_Section":
        return cls(key, table.title, table_grid(table))


def page_html(frames: RunFigures, figures: Iterable[Figure] | None = None) -> str:
    """The whole page for the runs of `frames`, as one HTML document that needs nothing else: `page_pieces` together."""
    return "".join(page_pieces(frames, figures))


def page_pieces(frames: RunFigures, figures: Iterable[Figure] | None = None) -> Iterable[str]:
    """The page a piece at a time, since all of its pieces together take ten times its text.

    `figures` are drawn from `frames` unless they are given.

    Raises:
        UserError: a document that the page shows is torn, corrupt or newer than this version.

    """
    with return_memory():
        shown = list(drawn(all_figures(frames) if figures is None else figures))
    return sheet_pieces("page.html.j2", _sections(frames, shown))


def _sections(frames: RunFigures, figures: Sequence[PageFigure]) -> Mapping[str, Any]:
    """What the template writes, as text that it escapes."""
    runs, trials = frames.runs, frames.figures
    failed = [trial for trial in trials if not trial.is_completed]
    against = reasons(runs, trials)
    own = {
        "trials": _Section("trials", "Trials"),
        "reasons": _Section("reasons", "Why not the others"),
        "compared": _Section.of("compared", strategies_table(frames.comparison)),
        "notes": _Section("notes", "Notes", _notes(trials)),
    }
    sections = [
        *in_order(Document.PAGE, trials, own, _Section.of),
        _Section("environment", "Environment"),
        _Section("configuration", "Configuration"),
    ]
    shown = [
        section
        for section in sections
        if (section.grid is None or section.grid.rows) and (against or section.key != "reasons")
    ]
    return {
        "kind": "report",
        "title": listed(frames.sweep_names),
        "description": overview.description(runs),
        "facts": list(overview.facts(runs, trials)),
        "headline": headline(frames),
        "letters": frames.letters_sentence,
        "sections": shown,
        "figures": figures,
        "legend": shared_lines([trial.spec for trial in trials]),
        "claims": listing_grid(f"{CLAIMS_TITLE}.", claims_listing(frames.comparison)),
        "trials": table_grid(trials_table(trials)),
        "remarks": remarks(trials),
        "reasons": against,
        "outcome_counts": f"{outcome_counts(failed)}.",
        "evidence": list(configuration.evidence_blocks(frames, failed)),
        "environment": environment_grids({run.run_id: run.environment for run in runs}),
        "sweeps": configuration.sweep_blocks(runs),
        "configurations": list(configuration.configurations(frames)),
        "configuration_note": configuration.note(len(trials)),
        "more_configurations": configuration.more_grid(trials),
    }


def _notes(trials: Sequence[TrialFigures]) -> Grid:
    """Each note with the trials that say it, in the order of first sight."""
    by_note = each_once((trial.label, note.note) for trial in trials for note in trial.notes)
    columns: list[Column[tuple[str, list[str]]]] = [
        Column("note", lambda note: note[0], is_text=True),
        Column("trials", lambda note: who_says(note[1], len(trials), 4), is_text=True),
    ]
    return grid("Unavailable figures, and remarks.", columns, list(by_note.items()))
