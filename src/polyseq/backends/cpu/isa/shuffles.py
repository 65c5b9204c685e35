"""Tables of 16 bytes: looked up by a byte shuffle where there is one, by selections elsewhere."""

from __future__ import annotations

from llvmlite import ir

from polyseq.backends.cpu.ir.emit import I8, Emit, Value, vec


def lookup_bytes(e: Emit, shuffle: str, table: tuple[int, ...], codes: Value) -> Value:
    """table[codes] by pshufb, which looks up within each 16 bytes: the table is repeated."""
    kind = vec(I8, 4 * codes.type.count)
    entries = ir.Constant(kind, list(table) * (kind.count // 16))
    return e.view(e.instruction(shuffle, kind, entries, e.view(codes, kind)), codes.type)


def lookup_by_selection(e: Emit, table: tuple[int, ...], codes: Value) -> Value:
    """table[codes] in plain instructions: each bit of a code halves what is left to choose from."""
    words, kind = codes.type, vec(I8, 4 * codes.type.count)
    codes = e.view(codes, kind)
    left = [e.const(kind, entry) for entry in table]
    for bit in range(4):
        on = e.b.icmp_unsigned("!=", e.b.and_(codes, e.const(kind, 1 << bit)), e.const(kind, 0))
        left = [e.b.select(on, odd, even) for even, odd in zip(left[::2], left[1::2], strict=True)]
    return e.view(left[0], words)
