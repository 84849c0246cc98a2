"""What programs printed, once they have ended: of a trial with its secrets taken out.

DeepSpeed's launcher prints every variable with NCCL in its name (deepspeed/launcher/launch.py, main), and libraries
print URLs with what they were given. While the trial runs, and where the runner itself is killed, logs are as printed.
"""

import os
from pathlib import Path

from zerobench.common.redaction import redact_file
from zerobench.launch.machine.variables import untold
from zerobench.records.folder import TrialFolder


def redact_logs(folder: TrialFolder) -> None:
    """Take the secrets out of what the launcher, the simulator and the ranks of an ended trial printed.

    Raises OSError: a log cannot be replaced.
    """
    known = untold(os.environ)
    for path in (folder.stdout, folder.stderr, *sorted((folder.path / "logs").glob("*.log"))):
        redact_file(path, known)


def last_line(log: Path) -> str:
    """What a program that failed said last, as a rule why."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "no output"
