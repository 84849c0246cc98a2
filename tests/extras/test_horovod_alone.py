"""Horovod alone in its group takes the plain loop's steps, holds what it names, and goes on from its file."""

import os
import subprocess
from pathlib import Path

import pytest

from zerobench.common.environments import environment

ROOT = Path(__file__).resolve().parents[2]


def test_alone_it_takes_the_plain_steps_and_goes_on_from_its_file(tmp_path: Path) -> None:
    added = {"PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)])}
    added |= {"TESTING": str(Path(pytest.__file__).parent.parent), "HOROVOD_CONTROLLER": "gloo"}
    command = [str(environment("horovod").python), "-c", _INSIDE.format(folder=str(tmp_path))]
    ended = subprocess.run(command, env=os.environ | added, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]


_INSIDE = """
import os, sys
from pathlib import Path
sys.path.append(os.environ["TESTING"])  # where pytest is: all else that is imported is the environment's own
from tests.rank.strategies import test_one_rank as alone

def near(found, wanted, apart):
    assert all(abs(a - b) <= apart * abs(b) for a, b in zip(found, wanted, strict=True)), (found, wanted)

folder, sent = Path({folder!r}), []
losses, _, norms = alone.plain("fp32")
ours = alone.made("horovod", heard=lambda *call: sent.append(call))
found, heard, told = alone.stepped(ours)
near(found, losses[:2], 1e-6)
near(told, norms[:2], 1e-5)
assert heard == 2 * ("fLb" * 3 + "bs"), heard
assert {{call[:2] for call in sent}} == {{("all_reduce", 1)}}
assert (len(sent), sum(nbytes for _, _, nbytes in sent)) == (2 * 21, 2 * 4 * alone.N), sent
ours.save(folder)
found, _, _ = alone.stepped(ours, begin=2)
near(found, losses[2:], 2e-6)
assert alone.held(ours) == alone.FP32, alone.held(ours)
said = ours.effective_config()["horovod"]
assert (said["size"], said["fusion_threshold_bytes"], said["backward_passes_per_step"]) == (1, 128 * 2**20, 3), said
other = alone.made("horovod", seed=2)
other.load(folder)
assert alone.stepped(other, begin=2)[0] == found
halves = alone.made("horovod", heard=lambda *call: sent.append(call), compression="fp16", bucket_bytes=1000)
sent.clear()
alone.stepped(halves)
assert sum(nbytes for _, _, nbytes in sent) == 2 * 2 * alone.N, sent
assert halves.effective_config()["horovod"]["fusion_threshold_bytes"] == 1000
"""
