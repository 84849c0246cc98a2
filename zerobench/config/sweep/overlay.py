"""`--set name=value,...`: changes of the command line to a sweep file.

`name` is an axis, `ds_config.<DeepSpeed key>`, `hyperparameters.<field>`, `data.<field>`, `steps.<field>` or one of the
file's single values (`timeout_s`, `repeats`, ...). Values are YAML, so brackets, braces and quotes protect a comma
(`--set "model={family: llama, ...}"`). A set axis replaces the file's, for GPUs and CPUs alike; `include` entries keep
the axes that they name. Of two settings of one name the last counts.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zerobench.common.errors import UserError, unknown_choice
from zerobench.config.axes.axes import LISTED_BY, READERS, replace_axes, replaced_by
from zerobench.config.axes.axis_readers import flat_overrides, full_key
from zerobench.config.sweep.paths import absolute_axis, absolute_field
from zerobench.config.sweep.sections import SECTIONS as OWNERS
from zerobench.config.trial.plain import check_plain, load_plain, one_line

SECTIONS = {section: list(owner.model_fields) for section, owner in OWNERS.items()}
SINGLE = ("name", "description", "timeout_s", "repeats", "trust_remote_code")

Sets = dict[str, list[Any]]
"""Name to values; names under ds_config have DeepSpeed's full path."""


def read_sets(texts: Sequence[str], base: Path) -> Sets:
    """Parse the `--set` options, with paths relative to `base`. Raises UserError."""
    sets: Sets = {}
    for text in texts:
        name, equals, written = text.partition("=")
        where = f"--set {name.strip()}"
        if not equals:
            raise UserError(one_line(f"--set: {text!r} is not name=value or name=value,value"))
        name = _full_name(name.strip())
        values = _values(written, where)
        if name not in READERS and not name.startswith("ds_config.") and len(values) > 1:
            raise UserError(one_line(f"{where}: {written!r} is a list; give one value"))
        if name.startswith("data."):
            sets[name] = [absolute_field(name.removeprefix("data."), value, base) for value in values]
        else:
            sets[name] = list(absolute_axis(name, values, base))
    return sets


def apply_sets(document: Mapping[str, Any], sets: Sets, where: str) -> dict[str, Any]:
    """Lay `sets` over the valid sweep `document` of the file `where`.

    Raises UserError if the file's own ds_config, in which a key is set, is invalid.
    """
    out = dict(document)
    axes = {name: values for name, values in sets.items() if name in READERS}
    out["axes"] = replace_axes(out["axes"], axes)
    replaced = replaced_by(axes)
    out["on_cpu"] = {axis: raw for axis, raw in out.get("on_cpu", {}).items() if axis not in replaced}
    for name, values in sets.items():
        section, _, field = name.partition(".")
        if section == "ds_config" and field:
            out["axes"] = _set_key(out["axes"], field, values, f"{where}: axes")
            if "ds_config" in out["on_cpu"]:
                out["on_cpu"] = _set_key(out["on_cpu"], field, values, f"{where}: on_cpu")
        elif section in SECTIONS:
            out[section] = out.get(section, {}) | {field: values[0]}
        elif name in SINGLE:
            out[name] = values[0]
    return out


def _full_name(name: str) -> str:
    """Full form of `name`. Raises UserError if it cannot be set."""
    section, dot, field = name.partition(".")
    if name in READERS or name in SINGLE or (section in SECTIONS and field in SECTIONS[section]):
        return name
    if section == "ds_config" and dot:
        return full_key(field, "--set")
    if section in SECTIONS:
        raise UserError(one_line(f"--set: {unknown_choice(section, field, SECTIONS[section])}"))
    choices = [*READERS, "ds_config.KEY", *SINGLE, *(f"{part}.FIELD" for part in SECTIONS)]
    raise UserError(one_line(f"--set: {unknown_choice('name', name, choices, LISTED_BY)}"))


def _values(written: str, where: str) -> list[Any]:
    """Read `a,b,c` as the contents of a YAML list."""
    check_plain(written, where)
    values = load_plain(f"[{written}]", one_line(where))
    if not isinstance(values, list) or not values:
        raise UserError(one_line(f"{where}: {written!r} has no value"))
    return values


def _set_key(axes: Mapping[str, Any], path: str, values: list[Any], where: str) -> dict[str, Any]:
    """Set one DeepSpeed key in every alternative of ds_config."""
    raw = axes.get("ds_config")
    try:
        alternatives = [
            flat_overrides(alternative) for alternative in (raw if isinstance(raw, list) and raw else [raw])
        ]
    except UserError as error:
        raise UserError(one_line(f"{where}: {error}")) from None
    return dict(axes) | {"ds_config": [alternative | {path: values} for alternative in alternatives]}
