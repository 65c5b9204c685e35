"""The fast backend: kernels that name their instructions, compiled by LLVM where they run."""
