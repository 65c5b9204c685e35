"""Instruction sets: what differs between them in the linear kernels, one class each."""
