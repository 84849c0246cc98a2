"""Chunks of a cross entropy: as many logits at a time as there are hidden states."""

import pytest

from zerobench.config.derived.chunks import chunk_rows


@pytest.mark.parametrize(
    ("tokens", "hidden", "vocab", "rows"),
    [(4096, 4096, 32000, 512), (4096, 64, 300, 1024), (4096, 64, 320, 1024), (4096, 64, 321, 1024), (7, 64, 64, 7)],
)
def test_a_chunk_has_about_as_many_logits_as_there_are_hidden_states(
    tokens: int, hidden: int, vocab: int, rows: int
) -> None:
    assert chunk_rows(tokens, hidden, vocab) == rows
