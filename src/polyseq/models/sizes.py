"""Sizes from a file's metadata, each bounded before anything is sized by it, and checked against each other.

Enters: metadata and weights. Leaves: `Hparams`, or the parts of it that an architecture puts together itself.
"""

from __future__ import annotations

from dataclasses import replace

from polyseq.errors import InvalidModelFile
from polyseq.models.architecture import Hparams
from polyseq.models.metadata import Metadata
from polyseq.weights.weights import Weights

# Far above any model there is: a larger count is a broken file.
MOST = 1 << 24


def outer_sizes(meta: Metadata, weights: Weights) -> Hparams:
    """Pure. What every model has: vocabulary, width, layers, context."""
    n_embd = meta.count("embedding_length", at_most=MOST)
    if "token_embd.weight" not in weights:
        raise InvalidModelFile("tensor token_embd.weight is missing, wanted with shape [n_vocab, n_embd]")
    shape = tuple(weights.info("token_embd.weight").shape)
    if len(shape) != 2 or shape[1] != n_embd:
        raise InvalidModelFile(f"tensor token_embd.weight has shape {list(shape)}, wanted [n_vocab, {n_embd}]")
    tokens = meta.tokens()
    if tokens is not None and len(tokens) != shape[0]:
        raise InvalidModelFile(
            f"tokenizer.ggml.tokens holds {len(tokens)} tokens, but token_embd.weight has {shape[0]} rows"
        )
    return Hparams(
        n_vocab=shape[0],
        n_embd=n_embd,
        # Every layer has tensors of its own, so a file cannot have more layers than tensors.
        n_layer=meta.count("block_count", at_most=len(weights.names())),
        n_ctx_train=meta.count("context_length", at_most=1 << 31),
    )


def attention_sizes(meta: Metadata, outer: Hparams, n_head_kv: int | None = None) -> Hparams:
    """Pure. `outer` with heads, FFN width and rotated dims; `n_head_kv` where the file does not say one for all."""
    n_head = meta.count("attention.head_count", at_most=MOST)
    if n_head_kv is None:
        n_head_kv = meta.count("attention.head_count_kv", n_head, at_most=MOST)
    if n_head % n_head_kv:
        raise InvalidModelFile(
            f"{meta.name('attention.head_count')} {n_head} is no multiple of "
            f"{meta.name('attention.head_count_kv')} {n_head_kv}"
        )
    n_embd = outer.n_embd
    if not meta.has("attention.key_length") and n_embd % n_head:
        raise InvalidModelFile(
            f"{meta.name('embedding_length')} {n_embd} is no multiple of "
            f"{meta.name('attention.head_count')} {n_head}, and {meta.name('attention.key_length')} is missing"
        )
    head = max(1, n_embd // n_head)
    head_k = meta.count("attention.key_length", head, at_most=MOST)
    n_rot = meta.count("rope.dimension_count", head_k, at_most=head_k)
    if n_rot % 2:
        raise InvalidModelFile(f"{meta.name('rope.dimension_count')} is {n_rot}, wanted an even number")
    return replace(
        outer,
        n_head=n_head,
        n_head_kv=n_head_kv,
        n_embd_head_k=head_k,
        n_embd_head_v=meta.count("attention.value_length", head, at_most=MOST),
        n_ff=meta.count("feed_forward_length", at_most=MOST),
        n_rot=n_rot,
    )


def rope_scale(meta: Metadata) -> float:
    """Pure. 1 / by how much positions are stretched; files older than `rope.scaling.type` say `rope.scale_linear`."""
    meta.only("rope.scaling.type", "none", "linear")
    if not meta.has("rope.scaling.type"):
        return 1.0 / meta.positive("rope.scale_linear", 1.0)
    return 1.0 / meta.positive("rope.scaling.factor") if meta.text("rope.scaling.type") == "linear" else 1.0


def conv_kernel(meta: Metadata, key: str) -> int:
    """Pure. The width of a causal convolution's kernel: at least 2, as one of 1 keeps nothing."""
    n_kernel = meta.count(key, at_most=MOST)
    if n_kernel < 2:
        raise InvalidModelFile(f"{meta.name(key)} is {n_kernel}, wanted at least 2")
    return n_kernel
