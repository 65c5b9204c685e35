"""What a decode call costs on one machine with one model: seconds, and bytes beside weights and cache.

Enters: measured calls as `Observation`s. Leaves: a `CostModel` and a `ByteModel`, both sums of features that count
something, with coefficients that are not negative. They say what calls cost that were never measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from polyseq.errors import ContextError
from polyseq.explain.nonneg import nonnegative
from polyseq.explain.shapes import UbatchShape

F64 = NDArray[np.float64]
ROW_KNOTS = (1, 2, 4, 8, 16, 48, 128)  # where the cost of one more row may change
OUTPUT_KNOTS = (1, 4, 16)
_N_REWEIGHTED = 10
_LEAST_ERROR = 0.02  # below, errors are all alike


@dataclass(frozen=True, slots=True)
class Observation:
    """One call, measured several times."""

    shapes: tuple[UbatchShape, ...]  # of its ubatches
    seconds: tuple[float, ...]  # of each repeat

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of a call: the sum of these features times a coefficient each, none negative.

        ubatch         1 for each ubatch (the weights are read once, whatever the rows; a call's own cost is with it)
        rows from k    its rows beyond k, up to the next knot   (so any rising curve through the knots)
        outputs        1 for each ubatch with outputs, and its output rows beyond each knot, likewise
        visible        pairs of a row and a cell it sees        (attention)
        hidden         pairs that are computed and masked       (0 where a backend skips them)
        read           cells whose K and V are read
        seqs, unified  sequences of an ubatch that share a stream (a backend may take them one by one)
        seqs, streams  sequences that have one each

    It is fitted to the sizes of relative errors (not their squares), so that a decode step counts as much as a long
    prompt, and a call that a neighbour disturbed hardly counts.
    """

    seconds_per: Mapping[str, float]  # feature -> seconds

    @classmethod
    def fit(cls, observations: Sequence[Observation]) -> Self:
        """Pure. Raises `ContextError` where nothing was observed."""
        if not observations:
            raise ContextError("a cost model needs at least one measured call")
        measured = np.array([o.median for o in observations])
        table = np.array([_time_features(o.shapes) for o in observations]) / measured[:, None]
        weight = np.ones(len(measured))
        for _ in range(_N_REWEIGHTED):
            found = nonnegative(table * weight[:, None], weight)
            weight = 1 / np.sqrt(np.maximum(np.abs(table @ found - 1), _LEAST_ERROR))  # squares over sizes are sizes
        found = found / np.median(table @ found)  # as many calls above as below
        return cls(dict(zip(TIME_FEATURES, found.tolist(), strict=True)))

    def seconds(self, *shapes: UbatchShape) -> float:
        """Pure. Of one call over these ubatches."""
        return float(_time_features(shapes) @ np.array([self.seconds_per[name] for name in TIME_FEATURES]))

    def to_json(self) -> dict[str, Any]:
        return {"seconds_per": dict(self.seconds_per)}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Pure. Raises `ContextError` for what `to_json` did not write."""
        return cls(_coefficients(value, "seconds_per", TIME_FEATURES))


@dataclass(frozen=True, slots=True)
class ByteModel:
    """Most bytes in use at once during a call, beside weights and cache: a + b rows + c output rows + d row-cell pairs.

    Of its largest ubatch, with the output rows of the whole call.
    """

    bytes_per: Mapping[str, float]

    @classmethod
    def fit(cls, shapes: Sequence[UbatchShape], n_bytes: Sequence[int]) -> Self:
        """Pure. Each measured call had one ubatch. Raises `ContextError` where nothing was observed."""
        if not shapes:
            raise ContextError("a byte model needs at least one measured call")
        found = nonnegative(np.array([_byte_features(s, s.n_outputs) for s in shapes]), np.array(n_bytes, np.float64))
        return cls(dict(zip(BYTE_FEATURES, found.tolist(), strict=True)))

    def n_bytes(self, *shapes: UbatchShape) -> int:
        """Pure. Of one call over these ubatches."""
        n_outputs = sum(s.n_outputs for s in shapes)
        per = np.array([self.bytes_per[name] for name in BYTE_FEATURES])
        return int(max(float(_byte_features(s, n_outputs) @ per) for s in shapes))

    def to_json(self) -> dict[str, Any]:
        return {"bytes_per": dict(self.bytes_per)}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Pure. Raises `ContextError` for what `to_json` did not write."""
        return cls(_coefficients(value, "bytes_per", BYTE_FEATURES))


TIME_FEATURES = (
    "ubatch",
    *(f"rows from {k}" for k in ROW_KNOTS),
    "outputs",
    *(f"outputs from {k}" for k in OUTPUT_KNOTS),
    "visible",
    "hidden",
    "read",
    "seqs, unified",
    "seqs, streams",
)
BYTE_FEATURES = ("call", "rows", "outputs", "pairs")


def _time_features(shapes: Sequence[UbatchShape]) -> F64:
    """[n_features] over one call."""
    counts = np.array(
        [
            (
                s.n_tokens,
                s.n_outputs,
                s.n_visible,
                s.n_hidden,
                s.n_read,
                s.n_seqs * s.unified,
                s.n_seqs * (not s.unified),
            )
            for s in shapes
        ],
        np.float64,
    )
    rows, outputs = counts[:, 0], counts[:, 1]
    columns = (
        np.array([len(shapes)], np.float64),
        _ramps(rows, ROW_KNOTS).sum(axis=0),
        np.array([np.count_nonzero(outputs)], np.float64),
        _ramps(outputs, OUTPUT_KNOTS).sum(axis=0),
        counts[:, 2:].sum(axis=0),
    )
    return np.concatenate(columns)


def _ramps(n: F64, knots: Sequence[int]) -> F64:
    """[len(n), len(knots)] how much of n lies between each knot and the next."""
    low = np.array(knots, np.float64)
    width = np.append(np.diff(low), np.inf)
    return np.clip(n[:, None] - low, 0.0, width)


def _byte_features(shape: UbatchShape, n_outputs: int) -> F64:
    return np.array([1.0, shape.n_tokens, n_outputs, shape.n_visible + shape.n_hidden])


def _coefficients(value: Any, key: str, names: Sequence[str]) -> dict[str, float]:
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, dict) or set(found) != set(names):
        raise ContextError(f"a cost model has an object {key} with the numbers {', '.join(names)}")
    for name, number in found.items():
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < np.inf:
            raise ContextError(f"{key}: {name!r} is {number!r}, it must be a number of 0 or more")
    return {name: float(found[name]) for name in names}
