"""Chunks of tokens whose logits are made and let go one after the other (cross_entropy: chunked)."""


def chunk_rows(tokens: int, hidden_size: int, vocab_size: int) -> int:
    """Return the tokens of a chunk whose logits are about as many as the hidden states of all tokens, a power of two.

    Source: Liger (arXiv 2410.10989, section 3.2) and torch 2.13's `aspect_ratio`
    (torch/nn/modules/linear_cross_entropy_options.py).
    """
    rows = -(-tokens // -(-vocab_size // hidden_size))
    return min(tokens, 1 << (rows - 1).bit_length())
