"""The words of emit.py mean what NumPy's do: each one run on numbers that would show a difference."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import llvmlite.binding as llvm
import numpy as np
import pytest
from numpy.typing import NDArray

from polyseq.backends.cpu.compiler.assemble import object_code
from polyseq.backends.cpu.compiler.features import features
from polyseq.backends.cpu.ir.acts import ACTIVATIONS
from polyseq.backends.cpu.ir.emit import I16, Emit, F32x16, I16x16, I32x16, Value, vec
from polyseq.backends.cpu.words.aligned import address, zeros
from polyseq.backends.reference.activations import gelu, silu

F32 = NDArray[np.float32]


def run(body: Callable[..., None], *args: int, name: str = "tested") -> None:
    """Compiles a body of int64s and calls it once."""
    code = object_code(body, len(args), name, features())
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    file = llvm.ObjectFileRef.from_data(code.data)
    engine.add_object_file(file)
    engine.finalize_object()
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(args))
    kind(engine.get_function_address(name))(*args)


def mapped(word: Callable[[Emit, Value], Value], x: NDArray[np.generic], out_dtype: str, kind: Value) -> NDArray:
    """The word applied to an array, 16 numbers at a time."""
    source = zeros((-(-len(x) // 16) * 16,), x.dtype)
    source[: len(x)] = x
    out = zeros(source.shape, out_dtype)

    def body(e: Emit, n: Value, at: Value, to: Value) -> None:
        def sixteen(i: Value) -> None:
            value = word(e, e.load(at, kind, e.mul(i, 16 * x.itemsize)))
            e.store(value, to, e.mul(i, 16 * out.itemsize))

        e.each(n, sixteen)

    run(body, len(source) // 16, address(source), address(out))
    return out[: len(x)]


def test_exp2() -> None:
    x = np.linspace(-126, 127, 200_001).astype(np.float32)
    got = mapped(lambda e, v: e.exp2(v), x, "f4", F32x16)
    assert np.abs(got / np.exp2(x.astype(np.float64)) - 1).max() < 2e-7
    ends = mapped(lambda e, v: e.exp2(v), np.array([-1e30, 1e30, -np.inf, 0], np.float32), "f4", F32x16)
    np.testing.assert_array_equal(ends, 2.0 ** np.array([-126, 127, -126, 0]))


@pytest.mark.parametrize("spelt", [False, True])
def test_every_float16(spelt: bool) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    word = Emit.f16_to_f32_spelt if spelt else Emit.f16_to_f32
    got = mapped(word, bits, "f4", I16x16)
    np.testing.assert_array_equal(got, bits.view(np.float16).astype(np.float32))


def test_bf16_there_and_back() -> None:
    x = np.concatenate((np.random.default_rng(0).normal(0, 3, 1000), [1.00390625, 1.01171875, -0.0, np.inf]))
    x = x.astype(np.float32)
    bits = mapped(lambda e, v: e.f32_to_bf16(v), x, "u2", F32x16)
    back = mapped(lambda e, v: e.bf16_to_f32(v), bits, "f4", I16x16)
    finite = np.isfinite(x)
    assert (np.abs(back[finite] - x[finite]) <= np.abs(x[finite]) / 256).all()
    # Halves go to the even neighbour: 1 + 1/256 down, 1 + 3/256 up.
    assert (back[1000], back[1001], back[1003]) == (1.0, 1.015625, np.inf)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    x = np.concatenate((np.linspace(-30, 30, 5001), [-1e4, 1e4, 0])).astype(np.float32)
    got = mapped(lambda e, v: ACTIVATIONS[name](e, v), x, "f4", F32x16)
    wide = x.astype(np.float64)
    with np.errstate(over="ignore"):
        y = 2 * np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
        want = {
            "silu": silu(x),
            "gelu": gelu(x),
            "gelu_tanh": wide / (1 + np.exp(-np.clip(y, -80, 80))),
        }[name]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-30)
    assert np.isnan(mapped(lambda e, v: ACTIVATIONS[name](e, v), np.array([np.nan], np.float32), "f4", F32x16)[0])


def test_sums_and_maxima() -> None:
    x = np.random.default_rng(0).normal(0, 1, 16).astype(np.float32)
    out = zeros((4,), np.float32)

    def body(e: Emit, at: Value, to: Value) -> None:
        v = e.load(at, F32x16)
        e.store(e.sum(v), to)
        e.store(e.max(v), to, 4)
        e.store(e.b.sitofp(e.sum(e.b.fptosi(e.b.fmul(v, e.const(F32x16, 100)), I32x16)), v.type.element), to, 8)
        e.store(e.lane(e.take(e.join(v, v), range(3, 32, 2)), 7), to, 12)

    source = zeros((16,), np.float32)
    source[:] = x
    run(body, address(source), address(out))
    halves = x
    while len(halves) > 1:
        halves = halves[: len(halves) // 2] + halves[len(halves) // 2 :]
    np.testing.assert_array_equal(out, [halves[0], x.max(), (x * 100).astype(np.int32).sum(), np.tile(x, 2)[17]])


def test_loops_branches_and_atomics() -> None:
    out = zeros((8,), np.int64)

    def body(e: Emit, n: Value, to: Value) -> None:
        (total,) = e.loop(n, [e.i64(5)], lambda i, c: [e.add(c[0], i)])
        e.store(total, to)
        e.when(e.b.icmp_signed(">", n, e.i64(2)), lambda: e.store(e.i64(1), to, 8))
        e.match(n, {30: (3, 30), 4: (4,)}, lambda case: e.store(e.i64(case), to, 16))
        before = e.atomic_add(e.add(to, 24), n)
        e.store(e.add(before, e.atomic_exchange(e.add(to, 32), 9)), to, 40)
        e.atomic_store(e.add(to, 48), 7)
        e.store(e.atomic_load(e.add(to, 48)), to, 56)

    run(body, 3, address(out))
    assert out.tolist() == [8, 1, 30, 3, 9, 0, 7, 7]
    run(body, 0, address(out))
    assert out.tolist() == [5, 1, 30, 3, 9, 12, 7, 7]


def test_vectors_of_other_widths() -> None:
    out = zeros((8,), np.int16)

    def body(e: Emit, to: Value) -> None:
        e.store(e.b.add(e.load_splat(to, I16, 2, n=8), e.const(vec(I16, 8), 3)), to)

    out[1] = 4
    run(body, address(out))
    assert out.tolist() == [7] * 8
