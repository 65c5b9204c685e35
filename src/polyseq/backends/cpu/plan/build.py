"""A fused graph becomes records, for ubatches up to a size: addresses of weights, buffers and kernels put together.

Enters: groups, weights, a cache, how many rows there is room for. Leaves: `Built`: records, the steps that a run
consists of, and which words a run sets because they differ each time. Lowering functions (lower.py) say which unit an
op becomes, through `Builder`; all is lowered twice, first to see which buffers are touched when, then with their places
known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from polyseq.backends.cpu.cache import CpuCache
from polyseq.backends.cpu.plan.arena import Lifetime, offsets
from polyseq.backends.cpu.plan.fuse import Form, Fused, Group
from polyseq.backends.cpu.plan.weights import PackedWeights
from polyseq.backends.cpu.rows import activation
from polyseq.backends.cpu.rows.turns import Turns
from polyseq.backends.cpu.words import aligned
from polyseq.backends.cpu.words.records import RECORD_BYTES, RECORD_WORDS, STEP_WORDS, R, S
from polyseq.graph import Graph, Input, Ref, Value
from polyseq.graph.ops import Dim
from polyseq.memory.cache_part import PartName

ROW_BLOCK = activation.N_ROWS  # kernels may write rows up to the next multiple


@dataclass(frozen=True, slots=True)
class Segment:
    """Records that run one after another without Python in between."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Call:
    """A node that the reference backend's function computes."""

    group: Group


@dataclass(frozen=True, slots=True)
class Late:
    """An address that is known only when a run begins: an input's or a result's."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class Then:
    """The address of a record that goes on with another's columns."""

    i: int


Word = int | Late | Then
Key = tuple[Ref, Form]


@dataclass(frozen=True, slots=True)
class GoOn:
    """What is done with some columns of rows, as soon as they are there: a unit over rows and its words."""

    unit: str
    words: Mapping[int, Word]
    scratch_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Built:
    """What a plan runs for as many rows as there is room for."""

    records: NDArray[np.int64]  # [n_records, RECORD_WORDS]
    going_on: NDArray[np.int64]  # the same, of records that others name
    steps: tuple[Segment | Call, ...]
    late: Mapping[Ref, tuple[NDArray[np.intp], NDArray[np.intp]]]  # by ref: which words of which records
    arena: NDArray[np.uint8]
    places: Mapping[Key, int]  # offsets in the arena
    same: Mapping[Ref, Ref]  # values whose rows are where another's were
    scratch_bytes: int  # per thread
    dims: Mapping[Dim, int]  # the step word that holds each count of rows
    turns: Mapping[tuple[Turns, Input], int]  # the step word for the turns of these positions
    partials: Mapping[PartName, tuple[int, int]]  # by part: see `Builder.share_rows`


