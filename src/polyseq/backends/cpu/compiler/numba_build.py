"""The one place that asks numba to compile: a Python function of int64s becomes object code.

Enters: a function whose parameters are all int64. Leaves: its symbol, LLVM IR (to see what it calls) and object file.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import cfunc, njit, types

F = TypeVar("F", bound=Callable[..., Any])


def build(function: Callable[..., None]) -> tuple[str, str, bytes]:
    """Pure. (symbol, LLVM IR, object file) of `void f(int64_t, ...)`."""
    n_args = len(inspect.signature(function).parameters)
    # NumPy's rules for division keep Python's ZeroDivisionError, which a kernel could not raise, out of the code.
    compile_ = cast(Any, cfunc)  # its types know none of the options that its documentation names
    built = compile_(types.void(*[types.int64] * n_args), nopython=True, error_model="numpy", forceinline=True)(
        function
    )
    library = built._library  # numba offers object code only to its own cache
    return built.native_name, built.inspect_llvm(), library._get_compiled_object()


def part(function: F) -> F:
    """A function that kernels are made of: it is put into its caller's code, so nothing is left that could raise.

    Parameters are int64, or f32 where they are annotated as float. It is compiled for these types only: left to itself,
    numba would do it again for every mixture of integer types that callers come with.
    """
    compile_ = cast(Any, njit)
    options = {"error_model": "numpy", "forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    annotations = [p.annotation for p in inspect.signature(function).parameters.values()]
    signature = tuple(types.float32 if a in (float, "float") else types.int64 for a in annotations)
    made: Any = compile_(**options)(function)
    compile_for = made.compile
    made.compile = lambda _: compile_for(signature)
    return cast(F, made)
