"""Read the node's GPUs through NVML, and sample them without torch."""
