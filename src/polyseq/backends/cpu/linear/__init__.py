"""Rows times panels: micro-kernels, the units that call them, and rows of a table."""
