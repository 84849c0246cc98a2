"""Environment and topology of each node: one document per node in a shared folder.

    python -m zerobench.launch.run.node_environment FOLDER NAME

A job runs it on each of its nodes before the ranks; a runner with a hostfile runs it on each host over ssh. NAME is the
node's name in the scheduler or the hostfile, which differs even if hostnames do not. The first capture stays, put in
place by rename, so concurrent nodes and jobs do no harm. A login over ssh may not have all variables of the ranks: for
those nodes the login's are recorded.
"""

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zerobench.common.errors import UserError
from zerobench.launch.machine.environment import capture_environment
from zerobench.launch.run import remote
from zerobench.records.folder import write_whole, writing
from zerobench.records.store import read_json


def record_node(folder: Path, name: str) -> Path:
    """Capture this node into `folder` as `name`, unless it is there; returns the path.

    Raises UserError if `name` is not a file name, or the folder cannot be written.
    """
    path = node_file(folder, name)
    if is_captured(path):
        return path
    _write(folder, name, capture_environment())
    return path


def record_hosts(folder: Path, hosts: Iterable[str]) -> None:
    """Capture each of `hosts` that is missing in `folder`, all at once, over ssh.

    A failing host is no error: its document has the reason, and the next call tries again.

    Raises UserError if a host's name is not a file name, or the folder cannot be written.
    """
    missing = [host for host in dict.fromkeys(hosts) if not is_captured(node_file(folder, host))]
    commands = {host: ("zerobench.launch.run.node_environment", str(folder.resolve()), host) for host in missing}
    for host, fault in remote.run_modules("environment", commands).items():
        _write(folder, host, {"captured_at_s": time.time(), "fault": fault})


def _write(folder: Path, name: str, document: Mapping[str, Any]) -> None:
    with writing(f"{folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(node_file(folder, name), json.dumps({"node": name, **document}, indent=1))


def node_file(folder: Path, name: str) -> Path:
    """Return the document's path of node `name`. Raises UserError if `name` is not a file name."""
    if not name or Path(name).name != name or name.startswith(".") or not name.isprintable():
        raise UserError(f"NAME: {name!r} is not a node name; choices: no '/', no leading dot")
    return folder / f"{name}.json"


def is_captured(path: Path) -> bool:
    """Return True if the document at `path` holds an environment rather than the reason for its absence."""
    try:
        return "fault" not in read_json(path)
    except UserError:
        return False


def main(arguments: Sequence[str]) -> int:
    """Capture this node; exit status 2 and a line on failure."""
    try:
        folder, name = arguments
    except ValueError:
        print("usage: python -m zerobench.launch.run.node_environment FOLDER NAME", file=sys.stderr)  # noqa: T201 - a command
        return 2
    try:
        record_node(Path(folder), name)
    except UserError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
