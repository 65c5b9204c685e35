"""How long it takes to pack weights into panels at load, per GGUF type.

    python bench/packing.py [--types Q4_K,IQ2_S] [--megabytes 48] [--rounds 5] [--json]
    python bench/packing.py --model smollm2-135m

Per type that gguf can dequantise: seconds per GB of stored bytes on one thread and on as many as loading takes, the
least of several runs in turns with all other types; and the bytes of panels per stored byte, since every byte that is
new to the process has to be cleared by the system first ("new": seconds per GB for that alone, on one thread). The
weights are random bytes in rows of 2048 inputs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from polyseq import Model
from polyseq.backends.cpu.panels.panels import PACKING_THREADS, Panels, pack
from polyseq.backends.cpu.words.aligned import LINE_BYTES, zeros
from polyseq.weights.tensor import TensorInfo

T = GGMLQuantizationType
N_IN = 2048
THREADS = sorted({1, PACKING_THREADS})
Matrices = list[tuple[TensorInfo, NDArray[np.uint8]]]


def types() -> list[GGMLQuantizationType]:
    """Those whose values gguf knows."""
    return [T.F32, T.F16, *sorted(quants._type_traits)]


def weights(qtype: GGMLQuantizationType, n_bytes: int) -> tuple[TensorInfo, NDArray[np.uint8]]:
    """A matrix of about that many bytes."""
    block, size = GGML_QUANT_SIZES[qtype]
    row_bytes = N_IN // block * size
    n_out = n_bytes // row_bytes // 16 * 16
    rows = np.random.default_rng(0).integers(0, 256, (n_out, row_bytes), np.uint8)
    return TensorInfo("w", (n_out, N_IN), qtype, 0, rows.nbytes), rows


def seconds(run: Callable[[], object]) -> float:
    """What one run takes; what it makes is freed after that."""
    start = time.perf_counter()
    made = run()
    took = time.perf_counter() - start
    del made
    return took


def touched(n_bytes: int) -> NDArray[np.uint8]:
    """New memory, each of its lines written to."""
    new: NDArray[np.uint8] = zeros((n_bytes,), np.uint8)
    new[::LINE_BYTES] = 1
    return new


def random_types(chosen: list[GGMLQuantizationType], n_bytes: int) -> Iterator[tuple[str, Matrices]]:
    """One matrix of each type; one after the other, since together they do not fit everywhere."""
    for qtype in chosen:
        yield qtype.name, [weights(qtype, n_bytes)]


def of_model(name: str) -> Iterator[tuple[str, Matrices]]:
    """All matrices of a model."""
    stored = Model.load(name).weights
    infos = [stored.info(tensor) for tensor in stored.names()]
    yield name, [(info, stored.raw(info.name)) for info in infos if len(info.shape) == 2]


def measured(matrices: Matrices) -> dict[str, float]:
    """Seconds of each way, each taken once, and bytes."""
    n_new = sum(pack(*matrix).data.nbytes for matrix in matrices)

    def packed(n_threads: int) -> list[Panels]:
        return [pack(*matrix, n_threads=n_threads) for matrix in matrices]

    times = {f"threads_{n}": seconds(lambda: packed(n)) for n in THREADS}  # noqa: B023
    return {**times, "new": seconds(lambda: touched(n_new)), "panel_bytes": n_new}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", help="comma-separated; all that gguf can dequantise if left out")
    parser.add_argument("--model", help="instead: all matrices of this model")
    parser.add_argument("--megabytes", type=float, default=48, help="stored bytes of each type")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    chosen = types() if options.types is None else [T[name] for name in options.types.split(",")]
    found: dict[str, dict[str, float]] = {}
    for _ in range(options.rounds):
        cases = of_model(options.model) if options.model else random_types(chosen, int(options.megabytes * 1e6))
        for name, matrices in cases:
            case = measured(matrices)
            before = found.get(name, case)
            n_bytes = sum(rows.nbytes for _, rows in matrices)
            found[name] = {**{key: min(before[key], value) for key, value in case.items()}, "bytes": n_bytes}
    if options.json:
        print(json.dumps({"rounds": options.rounds, "seconds": found}, indent=1))
        return
    threads = "".join(f"{f'{n} thread' + 's' * (n > 1):>12}" for n in THREADS)
    print(f"{'s/GB, best of ' + str(options.rounds):18}{threads}{'new':>8}{'panel bytes':>14}{'MB':>8}{'s':>8}")
    for name, case in found.items():
        n_bytes = case["bytes"]
        cells = "".join(f"{1e9 * case[f'threads_{n}'] / n_bytes:12.2f}" for n in THREADS)
        more = f"{1e9 * case['new'] / n_bytes:8.2f}{case['panel_bytes'] / n_bytes:14.2f}"
        print(f"{name:18}{cells}{more}{n_bytes / 1e6:8.1f}{case[f'threads_{THREADS[-1]}']:8.3f}")


if __name__ == "__main__":
    main()
