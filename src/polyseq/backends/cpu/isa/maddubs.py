"""AVX2, and AVX512 without VNNI: products are added up in pairs, in 16 bits, and then in 32.

vpmaddubsw multiplies u8 by s8 and adds neighbours into i16, where it saturates; vpmaddwd with ones adds neighbours into
i32 (Intel SDM vol. 2). Codes of up to 6 bits leave room for at least two steps in i16. 8-bit codes would overflow, so
they are taken as signed: the product of |code| and the input with the code's sign is at most 128 * 127, and two fit.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from polyseq.backends.cpu.ir.emit import I1, I8, I16, I32, Emit, Value, vec
from polyseq.backends.cpu.isa.isa import sums_in_i16
from polyseq.backends.cpu.isa.shuffles import lookup_bytes
from polyseq.backends.cpu.panels.panel_kind import STEPS, FloatKind, PanelKind


@dataclass(frozen=True, slots=True)
class Maddubs:
    """Registers of 16 or 8 columns."""

    lanes: int
    float_columns: int
    byte_offset: int = 0

    @property
    def in_order(self) -> bool:
        return self.lanes == 8

    def rows_at_once(self, weights: PanelKind | FloatKind) -> int:
        if self.lanes == 16:
            return 12
        return _float_rows(weights) if isinstance(weights, FloatKind) else _rows_and_chunk(weights)[0]

    def n_wide(self, kind: PanelKind) -> int:
        return 2 if self.lanes == 8 and _is_wide(kind) else 1

    def fold_every(self, bits: int) -> int:
        return sums_in_i16(bits) if bits < 8 else 1

    def chunk(self, kind: PanelKind) -> int:
        if self.lanes == 8:
            return _rows_and_chunk(kind)[1]
        # 32 registers hold the codes of a whole sum beside 12 rows' accumulators.
        if kind.factor_bits > 5:
            return 2
        return STEPS // kind.n_scales if kind.factor_bits <= 4 else 4

    def prepare(self, e: Emit, codes: Value, bits: int) -> tuple[Value, ...]:
        octets = vec(I8, 4 * self.lanes)
        codes = e.view(codes, octets)
        if bits < 8:
            return (codes,)
        signed = e.b.xor(codes, e.const(octets, -128))
        size = e.instruction(f"llvm.abs.v{octets.count}i8", octets, signed, ir.Constant(I1, 0))
        return size, signed if self.lanes == 8 else e.b.icmp_signed("<", signed, e.const(octets, 0))

    def add(self, e: Emit, partial: Value | None, codes: tuple[Value, ...], inputs: Value) -> Value:
        name = "llvm.x86.avx512.pmaddubs.w.512" if self.lanes == 16 else "llvm.x86.avx2.pmadd.ub.sw"
        inputs = e.view(inputs, vec(I8, 4 * self.lanes))
        if len(codes) == 2:
            inputs = self._with_sign_of(e, inputs, codes[1])
        pairs = e.instruction(name, vec(I16, 2 * self.lanes), codes[0], inputs)
        return pairs if partial is None else e.b.add(partial, pairs)

    def fold(self, e: Emit, total: Value | None, partial: Value) -> Value:
        name = "llvm.x86.avx512.pmaddw.d.512" if self.lanes == 16 else "llvm.x86.avx2.pmadd.wd"
        ones = e.const(vec(I16, 2 * self.lanes), 1)
        pairs = e.instruction(name, vec(I32, self.lanes), partial, ones)
        return pairs if total is None else e.b.add(total, pairs)

    def lookup(self, e: Emit, table: tuple[int, ...], codes: Value) -> Value:
        return lookup_bytes(
            e, "llvm.x86.avx512.pshuf.b.512" if self.lanes == 16 else "llvm.x86.avx2.pshuf.b", table, codes
        )

    def f16_to_f32(self, e: Emit, bits: Value) -> Value:
        return e.f16_to_f32(bits)

    def _with_sign_of(self, e: Emit, inputs: Value, sign: Value) -> Value:
        if self.lanes == 8:
            return e.instruction("llvm.x86.avx2.psign.b", inputs.type, inputs, sign)
        return e.b.select(sign, e.b.sub(e.const(inputs.type, 0), inputs), inputs)


@dataclass(frozen=True, slots=True)
class Avx2Vnni:
    """AVX2 with AVX-VNNI: the dot product of vnni.py, 8 columns a register."""

    lanes: int = 8
    float_columns: int = 16
    byte_offset: int = 128

    in_order: bool = True

    def rows_at_once(self, weights: PanelKind | FloatKind) -> int:
        return _float_rows(weights) if isinstance(weights, FloatKind) else 6

    def n_wide(self, kind: PanelKind) -> int:
        return 1

    def fold_every(self, bits: int) -> int:
        return STEPS

    def chunk(self, kind: PanelKind) -> int:
        return 1

    def prepare(self, e: Emit, codes: Value, bits: int) -> tuple[Value, ...]:
        return (e.view(codes, vec(I8, 32)),)

    def add(self, e: Emit, partial: Value | None, codes: tuple[Value, ...], inputs: Value) -> Value:
        start = e.const(vec(I32, 8), 0) if partial is None else partial
        inputs = e.view(inputs, vec(I8, 32))
        return e.instruction("llvm.x86.avx512.vpdpbusd.256", vec(I32, 8), start, *codes, inputs)

    def fold(self, e: Emit, total: Value | None, partial: Value) -> Value:
        return partial if total is None else e.b.add(total, partial)

    def lookup(self, e: Emit, table: tuple[int, ...], codes: Value) -> Value:
        return lookup_bytes(e, "llvm.x86.avx2.pshuf.b", table, codes)

    def f16_to_f32(self, e: Emit, bits: Value) -> Value:
        return e.f16_to_f32(bits)


def _is_wide(kind: PanelKind) -> bool:
    """Pure. Two registers of columns share an input where sums and codes leave room: measured, as below."""
    return kind.n_scales == 1 and kind.factor_bits < 8


def _rows_and_chunk(kind: PanelKind) -> tuple[int, int]:
    """Pure. What 16 registers are best used for, by kind: measured (docs/performance.md)."""
    if _is_wide(kind):
        return (6, 1) if kind.bits <= 4 else (4, 1)
    if kind.n_scales == 1:
        return 6, 1
    return (4, 4) if kind.minimum else (6, 2)


def _float_rows(kind: FloatKind) -> int:
    """Pure. Taking bf16 apart needs the registers that two more rows would have."""
    return 4 if kind.name == "bf16" else 6
