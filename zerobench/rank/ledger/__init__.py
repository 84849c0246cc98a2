"""The ledger, which names each byte of memory, and its sources."""
