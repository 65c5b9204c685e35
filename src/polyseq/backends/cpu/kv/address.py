"""Where a head's K or V of a block lies, as kernels compute it (the picture is in layout.py)."""

from __future__ import annotations

from polyseq.backends.cpu.ir.emit import Emit, Value
from polyseq.backends.cpu.kv.layout import BUNDLE


def block_address(e: Emit, head: Value, number: Value, n_bytes: Value, bundle_bytes: Value) -> Value:
    """The address in block `number` (int64), where `head` is that in block 0 and each block has `n_bytes` of it."""
    bundle = e.mul(e.b.lshr(number, e.i64(BUNDLE.bit_length() - 1)), bundle_bytes)
    return e.add(e.add(head, bundle), e.mul(e.b.and_(number, e.i64(BUNDLE - 1)), n_bytes))
