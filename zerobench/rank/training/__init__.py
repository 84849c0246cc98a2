"""Inputs of a rank's training: model, weights, data, precision, recomputation, checkpoints."""
