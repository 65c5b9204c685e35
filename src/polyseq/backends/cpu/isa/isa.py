"""What a linear kernel needs to know of an instruction set, and nothing else.

Kernels (gemm.py) multiply 4 codes of every column by 4 inputs of one row, many times: `add` once, `fold` where the sum
must move to a wider integer. All sets give the same integers, so they differ in speed only.
"""

from __future__ import annotations

from typing import Protocol

from polyseq.backends.cpu.ir.emit import Emit, Value
from polyseq.backends.cpu.panels.panel_kind import STEPS, FloatKind, PanelKind


class Isa(Protocol):
    """One instruction set. Vectors have `lanes` columns; codes and inputs come as i32 lanes of 4 bytes."""

    @property
    def lanes(self) -> int:
        """Columns of one register: 16 or 8."""
        ...

    def rows_at_once(self, weights: PanelKind | FloatKind) -> int:
        """Rows at once: their sums fit the registers beside what `prepare` makes of codes, or two inputs' numbers."""
        ...

    def n_wide(self, kind: PanelKind) -> int:
        """Registers of columns side by side, which share each load of an input."""
        ...

    @property
    def float_columns(self) -> int:
        """Columns at once where weights are numbers: 8, 16 or 32. Sums enough to hide the latency of an addition."""
        ...

    @property
    def byte_offset(self) -> int:
        """What `add` leaves in 8-bit codes, stored + 128: 128, or 0 where it takes them as signed."""
        ...

    def fold_every(self, bits: int) -> int:
        """Steps that a partial sum can take before it must be folded."""
        ...

    def chunk(self, kind: PanelKind) -> int:
        """Steps whose codes stay in registers while all rows use them."""
        ...

    @property
    def in_order(self) -> bool:
        """Whether a chunk's codes are loaded only once the products before are done, as registers are few."""
        ...

    def prepare(self, e: Emit, codes: Value, bits: int) -> tuple[Value, ...]:
        """Codes (unsigned, of so many bits) as `add` wants them: what is the same for all rows."""
        ...

    def add(self, e: Emit, partial: Value | None, codes: tuple[Value, ...], inputs: Value) -> Value:
        """partial + the dot products of 4 prepared codes and 4 inputs (signed), per column."""
        ...

    def fold(self, e: Emit, total: Value | None, partial: Value) -> Value:
        """total + partial, as i32 per column."""
        ...

    def lookup(self, e: Emit, table: tuple[int, ...], codes: Value) -> Value:
        """table[codes] of 4-bit codes, byte by byte."""
        ...

    def f16_to_f32(self, e: Emit, bits: Value) -> Value:
        """A vector of float16 bit patterns as float32."""
        ...


def sums_in_i16(bits: int) -> int:
    """Pure. How many steps' pairs of products (codes of so many bits, inputs in -127..127) fit an i16."""
    return min(STEPS, 32767 // (2 * 127 * (2**bits - 1)))
