"""The environment and topology of each node, one document a node in a folder that all of them share.

    python -m zerobench.launch.run.node_environment FOLDER NAME

A job runs it on each of its nodes, before the ranks; a runner with a hostfile has it run on each host over ssh. NAME is
what the scheduler or the hostfile calls the node: it tells nodes apart where their hostnames do not. The first capture
stays, put in place by rename, so that nodes and jobs that come at once do no harm. What a login over ssh has in its
environment is not all that ranks get: of those nodes the variables are the login's.
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
    """Capture this node into `folder` as `name`, unless it is there; where it lies.

    Raises UserError: `name` is no name of a file, or the folder cannot be written.
    """
    path = node_file(folder, name)
    if is_captured(path):
        return path
    _write(folder, name, capture_environment())
    return path


def record_hosts(folder: Path, hosts: Iterable[str]) -> None:
    """Have each of `hosts` that is not in `folder` capture itself, all at once, over ssh.

    A host that fails is no error: its document says why, and the next call tries again.

    Raises UserError: a host's name is no name of a file, or the folder cannot be written.
    """
    missing = [host for host in dict.fromkeys(hosts) if not is_captured(node_file(folder, host))]
    commands = {host: ("zerobench.launch.run.node_environment", str(folder.resolve()), host) for host in missing}
    for host, fault in remote.on_each("environment", commands).items():
        _write(folder, host, {"captured_at_s": time.time(), "fault": fault})


def _write(folder: Path, name: str, document: Mapping[str, Any]) -> None:
    with writing(f"{folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(node_file(folder, name), json.dumps({"node": name, **document}, indent=1))


def node_file(folder: Path, name: str) -> Path:
    """The document of node `name`. Raises UserError: `name` is no name of a file."""
    if not name or Path(name).name != name or name.startswith(".") or not name.isprintable():
        raise UserError(f"NAME: {name!r} is not a node name; choices: no '/', no leading dot")
    return folder / f"{name}.json"


def is_captured(path: Path) -> bool:
    """Whether the document at `path` holds an environment, and not why there is none."""
    try:
        return "fault" not in read_json(path)
    except UserError:
        return False


def main(arguments: Sequence[str]) -> int:
    """Capture this node; 2 and a line where that cannot be."""
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
