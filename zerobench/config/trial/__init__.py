"""A trial and its parts: model, adapter, optimizer, recomputation, checkpoints."""
