"""The language kernels are written in: LLVM IR with names."""
