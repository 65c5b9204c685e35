"""From a kernel in Python to an address in this process."""
