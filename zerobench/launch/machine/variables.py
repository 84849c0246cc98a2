"""Environment variables stored with a run: those that change memory or speed, never secrets.

Only names on the list are stored. Even then a value is refused if its name or text looks like a secret: some clusters
put tokens anywhere, and a run's folder is made to be shared. Refusing too much is the lesser fault.
"""

import fnmatch
import re
from collections.abc import Mapping
from pathlib import Path

from zerobench.common.redaction import long_lines, redact_text, replace_url_users, secret_values

KEPT = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "NVIDIA_VISIBLE_DEVICES",
    "NCCL_*",
    "TORCH_NCCL_*",
    "GLOO_SOCKET_IFNAME",
    "PYTORCH_*ALLOC_CONF",
    "OMP_*",
    "MKL_NUM_THREADS",
    "KMP_*",
    "GOMP_CPU_AFFINITY",
    "DS_*",
    "MALLOC_*",
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
    "SLURM_JOB_ID",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NTASKS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_CPUS_PER_TASK",
    "SLURM_MEM_PER_NODE",
)
"""Names and patterns of the stored variables."""

REFUSED = "(not kept: it may hold a secret)"

_LONGEST = 500
_SECRET_WORDS = re.compile(
    r"token|key|passw|passphrase|pwd|secret|credential|auth|cookie|private|signature|bearer", re.IGNORECASE
)
_SECRET_STARTS = re.compile(
    r"\b(AKIA|ASIA|AIza|gh[pousr]_|github_pat_|glpat-|hf_|sk-|pk-|xox[a-z]-|eyJ|npm_|dckr_|nvapi-)"
)
_NAME_AND_PASSWORD = re.compile(r"[^\s:/@]:[^\s@]")
_NO_SPACE = re.compile(r"\S+")
_DEVICE = re.compile(
    r"(GPU-|MIG-)[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b(en|ib|wl)p\d+s\d+(f\d+)?(np\d+|d\d+)?\b", re.IGNORECASE
)
"""UUIDs of GPUs and kernel names of network interfaces, which look like secrets but are none."""
_RUN = re.compile(r"[A-Za-z0-9+/_-]{8,}")
_WORD = re.compile(r"(?!.{16})([A-Z]?[a-z]*([A-Z][a-z]{2,})*|[A-Z]+|[0-9]+)")
"""Words, camelCase included, and numbers; none longer than 15 characters."""
_MODEL = re.compile(r"[a-z0-9]{1,6}|[A-Z0-9]{1,6}")
"""Short names with a digit: `mlx5`, `h100`, `x86`."""


def kept_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `environ` to store, by name; suspicious values are replaced by REFUSED."""
    return {name: safe_value(name, value) for name, value in sorted(environ.items()) if _is_kept(name)}


def _is_kept(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in KEPT)


def values_to_redact(environ: Mapping[str, str]) -> set[str]:
    """Return the values of `environ` to mask in logs: `secret_values`, and refused values of stored variables."""
    refused = {name: value for name, value in environ.items() if _is_kept(name) and safe_value(name, value) == REFUSED}
    return secret_values(environ) | long_lines(refused.values())


def safe_value(name: str, value: str) -> str:
    """Return `value` without URL users and passwords, or REFUSED if `name` or the rest looks like a secret."""
    if _SECRET_WORDS.search(name):
        return REFUSED
    stripped = replace_url_users(value, "", _NO_SPACE)
    is_suspicious = (
        len(stripped) > _LONGEST
        or not stripped.isprintable()
        or any(pattern.search(stripped) is not None for pattern in (_SECRET_WORDS, _SECRET_STARTS))
        or _holds_user_info(stripped)
        or any(_random(run) for run in _RUN.findall(_DEVICE.sub("", stripped)))
        or redact_text(stripped) != stripped
    )
    return REFUSED if is_suspicious else stripped


def _holds_user_info(text: str) -> bool:
    """Return True if `text` contains `user:password@`."""
    *before_ats, _ = text.split("@")
    words = (part.split()[-1] for part in before_ats if part and not part[-1].isspace())
    return any(_NAME_AND_PASSWORD.search(word) for word in words)


def _random(run: str) -> bool:
    """Return True if a run of characters looks random rather than made of words and numbers."""
    if run.startswith("/"):
        # In a path, only the part below existing folders is judged.
        folder = next(str(folder) for folder in (Path(run), *Path(run).parents) if folder.is_dir())
        if folder != "/":
            return any(_random(part) for part in run.removeprefix(folder).split("/"))
    strange = [part for part in re.split("[/_-]", run) if not _WORD.fullmatch(part)]
    if len(run) >= 12 and (len(strange) > 2 or not all(_MODEL.fullmatch(part) for part in strange)):
        return True
    return len(run) >= 8 and all(re.search(kind, run) for kind in ("[a-z]", "[A-Z]", "[0-9]"))
