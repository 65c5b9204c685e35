"""Plain vector instructions, for any CPU that LLVM knows; and the fast set's meaning spelt out in them, for tests.

Two neighbours' products are added in i32 from sign-extended i16, the shape that compilers turn into pmaddwd (SSE2) or
smull and addp (NEON).
"""

from __future__ import annotations

from dataclasses import dataclass

from polyseq.backends.cpu.ir.emit import I16, I32, Emit, Value, vec
from polyseq.backends.cpu.isa.shuffles import lookup_by_selection
from polyseq.backends.cpu.panels.panel_kind import STEPS, FloatKind, PanelKind


@dataclass(frozen=True, slots=True)
class Generic:
    """8 columns at a time: two registers of 128 bits."""

    lanes: int = 8
    row_block: int = 4
    in_order: bool = False
    float_columns: int = 8
    byte_offset: int = 128

    def rows_at_once(self, weights: PanelKind | FloatKind) -> int:
        return self.row_block

    def n_wide(self, kind: PanelKind) -> int:
        return 1

    def fold_every(self, bits: int) -> int:
        return STEPS

    def chunk(self, kind: PanelKind) -> int:
        return 1

    def prepare(self, e: Emit, codes: Value, bits: int) -> tuple[Value, ...]:
        # Bytes 0 and 2 of each lane as i16, then bytes 1 and 3.
        pairs = vec(I16, 2 * self.lanes)
        codes = e.view(codes, pairs)
        return e.b.and_(codes, e.const(pairs, 255)), e.b.lshr(codes, e.const(pairs, 8))

    def add(self, e: Emit, partial: Value | None, codes: tuple[Value, ...], inputs: Value) -> Value:
        pairs, eight = vec(I16, 2 * self.lanes), e.const(vec(I16, 2 * self.lanes), 8)
        inputs = e.view(inputs, pairs)
        even = self._dot2(e, codes[0], e.b.ashr(e.b.shl(inputs, eight), eight))
        odd = self._dot2(e, codes[1], e.b.ashr(inputs, eight))
        both = e.b.add(even, odd)
        return both if partial is None else e.b.add(partial, both)

    def fold(self, e: Emit, total: Value | None, partial: Value) -> Value:
        return partial if total is None else e.b.add(total, partial)

    def lookup(self, e: Emit, table: tuple[int, ...], codes: Value) -> Value:
        return lookup_by_selection(e, table, codes)

    def f16_to_f32(self, e: Emit, bits: Value) -> Value:
        return e.f16_to_f32_spelt(bits)

    def _dot2(self, e: Emit, x: Value, y: Value) -> Value:
        wide = vec(I32, 2 * self.lanes)
        products = e.b.mul(e.b.sext(x, wide), e.b.sext(y, wide), flags=("nsw",))
        even, odd = (e.take(products, range(start, 2 * self.lanes, 2)) for start in (0, 1))
        return e.b.add(even, odd)


@dataclass(frozen=True, slots=True)
class Emulated(Generic):
    """Tests only: what vnni.py does, in its order and its shapes, on a CPU without VNNI."""

    lanes: int = 16
    row_block: int = 12
    float_columns: int = 32

    def chunk(self, kind: PanelKind) -> int:
        return 1 if kind.n_scales == 1 else STEPS // 2
