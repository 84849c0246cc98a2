"""A run folder is made to be shared: what a person wrote into a sweep, or names in it, must not hold a secret.

What a trial needs as it stands (a DeepSpeed config, a path) cannot be kept without it: so it is refused before anything
is written. A description serves nobody but readers: there the secret alone goes.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from zerobench.common.errors import UserError
from zerobench.common.redaction import is_secret_name, redact_text
from zerobench.config.trial.trial import TrialSpec

_plain = lru_cache(maxsize=10_000)(lambda text: redact_text(text) == text)
"""Whether a text holds no secret; trials of a sweep repeat each other."""


def refuse_secrets(trial: TrialSpec, ds_config: Mapping[str, Any] | None) -> None:
    """Raises UserError where what would be kept of `trial`, or the DeepSpeed config made for it, holds a secret.

    The names of a model's fields promise nothing: `eos_token` is a word of its language.
    """
    for place, text in (*_texts(trial.model_dump(mode="json"), ""), *_texts(ds_config or {}, "ds_config")):
        name = place.rpartition(".")[2]
        if not _plain(text) or (place.startswith("ds_config.") and is_secret_name(name)):
            raise UserError(
                f"{place}: looks like a secret (a password in a URL, a token), which the run would store "
                "and show; remove it, or keep it in ~/.netrc or an environment variable"
            )


def _texts(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Each text within `value`, with where it stands."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(inner, f"{place}.{key}".removeprefix("."))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner, place)
