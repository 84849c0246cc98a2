"""What a plain torch loop must keep to go on: parameters, fp32 masters and optimizer states, by name, and two ways to
keep them.

One flat mapping of tensors serves all of torch's own strategies. A name says what a tensor is and of which parameter
(`first_moment`'s `exp_avg/model.norm.weight`), so that it means the same on any number of ranks, also where each has
some of the layers; the optimizer's own numbering would not. Loading copies into the tensors that are there, which are
never held twice.

- whole: one process writes all of it by torch.save, and each that needs it reads it with `weights_only=True`, which
  builds tensors and runs no code of the file's.
- in parts: every rank writes its own by torch.distributed.checkpoint, which knows DTensors, writes what several ranks
  hold under one name once (_dedup_save_plans.py), as first and last stage of a pipeline do a tied
  embedding, and gives each rank of another number the parts that it holds now. Its `.metadata` is a pickle; it is read
  only from the folder in which the ranks of the same trial have just written it.
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
    """Every tensor to keep, detached and not copied. `updated` are what the optimizer updates, in the order of the
    module's trainable parameters: these themselves, or their fp32 masters.
    """
    states = model_states(module)
    names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    for name, tensor in zip(names, updated, strict=True):
        if f"model/{name}" not in states or states[f"model/{name}"].dtype != tensor.dtype:
            states[f"master/{name}"] = tensor.detach()
        kept = {} if optimizer is None else optimizer.state.get(tensor, {})
        states |= {f"{key}/{name}": value for key, value in kept.items() if isinstance(value, torch.Tensor)}
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
    """Let the optimizer make its states, which it does at its first step: one with zero gradients, at a learning rate
    of zero, which changes no weight (as torch.distributed.checkpoint.state_dict, _init_optim_state).
    """
    if optimizer.state:
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()  # drops them; Horovod's takes no argument that says so
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def save_whole(states: States, folder: Path) -> None:
    """Write all of it, by one process."""
    torch.save(states, folder / _FILE)


@torch.no_grad()
def load_whole(states: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Copy what the file has into `states`, tensor by tensor: the file is mapped, not read into memory first.

    Raises KeyError: it lacks one of them.
    """
    kept = torch.load(folder / _FILE, map_location="cpu", weights_only=True, mmap=True)
    for name, tensor in states.items():
        tensor.copy_(kept[name])


def save_parts(states: States, folder: Path) -> None:
    """Write it by all ranks together.

    What lies on the host already is not copied ahead: torch would take a stream of the device for that.
    """
    on_gpu = any(tensor.device.type == "cuda" for tensor in states.values())
    writer = FileSystemWriter(folder) if on_gpu else FileSystemWriter(folder, per_thread_copy_ahead=0)
    save_in_parts(states, storage_writer=writer)


def load_parts(states: States, folder: Path) -> None:
    """Read into `states`, by all ranks together; they may be others than those that wrote."""
    load_in_parts(states, checkpoint_id=str(folder))
