"""Writes requirements.txt: the packages of constraints.txt with the SHA-256 of their files on PyPI.

torch is left out: its files come from another index for each kind of machine.
"""

from __future__ import annotations

import html
import re
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HOME = Path(__file__).parents[1]
PYTHONS = re.compile(r"-(py3|py2\.py3|py311|cp311|cp312|cp3\d+-abi3|cp311-abi3)-|-py3-none-")
PLATFORMS = re.compile(r"-any\.whl|linux.*_(x86_64|aarch64)\.whl|macosx_.*_(arm64|universal2)\.whl")
HEADER = """\
# constraints.txt without torch, with the SHA-256 of the files to install; from .ci/hashes.py
"""


def digests(pin: str) -> list[str]:
    """SHA-256 of the wheels of a release for the machines that CI has."""
    name, version = pin.split("==")
    address = f"https://pypi.org/simple/{re.sub('[-_.]+', '-', name).lower()}/"
    with urllib.request.urlopen(address, timeout=60) as answer:
        page = html.unescape(answer.read().decode())
    links = re.findall(r'href="[^"]*/([^"/]+)#sha256=([0-9a-f]{64})"', page)
    marked = f"-{version}-"
    found = [
        digest
        for file, digest in links
        if marked in file.replace("%2B", "+") and PYTHONS.search(file) and PLATFORMS.search(file)
    ]
    assert found, f"{pin} has no files on {address}"
    return sorted(set(found))


def main() -> None:
    """Writes the file."""
    lines = (HOME / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if "==" in line and not line.startswith("torch==")]
    with ThreadPoolExecutor(8) as threads:
        every = list(threads.map(digests, pins))
    text = HEADER
    for pin, found in zip(pins, every, strict=True):
        text += " \\\n".join([pin, *(f"    --hash=sha256:{digest}" for digest in found)]) + "\n"
    (HOME / "requirements.txt").write_text(text)


if __name__ == "__main__":
    main()
