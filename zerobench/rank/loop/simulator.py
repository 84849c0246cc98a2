"""Runs simulated or emulated trials on request: one process imports everything, each trial is a fork of it.

    python -m zerobench.rank.loop.simulator --world simulated --jobs 2

Reads a trial folder a line from standard input. Writes a line to standard output when a trial begins, `begun <process>
<trial folder>`, and when it has ended, `ended <exit status> <trial folder>`; a trial that did not fit its emulated GPU
begins twice (forked_trial.py). Importing takes five seconds, often longer than a simulated trial, so that a plan of
many trials would mostly import. Trials are forks because DeepSpeed and torch keep state for the life of a process:
group, accelerator, patches. CUDA cannot be used on both sides of a fork, so nothing here may touch the emulated GPU
before.
"""

import argparse
import gc
import os
import selectors
import signal
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from zerobench.common.collection import no_collection
from zerobench.common.errors import UserError
from zerobench.config.trial.trial import Evidence
from zerobench.rank.loop.forked_trial import AGAIN, run_trial
from zerobench.records.folder import TrialFolder

_PRELOADED = (
    "deepspeed",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.mistral.modeling_mistral",
    "cpuinfo",
    "torch._dynamo",
    "torch._dynamo.repro.after_dynamo",
    "torch._inductor.compile_fx",
    "torch._inductor.compiler_bisector",
    "torch._functorch.config",
    "torch._meta_registrations",
    "torch._subclasses.schema_check_mode",
    "torch.fx.experimental.symbolic_shapes",
    "deepspeed.module_inject",
    "deepspeed.ops.adam",
    "deepspeed.runtime.zero.stage3",
    "deepspeed.runtime.zero.stage_1_and_2",
    "deepspeed.runtime.swap_tensor.pipelined_optimizer_swapper",
    "zerobench.rank.ledger.failures",
    "zerobench.rank.loop.rank",
    "zerobench.rank.strategies.ddp",
    "zerobench.rank.strategies.fsdp",
    "zerobench.rank.strategies.zero",
    "zerobench.rank.worlds.simulation.shortcuts",
)
"""Modules that every trial imports, most of them only while it builds its engine."""

_OF_ITS_WORLD = {
    Evidence.EMULATED: (
        "zerobench.rank.worlds.emulated",
        "deepspeed.ops.adam.fused_adam",
        "torch._inductor.config",
    ),
    Evidence.SIMULATED: (
        "zerobench.rank.worlds.simulated",
        "zerobench.rank.worlds.simulation.accelerator",
        "zerobench.rank.worlds.simulation.attention",
    ),
}
"""Modules that trials of one world import; the keys are the worlds that are played here."""


_WHERE_THERE = (
    "deepspeed.comm.mori",
    "deepspeed.compile.backend",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.runtime.superoffload.superoffload_stage3",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.utils.pin_memory",
    "torch.profiler._cupti_monitor",
)
"""Modules that only the newest releases have."""


def main() -> None:
    """Serve until standard input ends and the last trial is done."""
    parser = argparse.ArgumentParser(prog="zerobench.rank.loop.simulator", description=__doc__)
    parser.add_argument("--world", type=Evidence, choices=list(_OF_ITS_WORLD), default=Evidence.SIMULATED)
    parser.add_argument("--jobs", type=int, default=1, help="trials at the same time")
    arguments = parser.parse_args()
    speaker = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output of libraries must not mix with our messages
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the end of standard input ends us
    import_everything(arguments.world)
    if arguments.world is Evidence.SIMULATED:
        read_everything()
    Simulator(arguments.jobs, speaker).serve()


def import_everything(world: Evidence) -> None:
    """Import every module that trials need, before the first fork; the device must be set before DeepSpeed's import."""
    os.environ["DS_ACCELERATOR"] = "cuda" if world is Evidence.EMULATED else "cpu"
    if world is Evidence.SIMULATED:
        from zerobench.rank.worlds.simulation import device

        device.register()
    with no_collection():  # garbage collection would take a sixth of the imports' time
        for name in (*_PRELOADED, *_OF_ITS_WORLD[world]):
            import_module(name)
        for name in _WHERE_THERE:
            with suppress(ImportError):
                import_module(name)
    if world is Evidence.EMULATED:
        from zerobench.emulator.inside.values import open_values

        open_values()
    import torch

    torch.set_num_threads(1)
    leave_to_forks()
    # DeepSpeed asserts the alignment of its partitions, which holds for a tensor without bytes.
    warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")


def read_everything() -> None:
    """Read everything that each simulated trial would read, since a fork copies it. No real engine can run after."""
    from zerobench.config.hardware.overheads import workspace_of
    from zerobench.rank.worlds.simulation.shortcuts import agree_with_absent_ranks

    agree_with_absent_ranks()
    with suppress(UserError):  # a faulty file of the user, which each trial reports
        workspace_of("")


def leave_to_forks() -> None:
    """Freeze the half million objects made so far, so that collections and searches for tensors skip them.

    Python runs a full collection once a quarter of all objects is new, and does not count frozen ones: without a higher
    threshold a trial would collect far more often here than in a process of its own.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], _FULL_COLLECTION)


_FULL_COLLECTION = 100
"""Middle-age collections before a full one; Python's default is 10."""


class Simulator:
    """Reads trials from standard input and runs at most `jobs` of them at a time."""

    def __init__(self, jobs: int, speaker: int) -> None:
        self._jobs = jobs
        self._speaker = speaker
        self._waiting: list[str] = []
        self._running: dict[int, tuple[int, str]] = {}
        """Process number and trial folder, by the descriptor of the process."""
        self._selector = selectors.DefaultSelector()
        self._input = sys.stdin.fileno()
        self._text = b""
        self._open = True

    def serve(self) -> None:
        """Serve until input has ended and no trial runs."""
        self._selector.register(self._input, selectors.EVENT_READ)
        while self._open or self._waiting or self._running:
            for key, _ in self._selector.select():
                if key.fd == self._input:
                    self._read()
                else:
                    self._reap(key.fd)
            while self._waiting and len(self._running) < self._jobs:
                self._start(self._waiting.pop(0))

    def _read(self) -> None:
        chunk = os.read(self._input, 65536)
        *lines, self._text = (self._text + chunk).split(b"\n")
        self._waiting += [os.fsdecode(line) for line in lines if line]
        if not chunk:
            self._open = False
            self._selector.unregister(self._input)

    def _start(self, folder: str, *, with_room: bool = False) -> None:
        pid = os.fork()
        if pid == 0:
            os.close(self._speaker)  # its reader takes its end for the simulator's death
            os._exit(run_trial(TrialFolder(Path(folder)), with_room=with_room))
        descriptor = os.pidfd_open(pid)  # unlike a process number, a selector can wait for it
        self._running[descriptor] = (pid, folder)
        self._selector.register(descriptor, selectors.EVENT_READ)
        self._say("begun", pid, folder)

    def _reap(self, descriptor: int) -> None:
        pid, folder = self._running.pop(descriptor)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code == AGAIN:
            self._start(folder, with_room=True)
        else:
            self._say("ended", code, folder)

    def _say(self, verb: str, number: int, folder: str) -> None:
        os.write(self._speaker, os.fsencode(f"{verb} {number} {folder}\n"))


if __name__ == "__main__":
    main()
