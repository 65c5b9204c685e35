"""A graph becomes records, and records are run."""
