"""How cells of all layers lie in memory: 16 cells are a *block*, laid out for dot products, 16 blocks a *bundle*.

Enters: what a cell holds per layer, and how numbers are kept ("bf16", "f32" or "int8"). Leaves: offsets and sizes.
Attention reads one head of one layer, block after block, so in a bundle those lie one after another:

    bundle  | layer 0: K head 0 of blocks 0 .. 15, K head 1 of blocks 0 .. 15, ..., V head 0 ... | layer 1: ...

             K of one head in a block             V of one head in a block
    bf16     [head_k / 2][16 cells][2] bf16       [8][head_v][2 cells] bf16
    f32      [head_k / 2][2][16 cells] f32        [8][2 cells][head_v] f32
    int8     [head_k / 2][16 cells][2] i8,        [8][head_v][2 cells] i8,
             [head_k / 32][16 cells] f32 scales   [16 cells] f32 scales

K puts one pair of dims of all cells side by side: 16 scores grow at once. V puts one pair of cells of all dims side by
side: 16 dims of the result grow at once. head_k is filled up to a multiple of 32 with zeros, head_v to one of 16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from polyseq.backends.cpu.words.tile_words import BLOCK
from polyseq.graph import CachePart, KvLayer

KvType = Literal["bf16", "f32", "int8"]
SCALE_DIMS = 32  # dims of K that share a scale
BUNDLE = 16  # blocks
_LINE = 64


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """Sizes of one layer's heads in a block."""

    kind: KvType
    n_head_kv: int
    head_k: int
    head_v: int

    @property
    def padded_k(self) -> int:
        return -(-self.head_k // SCALE_DIMS) * SCALE_DIMS

    @property
    def padded_v(self) -> int:
        return -(-self.head_v // BLOCK) * BLOCK

    @property
    def k_code_bytes(self) -> int:
        """Bytes of one K head of a block, without scales."""
        return self.padded_k * BLOCK * _BYTES[self.kind]

    @property
    def v_code_bytes(self) -> int:
        return self.padded_v * BLOCK * _BYTES[self.kind]

    @property
    def k_bytes(self) -> int:
        """Bytes of one K head of a block."""
        return self.k_code_bytes + (self.padded_k // SCALE_DIMS * _LINE if self.kind == "int8" else 0)

    @property
    def v_bytes(self) -> int:
        return self.v_code_bytes + (_LINE if self.kind == "int8" else 0)

    @property
    def n_bytes(self) -> int:
        """Bytes of the layer in a block."""
        return self.n_head_kv * (self.k_bytes + self.v_bytes)


_BYTES: Mapping[KvType, int] = {"bf16": 2, "f32": 4, "int8": 1}


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Where each layer lies in a bundle."""

    heads: Mapping[int, HeadLayout]  # by il
    k_offset: Mapping[int, int]  # by il: bytes from a bundle's start to K of head 0 in its first block
    v_offset: Mapping[int, int]
    n_bytes: int  # of a block

    @property
    def bundle_bytes(self) -> int:
        return BUNDLE * self.n_bytes


def block_layout(part: CachePart, kind: KvType) -> BlockLayout:
    """Pure. The layout for a part's layers."""
    heads, k_offset, v_offset, n = dict[int, HeadLayout](), dict[int, int](), dict[int, int](), 0
    for il, layer in part.layers.items():
        assert isinstance(layer, KvLayer)
        head = HeadLayout(kind, layer.n_head_kv, layer.n_embd_head_k, layer.n_embd_head_v)
        heads[il], k_offset[il] = head, BUNDLE * n
        v_offset[il] = BUNDLE * (n + head.n_head_kv * head.k_bytes)
        n += head.n_bytes
    return BlockLayout(heads, k_offset, v_offset, n)
