"""Code inside a training process: one rank of a trial, and its measurements."""
