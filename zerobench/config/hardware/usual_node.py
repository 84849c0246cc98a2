"""Defaults of a node; a separate file, so that the command line can show them without other imports."""

GPUS_PER_NODE = 8
"""DGX and HGX systems, and the large clouds' instances, since the V100."""

HOST_BANDWIDTH = "921.6GB/s"
"""Memory of two sockets of EPYC 9004, 24 channels of DDR5-4800
(https://www.amd.com/en/products/specifications/server-processor.html: 460.8 GB/s a socket): more than most GPU nodes
have, so that a bound derived from it applies to them too."""
