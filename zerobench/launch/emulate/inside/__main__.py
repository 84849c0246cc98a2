"""Plays one rank: `python -m zerobench.launch.emulate.inside`, its part named by the environment."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from zerobench.common.errors import UserError
from zerobench.common.units import counted, format_bytes
from zerobench.emulator.inside.sparse_saves import save_sparsely, serialize_sparsely
from zerobench.launch.emulate.inside import compiling
from zerobench.launch.emulate.inside.after_import import after_import
from zerobench.launch.emulate.inside.launchers import PLAIN, Launch, read_launch
from zerobench.launch.emulate.inside.script import last_line, run, tell
from zerobench.launch.emulate.inside.script_options import hear_options, launcher_options
from zerobench.launch.emulate.options import Option
from zerobench.launch.emulate.part import PART_VARIABLE, Account, End, Part
from zerobench.records.folder import write_whole

USAGE = 2


class Player:
    """The process and its account."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._account = Account(rank=part.rank, end=End.FINISHED)
        self._keeper: Any = None
        self._follower: Any = None
        self._is_over = False
        self._saved_bytes: list[int] = []

    def play(self) -> int:
        """Read the command, run its script, say how it ended; the exit status."""
        _before_exit(self._leave_at_once)
        after_import("torch", self._torch_is_there)
        # It has imported torch, and there is a follower then.
        after_import("deepspeed", lambda module: self._follower.follow_deepspeed(module))  # noqa: PLW0108
        told = partial(setattr, self._account, "compiles", True)
        after_import(compiling.MODULE, lambda module: compiling.hear_compiling(module, told))
        after_import("safetensors", lambda module: serialize_sparsely(module, self._saved_bytes.append))
        try:
            launch = read_launch(self._part)
        except UserError as error:
            self._account.end, self._account.message = End.REFUSED, str(error)
            self._over(USAGE)
            return USAGE
        if launch.launcher != PLAIN or self._part.world_size > 1:
            os.environ.update(rank_variables(self._part))
        os.environ.update(launch.variables)
        self._hear(launch)
        code = self._run(launch)
        self._over(code)
        return code

    def _hear(self, launch: Launch) -> None:
        """Which options the script has, and where they go in the command."""
        account, given = self._account, list(launch.script.arguments)

        def told(options: list[Option]) -> None:
            again = {option.dest for option in options}
            account.options = [*options, *(option for option in account.options if option.dest not in again)]

        told(launcher_options())
        account.num_arguments = len(given) - (given[:1] == [f"--local_rank={self._part.local_rank}"])
        hear_options(told)

    def _run(self, launch: Launch) -> int:
        account = self._account
        try:
            run(launch.script)
        except SystemExit as left:
            return self._left(left)
        except BaseException as error:  # noqa: BLE001 -- the script's own, told and handed on as Python would
            account.end, account.message = End.FAILED, tell(error)
            if type(error).__name__ == "OutOfMemoryError" and account.refusal is not None:
                account.end = End.OUT_OF_DEVICE_MEMORY
                account.refusal.message = last_line(error)
            return 130 if isinstance(error, KeyboardInterrupt) else 1
        return 0

    def _left(self, left: SystemExit) -> int:
        if type(left).__name__ == "AllStepsPlayed":
            self._account.end = End.STOPPED
            return 0
        if left.code is None or left.code == 0:
            return 0
        self._account.end = End.FAILED
        if isinstance(left.code, int):
            self._account.message = f"it ended with exit status {left.code}"
            return left.code
        print(left.code, file=sys.stderr)  # noqa: T201 -- as Python does
        self._account.message = str(left.code)
        return 1

    def _torch_is_there(self, torch: ModuleType) -> None:
        """Torch has just been imported: stand in for the other ranks, count, follow."""
        from zerobench.emulator.inside.values import open_values
        from zerobench.launch.emulate.inside.alone import leave, stand_alone
        from zerobench.launch.emulate.inside.follower import Follower
        from zerobench.launch.emulate.inside.keeper import Keeper
        from zerobench.launch.tracking.compilations import guard_compilations

        open_values()
        guard_compilations()
        save_sparsely(torch, self._saved_bytes.append)
        self._keeper = Keeper(self._part, self._account)
        self._keeper.begin()
        atexit.register(leave)
        stand_alone(self._part)
        self._follower = Follower(self._part, self._keeper)
        self._follower.install()

    def _over(self, code: int) -> None:
        """Write the account, once."""
        if self._is_over:
            return
        self._is_over = True
        self._account.exit_code = code
        if self._saved_bytes:
            files, size = counted(len(self._saved_bytes), "file"), format_bytes(sum(self._saved_bytes))
            self._account.notes.append(f"{files} saved, {size}: zeros in place of values, holes on the disk")
        if self._keeper is None:
            write_whole(self._part.account, self._account.model_dump_json(indent=1))
            return
        self._keeper.end()

    def _leave_at_once(self, code: int) -> None:
        """The script calls os._exit: nothing of ours runs after that."""
        if code:
            self._account.end, self._account.message = End.FAILED, f"it ended with os._exit({code})"
        self._over(code)


def rank_variables(part: Part) -> dict[str, str]:
    """Who the rank is, in the words of torch's and DeepSpeed's launchers."""
    return {
        "RANK": str(part.rank),
        "LOCAL_RANK": str(part.local_rank),
        "WORLD_SIZE": str(part.world_size),
        "LOCAL_WORLD_SIZE": str(part.ranks_per_node),
        "NODE_RANK": str(part.node),
        "GROUP_RANK": str(part.node),
        "CROSS_RANK": str(part.node),
        "CROSS_SIZE": str(part.num_nodes),
        "LOCAL_SIZE": str(part.ranks_per_node),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }


def _before_exit(then: Callable[[int], None]) -> None:
    leave, our_pid = os._exit, os.getpid()

    def leaving(code: int) -> None:
        if os.getpid() == our_pid:  # workers that were forked leave so too
            then(code)
        leave(code)

    os._exit = leaving  # type: ignore[assignment] # it never returns


def main() -> None:
    """Play the part that the environment names."""
    part = Part.model_validate_json(Path(os.environ[PART_VARIABLE]).read_bytes())
    sys.exit(Player(part).play())


if __name__ == "__main__":
    main()
