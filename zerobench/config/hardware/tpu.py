"""Whether a TPU may answer to TensorFlow here, told without TensorFlow: by what it would look at itself.

A TPU that is reached over the network has a name or an address, in the variables that TPUClusterResolver reads
(tensorflow/python/tpu/client/client.py, _get_tpu_name and _get_tpu_node_config). One that is attached to this machine
is a device `/dev/accel0`, `/dev/accel1`, ... (tensorflow/core/tpu/tpu_initializer_helper.cc, IsTpuUsed); where the
driver shows it otherwise, `TPU_NAME=local` says that it is there.
"""

from collections.abc import Mapping
from pathlib import Path

VARIABLES = ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_NAME", "TPU_CONFIG")
LOCAL = "local"
"""What TPUClusterResolver calls a TPU of this machine."""


def may_answer(environ: Mapping[str, str], devices: Path = Path("/dev")) -> bool:
    """Whether a TPU is named, or attached to this machine. Whether it does answer, only TensorFlow finds out."""
    return any(environ.get(name) for name in VARIABLES) or any(devices.glob("accel[0-9]*"))


def address(environ: Mapping[str, str]) -> str | None:
    """What TPUClusterResolver is to be given: `local`, or None where it finds a name in the variables itself."""
    is_named = any(environ.get(name) for name in VARIABLES)
    return None if is_named and environ.get("TPU_NAME") != LOCAL else LOCAL
