"""Plans by key: hits, misses, and the reason of every miss."""

from __future__ import annotations

from collections import Counter

import pytest

from polyseq.graph import PlanCache, Wanted


def test_a_key_is_built_once() -> None:
    built: list[Wanted] = []

    def build(key: Wanted) -> int:
        built.append(key)
        return len(built)

    cache = PlanCache(build)
    assert [cache.get(Wanted()), cache.get(Wanted()), cache.get(Wanted(hidden=True)), cache.get(Wanted())] == [
        1,
        1,
        2,
        1,
    ]
    assert built == [Wanted(), Wanted(hidden=True)]
    assert (cache.hits, cache.misses, len(cache)) == (2, 2, 2)


def test_the_reason_names_every_field_that_differs_from_the_nearest_plan() -> None:
    cache = PlanCache(lambda key: key)
    cache.get(Wanted())
    cache.get(Wanted(content="embd"))
    cache.get(Wanted(content="embd", logits=False, layers=(2,)))
    cache.get(Wanted(content="token", logits=False, layers=(2,)))  # nearest: the third, one field away
    assert cache.reasons == Counter(
        {
            "first plan": 1,
            "content: token -> embd": 1,
            "logits: True -> False; layers: () -> (2,)": 1,
            "content: embd -> token": 1,
        }
    )


def test_a_build_that_fails_leaves_no_trace() -> None:
    def build(key: Wanted) -> int:
        if key.hidden:
            raise RuntimeError("no")
        return 1

    cache = PlanCache(build)
    with pytest.raises(RuntimeError):
        cache.get(Wanted(hidden=True))
    assert (cache.hits, cache.misses, len(cache), cache.reasons) == (0, 0, 0, Counter())
    assert cache.get(Wanted()) == 1
    assert cache.reasons == Counter({"first plan": 1})
