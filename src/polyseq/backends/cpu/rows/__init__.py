"""Kernels that go row by row: element by element, norms, rotation, rounding to 8 bits, means."""
