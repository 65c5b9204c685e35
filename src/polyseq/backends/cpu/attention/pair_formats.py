"""Formats of K and V as dot products see them: a step takes one pair of numbers from each of 16 lanes.

Enters: the address of a pair (kv/layout.py) and that of two weights. Leaves: 16 sums, each grown by both products. In
K.q a pair is two dims and lanes are cells, in p.V a pair is two cells and lanes are dims.

    lanes    a0 b0 | a1 b1 | ... | a15 b15          sum[i] += a_i * weight[0] + b_i * weight[1]

    Fma        bf16 or f32 pairs, f32 weights: widened, then two fused multiply-adds; any CPU
    Bf16Dot    bf16 pairs and weights: AVX512_BF16's vdpbf16ps does a step
    Int8       int8 pairs, int16 weights, exact int32 sums: AVX512_VNNI's vpdpwssd does a step, else vpmaddwd and an
               addition (AVX512BW, AVX2), else plain products
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from polyseq.backends.cpu.compiler.features import Features, InstructionSet
from polyseq.backends.cpu.ir.emit import F32, I8, I16, I32, Emit, F32x16, I32x16, Type, Value, vec
from polyseq.backends.cpu.kv.layout import KvType

_I8x32, _I16x32, _I16x16 = vec(I8, 32), vec(I16, 32), vec(I16, 16)


class PairFormat(Protocol):
    """One way to hold pairs."""

    @property
    def sums(self) -> Type:
        """16 lanes of f32 or i32."""
        ...

    @property
    def pair_bytes(self) -> int:
        """Of the pairs of 16 lanes."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Of two weights."""
        ...

    def load(self, e: Emit, address: Value, odd: Value | int) -> Value:
        """The pairs at an address. `odd`: how far away the second numbers are, where they are apart (f32)."""
        ...

    def only(self, e: Emit, pairs: Value, first: Value, second: Value) -> Value:
        """Pairs with zeros where `first`, or `second` (i1), is false."""
        ...

    def step(self, e: Emit, sums: Value, pairs: Value, weights: Value, offset: int) -> Value:
        """sums grown by both products; two weights at an address, the same for all lanes."""
        ...


@dataclass(frozen=True, slots=True)
class Fma:
    """Pairs widened to f32: (first numbers, second numbers)."""

    kind: KvType
    sums: Type = F32x16
    weight_bytes: int = 8

    @property
    def pair_bytes(self) -> int:
        return 64 if self.kind == "bf16" else 128

    def load(self, e: Emit, address: Value, odd: Value | int) -> Value:
        if self.kind == "f32":
            return e.load(address, F32x16), e.load(address, F32x16, odd)
        both = e.load(address, I32x16)
        low, high = e.b.shl(both, e.const(I32x16, 16)), e.b.and_(both, e.const(I32x16, -65536))
        return e.view(low, F32x16), e.view(high, F32x16)

    def only(self, e: Emit, pairs: Value, first: Value, second: Value) -> Value:
        zero = e.const(F32x16, 0.0)
        return e.b.select(first, pairs[0], zero), e.b.select(second, pairs[1], zero)

    def step(self, e: Emit, sums: Value, pairs: Value, weights: Value, offset: int) -> Value:
        sums = e.fma(pairs[0], e.load_splat(weights, F32, offset), sums)
        return e.fma(pairs[1], e.load_splat(weights, F32, offset + 4), sums)


@dataclass(frozen=True, slots=True)
class Bf16Dot:
    """Pairs of bf16 as i32 lanes. `emulated` spells out what vdpbf16ps does: second product first."""

    emulated: bool
    sums: Type = F32x16
    pair_bytes: int = 64
    weight_bytes: int = 4

    def load(self, e: Emit, address: Value, odd: Value | int) -> Value:
        return e.load(address, I32x16)

    def only(self, e: Emit, pairs: Value, first: Value, second: Value) -> Value:
        zero = e.const(I32, 0)
        low = e.b.select(first, e.const(I32, 0xFFFF), zero)
        keep = e.b.or_(low, e.b.select(second, e.const(I32, -65536), zero))
        return e.b.and_(pairs, e.splat(keep))

    def step(self, e: Emit, sums: Value, pairs: Value, weights: Value, offset: int) -> Value:
        weight = e.load_splat(weights, I32, offset)
        if not self.emulated:
            return e.instruction("llvm.x86.avx512bf16.dpbf16ps.512", F32x16, sums, pairs, weight)
        for high in (True, False):
            x, y = (self._half(e, both, high) for both in (pairs, weight))
            sums = e.fma(x, y, sums)
        return sums

    def _half(self, e: Emit, both: Value, high: bool) -> Value:
        bits = e.b.and_(both, e.const(I32x16, -65536)) if high else e.b.shl(both, e.const(I32x16, 16))
        return e.view(bits, F32x16)


@dataclass(frozen=True, slots=True)
class Int8:
    """Pairs of int8, widened to int16."""

    isa: InstructionSet
    sums: Type = I32x16
    pair_bytes: int = 32
    weight_bytes: int = 4

    def load(self, e: Emit, address: Value, odd: Value | int) -> Value:
        return e.b.sext(e.load(address, _I8x32), _I16x32)

    def only(self, e: Emit, pairs: Value, first: Value, second: Value) -> Value:
        raise NotImplementedError  # integers are finite: a weight of zero is enough

    def step(self, e: Emit, sums: Value, pairs: Value, weights: Value, offset: int) -> Value:
        weight = e.load_splat(weights, I32, offset)
        if self.isa == InstructionSet.AVX512_VNNI:
            words = e.view(pairs, _I16x32), e.view(weight, _I16x32)
            return e.instruction("llvm.x86.avx512.vpdpwssd.512", I32x16, sums, *words)
        return e.b.add(sums, self._products(e, pairs, e.view(weight, _I16x32)))

    def _products(self, e: Emit, x: Value, y: Value) -> Value:
        """[16] i32: x[2i] * y[2i] + x[2i + 1] * y[2i + 1]."""
        if self.isa == InstructionSet.AVX512:
            return e.instruction("llvm.x86.avx512.pmaddw.d.512", I32x16, x, y)
        if self.isa == InstructionSet.AVX2:
            halves = [(e.take(x, lanes), e.take(y, lanes)) for lanes in (range(16), range(16, 32))]
            return e.join(*(e.instruction("llvm.x86.avx2.pmadd.wd", vec(I32, 8), a, b) for a, b in halves))
        even, odd = (
            e.b.mul(e.b.sext(e.take(x, lanes), I32x16), e.b.sext(e.take(y, lanes), I32x16))
            for lanes in (range(0, 32, 2), range(1, 32, 2))
        )
        return e.b.add(even, odd)


def pair_format(kind: KvType, features: Features) -> PairFormat:
    """Pure. How K and V of this kind are multiplied with these features."""
    if kind == "int8":
        return Int8(features.isa)
    if kind == "bf16" and features.bf16:
        return Bf16Dot(emulated=features.isa == InstructionSet.EMULATED)
    return Fma(kind)
