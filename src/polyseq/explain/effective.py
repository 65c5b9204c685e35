"""What each setting of a context became, and why.

Enters: what was asked for and the `ContextSizes` in effect. Leaves: an `Effective` configuration, as lines or JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from polyseq.context import Context
from polyseq.context_sizes import DEFAULT_N_BATCH, DEFAULT_N_UBATCH, ContextSizes


@dataclass(frozen=True, slots=True)
class Asked:
    """The settings as a caller gave them; None = left out."""

    n_ctx: int | None = None
    n_seq_max: int | None = None
    n_batch: int | None = None
    n_ubatch: int | None = None
    unified: bool | None = None
    backend: str | None = None
    n_threads: int | None = None
    kv_type: str | None = None
    from_file: str | None = None  # a settings file that gave what was left out


@dataclass(frozen=True, slots=True)
class Setting:
    """One line: a name, what was asked, what is in effect, why it differs ("" where it does not)."""

    name: str
    asked: int | str | None
    effective: int | str
    why: str


@dataclass(frozen=True, slots=True)
class Effective:
    """All settings of a context."""

    settings: tuple[Setting, ...]
    notes: tuple[str, ...]  # what the context itself said about them

    def to_json(self) -> dict[str, Any]:
        settings = {s.name: {"asked": s.asked, "effective": s.effective, "why": s.why or None} for s in self.settings}
        return {"settings": settings, "notes": list(self.notes)}

    def lines(self) -> list[str]:
        """Pure. A padded line per setting."""
        rows = [(s.name, _word(s.asked), str(s.effective), s.why) for s in self.settings]
        rows.insert(0, ("setting", "asked", "in effect", "why"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return ["  ".join(f"{word:<{w}}" for word, w in zip(row, widths, strict=True)).rstrip() for row in rows]

    def line(self) -> str:
        """Pure. All settings in effect on one line."""
        return ", ".join(f"{s.name} {s.effective}" for s in self.settings)


def effective(ctx: Context, asked: Asked) -> Effective:
    """Pure. Of a context that was made as asked."""
    found = effective_sizes_of(ctx.sizes, asked, backend=ctx.backend)
    options, keeps = ctx.options, "by what the model's layers keep"
    more = (
        _option("n_threads", asked.n_threads, options.n_threads, asked, "one per core"),
        _option("kv_type", asked.kv_type, options.kv_type, asked, "the backend's own"),
        Setting("keeps", None, ctx.kind, keeps),
    )
    return Effective((*found.settings, *more), found.notes)


def _option(name: str, asked: int | str | None, found: int | str | None, a: Asked, default: str) -> Setting:
    in_effect = "-" if found is None else found
    return Setting(name, asked, in_effect, "" if asked is not None else _left_out(None, in_effect, a, default))


def effective_sizes_of(sizes: ContextSizes, asked: Asked, *, backend: str) -> Effective:
    """Pure. The sizes alone; `backend` is the name of the one that computes."""
    a, n = asked, sizes
    kind = "unified" if n.unified else "streams"
    kind_asked = None if a.unified is None else ("unified" if a.unified else "streams")
    found = [
        Setting("n_ctx", a.n_ctx, n.n_ctx, _why_n_ctx(a, n)),
        Setting("n_seq_max", a.n_seq_max, n.n_seq_max, _left_out(a.n_seq_max, n.n_seq_max, a, "what is needed")),
        Setting("memory", kind_asked, kind, _left_out(kind_asked, kind, a, "the default")),
        Setting("n_ctx_seq", None, n.n_ctx_seq, _why_n_ctx_seq(n)),
        Setting("n_batch", a.n_batch, n.n_batch, _why_n_batch(a, n)),
        Setting("n_ubatch", a.n_ubatch, n.n_ubatch, _why_n_ubatch(a, n)),
        Setting("backend", a.backend, backend, _why_backend(a, backend)),
    ]
    return Effective(tuple(found), n.notes)


def _why_n_ctx(a: Asked, n: ContextSizes) -> str:
    if a.n_ctx == 0:
        return "0: what the model was trained for"
    return _left_out(a.n_ctx, n.n_ctx, a, "what is needed, or what the model was trained for")


def _why_n_ctx_seq(n: ContextSizes) -> str:
    if n.unified:
        return "unified: any sequence may take all cells"
    unused = n.n_ctx - n.n_ctx_seq * n.n_seq_max
    return f"n_ctx {n.n_ctx} over {n.n_seq_max} streams" + (f", {unused} cells unused" if unused else "")


def _why_n_batch(a: Asked, n: ContextSizes) -> str:
    if a.n_batch is not None and a.n_batch > n.n_batch:
        return f"at most n_ctx {n.n_ctx}"
    return _left_out(a.n_batch, n.n_batch, a, f"the smaller of {DEFAULT_N_BATCH} and n_ctx {n.n_ctx}")


def _why_n_ubatch(a: Asked, n: ContextSizes) -> str:
    if a.n_ubatch == 0:
        return "0: as n_batch"
    if a.n_ubatch is not None and a.n_ubatch > n.n_ubatch:
        return f"at most n_batch {n.n_batch}"
    return _left_out(a.n_ubatch, n.n_ubatch, a, f"the smaller of {DEFAULT_N_UBATCH} and n_batch {n.n_batch}")


def _why_backend(a: Asked, backend: str) -> str:
    if a.backend == "auto":
        return "auto: the best there is here"
    return _left_out(a.backend, backend, a, "the best there is here")


def _left_out(asked: int | str | None, found: int | str, a: Asked, why: str) -> str:
    if asked is not None:
        return "" if asked == found else f"not {asked}"
    return f"left out: from {a.from_file}" if a.from_file else f"left out: {why}"


def _word(value: int | str | None) -> str:
    return "-" if value is None else str(value)
