"""Host memory of all ranks of a node while they load a model: writes figures.csv, and prints a table.

    python -m benchmarks.loading.measure 2 200          # ranks, million parameters of a Llama

Anonymous memory (what the ranks have of their own) is looked at 200 times a second, and so is what is mapped of files:
the page cache, which the kernel takes back when it needs it. Figures are bytes a parameter beyond the imported
libraries: the most while loading, what is left when the model is there, the most while the engine is built, and then
what is left. The most is each rank's own, summed: whether they reach it together differs from run to run, and a node
must have room for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.csv_rows import as_csv
from benchmarks.loading.rank import WAYS
from zerobench.launch.run.launcher import free_port
from zerobench.rank.training.loading import write_checkpoint

FILE = Path(__file__).with_name("figures.csv")
_EVERY_S = 0.005
_MOST_S = 900.0
_HIDDEN, _VOCABULARY, _SHARDS = 1024, 32000, 4
_EXACT_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_TOP_PAD_": "0"}


@dataclass(frozen=True)
class Figure:
    """Bytes of all ranks of the node together, beyond what they had before."""

    way: str
    ranks: int
    parameters: int
    load_peak_bytes: int
    loaded_bytes: int
    init_peak_bytes: int
    ready_bytes: int
    file_peak_bytes: int
    """Mapped of files, at the most."""


def llama(million: int) -> dict[str, object]:
    """The config of a Llama of about so many million parameters, at least one layer."""
    inner = 3 * _HIDDEN
    layer = 4 * _HIDDEN**2 + 3 * _HIDDEN * inner
    layers = max(1, round((million * 10**6 - _VOCABULARY * _HIDDEN) / layer))
    sizes = {"hidden_size": _HIDDEN, "intermediate_size": inner, "num_hidden_layers": layers, "vocab_size": _VOCABULARY}
    return {"model_type": "llama", "num_attention_heads": 16, "tie_word_embeddings": True, **sizes}


class Node:
    """The ranks, looked at from outside."""

    def __init__(self, way: str, checkpoint: Path, marks: Path, ranks: int) -> None:
        self._marks, self._count = marks, ranks
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
        shared |= {"DS_ACCELERATOR": "cpu", **_EXACT_MALLOC}
        command = [sys.executable, "-m", "benchmarks.loading.rank", way, str(checkpoint), str(marks)]
        self._logs = [(marks / f"{rank}.log").open("w") for rank in range(ranks)]
        self._processes = [
            subprocess.Popen(
                command,
                env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            for rank, log in enumerate(self._logs)
        ]

    def held(self, field: str) -> int:
        """Bytes of all ranks now: RssAnon or RssFile."""
        return sum(self._each(field))

    def _each(self, field: str) -> list[int]:
        return [_status(process.pid, field) for process in self._processes]

    def until(self, moment: str) -> tuple[int, int]:
        """The most of both until all ranks are there, each rank's summed. Raises RuntimeError: one ended before."""
        fields = ("RssAnon", "RssFile")
        most = {field: [0] * self._count for field in fields}
        deadline = time.monotonic() + _MOST_S
        while not all((self._marks / f"{rank}.{moment}").exists() for rank in range(self._count)):
            if any(process.poll() is not None for process in self._processes) or time.monotonic() > deadline:
                raise RuntimeError(f"a rank ended before it was {moment}: {self._last_words()}")
            most = {field: [*map(max, most[field], self._each(field))] for field in fields}
            time.sleep(_EVERY_S)
        anonymous, mapped = (sum(most[field]) for field in fields)
        return anonymous, mapped

    def go_on(self, until: str) -> None:
        """Let all ranks pass."""
        (self._marks / until).touch()

    def end(self) -> None:
        """End what still runs, and let go of the logs."""
        for process in self._processes:
            process.kill()
            process.wait()
        for log in self._logs:
            log.close()

    def _last_words(self) -> str:
        logs = [Path(log.name).read_text(encoding="utf-8", errors="replace").strip() for log in self._logs]
        return next((text.splitlines()[-1] for text in logs if "Error" in text), "no reason is known")


def measure(way: str, checkpoint: Path, ranks: int, parameters: int) -> Figure:
    """One way of loading."""
    with tempfile.TemporaryDirectory(prefix="zerobench-loading-") as marks:
        node = Node(way, checkpoint, Path(marks), ranks)
        try:
            node.until("begun")
            own, files = node.held("RssAnon"), node.held("RssFile")
            node.go_on("begin")
            load_peak, file_peak = node.until("loaded")
            loaded = node.held("RssAnon")
            node.go_on("build")
            init_peak, _ = node.until("ready")
            ready = node.held("RssAnon")
        finally:
            node.end()
    beyond = (max(load_peak, loaded), loaded, max(init_peak, ready), ready)
    load, held, init, steady = (max(size - own, 0) for size in beyond)
    return Figure(way, ranks, parameters, load, held, init, steady, max(file_peak - files, 0))


def table(figures: Sequence[Figure]) -> list[str]:
    """Markdown: bytes a parameter of the model, all ranks of the node together."""
    lines = ["| stage, weights | load, peak | loaded | init, peak | ready | of files |", "|---|---|---|---|---|---|"]
    for figure in figures:
        sizes = (
            figure.load_peak_bytes,
            figure.loaded_bytes,
            figure.init_peak_bytes,
            figure.ready_bytes,
            figure.file_peak_bytes,
        )
        lines.append(f"| {figure.way} | " + " | ".join(f"{size / figure.parameters:.2f}" for size in sizes) + " |")
    return lines


def _status(pid: int, field: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)


def _random(name: str, shape: torch.Size) -> torch.Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.empty(shape).normal_(0, 0.02, generator=generator)


def main(ranks: int, million: int) -> None:
    """Every way."""
    with tempfile.TemporaryDirectory(prefix="zerobench-checkpoint-") as folder:
        shard_bytes = 2 * million * 10**6 // _SHARDS
        written = write_checkpoint(Path(folder), llama(million), torch.bfloat16, _random, shard_bytes)
        figures = [measure(way, Path(folder), ranks, written // 2) for way in WAYS]
    FILE.write_text(as_csv(Figure, figures), encoding="utf-8")
    sys.stdout.write("\n".join(table(figures)) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
