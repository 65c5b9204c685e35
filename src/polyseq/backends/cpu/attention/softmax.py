"""Softmax over listed blocks, run by run, in a form that may stop and go on anywhere.

Enters: scores s [block][16] f32 in units of log2, masks with 16 bits per block (MOST_ROWS of them side by side, the
row's own first). Leaves: weights in place of the scores, the row's sum, and sums of several segments joined.

Weights are 2^(s - m) with m the largest visible score rounded up to an integer. So another m only moves the binary
point of weights and sums, which is exact: it does not matter to the last bit how a row's blocks were cut into
segments, or which others were in its tile. (Online softmax: Milakov & Gimelshein, arXiv:1805.02867.) A row's state:

    byte 0    peak    [16] f32  largest score per lane, then m in every lane
    byte 64   sum     [16] f32  of the weights, lane by lane; NaN where a visible score is not finite
    byte 128  top     [16] f32  int8: largest weight * scale of V
    byte 192  scaled  [16] f32  int8: sum of them
    byte 256  factor  f32       int8: what an integer weight times a code is worth
"""

from __future__ import annotations

from collections.abc import Callable

from polyseq.backends.cpu.ir.emit import F32, I1, I16, I32, I64, Emit, F32x16, I16x16, I32x16, Value, vec
from polyseq.backends.cpu.kv.address import block_address
from polyseq.backends.cpu.words.tile_words import MOST_ROWS

PEAK, SUM, TOP, SCALED, FACTOR = 0, 64, 128, 192, 256
NOTHING = -1e30  # the peak of a row that has seen nothing
_LINE = 64
# Least exponent of a weight that counts: 2^-125 is still a normal number.
_LEAST = -125.0
# Integer weights: each fits 16 bits, and with codes up to 127 their products' sum fits 32.
_MOST_WEIGHT, _MOST_SUM = 32767.0, 16.0e6


def begin(e: Emit, state: Value) -> None:
    """Changes a row's state: nothing seen."""
    e.store(e.const(F32x16, NOTHING), state, PEAK)
    for offset in (SUM, TOP, SCALED):
        e.store(e.const(F32x16, 0.0), state, offset)


def find_peak(e: Emit, s: Value, masks: Value, n: Value, state: Value) -> None:
    """Changes peak and sum: n more blocks."""

    def block(i: Value, carried: list[Value]) -> list[Value]:
        seen = _seen(e, masks, i)
        x = e.b.select(seen, e.load(s, F32x16, e.mul(i, _LINE)), e.const(F32x16, NOTHING))
        # x * 0 is NaN where x is not finite, which the maximum passes over.
        return [e.maximum(carried[0], x), e.fma(x, e.const(F32x16, 0.0), carried[1])]

    peak, bad = e.loop(n, [e.load(state, F32x16, PEAK), e.load(state, F32x16, SUM)], block)
    e.store(peak, state, PEAK)
    e.store(bad, state, SUM)


def end_peak(e: Emit, state: Value) -> None:
    """Changes peak: m, in every lane."""
    peak = e.splat(e.max(e.load(state, F32x16, PEAK)))
    whole = e.rint(peak)
    above = e.b.select(e.b.fcmp_ordered("<", whole, peak), e.b.fadd(whole, e.const(F32x16, 1.0)), whole)
    e.store(above, state, PEAK)


def weigh_f32(e: Emit, s: Value, masks: Value, n: Value, state: Value) -> None:
    """Changes n blocks of scores into f32 weights, and the sum."""
    _weigh(e, s, masks, n, state, lambda i, w: e.store(w, s, e.mul(i, _LINE)))


