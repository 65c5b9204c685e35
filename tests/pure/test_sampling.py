"""The sampling chain against plain float64 formulas, hand-made numbers and counted draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from polyseq.errors import SamplingError
from polyseq.sampling import Sampler, SamplingParams

OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


def params(**changed: float | int | None) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, "seed": 7, **OFF, **changed})  # type: ignore[arg-type]


def row(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def random_row(n: int, seed: int, spread: float = 3.0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal(n) * spread).astype(np.float32)


def reference(logits: list[float], *, top_k: int, top_p: float, min_p: float, temperature: float) -> dict[int, float]:
    """The chain as its definitions say it: sorted lists and Python floats, one filter after the other."""
    kept = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if top_k:
        kept = kept[:top_k]
    peak = logits[kept[0]]
    probs = [math.exp(logits[i] - peak) for i in kept]
    total = math.fsum(probs)
    if top_p < 1.0:
        reached, n = 0.0, 0
        while n < len(kept):
            reached += probs[n] / total
            n += 1
            assume(abs(reached - top_p) > 1e-5)  # the border itself is a matter of rounding
            if reached >= top_p:
                break
        kept, probs = kept[:n], probs[:n]
    if min_p > 0.0:
        assume(all(abs(p - min_p) > 1e-5 * min_p for p in probs))
        kept = [i for i, p in zip(kept, probs, strict=True) if p >= min_p]
    weights = {i: math.exp((logits[i] - peak) / temperature) for i in kept}
    total = math.fsum(weights.values())
    return {i: w / total for i, w in sorted(weights.items()) if w > 0.0}


# ---- distributions -----------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(
    steps=st.lists(st.integers(-40, 40), min_size=1, max_size=60),
    top_k=st.integers(0, 70),
    top_p=st.one_of(st.just(1.0), st.floats(0.0, 1.0)),
    min_p=st.one_of(st.just(0.0), st.floats(1e-6, 0.9)),
    temperature=st.floats(0.05, 5.0),
)
def test_the_chain_is_its_definition(
    steps: list[int], top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    logits = [s / 4 for s in steps]  # exact in float32, with many ties
    wanted = reference(logits, top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature)
    chain = Sampler(params(top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature))
    ids, probs = chain.probs(row(*logits))
    assert ids.tolist() == list(wanted)
    np.testing.assert_allclose(probs, list(wanted.values()), rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("spread", [0.01, 1.0, 4.0])
@pytest.mark.parametrize("top_p", [0.0, 0.1, 0.5, 0.9, 0.999, 0.9999999])
def test_top_p_without_top_k_on_a_large_vocabulary(spread: float, top_p: float) -> None:
    logits = random_row(20_000, 3, spread)
    ids, _ = Sampler(params(top_p=top_p)).probs(logits)
    probs = np.exp(logits.astype(np.float64) - logits.max())
    probs /= probs.sum()
    order = np.argsort(-probs, kind="stable")
    wanted = int((np.cumsum(probs[order]) < top_p).sum()) + 1
    assert abs(len(ids) - wanted) <= 2  # the sum's rounding may move the border by a token of 1e-6
    assert set(ids.tolist()) == set(order[: len(ids)].tolist())


def test_top_p_sees_what_top_k_left_and_min_p_the_maximum_of_that() -> None:
    logits = np.log(row(0.4, 0.3, 0.2, 0.1))
    ids, probs = Sampler(params(top_k=2, top_p=0.57)).probs(logits)
    assert ids.tolist() == [0]  # 0.4 / 0.7 = 0.571 reaches 0.57; 0.4 alone would not
    assert probs.tolist() == [1.0]
    ids, _ = Sampler(params(min_p=0.6)).probs(logits)
    assert ids.tolist() == [0, 1]  # 0.3 >= 0.6 * 0.4 > 0.2


def test_filters_see_temperature_1_and_the_draw_sees_the_temperature() -> None:
    logits = np.log(row(0.5, 0.3, 0.2))
    hot_ids, hot = Sampler(params(top_p=0.75, temperature=50.0)).probs(logits)
    assert hot_ids.tolist() == [0, 1]  # at temperature 50 all three would be needed for 0.75
    np.testing.assert_allclose(hot, [0.5025541, 0.4974459], atol=1e-6)


# ---- penalties ---------------------------------------------------------------------------------------


def penalised(logits: NDArray[np.float32], recent: list[int], **changed: float | int) -> NDArray[np.float64]:
    chain = Sampler(params(**changed))
    for token in recent:
        chain.accept(token)
    ids, probs = chain.probs(logits)
    assert ids.tolist() == list(range(len(logits)))
    return np.log(probs) - np.log(probs[-1])  # the last token stands at logit 0 and is never recent


def test_repeat_penalty_divides_positive_and_multiplies_negative_logits() -> None:
    got = penalised(row(2.0, -2.0, 0.0, 3.0, 0.0), [0, 1, 1, 2], repeat_penalty=1.25)
    np.testing.assert_allclose(got, [1.6, -2.5, 0.0, 3.0, 0.0], atol=1e-6)


def test_frequency_counts_and_presence_does_not() -> None:
    recent = [0, 1, 1, 1]
    got = penalised(row(2.0, 2.0, 2.0, 0.0), recent, frequency_penalty=0.5)
    np.testing.assert_allclose(got, [1.5, 0.5, 2.0, 0.0], atol=1e-6)
    got = penalised(row(2.0, 2.0, 2.0, 0.0), recent, presence_penalty=0.5)
    np.testing.assert_allclose(got, [1.5, 1.5, 2.0, 0.0], atol=1e-6)
    got = penalised(row(2.0, 2.0, 2.0, 0.0), recent, frequency_penalty=-0.5, presence_penalty=-1.0)
    np.testing.assert_allclose(got, [3.5, 4.5, 2.0, 0.0], atol=1e-6)


def test_repetition_comes_before_frequency_and_presence() -> None:
    got = penalised(row(3.0, 0.0), [0, 0], repeat_penalty=2.0, frequency_penalty=0.25, presence_penalty=0.5)
    np.testing.assert_allclose(got, [3.0 / 2.0 - 2 * 0.25 - 0.5, 0.0], atol=1e-6)


@pytest.mark.parametrize(("last_n", "wanted"), [(0, [2, 2, 2]), (1, [2, 2, 1]), (3, [2, 0, 1]), (-1, [1, 0, 1])])
def test_the_window_of_the_penalties(last_n: int, wanted: list[int]) -> None:
    got = penalised(row(2, 2, 2, 0), [0, 1, 1, 2], frequency_penalty=1.0, penalty_last_n=last_n)
    np.testing.assert_allclose(got, [*wanted, 0.0], atol=1e-6)


@pytest.mark.parametrize("last_n", [0, 1, 3, 8, -1])
def test_a_prompt_counts_like_its_tokens_one_by_one(last_n: int) -> None:
    prompt = [4, 1, 1, 0, 2, 1]
    logits = random_row(6, 1)
    whole, single = (Sampler(params(frequency_penalty=0.5, penalty_last_n=last_n)) for _ in range(2))
    whole.accept_prompt(np.array(prompt, np.int32))
    for token in prompt:
        single.accept(token)
    np.testing.assert_array_equal(whole.probs(logits)[1], single.probs(logits)[1])


def test_greedy_listens_to_the_penalties() -> None:
    chain = Sampler(params(temperature=0.0, presence_penalty=2.0))
    logits = row(1.0, 3.0, 2.5)
    assert chain.sample(logits) == 1
    chain.accept(1)
    assert chain.sample(logits) == 2


def test_an_accepted_token_outside_the_vocabulary_is_named() -> None:
    chain = Sampler(params(presence_penalty=1.0))
    chain.accept(9)
    with pytest.raises(SamplingError, match=r"9\.\.9.*has 3"):
        chain.sample(row(1, 2, 3))


# ---- edges -------------------------------------------------------------------------------------------


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    assert Sampler(params(temperature=0.0)).sample(row(0, 5, 5, 1, 5)) == 1


def test_top_k_keeps_the_lowest_ids_of_equals_and_may_exceed_the_vocabulary() -> None:
    ids, _ = Sampler(params(top_k=3)).probs(row(1, 2, 2, 9, 2, 2))
    assert ids.tolist() == [1, 2, 3]
    ids, _ = Sampler(params(top_k=500)).probs(row(1, 2, 3))
    assert ids.tolist() == [0, 1, 2]
    assert Sampler(params(top_k=1)).probs(row(1, 4, 4))[0].tolist() == [1]


@pytest.mark.parametrize("changed", [{"top_p": 0.0}, {"top_p": 1e-9}, {"min_p": 1.0}, {"top_k": 1}])
def test_the_strictest_filter_keeps_one(changed: dict[str, float]) -> None:
    ids, probs = Sampler(params(**changed)).probs(random_row(1000, 5))
    assert ids.tolist() == [int(random_row(1000, 5).argmax())]
    assert probs.tolist() == [1.0]


def test_tokens_at_minus_infinity_are_never_drawn() -> None:
    logits = np.full(50, -np.inf, np.float32)
    logits[[3, 31]] = 1.0, 1.5
    chain = Sampler(params(top_k=10, top_p=0.9999))
    assert chain.probs(logits)[0].tolist() == [3, 31]
    assert {chain.sample(logits) for _ in range(200)} == {3, 31}


@pytest.mark.parametrize("temperature", [1e-300, 5e-324])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = random_row(100, 2)
    assert Sampler(params(temperature=temperature)).sample(logits) == int(logits.argmax())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_nothing_can_be_drawn_from(temperature: float) -> None:
    chain = Sampler(params(temperature=temperature))
    bad = row(1, 2, 3, 4)
    bad[2] = np.nan
    with pytest.raises(SamplingError, match="NaN, first at token 2"):
        chain.sample(bad)
    with pytest.raises(SamplingError, match="no token has a logit above -inf"):
        chain.sample(np.full(4, -np.inf, np.float32))
    with pytest.raises(SamplingError, match=r"token 1 has the logit \+inf"):
        chain.sample(row(0, np.inf, 0))
    with pytest.raises(SamplingError, match=r"\(2, 2\)"):
        chain.sample(np.zeros((2, 2), np.float32))
    with pytest.raises(SamplingError, match=r"\(0,\)"):
        chain.sample(np.zeros(0, np.float32))


def test_the_callers_logits_stay_as_they_are() -> None:
    logits = random_row(300, 9)
    logits.flags.writeable = False
    before = logits.copy()
    for changed in (
        {},
        {"top_k": 5, "top_p": 0.5, "min_p": 0.1, "repeat_penalty": 1.3},
        {"temperature": 0.0},
    ):
        chain = Sampler(params(**changed))
        for _ in range(5):
            chain.accept(chain.sample(logits))
    np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("temperature", -0.1, "finite number >= 0"),
        ("temperature", math.nan, "finite number >= 0"),
        ("temperature", math.inf, "finite number >= 0"),
        ("top_k", -1, "integer >= 0"),
        ("top_k", 1.5, "integer >= 0"),
        ("top_p", 1.01, r"within \[0, 1\]"),
        ("top_p", -0.01, r"within \[0, 1\]"),
        ("min_p", 2.0, r"within \[0, 1\]"),
        ("repeat_penalty", 0.0, r"within \[1e-30, 1e\+30\]"),
        ("repeat_penalty", math.nan, r"within \[1e-30, 1e\+30\]"),
        ("frequency_penalty", math.inf, r"within \[-1e\+30, 1e\+30\]"),
        ("presence_penalty", math.nan, r"within \[-1e\+30, 1e\+30\]"),
        ("penalty_last_n", -2, "integer >= -1"),
        ("seed", -1, r"within \[0, 18446744073709551615\]"),
        ("seed", 2**64, r"within \[0, 18446744073709551615\]"),
    ],
)
def test_parameters_out_of_range_are_named(name: str, value: float, wanted: str) -> None:
    with pytest.raises(SamplingError, match=wanted) as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"{name} {value!r} ")


# ---- drawing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("changed", [{}, {"top_k": 4}, {"temperature": 0.5, "min_p": 0.02}, {"top_p": 0.8}])
def test_draws_follow_the_distribution(changed: dict[str, float]) -> None:
    logits = random_row(12, 11, 1.5)
    chain = Sampler(params(seed=5, **changed))
    ids, probs = chain.probs(logits)
    n = 8_000
    drawn = np.bincount([chain.sample(logits) for _ in range(n)], minlength=12)
    assert drawn.sum() == drawn[ids].sum() == n
    expected = probs * n
    big = expected > 5
    chi2 = float((((drawn[ids] - expected) ** 2) / expected)[big].sum())
    assert chi2 < big.sum() + 5 * math.sqrt(2 * big.sum())  # five sigma over the mean


def draw_text(chain: Sampler, n: int, *, noise: float = 0.0) -> list[int]:
    text = []
    for i in range(n):
        logits = random_row(2000, 100 + i)
        if noise:
            logits = logits + random_row(2000, 900 + i, noise)
        text.append(chain.sample(logits))
        chain.accept(text[-1])
    return text


def test_a_seed_gives_the_same_text_again_and_another_seed_another() -> None:
    first = draw_text(Sampler(SamplingParams(seed=1)), 50)
    assert draw_text(Sampler(SamplingParams(seed=1)), 50) == first
    assert draw_text(Sampler(SamplingParams(seed=2)), 50) != first


def test_without_a_seed_each_sampler_has_its_own_and_tells_it() -> None:
    one, two = Sampler(SamplingParams()), Sampler(SamplingParams())
    assert one.seed != two.seed
    assert draw_text(Sampler(SamplingParams(seed=one.seed)), 50) == draw_text(one, 50)


def test_company_does_not_change_a_sequence() -> None:
    settings = [SamplingParams(seed=1), SamplingParams(seed=2, top_k=0, repeat_penalty=1.2, temperature=1.3)]
    alone = [draw_text(Sampler(s), 40) for s in settings]
    chains = [Sampler(s) for s in settings]
    together: list[list[int]] = [[], []]
    for i in range(40):
        for chain, text in zip(chains, together, strict=True):
            text.append(chain.sample(random_row(2000, 100 + i)))
            chain.accept(text[-1])
    assert together == alone


@pytest.mark.parametrize("changed", [{}, OFF])
def test_rounding_noise_does_not_change_the_text(changed: dict[str, float]) -> None:
    plain = draw_text(Sampler(SamplingParams(seed=3, **changed)), 200)  # type: ignore[arg-type]
    noisy = draw_text(Sampler(SamplingParams(seed=3, **changed)), 200, noise=1e-6)  # type: ignore[arg-type]
    assert plain == noisy


def test_two_near_equal_tokens_that_swap_ranks_are_drawn_alike() -> None:
    # ranks 0 and 1 change places between the two rows; the draws in between must not
    one, two = row(1.0, 1.0 + 1e-6, 0.9), row(1.0 + 1e-6, 1.0, 0.9)
    left, right = Sampler(params()), Sampler(params())
    assert [left.sample(one) for _ in range(2000)] == [right.sample(two) for _ in range(2000)]
