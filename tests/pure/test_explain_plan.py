"""Explain: simulations equal what context and memory do, every view says the same, and advice that is given works."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batches import checked_batches
from polyseq.batch import Batch, CheckedBatch
from polyseq.context import Context
from polyseq.errors import (
    BadColumn,
    BadSeqCount,
    BadSeqId,
    BatchTooLarge,
    CapabilityError,
    ContextError,
    CoupledSequences,
    EmptyBatch,
    NoSlot,
    SequenceTooLong,
    SharedRow,
    SplitError,
)
from polyseq.explain.blocks import blocks, id_ranges
from polyseq.explain.compare import compare
from polyseq.explain.document import document
from polyseq.explain.grid import block_lines, grid
from polyseq.explain.html import page
from polyseq.explain.lanes import lanes
from polyseq.explain.palette import N_COLOURS, colour_of, ink_on, letter_of, pale
from polyseq.explain.rows import rows_of_lengths, rows_of_text
from polyseq.explain.scene import WIDTH, scene
from polyseq.explain.simulation import Simulation, simulate
from polyseq.explain.spec import PlanSpec
from polyseq.explain.svg import svg
from polyseq.explain.tables import way_listing
from polyseq.explain.ways import way_runs, ways
from polyseq.model import Model
from polyseq.split import reason
from tiny import Tiny, tiny_llama
from tiny_kinds import tiny_gemma3, tiny_mamba

TINY = tiny_llama(n_layer=1)


def planned(*lengths: int, interleave: bool = False, n_shared: int = 0, **settings: object) -> Simulation:
    batch = rows_of_lengths(lengths, interleave=interleave, n_shared=n_shared)
    return simulate(batch, PlanSpec(**settings))  # type: ignore[arg-type]


def as_batch(checked: CheckedBatch) -> Batch:
    """The rows again, as somebody would hand them in."""
    seq = [checked.seq_ids[a:b].tolist() for a, b in zip(checked.seq_offsets, checked.seq_offsets[1:], strict=False)]
    batch = Batch()
    batch.extend(checked.token, seq=seq, output=checked.output)
    return batch


# ---- rows ----------------------------------------------------------------------------------------------


def test_rows_of_lengths() -> None:
    batch = rows_of_lengths([2, 0, 3])
    assert batch.seq_ids.tolist() == [0, 0, 2, 2, 2]
    assert batch.output.tolist() == [False, True, False, False, True]
    in_turn = rows_of_lengths([2, 1, 3], interleave=True)
    assert in_turn.seq_ids.tolist() == [0, 1, 2, 0, 2, 2]
    assert in_turn.output.tolist() == [False, True, False, True, False, True]
    shared = rows_of_lengths([1, 1], n_shared=2)
    assert shared.seq_count.tolist() == [2, 2, 1, 1] and shared.seq_ids.tolist() == [0, 1, 0, 1, 0, 1]
    with pytest.raises(BadColumn, match="length 1 is -4"):
        rows_of_lengths([2, -4])
    with pytest.raises(BadColumn, match="shared prefix is -1"):
        rows_of_lengths([2], n_shared=-1)


def test_rows_of_text() -> None:
    rows = [{"token": 7, "seq": [0, 1], "pos": 0}, {"token": 8}, {"seq": 1, "output": True}, {"seq": 1, "pos": 2}]
    document_ = rows_of_text(json.dumps(rows), by_line=False)
    by_line = rows_of_text("\n\n".join(map(json.dumps, rows)) + "\n", by_line=True)
    for batch in (document_, by_line):
        assert batch.token.tolist() == [7, 8, 0, 0]
        assert batch.seq_count.tolist() == [2, 1, 1, 1] and batch.seq_ids.tolist() == [0, 1, 0, 1, 1]
        assert batch.output.tolist() == [False, False, True, False]
        assert simulate(batch, PlanSpec()).checked.pos.tolist() == [[0, 1, 1, 2]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ('{"rows": []}', "list of rows"),
        ("[5]", "row 0 is no object"),
        ('[{}, {"tok": 1}]', "row 1 has tok"),
        ('[{"token": "a"}]', "row 0: token is 'a'"),
        ('[{"token": true}]', "row 0: token is True"),
        ('[{"seq": [0, "b"]}]', "row 0: seq is"),
        ('[{"seq": {}}]', "row 0: seq is"),
        ('[{"pos": 1.5}]', "row 0: pos is 1.5"),
        ('[{"output": "yes"}]', "row 0: output is 'yes'"),
    ],
)
def test_rows_of_text_that_is_no_batch(text: str, words: str) -> None:
    with pytest.raises(BadColumn, match=words.replace("[", r"\[")):
        rows_of_text(text, by_line=False)


def test_a_broken_line_is_named() -> None:
    with pytest.raises(BadColumn, match="line 3 is not JSON"):
        rows_of_text('{"seq": 0}\n\n{"seq": \n', by_line=True)


# ---- the simulation --------------------------------------------------------------------------------------


@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("interleave", [True, False])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_plan_is_what_a_context_plans(unified: bool, interleave: bool, backend: str) -> None:
    lengths, held = (5, 3, 1, 9), (4, 0, 7, 2)
    ctx = Context(
        Model(TINY.architecture, TINY.weights, TINY.metadata),
        n_ctx=80,
        n_seq_max=4,
        n_batch=32,
        n_ubatch=8,
        unified=unified,
        backend=backend,
    )
    before = ctx.batch()
    before.extend(np.zeros(sum(held), np.int32), seq=np.repeat(np.arange(4), held))
    ctx.decode(before)
    batch = rows_of_lengths(lengths, interleave=interleave)
    theirs = ctx.plan(batch)
    spec = PlanSpec(
        memory="unified" if unified else "streams", n_ctx=80, n_seq_max=4, n_batch=32, n_ubatch=8, held=held
    )
    if backend == "cpu" and not unified:
        spec = replace(spec, strategy="packed")
    ours = simulate(batch, spec)
    assert len(ours.ubatches) == len(theirs.ubatches)
    for a, b in zip(ours.ubatches, theirs.ubatches, strict=True):
        assert (a.n_seqs, a.n_seq_tokens, a.reason) == (b.n_seqs, b.n_seq_tokens, b.reason)
        assert a.batch_idxs.tolist() == b.batch_idxs.tolist() and a.pos.tolist() == b.pos.tolist()
    for s, t in zip(ours.slots, theirs.slots, strict=True):
        assert s.cells.tolist() == t.cells.tolist() and s.row_streams.tolist() == t.row_streams.tolist()


def test_sizes_left_out_are_what_the_batch_needs() -> None:
    assert planned(5, 3).sizes.n_ctx == 8 and planned(5, 3, held=(0, 9)).sizes.n_ctx == 17
    streams = planned(5, 3, memory="streams", held=(0, 9)).sizes
    assert (streams.n_seq_max, streams.n_ctx_seq) == (2, 12)
    wide = planned(5, 3, memory="streams", n_ubatch=4096).sizes
    assert wide.n_ubatch == 4096 and wide.notes == ()
    long = planned(4000).sizes
    assert (long.n_batch, long.n_ubatch, long.notes) == (4000, 512, ())
    with pytest.warns(UserWarning, match="n_ubatch 16 clamped"):
        assert planned(5, n_batch=8, n_ubatch=16).sizes.n_ubatch == 8


@pytest.mark.parametrize(
    ("tiny", "memory", "unified", "sizes"),
    [(tiny_gemma3(n_swa=8), "window", True, {"n_swa": 8}), (tiny_mamba(), "recurrent", False, {})],
)
def test_other_memories_are_planned_as_their_models_would(
    tiny: Tiny, memory: str, unified: bool, sizes: dict[str, int]
) -> None:
    ctx = Context(
        Model(tiny.architecture, tiny.weights, tiny.metadata),
        n_ctx=80,
        n_seq_max=4,
        n_batch=32,
        n_ubatch=8,
        unified=unified,
        backend="reference",
    )
    batch = rows_of_lengths((5, 3, 1, 9), interleave=False)
    theirs = ctx.plan(batch)
    ours = simulate(batch, PlanSpec(memory=memory, n_ctx=80, n_seq_max=4, n_batch=32, n_ubatch=8, **sizes))
    assert [u.batch_idxs.tolist() for u in ours.ubatches] == [u.batch_idxs.tolist() for u in theirs.ubatches]
    assert [s.cells.tolist() for s in ours.slots] == [s.kv.cells.tolist() for s in theirs.slots if s.kv is not None]


def test_what_a_recurrent_memory_and_a_window_need() -> None:
    kept = planned(5, 4, memory="recurrent", n_keep_tail=2, n_ubatch=8, held=(3, 0))
    assert [u.n_tokens for u in kept.ubatches] == [5, 4] and kept.slots == ()
    with pytest.raises(CapabilityError, match="belongs to memory window"):
        planned(5, n_swa=4)
    with pytest.raises(CoupledSequences):
        planned(5, 3, n_shared=2, memory="recurrent")
    assert planned(5, 3, n_shared=2, memory="window", n_swa=2).slots


def test_the_packed_cut_fills_ubatches_of_streams() -> None:
    packed = planned(5, 5, 5, 1, memory="streams", strategy="packed", n_ubatch=8)
    assert [b.shape for b in blocks(packed)] == ["8 in 2", "8 in 3"]
    assert ways(packed).stream.tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [3]
    assert [c.name for c in compare(packed) if c.chosen] == ["packed"]
    assert "packed" not in [c.name for c in compare(planned(5, 3))]


@pytest.mark.parametrize("memory", ["unified", "streams", "window"])
@pytest.mark.parametrize("strategy", ["simple", "equal", "packed", "seq"])
def test_every_cut_fits_every_memory_that_takes_it(memory: str, strategy: str) -> None:
    if strategy == ("simple" if memory == "streams" else "packed"):
        with pytest.raises(CapabilityError, match=f"memory {memory} cannot take the {strategy} cut; take strategy"):
            planned(5, 3, memory=memory, strategy=strategy)
        return
    found = ways(planned(5, 3, memory=memory, strategy=strategy, n_ubatch=4, held=(2, 1)))
    places = set(zip(found.stream.tolist(), found.cell.tolist(), strict=True))
    n_held = {(0, 0), (0, 1), (1, 0)} if memory == "streams" else {(0, c) for c in range(3)}
    assert len(places) == 8 and not places & n_held


def test_keep_tail_belongs_to_the_equal_cut() -> None:
    kept = planned(5, 4, memory="streams", n_keep_tail=2, n_ubatch=8)
    assert [(u.n_tokens, u.reason) for u in kept.ubatches] == [(5, reason.TAIL), (4, reason.BATCH_ENDED)]
    with pytest.raises(CapabilityError, match="the simple cut none"):
        planned(5, n_keep_tail=2)
    with pytest.raises(SplitError, match="must be at least 3"):
        planned(5, memory="streams", n_keep_tail=2, n_ubatch=2)


# ---- refusals, and that their advice works -----------------------------------------------------------------


def test_settings_that_cannot_be() -> None:
    with pytest.raises(CapabilityError, match="'heap' is none of"):
        planned(5, memory="heap")
    with pytest.raises(CapabilityError, match="'best' is none of"):
        planned(5, strategy="best")
    with pytest.raises(CapabilityError, match="nothing is held"):
        planned(5, memory="none", held=(1,))
    with pytest.raises(CapabilityError, match="cannot hold -1"):
        planned(5, held=(-1,))
    with pytest.raises(ContextError, match="2 sequences are held, n_seq_max is 1"):
        planned(5, held=(1, 1), n_seq_max=1)
    for memory in ("unified", "streams"):
        for n_seq_max in (-1, 257):
            with pytest.raises(BadSeqCount, match=f"n_seq_max is {n_seq_max}"):
                planned(5, memory=memory, n_seq_max=n_seq_max)
        for n_ctx in (-5, 1):
            with pytest.raises((ContextError, BatchTooLarge), match=r"n_ctx|n_batch"):
                planned(5, 2, memory=memory, n_ctx=n_ctx)
        with pytest.raises(BadSeqId, match=r"sequence 2147483647 is outside \[0, 256\)"):
            simulate(rows_of_text('[{"seq": 2147483647}]', by_line=False), PlanSpec(memory=memory))
        with pytest.raises(BadSeqId, match="row 0: sequence -3"):
            simulate(rows_of_text('[{"seq": -3}]', by_line=False), PlanSpec(memory=memory))
    with pytest.raises(EmptyBatch):
        planned(0, 0)
    with pytest.raises(BatchTooLarge, match="9 rows, n_batch is 8"):
        planned(9, n_batch=8)


def test_no_slot_tells_stream_and_holder() -> None:
    with pytest.raises(NoSlot, match=r"needs 9 cells of stream 1, 4 of 10 are free .* sequence 1: 6 cells") as raised:
        planned(6, 9, held=(4, 6), n_ctx=20, memory="streams")
    short = raised.value.needed - raised.value.free
    assert planned(6, 9, held=(4, 6), n_ctx=20 + 2 * short, memory="streams").slots
    with pytest.raises(NoSlot):  # what is held must fit too
        planned(1, held=(30,), n_ctx=20)


@pytest.mark.parametrize("strategy", [None, "seq"])
def test_streams_share_no_row_whatever_the_cut(strategy: str | None) -> None:
    with pytest.raises(CoupledSequences, match="need a unified cache"):
        planned(5, 3, n_shared=2, memory="streams", strategy=strategy)
    assert planned(5, 3, n_shared=2, strategy=strategy)


def test_without_a_memory_a_sequence_is_whole() -> None:
    with pytest.raises(SplitError, match=r"sequence 1 is cut over ubatches 1 and 2.*seq and n_ubatch 9"):
        planned(6, 9, memory="none", n_ubatch=8, strategy="seq")
    with pytest.raises(SequenceTooLong, match="set n_ubatch to 9"):
        planned(6, 9, memory="none", n_ubatch=8)
    with pytest.raises(SplitError, match="seq and n_ubatch 9"):
        planned(6, 9, memory="none", n_ubatch=9, strategy="simple")
    whole = planned(6, 9, memory="none", n_ubatch=9)
    assert [u.n_tokens for u in whole.ubatches] == [9, 6] and whole.slots == ()
    assert [b.shape for b in blocks(planned(3, 4, 2, memory="none", n_ubatch=6))] == ["6 in 2", "1x3"]
    with pytest.raises(SplitError, match="simple and n_ubatch 9"):
        planned(3, 4, n_shared=2, memory="none", strategy="seq")
    with pytest.raises(SharedRow):
        planned(3, 4, n_shared=2, memory="none")
    with pytest.raises(CapabilityError, match=r"cannot take the whole cut; .* or memory none"):
        planned(3, memory="streams", strategy="whole")
    assert planned(3, 4, n_shared=2, memory="none", strategy="simple", n_ubatch=9)


# ---- ways and lanes --------------------------------------------------------------------------------------


@settings(deadline=None)
@given(checked_batches(text=True), st.integers(1, 9), st.sampled_from(["simple", "equal", "seq"]))
def test_ways_and_lanes_say_what_the_ubatches_say(checked: CheckedBatch, n_ubatch: int, strategy: str) -> None:
    simulation = simulate(as_batch(checked), PlanSpec(n_ubatch=n_ubatch, strategy=strategy))
    found = ways(simulation)
    outputs = []
    for i, (u, slot) in enumerate(zip(simulation.ubatches, simulation.slots, strict=True)):
        for row, at in enumerate(u.batch_idxs.tolist()):
            assert (found.ubatch[at], found.ubatch_row[at]) == (i, row)
            assert (found.stream[at], found.cell[at]) == (0, slot.cells[row])
            outputs += [at] if u.output[row] else []
    assert [found.output_row[at] for at in outputs] == list(range(len(outputs)))
    assert np.count_nonzero(found.output_row >= 0) == len(outputs)

    runs = way_runs(simulation, found)
    assert [r.row for r in runs] == np.cumsum([0, *(r.count for r in runs)])[:-1].tolist()
    for r in runs:
        for j in range(r.count):
            at = r.row + j
            assert (found.ubatch[at], found.ubatch_row[at]) == (r.ubatch, r.ubatch_row + j)
            assert (found.cell[at], simulation.checked.pos[0, at]) == (r.cell + j, r.pos + j)
            assert found.output_row[at] == r.output_row

    for lane in lanes(simulation, found):
        rows = [
            at for at in range(simulation.n_tokens)
            if lane.first in simulation.checked.seq_ids[slice(*simulation.checked.seq_offsets[at : at + 2])]
        ]  # fmt: skip
        assert lane.ubatch.tolist() == found.ubatch[rows].tolist()
        assert lane.own.tolist() == (simulation.checked.first_seq[rows] == lane.first).tolist()
    assert sum(lane.own.sum() for lane in lanes(simulation, found)) == simulation.n_tokens


def test_few_lanes_stand_alone_and_many_fold() -> None:
    few, many = planned(*[3] * 4, memory="streams"), planned(*[3] * 40, 1, memory="streams")
    assert [lane.label for lane in lanes(few, ways(few))] == ["0", "1", "2", "3"]
    assert [lane.label for lane in lanes(many, ways(many))] == ["0..39", "40"]


def test_blocks_fold_only_what_is_alike() -> None:
    found = blocks(planned(40, 3, n_ubatch=8))
    assert [(b.label, b.shape, b.reason) for b in found] == [
        ("A..E (x5)", "8x1", reason.FULL),
        ("F", "3x1", reason.BATCH_ENDED),
    ]
    assert sum((b.last - b.first + 1) * b.n_tokens for b in found) == 43
    assert id_ranges([0, 1, 2, 7]) == "0..2, 7" and id_ranges(range(0, 20, 2), 2) == "0, 2 and 8 more"


# ---- drawings --------------------------------------------------------------------------------------------


def drawn(simulation: Simulation, width: int = 80) -> list[str]:
    return [line.plain for line in grid(lanes(simulation, ways(simulation)), width=width)]


def test_the_grid_shows_a_letter_per_token() -> None:
    assert drawn(planned(5, 5, 5, 1, memory="streams", n_ubatch=8)) == [
        "sequence  0",
        "       0  ABBCC  5",
        "       1  ABBCC  5",
        "       2  ABBCC  5",
        "       3  A  1",
    ]
    shared = drawn(planned(2, 3, n_shared=3, n_ubatch=4))
    assert shared[1:3] == ["       0  AAAAB  5", "       1  aaaBBB  6"]
    assert shared[3].startswith("small letters")


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 3000), min_size=1, max_size=60).filter(any), st.sampled_from([300, 512, 5000]))
def test_drawings_fit_their_width(lengths: list[int], n_ubatch: int) -> None:
    simulation = planned(*lengths, n_ubatch=n_ubatch, memory="streams")
    lines = drawn(simulation)
    lines += [line.plain for line in block_lines(blocks(simulation), n_ubatch=n_ubatch, width=80)]
    assert max(map(len, lines)) <= 80
    assert len(lines) < 120


def test_a_scaled_grid_says_so_and_keeps_proportions() -> None:
    lines = drawn(planned(512, 256, n_ubatch=256))
    assert lines[1].split()[1] == "A" * 32 + "B" * 32 and lines[2].split()[1] == "C" * 32
    assert lines[3] == "one letter = 8 tokens, shown by the ubatch of most of them"


def test_a_single_token_does_not_vanish_from_a_scaled_grid() -> None:
    lines = drawn(planned(500, 1, n_shared=60, n_ubatch=280))
    assert lines[1].split()[1] == "A" * 18 + "B" * 17 and lines[2].split()[1] == "aaaC"


def test_letters_have_the_colour_of_their_ubatch() -> None:
    simulation = planned(5, 5, 5, 1, memory="streams", n_ubatch=8)
    lane = grid(lanes(simulation, ways(simulation)), width=80)[1]
    colours = [
        span.style.bgcolor.name.upper()
        for span in lane.spans
        if not isinstance(span.style, str) and span.style.bgcolor is not None
    ]
    assert colours == [colour_of(i) for i in range(3)]


def test_colours_are_told_apart_and_letters_read_on_them() -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return float(np.dot((0.2126, 0.7152, 0.0722), linear))

    for i in range(N_COLOURS):
        assert colour_of(i) != colour_of(i + 1)
        for colour, ink in ((colour_of(i), ink_on(colour_of(i))), (pale(colour_of(i)), ink_on(pale(colour_of(i))))):
            light, dark = sorted((luminance(colour), luminance(ink)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) > 4.5, colour  # WCAG AA
    assert [letter_of(i) for i in (0, 25, 26, 52)] == ["A", "Z", "A1", "A2"]


def test_the_svg_is_sound_and_draws_every_token() -> None:
    simulation = planned(5, 5, 5, 1, memory="streams", n_ubatch=8)
    root = ET.fromstring(svg(scene(simulation, ways(simulation), title="a < b & c")))
    space = "{http://www.w3.org/2000/svg}"
    words = ["".join(t.itertext()) for t in root.iter(f"{space}text")]
    assert "a < b & c" in words and reason.SEQUENCE_ENDED in words
    assert [w for w in words if w in ("A", "B", "C")][:16] == [*"ABBCC" * 3, "A"]
    for rect in root.iter(f"{space}rect"):
        assert float(rect.get("x", 0)) >= 0 and float(rect.get("x", 0)) + float(rect.get("width", 0)) <= WIDTH


def test_a_long_plan_is_a_picture_of_bounded_size() -> None:
    simulation = planned(*range(1, 250), n_ubatch=8)
    made = scene(simulation, ways(simulation), title="long")
    assert made.height < 4200 and len(made.boxes) < 5000
    assert any("sequences more" in w.text for w in made.words) and any("lines more" in w.text for w in made.words)


def test_the_page_stands_alone() -> None:
    simulation = planned(5, 3, n_ubatch=4)
    found = ways(simulation)
    listing = way_listing(way_runs(simulation, found))
    html = page("t <1>", ["a & b"], scene(simulation, found, title="t"), [("Ways", listing)])
    seen: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            seen.append(tag)
            assert not {"src", "href"} & {name for name, _ in attrs}

    Reader().feed(html)
    assert "svg" in seen and "script" not in seen and "t &lt;1&gt;" in html and "a &amp; b" in html
    assert seen.count("tr") == 1 + len(listing.rows)


# ---- comparison ------------------------------------------------------------------------------------------


def compared(simulation: Simulation) -> dict[str, tuple[int, ...]]:
    return {c.name: c.blocks for c in compare(simulation)}


def test_compare_counts_blocks() -> None:
    found = compare(planned(5, 5, 5, 1, memory="streams", n_ubatch=8))
    assert {c.name: c.blocks for c in found} == {
        "simple": (8, 8),
        "packed": (8, 8),
        "equal": (4, 6, 6),
        "seq": (5, 5, 5, 1),
        "token-budget": (8, 8),
        "prefill-adder": (8, 8),
    }
    assert [c.name for c in found if c.chosen] == ["equal"]
    by_name = {c.name: c for c in found}
    assert by_name["equal"].shapes == (("3x2", 2), ("4x1", 1)) and by_name["equal"].fill == 16 / 24
    assert by_name["token-budget"].shapes == (("5+3", 1), ("2+5+1", 1))


def test_neighbours_take_running_requests_first() -> None:
    # sequences 2 and 3 decode, 1 goes on with its prompt, 0 is new
    simulation = planned(6, 7, 1, 1, held=(0, 5, 9, 9), n_ubatch=8)
    found = {c.name: c for c in compare(simulation)}
    assert found["token-budget"].blocks == (8, 7) and found["token-budget"].shapes == (
        ("1+1+6", 1),
        ("1+6", 1),
    )
    assert found["prefill-adder"].blocks == (8, 5, 2)  # decoding apart
    assert found["prefill-adder"].shapes == (("7+1", 1), ("1x5", 1), ("2x1", 1))


def test_every_way_computes_every_row_once() -> None:
    for simulation in (planned(5, 3, 9, n_shared=4, n_ubatch=4), planned(*[1] * 30, 50, n_ubatch=16)):
        for blocks_ in compared(simulation).values():
            assert sum(blocks_) == simulation.n_tokens and max(blocks_) <= simulation.sizes.n_ubatch


def test_a_cut_that_cannot_be_is_refused_in_the_comparison() -> None:
    simulation = planned(5, 5, memory="none", n_shared=2, strategy="simple", n_ubatch=12)
    refusals = {c.name: c.refusal for c in compare(simulation)}
    assert [name for name, why in refusals.items() if why] == ["whole"]
    ragged = {c.name: c.shapes for c in compare(planned(3, 4, 2, memory="none", n_ubatch=6))}
    assert ragged["whole"] == (("4+2", 1), ("1x3", 1))
    tail = planned(5, 5, memory="streams", n_keep_tail=2, n_ubatch=8)
    chosen = next(c for c in compare(tail) if c.chosen)
    assert chosen.blocks == tuple(u.n_tokens for u in tail.ubatches)


# ---- for programs ------------------------------------------------------------------------------------------


def test_the_document_holds_every_field() -> None:
    simulation = planned(3, 2, n_shared=1, n_ubatch=4)
    found = json.loads(json.dumps(document(simulation, ways(simulation))))
    first, second = found["ubatches"]
    assert first["batch_idxs"] == first["rows"] == [0, 1, 2, 3] and second["rows"] == [4, 5]
    assert first["seq_ids"] == [[0, 1], [0], [0], [0]] and first["seq_id_unq"] == [0, 1]
    assert first["pos"] == [0, 1, 2, 3] and second["pos"] == [1, 2] and second["seq_idx"] == [-1, 0]
    assert first["output"] == [False, False, False, True] and first["reason"] == reason.FULL
    assert found["slots"][1] == {"streams": [0], "row_stream": [0, 0], "cells": [4, 5]}
    assert found["ways"]["output_row"] == [-1, -1, -1, 0, -1, 1]
    assert (found["n_tokens"], found["n_outputs"], found["n_ubatches"]) == (6, 2, 2)
    assert found["tokens_per_ubatch"] == {"min": 2, "median": 3, "max": 4} and found["fill_percent"] == 75.0
