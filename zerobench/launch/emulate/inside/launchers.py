"""Reads the command that a user gives: which script it would start, how often, on how many nodes, in what environment.

Launchers are not run. Each is read by its own parser, as it is installed, so that an option means here what it means
there; what it says of processes and nodes is held against the GPUs that were asked for.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerobench.common.errors import UserError
from zerobench.common.units import counted
from zerobench.launch.emulate.inside.script import Kind, Script, find_script
from zerobench.launch.emulate.part import Part

UNDERSTOOD = "deepspeed, torchrun, python -m torch.distributed.run, accelerate launch, python, a Python script"

_Reader = Callable[[Sequence[str], Part], "Launch"]

PLAIN = "python"
"""What starts one process and says nothing of ranks."""


@dataclass(frozen=True)
class Launch:
    """What a command starts."""

    launcher: str
    script: Script
    processes: tuple[str, int] | None = None
    """Processes of a node and where the command says so; None: it says nothing."""
    nodes: tuple[str, int] | None = None
    """Nodes in all, in the same way."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What a rank's environment has more than a plain one."""


def read_launch(part: Part) -> Launch:
    """What `part.command` starts. Raises UserError: it cannot be read, or asks for other GPUs than were asked for."""
    name, *arguments = part.command
    launch = _read(Path(name).name, name, arguments, part)
    _check(launch, part)
    return launch


def _read(base: str, name: str, arguments: Sequence[str], part: Part) -> Launch:
    if re.fullmatch(r"python(\d+(\.\d+)*)?t?", base):
        return _python(arguments, part)
    if launch := _by_launcher((base, *arguments), part):
        return launch
    if base.endswith(".py") or _runs_python(Path(name)):
        return Launch(PLAIN, find_script(name, arguments))
    if shutil.which(name) is None:
        raise UserError(f"COMMAND: {name!r} not found; zerobench emulate supports: {UNDERSTOOD}")
    raise UserError(f"COMMAND: {name!r} is not a launcher that zerobench emulate supports; choices: {UNDERSTOOD}")


def _runs_python(path: Path) -> bool:
    """Whether the first line of the file says Python."""
    try:
        with path.open("rb") as file:
            first = file.readline(256)
    except OSError:
        return False
    return first.startswith(b"#!") and b"python" in first


_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def _python(arguments: Sequence[str], part: Part) -> Launch:
    """`python [options] script ...`, `-m module ...`; a launcher by its module is that launcher."""
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
        option = rest.pop(0)
        if option in _WITH_VALUE and rest:
            rest.pop(0)
        elif len(option) > 2 and option[1] != "-" and option[-1] in "mc":  # -um
            rest.insert(0, f"-{option[-1]}")
    if not rest or rest[0] == "-" or (rest[0] in ("-m", "-c") and len(rest) == 1):
        raise UserError("COMMAND: python without a script; for example: python train.py")
    if rest[0] == "-c":
        raise UserError("COMMAND: python -c is not supported; put the code into a file")
    if rest[0] == "-m":
        return _by_launcher(rest, part) or Launch(PLAIN, Script(Kind.MODULE, rest[1], tuple(rest[2:])))
    return Launch(PLAIN, find_script(rest[0], rest[1:]))


def _by_launcher(words: Sequence[str], part: Part) -> Launch | None:
    """What is started by the launcher that the words begin with; None: they begin with none."""
    for reader, commands in _launchers().items():
        for command in map(str.split, commands):
            if list(words[: len(command)]) == command:
                return reader(words[len(command) :], part)
    return None


def _launchers() -> Mapping[_Reader, Sequence[str]]:
    """Who reads which commands: programs, and `-m` with modules."""
    return {
        _torchrun: ("torchrun", "-m torch.distributed.run", "-m torch.distributed.launch"),
        _deepspeed: ("deepspeed", "deepspeed.pt", "ds", "-m deepspeed.launcher.runner"),
        _accelerate: (
            "accelerate launch",
            "accelerate-launch",
            "-m accelerate launch",
            "-m accelerate.commands.accelerate_cli launch",
            "-m accelerate.commands.launch",
        ),
    }


