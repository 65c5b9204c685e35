"""A trace in a file: one event a line, as JSON, readable while it grows.

Enters: events. Leaves: lines, written whole before anything of a call is computed; then, read back, the same events.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from operator import attrgetter
from os import PathLike
from types import TracebackType
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from polyseq.errors import BadColumn, ContextError, Holder
from polyseq.trace.events import Checked, Computed, Event, Opened, Placed, PlacedUbatch, Settled

_KINDS: Mapping[str, type[Any]] = {kind.__name__.lower(): kind for kind in get_args(Event)}
_NAMES: Mapping[type[Any], tuple[str, ...]] = {
    kind: tuple(field.name for field in fields(kind)) for kind in (*_KINDS.values(), PlacedUbatch, Holder)
}
_DTYPES: Mapping[str, type[np.generic]] = {
    "token": np.int32,
    "pos": np.int32,
    "seq_ids": np.int32,
    "seq_offsets": np.int64,
    "output": np.bool_,
    "rows": np.intp,
    "entry": np.int32,
    "heads": np.int32,
    "placed": np.intp,
    "streams": np.intp,
    "row_stream": np.intp,
    "cells": np.intp,
}


class TraceFile:
    """A sink that writes the events of one context; it replaces a file that was there.

    What led to a computation is out before it begins, so that what a killed process wrote can be read. Raises OSError
    where the file cannot be written. `close` it, or use it in `with`; what comes after is dropped.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._lock = threading.Lock()
        self._opened = False
        self._held: list[Event] = []  # that need not be out yet: what follows them takes no time
        self._n_computed = 0  # ubatches of the call under way that are yet to be computed
        self._path = path
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115  lives as long as the sink

    def record(self, event: Event, /) -> None:
        """Changes the file by one line. Raises `ContextError` for a second context or a file that takes no more."""
        with self._lock:
            if self._file.closed:
                return
            if isinstance(event, Opened):
                if self._opened:
                    raise ContextError("this file traces a context already; give each one a file of its own")
                self._opened = True
            try:
                self._held.append(event)
                if not self._more_at_once(event):
                    self._write()
            except OSError as error:
                raise ContextError(f"the trace {self._path} cannot be written: {error.strerror}") from error

    def _more_at_once(self, event: Event) -> bool:
        """Changes the count of ubatches: whether the next event comes without a computation in between."""
        if isinstance(event, Placed):
            self._n_computed = len(event.ubatches)
        elif isinstance(event, Computed):
            self._n_computed -= 1
            return self._n_computed == 0
        return isinstance(event, Checked | Settled)

    def _write(self) -> None:
        """Changes the file by the events held back. Raises OSError."""
        text = "".join([f"{_encode(event)}\n" for event in self._held]).encode("ascii")
        self._held.clear()
        while text:
            text = text[self._file.write(text) :]

    def close(self) -> None:
        """Changes the file: nothing is written any more. May be called again."""
        with self._lock, suppress(OSError):  # `record` has said what could not be written
            if not self._file.closed:
                self._write()
            self._file.close()

    def __enter__(self) -> TraceFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def read_trace(path: str | PathLike[str]) -> tuple[Event, ...]:
    """Pure. The events of a file, in order; a last line that is not whole yet is left out.

    Raises OSError, and `BadColumn` naming the line that is no event.
    """
    with open(path, "rb") as file:
        *lines, _ = file.read().split(b"\n")
    events = tuple(_event(i, line) for i, line in enumerate(lines, 1))
    if not events or not isinstance(events[0], Opened) or any(isinstance(e, Opened) for e in events[1:]):
        raise BadColumn(f"{path} is no trace: a trace begins with one line that tells of its context")
    return events


# ---- writing: a template per kind and a function per type, since this runs between the steps of every call -----------


def _encode(value: Any) -> str:
    """Pure. An event, or a value inside one, as a JSON object of its fields."""
    kind = type(value)
    found = list(_VALUES[kind](value))
    for i in _NO_INTS[kind]:
        found[i] = _TEXTS[type(found[i])](found[i])
    text: str = _TEMPLATES[kind] % tuple(found)
    return text


def _array(value: NDArray[Any]) -> str:
    return str((value.view(np.int8) if value.dtype == np.bool_ else value).tolist())  # a list of ints is JSON as it is


def _tuple(value: tuple[Any, ...]) -> str:
    return f"[{','.join([_TEXTS[type(v)](v) for v in value])}]"


_VALUES = {kind: attrgetter(*names) for kind, names in _NAMES.items()}
_NO_INTS = {kind: [i for i, f in enumerate(fields(kind)) if f.type != "int"] for kind in _NAMES}
_TEMPLATES = {
    kind: "{"
    + ",".join([f'"event":"{kind.__name__.lower()}"'] * (kind in _KINDS.values()) + [f'"{name}":%s' for name in names])
    + "}"
    for kind, names in _NAMES.items()
}
_TEXTS: Mapping[type[Any], Callable[[Any], str]] = {
    int: str,
    bool: {False: "false", True: "true"}.__getitem__,
    str: json.JSONEncoder().encode,
    type(None): lambda value: "null",
    np.ndarray: _array,
    tuple: _tuple,
    PlacedUbatch: _encode,
    Holder: _encode,
}

# ---- reading -------------------------------------------------------------------------------------------------------


def _event(i: int, line: bytes) -> Event:
    try:
        found = json.loads(line)
        event: Event = _made(_KINDS[found.pop("event")], found)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadColumn(f"line {i} is no event of a trace: {error!r}", row=i) from None
    return event


def _made(kind: type[Any], found: Mapping[str, Any]) -> Any:
    return kind(**{name: _value(name, value) for name, value in found.items()})


def _value(name: str, value: Any) -> Any:
    if name in _DTYPES:
        return None if value is None else np.array(value, _DTYPES[name])
    if name == "ubatches":
        return tuple(_made(PlacedUbatch, v) for v in value)
    if name == "holders":
        return tuple(_made(Holder, v) for v in value)
    if name == "copies":
        return tuple((int(a), int(b)) for a, b in value)
    return tuple(value) if name in ("args", "parts") else value
