"""The command line: one file per command, everything said in one place.

Enters: a shell's arguments. Leaves: answers on stdout, all else on stderr, an exit code (0 done, 1 failed, 2
asked wrongly, 130 interrupted). Top of the house: nothing imports it.
"""

from polyseq.cli.app import main

__all__ = ["main"]
