"""K or V of one layer as rows of cells, whatever their layout: what is saved, restored and rotated.

Enters: the blocks of a part. Leaves: rows [n, n_head_kv, n] of places, and the way back, bit for bit. Rows hold codes
(uint16 for bf16, float32 for f32), for int8 bytes: the codes, then the head's scales.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.cpu.kv.layout import SCALE_DIMS, BlockLayout, HeadLayout, KvType
from polyseq.backends.cpu.words.tile_words import BLOCK

_DTYPES: Mapping[KvType, type[np.generic]] = {"bf16": np.uint16, "f32": np.float32, "int8": np.int8}


class CellRows:
    """Views into `pool` [n_blocks, block bytes] u8, with cells to the front."""

    def __init__(self, pool: NDArray[np.uint8], head: HeadLayout, offset: int, *, keys: bool) -> None:
        self.kind, n_head, n_blocks, self._keys = head.kind, head.n_head_kv, len(pool), keys
        self.n_dim, n_padded = (head.head_k, head.padded_k) if keys else (head.head_v, head.padded_v)
        n_bytes, n_codes = (head.k_bytes, head.k_code_bytes) if keys else (head.v_bytes, head.v_code_bytes)
        heads = pool[:, offset : offset + n_head * n_bytes].reshape(n_blocks, n_head, n_bytes)
        codes = heads[:, :, :n_codes].view(_DTYPES[head.kind])
        self._pairs = head.kind != "f32"
        if not self._pairs:
            shape = (n_padded, BLOCK) if keys else (BLOCK, n_padded)
            codes = codes.reshape(n_blocks, n_head, *shape)
            self._codes = codes.transpose(0, 3, 1, 2) if keys else codes.transpose(0, 2, 1, 3)
        elif keys:  # [block, cell, head, pair of dims, 2]
            self._codes = codes.reshape(n_blocks, n_head, n_padded // 2, BLOCK, 2).transpose(0, 3, 1, 2, 4)
        else:  # [block, pair of cells, 2, head, dim]
            self._codes = codes.reshape(n_blocks, n_head, BLOCK // 2, n_padded, 2).transpose(0, 2, 4, 1, 3)
        self._scales: NDArray[np.float32] | None = None
        if head.kind == "int8":  # [block, cell, head, n_scales]
            scales = heads[:, :, n_codes:].view(np.float32)
            n_scales = (n_bytes - n_codes) // (4 * BLOCK)
            self._scales = scales.reshape(n_blocks, n_head, n_scales, BLOCK).transpose(0, 3, 1, 2)

    def get(self, places: NDArray[np.int32]) -> NDArray[Any]:
        """Pure. Rows [n, n_head_kv, ...] of these places."""
        codes = self._codes[self._index(places)]
        codes = codes.reshape(*codes.shape[:2], math.prod(codes.shape[2:]))[:, :, : self.n_dim]
        if self._scales is None:
            return np.ascontiguousarray(codes)
        scales = np.ascontiguousarray(self._scales[places // BLOCK, places % BLOCK])
        return np.concatenate((np.ascontiguousarray(codes).view(np.uint8), scales.view(np.uint8)), axis=2)

    def put(self, places: NDArray[np.int32], rows: NDArray[Any]) -> None:
        """Changes the rows of these places; dims of padding become 0."""
        index = self._index(places)
        shape = self._codes[index].shape
        codes = np.zeros((*rows.shape[:2], math.prod(shape[2:])), self._codes.dtype)
        codes[:, :, : self.n_dim] = np.ascontiguousarray(rows[:, :, : self.n_dim]).view(codes.dtype)
        self._codes[index] = codes.reshape(shape)
        if self._scales is not None:
            scales = np.ascontiguousarray(rows[:, :, self.n_dim :]).view(np.float32)
            self._scales[places // BLOCK, places % BLOCK] = scales

    def values(self, places: NDArray[np.int32]) -> NDArray[np.float32]:
        """Pure. [n, n_head_kv, n_dim] f32: what the rows stand for."""
        rows = self.get(places)
        if self.kind == "f32":
            return rows.astype(np.float32)
        if self.kind == "bf16":
            return (rows.astype(np.uint32) << 16).view(np.float32)
        codes = np.ascontiguousarray(rows[:, :, : self.n_dim]).view(np.int8)
        scales = np.ascontiguousarray(rows[:, :, self.n_dim :]).view(np.float32)
        return codes * self._of_dims(scales)

    def put_values(self, places: NDArray[np.int32], values: NDArray[np.float32]) -> None:
        """Changes the rows of these places to those nearest to `values` [n, n_head_kv, n_dim] f32."""
        if self.kind == "f32":
            self.put(places, values.astype(np.float32))
        elif self.kind == "bf16":
            self.put(places, to_bf16(values))
        else:
            step = SCALE_DIMS if self._keys else self.n_dim
            starts = np.arange(0, self.n_dim, step)
            with np.errstate(invalid="ignore", over="ignore"):
                bad = np.add.reduceat(values * np.float32(0), starts, axis=2)  # NaN where not all is finite
                top = np.fmax(np.fmax.reduceat(np.abs(values), starts, axis=2), np.float32(1e-20))
                codes = np.rint(values * self._of_dims((np.float32(127) / top).astype(np.float32)))
            codes = np.fmin(np.fmax(codes, -127), 127).astype(np.int8)
            scales = (top * np.float32(1 / 127) + bad).astype(np.float32)
            rows = np.concatenate((codes.view(np.uint8), scales.view(np.uint8)), axis=2)
            self.put(places, rows)

    def _of_dims(self, scales: NDArray[np.float32]) -> NDArray[np.float32]:
        """[n, n_head, n_scales] -> [n, n_head, n_dim]: K has a scale per 32 dims, V one."""
        return np.repeat(scales, SCALE_DIMS if self._keys else self.n_dim, axis=2)[:, :, : self.n_dim]

    def _index(self, places: NDArray[np.int32]) -> tuple[NDArray[np.int32], ...]:
        block, cell = places // BLOCK, places % BLOCK
        return (block, cell) if self._keys or not self._pairs else (block, cell // 2, cell % 2)


def to_bf16(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Pure. Bit patterns of the nearest bfloat16, halves to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded: NDArray[np.uint16] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded


def cell_words(layout: BlockLayout) -> NDArray[np.intp]:
    """Pure. [BLOCK, n] the words of a block, of 4 bytes each, in which the codes of each of its cells lie."""
    blocks = np.zeros((BLOCK, layout.n_bytes), np.uint8)  # block i shows cell i
    places = (np.arange(BLOCK) * (BLOCK + 1)).astype(np.int32)
    for il, head in layout.heads.items():
        for offset, keys in ((layout.k_offset[il], True), (layout.v_offset[il], False)):
            rows = CellRows(blocks, head, offset, keys=keys)
            empty = rows.get(places)
            rows.put(places, np.full(empty.nbytes, 0xFF, np.uint8).view(empty.dtype).reshape(empty.shape))
    return np.stack([np.flatnonzero(block) for block in blocks.view(np.uint32)])
