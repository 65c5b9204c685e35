"""Kernels that take blocks apart: the stored values on every instruction set, every byte of a panel, none beside it."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import quants
from gguf.constants import GGMLQuantizationType

from cpu_calls import RUNNABLE, call
from polyseq.backends.cpu.compiler.features import Features, InstructionSet
from polyseq.backends.cpu.panels import blocks, compiled_blocks
from polyseq.backends.cpu.panels.block_tables import COMPILED, tables
from polyseq.backends.cpu.panels.panel_kind import KIND_OF
from polyseq.backends.cpu.panels.panels import Panels, panels_of, unpack
from polyseq.backends.cpu.panels.places import Places
from polyseq.backends.cpu.words.aligned import address
from stored_rows import tensor

GUARD = 4096  # bytes on either side


def test_each_type_with_codes_is_taken_apart_in_one_way() -> None:
    assert set(compiled_blocks.KERNELS) == COMPILED
    assert sorted([*COMPILED, *blocks._SPLIT]) == sorted(qtype.name for qtype in KIND_OF)


@pytest.mark.parametrize(
    "using", [u for u in RUNNABLE if u.isa != InstructionSet.EMULATED], ids=lambda using: str(using.isa)
)
@pytest.mark.parametrize("name", sorted(COMPILED))
def test_kernels_write_whole_panels_and_nothing_else(name: str, using: Features) -> None:
    info, rows = tensor(GGMLQuantizationType[name], 48, 768)
    n_panels, n_bytes = panels_of(info)
    made = tables(name)
    for poison in (0x00, 0xA5):
        memory = np.full(2 * GUARD + n_panels * n_bytes, poison, np.uint8)
        data = memory[GUARD:-GUARD].reshape(n_panels, n_bytes)
        args = (address(rows), rows.shape[1], n_panels, 3, address(made.words), address(made.signs), address(data))
        call(f"panels.compiled_blocks.{name}", *args, using=using)
        panels = Panels(KIND_OF[info.qtype], *info.shape, data)
        np.testing.assert_array_equal(unpack(panels), quants.dequantize(rows, info.qtype))
        assert (memory[:GUARD] == poison).all() and (memory[-GUARD:] == poison).all()


def test_a_models_panels_lie_one_after_another() -> None:
    """So that huge pages hold them; whoever asks for a place again, as a second thread may, gets memory of its own."""
    shapes = {"a": (3, 320), "b": (1, 100), "c": (7, 64)}
    places = Places(shapes)
    found = {name: places.take(name) for name in ("b", "c", "a")}
    starts = {name: place.ctypes.data for name, place in found.items()}
    assert {name: place.shape for name, place in found.items()} == shapes
    assert (starts["b"] - starts["a"], starts["c"] - starts["b"]) == (960, 128) and starts["a"] % 64 == 0
    again = places.take("b")
    assert again.shape == shapes["b"] and not np.shares_memory(again, found["b"])
