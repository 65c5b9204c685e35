"""The reference backend: NumPy float32, one small function per op, matrix products left to BLAS.

Its modules are asked for one by one: other backends use parts of it.
"""
