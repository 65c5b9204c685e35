"""Attention of tiles on cells, and of whole sequences on themselves."""
