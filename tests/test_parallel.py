"""How many threads work is what the user said."""

import os
import subprocess
import sys

SCRIPT = """
import torch
from softperm.parallel import over_ranges
met = []
over_ranges(lambda first, last: met.append((first, last)), 8, 1 << 30)
print(torch.get_num_threads(), met)
"""


def test_a_single_thread_that_was_asked_for_stays_the_only_one():
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "1 [(0, 8)]"
