"""K or V of one layer as rows of cells, whatever their layout: what is saved, restored and rotated.

Enters: the blocks of a part. Leaves: rows [n, n_head_kv, n] of places, and the way back, bit for bit. Rows hold codes
(uint16 for bf16, float32 for f32), for int8 bytes: the codes, then the head's scales.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.cpu.kv.layout import BUNDLE, SCALE_DIMS, BlockLayout, HeadLayout, KvType
from polyseq.backends.cpu.words.tile_words import BLOCK

AnyInt = TypeVar("AnyInt", np.int32, np.intp)
_DTYPES: Mapping[KvType, type[np.generic]] = {"bf16": np.uint16, "f32": np.float32, "int8": np.int8}


class CellRows:
    """Views into `pool` [n_bundles, bundle bytes] u8, with blocks and cells to the front."""

    def __init__(self, pool: NDArray[np.uint8], head: HeadLayout, offset: int, *, keys: bool) -> None:
        self.kind, n_head, self._keys = head.kind, head.n_head_kv, keys
        blocks = len(pool), BUNDLE
        self.n_dim, n_padded = (head.head_k, head.padded_k) if keys else (head.head_v, head.padded_v)
        n_bytes, n_codes = (head.k_bytes, head.k_code_bytes) if keys else (head.v_bytes, head.v_code_bytes)
        heads = pool[:, offset : offset + n_head * BUNDLE * n_bytes].reshape(len(pool), n_head, BUNDLE, n_bytes)
        self._blocks = heads.swapaxes(1, 2)  # [bundle, block, head, byte]
        codes = self._blocks[..., :n_codes].view(_DTYPES[head.kind])
        self._pairs = head.kind != "f32"
        if not self._pairs:
            shape = (n_padded, BLOCK) if keys else (BLOCK, n_padded)
            codes = codes.reshape(*blocks, n_head, *shape)
            self._codes = codes.transpose(0, 1, 4, 2, 3) if keys else codes.transpose(0, 1, 3, 2, 4)
        elif keys:  # [bundle, block, cell, head, pair of dims, 2]
            self._codes = codes.reshape(*blocks, n_head, n_padded // 2, BLOCK, 2).transpose(0, 1, 4, 2, 3, 5)
        else:  # [bundle, block, pair of cells, 2, head, dim]
            self._codes = codes.reshape(*blocks, n_head, BLOCK // 2, n_padded, 2).transpose(0, 1, 3, 5, 2, 4)
        self._scales: NDArray[np.float32] | None = None
        if head.kind == "int8":  # [bundle, block, cell, head, n_scales]
            scales = self._blocks[..., n_codes:].view(np.float32)
            n_scales = (n_bytes - n_codes) // (4 * BLOCK)
            self._scales = scales.reshape(*blocks, n_head, n_scales, BLOCK).transpose(0, 1, 4, 2, 3)

    def get(self, places: NDArray[np.int32]) -> NDArray[Any]:
        """Pure. Rows [n, n_head_kv, ...] of these places."""
        codes = self._codes[self._index(places)]
        codes = codes.reshape(*codes.shape[:2], math.prod(codes.shape[2:]))[:, :, : self.n_dim]
        if self._scales is None:
            return np.ascontiguousarray(codes)
        scales = np.ascontiguousarray(self._scales[(*_bundle_and_block(places // BLOCK), places % BLOCK)])
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
            self._scales[(*_bundle_and_block(places // BLOCK), places % BLOCK)] = scales

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

    def copy_blocks(self, src: NDArray[np.intp], dst: NDArray[np.intp]) -> None:
        """Changes blocks `dst`: they become copies of blocks `src`."""
        self._blocks[_bundle_and_block(dst)] = self._blocks[_bundle_and_block(src)]

    def _of_dims(self, scales: NDArray[np.float32]) -> NDArray[np.float32]:
        """[n, n_head, n_scales] -> [n, n_head, n_dim]: K has a scale per 32 dims, V one."""
        return np.repeat(scales, SCALE_DIMS if self._keys else self.n_dim, axis=2)[:, :, : self.n_dim]

    def _index(self, places: NDArray[np.int32]) -> tuple[NDArray[np.int32], ...]:
        block, cell = _bundle_and_block(places // BLOCK), places % BLOCK
        return (*block, cell) if self._keys or not self._pairs else (*block, cell // 2, cell % 2)


def _bundle_and_block(blocks: NDArray[AnyInt]) -> tuple[NDArray[AnyInt], NDArray[AnyInt]]:
    """Pure. Block numbers as indexes [bundle, block in it]."""
    return blocks // BUNDLE, blocks % BUNDLE


def to_bf16(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Pure. Bit patterns of the nearest bfloat16, halves to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded: NDArray[np.uint16] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded


@dataclass(frozen=True, slots=True)
class CellWords:
    """In which words of 4 bytes of a pool the codes of a cell lie."""

    first: NDArray[np.intp]  # [BLOCK, n] of each cell of block 0
    step: NDArray[np.intp]  # [n] words from a block to the next one of the same bundle
    bundle: int  # words from bundle to bundle

    def of(self, places: NDArray[np.intp]) -> NDArray[np.intp]:
        """Pure. [n_places, n] those of the cells at these places."""
        block, cell = places // BLOCK, places % BLOCK
        words: NDArray[np.intp] = (block // BUNDLE * self.bundle)[:, None] + self.first[cell]
        words += (block % BUNDLE)[:, None] * self.step
        return words


def cell_words(layout: BlockLayout) -> CellWords:
    """Pure. Of a part with this layout."""
    pool = np.zeros((BLOCK, layout.bundle_bytes), np.uint8)  # block 0 of bundle i shows cell i
    places = np.arange(BLOCK, dtype=np.int32) * (BLOCK * BUNDLE + 1)
    steps = np.zeros(layout.bundle_bytes // 4, np.intp)
    for il, head in layout.heads.items():
        sides = ((layout.k_offset[il], head.k_bytes, True), (layout.v_offset[il], head.v_bytes, False))
        for offset, n_bytes, keys in sides:
            rows = CellRows(pool, head, offset, keys=keys)
            empty = rows.get(places)
            rows.put(places, np.full(empty.nbytes, 0xFF, np.uint8).view(empty.dtype).reshape(empty.shape))
            steps[offset // 4 : (offset + head.n_head_kv * BUNDLE * n_bytes) // 4] = n_bytes // 4
    first = np.stack([np.flatnonzero(words) for words in pool.view(np.uint32)])
    return CellWords(first, steps[first[0]], layout.bundle_bytes // 4)
