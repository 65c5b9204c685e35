"""AVX512 VNNI: one instruction multiplies 4 codes by 4 inputs in each of 16 columns and adds them up.

vpdpbusd (u8 x s8, Intel SDM vol. 2): the sums cannot overflow, 32 products of 255 * 127 stay far below 2^31.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyseq.backends.cpu.ir.emit import I8, Emit, I32x16, Value, vec
from polyseq.backends.cpu.isa.shuffles import lookup_bytes
from polyseq.backends.cpu.panels.panel_kind import STEPS, FloatKind, PanelKind

_I8x64 = vec(I8, 64)


@dataclass(frozen=True, slots=True)
class Vnni:
    """16 columns a register, 12 rows of sums and 12 of accumulators in 32 registers."""

    lanes: int = 16
    in_order: bool = False
    float_columns: int = 32
    byte_offset: int = 128

    def rows_at_once(self, weights: PanelKind | FloatKind) -> int:
        return 12

    def n_wide(self, kind: PanelKind) -> int:
        return 1

    def fold_every(self, bits: int) -> int:
        return STEPS

    def chunk(self, kind: PanelKind) -> int:
        # Rows side by side hide the instruction's latency; with two scales a group, sums would need the registers.
        return 1 if kind.n_scales == 1 else STEPS // 2

    def prepare(self, e: Emit, codes: Value, bits: int) -> tuple[Value, ...]:
        return (e.view(codes, _I8x64),)

    def add(self, e: Emit, partial: Value | None, codes: tuple[Value, ...], inputs: Value) -> Value:
        start = e.const(I32x16, 0) if partial is None else partial
        return e.instruction("llvm.x86.avx512.vpdpbusd.512", I32x16, start, *codes, e.view(inputs, _I8x64))

    def fold(self, e: Emit, total: Value | None, partial: Value) -> Value:
        return partial if total is None else e.b.add(total, partial)

    def lookup(self, e: Emit, table: tuple[int, ...], codes: Value) -> Value:
        return lookup_bytes(e, "llvm.x86.avx512.pshuf.b.512", table, codes)

    def f16_to_f32(self, e: Emit, bits: Value) -> Value:
        return e.f16_to_f32(bits)
