"""Detects a TPU as TensorFlow would, without importing it.

A TPU that is reached over the network has a name or an address, in the variables that TPUClusterResolver reads
(tensorflow/python/tpu/client/client.py, _get_tpu_name and _get_tpu_node_config). One that is attached to this machine
is a device `/dev/accel0`, `/dev/accel1`, ... (tensorflow/core/tpu/tpu_initializer_helper.cc, IsTpuUsed); if the driver
exposes it otherwise, `TPU_NAME=local` declares it.
"""

from collections.abc import Mapping
from pathlib import Path

VARIABLES = ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_NAME", "TPU_CONFIG")
LOCAL = "local"
"""TPUClusterResolver's name for a TPU of this machine."""


def may_answer(environ: Mapping[str, str], devices: Path = Path("/dev")) -> bool:
    """Return whether a TPU is named or attached; only TensorFlow can tell whether it responds."""
    return any(environ.get(name) for name in VARIABLES) or any(devices.glob("accel[0-9]*"))


def address(environ: Mapping[str, str]) -> str | None:
    """Argument for TPUClusterResolver: `local`, or None if it finds a name in the variables itself."""
    is_named = any(environ.get(name) for name in VARIABLES)
    return None if is_named and environ.get("TPU_NAME") != LOCAL else LOCAL
