"""Terms of a memory estimate: model states, activations, logits, the order of modules."""
