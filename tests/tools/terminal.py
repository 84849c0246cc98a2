"""A command on a terminal of 80 columns and 24 lines."""

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence

COLUMNS, LINES = 80, 24


def on_a_terminal(command: Sequence[str], environment: Mapping[str, str]) -> tuple[str, int]:
    """What `command` printed on a terminal, and its exit status."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        chunks: list[bytes] = []
        try:
            while chunk := os.read(ours, 65536):
                chunks.append(chunk)
        except OSError:  # how Linux tells that nobody has the other end any more
            pass
        finally:
            os.close(ours)
    return b"".join(chunks).decode(), process.returncode


def terminal_environment() -> dict[str, str]:
    """The environment of this process, less what would say another size or no colours."""
    kept = {key: value for key, value in os.environ.items() if key not in {"COLUMNS", "LINES", "NO_COLOR"}}
    return {**kept, "TERM": "xterm-256color"}
