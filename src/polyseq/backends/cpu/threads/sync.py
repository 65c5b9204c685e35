"""The few instructions that threads need to agree: atomics, a pause, sleeping until a word changes, a call by address.

Enters: addresses as int64. Leaves: functions that numba inlines into the executor. All atomics are sequentially
consistent: they are few (some per op and thread), so nothing is won by less.
"""

from __future__ import annotations

import platform
import sys
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from polyseq.backends.cpu.compiler.numba_build import part

_I32, _I64, _VOID = ir.IntType(32), ir.IntType(64), ir.VoidType()
_INT, _NOTHING = types.int64, types.void

# Linux's number of futex(2); a 32-bit word is slept on, of which the low half of an int64 serves (little-endian).
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine()) if sys.platform == "linux" else None
_WAIT_PRIVATE, _WAKE_PRIVATE = 128, 129
_ALL = 1 << 30


def _pointer(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, _I64.as_pointer())


def _declared(builder: Any, name: str, returns: Any, arguments: list[Any]) -> Any:
    if name in builder.module.globals:
        return builder.module.globals[name]
    return ir.Function(builder.module, ir.FunctionType(returns, arguments), name)


@intrinsic
def peek(typing: Any, address: Any) -> Any:
    """The word at an address that no other thread is changing."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_pointer(builder, args[0]), align=8)

    return _INT(_INT), build


@intrinsic
def poke(typing: Any, address: Any, value: Any) -> Any:
    """Writes the word at an address that no other thread is reading."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], _pointer(builder, args[0]), align=8)
        return context.get_dummy_value()

    return _NOTHING(_INT, _INT), build


@intrinsic
def load(typing: Any, address: Any) -> Any:
    """The word at an address, as other threads last left it."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(builder, args[0]), "seq_cst", 8)

    return _INT(_INT), build


@intrinsic
def store(typing: Any, address: Any, value: Any) -> Any:
    """Writes the word at an address, for all threads to see."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], _pointer(builder, args[0]), "seq_cst", 8)
        return context.get_dummy_value()

    return _NOTHING(_INT, _INT), build


@intrinsic
def add(typing: Any, address: Any, amount: Any) -> Any:
    """Adds to the word at an address; what it was before."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _pointer(builder, args[0]), args[1], "seq_cst")

    return _INT(_INT, _INT), build


@intrinsic
def pause(typing: Any) -> Any:
    """Tells the core that this thread only waits."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if platform.machine() in ("x86_64", "AMD64"):
            builder.call(_declared(builder, "llvm.x86.sse2.pause", _VOID, []), [])
        elif platform.machine() in ("aarch64", "arm64"):
            builder.call(_declared(builder, "llvm.aarch64.hint", _VOID, [_I32]), [ir.Constant(_I32, 1)])
        return context.get_dummy_value()

    return _NOTHING(), build


@intrinsic
def call_unit(typing: Any, unit: Any, record: Any, step: Any, u0: Any, u1: Any, scratch: Any) -> Any:
    """Calls void unit(record, step, u0, u1, scratch) by its address."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_VOID, [_I64] * 5)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return _NOTHING(*[_INT] * 6), build


_syscall = types.ExternalFunction("syscall", _INT(*[_INT] * 7))
_sched_yield = types.ExternalFunction("sched_yield", types.int32())
_usleep = types.ExternalFunction("usleep", types.int32(types.uint32))
_NAP_US = 50


@part
def give_way() -> None:
    """Lets another thread have this core."""
    _sched_yield()


def _futex_wait(address: int, seen: int) -> None:
    _syscall(_FUTEX, address, _WAIT_PRIVATE, seen & 0xFFFFFFFF, 0, 0, 0)


def _futex_wake(address: int) -> None:
    _syscall(_FUTEX, address, _WAKE_PRIVATE, _ALL, 0, 0, 0)


def _nap(address: int, seen: int) -> None:
    _usleep(_NAP_US)


def _nothing(address: int) -> None:
    pass


# Sleeps while the word's low half is `seen`; may return early, so the caller looks again.
sleep_while = part(_nap if _FUTEX is None else _futex_wait)
# Wakes all who sleep on the word.
wake = part(_nothing if _FUTEX is None else _futex_wake)
