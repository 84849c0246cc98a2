"""Write times of rank files on the clock that classifies a trial: the runner's.

A file's modification time comes from a file server, or from the node that wrote it (Lustre): an hour ahead, it would
make the first failure the last. So it counts only if plausible: after the trial began and before the runner saw the
file. Otherwise the sighting counts, late by one look of the runner (launched.POLL_S) at most. If plausible, the
modification time is the better figure: a shared folder may show a file long after it was written.
"""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from zerobench.records.folder import TrialFolder

COARSE_S = 0.01
"""File systems round times down to a tick of the kernel's clock, in seconds."""


def written_at_s(
    folder: TrialFolder, ranks: Iterable[int], began_at_s: float, seen_at_s: Mapping[Path, float]
) -> dict[int, float]:
    """Return the Unix time, on this machine's clock, at which each of `ranks` wrote its existing record.

    `seen_at_s`: the runner's first sighting of each record, now for others; `began_at_s`: the trial's start.
    """
    now_s = time.time()
    paths = {rank: folder.rank_record(rank) for rank in ranks}
    return {
        rank: believed_s(path.stat().st_mtime, began_at_s, seen_at_s.get(path, now_s)) for rank, path in paths.items()
    }


def believed_s(modified_s: float, began_at_s: float, seen_at_s: float) -> float:
    """Return the modification time `modified_s` if plausible, else the time of the sighting."""
    return modified_s if began_at_s - COARSE_S <= modified_s <= seen_at_s + COARSE_S else seen_at_s
