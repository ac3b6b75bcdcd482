"""Killed commands: nothing finished is lost, and the next run gives identical results.

``make attack`` kills every command that writes many times, the test suite some of them a few times.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = int(os.environ.get("SOFTPERM_ATTACKS", "0"))
SEED = os.environ.get("SOFTPERM_ATTACK_SEED", "1")
COMMANDS = 24
QUICK = ("data get", "index")
SLOW = ("save", "distance", "train", "predict", "evaluate")


@pytest.mark.parametrize("names", [QUICK, pytest.param(SLOW, marks=pytest.mark.slow)])
def test_killed_commands_run_again_to_the_same_results(names, tmp_path):
    """In processes of their own, whose forks are killed."""
    script = Path(__file__).with_name("kills.py")
    names, kills = ((), -(-KILLS // COMMANDS)) if KILLS and names == QUICK else (names, 2)
    done = subprocess.run(
        [sys.executable, script, tmp_path, *names, "--kills", str(kills), "--seed", SEED],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len({each["command"] for each in results}) == (len(names) or COMMANDS)
    assert [loss for each in results for loss in each["losses"]] == []
    assert sum(each["kills"] for each in results) >= kills * (len(names) or COMMANDS - 1)
