"""Hugging Face folders and WordPiece: what is read, what is refused and by which name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import tokenizers
from safetensors.numpy import load_file, save_file

from bert_gguf import write_bert_gguf
from polyseq import Model
from polyseq.errors import CapabilityError, InvalidModelFile, PolyseqError, UnsupportedModel
from polyseq.graph import Wanted
from polyseq.tokenizer import Tokenizer
from polyseq.weights import GgufFile
from polyseq.weights.hf_folder import HfFolder
from tiny_bert import N_EMBD, PIECES, tiny_bert

TEXTS = ["the cats sat", "", "THE Cat!  sitting\t.", "[SEP] the [CLS]", "é xyzzy 東 the", "a" * 101, "mat" * 30]


def test_a_folder_reads_as_its_gguf(tmp_path: Path) -> None:
    folder = HfFolder.open(tiny_bert(tmp_path / "bert", pooling="mean_tokens"))
    file = GgufFile.open(write_bert_gguf(folder.path, tmp_path / "bert.gguf"))
    assert sorted(folder.names()) == sorted(file.names())
    for name in folder.names():
        np.testing.assert_array_equal(folder.f32(name), file.f32(name))
        assert folder.raw(name).tobytes() == file.raw(name).tobytes()
    sizes = {key: value for key, value in file.metadata.items() if key.startswith("bert.")}
    assert sizes.keys() == {key for key in folder.metadata if key.startswith("bert.")}
    for key, value in sizes.items():
        assert folder.metadata[key] == pytest.approx(value)


def test_tokens_equal_the_library_s_whichever_file_they_come_from(tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path / "bert")
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.no_truncation()
    library.no_padding()
    ours = Model.load(folder).tokenizer
    from_gguf = Model.load(write_bert_gguf(folder, tmp_path / "bert.gguf")).tokenizer
    for text in TEXTS:
        wanted = library.encode(text).ids
        assert ours.encode(text).tolist() == wanted, text
        assert from_gguf.encode(text).tolist() == wanted, text
        as_text = ours.encode(text, parse_special=False)
        assert as_text.tolist() == from_gguf.encode(text, parse_special=False).tolist()
        assert (as_text[1:-1] > 3).all() or "東" in text or "[" in text or len(text) == 101
    assert ours.decode(ours.encode("the cats sat")) == from_gguf.decode(ours.encode("the cats sat")) == "the cats sat"


def test_special_pieces_in_a_text_stay_text_where_asked(tmp_path: Path) -> None:
    tokenizer = Model.load(tiny_bert(tmp_path / "bert")).tokenizer
    found = tokenizer.encode("a [SEP] a", add_special=False)
    kept = tokenizer.encode("a [SEP] a", add_special=False, parse_special=False)
    assert 3 in found.tolist() and 3 not in kept.tolist() and len(kept) > len(found)


def test_a_vocabulary_with_capitals_or_accents_keeps_them() -> None:
    def tokens(pieces: list[str], text: str) -> list[int]:
        metadata = {"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": ["[UNK]", "[CLS]", "[SEP]", *pieces]}
        return Tokenizer.from_metadata(metadata).encode(text, add_special=False).tolist()

    assert tokens(["\u2581the", "\u2581eh"], "The ÉH") == [3, 4]
    assert tokens(["\u2581the", "\u2581The"], "The the") == [4, 3]
    assert tokens(["\u2581the", "\u2581éh"], "THE ÉH eh") == [3, 4, 0]


def test_a_wordpiece_vocabulary_needs_an_unknown_piece() -> None:
    with pytest.raises(InvalidModelFile, match=r"no unknown piece \(\[UNK\]\)"):
        Tokenizer.from_metadata({"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": ["\u2581a"]})


def edit_config(**changes: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))

    return edit


def edit_tensors(change: Callable[[dict[str, np.ndarray]], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return edit


QUERY = "encoder.layer.1.attention.self.query.weight"


@pytest.mark.parametrize(
    ("edit", "error", "says"),
    [
        (edit_config(model_type="llama"), UnsupportedModel, "model_type 'llama'; folders are read for 'bert'"),
        (edit_config(hidden_act="relu"), UnsupportedModel, "hidden_act 'relu'; supported: 'gelu'"),
        (edit_config(is_decoder=True), UnsupportedModel, "is_decoder True"),
        (edit_config(hidden_size=None), InvalidModelFile, "lacks hidden_size"),
        (edit_config(hidden_size="x"), InvalidModelFile, "bert.embedding_length is 'x'"),
        (edit_config(num_hidden_layers=10**9), InvalidModelFile, "num_hidden_layers 1000000000"),
        (edit_config(num_attention_heads=5), InvalidModelFile, "32 is no multiple of .*head_count 5"),
        (edit_config(max_position_embeddings=49), InvalidModelFile, r"position_embd.weight has shape \[48, 32\]"),
        (lambda f: (f / "config.json").write_text("[1]"), InvalidModelFile, "must be an object"),
        (lambda f: (f / "config.json").write_text("{"), InvalidModelFile, "is no JSON"),
        (lambda f: (f / "config.json").unlink(), InvalidModelFile, "config.json: cannot be read"),
        (lambda f: (f / "model.safetensors").unlink(), InvalidModelFile, "holds no model.safetensors"),
        (
            lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 64),
            InvalidModelFile,
            "cannot be read as safetensors",
        ),
        (edit_tensors(lambda t: t.pop(QUERY)), InvalidModelFile, "blk.1.attn_q.weight is missing"),
        (edit_tensors(lambda t: t.update({QUERY: t[QUERY][:, :-1].copy()})), InvalidModelFile, r"\[32, 31\], wanted"),
        (edit_tensors(lambda t: t.update(extra=t[QUERY])), InvalidModelFile, "tensor 'extra' has no place"),
        (edit_tensors(lambda t: t.update({QUERY: t[QUERY].astype(np.int8)})), InvalidModelFile, "is I8; supported"),
    ],
)
def test_a_broken_folder_is_refused_by_name(
    tmp_path: Path, edit: Callable[[Path], None], error: type[PolyseqError], says: str
) -> None:
    folder = tiny_bert(tmp_path / "bert")
    edit(folder)
    with pytest.raises(error, match=says):
        Model.load(folder)


@pytest.mark.parametrize(
    "said", [[], ["pooling_mode_max_tokens"], ["pooling_mode_mean_tokens", "pooling_mode_cls_token"]]
)
def test_a_pooling_that_is_not_there_is_refused(tmp_path: Path, said: list[str]) -> None:
    folder = tiny_bert(tmp_path / "bert", pooling="mean_tokens")
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(dict.fromkeys(said, True)))
    with pytest.raises(UnsupportedModel, match=r"pools by \[.*supported: one of pooling_mode_"):
        Model.load(folder)


def test_a_long_config_is_not_read(tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path / "bert")
    with (folder / "config.json").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(InvalidModelFile, match=f"{1 << 40} bytes, the limit is"):
        Model.load(folder)


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (Wanted(), "bert models give embeddings, not logits"),
        (Wanted(logits=False, layers=(2,)), "layer 2 was asked for; the model has layers 0 to 1"),
        (Wanted(logits=False, content="embd"), "content 'embd' is not one of"),
        (Wanted(logits=False, pooling="rank"), "pooling 'rank' is not one of"),
    ],
    ids=str,
)
def test_a_graph_that_bert_does_not_have_is_refused(tmp_path: Path, wanted: Wanted, says: str) -> None:
    with pytest.raises(CapabilityError, match=says):
        Model.load(tiny_bert(tmp_path / "bert")).architecture.build(wanted)


def test_a_file_that_names_no_architecture(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.kv_data[0].clear()
    writer.add_name("nobody")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(InvalidModelFile, match=r"a\.gguf: the file names no general\.architecture"):
        Model.load(tmp_path / "a.gguf")


def test_tokenizers_of_other_kinds_are_refused_when_asked_for(tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path / "bert")
    tokenizers.Tokenizer(tokenizers.models.BPE()).save(str(folder / "tokenizer.json"))
    with pytest.raises(UnsupportedModel, match="holds a BPE tokenizer"):
        _ = Model.load(folder).tokenizer
    (folder / "tokenizer.json").write_text('{"added_tokens": []}')
    with pytest.raises(InvalidModelFile, match="is no tokenizer"):
        _ = Model.load(folder).tokenizer


def test_half_precision_is_read_as_it_is_stored(tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path / "bert")
    tensors = {name: a.astype(np.float16) for name, a in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors")
    weights = HfFolder.open(folder)
    assert weights.info("token_embd.weight").n_bytes == 2 * len(PIECES) * N_EMBD
    wanted = tensors["embeddings.word_embeddings.weight"].astype(np.float32)
    np.testing.assert_array_equal(weights.f32("token_embd.weight"), wanted)