def _torchrun(arguments: Sequence[str], part: Part) -> Launch:
    from torch.distributed.run import determine_local_world_size, parse_args

    args = _parsed("torchrun", parse_args, list(arguments))
    torchruns = arguments[: len(arguments) - len(args.training_script_args) - 1]
    processes = nodes = None
    text = str(args.nproc_per_node)
    if text not in ("gpu", "auto") and _names(torchruns, "nproc"):
        processes = (f"--nproc-per-node {text}", _within("torchrun", determine_local_world_size, text))
    if _names(torchruns, "nnodes"):
        most = str(args.nnodes).rpartition(":")[2]
        if not most.isdecimal():
            raise UserError(f"COMMAND: torchrun: --nnodes {args.nnodes} is not a number of nodes")
        nodes = (f"--nnodes {args.nnodes}", int(most))
    script = _script("torchrun", args, args.training_script, args.training_script_args, part)
    return Launch("torchrun", script, processes, nodes)


def _names(arguments: Sequence[str], option: str) -> bool:
    """Whether one of a launcher's own arguments names the option, in any of its spellings."""
    return any(word.lstrip("-").replace("_", "-").startswith(option) for word in arguments if word.startswith("-"))


def _script(launcher: str, args: Any, target: str, arguments: Sequence[str], part: Part) -> Script:
    if args.module:
        return Script(Kind.MODULE, target, tuple(arguments))
    if args.no_python:
        inner = _read(Path(target).name, target, list(arguments), part)
        if inner.launcher != PLAIN:
            raise UserError(f"COMMAND: {launcher} starts {inner.launcher}: nested launchers are not supported")
        return inner.script
    return find_script(target, arguments)


def _deepspeed(arguments: Sequence[str], part: Part) -> Launch:
    from deepspeed.launcher import runner

    args = _parsed("deepspeed", runner.parse_args, list(arguments))
    pool = _within("deepspeed", runner.fetch_hostfile, args.hostfile)
    if (args.num_nodes >= 0 or args.num_gpus >= 0) and (args.include or args.exclude):
        raise UserError("COMMAND: deepspeed: --num_nodes and --num_gpus do not go with --include and --exclude")
    processes = nodes = None
    if pool or args.include or args.exclude:
        local = pool or {"localhost": part.ranks_per_node}
        active = _within("deepspeed", runner.parse_inclusion_exclusion, local, args.include, args.exclude)
        active = _within("deepspeed", runner.apply_num_nodes_and_gpus, active, args.num_nodes, args.num_gpus)
        counts = {host: slots if isinstance(slots, int) else len(slots) for host, slots in active.items()}
        if len(set(counts.values())) > 1:
            raise UserError(f"COMMAND: deepspeed: nodes of different sizes cannot be emulated: {counts}")
        where = f"hostfile {args.hostfile}" if pool else f"--include/--exclude {args.include or args.exclude}"
        processes, nodes = (where, next(iter(counts.values()))), (where, len(counts))
    else:
        if args.num_gpus > 0:
            processes = (f"--num_gpus {args.num_gpus}", args.num_gpus)
        if args.num_nodes > 0:
            nodes = (f"--num_nodes {args.num_nodes}", args.num_nodes)
    script = _script("deepspeed", args, args.user_script, args.user_args, part)
    if not args.no_local_rank:  # as deepspeed/launcher/launch.py hands it on
        local_rank = f"--local_rank={part.local_rank}"
        script = Script(script.kind, script.target, (local_rank, *script.arguments))
    return Launch("deepspeed", script, processes, nodes)


