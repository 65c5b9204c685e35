"""How weights lie in memory for the linear kernels: panels of 16 output columns, in one of a few kinds.

A panel holds 16 rows of a weight matrix ("columns" of the output) for all inputs, group by group of 32 inputs, and is
walked once from its first byte to its last. Within a group a "step" is 4 inputs, what one 32-bit lane of a dot product
takes; steps 0..3 are the first 16 inputs, steps 4..7 the last 16.

    one group      codes                   [64-byte vectors][16 columns][4 inputs]
                   8 bits                  vector i = step i, as code + 128
                   4 bits                  vector i = step i in the low halves of bytes, step i + 4 in the high ones
                   4 bits, neighbours      vector i = step 2i in the low halves of bytes, step 2i + 1 in the high ones
                   2 bits                  vector i = steps 4i .. 4i + 3 at bits 0, 2, 4, 6
                   1 bit                   one vector, step i at bit i
                   3, 5 and 6 bits         2 + 1, 4 + 1, 4 + 2 bits: low plane, then that of the bits above
    then its scales and minima             [n_scales][16 columns] each, as the kind says

A weight is  scale * (code - offset) + minimum,  where a kind may look codes up in a table first, and every kind
reproduces the values of its GGUF types bit for bit (formats: ggml's block structures). A kind "in super-blocks" keeps
two levels of scales apart, since their product needs more bits than float16 has: before 8 groups stand their f16 d (and
dmin), in the groups the small integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from gguf.constants import GGMLQuantizationType

N_COLUMNS = 16  # of a panel
GROUP = 32  # inputs of a group
SUPER = 8  # groups of a super-block
STEPS = 8  # of a group

# Planes of a code: (bits, bytes of a group), lowest bits first.
_PLANES: Mapping[int, tuple[int, ...]] = MappingProxyType(
    {2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 8: (8,)},
)


@dataclass(frozen=True, slots=True)
class PanelKind:
    """One layout of integer codes with scales."""

    name: str  # its kernels are gemm.<name> and rows.<name>
    bits: int  # of a code
    scale: Literal["f16", "f32", "u8", "i8"]  # u8 and i8: factors of a super-block's d
    n_scales: int = 1  # per group: one, or one per 16 inputs
    minimum: bool = False  # like the scale: f16, or u8 factors of a super-block's -dmin
    offset: int = 0  # what is subtracted from a code; never with a minimum
    table: tuple[int, ...] = ()  # 16 codes of `factor_bits` that 4-bit codes stand for
    neighbours: bool = False  # of 4-bit codes: which two steps share a vector
    unit: float = 1.0  # what a super-block's d is multiplied by: a power of two

    @property
    def factor_bits(self) -> int:
        """Bits of a code as it enters the dot product."""
        return max(self.table).bit_length() if self.table else self.bits

    @property
    def planes(self) -> tuple[int, ...]:
        """Bits of each plane of a code, lowest first."""
        return _PLANES[self.bits]

    def place(self, bits: int, step: int) -> tuple[int, int]:
        """Pure. Where a plane of so many bits keeps a step: vector, and lowest bit in its bytes."""
        if bits == 4 and self.neighbours:
            return step // 2, step % 2 * 4
        return {8: (step, 0), 4: (step % 4, step // 4 * 4), 2: (step // 4, step % 4 * 2), 1: (0, step)}[bits]

    @property
    def code_bytes(self) -> int:
        """Bytes of a group's codes."""
        return 64 * self.bits

    @property
    def in_super_blocks(self) -> bool:
        """Whether 8 groups share an f16 d (and dmin)."""
        return self.scale in ("u8", "i8")

    @property
    def scale_bytes(self) -> int:
        """Bytes of one column's scale."""
        return {"f16": 2, "f32": 4, "u8": 1, "i8": 1}[self.scale]

    @property
    def min_at(self) -> int:
        """Where a group's minima begin."""
        return self.code_bytes + self.n_scales * N_COLUMNS * self.scale_bytes

    @property
    def group_bytes(self) -> int:
        """Bytes of a group."""
        return self.min_at + (self.min_at - self.code_bytes if self.minimum else 0)

    @property
    def head_bytes(self) -> int:
        """Bytes before the 8 groups of a super-block: d, dmin."""
        return (2 * N_COLUMNS) * (2 if self.minimum else 1) if self.in_super_blocks else 0

    def panel_bytes(self, n_groups: int) -> int:
        """Pure. Bytes of a panel of that many groups."""
        return n_groups * self.group_bytes + (n_groups // SUPER) * self.head_bytes


@dataclass(frozen=True, slots=True)
class FloatKind:
    """Panels of plain numbers: [inputs][16 columns], or of bf16 [pairs of inputs][16 columns][2]."""

    name: str  # "f32", "f16" or "bf16": its kernels are float_gemm.<name> and rows.<name>

    def panel_bytes(self, n_in: int) -> int:
        """Pure. Bytes of a panel of that many inputs, for whole groups of 32."""
        return -(-n_in // GROUP) * GROUP * N_COLUMNS * (4 if self.name == "f32" else 2)


# 4-bit codes as table entries (ggml's kvalues_iq4nl and kvalues_mxfp4, as multiples of half a unit), plus the offset.
_IQ4 = tuple(128 + v for v in (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113))
_FP4 = tuple(12 + v for v in (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12))


def _by_sign(offset: int, clear: tuple[int, ...], set_: tuple[int, ...]) -> tuple[int, ...]:
    """Pure. Codes whose bit 3 is a sign: what the other bits number where it is clear and where it is set."""
    return tuple(offset + v for half in (clear, set_) for v in (*half, *[0] * (8 - len(half))))


def _signed(*numbers: int) -> tuple[int, ...]:
    """Pure. Numbers in ascending order, and their negatives."""
    return _by_sign(numbers[-1], numbers, tuple(-v for v in numbers))


# The few numbers that tables of whole groups of inputs are made of (ggml's iq2*_grid, iq3*_grid, iq1s_grid); those of
# IQ1 are eighths, and its sign moves them by one.
_IQ2, _IQ3_XXS, _IQ3_S = _signed(8, 25, 43), _signed(4, 12, 20, 28, 36, 44, 52, 62), _signed(*range(1, 16, 2))
_IQ1 = _by_sign(9, (-7, 1, 9), (-9, -1, 7))

_KINDS = (
    PanelKind("q4_0", 4, "f16", offset=8),
    PanelKind("q4_1", 4, "f16", minimum=True),
    PanelKind("q5_0", 5, "f16", offset=16),
    PanelKind("q5_1", 5, "f16", minimum=True),
    PanelKind("q8_0", 8, "f16", offset=128),
    PanelKind("q2_k", 2, "u8", n_scales=2, minimum=True),
    PanelKind("q3_k", 3, "i8", n_scales=2, offset=4),
    PanelKind("q4_k", 4, "u8", minimum=True),
    PanelKind("q5_k", 5, "u8", minimum=True),
    PanelKind("q6_k", 6, "i8", n_scales=2, offset=32),
    PanelKind("ternary", 2, "f16", offset=1),
    PanelKind("iq4_nl", 4, "f16", offset=128, table=_IQ4),
    PanelKind("iq4_xs", 4, "i8", offset=128, table=_IQ4),
    PanelKind("mxfp4", 4, "f32", offset=12, table=_FP4),
    PanelKind("nvfp4", 4, "f32", n_scales=2, offset=12, table=_FP4),
    PanelKind("iq2_xxs", 4, "u8", offset=43, table=_IQ2, neighbours=True, unit=1 / 8),
    PanelKind("iq2_xs", 4, "u8", n_scales=2, offset=43, table=_IQ2, neighbours=True, unit=1 / 8),
    PanelKind("iq3_xxs", 4, "u8", offset=62, table=_IQ3_XXS, neighbours=True, unit=1 / 4),
    PanelKind("iq3_s", 4, "u8", offset=15, table=_IQ3_S, neighbours=True),
    PanelKind("iq1_s", 4, "u8", offset=9, table=_IQ1, neighbours=True, unit=1 / 8),
    PanelKind("iq1_m", 4, "u8", n_scales=2, offset=9, table=_IQ1, neighbours=True, unit=1 / 8),
)
KINDS: Mapping[str, PanelKind] = MappingProxyType({kind.name: kind for kind in _KINDS})

_SERVED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **{name: (name.upper(),) for name in KINDS},
        "ternary": ("TQ1_0", "TQ2_0"),
        "iq2_xs": ("IQ2_XS", "IQ2_S"),
    }
)
# An older gguf knows fewer types.
KIND_OF: Mapping[GGMLQuantizationType, PanelKind] = MappingProxyType(
    {
        GGMLQuantizationType[qtype]: KINDS[name]
        for name, qtypes in _SERVED.items()
        for qtype in qtypes
        if qtype in GGMLQuantizationType.__members__
    }
)
