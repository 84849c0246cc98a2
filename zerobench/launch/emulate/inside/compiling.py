"""Hears whether a script has torch.compile compile anything.

Nothing is compiled under the ledger, whose dispatch mode Dynamo does not trace; but Dynamo is asked for each function
all the same, and its wrapper around every such question is where both meet. It is asked of functions that it passes
over, too: torch's own, which are all that `torch.nn.Sequential(...).compile()` calls.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

MODULE = "torch._dynamo.convert_frame"
"""Imported by the first call of anything that is to be compiled."""
_OURS = str(Path(__file__).parents[3])


def hear_compiling(convert_frame: ModuleType, heard: Callable[[], None]) -> None:
    """Call `heard` whenever a function is about to be compiled, or passed over under the ledger."""
    wrapper = convert_frame.CatchErrorsWrapper
    convert = wrapper.__call__

    @wraps(convert)
    def converted(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(_OURS) and not convert_frame.trace_rules.check(code):
            heard()
        return convert(self, frame, *args, **kwargs)

    wrapper.__call__ = converted
