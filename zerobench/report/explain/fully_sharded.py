"""Accounts of what FSDP2 divides, gathers and reduces: whole groups of parameters, each block one, all else the root.

torch/distributed/fsdp/_fully_shard, as in formulas/torch_strategies.py: the root stays gathered from its forward pass
to the end of backward, a block for its own pass, and the next one in backward is gathered before the last is freed
(_fsdp_param_group.py, _prefetch_unshard). Without reshard_after_forward everything stays.
"""

from __future__ import annotations

from collections.abc import Iterator

from zerobench.formulas.deepspeed import Setting
from zerobench.formulas.record import fsdp_shards
from zerobench.records import Category, Phase
from zerobench.report.explain.terms import Account, Term, account, of_elements
from zerobench.spec.trial import TrialSpec

STRATEGY = "fsdp"


def states(setting: Setting, phase: Phase, category: Category) -> Iterator[Account]:
    """Each tensor's part of every rank, in fp32; in backward gradients are whole until their group is reduced."""
    own = _own(setting)
    yield own
    if category is Category.GRADIENTS and phase is Phase.BACKWARD:
        element = setting.case.element
        first = of_elements(element, setting.first_gradient, "the first gradient of backward, the head's, whole")
        yield account(first)
        yield account(*own, first)


def _own(setting: Setting) -> Account:
    """FSDP2 cuts each tensor by its first dimension (_fsdp_param.py, _init_sharded_param)."""
    ranks, whole = setting.case.world_size, 4 * setting.num_params // setting.case.world_size
    return account(
        Term(whole, f"4 bytes x {setting.num_params:,} parameters / {ranks} ranks"),
        Term(4 * setting.sharded - whole, "what the ranks do not divide evenly"),
    )


def gathered(spec: TrialSpec, element: int) -> Iterator[Account]:
    """Parameters gathered for use: the root and no block, one, or two; all; blocks alone."""
    shards = fsdp_shards(spec)
    root = of_elements(element, shards.root, "embedding, last norm and head, the root's group, gathered as one")
    whole = of_elements(element, shards.num_blocks * shards.block, f"all {shards.num_blocks} blocks, kept gathered")
    yield account(root)
    for count in (1, 2):
        blocks = _blocks(element, count, shards.block)
        yield account(root, blocks)
        yield account(blocks)
    yield account(root, whole)


def _blocks(element: int, count: int, block: int) -> Term | None:
    said = "the block at work" if count == 1 else "the block at work, and the next one"
    return of_elements(element, count * block, said)


def gathering(spec: TrialSpec, element: int) -> Iterator[Account]:
    """The flat buffer that a group is gathered into and then cut from (_fsdp_collectives.py, foreach_all_gather)."""
    shards = fsdp_shards(spec)
    yield account(of_elements(element, shards.block, "a block's parameters, gathered flat before they are cut"))
    yield account(of_elements(element, 2 * shards.block, "two blocks' parameters, gathered flat before they are cut"))
    yield account(of_elements(element, shards.root, "the root's parameters, gathered flat before they are cut"))


def reducing(spec: TrialSpec, setting: Setting) -> Iterator[Account]:
    """The gradients of a group flattened, and this rank's part of their mean (foreach_reduce)."""
    shards, ranks, element = fsdp_shards(spec), setting.case.world_size, setting.case.element
    for elements, whose in ((shards.root, "the root's"), (shards.block, "a block's")):
        flat = of_elements(element, elements, f"{whose} gradients, flattened to be reduced")
        own = of_elements(element, -(-elements // ranks), "this rank's part of them")
        copy = of_elements(element, elements, "and once more, for gloo")
        yield account(flat, own)
        yield account(flat)
        yield account(flat, own, copy)
        yield account(own)
