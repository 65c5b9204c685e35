"""Events as lines of JSON, and back.

Enters: events, or a line. Leaves: one line each, or the same event. A template per kind and a function per type of a
field, since this runs between the steps of calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from polyseq.errors import BadColumn, Holder
from polyseq.trace.events import Event, PlacedUbatch, Status

_KINDS: Mapping[str, type[Any]] = {kind.__name__.lower(): kind for kind in get_args(Event)}


def to_line(event: Event) -> str:
    """Pure. ASCII, without its end."""
    return _object(event)


def template(kind: type[Any]) -> str:
    """Pure. What `%` the fields, as JSON each, makes an event, or a named tuple inside one; lists of ints are JSON."""
    return _FORMS[kind][0]


def from_line(i: int, line: bytes) -> Event:
    """Pure. The event of the i-th line. Raises `BadColumn` naming it where it is none."""
    try:
        found = json.loads(line)
        event: Event = _made(_KINDS[found.pop("event")], found)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadColumn(f"line {i} is no event of a trace: {error!r}", row=i) from None
    return event


# ---- an event, or a named tuple inside one ---------------------------------------------------------------------------


def _object(value: Any) -> str:
    template, no_ints = _FORMS[type(value)]
    found = list(value)
    for i, as_text in no_ints:
        found[i] = as_text(found[i])
    text: str = template % tuple(found)
    return text


def _made(kind: type[Any], found: Mapping[str, Any]) -> Any:
    hints = _HINTS[kind]
    return kind(
        **{name: value if hints[name] is int else _FIELDS[hints[name]][1](value) for name, value in found.items()}
    )


# ---- a field: as JSON, and from what JSON holds ----------------------------------------------------------------------

_Field = tuple[Callable[[Any], str], Callable[[Any], Any]]


def _array(dtype: type[np.generic]) -> _Field:
    return lambda value: str(value.tolist()), lambda value: np.array(value, dtype)  # a list of ints is JSON as it is


def _tuple(as_text: Callable[[Any], str], of_json: Callable[[Any], Any]) -> _Field:
    return (
        lambda values: f"[{','.join([as_text(v) for v in values])}]",
        lambda values: tuple([of_json(v) for v in values]),
    )


def _same(value: Any) -> Any:
    return value


quoted = json.encoder.encode_basestring_ascii
_ints, _i32 = _tuple(str, int), _array(np.int32)
_FIELDS: Mapping[Any, _Field] = {
    str: (quoted, _same),
    Status: (quoted, _same),
    bool: ({False: "false", True: "true"}.__getitem__, _same),
    NDArray[np.bool_]: (lambda value: str(list(value.tobytes())), lambda value: np.array(value, np.bool_)),
    NDArray[np.int32]: _i32,
    NDArray[np.int64]: _array(np.int64),
    NDArray[np.intp]: _array(np.intp),
    NDArray[np.int32] | None: (
        lambda value: "null" if value is None else _i32[0](value),
        lambda value: None if value is None else _i32[1](value),
    ),
    tuple[int, ...]: _ints,
    tuple[tuple[int, int], ...]: _tuple(*_ints),
    tuple[str, ...]: _tuple(quoted, _same),
    tuple[PlacedUbatch, ...]: _tuple(_object, lambda found: _made(PlacedUbatch, found)),
    tuple[Holder, ...]: _tuple(lambda holder: json.dumps(asdict(holder)), lambda found: Holder(**found)),
}
_HINTS = {kind: get_type_hints(kind) for kind in (*_KINDS.values(), PlacedUbatch)}


def _form(kind: type[Any]) -> tuple[str, list[tuple[int, Callable[[Any], str]]]]:
    """(a template of all fields, how to write those that are no ints)."""
    names = [f'"event":"{kind.__name__.lower()}"'] * (kind in _KINDS.values()) + [f'"{f}":%s' for f in kind._fields]
    no_ints = [(i, _FIELDS[hint][0]) for i, hint in enumerate(_HINTS[kind].values()) if hint is not int]
    return "{" + ",".join(names) + "}", no_ints


_FORMS = {kind: _form(kind) for kind in _HINTS}
