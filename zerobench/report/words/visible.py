"""Text from runs as a page shows it: every character visible, none that turns the text around it."""

_LAYOUT = frozenset("\n\t")


def visible(text: str) -> str:
    r"""`text` with lines kept and each character that cannot be seen written out, as `\u202e`.

    In a JSON document such characters occur inside strings only, where the escape means the same character: the text
    stays exact, for copying too.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _LAYOUT else _escape(c) for c in text)


def _escape(character: str) -> str:
    """JSON's escape: UTF-16 code units of four hexadecimal digits each."""
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
