"""The only part that knows DeepSpeed's keys: builds its configuration, checks users' own, explains its memory.

It does not import DeepSpeed: the keys come from `known_keys.json`, which a test holds against the installed one.
"""

from __future__ import annotations

from zerobench.ds_config.build import build_ds_config, in_own_swap_folder, replaces_linear, swap_folder
from zerobench.ds_config.check import check_ds_config, check_overrides
from zerobench.ds_config.keys import resolve_key
from zerobench.ds_config.obedience import file_notes, obeyed_only, only_read, why_not_obeyed, would_read
from zerobench.ds_config.user_file import load_user_config

__all__ = [
    "build_ds_config",
    "check_ds_config",
    "check_overrides",
    "file_notes",
    "in_own_swap_folder",
    "load_user_config",
    "obeyed_only",
    "only_read",
    "replaces_linear",
    "resolve_key",
    "swap_folder",
    "why_not_obeyed",
    "would_read",
]
