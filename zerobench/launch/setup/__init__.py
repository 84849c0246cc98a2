"""Set up separate environments and check the machine: `zerobench setup` and `zerobench doctor`."""
