"""Fine-tuning: which weights are trained. Low-rank adapters beside a frozen model (LoRA), or a model partly frozen.

LoRA (Hu et al. 2021, arXiv:2106.09685, section 4.1) leaves a matrix W as it is and trains two thin ones beside it: what
W gives has B A x added, where A has `rank` rows and B, which starts at zero, as many columns. A trial writes it as one
text: `lora-16`, or `lora-16:q_proj+v_proj` where only matrices of these names have adapters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import StringConstraints

from zerobench.errors import UserError, unknown_choice
from zerobench.spec.plain import as_number, as_written

ALL_LINEAR = "all-linear"
"""Every matrix but the output head's, as PEFT means it by the same word."""
_MOST = 8192
_NAME = r"[A-Za-z_]\w*"
_FORM = rf"^lora-([1-9][0-9]{{0,3}})(:{_NAME}(\+{_NAME})*)?$"
_CHOICES = ("none", "lora-RANK", "lora-RANK:NAME+NAME", "{lora: {rank: 16, targets: [q_proj, v_proj]}}")

Adapter = Annotated[str, StringConstraints(pattern=_FORM)]


@dataclass(frozen=True)
class Lora:
    """What an adapter's text says."""

    rank: int
    targets: tuple[str, ...]
    """Last parts of the names of the matrices that have adapters; none: ALL_LINEAR."""


def lora_of(adapter: str) -> Lora:
    """What `adapter`, as a trial has it, says."""
    rank, _, targets = adapter.removeprefix("lora-").partition(":")
    return Lora(int(rank), tuple(targets.split("+")) if targets else ())


def read_adapter(axis: str, raw: object) -> list[Any]:
    """None, the text, or the mapping that stands for it. Raises UserError with the choices."""
    if raw in (None, "none"):
        return [None]
    if isinstance(raw, str) and raw.startswith("qlora"):
        raise UserError(
            f"{axis}: {as_written(raw)}: QLoRA is not supported (bitsandbytes' int8 and nf4 kernels need "
            "GPUs); use lora-16, with a base in the trial's precision"
        )
    said = _of_mapping(axis, raw["lora"]) if isinstance(raw, dict) and list(raw) == ["lora"] else raw
    if isinstance(said, str) and re.fullmatch(_FORM, said) and lora_of(said).rank <= _MOST:
        return [said]
    raise unknown_choice(axis, raw, _CHOICES)


def _of_mapping(axis: str, fields: object) -> str:
    if not isinstance(fields, dict) or not {"rank"} <= set(fields) <= {"rank", "targets"}:
        raise UserError(f"{axis}.lora: {as_written(fields)}; choices: a mapping of rank and targets")
    targets = fields.get("targets") or []
    names = [] if targets == ALL_LINEAR else targets
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{axis}.lora.targets: {as_written(targets)}; choices: {ALL_LINEAR}, or a list of names")
    return f"lora-{as_number(fields['rank'])}" + (f":{'+'.join(names)}" if names else "")


def read_frozen(axis: str, raw: object) -> list[Any]:
    """Null, or a regular expression. Raises UserError where it is none."""
    if raw in (None, "none"):
        return [None]
    try:
        if isinstance(raw, str) and raw:
            re.compile(raw)
            return [raw]
        why = ""
    except re.error as error:
        why = f": {error}"
    raise UserError(f"{axis}: {as_written(raw)}{why}; choices: null, or a regular expression")
