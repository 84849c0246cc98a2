"""Checkpoints of plain torch loops: parameters, fp32 masters and optimizer states by name, in two formats.

All torch strategies use one flat mapping of tensors. A name has the state and its parameter
(`exp_avg/model.norm.weight`), so that it means the same on any number of ranks, even if each has only some layers; the
optimizer's own numbering would not. Loading copies into the existing tensors, so no state is held twice.

- whole: one process writes everything with torch.save, and readers use `weights_only=True`, which builds tensors and
  runs no code from the file.
- in parts: every rank writes its own with torch.distributed.checkpoint, which supports DTensors, writes a tensor that
  several ranks share under one name only once (_dedup_save_plans.py; a pipeline's tied embedding), and redistributes
  the parts over another number of ranks. Its `.metadata` is a pickle; it is read only from the folder in which the
  ranks of the same trial have just written it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_in_parts
from torch.distributed.checkpoint.state_dict_saver import save as save_in_parts

States = dict[str, torch.Tensor]

_FILE = "states.pt"


def named_states(
    module: torch.nn.Module, updated: Sequence[torch.Tensor], optimizer: torch.optim.Optimizer | None
) -> States:
    """All tensors to save, detached and not copied. `updated`: the tensors of the optimizer, in the order of the
    module's trainable parameters: these themselves, or their fp32 masters.
    """
    states = model_states(module)
    names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    for name, tensor in zip(names, updated, strict=True):
        if f"model/{name}" not in states or states[f"model/{name}"].dtype != tensor.dtype:
            states[f"master/{name}"] = tensor.detach()
        optimizer_states = {} if optimizer is None else optimizer.state.get(tensor, {})
        states |= {f"{key}/{name}": value for key, value in optimizer_states.items() if isinstance(value, torch.Tensor)}
    return states


def model_states(module: torch.nn.Module) -> States:
    """Parameters and persistent buffers, tied ones once."""
    states: States = {}
    seen: set[int] = set()
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            states[f"model/{name}"] = tensor.detach()
    return states


def make_optimizer_states(optimizer: torch.optim.Optimizer) -> None:
    """Create the optimizer's states by a first step with zero gradients and a learning rate of zero, which changes no
    weight (as torch.distributed.checkpoint.state_dict, _init_optim_state).
    """
    if optimizer.state:
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()  # drops them by default; Horovod's takes no argument for it
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def save_whole(states: States, folder: Path) -> None:
    """Write all states from one process."""
    torch.save(states, folder / _FILE)


@torch.no_grad()
def load_whole(states: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Copy the file's values into `states`, tensor by tensor: the file is mapped, not read into memory first.

    Raises KeyError if the file lacks one of them.
    """
    values = torch.load(folder / _FILE, map_location="cpu", weights_only=True, mmap=True)
    for name, tensor in states.items():
        tensor.copy_(values[name])


def save_parts(states: States, folder: Path) -> None:
    """Write the states from all ranks together.

    Tensors on the host are not copied ahead: torch would use a stream of the device for that.
    """
    on_gpu = any(tensor.device.type == "cuda" for tensor in states.values())
    writer = FileSystemWriter(folder) if on_gpu else FileSystemWriter(folder, per_thread_copy_ahead=0)
    save_in_parts(states, storage_writer=writer)


def load_parts(states: States, folder: Path) -> None:
    """Read into `states` on all ranks together; the writers may have been other ranks."""
    load_in_parts(states, checkpoint_id=str(folder))
