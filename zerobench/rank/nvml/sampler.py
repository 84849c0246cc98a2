"""The NVML sampler for its user: starts one process per node, waits for its baseline, ends it.

    sampler = Sampler.start(trial_folder, node, uuids)
    sampler.wait_ready(10.0)  # the baseline is on disk: devices may be used now
    ...
    summary = sampler.stop()

NVML has no peak, so the peak is sampled: the summary has the interval and the largest gap. The summary appears on disk
once the baseline is taken. Without a driver nothing is started, and the summary has the reason. A node is identified by
its index within the trial, since two may share a hostname.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from zerobench.common.errors import UserError
from zerobench.rank.nvml.nvml import unavailable_reason
from zerobench.records.folder import TrialFolder, write_whole
from zerobench.records.records import NvmlSummary, read_or_none

END_PATIENCE_S = 5.0
"""Seconds for the sampler to end before it is killed; a driver call can hang."""
_LOOK_AGAIN_S = 0.005
_DEATH = "the sampler died: it"


class Sampler:
    """A sampler process of one trial on this node; without a process if there is nothing to sample."""

    def __init__(self, folder: TrialFolder, node: int) -> None:
        self._node = node
        self._summary = folder.nvml_summary(node)
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    @classmethod
    def start(
        cls, trial_folder: TrialFolder, node: int, uuids: Sequence[str] | None, interval_s: float = 0.010
    ) -> Sampler:
        """Start sampling the devices `uuids` of this node, number `node` of the trial, into `trial_folder`.

        `uuids` None: the devices left by CUDA_VISIBLE_DEVICES, or all devices of the node if it is not set.

        Raises:
            UserError: the interval is not above 0.

        """
        if not interval_s > 0:
            raise UserError(f"interval_s: {interval_s}; choices: a number of seconds above 0")
        sampler = cls(trial_folder, node)
        samples, summary = trial_folder.nvml_samples(node), trial_folder.nvml_summary(node)
        for stale in (samples, summary):
            stale.unlink(missing_ok=True)
        reason = "no device given" if uuids is not None and not uuids else unavailable_reason()
        if reason is None:
            reason = sampler._launch(sampler_command(samples, summary, node, uuids, interval_s))
        if reason is not None:
            sampler._write(sampler._nothing(reason))
        return sampler

    @property
    def pid(self) -> int | None:
        """Process id of the sampler; None if none was started."""
        return self._process.pid if self._process else None

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait until the baseline is on disk, or the sampler has ended; returns False after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not (self._summary.exists() or self._process is None or self._process.poll() is not None):
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_AGAIN_S)
        return True

    def stop(self) -> NvmlSummary:
        """End the sampler and return its summary; a second call returns the same."""
        if self._process is None:
            return read_or_none(self._summary, NvmlSummary) or self._nothing("no sampler was started")
        code = _end(self._process)
        summary = read_or_none(self._summary, NvmlSummary)
        if summary is None:
            summary = self._nothing(f"the sampler {_end_words(code)} before its first reading: {self._last_words()}")
            self._write(summary)
        elif code != 0 and not any(fault.startswith(_DEATH) for fault in summary.faults):
            lost = "up to one second of samples lost"
            summary.faults.append(f"{_DEATH} {_end_words(code)}: {self._last_words()}; {lost}")
            self._write(summary)
        return summary

    def _launch(self, command: list[str]) -> str | None:
        """Start the process; returns the reason if it could not be started, else None."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - read after the process has ended
        quiet = subprocess.DEVNULL
        try:
            self._process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=self._errors)
        except OSError as error:
            return f"the sampler could not be started: {error}"
        return None

    def _nothing(self, reason: str) -> NvmlSummary:
        return NvmlSummary(hostname=socket.gethostname(), node=self._node, available=False, reason=reason)

    def _write(self, summary: NvmlSummary) -> None:
        write_whole(self._summary, summary.model_dump_json(indent=1))

    def _last_words(self) -> str:
        """Last line of the sampler's standard error."""
        if self._errors is None:
            return ""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no output"


def sampler_command(
    samples: Path, summary: Path, node: int, uuids: Sequence[str] | None, interval_s: float
) -> list[str]:
    """Command line of a sampler that ends with this process at the latest."""
    command = [sys.executable, "-m", "zerobench.rank.nvml.sampler", "--node", str(node)]
    command += ["--out", str(samples.absolute()), "--summary", str(summary.absolute())]
    command += ["--interval-ms", f"{interval_s * 1000:g}", "--parent-pid", str(os.getpid())]
    return command if uuids is None else [*command, "--uuids", *uuids]


def _end(process: subprocess.Popen[bytes]) -> int:
    """End the process, by force if necessary; returns its exit code."""
    process.terminate()
    try:
        return process.wait(END_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _end_words(code: int) -> str:
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
    """Run the sampler's own process."""
    from zerobench.rank.nvml.sampler_process import run  # only this process needs it

    return run(_parse(arguments))


if __name__ == "__main__":
    sys.exit(main())
