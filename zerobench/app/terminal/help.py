"""Groups of commands in `zerobench --help`, and the examples at the end of each command's help."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from typer.core import TyperGroup

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Predict": ("plan", "tune", "emulate"),
    "Measure": ("run", "watch", "submit", "status"),
    "Read": ("show", "explain", "report", "export"),
    "Compare": ("compare", "baseline", "validate"),
    "Prepare": ("doctor", "setup", "calibrate"),
    "List": ("models", "strategies", "sweeps"),
}
"""Commands by heading, in the order of the help."""

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "plan": (
        "plan --model llama-7b --gpus 8 --gpu h200 --host-memory 1TB --write ds_config.json",
        "plan --model llama-7b --gpus 8 --gpu h100 --ds-config my.json --json",
    ),
    "tune": ("tune llama-7b --gpus 8 --gpu h100 --host-memory 1TB --global-batch 256 --write ds.json",),
    "emulate": (
        "emulate --gpus 64 --gpu h200 --host-memory 1TB -- deepspeed train.py --deepspeed_config ds.json",
        "emulate --gpus 8 --gpu a100-40 -- torchrun --nproc-per-node 8 train.py",
    ),
    "run": (
        "run zero-stages",
        "run my.yaml --set micro_batch_size=1,2,4 --only strategy=zero2,zero3",
        "run --resume RUN",
    ),
    "watch": ("watch -- deepspeed train.py --deepspeed_config my.json",),
    "submit": ("submit zero-stages --nodes 4 --gpus-per-node 8 --dry-run",),
    "status": ("status --follow 10",),
    "show": ("show RUN", "show RUN --json"),
    "explain": ("explain RUN zero2 zero3",),
    "report": ("report RUN --markdown --out -",),
    "export": ("export RUN --prometheus zerobench.prom",),
    "compare": (
        "compare BASE NEW --fail-on memory:2%,speed:5%",
        "compare --against main --fail-on memory:2% --markdown pr.md",
    ),
    "baseline": ("baseline set main RUN", "baseline list"),
    "validate": ("validate quickstart --worlds simulated",),
    "doctor": ("doctor", "doctor --json"),
    "setup": ("setup emulator",),
    "calibrate": ("calibrate RUN --out calibration.yaml",),
    "models": ("models", "models llama-7b"),
    "strategies": ("strategies", "strategies zero3"),
    "sweeps": ("sweeps", "sweeps --json"),
}
"""Example arguments of each command, without the leading `zerobench`."""


def epilog(command: str) -> str | None:
    r"""Examples for the end of a command's help; `\b` stops click from rewrapping them."""
    lines = [f"  zerobench {line}" for line in EXAMPLES.get(command, ())]
    return "\n".join(["\b", "Examples:", *lines]) if lines else None


def _argument_usage(argument: Any, _: Any) -> list[str]:
    name = argument.metavar + ("" if argument.nargs == 1 or argument.metavar.endswith("...") else "...")
    return [name if argument.required else f"[{name}]"]


class GroupedCommands(TyperGroup):
    """Command group whose help lists the commands under the headings of `GROUPS`."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command; its help names arguments without typer's types and braces."""
        command: Any = super().get_command(ctx, cmd_name)
        for parameter in command.params if command else ():
            if parameter.param_type_name == "argument":
                parameter.display_type_rich = lambda **_: None
                parameter.get_usage_pieces = partial(_argument_usage, parameter)
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 -- click's signature
        """Write each group; a command's help is its first sentence."""
        room = formatter.width - 6 - max(map(len, self.commands))
        for heading, names in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(room)) for name in names])
