"""The top of the page: what was run, where and when, how it ended, and how much of it was seen and not predicted."""

from collections.abc import Iterator, Sequence

from zerobench.common.units import counted
from zerobench.config.trial.trial import Evidence
from zerobench.records import store
from zerobench.report.documents.page.environment import utc_text
from zerobench.report.figures.node_facts import node_differences, node_list
from zerobench.report.figures.notes import listed
from zerobench.report.figures.software import installed
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.outcomes import tally


def description(runs: Sequence[store.Run]) -> list[str]:
    """What the sweeps say of themselves."""
    texts = (" ".join(str(run.sweep.get("description") or "").split()) for run in runs)
    return [text for text in dict.fromkeys(texts) if text]


def facts(runs: Sequence[store.Run], trials: Sequence[TrialFigures]) -> Iterator[tuple[str, str]]:
    """What the header of the page lists: names, and what is to be said under each."""
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
