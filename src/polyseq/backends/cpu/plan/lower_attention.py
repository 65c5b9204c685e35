"""Attention and what writes its cells, as records.

Enters: groups of fuse.py. Leaves: records with the words of attention/words.py and rows/words.py.
"""

from __future__ import annotations

import math
from typing import Literal

from polyseq.backends.cpu.attention.words import A, kernel_names, scratch_of
from polyseq.backends.cpu.plan.build import Builder, GoOn, Word, width
from polyseq.backends.cpu.plan.fuse import Form, Group
from polyseq.backends.cpu.plan.lower_rows import bits
from polyseq.backends.cpu.rows.words import CELL_SCRATCH_BYTES, C
from polyseq.backends.cpu.words.records import K, S
from polyseq.graph import ops
from polyseq.memory.cache_part import PartName

PART_WORDS: dict[PartName, S] = {"kv": S.KV, "kv_swa": S.KV_SWA}
Side = Literal["k", "v"]
SIDES: tuple[Side, Side] = ("k", "v")


def attention(b: Builder, group: Group) -> frozenset[Form] | None:
    """Changes the builder: attention of all rows, as rows, records or both."""
    op, out = group.last.op, group.last.out
    assert isinstance(op, ops.Attention) and out is not None
    name = b.cache.part_of(op.il)
    layout = b.cache.parts[name].layout
    head = layout.heads[op.il]
    forms = b.wants(out) if op.head_v % 32 == 0 else frozenset[Form]({"rows"})
    scratch = scratch_of(head, op.n_head)
    b.share_rows(name, scratch.partial_floats, op.n_head_kv)
    words: dict[int, Word] = {
        **{word: b.kernel(kernel) for word, kernel in kernel_names(head.kind).items()},
        A.PART: PART_WORDS[name],
        A.Q: b.rows(group.last.args[0]),
        A.Q_STRIDE: op.n_head * op.head_k * 4,
        A.OUT: b.rows(out) if "rows" in forms else 0,
        A.OUT_STRIDE: op.n_head * op.head_v * 4,
        A.RECORDS: b.records(out) if "records" in forms else 0,
        A.N_GROUP: op.n_head // op.n_head_kv,
        A.N_HEAD_KV: op.n_head_kv,
        A.HEAD_K: op.head_k,
        A.HEAD_V: op.head_v,
        A.SCALE: bits(op.scale * math.log2(math.e)),
        A.K_OFFSET: layout.k_offset[op.il],
        A.V_OFFSET: layout.v_offset[op.il],
        A.K_BYTES: head.k_bytes,
        A.V_BYTES: head.v_bytes,
        A.BUNDLE_BYTES: layout.bundle_bytes,
    }
    n_tiles = S(PART_WORDS[name] + K.N_TILES)
    unit = f"attention.tile_rows.{head.kind}"
    b.record(unit, n_tiles, words, n_fixed=op.n_head_kv, max_chunk=4, scratch_bytes=scratch.n_bytes)
    return forms


def cell_write(b: Builder, group: Group) -> frozenset[Form]:
    """Changes the builder: K and V of all rows into their cells."""
    op = group.last.op
    assert isinstance(op, ops.CacheWrite)
    for side, x in zip(SIDES, group.last.args, strict=False):
        unit = cell_unit(b, op, side)
        words = {**unit.words, C.X: b.rows(x), C.X_STRIDE: width(x) * 4, C.N_HEAD: op.n_head_kv}
        b.record(unit.unit, x.shape[0], words, max_chunk=16, scratch_bytes=unit.scratch_bytes)
        if side == "k":
            b.beside()
    return frozenset()


def cell_unit(b: Builder, op: ops.CacheWrite, side: Side) -> GoOn:
    """The unit that writes K or V of a layer, and its words but for where rows lie and how many heads they have."""
    name = b.cache.part_of(op.il)
    layout = b.cache.parts[name].layout
    head = layout.heads[op.il]
    is_k = side == "k"
    words: dict[int, Word] = {
        C.PART: PART_WORDS[name],
        C.HEAD: head.head_k if is_k else head.head_v,
        C.OFFSET: (layout.k_offset if is_k else layout.v_offset)[op.il],
        C.HEAD_BYTES: head.k_bytes if is_k else head.v_bytes,
        C.BUNDLE_BYTES: layout.bundle_bytes,
    }
    return GoOn(f"kv.cell_write.{side}_{head.kind}", words, CELL_SCRATCH_BYTES)
