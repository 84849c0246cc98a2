"""Build DeepSpeed configurations, check users' own, and read their memory settings; no other package knows the keys.

DeepSpeed is not imported: the keys come from `known_keys.json`, which a test compares with the installed version.
"""

from __future__ import annotations

from zerobench.config.deepspeed.build import build_ds_config, replaces_linear
from zerobench.config.deepspeed.check import check_ds_config, check_overrides
from zerobench.config.deepspeed.keys import resolve_key
from zerobench.config.deepspeed.obedience import (
    drop_refused_keys,
    drop_unread_keys,
    ds_config_refusal,
    file_notes,
    reads_key,
)
from zerobench.config.deepspeed.user_file import load_user_config

__all__ = [
    "build_ds_config",
    "check_ds_config",
    "check_overrides",
    "drop_refused_keys",
    "drop_unread_keys",
    "ds_config_refusal",
    "file_notes",
    "load_user_config",
    "reads_key",
    "replaces_linear",
    "resolve_key",
]
