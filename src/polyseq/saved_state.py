"""Sequences as bytes: what they hold in memory, to be taken in again by any context on the same model and backend.

Enters: a memory and its cache tensors. Leaves: a safetensors blob whose metadata is a JSON header; then, restored,
the same sequences, perhaps in other cells, streams or sizes. A blob is checked as a whole before anything changes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from polyseq.backends import CacheTensors
from polyseq.errors import NoSlot, SavedStateError
from polyseq.memory import Memory, PartName
from polyseq.memory.saved import Placing, SavedPart
from polyseq.model import Model

FORMAT = "polyseq sequences, 1"
HEADER = {"model", "fingerprint", "n_pos", "parts", "sequences"}
COLUMNS = ("pos", "entry", "seq", "streams", "cells", "heads", "starts")

Tensors = dict[str, NDArray[Any]]


def to_bytes(memory: Memory, cache: CacheTensors, model: Model, seq_ids: list[int]) -> bytes:
    """Pure. What these sequences hold. Nothing may be pending. Raises `SequenceError` for an id that cannot be."""
    tensors: Tensors = {}
    for part in memory.saved(seq_ids):
        tensors |= {f"{part.name}/{column}": getattr(part, column) for column in COLUMNS}
        tensors |= {f"{part.name}:{key}": rows for key, rows in _read(cache, part).items()}
    held = [s for s in seq_ids if memory.pos_max(s) >= 0]
    header = {
        "format": FORMAT,
        "model": model.name,
        "fingerprint": model.fingerprint,
        "n_pos": memory.n_pos,
        "parts": [part.name for part in memory.parts],
        "sequences": {str(s): [memory.pos_min(s), memory.pos_max(s)] for s in held},
    }
    tensors = {name: np.ascontiguousarray(a) for name, a in tensors.items()}
    text = json.dumps(header)
    return save(tensors, {"polyseq": text, "sha256": _digest(text, tensors)})


def from_bytes(blob: bytes, memory: Memory, cache: CacheTensors, model: Model, seq_id: int | None) -> None:
    """Changes memory and cache tensors: saved sequences are held again, a single one as `seq_id` if that is given.

    Raises `SavedStateError` (damaged, of another model or backend, or a sequence is not empty here) and `NoSlot`;
    then nothing has changed.
    """
    header, tensors = _opened(blob)
    _check_origin(header, memory, model)
    parts = tuple(_part(part.name, tensors) for part in memory.parts)
    if seq_id is not None:
        held = {int(s) for part in parts for s in part.seq}
        if len(held) != 1:
            raise SavedStateError(f"{len(held)} sequences were saved, so they keep their ids")
        memory.pos_max(seq_id)  # raises for an id that cannot be
        parts = tuple(part.renamed(seq_id, memory.n_seq_max) for part in parts)
    for part in parts:
        part.check(memory.n_seq_max)
        for s in np.unique(part.seq).tolist():
            if memory.pos_max(s) >= 0:
                raise SavedStateError(
                    f"sequence {s} holds p{memory.pos_min(s)}..{memory.pos_max(s)}; remove it first", seq_id=s
                )
    rows = [_rows(cache, part, tensors) for part in parts]
    placings = memory.place_saved(parts)
    if isinstance(placings, NoSlot):
        raise placings
    for placing, of_part in zip(placings, rows, strict=True):
        _write(cache, placing, of_part)
    memory.restore(parts, placings)


def write_whole(path: Path, blob: bytes) -> None:
    """Changes the file at once: a reader, or a crash, finds the old one or all of the new one. Raises OSError."""
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            file.write(blob)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


# ---- cells -----------------------------------------------------------------------------------------------


def _read(cache: CacheTensors, part: SavedPart) -> Tensors:
    """[n, ...] rows of every cell of a part, by the backend's keys."""
    found: list[tuple[NDArray[np.intp], Tensors]] = []
    for stream in np.unique(part.streams).tolist() or [0]:
        which = np.flatnonzero(part.streams == stream)
        found.append((which, cache.read(part.name, stream, part.cells[which].astype(np.intp))))
    order = np.concatenate([which for which, _ in found]).argsort()
    return {key: np.concatenate([rows[key] for _, rows in found])[order] for key in found[0][1]}


def _write(cache: CacheTensors, placing: Placing, rows: Tensors) -> None:
    for stream in np.unique(placing.streams).tolist():
        which = np.flatnonzero(placing.streams == stream)
        of_stream = {key: a[placing.entry[which]] for key, a in rows.items()}
        cache.write(placing.name, stream, placing.cells[which], of_stream)


def _rows(cache: CacheTensors, part: SavedPart, tensors: Mapping[str, NDArray[Any]]) -> Tensors:
    """The part's rows, of just the keys, shapes and types that this backend has. Raises `SavedStateError`."""
    wanted = cache.read(part.name, 0, np.zeros(0, np.intp))
    prefix = f"{part.name}:"
    rows = {name.removeprefix(prefix): a for name, a in tensors.items() if name.startswith(prefix)}
    for key in wanted.keys() | rows.keys():
        kept, ours = rows.get(key), wanted.get(key)
        if kept is None or ours is None or kept.dtype != ours.dtype or kept.shape != (part.n, *ours.shape[1:]):
            raise SavedStateError(
                f"part {part.name}, rows {key}: saved {_words(kept)}, this backend has {_words(ours)} with {part.n} "
                "cells; restore it with the backend and kv_type it was saved with"
            )
    return rows


def _words(a: NDArray[Any] | None) -> str:
    return "nothing" if a is None else f"{a.dtype} {list(a.shape)}"


# ---- the blob --------------------------------------------------------------------------------------------


def _opened(blob: bytes) -> tuple[dict[str, Any], Tensors]:
    """The header and the tensors of a blob that is whole. Raises `SavedStateError`."""
    try:
        tensors: Tensors = load(blob)
        n_header = int.from_bytes(blob[:8], "little")
        metadata = json.loads(blob[8 : 8 + n_header])["__metadata__"]
        text, digest = metadata["polyseq"], metadata["sha256"]
        header: dict[str, Any] = json.loads(text)
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise SavedStateError(f"this is no saved state, or a truncated one: {error!r}") from None
    if digest != _digest(text, tensors):
        raise SavedStateError("the saved state is damaged: its checksum differs")
    if not isinstance(header, dict) or header.get("format") != FORMAT or not header.keys() >= HEADER:
        raise SavedStateError(f"the saved state has no header of format {FORMAT!r}")
    return header, tensors


def _digest(text: str, tensors: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        a = tensors[name]
        digest.update(f"{name} {a.dtype} {a.shape}".encode())
        digest.update(a.tobytes())
    return digest.hexdigest()


def _check_origin(header: Mapping[str, Any], memory: Memory, model: Model) -> None:
    if header["fingerprint"] != model.fingerprint:
        raise SavedStateError(f"the state is of another model, {header['model']!r}, not of {model.name!r}")
    parts = [part.name for part in memory.parts]
    if header["parts"] != parts or header["n_pos"] != memory.n_pos:
        raise SavedStateError(f"the state has parts {header['parts']}, this memory {parts}")


def _part(name: PartName, tensors: Mapping[str, NDArray[Any]]) -> SavedPart:
    columns = {column: tensors.get(f"{name}/{column}") for column in COLUMNS}
    for column, a in columns.items():
        if a is None or a.dtype != np.int32 or a.ndim != 1:
            raise SavedStateError(f"part {name}: column {column} is {_words(a)}, wanted int32 of one dimension")
    return SavedPart(name, **columns)  # type: ignore[arg-type]
