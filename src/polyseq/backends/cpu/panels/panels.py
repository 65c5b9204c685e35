"""A weight matrix as the linear kernels read it: panels of 16 columns (panel_kind.py), packed once at load.

Enters: a tensor's rows as stored, [n_out, bytes per row] u8, and its type. Leaves: `Panels`. Columns after the last,
and inputs after the last (float types only), are zeros. Packing takes the rows in slices, on two threads: NumPy and
kernels compute without the GIL. A slice is large enough that threads seldom wait for each other between two operations,
and small enough that most of what an operation reads is still in a cache.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from polyseq.backends.cpu.compiler.compile import function
from polyseq.backends.cpu.compiler.features import features
from polyseq.backends.cpu.panels.block_tables import COMPILED, tables
from polyseq.backends.cpu.panels.blocks import parts
from polyseq.backends.cpu.panels.panel_kind import GROUP, KIND_OF, N_COLUMNS, STEPS, SUPER, FloatKind, PanelKind
from polyseq.backends.cpu.panels.scratch import Scratch
from polyseq.backends.cpu.words.aligned import address, zeros
from polyseq.weights.tensor import TensorInfo, dequantised

U8 = NDArray[np.uint8]

PACKING_THREADS = min(2, os.cpu_count() or 1)
_SLICE_BYTES = 1 << 20  # of panels, packed at a time


@dataclass(frozen=True, slots=True, eq=False)
class Panels:
    """A packed weight matrix [n_out, n_in]."""

    kind: PanelKind | FloatKind
    n_out: int
    n_in: int
    data: U8 = field(repr=False)  # [n_panels, panel bytes], 64-byte aligned

    @property
    def n_panels(self) -> int:
        """Panels of 16 columns."""
        return len(self.data)

    @property
    def panel_bytes(self) -> int:
        """From one panel to the next."""
        return int(self.data.shape[1])

    @property
    def n_groups(self) -> int:
        """Groups of 32 inputs."""
        return -(-self.n_in // GROUP)

    @property
    def reads_records(self) -> bool:
        """Whether the kernels take records of 8-bit rows (activation.py) rather than f32 rows."""
        return isinstance(self.kind, PanelKind)


@cache
def group_dtype(kind: PanelKind) -> np.dtype[np.void]:
    """Pure. One group of a panel, or of a kind in super-blocks 8 groups with what stands before them."""
    number = {"f16": "<f2", "f32": "<f4", "u8": "u1", "i8": "i1"}[kind.scale]
    shape = (kind.n_scales, N_COLUMNS)
    fields: list[Any] = [("words", "<u4", (kind.bits, N_COLUMNS)), ("scale", number, shape)]
    fields += [("minimum", number, shape)] if kind.minimum else []
    group = np.dtype(fields)
    if not kind.in_super_blocks:
        return group
    head: list[Any] = [(name, "<f2", (N_COLUMNS,)) for name in ("d", "dmin")[: 1 + kind.minimum]]
    return np.dtype([*head, ("group", group, (SUPER,))])


def panels_of(info: TensorInfo) -> tuple[int, int]:
    """Pure. (panels, bytes of each) that a tensor is packed into."""
    kind, n_in = _kind_of(info), info.shape[-1]
    n_bytes = kind.panel_bytes(n_in // GROUP) if isinstance(kind, PanelKind) else kind.panel_bytes(n_in)
    return -(-info.n_rows // N_COLUMNS), n_bytes


def _kind_of(info: TensorInfo) -> PanelKind | FloatKind:
    return KIND_OF.get(info.qtype) or FloatKind(_FLOATS.get(info.qtype, "f32"))


def pack(info: TensorInfo, rows: U8, *, out: U8 | None = None, n_threads: int = PACKING_THREADS) -> Panels:
    """Changes `out`, of the shape that `panels_of` says, or new memory: the same values in panels, bit for bit.

    rows: [n_out, bytes per row] u8, as stored. Some types have a kernel for it, which is compiled the first time.

    A type without a kind of its own is packed as the float32 values it stands for. Raises UnsupportedModel where
    `gguf.quants` cannot say what those are.
    """
    n_out, n_in = info.n_rows, info.shape[-1]
    rows = rows.reshape(n_out, -1).view(np.uint8)
    kind, (n_panels, n_bytes) = _kind_of(info), panels_of(info)
    data = zeros((n_panels, n_bytes), np.uint8) if out is None else out

    def put(start: int, stop: int, room: Scratch) -> None:
        some = _whole_panels(rows[start:stop])
        panels = data[start // N_COLUMNS : -(-stop // N_COLUMNS)]
        if info.qtype.name in COMPILED:
            _put_blocks(panels, some, info)
        elif isinstance(kind, PanelKind):
            with np.errstate(all="ignore"):  # scales may be infinite or no numbers; panels say so
                _put_codes(panels, some, info.qtype, kind, room)
        else:
            _put_floats(panels, _as_floats(info, some, kind), kind)

    _in_slices(n_out, n_bytes // N_COLUMNS, put, n_threads)
    return Panels(kind, n_out, n_in, data)


def unpack(panels: Panels) -> NDArray[np.float32]:
    """Pure. The values [n_out, n_in] f32, computed from the panels alone."""
    if isinstance(panels.kind, FloatKind):
        return _floats_back(panels, panels.kind)
    kind = panels.kind
    blocks = panels.data.view(group_dtype(kind))
    groups = blocks["group"].reshape(len(blocks), -1) if kind.in_super_blocks else blocks

    def factor(small: str, large: str) -> NDArray[np.float32]:
        """[n_columns, n_groups, n_scales, 1] f32."""
        out = groups[small].astype(np.float32)
        if kind.in_super_blocks:
            out *= np.repeat(blocks[large].astype(np.float32) * np.float32(kind.unit), SUPER, axis=1)[:, :, None]
        return out.transpose(0, 3, 1, 2).reshape(-1, out.shape[1], kind.n_scales, 1)

    codes = codes_of(np.ascontiguousarray(groups["words"]), kind)
    if kind.table:
        codes = np.array(kind.table, np.uint8)[codes]
    codes = codes.reshape(*codes.shape[:2], kind.n_scales, -1).astype(np.float32)
    with np.errstate(all="ignore"):
        values = factor("scale", "d") * (codes - np.float32(kind.offset))
        if kind.minimum:
            values += factor("minimum", "dmin") * np.float32(-1 if kind.in_super_blocks else 1)
    return np.ascontiguousarray(values.reshape(len(codes), -1)[: panels.n_out, : panels.n_in])


def codes_of(words: NDArray[np.uint32], kind: PanelKind) -> U8:
    """Pure. Code words [n_panels, n_groups, bits, 16] -> codes [n_columns, n_groups, 32] u8: the planes' inverse."""
    steps = np.zeros((*words.shape[:2], STEPS, N_COLUMNS), np.uint32)
    vector, up = 0, 0
    for bits in kind.planes:
        mask = np.uint32(0x01010101 * ((1 << bits) - 1))
        for step in range(STEPS):
            i, shift = kind.place(bits, step)
            steps[:, :, step] |= (words[:, :, vector + i] >> np.uint32(shift) & mask) << np.uint32(up)
        vector, up = vector + bits, up + bits
    return np.ascontiguousarray(steps.transpose(0, 3, 1, 2)).view(np.uint8).reshape(-1, words.shape[1], GROUP)


