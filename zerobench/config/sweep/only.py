"""`--only`: filters of a sweep's trials.

`--only axis=value,...` keeps the points whose axis has one of the values, `--only NAME` the trials whose id begins with
NAME or matches it as a glob (`*`, `?`, `[...]`). Values may be globs too (`model=llama-*`), and a GPU any of its names
(`gpu=h200`); an axis that does not apply has the value `null` (`gpu` of measured trials). Filters of one axis, and of
ids, are alternatives; different axes must all match. A `single` reference is kept with the points that need it: `--only
world_size=2` keeps the single process that trains the same global batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from zerobench.common.errors import UserError, unknown_choice
from zerobench.config.axes.axes import LISTED_BY, READERS
from zerobench.config.axes.axis_readers import full_key
from zerobench.config.hardware.hardware import find_gpu
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.plain import check_plain, one_line, parse_number

TRIAL_ID = "id"


@dataclass(frozen=True)
class Only:
    """One filter: an axis (`id` for trial ids, `ds_config.<full path>` for DeepSpeed keys) and its patterns."""

    axis: str
    patterns: tuple[str, ...]

    def matches(self, point: Mapping[str, Any], trial_id: str) -> bool:
        """Return whether the point, or the id of its trial, matches."""
        if self.axis == TRIAL_ID:
            return any(trial_id.startswith(pattern) or fnmatchcase(trial_id, pattern) for pattern in self.patterns)
        text = shown(self.axis, point)
        return any(fnmatchcase(text, pattern) for pattern in self.patterns)


def read_only(text: str) -> Only:
    """Parse a filter. Raises UserError for an unknown axis or no value."""
    check_plain(text, "--only")
    axis, equals, written = text.partition("=")
    parts = [part.strip() for part in (written if equals else text).split(",") if part.strip()]
    name = _axis(axis.strip()) if equals else TRIAL_ID
    patterns = tuple(_pattern(name, part) for part in parts)
    if not patterns:
        raise UserError(one_line(f"--only: {text!r} has no value; give axis=value,... or the start of a trial id"))
    return Only(name, patterns)


def _pattern(axis: str, part: str) -> str:
    """Normalize a value: numbers in one notation, GPUs by the catalogue's name."""
    if axis == TRIAL_ID:
        return part
    gpu = find_gpu(part) if axis == "gpu" else None
    return str(parse_number(part)) if gpu is None else gpu.name


def keep(only: Sequence[Only], point: Mapping[str, Any], trial_id: str) -> bool:
    """Return whether each axis that `only` names passes one of its filters."""
    passes: dict[str, bool] = {}
    for axis_filter in only:
        passes[axis_filter.axis] = passes.get(axis_filter.axis, False) or axis_filter.matches(point, trial_id)
    return all(passes.values())


def shown(axis: str, point: Mapping[str, Any]) -> str:
    """Value of `axis` at `point` in the notation of filters."""
    if axis.startswith("ds_config."):
        return _text(point["ds_config"].get(axis.removeprefix("ds_config.")))
    return _text(point[axis])


def _text(value: Any) -> str:
    if isinstance(value, ModelSpec):
        return value.name
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _axis(axis: str) -> str:
    section, dot, field = axis.partition(".")
    if section == "ds_config" and dot:
        return full_key(field, "--only")
    choices = [name for name in READERS if name != "ds_config"]
    if axis not in choices:
        raise UserError(one_line(f"--only: {unknown_choice('axis', axis, [*choices, 'ds_config.KEY'], LISTED_BY)}"))
    return axis
