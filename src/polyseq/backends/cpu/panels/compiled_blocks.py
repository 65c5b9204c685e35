"""Kernels that pack blocks into panels, for types that take NumPy too long: rows of large tables, digits of base 3.

Enters: rows as stored, 16 for each panel, and the type's tables (block_tables.py). Leaves: panels (panel_kind.py), all
bytes of them. Per type one function (int64 each):

    void pack(rows, row_bytes, n_panels, n_blocks, words, signs, out)       # n_blocks: of 256 inputs, in a row

The bit layouts are those of ggml's block structures (ggml-common.h); what they mean is defined, for the tests too, by
`gguf.quants`. A block of a panel stays in the first-level cache while its 16 columns are filled in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Q
from llvmlite import ir

from polyseq.backends.cpu.compiler.assemble import object_code
from polyseq.backends.cpu.compiler.features import Features
from polyseq.backends.cpu.compiler.object_code import ObjectCode
from polyseq.backends.cpu.ir.emit import I8, I16, I32, I64, Body, Emit, Type, Value, vec
from polyseq.backends.cpu.panels.panel_kind import KIND_OF, N_COLUMNS, SUPER, PanelKind

_VECTOR = 4 * N_COLUMNS  # bytes
_ALL_SIGNS = 0x88888888


class _Column:
    """One column of one block: its bytes as stored, and its places in the panel."""

    def __init__(self, e: Emit, kind: PanelKind, block: Value, to: Value, column: Value) -> None:
        self.e, self._kind, self._block = e, kind, block
        self._d, first = e.add(to, e.mul(column, 2)), e.add(to, kind.head_bytes)
        self._words = e.add(first, e.mul(column, 4))
        self._scales = e.add(e.add(first, kind.code_bytes), e.mul(column, kind.scale_bytes))

    def stored(self, at: int, kind: Type) -> Value:
        """What stands so many bytes behind the block's first; numbers become int64."""
        value = self.e.load(self._block, kind, at)
        return value if isinstance(kind, ir.VectorType) else self.e.b.zext(value, I64)

    def put_words(self, group: int, words: Sequence[Value]) -> None:
        """Changes the codes of a group."""
        for i, word in enumerate(words):
            self.e.store(word, self._words, group * self._kind.group_bytes + _VECTOR * i)

    def put_scales(self, group: int, scales: Sequence[Value]) -> None:
        """Changes the scales of a group, given as int64 whose lowest bits they are."""
        size = self._kind.scale_bytes
        for i, scale in enumerate(scales):
            at = group * self._kind.group_bytes + N_COLUMNS * size * i
            self.e.store(self.e.b.trunc(scale, ir.IntType(8 * size)), self._scales, at)

    def put_d(self, d: Value) -> None:
        """Changes the block's own scale, given as int64."""
        self.e.store(self.e.b.trunc(d, I16), self._d)


def _bits(e: Emit, x: Value, at: int, n: int) -> Value:
    """x >> at & (1 << n) - 1."""
    return e.b.and_(e.b.lshr(x, e.i64(at)), e.i64((1 << n) - 1))


def _under(e: Emit, high: Value, low: Value, n: int) -> Value:
    """high << n | low."""
    return e.b.or_(e.b.shl(high, e.i64(n)), low)


def _odd(e: Emit, x: Value) -> Value:
    """2 x + 1: what scales of 3 or 4 bits stand for, in the kind's unit."""
    return _under(e, x, e.i64(1), 1)


def _entry(e: Emit, table: Value, place: Value) -> Value:
    return e.load(table, I32, e.mul(place, 4))


# --- types: a word is 8 inputs of a table, and their signs


def _iq2_xxs(e: Emit, c: _Column, words: Value, signs: Value) -> None:
    # A group: 4 places, then 4 times 7 bits of signs and 4 of scale.
    c.put_d(c.stored(0, I16))
    for g in range(SUPER):
        extra = c.stored(8 * g + 6, I32)
        entries = [_entry(e, words, c.stored(8 * g + 2 + j, I8)) for j in range(4)]
        c.put_words(g, [e.b.or_(x, _entry(e, signs, _bits(e, extra, 7 * j, 7))) for j, x in enumerate(entries)])
        c.put_scales(g, [_odd(e, _bits(e, extra, 28, 4))])


