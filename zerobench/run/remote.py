"""Work on the nodes of a hostfile: a trial's processes are asked for stacks and ended, by the trial's mark, and each
node's environment is captured.

DeepSpeed's own way to stop a multi-node job is `pkill -f` on every node (deepspeed/launcher/runner.py,
multinode_runner.py), which also ends other jobs of the same user. This module is run on each node instead, over the
same ssh that started the ranks, and finds them as tree.py does:
`python -m zerobench.run.remote stacks|end MARK`, `python -m zerobench.run.remote environment FOLDER NODE`.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from zerobench.run import tree

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
TIMEOUT_S = 30.0


def on_all(hosts: Sequence[str], verb: str, mark: str) -> list[str]:
    """Do `verb` (`stacks` or `end`) for the trial `mark` on all `hosts` at once; one line for each that failed."""
    return list(on_each(dict.fromkeys(hosts, (verb, mark))).values())


def on_each(asked: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Do on each host, all at once, the verb and arguments that `asked` has for it; a line for each that failed."""
    running = [(host, words[0], _start(host, words)) for host, words in asked.items()]
    return {host: fault for host, verb, process in running if (fault := _fault(host, verb, process))}


def remote_command(*words: str) -> str:
    """What a remote shell runs: from the same folder, so that a checkout works as an installed package does."""
    here = shlex.quote(str(Path.cwd()))
    return f"cd {here} && {shlex.join([sys.executable, '-m', 'zerobench.run.remote', *words])}"


def _start(host: str, words: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*SSH, host, remote_command(*words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _fault(host: str, verb: str, process: subprocess.Popen[str]) -> str | None:
    try:
        _, errors = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"{host}: {verb}: no answer in {TIMEOUT_S:g} s"
    last = errors.strip().rpartition("\n")[2]
    return f"{host}: {verb}: exit status {process.returncode}: {last}" if process.returncode else None


def main(arguments: Sequence[str]) -> None:
    """Do one verb on this node."""
    verb, first, *more = arguments
    if verb == "stacks":
        tree.request_stacks(tree.members(first))
    elif verb == "end":
        tree.end(lambda: tree.members(first))
    elif verb == "environment":
        from zerobench.run import node_environment  # noqa: PLC0415 -- it has this module do it elsewhere

        sys.exit(node_environment.main([first, *more]))
    else:
        raise SystemExit(f"{verb!r} is not known; choices: stacks, end, environment")


if __name__ == "__main__":
    main(sys.argv[1:])
