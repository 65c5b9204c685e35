"""Makes what the embedding peers read: OpenVINO folders f32 and int8 (weights and activations, 8 bits).

python bench/peers/export_embed.py MODEL_FOLDER TEXTS.txt FOLDER     (in OpenVINO's environment)
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import nncf
import openvino as ov
from optimum.intel import OVModelForFeatureExtraction
from transformers import AutoTokenizer

N_TEXTS = 128  # that activations' ranges are measured with


def main() -> None:
    source, texts, folder = (Path(a) for a in sys.argv[1:4])
    tokenizer = AutoTokenizer.from_pretrained(source)
    plain = folder / "f32"
    if not (plain / "openvino_model.xml").exists():
        OVModelForFeatureExtraction.from_pretrained(source, export=True, compile=False).save_pretrained(plain)
        tokenizer.save_pretrained(plain)
    small = folder / "int8"
    if (small / "openvino_model.xml").exists():
        return
    model = ov.Core().read_model(plain / "openvino_model.xml")
    names = {port.get_any_name() for port in model.inputs}
    lines = [line for line in texts.read_text("utf-8").splitlines() if line.strip()][:N_TEXTS]
    samples = [
        {name: value for name, value in tokenizer(line, truncation=True, return_tensors="np").items() if name in names}
        for line in lines
    ]
    quantised = nncf.quantize(model, nncf.Dataset(samples), model_type=nncf.ModelType.TRANSFORMER)
    shutil.copytree(plain, small, ignore=shutil.ignore_patterns("openvino_model.*"), dirs_exist_ok=True)
    ov.save_model(quantised, small / "openvino_model.xml", compress_to_fp16=False)


if __name__ == "__main__":
    main()