def _iq2_xs(e: Emit, c: _Column, words: Value, signs: Value) -> None:
    c.put_d(c.stored(0, I16))
    for g in range(SUPER):
        codes = [c.stored(8 * g + 2 + 2 * j, I16) for j in range(4)]
        c.put_words(
            g, [e.b.or_(_entry(e, words, _bits(e, q, 0, 9)), _entry(e, signs, _bits(e, q, 9, 7))) for q in codes]
        )
        _put_halves(e, c, g, c.stored(66 + g, I8))


def _iq2_s(e: Emit, c: _Column, words: Value, signs: Value) -> None:
    c.put_d(c.stored(0, I16))
    for g in range(SUPER):
        high = c.stored(66 + g, I8)
        places = [_under(e, _bits(e, high, 2 * j, 2), c.stored(4 * g + 2 + j, I8), 8) for j in range(4)]
        sets = [c.stored(4 * g + 34 + j, I8) for j in range(4)]
        c.put_words(g, [e.b.or_(_entry(e, words, x), _entry(e, signs, s)) for x, s in zip(places, sets, strict=True)])
        _put_halves(e, c, g, c.stored(74 + g, I8))


def _put_halves(e: Emit, c: _Column, group: int, both: Value) -> None:
    c.put_scales(group, [_odd(e, _bits(e, both, at, 4)) for at in (0, 4)])


def _of_fours(e: Emit, words: Value, places: Sequence[Value]) -> list[Value]:
    """8 places of 4 inputs -> 4 words."""
    entries = [_entry(e, words, place) for place in places]
    return [e.b.or_(a, e.b.shl(b, e.const(I32, 4))) for a, b in zip(entries[::2], entries[1::2], strict=True)]


def _iq3_xxs(e: Emit, c: _Column, words: Value, signs: Value) -> None:
    c.put_d(c.stored(0, I16))
    for g in range(SUPER):
        extra = c.stored(4 * g + 66, I32)
        entries = _of_fours(e, words, [c.stored(8 * g + 2 + i, I8) for i in range(8)])
        c.put_words(g, [e.b.or_(x, _entry(e, signs, _bits(e, extra, 7 * j, 7))) for j, x in enumerate(entries)])
        c.put_scales(g, [_odd(e, _bits(e, extra, 28, 4))])


