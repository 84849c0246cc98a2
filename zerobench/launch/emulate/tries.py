"""Tries changes of a command that does not fit, one after the other, until three do."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from zerobench.launch.emulate.changes import Candidate, for_device, for_host
from zerobench.launch.emulate.drafts import Draft
from zerobench.launch.emulate.figures import Try, Verdict, host_bytes, needed_bytes
from zerobench.launch.emulate.play import Stage, play_aside
from zerobench.records.progress import Progress

MOST_TRIES = 12
ENOUGH = 3
"""Changes that fit: which of them costs least is for whoever reads to say."""
_NOTHING_TO_CHANGE = (
    "the command has no DeepSpeed configuration file, and no known option to vary (batch size above 1, "
    "gradient checkpointing, bf16)"
)
_NOTHING_TO_MOVE = "its DeepSpeed configuration has all states on the GPU already"
_NO_FILE = "the command names no DeepSpeed configuration file in which states could be moved back to the GPU"


class Say(Protocol):
    """Told what is being done, and again where its ranks are."""

    def __call__(self, doing: str, ranks: Sequence[Progress] = ()) -> None: ...


def try_changes(stage: Stage, verdict: Verdict, say: Say) -> tuple[tuple[Try, ...], str | None]:
    """What was tried, and why nothing was where nothing was; `verdict` says that it does not fit."""
    worst = next((rank for rank in verdict.ranks if rank.fits is False), None)
    played = (worst or max(verdict.ranks, key=lambda rank: 0 if rank.host is None else rank.host.total_bytes)).account
    start = Draft.of(stage.request.command, played.options, played.num_arguments)
    refusal = played.refusal
    in_pieces = refusal is not None and refusal.in_pieces
    chosen = for_host(start) if worst is None else for_device(start, in_pieces=in_pieces)
    compiled = played.compiles and worst is not None
    tried = tuple(_played(stage, start, chosen, played.rank, say, compiled=compiled))
    if tried:
        return tried, None
    if worst is not None:
        return tried, _NOTHING_TO_CHANGE
    return tried, _NO_FILE if start.ds is None else _NOTHING_TO_MOVE


def _played(
    stage: Stage, start: Draft, chosen: Iterator[Candidate], rank: int, say: Say, *, compiled: bool
) -> Iterator[Try]:
    cluster, fitting = stage.request.cluster, 0
    for _ in range(MOST_TRIES):
        candidate = next(chosen, None)
        if candidate is None:
            return
        say(f"trying: {', '.join(candidate.says)}")
        with tempfile.TemporaryDirectory(prefix="zerobench-change-") as folder:
            draft = candidate.draft
            command = draft.command(Path(folder))
            played = play_aside(stage, command, rank, draft.variables, compiled=compiled, named=True)
        held = None if cluster.host_memory_bytes is None else host_bytes(played.record)
        node = None if held is None else held * cluster.gpus_per_node
        needed = needed_bytes(played.account, played.record)
        made = Try(
            candidate.says, played.account, needed, node, cluster.host_memory_bytes, (start, draft), played.record
        )
        yield made
        fitting += made.fits
        if fitting == ENOUGH:
            return
