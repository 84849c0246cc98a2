"""Changed DeepSpeed configurations of the same trials of two runs: keys that were set, before and after."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zerobench.common.redaction import MARK, is_secret_name
from zerobench.config.deepspeed.user_file import leaves
from zerobench.records.store import Run, read_json
from zerobench.report.figures.notes import listed
from zerobench.report.words.column_units import plain
from zerobench.report.words.labels import brief

_UNSET = "default"
_PER_RUN = ("nvme_path",)
"""Each run swaps to a folder of its own."""
_NEED_THEIR_SECTION = ("enabled", "device", "type")
_MOST_TRIALS = 3


@dataclass(frozen=True)
class SettingChange:
    """One key that NEW sets otherwise than BASE."""

    key: str
    """The full dotted path."""
    base: str
    new: str
    """Values in brief, `default` where the configuration leaves the key out."""
    trials: Sequence[str]
    """Labels of the trials that it is true of."""

    @property
    def text(self) -> str:
        """`reduce_bucket_size 1e8 -> 9e8`."""
        last = self.key.rpartition(".")[2]
        return plain(f"{self.key if last in _NEED_THEIR_SECTION else last} {self.base} -> {self.new}")


def setting_changes(base: Run, new: Run, trials: Sequence[tuple[str, str, str]]) -> list[SettingChange]:
    """Return the changes in `trials`, each a label and its ids in `base` and `new`.

    Raises UserError: a configuration is torn or corrupt.
    """
    found: dict[tuple[str, str, str], list[str]] = {}
    for label, old, late in trials:
        left, right = _settings(base, old), _settings(new, late)
        if left is None or right is None:
            continue
        for key in dict.fromkeys([*left, *right]):
            before, after = left.get(key, _UNSET), right.get(key, _UNSET)
            if before != after:
                found.setdefault((key, _shown(key, before), _shown(key, after)), []).append(label)
    return [SettingChange(*change, names) for change, names in found.items()]


def _settings(run: Run, trial_id: str) -> Mapping[str, Any] | None:
    """Settings of the trial's configuration; None where it has none: no DeepSpeed, or the trial was skipped."""
    path = run.folder.trial(trial_id).ds_config
    if not path.exists():
        return None
    return {key: value for key, value in leaves(read_json(path)) if key.rpartition(".")[2] not in _PER_RUN}


def _shown(key: str, value: Any) -> str:
    return MARK if is_secret_name(key.rpartition(".")[2]) and value != _UNSET else brief(value)


def configuration_line(changes: Sequence[SettingChange], num_trials: int) -> str | None:
    """`configuration changed: reduce_bucket_size 1e8 -> 9e8`; trials are named where not all `num_trials` changed."""
    if not changes:
        return None
    texts = [
        change.text + ("" if len(change.trials) == num_trials else f" ({listed(change.trials, _MOST_TRIALS)})")
        for change in changes
    ]
    return f"configuration changed: {listed(texts)}"