def weigh_bf16(e: Emit, s: Value, masks: Value, n: Value, state: Value, p: Value) -> None:
    """Changes the sum; n blocks of bf16 weights go to p, which may lie before s in the same memory."""
    _weigh(e, s, masks, n, state, lambda i, w: e.store(e.f32_to_bf16(w), p, e.mul(i, _LINE // 2)))


def _weigh(e: Emit, s: Value, masks: Value, n: Value, state: Value, keep: Callable[[Value, Value], None]) -> None:
    m = e.load(state, F32x16, PEAK)

    def block(i: Value, carried: list[Value]) -> list[Value]:
        w = _weight(e, e.load(s, F32x16, e.mul(i, _LINE)), m, _seen(e, masks, i))
        keep(i, w)
        return [e.b.fadd(carried[0], w)]

    e.store(e.loop(n, [e.load(state, F32x16, SUM)], block)[0], state, SUM)


def weigh_scaled(
    e: Emit,
    s: Value,
    masks: Value,
    n: Value,
    state: Value,
    blocks: Value,
    v_scales: Value,
    v_bytes: Value,
    bundle_bytes: Value,
) -> None:
    """Changes n blocks of scores into f32 weights times V's scale of each cell, and sum, top and scaled."""
    m, zero = e.load(state, F32x16, PEAK), e.const(F32x16, 0.0)

    def block(i: Value, carried: list[Value]) -> list[Value]:
        seen = _seen(e, masks, i)
        w = _weight(e, e.load(s, F32x16, e.mul(i, _LINE)), m, seen)
        number = e.b.sext(e.load(blocks, I32, e.mul(i, 4)), I64)
        scale = e.load(block_address(e, v_scales, number, v_bytes, bundle_bytes), F32x16)
        x = e.b.select(seen, e.b.fmul(w, scale), zero)
        e.store(x, s, e.mul(i, _LINE))
        return [e.b.fadd(carried[0], w), e.maximum(carried[1], x), e.b.fadd(carried[2], x)]

    grown = e.loop(n, [e.load(state, F32x16, offset) for offset in (SUM, TOP, SCALED)], block)
    for value, offset in zip(grown, (SUM, TOP, SCALED), strict=True):
        e.store(value, state, offset)


def end_scaled(e: Emit, state: Value) -> Value:
    """Changes factor; returns its inverse, by which weights become integers."""
    top, total = e.max(e.load(state, F32x16, TOP)), e.sum(e.load(state, F32x16, SCALED))
    least = e.const(F32, 1e-30)
    inverse = e.minimum(
        e.b.fdiv(e.const(F32, _MOST_WEIGHT), e.maximum(top, least)),
        e.b.fdiv(e.const(F32, _MOST_SUM), e.maximum(total, least)),
    )
    # A visible scale that is not finite makes the total so, and with it the row.
    factor = e.fma(total, e.const(F32, 0.0), e.b.fdiv(e.const(F32, 1.0), inverse))
    e.store(factor, state, FACTOR)
    return inverse


def round_weights(e: Emit, s: Value, n: Value, p: Value, inverse: Value) -> None:
    """Changes n blocks of f32 weights into int16 at p, which may lie before s in the same memory."""
    by, most = e.splat(inverse), e.const(F32x16, _MOST_WEIGHT)

    def block(i: Value, _: list[Value]) -> list[Value]:
        x = e.rint(e.b.fmul(e.load(s, F32x16, e.mul(i, _LINE)), by))
        whole = e.b.fptosi(e.minimum(e.maximum(x, e.const(F32x16, 0.0)), most), I32x16)
        e.store(e.b.trunc(whole, I16x16), p, e.mul(i, _LINE // 2))
        return []

    e.loop(n, [], block)


def end_segment(e: Emit, o: Value, n_vectors: Value, state: Value, is_int: bool) -> None:
    """Changes a row of sums: integers become f32. Behind it come m and the row's sum."""
    if is_int:
        factor = e.load_splat(state, F32, FACTOR)

        def vector(i: Value, _: list[Value]) -> list[Value]:
            offset = e.mul(i, _LINE)
            e.store(e.b.fmul(e.b.sitofp(e.load(o, I32x16, offset), F32x16), factor), o, offset)
            return []

        e.loop(n_vectors, [], vector)
    tail = e.add(o, e.mul(n_vectors, _LINE))
    e.store(e.load(state, F32, PEAK), tail)
    e.store(e.sum(e.load(state, F32x16, SUM)), tail, 4)


def join(e: Emit, o: Value, total: Value, n_vectors: Value) -> None:
    """Changes a row's total (like a row of sums, m and sum behind): one more segment, if it has cells."""
    tails = e.add(o, e.mul(n_vectors, _LINE)), e.add(total, e.mul(n_vectors, _LINE))
    m, m_total = (e.load(tail, F32) for tail in tails)
    n_sum, n_total = (e.load(tail, F32, 4) for tail in tails)
    largest = e.maximum(m, m_total)
    new, old = (_power(e, e.b.fsub(x, largest)) for x in (m, m_total))

    def add() -> None:
        new16, old16 = e.splat(new), e.splat(old)

        def vector(i: Value, _: list[Value]) -> list[Value]:
            offset = e.mul(i, _LINE)
            grown = e.fma(e.load(o, F32x16, offset), new16, e.b.fmul(e.load(total, F32x16, offset), old16))
            e.store(grown, total, offset)
            return []

        e.loop(n_vectors, [], vector)
        e.store(largest, tails[1])
        e.store(e.fma(n_sum, new, e.b.fmul(n_total, old)), tails[1], 4)

    e.when(e.b.fcmp_ordered("!=", m, e.const(F32, NOTHING)), add)


def begin_total(e: Emit, total: Value, n_vectors: Value) -> None:
    """Changes a row's total: nothing."""
    clear(e, total, n_vectors)
    tail = e.add(total, e.mul(n_vectors, _LINE))
    e.store(e.const(F32, NOTHING), tail)
    e.store(e.const(F32, 0.0), tail, 4)


def end_total(e: Emit, total: Value, n_vectors: Value) -> None:
    """Changes a row's total: divided by its sum. Zeros where the row saw nothing."""
    n_sum = e.load(total, F32, e.add(e.mul(n_vectors, _LINE), 4))
    nothing = e.b.fcmp_ordered("==", n_sum, e.const(F32, 0.0))
    inverse = e.splat(e.b.select(nothing, n_sum, e.b.fdiv(e.const(F32, 1.0), n_sum)))

    def vector(i: Value, _: list[Value]) -> list[Value]:
        e.store(e.b.fmul(e.load(total, F32x16, e.mul(i, _LINE)), inverse), total, e.mul(i, _LINE))
        return []

    e.loop(n_vectors, [], vector)


def clear(e: Emit, row: Value, n_vectors: Value) -> None:
    """Changes a row: zeros."""
    e.each(n_vectors, lambda i: e.store(e.const(F32x16, 0.0), row, e.mul(i, _LINE)))


def is_finite(e: Emit, row: Value, n_vectors: Value) -> Value:
    """1 where all numbers of a row are finite, else 0."""

    def vector(i: Value, carried: list[Value]) -> list[Value]:
        return [e.fma(e.load(row, F32x16, e.mul(i, _LINE)), e.const(F32x16, 0.0), carried[0])]

    zeros = e.loop(n_vectors, [e.const(F32x16, 0.0)], vector)[0]
    total = e.sum(zeros)
    return e.b.zext(e.b.fcmp_ordered("==", total, e.const(F32, 0.0)), I64)


def _seen(e: Emit, masks: Value, i: Value) -> Value:
    """[16] i1: the mask of block i."""
    return e.view(e.load(masks, I16, e.mul(i, 2 * MOST_ROWS)), vec(I1, 16))


def _weight(e: Emit, x: Value, m: Value, seen: Value) -> Value:
    """2^(x - m) where seen, else 0: mantissa from the fraction of x alone, so m does not touch it."""
    whole = e.rint(x)
    mantissa = e.exp2_fraction(e.b.fsub(x, whole))
    exponent = e.b.fsub(whole, m)
    counts = e.b.and_(seen, e.b.fcmp_ordered(">=", exponent, e.const(F32x16, _LEAST)))
    # Lanes that do not count may hold anything, so they are made a number before they become an integer.
    exponent = e.b.select(counts, exponent, e.const(F32x16, 0.0))
    moved = e.b.add(e.view(mantissa, I32x16), e.b.shl(e.b.fptosi(exponent, I32x16), e.const(I32x16, 23)))
    return e.b.select(counts, e.view(moved, F32x16), e.const(F32x16, 0.0))


def _power(e: Emit, x: Value) -> Value:
    """2^x of an integer f32 <= 0, 0 below 2^-126."""
    least = e.const(F32, -127.0)
    integer = e.b.fptosi(e.maximum(x, least), I32)
    return e.view(e.b.shl(e.b.add(integer, e.const(I32, 127)), e.const(I32, 23)), F32)
