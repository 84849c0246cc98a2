"""Fine-tuning: low-rank adapters for a frozen model (LoRA), or a partly frozen model.

LoRA (Hu et al. 2021, arXiv:2106.09685, section 4.1) freezes a matrix W and trains two thin ones: B A x is added to W's
output, where A has `rank` rows and B, which starts at zero, as many columns. A trial writes it as one string:
`lora-16`, or `lora-16:q_proj+v_proj` if only matrices of these names have adapters; `lora-16-nf4` if the frozen
matrices are stored in 4 bits (QLoRA, Dettmers et al. 2023, arXiv:2305.14314, section 3), `lora-16-int8` in 8;
`lora-16-fp32`, or `lora-16-fp32-nf4`, if A and B are in fp32 next to a 16-bit model, PEFT's default
(`autocast_adapter_dtype`): so are their product, gradients and moments, and there are no master weights.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import StringConstraints

from zerobench.common.errors import UserError, choices_for, unknown_choice
from zerobench.config.trial.plain import format_value, parse_number

ALL_LINEAR = "all-linear"
"""Every matrix but the output head's, as in PEFT."""
_MOST = 8192
_NAME = r"[A-Za-z_]\w*"
BASES = ("nf4", "int8")
"""bitsandbytes' quantisations of a frozen matrix: blocks of 64 elements whose scales are quantised too, or rows."""
WIDE = "fp32"
"""Type of an adapter's weights if it is not the model's own."""
_FORM = rf"^lora-([1-9][0-9]{{0,3}})(-{WIDE})?(-({'|'.join(BASES)}))?(:{_NAME}(\+{_NAME})*)?$"
_CHOICES = (
    "none",
    "lora-RANK",
    "lora-RANK-nf4",
    "lora-RANK-int8",
    "lora-RANK-fp32",
    "lora-RANK-fp32-nf4",
    "lora-RANK:NAME+NAME",
    "{lora: {rank: 16, targets: [q_proj, v_proj], base: nf4, dtype: fp32}}",
)
BLOCK, SCALES = 64, 256
"""Elements of an nf4 block, which share a scale, and scales that share a second-level scale."""
_TABLES_BYTES = 4 * (16 + 256 + 1)
"""Tables of each nf4 matrix: values of its codes and of its scales' codes, and the scales' mean."""

Adapter = Annotated[str, StringConstraints(pattern=_FORM)]


@dataclass(frozen=True)
class Lora:
    """Parsed form of an adapter's text."""

    rank: int
    targets: tuple[str, ...]
    """Last parts of the names of matrices with adapters; empty: ALL_LINEAR."""
    base: str | None = None
    """One of BASES if every frozen matrix but the head is quantised."""
    dtype: str | None = None
    """WIDE if A and B are in fp32 in any model; None: they have the model's precision."""


def lora_of(adapter: str) -> Lora:
    """Parse the text of an adapter."""
    settings, _, targets = adapter.removeprefix("lora-").partition(":")
    rank, *parts = settings.split("-")
    base = next((part for part in parts if part in BASES), None)
    return Lora(int(rank), tuple(targets.split("+")) if targets else (), base, WIDE if WIDE in parts else None)


def base_of(adapter: str | None) -> str | None:
    """Quantisation of the frozen matrices with `adapter`; None without."""
    return None if adapter is None else lora_of(adapter).base


def is_wide(adapter: str | None) -> bool:
    """Return whether A and B are in fp32 even in a 16-bit model."""
    return adapter is not None and lora_of(adapter).dtype is not None


def codes_bytes(base: str, elements: int) -> int:
    """Bytes of the codes of this number of elements."""
    return -(-elements // 2) if base == "nf4" else elements


def quantised_bytes(base: str, rows: int, columns: int) -> tuple[int, int]:
    """Bytes of a matrix's codes, and of its scales (bitsandbytes/functional.py, quantize_4bit with compress_statistics,
    and int8_vectorwise_quant).
    """
    elements = rows * columns
    if base == "int8":
        return codes_bytes(base, elements), 4 * rows
    blocks = -(-elements // BLOCK)
    return codes_bytes(base, elements), blocks + 4 * -(-blocks // SCALES) + _TABLES_BYTES


def read_adapter(axis: str, raw: object) -> list[Any]:
    """Read None, the text, or the equivalent mapping. Raises UserError with the choices."""
    if raw in (None, "none"):
        return [None]
    if isinstance(raw, str) and raw.startswith("qlora"):
        raise UserError(
            f"{axis}: {format_value(raw)}: adapters beside a quantized model are written lora-16-nf4 or lora-16-int8"
        )
    text = _parse_mapping(axis, raw["lora"]) if isinstance(raw, dict) and list(raw) == ["lora"] else raw
    if isinstance(text, str) and re.fullmatch(_FORM, text) and lora_of(text).rank <= _MOST:
        return [text]
    raise UserError(f"{axis}: {raw!r} is not known; {choices_for(raw, _CHOICES, close=[])}")  # they are patterns


def _parse_mapping(axis: str, fields: object) -> str:
    if not isinstance(fields, dict) or not {"rank"} <= set(fields) <= {"rank", "targets", "base", "dtype"}:
        raise UserError(f"{axis}.lora: {format_value(fields)}; choices: a mapping of rank, targets, base and dtype")
    targets = fields.get("targets") or []
    names = [] if targets == ALL_LINEAR else targets
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{axis}.lora.targets: {format_value(targets)}; choices: {ALL_LINEAR}, or a list of names")
    base = fields.get("base")
    if base is not None and base not in BASES:
        raise unknown_choice(f"{axis}.lora.base", base, BASES)
    dtype = fields.get("dtype")
    if dtype is not None and dtype != WIDE:
        raise unknown_choice(f"{axis}.lora.dtype", dtype, [WIDE])
    text = "-".join(["lora", str(parse_number(fields["rank"])), *filter(None, (dtype, base))])
    return text + (f":{'+'.join(names)}" if names else "")


def read_frozen(axis: str, raw: object) -> list[Any]:
    """Read null, or a regular expression. Raises UserError for an invalid one."""
    if raw in (None, "none"):
        return [None]
    try:
        if isinstance(raw, str) and raw:
            re.compile(raw)
            return [raw]
        why = ""
    except re.error as error:
        why = f": {error}"
    raise UserError(f"{axis}: {format_value(raw)}{why}; choices: null, or a regular expression")
