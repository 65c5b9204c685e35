"""The fast backend: kernels that name their instructions, compiled by numba where they run."""
