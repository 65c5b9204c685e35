"""Random weights as GGUF stores them: every bit pattern of codes, scales that are sensible numbers."""

from __future__ import annotations

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from polyseq.weights.tensor import TensorInfo

# Where a block keeps its float16 factors.
_F16_AT = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    "MXFP4": (),
    "NVFP4": (),
    "IQ1_M": (),
}


def stored_rows(qtype: GGMLQuantizationType, n_out: int, n_in: int, seed: int = 0) -> NDArray[np.uint8]:
    """Rows [n_out, bytes per row] u8 of that type."""
    rng = np.random.default_rng(seed)
    values = rng.normal(0, 0.02, (n_out, n_in)).astype(np.float32)
    if qtype.name == "F32":
        return values.view(np.uint8)
    if qtype.name == "F16":
        return values.astype(np.float16).view(np.uint8)
    if qtype.name == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    block, size = GGML_QUANT_SIZES[qtype]
    blocks = rng.integers(0, 256, (n_out * n_in // block, size), np.uint8)
    scales = np.abs(rng.normal(0, 0.01, (len(blocks), 2))).astype(np.float16)
    for i, at in enumerate(_F16_AT.get(qtype.name, (0,))):
        blocks[:, at : at + 2] = scales[:, i : i + 1].view(np.uint8)
    if qtype.name == "MXFP4":
        blocks[:, 0] = rng.integers(116, 124, len(blocks))
    if qtype.name == "IQ1_M":  # four bits of the scale in each of four words
        words = blocks[:, 48:56].view(np.uint16)
        for i in range(4):
            words[:, i] = words[:, i] & 0xFFF | (scales[:, 0].view(np.uint16) >> 4 * i & 15) << 12
    return blocks.reshape(n_out, -1)


def tensor(qtype: GGMLQuantizationType, n_out: int, n_in: int, seed: int = 0) -> tuple[TensorInfo, NDArray[np.uint8]]:
    """A matrix's description and its rows."""
    rows = stored_rows(qtype, n_out, n_in, seed)
    return TensorInfo("w", (n_out, n_in), qtype, 0, rows.nbytes), rows
