"""`polyseq inspect`: what is in a model file, and what memory a context over it would take.

Enters: a model and the settings of a context. Leaves: a description on stdout.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from polyseq.cli.filefacts import TypeShare, short_metadata, stored_bytes, type_shares
from polyseq.cli.footprint import Footprint, footprint
from polyseq.cli.options import AsJson, Backend, KvType, ModelName, NoFetch, SettingsFile
from polyseq.cli.progress import resolve_model
from polyseq.cli.reporting import no_warnings, print_json, reporting
from polyseq.cli.settings import chosen, read_settings
from polyseq.cli.tables import stdout_console
from polyseq.cli.text import human_bytes, human_count, one_line, plural
from polyseq.context_sizes import ContextSizes
from polyseq.errors import UnsupportedModel
from polyseq.mode import sizes_of
from polyseq.model import Model
from polyseq.weights import GgufFile, open_model
from polyseq.weights.hf_folder import HfFolder


@dataclass(frozen=True, slots=True)
class Description:
    """All that is shown of one file."""

    path: Path
    file: GgufFile | HfFolder
    shares: list[TypeShare]
    model: Model | None  # None where polyseq does not run the file
    refusal: str  # why it does not
    sizes: ContextSizes | None  # of the context that the memory is about,
    memory: Footprint | None

    @property
    def name(self) -> str:
        return str(self.file.metadata.get("general.name", self.path.stem))

    @property
    def architecture(self) -> str:
        return str(self.file.metadata.get("general.architecture", "not named"))

    @property
    def n_params(self) -> int:
        return sum(share.n_params for share in self.shares)

    @property
    def n_bytes(self) -> int:
        return stored_bytes(self.path)


def inspect(
    model: ModelName,
    n_ctx: Annotated[
        int | None, typer.Option(min=0, help="Cells; left out or 0, what the model was trained with.")
    ] = None,
    n_seq_max: Annotated[int | None, typer.Option(min=1, max=256, help="Sequences; left out, 1.")] = None,
    n_batch: Annotated[int | None, typer.Option(min=1, help="Most rows of one decode call.")] = None,
    n_ubatch: Annotated[int | None, typer.Option(min=0, help="Most rows computed at once.")] = None,
    unified: Annotated[
        bool | None,
        typer.Option("--unified/--streams", help="One cache for all sequences, or one for each; left out, streams."),
    ] = None,
    backend: Backend = None,
    kv_type: KvType = None,
    settings_file: SettingsFile = None,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    as_json: AsJson = False,
    no_fetch: NoFetch = False,
) -> None:
    """Show what is in a model file, and what memory a context would take."""
    with reporting(as_json=as_json), no_warnings():
        tuned = read_settings(settings_file)
        path = resolve_model(model, fetch=not no_fetch)
        file = open_model(path)
        loaded, refusal = _loaded(path)
        sizes = memory = None
        if loaded:
            sizes = sizes_of(
                loaded,
                n_ctx=chosen(n_ctx, tuned.n_ctx if tuned else None, 0),
                n_seq_max=chosen(n_seq_max, tuned.n_seq_max if tuned else None, 1),
                n_batch=chosen(n_batch, tuned.n_batch if tuned else None, None),
                n_ubatch=chosen(n_ubatch, tuned.n_ubatch if tuned else None, None),
                unified=chosen(unified, tuned.unified if tuned else None, False),
            )
            memory = footprint(
                loaded,
                sizes,
                backend_name=chosen(backend, tuned.backend if tuned else None, "auto"),
                kv_type=chosen(kv_type, tuned.kv_type if tuned else None, None),
            )
        found = Description(path, file, type_shares(file), loaded, refusal, sizes, memory)
        if as_json:
            print_json(_as_json(found, with_tensors=tensors))
        else:
            _show(found, with_tensors=tensors)


def _loaded(path: Path) -> tuple[Model | None, str]:
    try:
        return Model.load(path), ""
    except UnsupportedModel as error:
        return None, str(error)


# ---- the parts of a description ------------------------------------------------------------------------


def _hparams(model: Model) -> dict[str, object]:
    """The architecture's sizes that are plain numbers or words."""
    hparams = model.architecture.hparams
    if not is_dataclass(hparams):
        return {}
    values = {field.name: getattr(hparams, field.name) for field in fields(hparams)}
    return {name: value for name, value in values.items() if isinstance(value, int | float | str)}


def _tokenizer(found: Description) -> dict[str, object]:
    metadata = found.file.metadata
    facts: dict[str, object] = {"model": metadata.get("tokenizer.ggml.model")}
    if "tokenizer.ggml.pre" in metadata:
        facts["pre"] = metadata["tokenizer.ggml.pre"]
    tokenizer = found.model and found.model.tokenizer
    if tokenizer:
        facts |= {"n_vocab": tokenizer.n_vocab, "bos": tokenizer.bos, "eos": tokenizer.eos, "eot": tokenizer.eot}
        facts["stop_ids"] = sorted(tokenizer.stop_ids)
    return facts


