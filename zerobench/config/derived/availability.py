"""Requirements of a strategy, compared with the machine."""

from zerobench.config.derived.machine import Accelerator, Machine
from zerobench.config.derived.strategy import StrategyInfo

FRAMEWORKS = ("torch", "deepspeed", "transformers")
"""Imported by nearly every rank. Without them nothing can be measured; that is reported once for all trials
(zerobench.launch.machine.installed), and no trial is skipped, since it may run elsewhere."""


def needs(info: StrategyInfo) -> str:
    """Requirements of the strategy as a phrase: `2 ranks or more, torch`."""
    least = info.least_processes
    ranks = "1 rank" if info.is_reference else f"{least} rank or more" if least == 1 else f"{least} ranks or more"
    where = f" in an environment of its own (zerobench setup {info.environment})" if info.environment else ""
    return ", ".join([ranks, *(["GPUs"] if info.needs_gpu else []), *info.packages]) + where


def unavailable(info: StrategyInfo, machine: Machine) -> str | None:
    """Reason why it cannot be measured on `machine`, with the remedy if there is one; None if it can."""
    if info.environment in machine.missing_environments:
        return f"its environment is not set up (zerobench setup {info.environment})"
    missing = [name for name in info.packages if name in machine.missing_packages]
    if missing:
        return f"the package {missing[0]} is not installed (pip install {' '.join(missing)})"
    if info.needs_gpu and machine.accelerator is not Accelerator.CUDA:
        return "needs a GPU"
    most = machine.num_nodes * machine.most_ranks_per_node
    if most < info.least_processes:
        return f"needs {info.least_processes} ranks; {most} can run here"
    return None
