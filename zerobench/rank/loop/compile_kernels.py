"""Compiles DeepSpeed's kernels, as DeepSpeed does at their first use, one after the other.

    python -m zerobench.rank.loop.compile_kernels deepspeed_shm_comm cpu_adam

Prints a JSON object a line on standard output when a kernel begins and when it ends: `{"kernel": "cpu_adam"}`, then
`{"kernel": "cpu_adam", "failure": null}`. Kernels that DeepSpeed does not support on this machine are skipped: the
trial that needs one reports why. Compiler output goes to standard error.
"""

import json
import os
import signal
import sys

from zerobench.config.deepspeed.kernels import BUILDERS, architectures_unread, touch
from zerobench.rank.loop.launched import find_own_programs


def main(names: list[str]) -> None:
    """Compile `names`."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # torch then removes its lock
    find_own_programs()
    answers = os.dup(1)
    os.dup2(2, 1)  # DeepSpeed prints to standard output
    with os.fdopen(answers, "w", buffering=1) as out:
        for name in names:
            print(json.dumps({"kernel": name}), file=out)
            print(json.dumps({"kernel": name, "failure": _compile(name)}), file=out)


def _compile(name: str) -> str | None:
    """Compile one kernel. Returns the reason for a failure with the compiler's message, else None."""
    from deepspeed.accelerator import get_accelerator

    builder = get_accelerator().create_op_builder(BUILDERS[name])
    if builder is None or not builder.is_compatible(verbose=False):
        return None
    try:
        builder.load(verbose=False)
    except Exception as error:  # noqa: BLE001 -- whatever it is, trials that need the kernel fail for it
        words = [architectures_unread(error, os.environ), f"{type(error).__name__}: {error}"]
        return "\n".join(filter(None, words))
    touch(name, os.environ)
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
