"""The numbers that stand for kinds of things in GGUF files, under their names in ggml.

The `gguf` package knows them too, and tests compare. It is imported only by what computes with it: it reads, writes and
converts files, and importing all that takes longer than reading a header.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType

DEFAULT_ALIGNMENT = 32  # bytes


class GGUFValueType(IntEnum):
    """What a value of the metadata is."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


class PoolingType(IntEnum):
    """What becomes of a sequence's rows."""

    NONE = 0
    MEAN = 1
    CLS = 2
    LAST = 3
    RANK = 4


class GGMLQuantizationType(IntEnum):
    """How a tensor's numbers are stored."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41


_BLOCKS = (  # numbers of a block, and which types take how many bytes for it
    (1, {"F32": 4, "F16": 2, "BF16": 2, "F64": 8, "I8": 1, "I16": 2, "I32": 4, "I64": 8}),
    (32, {"Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34, "Q8_1": 40, "IQ4_NL": 18, "MXFP4": 17}),
    (64, {"NVFP4": 36}),
    (128, {"Q1_0": 18}),
    (256, {"Q2_K": 84, "Q3_K": 110, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210, "Q8_K": 292, "TQ1_0": 54, "TQ2_0": 66}),
    (256, {"IQ1_S": 50, "IQ1_M": 56, "IQ2_XXS": 66, "IQ2_XS": 74, "IQ2_S": 82, "IQ3_XXS": 98, "IQ3_S": 110}),
    (256, {"IQ4_XS": 136}),
)
BLOCKS: Mapping[GGMLQuantizationType, tuple[int, int]] = MappingProxyType(
    {GGMLQuantizationType[name]: (n, n_bytes) for n, types in _BLOCKS for name, n_bytes in types.items()}
)
