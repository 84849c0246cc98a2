"""Base of all specifications: frozen, without unknown fields, and with pydantic's errors in one line."""

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from zerobench.common.errors import UserError, choices_for
from zerobench.config.trial.plain import one_line


class Spec(BaseModel):
    """A frozen value that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Owner = TypeVar("Owner", bound=BaseModel)


def validated(owner: type[Owner], fields: object, where: str) -> Owner:
    """Validate `fields` as an `owner`. Raises UserError (see user_error)."""
    try:
        return owner.model_validate(fields)
    except ValidationError as error:
        raise user_error(error, owner, where) from None


def user_error(error: ValidationError, owner: type[BaseModel], where: str) -> UserError:
    """One line for pydantic's first error: the field, the value, and the choices.

    `where` names the file or option that the value came from.
    """
    errors = error.errors(include_url=False)
    # A key misspelt is also one missing: what was written says more than what was not.
    first = next((entry for entry in errors if entry["type"] == "extra_forbidden"), errors[0])
    field = one_line(".".join(_shown(str(part)) for part in first["loc"])) or owner.__name__
    if first["type"] == "extra_forbidden":
        known = [name for name in owner.model_fields if not name.startswith("_")]
        return UserError(f"{where}: {field}: unknown field; {choices_for(first['loc'][-1], known)}")
    value = first.get("input")
    shown = f" (got {value!r})" if not isinstance(value, dict | list) else ""
    message = first["msg"].removeprefix("Value error, ")
    return UserError(f"{where}: {field}: {message}{shown}")


def _shown(part: str) -> str:
    # White space at the ends of a key would be invisible
    return part if part == part.strip() else repr(part)