_FLOATS = {
    GGMLQuantizationType.F32: "f32",
    GGMLQuantizationType.F16: "f16",
    GGMLQuantizationType.BF16: "bf16",
}
_FLOAT_DTYPE = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}


def _in_slices(n_out: int, row_bytes: int, put: Callable[[int, int, Scratch], None], n_threads: int) -> None:
    """Rows in slices that together make all of them, each for whichever thread is free."""
    step = max(N_COLUMNS, _SLICE_BYTES // max(row_bytes, 1) // N_COLUMNS * N_COLUMNS)
    starts = deque(range(0, n_out, step))

    def work() -> None:
        room = Scratch()
        while True:
            try:
                start = starts.popleft()
            except IndexError:
                return
            put(start, min(start + step, n_out), room)
            room.clear()

    if len(starts) == 1 or n_threads == 1:
        work()
        return
    with ThreadPoolExecutor(n_threads) as pool:
        for worker in [pool.submit(work) for _ in range(n_threads)]:
            worker.result()


def _whole_panels(rows: U8) -> U8:
    """Pure. Rows filled up with zeros to a multiple of 16: a block of zeros is zeros in every type with codes."""
    short = -len(rows) % N_COLUMNS
    return np.pad(rows, ((0, short), (0, 0))) if short else np.ascontiguousarray(rows)


def _put_blocks(out: U8, rows: U8, info: TensorInfo) -> None:
    """Changes out [n_panels, panel bytes], by the type's kernel (compiled_blocks.py)."""
    name, made = info.qtype.name, tables(info.qtype.name)
    kernel = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 7)(function(f"panels.compiled_blocks.{name}", features()))
    n_blocks = info.shape[-1] // (SUPER * GROUP)
    kernel(address(rows), rows.shape[1], len(out), n_blocks, address(made.words), address(made.signs), address(out))


