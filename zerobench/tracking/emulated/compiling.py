"""Hears whether a script has torch.compile compile anything.

Nothing is compiled under the ledger, whose dispatch mode Dynamo does not trace; but Dynamo is asked for each function
all the same, and its wrapper around every such question is where both meet.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

MODULE = "torch._dynamo.convert_frame"
"""Imported by the first call of anything that is to be compiled."""


def hear_compiling(convert_frame: ModuleType, heard: Callable[[], None]) -> None:
    """Call `heard` whenever a function is about to be compiled, or passed over under the ledger."""
    wrapper = convert_frame.CatchErrorsWrapper
    convert = wrapper.__call__

    @wraps(convert)
    def converted(self: Any, *args: Any, **kwargs: Any) -> Any:
        heard()
        return convert(self, *args, **kwargs)

    wrapper.__call__ = converted
