"""Numbers in memory for numba kernels: a kernel knows addresses, and these read and write what lies there.

Enters: the address of an array and an index into it. Leaves: an int64, or a float32 for the `f32` pair. Nothing is
checked. NumPy arrays would do the same, but bring code that allocates and raises into a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polyseq.backends.cpu.emit import F32, I8, I16, I32, I64, Emit, F32x16, Type, Value, intrinsic_of

_BYTES = {I8: 1, I16: 2, I32: 4, I64: 8, F32: 4}


def _place(e: Emit, address: Value, i: Value, kind: Type) -> Value:
    return e.add(address, e.mul(i, _BYTES[kind]))


def _getter(kind: Type, *, signed: bool = True) -> Callable[..., Any]:
    def get(e: Emit, address: Value, i: Value) -> Value:
        value = e.load(_place(e, address, i, kind), kind)
        if kind in (I64, F32):
            return value
        return e.b.sext(value, I64) if signed else e.b.zext(value, I64)

    return intrinsic_of(get, 2, returns="float32" if kind == F32 else "int64")


def _putter(kind: Type) -> Callable[..., Any]:
    def put(e: Emit, address: Value, i: Value, value: Value) -> None:
        e.store(value if kind in (I64, F32) else e.b.trunc(value, kind), _place(e, address, i, kind))

    return intrinsic_of(put, 3, floats=(2,) if kind == F32 else ())


get_u8, get_u16 = _getter(I8, signed=False), _getter(I16, signed=False)
get_i32, get_i64, get_f32 = _getter(I32), _getter(I64), _getter(F32)
put_u8, put_u16, put_i32, put_i64 = _putter(I8), _putter(I16), _putter(I32), _putter(I64)
put_f32 = _putter(F32)


def copy_row(e: Emit, to: Value, source: Value, n: Value) -> None:
    """n f32, 16 at a time as long as there are."""
    n_whole = e.b.lshr(n, e.i64(4))
    e.loop(n_whole, [], lambda i, _: _copy_one(e, to, source, e.mul(i, 64), F32x16))
    start = e.mul(n_whole, 64)
    left = e.b.and_(n, e.i64(15))
    e.loop(left, [], lambda i, _: _copy_one(e, to, source, e.add(start, e.mul(i, 4)), F32))


def _copy_one(e: Emit, to: Value, source: Value, offset: Value, kind: Type) -> list[Value]:
    e.store(e.load(source, kind, offset), to, offset)
    return []


copy_f32 = intrinsic_of(copy_row, 3)
# Calls the C function of n int64s at the address given first.
call_8, call_10 = (intrinsic_of(lambda e, f, *args: e.call(f, *args), 1 + n) for n in (8, 10))
