"""A llama of a few thousand random parameters with a byte-level tokenizer, written as a real GGUF file.

Small enough to answer prompts in milliseconds, so that engine and command line are tested whole without weights.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

N_CTX_TRAIN = 256
N_EMBD, N_LAYER, N_HEAD, N_HEAD_KV, N_FF = 32, 2, 4, 2, 48
CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "<|go|>{{ m.role }}\n{{ m.content }}<|fin|>{% endfor %}"
    "{% if add_generation_prompt %}<|go|>assistant\n{% endif %}"
)


def _byte_tokens() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    stand_ins = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(stand_ins)) for b in range(256)]


TOKENS = [*_byte_tokens(), "<|fin|>", "<|go|>", "th"]
END, START = 256, 257
N_VOCAB = len(TOKENS)


def write_tiny_gguf(
    path: Path, *, seed: int = 0, architecture: str = "llama", with_template: bool = True, with_eos: bool = True
) -> Path:
    """Writes the file; the same seed gives the same bytes. Without an EOS no answer stops by itself."""
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_name("Tiny Test")
    writer.add_context_length(N_CTX_TRAIN)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(N_LAYER)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD_KV)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(N_EMBD // N_HEAD)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([1] * 256 + [3, 3, 1])
    writer.add_token_merges(["t h"])
    if with_eos:
        writer.add_eos_token_id(END)
    writer.add_add_bos_token(False)
    if with_template:
        writer.add_chat_template(CHAT_TEMPLATE)
    random = np.random.default_rng(seed)

    def tensor(name: str, *shape: int) -> None:
        values = random.standard_normal(shape) / np.sqrt(shape[-1])
        writer.add_tensor(name, values.astype(np.float32))

    kv = N_EMBD // N_HEAD * N_HEAD_KV
    writer.add_tensor("token_embd.weight", random.standard_normal((N_VOCAB, N_EMBD)).astype(np.float32))
    tensor("output.weight", N_VOCAB, N_EMBD)
    writer.add_tensor("output_norm.weight", np.full(N_EMBD, 3.0, np.float32))
    for il in range(N_LAYER):
        for name, n_out, n_in in (
            ("attn_q", N_EMBD, N_EMBD),
            ("attn_k", kv, N_EMBD),
            ("attn_v", kv, N_EMBD),
            ("attn_output", N_EMBD, N_EMBD),
            ("ffn_gate", N_FF, N_EMBD),
            ("ffn_up", N_FF, N_EMBD),
            ("ffn_down", N_EMBD, N_FF),
        ):
            tensor(f"blk.{il}.{name}.weight", n_out, n_in)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{il}.{name}.weight", np.ones(N_EMBD, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
