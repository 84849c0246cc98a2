"""Checks of the sections that all trials of a sweep share, beyond pydantic's; errors name the section."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from zerobench.common.errors import UserError
from zerobench.config.trial.base import user_error
from zerobench.config.trial.plain import format_value, one_line
from zerobench.config.trial.trial import DataKind, DataSpec, HyperparameterSpec, StepsSpec

SECTIONS: dict[str, type[BaseModel]] = {
    "data": DataSpec,
    "hyperparameters": HyperparameterSpec,
    "steps": StepsSpec,
}


def check_sections(document: Mapping[str, Any], where: str) -> None:
    """Raise UserError, which begins with `where`, for an unknown field or an invalid value in a section."""
    for section, owner in SECTIONS.items():
        fields = document.get(section, {})
        if not isinstance(fields, dict):
            known = ", ".join(owner.model_fields)
            raise UserError(one_line(f"{where}: {section}: {format_value(fields)}: not a mapping; choices: {known}"))
        refuse_booleans(fields, owner, f"{where}: {section}")
        try:
            values = owner.model_validate(fields).model_dump()
        except ValidationError as error:
            raise UserError(one_line(str(user_error(error, owner, f"{where}: {section}")))) from None
        for name, value in values.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise UserError(f"{where}: {section}: {name}: {value!r} is not a finite number")
    seed = HyperparameterSpec.model_validate(document.get("hyperparameters", {})).seed
    if not 0 <= seed < 2**63:
        raise UserError(f"{where}: hyperparameters: seed: {seed} is out of range; choices: 0 to 2**63 - 1")


def refuse_booleans(fields: Mapping[str, Any], owner: type[BaseModel], where: str) -> None:
    """Raise UserError for `true` where `owner` has a number: pydantic would read it as 1."""
    for name, value in fields.items():
        field = owner.model_fields.get(name)
        if isinstance(value, bool) and field is not None and field.annotation in {int, float}:
            raise UserError(f"{where}: {name}: {str(value).lower()} is not a number")


def check_data(data: DataSpec, where: str) -> None:
    """Raise UserError if a file that the kind of data needs is missing or does not exist."""
    needed = {DataKind.SYNTHETIC: [], DataKind.TOKENS: ["path"], DataKind.TEXT: ["path", "tokenizer"]}[data.kind]
    for field in ("path", "tokenizer"):
        value = getattr(data, field)
        if field in needed and not value:
            raise UserError(f"{where}: data: {field} is missing; data of kind {data.kind} needs it")
        if field not in needed and value:
            kinds = "tokens, text" if field == "path" else "text"
            raise UserError(
                one_line(f"{where}: data: {field}: {value!r} does not apply to kind {data.kind}; kinds: {kinds}")
            )
        if value and not Path(value).exists():
            raise UserError(one_line(f"{where}: data: {field}: {value!r}: no such file"))
