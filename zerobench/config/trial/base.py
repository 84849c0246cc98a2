"""What every specification shares: frozen, no unknown fields, and one way to print what pydantic refuses."""

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from zerobench.common.errors import UserError, choices_for
from zerobench.config.trial.plain import one_line


class Spec(BaseModel):
    """A frozen value that refuses fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Owner = TypeVar("Owner", bound=BaseModel)


def validated(owner: type[Owner], fields: object, where: str) -> Owner:
    """What `fields` are as an `owner`. Raises UserError (see user_error)."""
    try:
        return owner.model_validate(fields)
    except ValidationError as error:
        raise user_error(error, owner, where) from None


def user_error(error: ValidationError, owner: type[BaseModel], where: str) -> UserError:
    """One line for the first thing pydantic refused: the field, the value, and what would be right.

    `where` names the file or the option the value came from.
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
    """A key as it was written; in quotes where it begins or ends with what nobody sees."""
    return part if part == part.strip() else repr(part)
