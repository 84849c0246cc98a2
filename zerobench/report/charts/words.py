"""Words that all charts share: sentences for each mark."""

from zerobench.units import format_bytes


def share(part: float, whole: float) -> str:
    """`41%`, or `0.4%` below one; `-` of nothing."""
    if not whole:
        return "-"
    percent = 100 * part / whole
    if 0 < abs(percent) < 0.1:
        return "less than 0.1%"
    return f"{percent:.0f}%" if abs(percent) >= 1 or percent == 0 else f"{percent:.1f}%"


def part_sentence(label: str, part: str, num_bytes: float, whole: float) -> str:
    """What hovering over a part of a bar says: `zero2, gradients: 3.21 GiB, 41% of the peak`."""
    return f"{label}, {part}: {format_bytes(num_bytes)}, {share(num_bytes, whole)} of the peak"
