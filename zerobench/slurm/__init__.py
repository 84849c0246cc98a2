"""The name of a module in batch scripts that were submitted before it moved, so that these start as they did."""
