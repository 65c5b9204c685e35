"""Tiny random models made with transformers and written as GGUF files: the model itself is then the oracle.

Tensor names come from the `gguf` package's own table; what a published conversion changes in a tensor is done here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from polyseq.weights import Weights

F32 = NDArray[np.float32]
N_VOCAB, N_EMBD, N_CTX_TRAIN = 64, 32, 256
RMS_EPS = 1e-5
ARCHS = {"gemma3_text": gguf.MODEL_ARCH.GEMMA3, "mamba": gguf.MODEL_ARCH.MAMBA, "lfm2": gguf.MODEL_ARCH.LFM2}


def tiny_gemma3(*, n_layer: int = 7, n_swa: int = 8, seed: int = 0) -> Any:
    """Two periods of window and full layers, nearly."""
    config = transformers.Gemma3TextConfig(
        vocab_size=N_VOCAB,
        hidden_size=N_EMBD,
        intermediate_size=48,
        num_hidden_layers=n_layer,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=10,
        query_pre_attn_scalar=10,
        sliding_window=n_swa,
        max_position_embeddings=N_CTX_TRAIN,
        rms_norm_eps=RMS_EPS,
        attn_implementation="eager",
    )
    return _randomised(transformers.Gemma3ForCausalLM, config, seed)


def tiny_mamba(*, n_layer: int = 3, seed: int = 0) -> Any:
    """Mamba 1 with its head tied to the embeddings, as published models have it."""
    config = transformers.MambaConfig(
        vocab_size=N_VOCAB,
        hidden_size=N_EMBD,
        state_size=8,
        num_hidden_layers=n_layer,
        time_step_rank=4,
        conv_kernel=4,
        expand=2,
        layer_norm_epsilon=RMS_EPS,
    )
    return _randomised(transformers.MambaForCausalLM, config, seed)


def tiny_lfm2(*, attends: tuple[int, ...] = (1, 3), n_layer: int = 4, seed: int = 0) -> Any:
    """Short convolutions, and attention in the layers `attends`."""
    config = transformers.Lfm2Config(
        vocab_size=N_VOCAB,
        hidden_size=N_EMBD,
        intermediate_size=48,
        num_hidden_layers=n_layer,
        num_attention_heads=4,
        num_key_value_heads=2,
        conv_L_cache=3,
        full_attn_idxs=list(attends),
        block_auto_adjust_ff_dim=False,
        max_position_embeddings=N_CTX_TRAIN,
        norm_eps=RMS_EPS,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        attn_implementation="eager",
    )
    return _randomised(transformers.Lfm2ForCausalLM, config, seed)


def logits(model: Any, tokens: NDArray[np.int32]) -> F32:
    """The oracle: [n, n_vocab] for one sequence from its start, in one piece."""
    with torch.no_grad():
        out = model(torch.from_numpy(tokens[None].astype(np.int64)), use_cache=False)
    rows: F32 = out.logits[0].numpy()
    return rows


def write_gguf(model: Any, path: Path) -> Path:
    """Writes the model with the metadata that a published conversion writes."""
    config, arch = model.config, ARCHS[model.config.model_type]
    writer = gguf.GGUFWriter(str(path), gguf.MODEL_ARCH_NAMES[arch])
    writer.add_context_length(N_CTX_TRAIN)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_layer_norm_rms_eps(RMS_EPS)
    {"gemma3_text": _gemma3, "mamba": _mamba, "lfm2": _lfm2}[config.model_type](writer, config)
    tensors = model.state_dict()
    for name, new in _names(model).items():
        writer.add_tensor(new, _as_published(config.model_type, name, tensors[name].numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def read_gguf(model: Any, weights: Weights) -> Any:
    """Fills a gemma3 with a file's tensors, in float32."""
    assert model.config.model_type == "gemma3_text"
    tensors = {name: weights.f32(stored) - ("norm" in name) for name, stored in _names(model).items()}
    model.load_state_dict({name: torch.from_numpy(array) for name, array in tensors.items()}, strict=False)
    return model


def _names(model: Any) -> dict[str, str]:
    """What each tensor is called in a GGUF file; a tied head is in none."""
    names = gguf.get_tensor_name_map(ARCHS[model.config.model_type], model.config.num_hidden_layers)
    here = [name for name in model.state_dict() if name != "lm_head.weight"]
    return {name: names.get_name(name, try_suffixes=(".weight", ".bias")) for name in here}


def _randomised(kind: Any, config: Any, seed: int) -> Any:
    """A model whose every tensor matters: norms, biases and steps are no longer what initialisation gives them."""
    torch.manual_seed(seed)
    model = kind(config).eval()
    for name, tensor in model.state_dict().items():
        if tensor.ndim == 1 or name.endswith("A_log"):
            tensor += 0.3 * torch.randn_like(tensor)
        elif "embed" in name:
            tensor.copy_(torch.randn_like(tensor))
        else:
            tensor.copy_(torch.randn_like(tensor) / tensor.shape[-1] ** 0.5)
    return model


def _as_published(model_type: str, name: str, array: F32) -> F32:
    if name.endswith("A_log"):
        return -np.exp(array)
    if "conv" in name and array.ndim == 3:
        return np.ascontiguousarray(array[:, 0])
    return array + 1 if model_type == "gemma3_text" and "norm" in name else array


def _attention(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)


def _gemma3(writer: gguf.GGUFWriter, config: Any) -> None:
    _attention(writer, config)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_sliding_window(config.sliding_window)
    writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])


def _mamba(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_ssm_conv_kernel(config.conv_kernel)
    writer.add_ssm_inner_size(config.intermediate_size)
    writer.add_ssm_state_size(config.state_size)
    writer.add_ssm_time_step_rank(config.time_step_rank)
    writer.add_ssm_dt_b_c_rms(False)


def _lfm2(writer: gguf.GGUFWriter, config: Any) -> None:
    _attention(writer, config)
    kinds = config.layer_types
    writer.add_head_count_kv([config.num_key_value_heads if kind == "full_attention" else 0 for kind in kinds])
    writer.add_shortconv_l_cache(config.conv_L_cache)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
