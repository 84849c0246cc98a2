"""`zerobench setup horovod` with other steps: Python programs, each with the folder that it makes.

python -m tests.launch.run.standin_setup FOLDER NAME=MAKES=PROGRAM ...
"""

import sys
from pathlib import Path

from zerobench.common.errors import UserError
from zerobench.launch.setup import environment_setup
from zerobench.launch.setup.setup_steps import CHECK, Step


def _step(text: str) -> Step:
    name, makes, program = text.split("=", 2)
    clears = Path(makes) if makes else None
    return Step(name, [sys.executable, "-c", program], clears=clears, disturbs=name != CHECK)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    todo = [_step(text) for text in sys.argv[2:]]
    environment_setup.steps = lambda _own, _jobs: todo  # type: ignore[assignment,misc]
    try:
        environment_setup.set_up("horovod", Path(sys.argv[1]), _say)
    except UserError as error:
        sys.exit(str(error))