class Builder:
    """What lowering functions call. A buffer is in its place from the first phase that touches it to the last."""

    def __init__(
        self, graph: Graph, fused: Fused, weights: PackedWeights, cache: CpuCache, rooms: Mapping[str, int]
    ) -> None:
        self.fused, self.weights, self.cache, self.rooms = fused, weights, cache, rooms
        self.late = {ref for ref in graph.results.values() if isinstance(ref, Value)}
        self.dims: dict[Dim, int] = dict(_NAMED)
        self.i_group = 0
        self._readers: dict[Ref, list[int]] = {}
        for i, group in enumerate(fused.groups):
            for ref in group.reads:
                self._readers.setdefault(ref, []).append(i)
        self._kept = set(graph.results.values())
        self._scratch_bytes = 0
        self._begin(None)

    # ---- for lowering functions ------------------------------------------------------------------------

    def rows(self, ref: Ref) -> Word:
        """The address of rows [n, d] f32."""
        ref = self._same.get(ref, ref)
        if isinstance(ref, Input) or ref in self.late:
            return Late(ref)
        return self._touch((ref, "rows"), self.room(ref) * width(ref) * 4)

    def records(self, ref: Ref) -> Word:
        """The address of rows as 8-bit records (activation.py)."""
        return self._touch((ref, "records"), activation.n_bytes(self.room(ref), width(ref)))

    def wants(self, ref: Ref) -> frozenset[Form]:
        """The forms in which others read this value."""
        return self.fused.forms.get(ref, frozenset())

    def room(self, ref: Ref) -> int:
        """Rows that a value's buffer has."""
        n = ref.shape[0]
        return -(-(self.rooms[n] if isinstance(n, str) else n) // ROW_BLOCK) * ROW_BLOCK

    def dies(self, ref: Ref) -> bool:
        """Whether the group being lowered is the last to read the value, and alone in its phase."""
        others = [self.fused.groups[i].phase for i in self._readers.get(ref, ()) if i != self.i_group]
        alone = all(phase < self.fused.groups[self.i_group].phase for phase in others)
        return isinstance(ref, Value) and ref not in self._kept and alone

    def first_read(self, ref: Ref) -> bool:
        """Whether no group before the one being lowered reads this."""
        return all(ref not in group.reads for group in self.fused.groups[: self.i_group])

    def record_stride(self, ref: Ref) -> int:
        """Bytes of a value's records from 12 rows to the next 12."""
        return activation.n_bytes(ROW_BLOCK, width(ref))

    def in_place(self, out: Ref, of: Ref) -> None:
        """From here on the rows of `out` are where the rows of `of` are."""
        self._same[out] = self._same.get(of, of)

    def kernel(self, name: str) -> int:
        """The address of a compiled kernel."""
        return self.cache.pool.kernel(name)

    def turns_word(self, turns: Turns, pos: Input) -> int:
        """The step word that will hold the address of these turns for a run's positions."""
        word = self._turns.setdefault((turns, pos), S.TURNS + len(self._turns))
        if word >= STEP_WORDS:
            raise ValueError(f"a graph turns rows in more than {STEP_WORDS - S.TURNS} ways")
        return word

    def share_rows(self, part: PartName, partial_floats: int, n_head_kv: int) -> None:
        """A layer of this part needs that many f32 per KV head for a segment of a row that threads share."""
        floats, heads = self._partials.get(part, (0, 0))
        self._partials[part] = max(floats, partial_floats), max(heads, n_head_kv)

    def record(
        self,
        unit: str,
        rows: Dim | S,
        words: Mapping[int, Word],
        *,
        n_fixed: int = 1,
        per_unit: int = 1,
        max_chunk: int = 1,
        scratch_bytes: int = 0,
        then: Sequence[Sequence[GoOn]] = (),
    ) -> None:
        """One op record: n_fixed * ceil(rows / per_unit) units of the kernel `unit`.

        then [n_fixed][any number]: what a linear op's units do with their part of the columns, the same for every part.
        """
        going_on = [more for part in then for more in part]
        self._scratch_bytes = max(self._scratch_bytes, scratch_bytes, *(more.scratch_bytes for more in going_on))
        record: dict[int, Word] = {R.UNIT: self.kernel(unit), R.COUNT_WORD: self.count_word(rows)}
        record |= {R.N_FIXED: n_fixed, R.PER_UNIT: per_unit, R.MAX_CHUNK: max_chunk}
        record |= {R.THEN: Then(len(self._going_on)), R.N_THEN: len(then[0]) if then else 0}
        for more in going_on:
            own = {R.UNIT: self.kernel(more.unit), R.COUNT_WORD: record[R.COUNT_WORD], R.PER_UNIT: 1}
            self._going_on.append(own | dict(more.words))
        self._records.append(record | dict(words))

    def beside(self) -> None:
        """The next record of this group needs nothing of the last one."""
        self._records[-1][R.OPEN] = 1

    def count_word(self, rows: Dim | S) -> int:
        """The step word that holds how many rows there are."""
        if isinstance(rows, S):
            return rows
        return self.dims.setdefault(rows, S.ROWS + len(self.dims) - len(_NAMED))

    def call(self, group: Group) -> None:
        """The reference backend's function for a group of one node, between records."""
        for ref in group.reads:
            if isinstance(ref, Value):
                self.rows(ref)
        if group.last.out is not None:
            self.rows(group.last.out)
        self._close_segment()
        self._steps.append(Call(group))

    # ---- building --------------------------------------------------------------------------------------

    def build(self, lower: Callable[[Builder, Group], None]) -> Built:
        """Lowers every group twice: to see what is touched when, then with addresses."""
        self._lower_all(lower)
        places, n_bytes = offsets({key: Lifetime(*life) for key, life in self._touched.items()})
        arena = self.cache.arena(n_bytes)
        self._begin((places, aligned.address(arena)))
        self._lower_all(lower)
        going_on = _array(self._going_on, 0)
        return Built(
            records=_array(self._records, aligned.address(going_on)),
            going_on=going_on,
            steps=tuple(self._steps),
            late=_late_words(self._records),
            arena=arena,
            places=places,
            same=self._same,
            scratch_bytes=self._scratch_bytes,
            dims=self.dims,
            turns=self._turns,
            partials=self._partials,
        )

    def _lower_all(self, lower: Callable[[Builder, Group], None]) -> None:
        groups = self.fused.groups
        for i, group in enumerate(groups):
            self.i_group = i
            n_before = len(self._records)
            lower(self, group)
            if len(self._records) > n_before and i + 1 < len(groups) and groups[i + 1].phase == group.phase:
                self._records[-1][R.OPEN] = 1
        self._close_segment()

    def _begin(self, known: tuple[Mapping[Key, int], int] | None) -> None:
        """Changes the builder: nothing is lowered yet; with `known` (offsets, base) places are addresses, else 0."""
        self._known = known
        self._touched: dict[Key, tuple[int, int, int]] = {}
        self._same: dict[Ref, Ref] = {}
        self._records: list[dict[int, Word]] = []
        self._going_on: list[dict[int, Word]] = []
        self._steps: list[Segment | Call] = []
        self._partials: dict[PartName, tuple[int, int]] = {}
        self._turns: dict[tuple[Turns, Input], int] = {}
        self._segment_start = 0

    def _touch(self, key: Key, n_bytes: int) -> int:
        phase = self.fused.groups[self.i_group].phase
        first, _, _ = self._touched.get(key, (phase, 0, 0))
        self._touched[key] = (first, phase, n_bytes)
        if self._known is None:
            return 0
        places, base = self._known
        return base + places[key]

    def _close_segment(self) -> None:
        if self._segment_start < len(self._records):
            self._steps.append(Segment(self._segment_start, len(self._records)))
        self._segment_start = len(self._records)


_NAMED: Mapping[Dim, int] = MappingProxyType({"n_tokens": S.N_TOKENS, "n_outputs": S.N_OUTPUTS, "n_seqs": S.N_SEQS})


def width(ref: Ref) -> int:
    """Pure. Columns of a value, which a model fixes."""
    d = ref.shape[1]
    if not isinstance(d, int):
        raise ValueError(f"{ref} has rows of {d} columns, wanted a number")
    return d


def _array(records: Sequence[Mapping[int, Word]], going_on: int) -> NDArray[np.int64]:
    """Pure. Records as numbers, 0 where an address is late; those that others name begin at `going_on`."""

    def number(value: Word) -> int:
        if isinstance(value, Then):
            return going_on + value.i * RECORD_BYTES
        return 0 if isinstance(value, Late) else value

    out: NDArray[np.int64] = aligned.zeros((len(records), RECORD_WORDS), np.int64)
    for i, record in enumerate(records):
        for word, value in record.items():
            out[i, word] = number(value)
    return out


def _late_words(records: Sequence[Mapping[int, Word]]) -> dict[Ref, tuple[NDArray[np.intp], NDArray[np.intp]]]:
    found: dict[Ref, list[tuple[int, int]]] = {}
    for i, record in enumerate(records):
        for word, value in record.items():
            if isinstance(value, Late):
                found.setdefault(value.ref, []).append((i, word))
    return {ref: (np.array([i for i, _ in at]), np.array([w for _, w in at])) for ref, at in found.items()}
