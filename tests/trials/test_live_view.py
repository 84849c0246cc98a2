"""A small sweep from the command line to its records, as it is started everywhere (no forks of one process, as in most
tests), watched on a terminal of 80 columns and 24 lines.
"""

import re
import sys

import pytest

from tests.tools.terminal import on_a_terminal, terminal_environment

SWEEP = """
name: watched
axes:
  model: {family: gpt2, name: tiny, num_layers: 2, hidden_size: 64, num_heads: 4, vocab_size: 509,
          max_position_embeddings: 64}
  strategy: zero1
  world_size: 2
  sequence_length: 64
  precision: fp32
steps: {warmup: 1, timed: 150, memory: 1}
"""
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> str:
    """All that was painted while the sweep ran."""
    folder = tmp_path_factory.mktemp("watched")
    (folder / "sweep.yaml").write_text(SWEEP, encoding="utf-8")
    command = [sys.executable, "-m", "zerobench", "run", str(folder / "sweep.yaml")]
    output, exit_code = on_a_terminal([*command, "--reports", str(folder / "reports")], terminal_environment())
    assert exit_code == 0, output
    return ESCAPES.sub("", output)


def test_the_screen_shows_memory_by_category_the_phase_and_the_speed_while_steps_are_timed(shown: str) -> None:
    assert "timed, step" in shown
    sizes = dict(re.findall(r"(parameters|gradients|optimizer|activations) ([\d.]+) [KM]iB", shown))
    assert sizes.keys() == {"parameters", "gradients", "optimizer", "activations"}
    assert all(float(size) > 0 for size in sizes.values())
    speeds = [int(found.replace(",", "")) for found in re.findall(r"([\d,]+) tokens/s \|", shown)]
    assert speeds
    assert min(speeds) > 0


def test_each_of_the_two_ranks_has_its_row(shown: str) -> None:
    rows = [
        re.fullmatch(r"([01]) +\N{FULL BLOCK}+ +([\d.]+) [MG]iB +[\d.]+ [MG]iB", line.strip())
        for line in shown.splitlines()
    ]
    peaks = {found[1]: float(found[2]) for found in rows if found}
    assert peaks.keys() == {"0", "1"}
    assert all(peak > 0 for peak in peaks.values())
