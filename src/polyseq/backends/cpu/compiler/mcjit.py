"""Object code becomes functions of this process, by LLVM: for systems that elf.py does not know."""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm

from polyseq.backends.cpu.compiler.object_code import ObjectCode


class McjitLoader:
    """Keeps what it has loaded for as long as it lives."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self._objects: list[Any] = []  # the engine reads them

    def load(self, code: ObjectCode) -> int:
        """Changes the process: the address of the code's function. Raises ValueError for code without it."""
        file = llvm.ObjectFileRef.from_data(code.data)
        self._engine.add_object_file(file)
        self._objects.append(file)
        self._engine.finalize_object()
        address: int = self._engine.get_function_address(code.symbol)
        if not address:
            raise ValueError(f"object code without its function {code.symbol}")
        return address
