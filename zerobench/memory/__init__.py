"""What memory is used for: the ledger and its sources, and the NVML sampler, which starts without torch."""
