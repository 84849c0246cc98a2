"""Live tensors at one instant, by category, module, allocation site and holder: taken when memory is refused."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch

from zerobench.common.vocabulary import Category
from zerobench.rank.ledger.allocator_snapshot import snapshot_of, workspace_sizes
from zerobench.rank.ledger.sites import Site
from zerobench.records.records import HostStanding, Standing

UNSEEN = "allocated before tracking"
REFUSED = "the failed allocation"
"""Names the instant of a refusal in a sentence."""
_MOST_SITES = 40
_NODE = re.compile(r"^autograd:")


@dataclass
class Holdings:
    """Bytes by category, site, module and holder; modules and holders cover only the storages that have one."""

    by_category: Counter[Category] = field(default_factory=Counter)
    by_module: Counter[str] = field(default_factory=Counter)
    by_site: Counter[str] = field(default_factory=Counter)
    by_holder: Counter[str] = field(default_factory=Counter)
    sizes: Counter[int] = field(default_factory=Counter)
    """Number of storages of each size."""

    def add(self, nbytes: int, category: Category, born: Site | None, holder: str | None = None) -> None:
        """Add one storage; `born` is None if its birth was not seen, `holder` if there is no evidence of one."""
        self.by_category[category] += nbytes
        self.sizes[nbytes] += 1
        self.by_site[UNSEEN if born is None else _NODE.sub("backward of ", born.name)] += nbytes
        if born is not None and born.module is not None:
            self.by_module[born.module] += nbytes
        if holder is not None:
            self.by_holder[holder] += nbytes

    def add_states(self, model: torch.nn.Module, device_type: str) -> None:
        """Add parameters, gradients and optimizer states of the model to its modules, also if many share a storage."""
        for owner, tensor, numel in _states(model):
            if tensor.device.type == device_type:
                self.by_module[owner] += numel * tensor.element_size()

    @property
    def largest(self) -> dict[str, dict[str, int]]:
        """Largest modules, sites and holders, by the names of the record's fields."""
        counters = {"by_module": self.by_module, "by_site": self.by_site, "by_holder": self.by_holder}
        return {name: dict(counter.most_common(_MOST_SITES)) for name, counter in counters.items()}


def host_standing(held: Holdings, at: str, rest_of_process: int | None) -> HostStanding:
    """Use of host memory at an instant; `rest_of_process` is resident memory beyond tensors."""
    categories = dict(held.by_category.most_common())
    if rest_of_process is not None and rest_of_process > 0:
        categories[Category.REST_OF_PROCESS] = rest_of_process
    return HostStanding(at=at, by_category=categories, **held.largest)


def standing(device: torch.device, held: Holdings | None) -> Standing:
    """Use of the CUDA device now, including memory that the allocator has reserved but not allocated."""
    allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    blocks = [
        (block["size"], block["state"] == "inactive")
        for segment in snapshot_of(device).segments
        for block in segment["blocks"]
    ]
    largest = max((size for size, is_free in blocks if is_free), default=0)
    totals = Standing(allocated_bytes=allocated, reserved_bytes=reserved, largest_free_bytes=largest)
    if held is None or not held.by_category:
        return totals
    categories = dict(held.by_category.most_common())
    given_out = Counter(size for size, is_free in blocks if not is_free)
    workspaces = unowned(workspace_sizes(device), given_out, held.sizes)
    categories |= {Category.WORKSPACES: workspaces} if workspaces else {}
    rest = allocated - held.by_category.total() - workspaces
    categories[Category.UNATTRIBUTED] = max(categories.get(Category.UNATTRIBUTED, 0) + rest, 0)
    return totals.model_copy(update={"by_category": categories, **held.largest})


def unowned(sizes: Iterable[int], given_out: Mapping[int, int], owned: Mapping[int, int]) -> int:
    """Bytes of allocated blocks of these sizes that no storage owns: the matrix library's workspaces."""
    return sum(size * max(0, given_out.get(size, 0) - owned.get(size, 0)) for size in sizes)


def _states(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor, int]]:
    """Yield each parameter (or this rank's part), its gradient and its optimizer states: class of the owning block,
    tensor, and number of its elements.
    """
    classes = {name: type(module) for name, module in model.named_modules(remove_duplicate=False)}
    for name, parameter in model.named_parameters():
        owner = name.rpartition(".")[0]
        while owner and classes[owner].__module__.startswith("torch.nn."):
            owner = owner.rpartition(".")[0]
        for tensor in (getattr(parameter, "ds_tensor", parameter), parameter.grad):
            if isinstance(tensor, torch.Tensor):
                yield classes[owner].__name__, tensor, tensor.numel()
        for tensor, numel in _optimizer_parts(parameter):
            yield classes[owner].__name__, tensor, numel


def _optimizer_parts(parameter: torch.Tensor) -> Iterator[tuple[torch.Tensor, int]]:
    """DeepSpeed's flat fp32 tensors that contain part of the parameter, with the number of its elements there."""
    third, mapping = getattr(parameter, "_z3_optimizer", None), getattr(parameter, "_hp_mapping", None)
    if third is not None:
        place = third.grad_position.get(third.get_param_id(parameter))
        if place is None:  # frozen
            return
        group, _, numel = place
        optimizer, flat = third, third.fp32_partitioned_groups_flat[group]
    elif mapping is not None and hasattr(parameter, "_zero_optimizer"):
        optimizer, numel = parameter._zero_optimizer, mapping.hp_fragment.numel()
        flat = optimizer.single_partition_of_fp32_groups[mapping.param_group_index]
    else:
        return
    states = optimizer.optimizer.state.get(flat, {})
    for tensor in (flat, flat.grad, *states.values()):
        if isinstance(tensor, torch.Tensor) and tensor.numel() == flat.numel() >= numel:  # empty while on NVMe
            yield tensor, numel
