"""Step 6: the caller's row i gets row i's result, whatever the cut; with fake compute whose values name their row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batches import checked_batches
from polyseq.batch import Batch, CheckedBatch, Limits, SeqRanges, check
from polyseq.collector import OutputCollector
from polyseq.errors import CapabilityError, OutputError
from polyseq.outputs import Outputs
from polyseq.split import Equal, Seq, Simple, Strategy, Ubatch, split_all

N_VOCAB, N_EMBD = 5, 3


def collected(batch: CheckedBatch, ubatches: Sequence[Ubatch]) -> OutputCollector:
    """Logits of row i are 100 * i + (0, 1, 2, ...); hidden rows are i, layer inputs -i."""
    collector = OutputCollector(n_vocab=N_VOCAB, n_embd=N_EMBD, logits=True, pooled=False, hidden=True, layers=(2,))
    for u in ubatches:
        rows = u.batch_idxs.astype(np.float32)[:, None]
        out = rows[u.output]
        wide = np.repeat(rows, N_EMBD, axis=1)
        logits = (100 * out + np.arange(N_VOCAB)).astype(np.float32)
        collector.collect(u, {"logits": logits, "hidden": wide, "layer.2": -wide})
    return collector


def computed(batch: CheckedBatch, strategy: Strategy, n_ubatch: int) -> Outputs:
    return collected(batch, split_all(batch, strategy, n_ubatch)).finish()


@settings(max_examples=300, deadline=None)
@given(checked_batches(), st.sampled_from([Simple(), Equal(), Seq()]), st.integers(1, 12))
def test_every_row_gets_its_own_result(batch: CheckedBatch, strategy: Strategy, n_ubatch: int) -> None:
    outputs = computed(batch, strategy, n_ubatch)
    wanted = np.flatnonzero(batch.output)
    assert outputs.rows.tolist() == wanted.tolist() and outputs.n_outputs == len(wanted)
    for i in wanted:
        assert outputs.logits(int(i))[0] == 100 * i
    for k in range(1, len(wanted) + 1):
        assert outputs.logits(-k)[0] == 100 * wanted[-k]
    assert outputs.all_logits()[:, 0].tolist() == (100.0 * wanted).tolist()
    assert outputs.argmax().tolist() == [N_VOCAB - 1] * len(wanted)
    assert outputs.all_hidden()[:, 0].tolist() == list(range(batch.n_tokens))
    assert outputs.all_layer(2)[:, 0].tolist() == [-i for i in range(batch.n_tokens)]
    assert outputs.hidden(-1)[0] == batch.n_tokens - 1


@settings(max_examples=200, deadline=None)
@given(checked_batches(), st.sampled_from([Simple(), Equal(), Seq()]), st.integers(1, 6), st.data())
def test_of_a_call_that_ended_early_there_are_the_finished_rows(
    batch: CheckedBatch, strategy: Strategy, n_ubatch: int, data: st.DataObject
) -> None:
    """Whatever was collected after the last finished ubatch is not among them."""
    ubatches = split_all(batch, strategy, n_ubatch)
    n = data.draw(st.integers(1, len(ubatches)))
    outputs = collected(batch, ubatches).finish_early(ubatches, n, f"ubatch {n} failed")
    ran = {int(i) for u in ubatches[:n] for i in u.batch_idxs}
    assert outputs.n_rows == batch.n_tokens
    assert outputs.rows.tolist() == [i for i in np.flatnonzero(batch.output) if i in ran]
    assert outputs.all_logits()[:, 0].tolist() == (100.0 * outputs.rows).tolist()
    for i in range(batch.n_tokens):
        if i not in ran:
            for ask in (outputs.logits, outputs.hidden, lambda i: outputs.layer(2, i)):
                with pytest.raises(OutputError, match=f"row {i} was never computed: ubatch {n} failed"):
                    ask(i)
            continue
        assert outputs.hidden(i)[0] == i and outputs.hidden(i - batch.n_tokens)[0] == i
        if batch.output[i]:
            assert outputs.logits(i)[0] == 100 * i
        else:
            with pytest.raises(OutputError, match=r"no output was requested|no row .* asked for an output"):
                outputs.logits(i)
    for all_rows in (outputs.all_hidden, lambda: outputs.all_layer(2)):
        if len(ran) < batch.n_tokens:
            with pytest.raises(OutputError, match=f"never computed: ubatch {n} failed"):
                all_rows()
        else:
            assert np.abs(all_rows()[:, 0]).tolist() == list(range(batch.n_tokens))


# F32: flagged rows by batch index, whatever the split; the rest are errors with words.
@pytest.fixture
def interleaved() -> Outputs:
    batch = Batch()
    for seq, pos, output in ((1, 0, True), (0, 0, False), (0, 1, True), (0, 2, False)):
        batch.add(1, seq=seq, pos=pos, output=output)
    return computed(check(batch, Limits(n_vocab=9, n_seq_max=2), SeqRanges.empty(2)), Equal(), 2)


def test_flagged_rows(interleaved: Outputs) -> None:
    assert [interleaved.logits(i)[0] for i in (0, 2, -1, -2)] == [0, 200, 200, 0]


@pytest.mark.parametrize(
    ("i", "text"),
    [
        (1, "no output was requested at row 1; outputs are at rows 0, 2"),
        (99, "row 99 is outside the batch of 4 rows, 0..3"),
        (-3, "output -3 is out of range: the batch has 2 outputs, -2..-1"),
    ],
)
def test_rows_that_have_no_result(interleaved: Outputs, i: int, text: str) -> None:
    for ask in (interleaved.logits, lambda i: interleaved.top_k(i, 1)):
        with pytest.raises(OutputError, match=text):
            ask(i)


@pytest.mark.parametrize(
    ("ask", "error", "text"),
    [
        (lambda o: o.pooled(0), CapabilityError, "nothing was pooled; create the context with pooling='mean'"),
        (lambda o: o.layer(1, 0), CapabilityError, r"layer 1 was not kept \(kept: 2\)"),
        (lambda o: o.logits(1.5), OutputError, "a row is named by a whole number, not 1.5"),
        (lambda o: o.hidden("0"), OutputError, "a row is named by a whole number, not '0'"),
        (lambda o: o.hidden(4), OutputError, "row 4 is outside the batch of 4 rows"),
        (lambda o: o.logprobs([1]), OutputError, "2 output rows take 2 tokens"),
        (lambda o: o.top_k(0, 0), OutputError, "k is 0"),
        (lambda o: o.logprobs([0.5, 1.5]), OutputError, "tokens are ids"),
        (lambda o: o.logprobs([1, 5]), OutputError, r"outside the vocabulary \[0, 5\)"),
    ],
)
def test_other_refusals(
    interleaved: Outputs, ask: Callable[[Outputs], object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        ask(interleaved)


def test_no_outputs_at_all() -> None:
    batch = Batch()
    batch.extend([1, 2])
    outputs = computed(check(batch, Limits(n_vocab=9, n_seq_max=1), SeqRanges.empty(1)), Simple(), 2)
    assert outputs.n_outputs == 0 and not len(outputs.argmax()) and outputs.all_logits().shape == (0, N_VOCAB)
    assert not len(outputs.logprobs([]))
    with pytest.raises(OutputError, match="row -1: no row of this batch asked for an output"):
        outputs.logits(-1)


def test_probabilities(interleaved: Outputs) -> None:
    row = np.arange(N_VOCAB, dtype=np.float64)
    total = np.log(np.exp(row).sum())
    assert interleaved.logsumexp() == pytest.approx([total, 200 + total])
    assert interleaved.logprobs([4, 0]) == pytest.approx([4 - total, -total], abs=1e-4)
    ids, logits = interleaved.top_k(2, 2)
    assert ids.tolist() == [4, 3] and logits.tolist() == [204, 203]


def test_asking_moves_nothing(interleaved: Outputs) -> None:
    assert np.shares_memory(interleaved.logits(0), interleaved.logits(0))
    with pytest.raises(ValueError, match="read-only"):
        interleaved.logits(0)[0] = 1
