"""Makes OpenVINO models with 8 and 4 bit weights of a GGUF file's dequantised weights.

python bench/peers/export_openvino.py MODEL.gguf FOLDER     (in the peer's own environment)
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    gguf, folder = Path(sys.argv[1]), Path(sys.argv[2])
    plain = folder / "f32"
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).save_pretrained(plain)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    tokenizer.save_pretrained(plain)
    for bits in (8, 4):
        if (folder / f"int{bits}" / "tokenizer.json").exists():
            continue
        config = OVWeightQuantizationConfig(bits=bits, **({} if bits == 8 else {"group_size": 64, "sym": True}))
        model = OVModelForCausalLM.from_pretrained(plain, export=True, quantization_config=config)
        model.save_pretrained(folder / f"int{bits}")
        tokenizer.save_pretrained(folder / f"int{bits}")


if __name__ == "__main__":
    main()
