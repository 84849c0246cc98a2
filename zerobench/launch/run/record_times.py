"""When a rank's files were written, on the one clock that a trial is judged by: the runner's.

A file's modification time is the word of a file server, or of the node that wrote it (Lustre): an hour ahead, it
would make the first failure the last, and behind, the last the first. So it is believed only where it can be true:
after the trial began and before the runner saw the file. Else the file was written when it was seen, which is a
look of the runner late (launched.POLL_S) and no more. Believed, it is the better figure: a shared folder may show a
file long after it was written.
"""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from zerobench.records.folder import TrialFolder

COARSE_S = 0.01
"""File systems round times down to a tick of the kernel's clock."""


def written_at_s(
    folder: TrialFolder, ranks: Iterable[int], began_at_s: float, seen_at_s: Mapping[Path, float]
) -> dict[int, float]:
    """Unix time by this machine's clock at which each of `ranks` wrote its record, which is there.

    `seen_at_s`: when the runner first saw the records, now for others; `began_at_s`: when the trial began.
    """
    now_s = time.time()
    paths = {rank: folder.rank_record(rank) for rank in ranks}
    return {
        rank: believed_s(path.stat().st_mtime, began_at_s, seen_at_s.get(path, now_s)) for rank, path in paths.items()
    }


def believed_s(modified_s: float, began_at_s: float, seen_at_s: float) -> float:
    """The modification time `modified_s` where it can be true, else the time at which the file was seen."""
    return modified_s if began_at_s - COARSE_S <= modified_s <= seen_at_s + COARSE_S else seen_at_s
