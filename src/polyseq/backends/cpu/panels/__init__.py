"""GGUF's matrices repacked into panels of 16 columns."""
