"""Keep secrets out of run folders, which are made to be shared: those written into a sweep or its files.

A trial needs its DeepSpeed config and paths unchanged, so one with a secret is refused before anything is written. A
description is for readers only: there the secret is masked.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from zerobench.common.errors import UserError
from zerobench.common.redaction import is_secret_name, redact_text
from zerobench.config.trial.trial import TrialSpec

_plain = lru_cache(maxsize=10_000)(lambda text: redact_text(text) == text)
"""True if a text holds no secret; cached, since trials of a sweep repeat each other."""


def refuse_secrets(trial: TrialSpec, ds_config: Mapping[str, Any] | None) -> None:
    """Raise UserError if the stored form of `trial`, or of its DeepSpeed config, contains a secret.

    Names of a model's fields are no evidence: `eos_token` is an ordinary one.
    """
    for place, text in (*_texts(trial.model_dump(mode="json"), ""), *_texts(ds_config or {}, "ds_config")):
        name = place.rpartition(".")[2]
        if not _plain(text) or (place.startswith("ds_config.") and is_secret_name(name)):
            raise UserError(
                f"{place}: looks like a secret (a password in a URL, a token), which the run would store "
                "and show; remove it, or keep it in ~/.netrc or an environment variable"
            )


def _texts(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield each text within `value` with its dotted path."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(inner, f"{place}.{key}".removeprefix("."))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner, place)
