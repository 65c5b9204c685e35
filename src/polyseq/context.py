"""decode(): the five steps on one screen. Check, settle, place, then ubatch by ubatch apply, compute and collect.

Enters: a `Batch`. Leaves: `Outputs`, or an error after which the memory is as it was before the call.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, get_args

from polyseq.backends import CacheTensors, LoadedModel, Plan, Progress, RunOptions
from polyseq.backends import backend as find_backend
from polyseq.batch import Batch, CheckedBatch, FlatBatch, Limits, check
from polyseq.compute import Compute, content
from polyseq.context_sizes import HasSizes
from polyseq.dues import Dues
from polyseq.errors import Aborted, BadColumn, CapabilityError, ContextError, PolyseqError, SequenceError
from polyseq.graph import PlanCache
from polyseq.memory import (
    Memory,
    MemoryPlan,
    MemorySettings,
    Refused,
    cache_parts,
    drop_middle,
    kind_of,
    make_memory,
    place,
)
from polyseq.mode import AnyPooling, Mode, is_encoder, mode_of, sizes_of
from polyseq.model import Model
from polyseq.outputs import Outputs
from polyseq.rollback import OnError, Rollback, partly_decoded
from polyseq.saved_state import from_bytes, to_bytes, write_whole
from polyseq.trace import Recorder, Sink, TracedMemory


@dataclass(frozen=True, slots=True)
class Stats:
    """What a context has done so far."""

    n_decode: int  # calls that succeeded
    n_ubatches: int
    n_tokens: int
    plan_hits: int  # ubatches that reused a compute plan
    plan_misses: int
    plan_miss_reasons: dict[str, int]


class Context(HasSizes):
    """One memory and one stream of calls on a model.

    n_ctx cells in all (0 = what the model was trained for), over n_seq_max sequences unless `unified`; n_batch
    tokens at most in one call (2048, or n_ctx if that is less), n_ubatch in one computed block (512 or n_batch; 0 =
    n_batch). What is in effect can be read back; each clamping is in `notes` and was warned of once.
    `keep_hidden` and `keep_layers` keep rows per token; `allow_mixed` lets token rows and embedding rows share a
    batch. `trace` gets an event of every step, `progress` the name of each kernel before it is compiled. Raises
    `ContextError`, `BadSeqCount`, `CapabilityError`.

    `swa_full` gives layers with a sliding window as many cells as the others; with `n_rs_seq` a running state can go
    back that many positions. A call that fails is taken back, with `on_error="keep_finished"` from the ubatch that
    failed on; `nan_guard` makes a result that is not finite such a failure.

    `backend` computes, with `n_threads` (left out: one per physical core that this process may use) and K and V kept
    as `kv_type` ("bf16", or "int8" for half the memory); "reference" has neither choice.

    `pooling` makes it a context for embeddings, not logits: mean, cls, last or rank give one row per sequence, none
    one per token. Left out, a decoder gives logits and an encoder pools as its file says.
    """

    def __init__(
        self,
        model: Model,
        *,
        n_ctx: int = 0,
        n_seq_max: int = 1,
        n_batch: int | None = None,
        n_ubatch: int | None = None,
        unified: bool = False,
        backend: str = "auto",
        n_threads: int | None = None,
        kv_type: str | None = None,
        keep_hidden: bool = False,
        keep_layers: tuple[int, ...] = (),
        pooling: AnyPooling | None = None,
        allow_mixed: bool = False,
        swa_full: bool = False,
        n_rs_seq: int = 0,
        on_error: OnError = "undo",
        nan_guard: bool = False,
        trace: Sink | None = None,
        progress: Progress | None = None,
    ) -> None:
        hparams = model.architecture.hparams
        for il in keep_layers:
            if not 0 <= il < hparams.n_layer:
                raise ContextError(
                    f"keep_layers: layer {il} is outside [0, {hparams.n_layer})", settings={"keep_layers": keep_layers}
                )
        if on_error not in get_args(OnError):
            raise ContextError(
                f"on_error is {on_error!r}, it must be one of {', '.join(get_args(OnError))}",
                settings={"on_error": on_error},
            )
        self.model = model
        self.mode: Mode = mode_of(model, pooling)
        self.sizes = sizes_of(
            model, n_ctx=n_ctx, n_seq_max=n_seq_max, n_batch=n_batch, n_ubatch=n_ubatch, unified=unified
        )
        self.keep_hidden = keep_hidden or self.mode.hidden
        self.keep_layers = tuple(sorted(set(keep_layers)))
        self._limits = Limits(
            n_vocab=hparams.n_vocab,
            n_seq_max=n_seq_max,
            n_pos=model.architecture.n_pos,
            n_batch=self.sizes.n_batch,
            n_embd=hparams.n_embd,
            allow_mixed=allow_mixed,
            output_all=not self.mode.logits,
        )
        chosen = find_backend(backend, progress=progress)
        self.backend = chosen.name
        loaded = model.loaded(chosen)
        kept = MemorySettings(
            layers=model.architecture.cache_layers,
            n_cells=self.sizes.n_ctx_seq,
            n_seq_max=n_seq_max,
            unified=unified,
            n_ubatch=self.sizes.n_ubatch,
            n_pos=model.architecture.n_pos,
            embeddings=self.mode.pooling is not None,
            packed=chosen.packed,
            swa_full=swa_full,
            n_rs_seq=n_rs_seq,
        )
        self._kept = kept
        options = RunOptions(n_threads, kv_type)
        self._cache = self._make_cache(loaded, kept, options)  # before the metadata: its pages are not taken until used
        memory = make_memory(kept)
        self._memory = memory  # what a call needs of it is in no trace, and need not go round by it
        self._trace = Recorder(trace)
        self.memory: Memory = memory if trace is None else TracedMemory(memory, self._trace)
        self._trace.opened(model.name, self.backend, self.sizes, memory=self.memory, kind=self.kind)
        build = model.architecture.build
        self._plans: PlanCache[Plan] = PlanCache(lambda wanted: loaded.plan(build(wanted), self._cache))
        shift_plans = tuple(
            loaded.plan(model.architecture.build_shift(il), self._cache)
            for il in sorted(il for part in self.memory.parts if part.rotates for il in part.layers)
        )
        self._dues = Dues(self.memory, self._cache, shift_plans)
        self._compute = Compute(
            memory,
            self._plans,
            self._trace,
            mode=self.mode,
            hidden=self.keep_hidden,
            layers=self.keep_layers,
            nan_guard=nan_guard,
        )
        self.on_error: OnError = on_error
        self._abort: threading.Event | None = None
        self._n_decode = self._n_ubatches = self._n_tokens = 0

    def _make_cache(self, loaded: LoadedModel, kept: MemorySettings, options: RunOptions) -> CacheTensors:
        parts = cache_parts(kept)
        try:
            return loaded.cache(parts, options)
        except (MemoryError, ValueError) as error:  # NumPy says ValueError above what an address can hold
            wanted = " and ".join(f"{p.n_stream} x {p.n_cells} cells in {len(p.layers)} layers" for p in parts)
            raise ContextError(f"no memory for {wanted}; lower n_ctx") from error

    # ---- what is in effect -----------------------------------------------------------------------------

    @property
    def options(self) -> RunOptions:
        """Threads and KV type in effect; None where the backend has no such choice."""
        return self._cache.options

    @property
    def kind(self) -> str:
        """The kind of memory, which follows from what the model's layers keep."""
        return kind_of(self._kept).name

    @property
    def n_bytes_kv(self) -> int:
        """Bytes of the cache tensors."""
        return self._cache.n_bytes

    @property
    def stats(self) -> Stats:
        """Counts since the context was made."""
        plans = self._plans
        return Stats(self._n_decode, self._n_ubatches, self._n_tokens, plans.hits, plans.misses, dict(plans.reasons))

    def batch(self) -> Batch:
        """An empty batch with this context's limits."""
        limits = self._limits
        return Batch(
            limits.n_batch,
            n_seq_max=limits.n_seq_max,
            n_vocab=limits.n_vocab,
            n_embd=limits.n_embd,
            n_pos=limits.n_pos,
        )

    # ---- the call --------------------------------------------------------------------------------------

    def decode(self, batch: Batch | FlatBatch) -> Outputs:
        """Changes the memory: computes all rows and returns their results, or changes nothing and raises.

        Raises `BatchError` (bad rows), `CapabilityError`, `CoupledSequences`, `NoSlot` (no room) or `Aborted`.
        Calls from several threads take turns.
        """
        with self.memory.lock:
            self._abort = threading.Event()
            self._trace.begin()
            try:
                checked = self._check(batch)
                self._trace.checked(checked)
                self._trace.settled(self._dues.settle())
                plan = place(self._memory, self._kept, checked)
                self._trace.placed(plan)
                outputs = self._run(plan)
            except BaseException as error:
                self._trace.failed(error)
                self._tell(error, batch)
                raise
            finally:
                self._abort = None
            self._n_decode += 1
            self._n_ubatches += len(plan.ubatches)
            self._n_tokens += checked.n_tokens
            return outputs

    def encode(self, batch: Batch | FlatBatch) -> Outputs:
        """Pure. `decode` for a model that keeps nothing between calls: each sequence is whole in the batch.

        Raises as `decode`, and `CapabilityError` for a model that does keep something.
        """
        if not is_encoder(self.model):
            raise CapabilityError(f"{self.model.name} keeps what it has read: use decode, it has no encode")
        return self.decode(batch)

    def plan(self, batch: Batch | FlatBatch) -> MemoryPlan[Any]:
        """Pure. How `decode` would cut and place the batch now; raises as `decode` does, computes nothing."""
        with self.memory.lock:
            try:
                return place(self.memory, self._kept, self._check(batch))
            except PolyseqError as error:
                self._tell(error, batch)
                raise

    def abort(self) -> None:
        """Ends the call that is running now, if any, before its next ubatch; it raises `Aborted`. For any thread.

        An ubatch that is being computed is finished first; what it computed is taken back with the rest.
        """
        running = self._abort
        if running is not None:
            running.set()

    def shift_context(self, seq_id: int, *, n_keep: int = 0, n_discard: int | None = None) -> int:
        """Changes the memory: makes room in a sequence by taking out `n_discard` positions (left out: half) after the
        first `n_keep`, and moving up what follows. How many were taken out.

        What is left was computed with what is gone in sight, so that answers are as llama.cpp's after its context
        shift, not as after reading the rest anew. Raises `CapabilityError` saying why, and then nothing has changed.
        """
        return drop_middle(self.memory, seq_id, n_keep=n_keep, n_discard=n_discard)

    def optimize(self) -> int:
        """Changes where things lie, nothing else: fills gaps between cells in use, so that attention reads fewer.

        How many cells moved. It makes no room. What ends it early leaves a part of it done, and all sequences sound.
        """
        with self.memory.lock:
            return self._dues.fill_gaps()

    # ---- kept elsewhere --------------------------------------------------------------------------------

    def save(self, seq_id: int | None = None) -> bytes:
        """Pure (what is owed to the cache tensors is paid first). What a sequence, or every one, holds, as bytes.

        A safetensors blob for `restore`, here or in another context on this model and backend. Raises `SequenceError`.
        """
        with self.memory.lock:
            self._dues.settle()
            seq_ids = list(range(self.n_seq_max)) if seq_id is None else [seq_id]
            return to_bytes(self.memory, self._cache, self.model, seq_ids)

    def restore(self, blob: bytes, seq_id: int | None = None) -> None:
        """Changes the memory: saved sequences are held again, as if computed here; a single one as `seq_id` if given.

        They must be empty here. Raises `SavedStateError` or `NoSlot`, and then nothing has changed.
        """
        with self.memory.lock:
            self._dues.settle()
            from_bytes(blob, self.memory, self._cache, self.model, seq_id)

    def save_file(self, path: str | PathLike[str], seq_id: int | None = None) -> None:
        """Writes `save(seq_id)` to a file, which is there as a whole or not at all. Raises OSError."""
        write_whole(Path(path), self.save(seq_id))

    def restore_file(self, path: str | PathLike[str], seq_id: int | None = None) -> None:
        """Changes the memory: `restore` of a file's bytes. Raises OSError too."""
        self.restore(Path(path).read_bytes(), seq_id)

    # ---- its steps -------------------------------------------------------------------------------------

    def _check(self, batch: Batch | FlatBatch) -> CheckedBatch:
        rows = batch.to_batch(n_pos=self._limits.n_pos) if isinstance(batch, FlatBatch) else batch
        if not isinstance(rows, Batch):
            raise BadColumn(f"decode takes a Batch or a FlatBatch, not {type(batch).__name__}")
        checked = check(rows, self._limits, self._memory.ranges)
        name, accepts = self.model.architecture.name, self.model.architecture.accepts
        given = content(checked)
        if given not in accepts:
            raise CapabilityError(f"architecture {name} takes rows of {' or '.join(sorted(accepts))}, not {given}")
        if checked.state is not None:
            raise CapabilityError(f"architecture {name} takes no hidden-state rows")
        if checked.span is not None and not self.model.architecture.takes_spans:
            raise CapabilityError(f"architecture {name} takes no spans: its rows cannot be made to see later ones")
        self.mode.check(checked, self.sizes)
        torn = self._memory.why_torn(checked)
        if torn:
            raise SequenceError(torn)
        return checked

    def _tell(self, error: BaseException, batch: Batch | FlatBatch) -> None:
        """Changes the error: it knows which call it refused."""
        if isinstance(error, PolyseqError) and isinstance(batch, Batch | FlatBatch):
            Refused(batch, self.memory, self._kept).attach(error)

    def _run(self, plan: MemoryPlan[Any]) -> Outputs:
        """Applies and computes ubatch after ubatch; whatever ends it early, what was applied is taken back: all of it,
        or with "keep_finished" the ubatch under way.
        """
        n_embd = self.model.architecture.hparams.n_embd
        collector = self._compute.collector(n_vocab=self._limits.n_vocab, n_embd=n_embd)
        keeps = self.on_error == "keep_finished"
        call = Rollback(self._memory, self._cache, plan.slots, per_ubatch=keeps)
        try:
            for i, (ubatch, slot) in enumerate(zip(plan.ubatches, plan.slots, strict=True)):
                self._check_abort(f"before ubatch {i} of {len(plan.ubatches)}")
                call.apply(ubatch, slot)
                self._compute.ubatch(ubatch, slot, collector)
                call.finished()
            if not keeps:
                self._check_abort("after the last ubatch")
            outputs = collector.finish()
            self._trace.done()
            return outputs
        except BaseException as error:
            call.undo()
            if call.n_finished and isinstance(error, Exception):
                raise partly_decoded(plan.ubatches, call.n_finished, error, collector) from error
            raise

    def _check_abort(self, where: str) -> None:
        if self._abort is not None and self._abort.is_set():
            stays = "as before the call" if self.on_error == "undo" else "as after the last finished ubatch"
            raise Aborted(f"aborted {where}; the memory is {stays}")
