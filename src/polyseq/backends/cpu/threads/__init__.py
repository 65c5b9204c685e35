"""Own threads, and the compiled interpreter of records that they run."""
