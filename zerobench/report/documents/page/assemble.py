"""The page of runs: every section as plain values, for the template that escapes them all."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from zerobench.common.collection import return_memory
from zerobench.common.units import counted
from zerobench.config.trial.trial import Evidence
from zerobench.records import store
from zerobench.report.charts import figures as all_figures
from zerobench.report.documents.page import configuration
from zerobench.report.documents.page.environment import environment_grids, utc_text
from zerobench.report.documents.page.sheet import PageFigure, drawn, sheet_pieces
from zerobench.report.documents.view import losers
from zerobench.report.documents.views import Document, in_order
from zerobench.report.explain.choice import decide
from zerobench.report.explain.decision import stored
from zerobench.report.explain.sentences import headline
from zerobench.report.figures.node_facts import node_differences, node_list
from zerobench.report.figures.notes import each_once, listed, who_says
from zerobench.report.figures.run.runs import RunFigures
from zerobench.report.figures.software import installed
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.figure import Figure
from zerobench.report.tables.grid import MANY_ROWS, Grid, grid, listing_grid, table_grid
from zerobench.report.tables.model import Column, Table
from zerobench.report.tables.outcomes import outcome_counts, tally
from zerobench.report.tables.part import Part
from zerobench.report.tables.strategies import CLAIMS_TITLE, claims_listing, strategies_table
from zerobench.report.tables.trials import remarks, trials_table
from zerobench.report.words.labels import shared_lines


def reasons(runs: Sequence[store.Run], trials: Sequence[TrialFigures]) -> Part | None:
    """Reasons against each trial but the recommended one; None where not all of one run's trials predict one model on
    GPUs of one kind, or there are too many to read.
    """
    predicted = [trial for trial in trials if not trial.is_measured]
    works = {(trial.spec.model.name, trial.gpu, trial.spec.world_size) for trial in trials}
    if len(runs) > 1 or len(works) > 1 or len(predicted) < len(trials) or not 1 < len(trials) <= MANY_ROWS:
        return None
    rows = [trial for trial in trials if trial.is_whole and trial.gpu is not None]
    if not rows:
        return None
    kept = stored(runs[0], [row.trial_id for row in rows])
    if kept is not None:
        best = next((row for row in rows if row.trial_id == kept.trial_id), None)
    else:
        choice = decide(rows)
        best = None if choice is None else choice.best
    return next(losers(rows, best), None)


def description(runs: Sequence[store.Run]) -> list[str]:
    """Descriptions of the sweeps."""
    texts = (" ".join(str(run.sweep.get("description") or "").split()) for run in runs)
    return [text for text in dict.fromkeys(texts) if text]


def facts(runs: Sequence[store.Run], trials: Sequence[TrialFigures]) -> Iterator[tuple[str, str]]:
    """Facts of the page's header: names and values."""
    yield ("Runs" if len(runs) > 1 else "Run"), listed([run.run_id for run in runs])
    started = [run.began_at_s for run in runs]
    times = [utc_text(at) for at in started if isinstance(at, int | float)]
    if times:
        yield "Started", listed(times)
    yield "Trials", f"{len(trials):,}: {tally(trial.status.words for trial in trials)}"
    pending = sum(len(run.pending()) for run in runs)
    if pending:
        yield "Pending", f"{counted(pending, 'trial')} without a record (not run yet, or running)"
    yield "Evidence", tally(trial.spec.evidence.value for trial in trials)
    ran = (trial.device_name for trial in trials if trial.spec.evidence is not Evidence.FORMULA)
    devices = dict.fromkeys(filter(None, ran))
    if devices:
        yield "Devices", listed(list(devices))
    if any(trial.spec.evidence.plays_one_rank for trial in trials):
        yield "Predicted with", listed(list(dict.fromkeys(filter(None, (installed(run.environment) for run in runs)))))
    hosts = dict.fromkeys(str(run.began_on["hostname"]) for run in runs if run.began_on.get("hostname"))
    if hosts:
        yield "Started on", listed(list(hosts))
    for run in (run for run in runs if run.nodes):
        of_run = f" of {run.run_id}" if len(runs) > 1 else ""
        yield f"Nodes{of_run}", f"{len(run.nodes):,}: {node_list(run.nodes)}"
        yield from ((f"Nodes{of_run} differ", sentence) for sentence in node_differences(run.nodes))


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
    """Values of the template, as text that it escapes."""
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
        "description": description(runs),
        "facts": list(facts(runs, trials)),
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
