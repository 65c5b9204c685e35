"""The soak of `soak.py` in a process of its own, so that its memory can be measured; `--n-soak-cycles` lengthens it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from test_atomic import KINDS

HERE = Path(__file__).parent
MAX_GROWTH_KIB = 4096
LEAST = {"unified": 2000}  # what does not come back shows in a long run; of the others a short one will do


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("on_each_backend")
def test_requests_come_and_go_and_nothing_stays_behind(kind: str, pytestconfig: pytest.Config) -> None:
    n_cycles = max(int(pytestconfig.getoption("--n-soak-cycles")), LEAST.get(kind, 0))
    run = subprocess.run(
        [sys.executable, str(HERE / "soak.py"), kind, str(n_cycles)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(HERE), str(HERE.parent)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["rows"] > n_cycles and found["cancelled"] > n_cycles // 2 and found["length"] > n_cycles // 2, found
    assert found["end_kib"] - found["early_kib"] < MAX_GROWTH_KIB, found