def _accelerate(arguments: Sequence[str], part: Part) -> Launch:
    """By accelerate's own functions, up to where it would start processes."""
    from accelerate.commands import launch
    from accelerate.utils import launch as environments

    args = _parsed("accelerate launch", launch.launch_command_parser().parse_args, list(arguments))
    is_said = args.num_processes is not None
    args, defaults, mixed_by_file = _within("accelerate launch", launch._validate_launch_command, args)
    is_said = is_said or defaults is not None
    is_alone = False
    machines = int(args.num_machines or 1)
    if args.use_deepspeed and not args.cpu:
        fields = [*(defaults.deepspeed_config if defaults else ()), *(["mixed_precision"] if mixed_by_file else ())]
        args.deepspeed_fields_from_accelerate_config = ",".join(fields)
        _, environment = _within("accelerate launch", environments.prepare_deepspeed_cmd_env, args)
    elif (args.multi_gpu or args.use_fsdp or args.use_megatron_lm) and not args.cpu:
        environment = _within("accelerate launch", environments.prepare_multi_gpu_env, args)
    else:
        if args.tpu:
            raise UserError("COMMAND: accelerate launch: configured for TPUs; nothing to emulate")
        _, environment = _within("accelerate launch", environments.prepare_simple_launcher_cmd_env, args)
        is_alone = defaults is not None  # whatever number of processes the file has beside it
    processes = nodes = None
    if is_alone:
        processes = (f"distributed_type {str(defaults.distributed_type).rpartition('.')[2]}", 1)
    elif is_said:
        total, where = int(args.num_processes), f"--num_processes {args.num_processes}"
        if total % machines:
            raise UserError(f"COMMAND: accelerate launch: {where} on {machines} machines do not divide evenly")
        processes = (where if machines == 1 else f"{where} on {machines} machines", total // machines)
        if machines > 1 or total > 1:
            nodes = (f"--num_machines {machines}", machines)
    if args.cpu or getattr(args, "use_cpu", False):
        raise UserError("COMMAND: accelerate launch: configured for CPU training; nothing to emulate")
    script = _script("accelerate launch", args, args.training_script, args.training_script_args, part)
    # What its environment has and this process's has not.
    added = {k: v for k, v in environment.items() if os.environ.get(k) != v and k not in _OURS}
    return Launch("accelerate launch", script, processes, nodes, added)


_OURS = ("CUDA_VISIBLE_DEVICES", "MASTER_ADDR", "MASTER_PORT")


def _parsed(launcher: str, parse: Callable[..., Any], arguments: list[str]) -> Any:
    """What a launcher's parser reads. Raises UserError with its own last line where it refuses."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed), _called(launcher):
            return parse(arguments)
    except SystemExit as left:
        lines = [line.strip() for line in printed.getvalue().splitlines() if line.strip()]
        if not left.code:
            raise UserError(f"COMMAND: {launcher}: prints its help only; give it a script") from None
        raise UserError(f"COMMAND: {lines[-1] if lines else launcher}") from None


@contextlib.contextmanager
def _called(launcher: str) -> Iterator[None]:
    """Parsers call themselves by the name of the program."""
    before = sys.argv
    sys.argv = [launcher]
    try:
        yield
    finally:
        sys.argv = before


def _within(launcher: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """What `call` gives; its complaint as ours."""
    try:
        return call(*arguments)
    except (ValueError, OSError, LookupError, TypeError, AttributeError, RuntimeError, ImportError) as error:
        raise UserError(f"COMMAND: {launcher}: {' '.join(str(error).split())}") from None


def _check(launch: Launch, part: Part) -> None:
    if launch.processes is not None:
        where, count = launch.processes
        what = f"COMMAND: {launch.launcher}: {where} starts {counted(count, 'rank')} per node"
        if count > part.ranks_per_node:
            gpus = counted(part.ranks_per_node, "GPU")
            raise UserError(f"{what}, and a node has {gpus}; see --gpus and --gpus-per-node")
        if count < part.ranks_per_node:
            divides = part.num_nodes > 1 and part.world_size % count == 0
            more = f"--gpus-per-node {count}" if divides else f"--gpus {count}"
            raise UserError(
                f"{what}, and --gpus {part.world_size} is {part.ranks_per_node} per node; give {more}, or change the"
                " command"
            )
    if launch.nodes is not None:
        where, count = launch.nodes
        if count != part.num_nodes:
            raise UserError(
                f"COMMAND: {launch.launcher}: {where} is {counted(count, 'node')}, and --gpus {part.world_size} is"
                f" {part.num_nodes} of {counted(part.ranks_per_node, 'GPU')}; see --gpus and --gpus-per-node"
            )
