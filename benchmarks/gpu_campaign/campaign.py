"""The GPU campaign: everything that only a real GPU can show, in parts, as far as the time goes.

    python benchmarks/gpu_campaign/campaign.py [--minutes 9.5] [--only PART,...] [--folder reports/gpu-campaign]
                                               [--archive FILE.tar.gz] [--list]

Machines are lent for minutes. So a call does what it has time for, ends what is then running as Ctrl-C would (a run
keeps every trial that ended), and the next call goes on there; where the machine is gone in between, `--archive`
brings the folder along: it is unpacked at the start and written at the end.

A part that failed is said to have failed and is not tried again before all others had their turn; `--only` runs it
again. The exit status is 0 where all parts are done, 75 (try again) where some are left, 1 where some failed.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.gpu_campaign.parts import PARTS, ROOT, Part, part_names
from benchmarks.gpu_campaign.state import Outcome, State
from zerobench.common.errors import UserError, unknown_choice
from zerobench.records.folder import write_whole

ENDING_S = 25.0
"""What is kept of the time for ending what runs and for the archive."""
KILLED_AFTER_S = 20.0
SOME_FAILED = 1
"""Exit status of a run all of whose trials have ended, some of them out of memory: that is its result."""
TRY_AGAIN = 75
"""EX_TEMPFAIL of sysexits.h."""


class Campaign:
    """The parts in one folder, until a moment."""

    def __init__(self, folder: Path, minutes: float) -> None:
        self.folder = folder
        self._ends_at = time.monotonic() + minutes * 60 - ENDING_S
        self.state = State.read(folder)

    @property
    def left_s(self) -> float:
        """Seconds in which parts may still run."""
        return self._ends_at - time.monotonic()

    def run(self, parts: Sequence[Part]) -> None:
        """Run what is not done of `parts`; first what was never tried."""
        waiting = [part for part in parts if self.state.outcome(part.name) is not Outcome.DONE]
        for part in sorted(waiting, key=lambda part: self.state.outcome(part.name) is Outcome.FAILED):
            if self.left_s < part.least_s:
                say(f"{part.name}: not begun, it wants {part.least_s:.0f} s and {max(0, self.left_s):.0f} s are left")
                continue
            if missing := [path for path in part.needs if not path.is_file()]:
                say(f"{part.name}: not begun, {missing[0]} is not there")
                continue
            outcome = self._run(part)
            self.state.note(part.name, outcome)
            write_whole(self.folder / "state.json", self.state.model_dump_json(indent=1))
            say(f"{part.name}: {outcome}")

    def _run(self, part: Part) -> Outcome:
        folder = self.folder / part.name
        folder.mkdir(parents=True, exist_ok=True)
        argv = self._argv(part, folder)
        say(f"{part.name}: {part.what}")
        with (folder / "output.txt").open("a", encoding="utf-8") as output:
            output.write(f"$ {' '.join(argv)}\n")
            output.flush()
            process = subprocess.Popen(argv, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                code = process.wait(timeout=self.left_s)
            except subprocess.TimeoutExpired:
                _end(process)
                return Outcome.CUT_OFF
        return Outcome.DONE if code == 0 or (part.is_sweep and code == SOME_FAILED) else Outcome.FAILED

    def _argv(self, part: Part, folder: Path) -> list[str]:
        """The part's command: a sweep that was begun is gone on with."""
        argv = [argument.replace("{folder}", str(folder)) for argument in part.argv]
        if not part.is_sweep:
            return argv
        begun = sorted(path.parent for path in folder.glob("*/plan.json"))
        if begun:
            return [*argv[: argv.index("run") + 1], "--resume", str(begun[-1]), "--reports", str(folder)]
        return [*argv, "--reports", str(folder)]


def _end(process: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C would: zerobench then ends its trial and keeps what it has."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=KILLED_AFTER_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def unpack(archive: Path, folder: Path) -> None:
    """Bring back what an earlier call has left. Raises UserError: it is no such archive."""
    try:
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
    except (tarfile.TarError, OSError) as error:
        raise UserError(f"--archive: {archive}: {error}") from None


def pack(folder: Path, archive: Path) -> None:
    """Write all that lies in the campaign's folder; whole, or not at all."""
    beside = archive.with_name(f".{archive.name}.part")
    with tarfile.open(beside, "w:gz", compresslevel=6) as packed:
        packed.add(folder, arcname=".")
    beside.replace(archive)


def say(text: str) -> None:
    """A line of progress, with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def chosen(only: str | None) -> list[Part]:
    """The parts that are asked for. Raises UserError: a name that there is not."""
    names = list(part_names()) if only is None else only.split(",")
    for name in names:
        if name not in part_names():
            raise unknown_choice("--only", name, part_names())
    return [part for part in PARTS if part.name in names]


def main() -> int:
    """Run what there is time for; the exit status."""
    asked = _parse()
    try:
        parts = chosen(asked.only)
        if asked.list:
            print("\n".join(f"{part.name:<12}{part.what}" for part in parts))
            return 0
        asked.folder.mkdir(parents=True, exist_ok=True)
        if asked.archive is not None and asked.archive.is_file():
            unpack(asked.archive, asked.folder)
        campaign = Campaign(asked.folder.resolve(), asked.minutes)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        campaign.run(parts)
    finally:
        if asked.archive is not None:
            pack(asked.folder, asked.archive)
    return _status([campaign.state.outcome(part.name) for part in parts])


def _status(outcomes: Sequence[Outcome | None]) -> int:
    if None in outcomes or Outcome.CUT_OFF in outcomes:
        return TRY_AGAIN
    return 1 if Outcome.FAILED in outcomes else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.5, help="how long this call may take")
    parser.add_argument("--only", help="these parts alone, with commas between")
    parser.add_argument("--folder", type=Path, default=ROOT / "reports" / "gpu-campaign")
    parser.add_argument("--archive", type=Path, help="the folder, packed: read at the start, written at the end")
    parser.add_argument("--list", action="store_true", help="name the parts and run none")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
