"""GPUs, nodes and links from datasheets, and a machine's compilers."""
