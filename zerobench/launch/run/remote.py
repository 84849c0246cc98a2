"""Work on the hosts of a hostfile: request stacks of a trial's processes and end them, by the trial's mark.

DeepSpeed stops a multi-node job with `pkill -f` on every node (deepspeed/launcher/runner.py, multinode_runner.py),
which also ends other jobs of the same user. This module runs on each node instead, over the same ssh that started the
ranks, and finds them as tree.py does: `python -m zerobench.launch.run.remote stacks|end MARK`. Other modules of the
package are run in the same way.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from zerobench.common.training_python import VARIABLE
from zerobench.launch.run import tree

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
TIMEOUT_S = 30.0


def apply_verb(hosts: Sequence[str], verb: str, mark: str) -> list[str]:
    """Apply `verb` (`stacks` or `end`) to the trial `mark` on all `hosts` at once; returns a line per failure."""
    return list(run_modules(verb, dict.fromkeys(hosts, ("zerobench.launch.run.remote", verb, mark))).values())


def run_modules(what: str, commands: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Run a module with arguments, `commands` by host, on all hosts at once.

    Returns a line per failure by host; `what` names the work.
    """
    running = [(host, _start(host, words)) for host, words in commands.items()]
    return {host: fault for host, process in running if (fault := _fault(host, what, process))}


def remote_command(*words: str) -> str:
    """Return the shell command of a module: in the same folder, so that a checkout works as well, and for the same
    training Python.
    """
    here = shlex.quote(str(Path.cwd()))
    named = os.environ.get(VARIABLE)
    theirs = ["env", f"{VARIABLE}={named}"] if named else []
    return f"cd {here} && {shlex.join([*theirs, sys.executable, '-m', *words])}"


def _start(host: str, words: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*SSH, host, remote_command(*words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _fault(host: str, what: str, process: subprocess.Popen[str]) -> str | None:
    try:
        _, errors = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"{host}: {what}: no answer in {TIMEOUT_S:g} s"
    last = errors.strip().rpartition("\n")[2]
    return f"{host}: {what}: exit status {process.returncode}: {last}" if process.returncode else None


def main(arguments: Sequence[str]) -> None:
    """Apply one verb on this node."""
    verb, mark = arguments
    if verb == "stacks":
        tree.request_stacks(tree.members(mark))
    elif verb == "end":
        tree.end(lambda: tree.members(mark))
    else:
        raise SystemExit(f"{verb!r} is not known; choices: stacks, end")


if __name__ == "__main__":
    main(sys.argv[1:])
