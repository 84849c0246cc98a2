"""The NVML sampler as its user holds it: starts one process per node, waits for its baseline, ends it.

    sampler = Sampler.start(trial_folder, node, uuids)
    sampler.wait_ready(10.0)  # the baseline is on disk: devices may be touched now
    ...
    summary = sampler.stop()

NVML keeps no peak, so its peak is a sampled one: the summary has the interval and the largest gap. The summary's first
appearance on disk is the sign that the baseline was taken.
Without a driver nothing is started, and the summary says why. A node is named by its index within the trial: two may
share a hostname.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from zerobench.common.errors import UserError
from zerobench.rank.nvml.nvml import why_unavailable
from zerobench.records.folder import TrialFolder, write_whole
from zerobench.records.records import NvmlSummary, read_or_none

END_PATIENCE_S = 5.0
"""How long the sampler may take to end before it is killed; a driver call can hang."""
_LOOK_AGAIN_S = 0.005
_DEATH = "the sampler died: it"


class Sampler:
    """A sampler process of one trial on this node; none where there is nothing to sample."""

    def __init__(self, folder: TrialFolder, node: int) -> None:
        self._node = node
        self._summary = folder.nvml_summary(node)
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    @classmethod
    def start(
        cls, trial_folder: TrialFolder, node: int, uuids: Sequence[str] | None, interval_s: float = 0.010
    ) -> Sampler:
        """Start sampling the devices `uuids` of this node, the trial's node `node`, into `trial_folder`.

        None: those that this process's CUDA_VISIBLE_DEVICES leaves, all of the node where it is not set.

        Raises:
            UserError: the interval is not above 0.

        """
        if not interval_s > 0:
            raise UserError(f"interval_s: {interval_s}; choices: a number of seconds above 0")
        sampler = cls(trial_folder, node)
        samples, summary = trial_folder.nvml_samples(node), trial_folder.nvml_summary(node)
        for stale in (samples, summary):
            stale.unlink(missing_ok=True)
        reason = "no device given" if uuids is not None and not uuids else why_unavailable()
        if reason is None:
            reason = sampler._launch(sampler_command(samples, summary, node, uuids, interval_s))
        if reason is not None:
            sampler._write(sampler._nothing(reason))
        return sampler

    @property
    def pid(self) -> int | None:
        """The sampler's process; None where none was started."""
        return self._process.pid if self._process else None

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait until the baseline is on disk, or until it is clear that none will come; False after `timeout_s`."""
        return _wait(lambda: self._summary.exists() or self._ended(), timeout_s)

    def stop(self) -> NvmlSummary:
        """End the sampler and return what it saw; a second call returns the same."""
        if self._process is None:
            return read_or_none(self._summary, NvmlSummary) or self._nothing("no sampler was started")
        code = _end(self._process)
        summary = read_or_none(self._summary, NvmlSummary)
        if summary is None:
            summary = self._nothing(f"the sampler {_how(code)} before its first reading: {self._last_words()}")
            self._write(summary)
        elif code != 0 and not any(fault.startswith(_DEATH) for fault in summary.faults):
            summary.faults.append(f"{_DEATH} {_how(code)}: {self._last_words()}; up to one second of samples lost")
            self._write(summary)
        return summary

    def _launch(self, command: list[str]) -> str | None:
        """Start the process; why it could not be started, None where it was."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - read after the process has ended
        quiet = subprocess.DEVNULL
        try:
            self._process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=self._errors)
        except OSError as error:
            return f"the sampler could not be started: {error}"
        return None

    def _ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _nothing(self, reason: str) -> NvmlSummary:
        return NvmlSummary(hostname=socket.gethostname(), node=self._node, available=False, reason=reason)

    def _write(self, summary: NvmlSummary) -> None:
        write_whole(self._summary, summary.model_dump_json(indent=1))

    def _last_words(self) -> str:
        """The last line that the sampler wrote as an error."""
        if self._errors is None:
            return ""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no output"


def sampler_command(
    samples: Path, summary: Path, node: int, uuids: Sequence[str] | None, interval_s: float
) -> list[str]:
    """The command line of a sampler that lives as long as this process, at most."""
    command = [sys.executable, "-m", "zerobench.rank.nvml.sampler", "--node", str(node)]
    command += ["--out", str(samples.absolute()), "--summary", str(summary.absolute())]
    command += ["--interval-ms", f"{interval_s * 1000:g}", "--parent-pid", str(os.getpid())]
    return command if uuids is None else [*command, "--uuids", *uuids]


def _wait(ready: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_AGAIN_S)
    return True


def _end(process: subprocess.Popen[bytes]) -> int:
    """End the process, by force if it does not end by itself; its exit code."""
    process.terminate()
    try:
        return process.wait(END_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _how(code: int) -> str:
    return f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"


def _milliseconds(value: str) -> float:
    number = float(value)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{value}; choices: a number above 0")
    return number


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m zerobench.rank.nvml.sampler", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="where the samples go (CSV)")
    parser.add_argument("--summary", type=Path, required=True, help="where the summary goes (JSON)")
    parser.add_argument("--node", type=int, required=True, help="index of this node within the trial")
    parser.add_argument("--interval-ms", type=_milliseconds, default=10.0)
    parser.add_argument("--uuids", nargs="*", help="devices to sample (those of CUDA_VISIBLE_DEVICES)")
    parser.add_argument("--parent-pid", type=int, required=True, help="the sampler ends with this process")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """The sampler's own process."""
    from zerobench.rank.nvml.sampler_process import run  # its user needs none of it

    return run(_parse(arguments))


if __name__ == "__main__":
    sys.exit(main())
