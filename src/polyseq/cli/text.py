"""Small things every command says alike: sizes, counts, text that is safe to show.

Pure functions from values to strings.
"""

from __future__ import annotations

from collections.abc import Iterable

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
# a model may say escape sequences; a terminal would obey them
_CONTROLS = dict.fromkeys((*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0)), "\N{REPLACEMENT CHARACTER}")


def any_of(words: Iterable[str]) -> str:
    """Pure. ("a", "b", "c") -> 'a, b or c'."""
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def human_bytes(n_bytes: float) -> str:
    """Pure. 104857600 -> '100.0 MiB'."""
    i = 0
    while n_bytes >= 1024 and i < len(_UNITS) - 1:
        n_bytes, i = n_bytes / 1024, i + 1
    return f"{n_bytes:.0f} B" if i == 0 else f"{n_bytes:.1f} {_UNITS[i]}"


def human_count(n: int) -> str:
    """Pure. 134515008 -> '134.5M'."""
    for size, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if n >= size:
            return f"{n / size:.1f}{letter}"
    return str(n)


def printable(text: str) -> str:
    """Pure. `text` with control characters other than tab and newline replaced."""
    return text.translate(_CONTROLS)


def one_line(text: str, n_max: int) -> str:
    """Pure. `text` on one line of at most `n_max` characters, its end cut off with an ellipsis."""
    line = " ".join(printable(text[: 4 * n_max]).split())
    return line if len(line) <= n_max else line[: n_max - 1] + "…"


def end_of_line(text: str, n_max: int) -> str:
    """Pure. As `one_line`, with the beginning cut off."""
    line = " ".join(printable(text[-4 * n_max :]).split())
    return line if len(line) <= n_max else "…" + line[len(line) - n_max + 1 :]


def plural(n: int, noun: str) -> str:
    """Pure. '1 token', '2 tokens'."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}{'es' if noun.endswith(('s', 'ch')) else 's'}"
