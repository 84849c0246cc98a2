"""Build DeepSpeed configurations, check users' own, and read their memory settings; no other package knows the keys.

DeepSpeed is not imported: the keys come from `known_keys.json`, which a test compares with the installed version.
"""

from __future__ import annotations

from zerobench.config.deepspeed.build import build_ds_config, replaces_linear
from zerobench.config.deepspeed.check import check_ds_config, check_overrides
from zerobench.config.deepspeed.keys import resolve_key
from zerobench.config.deepspeed.obedience import file_notes, obeyed_only, only_read, why_not_obeyed, would_read
from zerobench.config.deepspeed.user_file import load_user_config

__all__ = [
    "build_ds_config",
    "check_ds_config",
    "check_overrides",
    "file_notes",
    "load_user_config",
    "obeyed_only",
    "only_read",
    "replaces_linear",
    "resolve_key",
    "why_not_obeyed",
    "would_read",
]