def _put_codes(out: U8, rows: U8, qtype: GGMLQuantizationType, kind: PanelKind, room: Scratch) -> None:
    """Changes out [n_panels, panel bytes]."""
    split = parts(rows, qtype, room)
    if kind.in_super_blocks:
        blocks = out.view(group_dtype(kind)).ravel()
        groups = blocks["group"]
        for name, x in (("d", split.d), ("dmin", split.dmin)):
            if x is not None:
                blocks[name] = x
    else:
        groups = out.view(group_dtype(kind)).reshape(-1, len(split.planes[0]))
    # [groups of a block, m, n_blocks, 16] -> [n_blocks, groups of a block, m, 16]
    at = 0
    for plane in split.planes:
        stop = at + plane.shape[1]
        groups["words"][:, :, at:stop] = plane.transpose(2, 0, 1, 3)
        at = stop
    for name, x in (("scale", split.scale), ("minimum", split.minimum)):
        if x is not None:
            groups[name] = x.transpose(2, 0, 1, 3)


def _as_floats(info: TensorInfo, rows: U8, kind: FloatKind) -> NDArray[Any]:
    """Pure. rows [n, bytes] -> [n, n_in] numbers of the kind, bf16 as u16."""
    if info.qtype in _FLOATS:
        return rows.view(_FLOAT_DTYPE[kind.name])
    n_in = info.shape[-1]
    part = TensorInfo(info.name, (len(rows), n_in), info.qtype, 0, rows.nbytes)
    return dequantised(part, rows)


def _put_floats(out: U8, values: NDArray[Any], kind: FloatKind) -> None:
    """Changes out [n_panels, panel bytes]; values [n, n_in]."""
    if kind.name == "bf16":  # a pair of inputs is one word
        values = np.pad(values, ((0, 0), (0, values.shape[1] % 2))).view(np.uint32)
    columns = values.reshape(len(out), N_COLUMNS, -1)
    out.view(values.dtype).reshape(len(out), -1, N_COLUMNS)[:, : columns.shape[2]] = columns.transpose(0, 2, 1)


def _floats_back(panels: Panels, kind: FloatKind) -> NDArray[np.float32]:
    numbers = panels.data.view(_FLOAT_DTYPE[kind.name])
    if kind.name == "bf16":
        columns = numbers.reshape(panels.n_panels, -1, N_COLUMNS, 2).transpose(0, 2, 1, 3)
        values = (columns.astype(np.uint32) << np.uint32(16)).view(np.float32)
    else:
        values = numbers.reshape(panels.n_panels, -1, N_COLUMNS).transpose(0, 2, 1).astype(np.float32)
    flat = values.reshape(panels.n_panels * N_COLUMNS, -1)
    return np.ascontiguousarray(flat[: panels.n_out, : panels.n_in])