def _iq3_s(e: Emit, c: _Column, words: Value, signs: Value) -> None:
    c.put_d(c.stored(0, I16))
    for g in range(SUPER):
        high = c.stored(66 + g, I8)
        places = [_under(e, _bits(e, high, i, 1), c.stored(8 * g + 2 + i, I8), 8) for i in range(8)]
        entries = _of_fours(e, words, places)
        c.put_words(g, [e.b.or_(x, _entry(e, signs, c.stored(4 * g + 74 + j, I8))) for j, x in enumerate(entries)])
        c.put_scales(g, [_odd(e, _bits(e, c.stored(106 + g // 2, I8), g % 2 * 4, 4))])


def _with_one_sign(e: Emit, word: Value, sign: Value) -> Value:
    """The word, all its signs set where the bit is."""
    is_set = e.b.icmp_unsigned("!=", sign, e.i64(0))
    return e.b.or_(word, e.b.select(is_set, e.const(I32, _ALL_SIGNS), e.const(I32, 0)))


def _iq1_s(e: Emit, c: _Column, words: Value, _: Value) -> None:
    # A group: 4 times 3 bits of place, 3 of scale, 1 of sign.
    c.put_d(c.stored(0, I16))
    for g in range(SUPER):
        high = c.stored(34 + 2 * g, I16)
        places = [_under(e, _bits(e, high, 3 * j, 3), c.stored(4 * g + 2 + j, I8), 8) for j in range(4)]
        c.put_words(g, [_with_one_sign(e, _entry(e, words, x), _bits(e, high, 15, 1)) for x in places])
        c.put_scales(g, [_odd(e, _bits(e, high, 12, 3))])


def _iq1_m(e: Emit, c: _Column, words: Value, _: Value) -> None:
    # Half bytes: 3 bits of place, 1 of sign. Words of scales: 4 of 3 bits, 4 bits of the block's own.
    scales = [c.stored(48 + 2 * i, I16) for i in range(4)]
    d = e.i64(0)
    for i, four in enumerate(scales):
        d = e.b.or_(d, e.b.shl(_bits(e, four, 12, 4), e.i64(4 * i)))
    c.put_d(d)
    for g in range(SUPER):
        halves = [_bits(e, c.stored(32 + 2 * g + j // 2, I8), j % 2 * 4, 4) for j in range(4)]
        places = [_under(e, _bits(e, x, 0, 3), c.stored(4 * g + j, I8), 8) for j, x in enumerate(halves)]
        c.put_words(
            g,
            [
                _with_one_sign(e, _entry(e, words, place), _bits(e, x, 3, 1))
                for place, x in zip(places, halves, strict=True)
            ],
        )
        c.put_scales(g, [_odd(e, _bits(e, scales[g // 2], g % 2 * 6 + 3 * i, 3)) for i in range(2)])


def _digits(e: Emit, fractions: Value, n: int) -> list[Value]:
    """The first n base-3 digits of bytes, each a fraction: 3 times it has a digit above its point."""
    wide, bytes_ = vec(I16, fractions.type.count), fractions.type
    left, out = e.b.zext(fractions, wide), []
    for _ in range(n):
        left = e.b.mul(left, e.const(wide, 3))
        out.append(e.b.trunc(e.b.lshr(left, e.const(wide, 8)), bytes_))
        left = e.b.and_(left, e.const(wide, 255))
    return out


def _twos(e: Emit, codes: Value) -> list[Value]:
    """Codes of 2 bits, one a byte -> words: 4 steps of 4 inputs one above the other."""
    steps = e.view(codes, vec(I32, codes.type.count // 4))
    steps = e.b.shl(steps, ir.Constant(steps.type, [i % 4 * 2 for i in range(steps.type.count)]))
    lanes = [e.lane(steps, i) for i in range(steps.type.count)]
    return [e.b.or_(e.b.or_(*lanes[i : i + 2]), e.b.or_(*lanes[i + 2 : i + 4])) for i in range(0, len(lanes), 4)]


def _tq1_0(e: Emit, c: _Column, _: Value, __: Value) -> None:
    # Of 32 bytes, digit i is group i; of the next 16, half a group; of the last 4, a step of the last half.
    groups = [_twos(e, digit) for digit in _digits(e, c.stored(0, vec(I8, 32)), 5)]
    halves = [_twos(e, digit) for digit in _digits(e, c.stored(32, vec(I8, 16)), 5)]
    steps = [e.view(digit, I32) for digit in _digits(e, c.stored(48, vec(I8, 4)), 4)]
    last = steps[0]
    for i, step in enumerate(steps[1:], 1):
        last = e.b.or_(last, e.b.shl(step, e.const(I32, 2 * i)))
    groups += [halves[0] + halves[1], halves[2] + halves[3], [*halves[4], last]]
    for g, words in enumerate(groups):
        c.put_words(g, words)
        c.put_scales(g, [c.stored(52, I16)])


def _body(name: str, column: Callable[[Emit, _Column, Value, Value], None]) -> Body:
    kind, (_, block_bytes) = KIND_OF[Q[name]], GGML_QUANT_SIZES[Q[name]]

    def pack(
        e: Emit, rows: Value, row_bytes: Value, n_panels: Value, n_blocks: Value, words: Value, signs: Value, out: Value
    ) -> None:
        def block(panel: Value, i: Value) -> None:
            to = e.add(out, e.mul(e.add(e.b.mul(panel, n_blocks), i), kind.panel_bytes(SUPER)))
            first = e.add(e.add(rows, e.b.mul(e.mul(panel, N_COLUMNS), row_bytes)), e.mul(i, block_bytes))

            def one(c: Value) -> None:
                column(e, _Column(e, kind, e.add(first, e.b.mul(c, row_bytes)), to, c), words, signs)

            e.each(N_COLUMNS, one)

        e.each(n_panels, lambda panel: e.each(n_blocks, lambda i: block(panel, i)))

    return pack


def _compiled(name: str, column: Callable[[Emit, _Column, Value, Value], None], features: Features) -> ObjectCode:
    return object_code(_body(name, column), 7, f"pack_{name.lower()}_{features.isa.name}", features)


_COLUMNS: Mapping[str, Callable[[Emit, _Column, Value, Value], None]] = MappingProxyType(
    {
        "IQ2_XXS": _iq2_xxs,
        "IQ2_XS": _iq2_xs,
        "IQ2_S": _iq2_s,
        "IQ3_XXS": _iq3_xxs,
        "IQ3_S": _iq3_s,
        "IQ1_S": _iq1_s,
        "IQ1_M": _iq1_m,
        "TQ1_0": _tq1_0,
    }
)
KERNELS: Mapping[str, Callable[[Features], ObjectCode]] = MappingProxyType(
    {name: partial(_compiled, name, column) for name, column in _COLUMNS.items()}
)
