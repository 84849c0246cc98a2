"""A run as Markdown for a pull request or a model card, and the name under which it is kept.

    text = markdown_report(run_frames([load_run(path)]))
    (folder / kept_name(frames)).write_text(text)

The order is that of a reader: what came out, how it was measured, the figures, what to beware of, how to have it again.
Nothing from a run becomes Markdown (text.py).
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import yaml

from zerobench.common.redaction import redact_text
from zerobench.common.units import counted, format_bytes
from zerobench.config.hardware.hardware import find_gpu
from zerobench.config.trial.trial import slug
from zerobench.records.store import Run
from zerobench.report.documents.markdown import MOST_ROWS, lines, listing_lines
from zerobench.report.documents.text import block, bullets, code, paragraph, prose, table
from zerobench.report.documents.views import Document, in_order
from zerobench.report.explain.sentences import headline
from zerobench.report.figures.environment_facts import Environment, at, commit, gpu_links, gpu_names, text
from zerobench.report.figures.node_facts import node_lines
from zerobench.report.figures.run.runs import RunFigures
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables import peak_errors, strategies
from zerobench.report.tables.outcomes import outcome_counts, outcomes_table
from zerobench.report.tables.part import few
from zerobench.report.words.labels import shared_lines

_VERSIONS = (
    "torch",
    "deepspeed",
    "transformers",
    "accelerate",
    "peft",
    "zerobench",
    "python",
    "triton",
    "flash-attn",
    "numpy",
)
_SYSTEM = ("os", "kernel", "architecture")
_PINNED = ("torch", "deepspeed", "transformers")
_VERSION = re.compile(r"[0-9][0-9A-Za-z.!]*(\+[0-9A-Za-z.]+)?").fullmatch


def hardware_lines(frames: RunFigures, run: Run) -> list[str]:
    """The nodes where there were several, the devices, their links, and the node around them."""
    environment, memory = run.environment, at(run.environment, "machine", "memory_bytes")
    facts = {
        "GPUs": _gpus(environment),
        "links between GPUs": gpu_links(environment),
        "emulated or simulated": _not_there(frames, run),
        "processor": _processor(environment),
        "host memory": format_bytes(memory, 1) if isinstance(memory, int) else None,
        "system": ", ".join(filter(None, (text(at(environment, "machine", key)) for key in _SYSTEM))),
    }
    return bullets([*node_lines(run), *(f"{name}: {value}" for name, value in facts.items() if value)])


def _gpus(environment: Environment) -> str | None:
    """`8 x NVIDIA H200, 140.4 GiB each`."""
    gpus = at(environment, "gpus")
    sizes = {at(gpu, "total_bytes") for gpu in gpus} if isinstance(gpus, list) else set()
    [size] = sizes if len(sizes) == 1 else [None]
    names = gpu_names(environment)
    if names is None:
        return "none"
    return f"{names}, {format_bytes(size, 1)} each" if isinstance(size, int) else names


def _not_there(frames: RunFigures, run: Run) -> str | None:
    """The GPUs that predictions are about, with their memory as the catalogue has it."""
    summaries = (trial for trial in frames.figures if trial.run_id == run.run_id and trial.spec.evidence.is_forked)
    known = [
        gpu for name in sorted({trial.gpu for trial in summaries if trial.gpu}) if (gpu := find_gpu(name)) is not None
    ]
    return ", ".join(f"{gpu.name} ({format_bytes(gpu.capacity_bytes, 1)})" for gpu in known) or None


def _processor(environment: Environment) -> str | None:
    model, cores = text(at(environment, "machine", "cpu", "model")), at(environment, "machine", "cpu", "usable_cores")
    return model and (f"{model}, {counted(cores, 'core')} available" if isinstance(cores, int) else model)


def version_lines(run: Run) -> list[str]:
    """A table of versions, commits and when it was."""
    environment, began = run.environment, began_at(run)
    rows = [(name, version) for name in _VERSIONS if (version := text(at(environment, "versions", name)))]
    more = {
        "CUDA of torch": text(at(environment, "torch_build", "cuda")),
        "NVIDIA driver": text(at(environment, "driver", "version")),
        "torch commit": text(at(environment, "torch_build", "git_version")),
        "zerobench commit": commit(at(environment, "git", "zerobench")),
        "date": f"{began:%Y-%m-%d %H:%M} UTC" if began else None,
    }
    rows += [(name, value) for name, value in more.items() if value]
    return table(("what", "version"), (True, True), rows) if rows else ["Versions not recorded."]


def began_at(run: Run) -> datetime | None:
    """Start of the run, in UTC."""
    at_s = run.began_at_s
    is_time = isinstance(at_s, int | float) and 0 <= at_s < 2**35
    return datetime.fromtimestamp(at_s, UTC) if is_time else None


def configuration_lines(frames: RunFigures, run: Run) -> Iterator[str]:
    """Settings that the trials share, and the whole sweep as requested."""
    yield from bullets(shared_lines([trial.spec for trial in frames.figures if trial.run_id == run.run_id]))
    yield from ("", "The sweep, `sweep.yaml`:", "")
    yield from block(redact_text(yaml.safe_dump(dict(run.sweep), sort_keys=False, allow_unicode=True)), "yaml")


def reproduce_lines(run: Run) -> Iterator[str]:
    """Commands that reproduce the run."""
    if "command" in run.sweep:
        yield f"Run {code(run.run_id)}: the command above, watched by `zerobench watch`."
        return
    yield "With zerobench at the commit or version above and the sweep above saved as `sweep.yaml`:"
    yield ""
    pins = " ".join(_pins(run.environment))
    install = [f"pip install {pins}"] if pins else []
    yield from block("\n".join([*install, "zerobench run sweep.yaml", "zerobench report --markdown"]), "sh")
    yield ""
    yield (
        f"Run {code(run.run_id)}. Each trial's folder holds its DeepSpeed configuration "
        "(`ds_config.json`), its command line (`cmd.txt`) and each rank's raw measurements."
    )


def _pins(environment: Environment) -> list[str]:
    """`torch==2.13.0`: without the local tag that says for which CUDA it was built, which package indexes do not have.

    Only what is spelt like a version is put into a command that a person may paste.
    """
    versions = {name: text(at(environment, "versions", name)) for name in _PINNED}
    return [
        f"{name}=={version.partition('+')[0]}" for name, version in versions.items() if version and _VERSION(version)
    ]


_CPU = "CPU ranks"
_STAMP = re.compile(r"_(\d{8})-\d{6}")
"""Start of a run in its name (store.STAMP)."""


def markdown_report(frames: RunFigures) -> str:
    """The runs of `frames` as one document in GitHub's Markdown.

    Raises UserError: a trial's spec is torn, corrupt or newer than this version.
    """
    sentences = [*headline(frames), *([frames.letters_sentence] if frames.letters else [])]
    lines = [f"# {prose(_title(frames))}", "", *bullets(sentences), ""]
    for title, section in _sections(frames):
        body = list(section)
        if body:
            lines += [f"## {prose(title)}", "", *body, ""]
    return "\n".join(lines)


def _sections(frames: RunFigures) -> Iterator[tuple[str, Iterable[str]]]:
    several = len(frames.runs) > 1
    trials = frames.figures
    compared = strategies.strategies_table(frames.comparison)
    own: Mapping[str, tuple[str, Iterable[str]]] = {
        "predictions": (peak_errors.TITLE, lines(peak_errors.peak_errors_table(frames.predicted))),
        "compared": (compared.title, lines(compared)),
        "claims": (strategies.CLAIMS_TITLE, listing_lines(strategies.claims_listing(frames.comparison))),
        "outcomes": ("Outcomes", _outcomes(trials)),
        "notes": ("Notes", _caveats(trials)),
    }
    yield from in_order(Document.MARKDOWN, trials, own, lambda _, table: (table.title, lines(table)))
    for run in frames.runs:
        of_run = f" of {run.run_id}" if several else ""
        yield f"Hardware{of_run}", hardware_lines(frames, run)
        yield f"Versions and date{of_run}", version_lines(run)
        yield f"Configuration{of_run}", configuration_lines(frames, run)
        yield f"How to reproduce{of_run}", reproduce_lines(run)


def _outcomes(trials: Sequence[TrialFigures]) -> Iterator[str]:
    """Numbers of trials by outcome, and reasons of those without figures."""
    yield paragraph(f"{outcome_counts(trials)}.")
    table = outcomes_table(trials)
    if table.lines:
        yield ""
        yield from lines(table)


def _caveats(trials: Sequence[TrialFigures]) -> list[str]:
    """Caveats of the figures: void throughput, disagreement, notes of the run."""
    points = [f"{trial.label}: throughput is void: {trial.void}" for trial in trials if trial.void]
    points += [
        f"{trial.label}: {name} differ from the reference by {far:.2g}: figures invalid"
        for trial in trials
        for name, far, _ in (trial.parity.disagreements if trial.parity else ())
    ]
    if not all(trial.is_measured for trial in trials):
        points.append("Predicted rows: not measured.")
    points += dict.fromkeys(note.note for trial in trials for note in trial.notes)
    return bullets(few(points, most=MOST_ROWS))


def _title(frames: RunFigures) -> str:
    """`quickstart on H200 SXM`, or `quickstart on CPU ranks`; where nothing was measured, it says so."""
    measured = _places(frames, [trial for trial in frames.figures if trial.is_measured])
    predicted = _places(frames, [trial for trial in frames.figures if not trial.is_measured])
    where = ", ".join(measured) or f"{', '.join(predicted) or _CPU}{', predicted' if predicted else ''}"
    more = f"; predicted for {', '.join(predicted)}" if measured and predicted not in ([], measured) else ""
    return f"{', '.join(frames.sweep_names)} on {where}{more}"


def _places(frames: RunFigures, trials: Sequence[TrialFigures]) -> list[str]:
    """Hardware of the trials: GPUs by the catalogue's name, else by the driver's, or CPU ranks.

    Where no rank said what it ran on (each failed early, or nobody looked into a script), it is the GPUs of the node.
    """
    places: dict[str, None] = {}
    for trial in trials:
        gpu, device = trial.gpu, trial.device_name
        if gpu or any(rank.device_uuid for rank in trial.ranks):
            places[gpu or device or _CPU] = None
        elif device is None and trial.is_measured:
            gpus = at(frames.run(trial.run_id).environment, "gpus")
            names = [str(at(gpu, "name")) for gpu in gpus] if isinstance(gpus, list) else []
            places |= dict.fromkeys(known.name if (known := find_gpu(name)) else name for name in names or [_CPU])
        else:
            places[_CPU] = None
    return list(places)


def kept_name(frames: RunFigures) -> str:
    """`<sweep>_<gpu>_<date>.md`, the file name of a kept report: `zero-stages_h200_20261121.md`, `quickstart_cpu_...`.

    Torchtitan's rule for benchmark submissions without the entity. Several sweeps or GPUs have hyphens between them.
    """
    places = [place for place in _places(frames, frames.figures) if place != _CPU]
    gpus = "-".join(map(_short, places)) or "cpu"
    parts = ("-".join(frames.sweep_names), gpus, _date(frames.runs[0]))
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
    began = began_at(run)
    return f"{began:%Y%m%d}" if began else "undated"
