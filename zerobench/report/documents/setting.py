"""What a submission must say beside its figures: hardware, links, versions and dates, the exact configuration.

It is what torchtitan asks of benchmark submissions (github.com/pytorch/torchtitan, benchmarks/README.md, "Submission
Guidelines": model, hardware with interconnections, training configs, versions and date, notes that help to reproduce),
but for who submits, which the pull request says.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime

import yaml

from zerobench.common.redaction import redact_text
from zerobench.common.units import counted, format_bytes
from zerobench.config.hardware.hardware import find_gpu
from zerobench.records.store import Run
from zerobench.report.documents.text import block, bullets, code, table
from zerobench.report.figures.environment_facts import Environment, at, commit, gpu_links, gpu_names, text
from zerobench.report.figures.node_facts import node_lines
from zerobench.report.figures.run.runs import RunFigures
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
    """When the run began, in UTC."""
    at_s = run.began_at_s
    is_time = isinstance(at_s, int | float) and 0 <= at_s < 2**35
    return datetime.fromtimestamp(at_s, UTC) if is_time else None


def configuration_lines(frames: RunFigures, run: Run) -> Iterator[str]:
    """What the trials share, and the whole sweep as it was asked."""
    yield from bullets(shared_lines([trial.spec for trial in frames.figures if trial.run_id == run.run_id]))
    yield from ("", "The sweep, `sweep.yaml`:", "")
    yield from block(redact_text(yaml.safe_dump(dict(run.sweep), sort_keys=False, allow_unicode=True)), "yaml")


def reproduce_lines(run: Run) -> Iterator[str]:
    """What to type to have it again."""
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
