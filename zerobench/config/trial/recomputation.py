"""Activation checkpointing: blocks whose forward pass is run again, and results that are saved regardless."""

from typing import Annotated, Any

from pydantic import StringConstraints

from zerobench.common.errors import unknown_choice
from zerobench.config.trial.plain import parse_number

OPERATIONS = "ops"
"""Every block, but attention's results and every second matrix product's (the first, the third) are saved: torchtitan's
selective activation checkpointing by operation."""

_EVERY = "every-"
_MOST = 1000

Checkpointing = bool | Annotated[str, StringConstraints(pattern=rf"^({OPERATIONS}|{_EVERY}([2-9]|[1-9][0-9]+))$")]
"""false saves all activations, true only each block's input, `every-2` the inputs of the first, third, fifth block and
everything of the others (as transformers counts); `ops`: see OPERATIONS."""


def read_checkpointing(axis: str, raw: object) -> list[Any]:
    """Read the value; `{every: 2}` is `every-2`."""
    value = f"{_EVERY}{raw['every']}" if isinstance(raw, dict) and list(raw) == ["every"] else raw
    number = parse_number(value.removeprefix(_EVERY)) if isinstance(value, str) and value.startswith(_EVERY) else None
    if isinstance(number, int) and not isinstance(number, bool) and 2 <= number <= _MOST:
        return [f"{_EVERY}{number}"]
    if isinstance(value, bool) or value == OPERATIONS:
        return [value]
    raise unknown_choice(axis, raw, ["true", "false", OPERATIONS, f"{_EVERY}N (one of N blocks, N from 2 to {_MOST})"])


def is_recomputed(checkpointing: Checkpointing, block: int) -> bool:
    """Return whether a block, counted from 0, is run again."""
    if isinstance(checkpointing, str) and checkpointing.startswith(_EVERY):
        return block % int(checkpointing.removeprefix(_EVERY)) == 0
    return bool(checkpointing)


def recomputed_blocks(checkpointing: Checkpointing, blocks: int | range) -> int:
    """Number of `blocks`, a model's or a stage's, that are run again."""
    numbers = range(blocks) if isinstance(blocks, int) else blocks
    return sum(is_recomputed(checkpointing, block) for block in numbers)


def attention_again(checkpointing: Checkpointing, blocks: int | range) -> int:
    """Number of blocks in which a fused kernel's attention is computed again."""
    return 0 if checkpointing == OPERATIONS else recomputed_blocks(checkpointing, blocks)


def checkpointing_name(checkpointing: Checkpointing) -> str:
    """In names of trials: `ckpt`, `ckpt=every-2`, or nothing."""
    return f"ckpt={checkpointing}" if isinstance(checkpointing, str) else "ckpt" * checkpointing


def checkpointing_sentence(checkpointing: Checkpointing) -> str:
    if not isinstance(checkpointing, str):
        return f"activation checkpointing {'on' if checkpointing else 'off'}"
    if checkpointing == OPERATIONS:
        return "activation checkpointing by operation"
    return f"activation checkpointing of one of {checkpointing.removeprefix(_EVERY)} blocks"


def checkpointing_code(checkpointing: Checkpointing) -> str:
    """Line of a training script that enables it for a transformers model, with the blocks if not all are."""
    if isinstance(checkpointing, str) and checkpointing.startswith(_EVERY):
        number = checkpointing.removeprefix(_EVERY)
        return f"torch.utils.checkpoint around one block of {number}: if index % {number} == 0"
    if checkpointing == OPERATIONS:
        return "torch.utils.checkpoint(block, ..., context_fn=create_selective_checkpoint_contexts(...)) in each block"
    return "model.gradient_checkpointing_enable()"
