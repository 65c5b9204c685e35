"""The few instructions that threads need to agree: atomics, a pause, sleeping until a word changes.

Enters: addresses as int64. Leaves: their IR. All atomics are sequentially consistent: they are few (some per op and
thread), so nothing is won by less.
"""

from __future__ import annotations

import platform
import sys

from polyseq.backends.cpu.ir.emit import I32, I64, VOID, Emit, Type, Value

# Linux's number of futex(2); a 32-bit word is slept on, of which the low half of an int64 serves (little-endian).
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine()) if sys.platform == "linux" else None
_WAIT_PRIVATE, _WAKE_PRIVATE = 128, 129
_ALL = 1 << 30
_NAP_US = 50


def load(e: Emit, address: Value) -> Value:
    """The word at an address, as other threads last left it."""
    return e.b.load_atomic(_pointer(e, address), "seq_cst", 8)


def store(e: Emit, address: Value, value: Value | int) -> None:
    """Writes the word at an address, for all threads to see."""
    e.b.store_atomic(e.i64(value), _pointer(e, address), "seq_cst", 8)


def add(e: Emit, address: Value, amount: Value | int) -> Value:
    """Adds to the word at an address; what it was before."""
    return e.atomic_add(address, amount)


def pause(e: Emit) -> None:
    """Tells the core that this thread only waits."""
    if platform.machine() in ("x86_64", "AMD64"):
        e.instruction("llvm.x86.sse2.pause", VOID)
    elif platform.machine() in ("aarch64", "arm64"):
        e.instruction("llvm.aarch64.hint", VOID, I32(1))


def give_way(e: Emit) -> None:
    """Lets another thread have this core."""
    _c_function(e, "sched_yield", I32)


def sleep_while(e: Emit, address: Value, seen: Value) -> None:
    """Sleeps while the word's low half is that of `seen`; may return early, so the caller looks again."""
    if _FUTEX is None:
        _c_function(e, "usleep", I32, I32(_NAP_US))
    else:
        _futex(e, address, _WAIT_PRIVATE, e.b.and_(seen, e.i64(0xFFFFFFFF)))


def wake(e: Emit, address: Value) -> None:
    """Wakes all who sleep on the word."""
    if _FUTEX is not None:
        _futex(e, address, _WAKE_PRIVATE, e.i64(_ALL))


def _futex(e: Emit, address: Value, what: int, value: Value) -> None:
    numbers = [e.i64(number) for number in (_FUTEX or 0, what, 0)]
    _c_function(e, "syscall", I64, numbers[0], address, numbers[1], value, *[numbers[2]] * 3)


def _c_function(e: Emit, name: str, returns: Type, *args: Value) -> None:
    """Calls a function of the C library."""
    e.instruction(name, returns, *args)


def _pointer(e: Emit, address: Value) -> Value:
    return e.b.inttoptr(address, I64.as_pointer())  # llvmlite's atomics take no other