def _as_json(found: Description, *, with_tensors: bool) -> dict[str, object]:
    described: dict[str, object] = {
        "name": found.name,
        "path": str(found.path),
        "architecture": found.architecture,
        "supported": found.model is not None,
        "refusal": found.refusal or None,
        "n_params": found.n_params,
        "n_bytes": found.n_bytes,
        "n_tensors": len(found.file.tensors),
        "types": [asdict(share) for share in found.shares],
        "hparams": _hparams(found.model) if found.model else None,
        "tokenizer": _tokenizer(found),
        "chat_template": "tokenizer.chat_template" in found.file.metadata,
        "memory": _memory_json(found.sizes, found.memory) if found.sizes and found.memory else None,
        "metadata": short_metadata(found.file.metadata),
    }
    if with_tensors:
        described["tensors"] = [
            {"name": t.name, "shape": list(t.shape), "type": t.qtype.name, "n_bytes": t.n_bytes}
            for t in found.file.tensors.values()
        ]
    return described


def _show(found: Description, *, with_tensors: bool) -> None:
    console = stdout_console()
    console.print(f"{found.name} ({found.path})", style="bold")
    console.print(_pairs(_summary(found)))
    console.print("\nstored as", style="bold")
    console.print(_types_table(found.shares))
    if found.model:
        console.print("\nsizes", style="bold")
        console.print(_pairs(_hparams(found.model)))
    if found.sizes and found.memory:
        kept = f", K and V as {found.memory.kv_type}" if found.memory.kv_bytes else ""
        console.print(f"\nmemory of a context ({found.memory.backend} backend{kept})", style="bold")
        console.print(_pairs(_memory_lines(found.sizes, found.memory)))
    console.print("\nmetadata", style="bold")
    console.print(_pairs({k: _words(v) for k, v in short_metadata(found.file.metadata).items()}))
    if with_tensors:
        console.print("\ntensors", style="bold")
        console.print(_tensor_table(found.file))


def _summary(found: Description) -> dict[str, object]:
    n_params, n_bytes = found.n_params, found.n_bytes
    bits = f"{8 * n_bytes / n_params:.2f} bits per parameter" if n_params else "no tensors"
    tokenizer = _tokenizer(found)
    lines: dict[str, object] = {
        "architecture": found.architecture,
        "parameters": f"{human_count(n_params)} ({n_params})",
        "file": f"{human_bytes(n_bytes)}, {len(found.file.tensors)} tensors, {bits}",
        "tokenizer": ", ".join(f"{k} {v}" for k, v in tokenizer.items() if v is not None) or "none",
        "chat template": "yes" if "tokenizer.chat_template" in found.file.metadata else "no",
    }
    if found.refusal:
        lines["not supported"] = found.refusal
    return lines


def _memory_lines(sizes: ContextSizes, memory: Footprint) -> dict[str, object]:
    kind = "one cache for all" if sizes.unified else "one stream each"
    lines: dict[str, object] = {
        "cells": f"{sizes.n_ctx}; {plural(sizes.n_seq_max, 'sequence')} of up to {sizes.n_ctx_seq} ({kind})",
        "batch": f"n_batch {sizes.n_batch}, n_ubatch {sizes.n_ubatch}",
        "KV cache": f"{human_bytes(memory.kv_bytes)} ({memory.kv_bytes_per_cell} bytes per cell)",
        "weights": human_bytes(memory.weights_bytes),
        "logits": f"{human_bytes(memory.logits_bytes)} (one row per sequence)",
        "total": human_bytes(memory.total_bytes),
    }
    return lines | {f"note {i}": note for i, note in enumerate(sizes.notes, 1)}


def _memory_json(sizes: ContextSizes, memory: Footprint) -> dict[str, object]:
    return {**asdict(sizes), **asdict(memory), "total_bytes": memory.total_bytes}


def _words(value: object) -> str:
    """One metadata value on one line."""
    if isinstance(value, list):
        return one_line(", ".join(map(str, value)), 120)
    if isinstance(value, dict):
        return one_line(f"{value['n_items']} items: {', '.join(map(str, value['first']))}, ...", 120)
    return one_line(str(value), 120)


# ---- tables ----------------------------------------------------------------------------------------------


def _pairs(values: dict[str, object]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in values.items():
        table.add_row(name, str(value))
    return table


def _types_table(shares: list[TypeShare]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("type", "tensors", "parameters", "size"):
        table.add_column(title, justify="left" if title == "type" else "right")
    for share in shares:
        row = (str(share.n_tensors), human_count(share.n_params), human_bytes(share.n_bytes))
        table.add_row(share.qtype, *row)
    return table


def _tensor_table(file: GgufFile | HfFolder) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("name", "shape", "type", "size"):
        table.add_column(title, justify="right" if title == "size" else "left")
    for info in file.tensors.values():
        table.add_row(info.name, " x ".join(map(str, info.shape)), info.qtype.name, human_bytes(info.n_bytes))
    return table
