"""Writes a GGUF file again as Q4_0 (llama.cpp's fast path on a CPU), through llama.cpp's own API.

python bench/peers/requantise.py MODEL.gguf OUT.gguf     (in the peer's own environment)
"""

from __future__ import annotations

import ctypes
import sys

import llama_cpp as lc


def main() -> None:
    params = lc.llama_model_quantize_default_params()
    params.ftype = lc.LLAMA_FTYPE_MOSTLY_Q4_0
    params.allow_requantize = True
    code = lc.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), ctypes.byref(params))
    if code:
        raise SystemExit(f"llama_model_quantize returned {code}")


if __name__ == "__main__":
    main()
