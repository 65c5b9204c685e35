"""GGUF reading: what sound files give, and that no file, however it lies, costs more than an InvalidModelFile."""

from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st

from polyseq.errors import InvalidModelFile, ModelError, UnsupportedModel
from polyseq.weights import ArrayWeights, GgufFile, Weights
from polyseq.weights.cursor import MAX_HEADER_ITEMS
from polyseq.weights.gguf import MAX_KEYS, MAX_TENSORS

STRING, ARRAY, U32, U8, BOOL = 8, 9, 4, 0, 7


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str, dims: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def header(
    *,
    keys: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    version: int = 3,
    magic: bytes = b"GGUF",
    n_keys: int | None = None,
    n_tensors: int | None = None,
) -> bytes:
    keys, tensors = keys or [], tensors or []
    counts = len(tensors) if n_tensors is None else n_tensors, len(keys) if n_keys is None else n_keys
    return magic + struct.pack("<IQQ", version, *counts) + b"".join(keys) + b"".join(tensors)


def padded(head: bytes, data: bytes = b"", alignment: int = 32) -> bytes:
    return head + b"\0" * (-len(head) % alignment) + data


def refusal(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(InvalidModelFile) as caught:
        GgufFile.open(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A file with every kind of value that the usual writer can write."""
    path = tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("a.count", 7)
    writer.add_int64("a.negative", -(1 << 40))
    writer.add_float32("a.half", 0.5)
    writer.add_float64("a.third", 1 / 3)
    writer.add_bool("a.flag", True)
    writer.add_string("a.name", "größe")
    writer.add_array("a.words", ["", "b", "\U0001f600"])
    writer.add_array("a.numbers", [1, -2, 3])
    writer.add_array("a.flags", [True, False])
    writer.add_tensor("matrix", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor("vector", np.arange(5, dtype=np.float16))
    writer.add_tensor("integers", np.arange(4, dtype=np.int32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_and_tensors(small: Path) -> None:
    file = GgufFile.open(small)
    assert (file.version, file.alignment) == (3, 32)
    assert file.metadata["general.architecture"] == "llama"
    scalars = [file.metadata[f"a.{name}"] for name in ("count", "negative", "half", "third", "flag", "name")]
    assert scalars == [7, -(1 << 40), 0.5, 1 / 3, True, "größe"]
    assert file.metadata["a.words"] == ["", "b", "\U0001f600"]
    np.testing.assert_array_equal(file.metadata["a.numbers"], [1, -2, 3])
    np.testing.assert_array_equal(file.metadata["a.flags"], [True, False])
    assert file.names() == ("matrix", "vector", "integers")
    assert "matrix" in file and "other" not in file
    info = file.info("matrix")
    assert (info.shape, info.qtype.name, info.n_bytes, info.n_rows, info.n_elements) == ((3, 4), "F32", 48, 3, 12)
    np.testing.assert_array_equal(file.f32("matrix"), np.arange(12).reshape(3, 4))
    np.testing.assert_array_equal(file.f32("vector"), np.arange(5))
    assert file.raw("matrix").shape == (3, 16)
    assert file.raw("vector").shape == (1, 10)
    with pytest.raises(TypeError):
        file.metadata["a.count"] = 8  # type: ignore[index]
    with pytest.raises(ValueError, match="read-only"):
        file.raw("matrix")[0, 0] = 1
    with pytest.raises(InvalidModelFile, match="holds no tensor 'other'"):
        file.f32("other")
    with pytest.raises(UnsupportedModel, match="tensor 'integers' is stored as I32"):
        file.f32("integers")


def test_agrees_with_the_gguf_package(small: Path) -> None:
    reader, file = gguf.GGUFReader(small), GgufFile.open(small)
    assert [(t.name, tuple(t.shape[::-1]), t.data_offset, t.n_bytes) for t in reader.tensors] == [
        (info.name, info.shape, info.offset, info.n_bytes) for info in file.tensors.values()
    ]
    ours = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in file.metadata.items()}
    theirs = {k: field.contents() for k, field in reader.fields.items() if not k.startswith("GGUF.")}
    assert ours == theirs


def write_blocks(path: Path, blocks: np.ndarray, qtype: GGMLQuantizationType) -> GgufFile:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("t", blocks, raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile.open(path)


def quantises(qtype: GGMLQuantizationType) -> bool:
    try:
        gguf.quantize(np.zeros((1, 256), np.float32), qtype)
    except NotImplementedError:
        return False
    return True


# How far quantisation moves a value drawn from a normal distribution, at most.
TOLERANCE = {
    "F32": 0.0, "F16": 2e-3, "BF16": 2e-2, "Q8_0": 2e-2, "Q5_0": 0.2, "Q5_1": 0.2, "Q4_0": 0.5, "Q4_1": 0.3,
    "TQ1_0": 4.0, "TQ2_0": 4.0, "MXFP4": 1.0,
}  # fmt: skip
QUANTISED = [qtype for qtype in GGML_QUANT_SIZES if quantises(qtype)]


def test_every_quantising_type_has_a_tolerance() -> None:
    assert {qtype.name for qtype in QUANTISED} == set(TOLERANCE)


@pytest.mark.parametrize("qtype", QUANTISED, ids=lambda qtype: qtype.name)
def test_quantised_round_trip(qtype: GGMLQuantizationType, tmp_path: Path) -> None:
    values = np.random.default_rng(1).standard_normal((6, 512)).astype(np.float32)
    file = write_blocks(tmp_path / "q.gguf", gguf.quantize(values, qtype), qtype)
    info = file.info("t")
    assert (info.shape, info.qtype) == ((6, 512), qtype)
    read = file.f32("t")
    assert read.dtype == np.float32 and read.shape == (6, 512)
    assert np.abs(read - values).max() <= TOLERANCE[qtype.name]


@pytest.mark.parametrize("qtype", list(GGML_QUANT_SIZES), ids=lambda qtype: qtype.name)
def test_every_type_is_read_or_refused_by_name(qtype: GGMLQuantizationType, tmp_path: Path) -> None:
    block_size, type_size = GGML_QUANT_SIZES[qtype]
    n_blocks = max(1, 256 // block_size)
    blocks = np.random.default_rng(2).integers(0, 256, (3, n_blocks * type_size), dtype=np.uint8)
    path = tmp_path / "t.gguf"
    data = blocks.tobytes()
    path.write_bytes(padded(header(tensors=[tensor("t", (n_blocks * block_size, 3), qtype.value)]), data))
    file = GgufFile.open(path)
    assert file.raw("t").tobytes() == data
    try:
        with np.errstate(all="ignore"):
            expected = gguf.dequantize(blocks, qtype)
    except NotImplementedError:
        with pytest.raises(UnsupportedModel, match=f"tensor 't' is stored as {qtype.name}"):
            file.f32("t")
    else:
        np.testing.assert_array_equal(file.f32("t"), expected)


def test_unaligned_float32_is_copied_into_place(tmp_path: Path) -> None:
    path = tmp_path / "t.gguf"
    head = header(
        keys=[key("general.alignment", U32, struct.pack("<I", 1))],
        tensors=[tensor("b", (3,), 24), tensor("x", (2,), 0, 3)],
    )
    path.write_bytes(head + b"\0" * 3 + struct.pack("<2f", 1.5, -2.0))
    file = GgufFile.open(path)
    assert file.info("x").offset == len(head) + 3
    read = file.f32("x")
    assert read.tolist() == [1.5, -2.0] and read.flags.aligned


def test_array_weights() -> None:
    given_array = np.arange(6, dtype=np.float64).reshape(2, 3)
    weights: Weights = ArrayWeights({"a": given_array, "b": [1.0, 2.0]})
    given_array[:] = 9
    assert weights.names() == ("a", "b") and "a" in weights and "c" not in weights
    assert weights.f32("a").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert weights.raw("a").shape == (2, 12) and weights.raw("b").shape == (1, 8)
    assert (weights.info("a").shape, weights.info("a").qtype.name, weights.info("a").n_bytes) == ((2, 3), "F32", 24)
    with pytest.raises(ValueError, match="read-only"):
        weights.f32("a")[0, 0] = 1
    with pytest.raises(InvalidModelFile, match="hold no tensor 'c'"):
        weights.info("c")
    with pytest.raises(InvalidModelFile, match=r"tensor 'd' has shape \(\)"):
        ArrayWeights({"d": 1.0})


# ---- files that lie ------------------------------------------------------------------------------------

BIG = 1 << 60
LIES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "0 bytes are too few"),
    "short": (b"GGUF" + b"\0" * 10, "14 bytes are too few"),
    "magic": (header(magic=b"GGML"), "starts with b'GGML', not b'GGUF'"),
    "version 1": (header(version=1), "has GGUF version 1, supported are (2, 3)"),
    "version 4": (header(version=4), "has GGUF version 4"),
    "version 0": (header(version=0), "has GGUF version 0"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "is big-endian"),
    "2^60 tensors": (header(n_tensors=BIG), f"claims {BIG} tensors, the limit is {MAX_TENSORS}"),
    "2^60 keys": (header(n_keys=BIG), f"claims {BIG} keys, the limit is {MAX_KEYS}"),
    "more tensors than bytes": (header(n_tensors=1000), "a header of 1000 tensors needs 33000 bytes, the file has 0"),
    "more keys than bytes": (header(n_keys=9), "a header of 9 keys needs 126 bytes, the file has 0 left"),
    "key length 2^63": (
        header(keys=[struct.pack("<Q", 1 << 63) + b"abcdefgh" * 2]),
        f"key 0 of 1, string 0 of 1 has a length of {1 << 63}, the limit is 65535",
    ),
    "key longer than the file": (
        header(keys=[struct.pack("<Q", 500) + b"abcdefgh" * 2]),
        "has a length of 500, but 16 bytes are left",
    ),
    "empty key": (header(keys=[key("", U8, b"\0") + b"\0" * 8]), "key 0 of 1 is empty (at byte 24)"),
    "key not UTF-8": (header(keys=[text(b"\xff\xfe") + b"\0" * 20]), "is not UTF-8: invalid start byte"),
    "key twice": (header(keys=[key("k", U8, b"\0")] * 2), "has the key 'k' twice (at byte 38)"),
    "value type 99": (header(keys=[key("k", 99, b"\0" * 8)]), "key 'k' has the unknown value type 99"),
    "value cut off": (header(keys=[key("kkkkkkkk", 10, b"\0" * 3)]), "key 'kkkkkkkk' needs 8 bytes, the file has 3"),
    "bool of 2": (header(keys=[key("k", BOOL, b"\2")]), "key 'k' holds a bool of value 2, neither 0 nor 1"),
    "string length 2^63": (
        header(keys=[key("k", STRING, struct.pack("<Q", 1 << 63))]),
        f"key 'k', string 0 of 1 has a length of {1 << 63}",
    ),
    "array of 2^40 numbers": (
        header(keys=[key("k", ARRAY, struct.pack("<IQ", U32, 1 << 40))]),
        f"key 'k' of {1 << 40} UINT32 needs {1 << 42} bytes, the file has 0 left",
    ),
    "array of 2^63 strings": (
        header(keys=[key("k", ARRAY, struct.pack("<IQ", STRING, 1 << 63))]),
        f"key 'k' of {1 << 63} strings needs {1 << 66} bytes",
    ),
    "array of 2^40 bools": (
        header(keys=[key("k", ARRAY, struct.pack("<IQ", BOOL, 1 << 40))]),
        f"key 'k' of {1 << 40} BOOL needs {1 << 40} bytes",
    ),
    "array of 2^40 arrays": (
        header(keys=[key("k", ARRAY, struct.pack("<IQ", ARRAY, 1 << 40))]),
        f"key 'k' of {1 << 40} arrays needs",
    ),
    "arrays in arrays": (
        header(keys=[key("k", ARRAY, struct.pack("<IQ", ARRAY, 1) * 1000)]),
        "nests arrays deeper than 4",
    ),
    "alignment 0": (
        header(keys=[key("general.alignment", U32, struct.pack("<I", 0))]),
        "general.alignment is 0, it must be a power of two",
    ),
    "alignment 24": (
        header(keys=[key("general.alignment", U32, struct.pack("<I", 24))]),
        "general.alignment is 24, it must be a power of two",
    ),
    "alignment a string": (
        header(keys=[key("general.alignment", STRING, text("32"))]),
        "general.alignment is '32', it must be a power of two",
    ),
    "no dims": (padded(header(tensors=[tensor("t", ()) + b"\0" * 8])), "tensor 't' has 0 dims, allowed are 1 to 4"),
    "2^32-1 dims": (
        padded(header(tensors=[text("t") + struct.pack("<I", 0xFFFFFFFF) + b"\0" * 32])),
        "tensor 't' has 4294967295 dims",
    ),
    "a dim of 0": (padded(header(tensors=[tensor("t", (4, 0))])), "tensor 't' has the dims (4, 0); each must be"),
    "dims overflow": (
        padded(header(tensors=[tensor("t", (1 << 32, 1 << 32, 1 << 32, 1 << 32))])),
        "their product below 2^63",
    ),
    "type 4": (padded(header(tensors=[tensor("t", (32,), 4)])), "tensor 't' has the unknown type 4"),
    "type 2^31": (padded(header(tensors=[tensor("t", (32,), 1 << 31)])), f"has the unknown type {1 << 31}"),
    "row and block": (
        padded(header(tensors=[tensor("t", (33, 2), 2)]), b"\0" * 64),
        "tensor 't' has rows of 33, no multiple of Q4_0's block of 32",
    ),
    "offset off the grid": (
        padded(header(tensors=[tensor("t", (4,), 0, 8)]), b"\0" * 64),
        "tensor 't' has the offset 8, no multiple of the alignment 32",
    ),
    "offset past the end": (
        padded(header(tensors=[tensor("t", (4,), 0, 1 << 40)]), b"\0" * 64),
        f"tensor 't' takes bytes {(1 << 40) + 64} to {(1 << 40) + 80}, the file has 128",
    ),
    "offset 2^64-32": (
        padded(header(tensors=[tensor("t", (4,), 0, (1 << 64) - 32)]), b"\0" * 64),
        "the file has 128: truncated or lying",
    ),
    "data cut off": (
        padded(header(tensors=[tensor("t", (16,))]), b"\0" * 60),
        "tensor 't' takes bytes 64 to 128, the file has 124: truncated or lying",
    ),
    "tensor twice": (
        padded(header(tensors=[tensor("t", (4,)), tensor("t", (4,), 0, 32)]), b"\0" * 64),
        "has the tensor 't' twice",
    ),
    "overlap": (
        padded(header(tensors=[tensor("a", (16,)), tensor("b", (4,), 0, 32)]), b"\0" * 64),
        "tensors 'a' and 'b' overlap",
    ),
    "empty tensor name": (padded(header(tensors=[tensor("", (4,)) + b"\0"])), "the name of tensor 0 of 1 is empty"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_lies_are_refused_by_name(name: str, tmp_path: Path) -> None:
    content, message = LIES[name]
    began = time.perf_counter()
    assert message in refusal(tmp_path / "lie.gguf", content)
    assert time.perf_counter() - began < 1.0


@pytest.mark.parametrize("name", [name for name in LIES if "2^" in name])
def test_giant_counts_cost_no_memory(name: str, tmp_path: Path) -> None:
    path = tmp_path / "lie.gguf"
    path.write_bytes(LIES[name][0])
    tracemalloc.start()
    try:
        GgufFile.open(path)
    except InvalidModelFile:
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_a_sparse_file_cannot_buy_a_long_loop(tmp_path: Path) -> None:
    """A file of 1 TiB that takes no disk has room for any count; fixed limits hold."""
    for kind, message in (
        (STRING, f"items, the limit is {MAX_HEADER_ITEMS}"),
        (ARRAY, "past the limit of 268435456 for a header"),
        (U32, "past the limit of 268435456 for a header"),
    ):
        path = tmp_path / "sparse.gguf"
        n = 1 << 24 if kind == STRING else 1 << 36
        path.write_bytes(header(keys=[key("k", ARRAY, struct.pack("<IQ", kind, n))]))
        with path.open("r+b") as file:
            file.truncate(1 << 40)
        began = time.perf_counter()
        with pytest.raises(InvalidModelFile) as caught:
            GgufFile.open(path)
        assert message in str(caught.value)
        assert time.perf_counter() - began < 1.0


def test_what_is_no_file(tmp_path: Path) -> None:
    for path, message in (
        (tmp_path, "not a regular file"),
        (tmp_path / "missing.gguf", "no such file"),
        (Path("/dev/zero"), "not a regular file"),
    ):
        with pytest.raises(InvalidModelFile, match=message):
            GgufFile.open(path)


@st.composite
def edits(draw: st.DrawFn) -> list[tuple[str, float, bytes]]:
    edit = st.tuples(
        st.sampled_from(["flip", "insert", "cut", "truncate", "huge"]),
        st.floats(0, 1, exclude_max=True),
        st.binary(min_size=1, max_size=16),
    )
    return draw(st.lists(edit, min_size=1, max_size=4))


def damaged(content: bytes, changes: list[tuple[str, float, bytes]]) -> bytes:
    for what, where, data in changes:
        at = int(where * len(content))
        if what == "flip":
            content = content[:at] + data + content[at + len(data) :]
        elif what == "insert":
            content = content[:at] + data + content[at:]
        elif what == "cut":
            content = content[:at] + content[at + len(data) :]
        elif what == "huge":
            content = content[:at] + b"\xff" * 7 + content[at + 7 :]
        else:
            content = content[:at]
    return content


@settings(max_examples=400, deadline=2000)
@given(changes=edits())
def test_damaged_files_open_or_are_refused(changes: list[tuple[str, float, bytes]], tmp_path_factory) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(damaged(SMALL, changes))
    try:
        file = GgufFile.open(path)
    except InvalidModelFile:
        return
    for name in file.names():
        try:
            assert file.f32(name).shape == file.info(name).shape
        except ModelError:
            continue


SMALL = padded(
    header(
        keys=[
            key("general.architecture", STRING, text("llama")),
            key("general.alignment", U32, struct.pack("<I", 32)),
            key("k.strings", ARRAY, struct.pack("<IQ", STRING, 3) + text("a") + text("") + text("ccc")),
            key("k.nested", ARRAY, struct.pack("<IQIQ", ARRAY, 1, U8, 2) + b"\1\2"),
            key("k.flags", ARRAY, struct.pack("<IQ", BOOL, 2) + b"\1\0"),
        ],
        tensors=[tensor("a", (4, 2)), tensor("b", (32, 2), 2, 32), tensor("c", (8,), 1, 96)],
    ),
    bytes(range(112)),
)
