"""Killed commands: nothing finished is lost, and the next run gives identical results.

``make attack`` kills every command that writes many times, the test suite some of them a few times.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

COUNT = int(os.environ.get("SOFTPERM_ATTACKS", "0"))
SEED = os.environ.get("SOFTPERM_ATTACK_SEED", "1")
QUICK = ("data get", "save", "distance", "index", "train")


def test_killed_commands_run_again_to_the_same_results(tmp_path):
    """In a process of its own, whose forks are killed."""
    script = Path(__file__).with_name("kills.py")
    names = () if COUNT else QUICK
    count = str(COUNT // 9 or 2)
    done = subprocess.run(
        [sys.executable, script, tmp_path / "work", count, SEED, *names],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) == (len(names) or 9)
    assert all(each["kills"] >= int(count) for each in told)
