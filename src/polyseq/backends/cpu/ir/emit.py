"""The words kernels are written in: LLVM IR, named so that a NumPy reader can follow.

Enters: a function `body(e, *values)` that says, with an `Emit`, what to do. Leaves: `module_of(body, ...)`, a module
with one C function, for assemble.py to compile.

Addresses are int64 values and offsets are bytes. A vector is `F32x16` and the like; where registers are narrower, LLVM
splits it. Arithmetic is exactly what is written: LLVM may neither reorder sums nor fuse a product into a sum, so a
row's result does not depend on the shape of the loop around it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

Type = Any  # an llvmlite type
Value = Any  # an llvmlite value
Body = Callable[..., Value | None]  # body(e, *values)

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
VOID = ir.VoidType()
_PTR = ir.PointerType()


def vec(element: Type, n: int) -> Type:
    """Pure. The type of n elements side by side."""
    return ir.VectorType(element, n)


I8x16, I16x16, I32x16, F32x16 = (vec(element, 16) for element in (I8, I16, I32, F32))

# 2^f for |f| <= 1/2: least relative error of all polynomials of degree 6 (2e-9 before rounding).
_EXP2 = (
    0.00015345811245278025,
    0.0013399931213838485,
    0.009618488959939178,
    0.055503287769834556,
    0.24022646890607965,
    0.6931472057372564,
    1.00000000055417,
)


def _name(kind: Type) -> str:
    """Pure. A type as LLVM spells it in the name of an intrinsic: v16f32, i32."""
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{_name(kind.element)}"
    return {"float": "f32", "half": "f16"}.get(str(kind), str(kind))


class Emit:
    """Writes instructions at the end of one function under construction."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.b = builder

    # --- values

    def const(self, kind: Type, value: float) -> Value:
        """A number of this type, in every lane of a vector type. Floats are rounded to float32 first."""
        number = float(np.float32(value)) if _name(kind).endswith("f32") else value
        return ir.Constant(kind, [number] * kind.count if isinstance(kind, ir.VectorType) else number)

    def i64(self, value: Value | int) -> Value:
        """An int64: a Python int becomes a constant."""
        return ir.Constant(I64, value) if isinstance(value, int) else value

    def splat(self, scalar: Value, n: int = 16) -> Value:
        """n copies of a scalar."""
        kind = vec(scalar.type, n)
        one = self.b.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(I32, 0))
        return self.b.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(vec(I32, n), [0] * n))

    def take(self, vector: Value, lanes: Sequence[int]) -> Value:
        """vector[lanes], lanes known now."""
        indexes = ir.Constant(vec(I32, len(lanes)), list(lanes))
        return self.b.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), indexes)

    def join(self, low: Value, high: Value) -> Value:
        """np.concatenate((low, high))."""
        n = low.type.count
        return self.b.shuffle_vector(low, high, ir.Constant(vec(I32, 2 * n), list(range(2 * n))))

    def lane(self, vector: Value, i: int) -> Value:
        """vector[i]."""
        return self.b.extract_element(vector, ir.Constant(I32, i))

    def view(self, value: Value, kind: Type) -> Value:
        """The same bits as another type of the same size."""
        return self.b.bitcast(value, kind)

    # --- addresses and memory

    def add(self, a: Value, b: Value | int) -> Value:
        """a + b, for addresses and counts."""
        return a if isinstance(b, int) and b == 0 else self.b.add(a, self.i64(b))

    def mul(self, a: Value, b: Value | int) -> Value:
        """a * b, for addresses and counts."""
        return self.b.mul(a, self.i64(b))

    def least(self, a: Value, b: Value) -> Value:
        """min(a, b) of two counts."""
        return self.b.select(self.b.icmp_signed("<", a, b), a, b)

    def load(self, address: Value, kind: Type, offset: Value | int = 0) -> Value:
        """The value at address + offset; needs no alignment."""
        return self.b.load(self._pointer(address, offset), typ=kind, align=1)

    def load_splat(self, address: Value, element: Type, offset: Value | int = 0, n: int = 16) -> Value:
        """n copies of the one element at address + offset."""
        return self.splat(self.load(address, element, offset), n)

    def store(self, value: Value, address: Value, offset: Value | int = 0) -> None:
        """Changes memory at address + offset."""
        self.b.store(value, self._pointer(address, offset), align=1)

    def prefetch(self, address: Value, offset: Value | int = 0) -> None:
        """Asks for the cache line at address + offset; any address will do."""
        flags = [ir.Constant(I32, flag) for flag in (0, 3, 1)]  # to read, keep in all caches, data
        self._call("llvm.prefetch.p0", VOID, self._pointer(address, offset), *flags)

    def opaque(self, number: Value, after: Sequence[Value] = ()) -> Value:
        """The same number, about which nothing is known any more, and which comes after these vectors were computed.

        No instruction comes of it; code that needs the number is not moved before code that computes the vectors.
        """
        kinds = [I64, *(x.type for x in after)]
        return self.b.asm(ir.FunctionType(I64, kinds), "", "=r,0" + ",x" * len(after), [number, *after], False)

    def _pointer(self, address: Value, offset: Value | int) -> Value:
        return self.b.inttoptr(self.add(address, offset), _PTR)

    def _typed_pointer(self, address: Value) -> Value:
        return self.b.inttoptr(address, I64.as_pointer())  # llvmlite's atomics take no other

    # --- control

    def loop(
        self,
        n: Value | int,
        carried: Sequence[Value],
        body: Callable[[Value, list[Value]], Sequence[Value]],
    ) -> list[Value]:
        """for i in range(n): carried = body(i, carried); returns what the last round gave."""
        before, around, after = self.b.block, self._block("loop"), self._block("done")
        n = self.i64(n)
        self.b.cbranch(self.b.icmp_signed(">", n, self.i64(0)), around, after)
        self.b.position_at_end(around)
        i = self.b.phi(I64)
        phis = [self.b.phi(value.type) for value in carried]
        new = list(body(i, list(phis)))
        end = self.b.block
        i_next = self.b.add(i, self.i64(1))
        for phi, first, again in zip([i, *phis], [self.i64(0), *carried], [i_next, *new], strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(again, end)
        self.b.cbranch(self.b.icmp_signed("<", i_next, n), around, after)
        self.b.position_at_end(after)
        out = [self.b.phi(value.type) for value in carried]
        for phi, first, again in zip(out, carried, new, strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(again, end)
        return out

    def each(self, n: Value | int, body: Callable[[Value], None]) -> None:
        """for i in range(n): body(i)."""

        def once(i: Value, _: list[Value]) -> list[Value]:
            body(i)
            return []

        self.loop(n, [], once)

    def when(self, condition: Value, body: Callable[[], None]) -> None:
        """if condition: body()."""
        inside, after = self._block("when"), self._block("after")
        self.b.cbranch(condition, inside, after)
        self.b.position_at_end(inside)
        body()
        self.b.branch(after)
        self.b.position_at_end(after)

    def match(
        self, value: Value, cases: Sequence[int] | Mapping[int, Sequence[int]], body: Callable[[int], None]
    ) -> None:
        """body(case) for the one case, known now, that value equals; nothing where it equals none.

        A mapping gives the values that each case stands for.
        """
        after = self._block("after")
        switch = self.b.switch(value, after)
        named = cases if isinstance(cases, Mapping) else {case: (case,) for case in cases}
        for case, values in named.items():
            block = self._block(f"case{case}")
            for one in values:
                switch.add_case(self.i64(one), block)
            self.b.position_at_end(block)
            body(case)
            self.b.branch(after)
        self.b.position_at_end(after)

    def call(self, address: Value, *args: Value) -> None:
        """Calls the C function of int64s, returning nothing, at this address."""
        kind = ir.FunctionType(VOID, [I64] * len(args))
        self.b.call(self.b.inttoptr(address, kind.as_pointer()), args)

    def _block(self, name: str) -> Value:
        return self.b.append_basic_block(name)

    # --- float32 vectors and scalars

    def fma(self, x: Value, y: Value, z: Value) -> Value:
        """x * y + z, rounded once where the CPU can (all but old x86), the same way everywhere on one CPU."""
        return self._same("fmuladd", x, y, z)

    def maximum(self, x: Value, y: Value) -> Value:
        """np.fmax(x, y): NaN gives way to a number."""
        return self._same("maxnum", x, y)

    def minimum(self, x: Value, y: Value) -> Value:
        """np.fmin(x, y)."""
        return self._same("minnum", x, y)

    def abs(self, x: Value) -> Value:
        """np.abs(x)."""
        return self._same("fabs", x)

    def rint(self, x: Value) -> Value:
        """np.rint(x): halves go to the even neighbour."""
        return self._same("rint", x)

    def sqrt(self, x: Value) -> Value:
        """np.sqrt(x)."""
        return self._same("sqrt", x)

    def exp2(self, x: Value) -> Value:
        """2^x of an f32 vector, relative error below 2e-7; x is clipped to [-126, 127]; NaN gives some number."""
        kind = x.type
        x = self.minimum(self.maximum(x, self.const(kind, -126.0)), self.const(kind, 127.0))
        whole = self.rint(x)
        power = self.exp2_fraction(self.b.fsub(x, whole))
        integer = vec(I32, kind.count)
        exponent = self.b.shl(self.b.fptosi(whole, integer), self.const(integer, 23))
        return self.view(self.b.add(self.view(power, integer), exponent), kind)

    def exp2_fraction(self, part: Value) -> Value:
        """2^part of an f32 vector with |part| <= 1/2."""
        power = self.const(part.type, _EXP2[0])
        for coefficient in _EXP2[1:]:
            power = self.fma(power, part, self.const(part.type, coefficient))
        return power

    def exp(self, x: Value) -> Value:
        """e^x of an f32 vector, through exp2."""
        return self.exp2(self.b.fmul(x, self.const(x.type, np.log2(np.e))))

    def sum(self, x: Value) -> Value:
        """x.sum() of a vector. Floats are added in halves (0 + n/2, ...), the same order everywhere."""
        add = self.b.fadd if x.type.element == F32 else self.b.add
        while (n := x.type.count) > 1:
            x = add(self.take(x, range(n // 2)), self.take(x, range(n // 2, n)))
            if n == 2:
                break
        return self.lane(x, 0)

    def max(self, x: Value) -> Value:
        """np.fmax.reduce(x) of an f32 vector."""
        while (n := x.type.count) > 1:
            x = self.maximum(self.take(x, range(n // 2)), self.take(x, range(n // 2, n)))
        return self.lane(x, 0)

    def max_unsigned(self, x: Value) -> Value:
        """x.max() of unsigned integers."""
        return self._call(f"llvm.vector.reduce.umax.{_name(x.type)}", x.type.element, x)

    # --- narrow formats

    def f16_to_f32(self, bits: Value) -> Value:
        """A vector of float16 bit patterns (i16) as float32, by one instruction (F16C, NEON).

        Elsewhere LLVM would call the C library: use `f16_to_f32_spelt` there.
        """
        return self.b.fpext(self.view(bits, vec(F16, bits.type.count)), vec(F32, bits.type.count))

    def f16_to_f32_spelt(self, bits: Value) -> Value:
        """The same in plain instructions: the bits moved into place, and the exponent put right by a product."""
        wide, kind = vec(I32, bits.type.count), vec(F32, bits.type.count)
        bits = self.b.zext(bits, wide)
        size = self.b.shl(self.b.and_(bits, self.const(wide, 0x7FFF)), self.const(wide, 13))
        number = self.view(self.b.fmul(self.view(size, kind), self.const(kind, 2.0**112)), wide)
        infinite = self.b.icmp_unsigned(">=", size, self.const(wide, 0x7C00 << 13))
        number = self.b.select(infinite, self.b.or_(size, self.const(wide, 0x7F800000)), number)
        sign = self.b.shl(self.b.and_(bits, self.const(wide, 0x8000)), self.const(wide, 16))
        return self.view(self.b.or_(number, sign), kind)

    def bf16_to_f32(self, bits: Value) -> Value:
        """A vector of bfloat16 bit patterns (i16) as float32."""
        wide = vec(I32, bits.type.count)
        return self.view(self.b.shl(self.b.zext(bits, wide), self.const(wide, 16)), vec(F32, bits.type.count))

    def f32_to_bf16(self, x: Value) -> Value:
        """An f32 vector rounded to bfloat16 bit patterns (i16), halves to even. NaN may become infinity."""
        wide = vec(I32, x.type.count)
        bits = self.view(x, wide)
        odd = self.b.and_(self.b.lshr(bits, self.const(wide, 16)), self.const(wide, 1))
        rounded = self.b.add(bits, self.b.add(odd, self.const(wide, 0x7FFF)))
        return self.b.trunc(self.b.lshr(rounded, self.const(wide, 16)), vec(I16, x.type.count))

    # --- what threads share

    def atomic_add(self, address: Value, value: Value | int) -> Value:
        """Changes the int64 at address by value; returns what it was."""
        return self.b.atomic_rmw("add", self._pointer(address, 0), self.i64(value), "seq_cst")

    def atomic_exchange(self, address: Value, value: Value | int) -> Value:
        """Changes the int64 at address to value; returns what it was."""
        return self.b.atomic_rmw("xchg", self._pointer(address, 0), self.i64(value), "seq_cst")

    def atomic_load(self, address: Value) -> Value:
        """The int64 at address, with everything written before it was stored there."""
        return self.b.load_atomic(self._typed_pointer(address), "acquire", 8)

    def atomic_store(self, address: Value, value: Value | int) -> None:
        """Changes the int64 at address, after everything written so far."""
        self.b.store_atomic(self.i64(value), self._typed_pointer(address), "release", 8)

    # --- instructions by name

    def instruction(self, name: str, returns: Type, *args: Value) -> Value:
        """An instruction by LLVM's name for it, such as llvm.x86.avx2.pmadd.wd."""
        return self._call(name, returns, *args)

    def _same(self, name: str, *args: Value) -> Value:
        return self._call(f"llvm.{name}.{_name(args[0].type)}", args[0].type, *args)

    def _call(self, name: str, returns: Type, *args: Value) -> Value:
        module = self.b.module
        if name not in module.globals:
            ir.Function(module, ir.FunctionType(returns, [arg.type for arg in args]), name)
        return self.b.call(module.globals[name], args)


def module_of(body: Body, n_args: int, name: str) -> ir.Module:
    """Pure. `body` as the only function of a module: void name(int64, ...)."""
    module = ir.Module(name=name)
    function = ir.Function(module, ir.FunctionType(VOID, [I64] * n_args), name)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    body(Emit(builder), *function.args)
    builder.ret_void()
    return module
