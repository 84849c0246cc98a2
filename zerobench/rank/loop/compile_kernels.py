"""Compiles DeepSpeed's kernels as DeepSpeed itself does at their first use, one after the other.

    python -m zerobench.rank.loop.compile_kernels deepspeed_shm_comm cpu_adam

Says of each on standard output, a JSON object a line, when it begins and how it ended: `{"kernel": "cpu_adam"}`, then
`{"kernel": "cpu_adam", "failure": null}`. A kernel that DeepSpeed has none of for this machine is passed over: the
trial that needs it says why. What the compiler says goes to standard error.
"""

import json
import os
import signal
import sys

from zerobench.config.deepspeed.kernels import BUILDERS, architectures_unread, touch
from zerobench.rank.training.programs import find_own_programs


def main(names: list[str]) -> None:
    """Compile `names`."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # torch then removes its lock
    find_own_programs()
    answers = os.dup(1)
    os.dup2(2, 1)  # DeepSpeed prints
    with os.fdopen(answers, "w", buffering=1) as out:
        for name in names:
            print(json.dumps({"kernel": name}), file=out)
            print(json.dumps({"kernel": name, "failure": _compile(name)}), file=out)


def _compile(name: str) -> str | None:
    """Why it cannot be compiled, with what the compiler said; None where it can, or is not for this machine."""
    from deepspeed.accelerator import get_accelerator

    builder = get_accelerator().create_op_builder(BUILDERS[name])
    if builder is None or not builder.is_compatible(verbose=False):
        return None
    try:
        builder.load(verbose=False)
    except Exception as error:  # noqa: BLE001 -- whatever it is, the trials that need the kernel fail by it
        words = [architectures_unread(error, os.environ), f"{type(error).__name__}: {error}"]
        return "\n".join(filter(None, words))
    touch(name, os.environ)
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
