"""Build what a rank trains: model, weights, data, precision, recomputation, checkpoints."""
