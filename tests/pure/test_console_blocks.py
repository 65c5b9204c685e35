"""What the pages show of commands that need no model is what these print."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["README.md"]
MAIN = "from polyseq.cli import main; main()"


def blocks() -> list[tuple[str, str, str]]:
    """(page, command, what it prints) of every block that starts with `$ polyseq plan`."""
    found = []
    for page in PAGES:
        text = (ROOT / page).read_text()
        found += [(page, *match) for match in re.findall(r"```\n\$ polyseq (plan [^\n]*)\n(.*?)```", text, re.DOTALL)]
    return found


@pytest.mark.parametrize(("page", "command", "shown"), blocks(), ids=lambda value: value[:40])
def test_a_command_prints_what_the_page_shows(page: str, command: str, shown: str) -> None:
    done = subprocess.run([sys.executable, "-c", MAIN, *command.split()], capture_output=True, text=True, check=False)
    printed = "\n".join(line.rstrip() for line in done.stdout.splitlines()) + "\n"
    assert printed == shown, done.stderr


def test_there_are_blocks() -> None:
    assert blocks()
