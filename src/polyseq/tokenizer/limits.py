"""What a template may grow to: each operation that makes much out of little, measured before it runs.

Enters: the operands a template hands to an operator, a filter or a method of str. Leaves: nothing, or SecurityError
that names the value and the limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from jinja2.exceptions import SecurityError

MAX_CHARS = 1 << 24  # of one string or list, and of what is rendered
MAX_NUMBER = 100_000  # of an integer given to a filter or a method: widths, counts
MAX_EXPONENT = 64

_WIDTH = re.compile(r"\d{6,}|%[^a-zA-Z%]*\*")


def check_size(value: object) -> object:
    """Pure. `value`, unless it is a string or list above the limit."""
    if isinstance(value, (str, list, tuple)):
        check_length(len(value))
    return value


def check_length(n: int) -> None:
    """Pure. Refuses a length above the limit."""
    if n > MAX_CHARS:
        raise SecurityError(f"a value of {n} characters, the limit is {MAX_CHARS}")


def check_operator(operator: str, left: object, right: object) -> None:
    """Pure. Refuses `*`, `**` and `%` that would make something huge."""
    if operator == "%" and isinstance(left, str):
        check_widths(left)
    if operator == "**":
        check_numbers((left,))
        if isinstance(right, int) and right > MAX_EXPONENT:
            raise SecurityError(f"the exponent {right}, the limit is {MAX_EXPONENT}")
    if operator == "*":
        for many, times in ((left, right), (right, left)):
            if isinstance(many, (str, list, tuple)) and isinstance(times, int):
                check_length(len(many) * times)


def check_numbers(values: Iterable[object]) -> None:
    """Pure. Refuses integers above the limit."""
    for value in values:
        if isinstance(value, int) and abs(value) > MAX_NUMBER:
            raise SecurityError(f"the number {value}, the limit is {MAX_NUMBER}")


def check_widths(pattern: object) -> None:
    """Pure. Refuses a format string with a width above the limit, or one taken from an argument."""
    if isinstance(pattern, str) and _WIDTH.search(pattern):
        raise SecurityError(f"a format with a width above {MAX_NUMBER}, or one taken from an argument")


def check_join(separator: object, items: object) -> None:
    """Pure. Refuses a join whose result would be too long."""
    if isinstance(items, (list, tuple)) and isinstance(separator, str):
        check_length(sum(len(item) for item in items if isinstance(item, str)) + len(separator) * len(items))


def check_replace(text: object, old: object, new: object) -> None:
    """Pure. Refuses a replacement whose result would be too long."""
    if isinstance(text, str) and isinstance(old, str) and isinstance(new, str):
        check_length(len(text) + text.count(old) * len(new))
