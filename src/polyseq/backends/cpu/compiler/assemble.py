"""LLVM IR becomes object code for a named instruction set.

Enters: a body of emit.py and the features to use. Leaves: object code, or the same as assembly text. A set that is
not the best of the host is compiled as if the host had no more, so that tests and measurements see what such a CPU
would run.
"""

from __future__ import annotations

import platform
from typing import Any

import llvmlite.binding as llvm

from polyseq.backends.cpu.compiler.features import Features, InstructionSet, host, of_host
from polyseq.backends.cpu.compiler.object_code import ObjectCode
from polyseq.backends.cpu.ir.emit import Body, module_of

_X86 = ("x86_64", "AMD64")
# CPUs that have just what a set needs, for sets that the host lacks or is kept from using.
_CPU = {
    InstructionSet.AVX512_VNNI: "cascadelake",
    InstructionSet.AVX512: "skylake-avx512",
    InstructionSet.AVX2: "haswell",
    InstructionSet.GENERIC: "x86-64-v2",
}


def object_code(body: Body, n_args: int, name: str, features: Features) -> ObjectCode:
    """Pure. `body` as void name(int64, ...)."""
    module, machine = _module(body, n_args, name, features)
    return ObjectCode(name, machine.emit_object(module))


def assembly(body: Body, n_args: int, name: str, features: Features) -> str:
    """Pure. The same as text, also for sets that this CPU cannot execute."""
    module, machine = _module(body, n_args, name, features)
    text: str = machine.emit_assembly(module)
    return text


def _module(body: Body, n_args: int, name: str, features: Features) -> tuple[Any, Any]:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = _machine(features)
    # No passes over the IR: bodies are written as they shall run, and code generation finds what repeats. With all
    # passes the kernels are the same to a few instructions, and take twice as long to compile.
    module = llvm.parse_assembly(str(module_of(body, n_args, name)))
    module.triple = llvm.get_process_triple()
    module.data_layout = str(machine.target_data)
    return module, machine


def _machine(features: Features) -> Any:
    target = llvm.Target.from_default_triple()
    here = host()
    as_host = features == of_host(here) or features.isa == InstructionSet.EMULATED or platform.machine() not in _X86
    if as_host:
        has = llvm.get_host_cpu_features()
        cpu, flags = llvm.get_host_cpu_name(), sorted(name for name in has if has[name])
    else:
        cpu = _CPU[features.isa]
        flags = [name for name, on in (("avx512bf16", features.bf16), ("avxvnni", features.avx_vnni)) if on]
    return target.create_target_machine(cpu=cpu, features=",".join(f"+{flag}" for flag in flags), opt=3, jit=True)
