"""Logs of finished programs, with secrets masked.

DeepSpeed's launcher prints every variable with NCCL in its name (deepspeed/launcher/launch.py, main), and libraries
print URLs as given. While a trial runs, and after a runner is killed, logs are as printed.
"""

import os
from pathlib import Path

from zerobench.common.redaction import redact_file
from zerobench.launch.machine.variables import values_to_redact
from zerobench.records.folder import TrialFolder


def redact_logs(folder: TrialFolder) -> None:
    """Mask the secrets in the logs of the launcher, the simulator and the ranks of a finished trial.

    Raises OSError if a log cannot be replaced.
    """
    known = values_to_redact(os.environ)
    for path in (folder.stdout, folder.stderr, *sorted((folder.path / "logs").glob("*.log"))):
        redact_file(path, known)


def last_line(log: Path) -> str:
    """Return the last line of a failed program's log, usually the cause."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "no output"
