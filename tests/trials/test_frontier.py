"""The most that fits, measured with the real engine on two CPU ranks and begun from the real simulator's answer."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from zerobench.records.instants import device_peak_bytes
from zerobench.records.store import load_run

REPOSITORY = Path(__file__).resolve().parents[2]
CAPACITY_BYTES = 120 * 2**20
SWEEP = """
name: edge
axes:
  model: {family: llama, name: wide, num_layers: 2, hidden_size: 64, num_heads: 4, vocab_size: 8192,
          max_position_embeddings: 64}  # most of a sequence's bytes are its logits, which cost few products
  strategy: zero2
  world_size: 2
  micro_batch_size: 8
  sequence_length: 64
  precision: fp32  # some processors multiply bf16 60 times slower
  ds_config: {reduce_bucket_size: 1e6, allgather_bucket_size: 1e6}
steps: {warmup: 0, timed: 1, memory: 1}
"""


@pytest.mark.slow
def test_the_largest_micro_batch_is_found_from_its_prediction_and_one_more_does_not_fit(
    tmp_path: Path, forked_ranks: Mapping[str, str]
) -> None:
    (tmp_path / "edge.yaml").write_text(SWEEP)
    asked = ["run", "edge.yaml", "--frontier", "micro-batch", "--capacity", "120MiB"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.tools.forked_zerobench", *asked],
        cwd=tmp_path,
        env={**os.environ, **forked_ranks, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    [folder] = (tmp_path / "reports").iterdir()
    [cell] = json.loads((folder / "frontier.json").read_text())["cells"]
    peaks = {tried["value"]: tried["needed_bytes"] for tried in cell["measured_tries"]}
    assert peaks[cell["measured"]] <= CAPACITY_BYTES < peaks[cell["measured"] + 1]
    assert cell["predicted"] == pytest.approx(cell["measured"], abs=1)
    assert len(peaks) <= 3
    runs = [trial for path in (folder / "measured").iterdir() for trial in load_run(path).trials()]
    assert {trial.spec.micro_batch_size: device_peak_bytes(trial) for trial in runs} == peaks
    assert all(len(trial.ranks) == 2 for trial in runs)
    assert f"{cell['predicted']} " in done.stdout.partition("Measured: ")[2]
