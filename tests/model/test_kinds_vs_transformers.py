"""gemma3, mamba and lfm2 against transformers in float32: whole contexts, any cut, several sequences and calls.

The models are tiny and random, made with transformers and read back from the GGUF files written of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from polyseq import Context, Model
from polyseq.errors import PolyseqWarning

hf_gguf: Any = pytest.importorskip("hf_gguf")

pytestmark = pytest.mark.oracle

F32 = NDArray[np.float32]
TOLERANCE = 1e-3
LENGTHS = (37, 1, 22, 9)
# [call][sequence] tokens of that call: whole prompts; a prompt beside others that decode; pieces of any length.
CALLS = {
    "at once": [LENGTHS],
    "token by token at the end": [(34, 1, 19, 6), (1, 0, 1, 1), (1, 0, 1, 1), (1, 0, 1, 1)],
    "joining late": [(20, 0, 0, 0), (1, 1, 0, 0), (1, 0, 11, 0), (15, 0, 11, 9)],
    "pieces": [(5, 1, 2, 3), (7, 0, 13, 1), (1, 0, 1, 4), (24, 0, 6, 1)],
}
MAKERS: dict[str, Callable[[], Any]] = {
    "gemma3": hf_gguf.tiny_gemma3,
    "mamba": hf_gguf.tiny_mamba,
    "lfm2": hf_gguf.tiny_lfm2,
}


@dataclass(frozen=True)
class Case:
    model: Model
    tokens: tuple[NDArray[np.int32], ...]  # [n_seqs][n]
    wanted: tuple[F32, ...]  # [n_seqs][n, n_vocab] each sequence alone, by transformers


@pytest.fixture(scope="module", params=MAKERS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    made = MAKERS[request.param]()
    path: Path = tmp_path_factory.mktemp("gguf") / f"{request.param}.gguf"
    rng = np.random.default_rng(7)
    tokens = tuple(rng.integers(0, hf_gguf.N_VOCAB, n).astype(np.int32) for n in LENGTHS)
    return Case(Model.load(hf_gguf.write_gguf(made, path)), tokens, tuple(hf_gguf.logits(made, ids) for ids in tokens))


@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("unified", [False, True], ids=["streams", "unified"])
@pytest.mark.parametrize("n_ubatch", [1, 3, 8, 128])
def test_any_cut_of_several_sequences(case: Case, n_ubatch: int, unified: bool, calls: str) -> None:
    n_seqs = len(case.tokens)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PolyseqWarning)
        ctx = Context(
            case.model,
            n_ctx=160 if unified else 40 * n_seqs,
            n_seq_max=n_seqs,
            n_ubatch=n_ubatch,
            unified=unified,
            backend="reference",
        )
    done = [0] * n_seqs
    largest = 0.0
    for call in CALLS[calls]:
        batch, wanted = ctx.batch(), []
        for seq_id, n in enumerate(call):
            if n:
                rows = slice(done[seq_id], done[seq_id] + n)
                batch.extend(case.tokens[seq_id][rows], seq=seq_id, output=True)
                wanted.append(case.wanted[seq_id][rows])
                done[seq_id] += n
        found = ctx.decode(batch).all_logits()
        largest = max(largest, float(np.abs(found - np.concatenate(wanted)).max()))
    assert tuple(done) == LENGTHS
    assert largest < TOLERANCE, f"max abs logit difference {largest:.2e}"


def test_the_oracle_can_tell(case: Case) -> None:
    """Another token anywhere before moves the last row far more than the tolerance."""
    ids, wanted = case.tokens[0], case.wanted[0]
    made = MAKERS[case.model.architecture.name]()
    for i in (0, 30, 35):
        changed = ids.copy()
        changed[i] = (changed[i] + 1) % hf_gguf.N_VOCAB
        assert np.abs(hf_gguf.logits(made, changed)[-1] - wanted[-1]).max() > 2 * TOLERANCE, i
