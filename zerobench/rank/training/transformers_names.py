"""Names that differ between releases 4 and 5 of transformers; imported only where a model is made."""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib.metadata import version
from typing import Any

import torch

from zerobench.common.distribution import release_numbers

_DTYPE_SINCE = (4, 56)


def skip_initialization() -> AbstractContextManager[None]:
    """Return transformers' own way to make a model without setting its weights (from 5 on a module of its own)."""
    try:
        from transformers.initialization import no_init_weights
    except ImportError:
        from transformers.modeling_utils import no_init_weights  # of 4.x
    made: AbstractContextManager[None] = no_init_weights()
    return made


def dtype_argument(dtype: torch.dtype) -> dict[str, Any]:
    """Return the argument that sets the type of a model that is made or loaded."""
    release = release_numbers(version("transformers"))
    return {"dtype" if release >= _DTYPE_SINCE else "torch_dtype": dtype}
