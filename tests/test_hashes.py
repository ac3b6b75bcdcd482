"""Every pinned package but torch has the SHA-256 of its files, for ``pip --require-hashes``."""

import re
from pathlib import Path

HOME = Path(__file__).parents[1]
ENTRY = re.compile(r"^(\S+==\S+) \\\n    --hash=sha256:[0-9a-f]{64}\b", re.MULTILINE)


def test_hashes_cover_the_pins():
    pins = re.findall(r"^\S+==\S+", (HOME / "constraints.txt").read_text(), re.MULTILINE)
    hashed = ENTRY.findall((HOME / "requirements.txt").read_text())
    assert hashed == [pin for pin in pins if not pin.startswith("torch==")]
