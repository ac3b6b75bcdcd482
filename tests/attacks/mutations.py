"""Mutations of files, read in processes of their own, which may crash without consequences."""

from __future__ import annotations

import json
import os
import random
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHANGES = ("bit", "byte", "cut", "insert", "delete", "zero", "repeat", "swap")


def mutate(content: bytes, rng: random.Random) -> bytes:
    """The content with one change: a bit, a byte, or a range of bytes."""
    kind, size = rng.choice(CHANGES), len(content)
    start = rng.randrange(max(size, 1))
    stop = min(size, start + rng.choice([1, 2, 8, 64, 512]))
    middle = content[start:stop]
    if kind == "bit" and size:
        return (
            content[:start] + bytes([content[start] ^ 1 << rng.randrange(8)]) + content[start + 1 :]
        )
    if kind == "byte":
        return content[:start] + rng.randbytes(1) + content[start + 1 :]
    if kind == "cut":
        return content[:start]
    if kind == "insert":
        return content[:start] + rng.randbytes(rng.randint(1, 16)) + content[start:]
    if kind == "delete":
        return content[:start] + content[stop:]
    if kind == "zero":
        return content[:start] + bytes(len(middle)) + content[stop:]
    if kind == "repeat":
        return content[:stop] + middle + content[stop:]
    other = rng.randrange(max(size, 1))
    return content[:start] + content[other : other + len(middle)] + content[stop:]


def in_child(work: Callable[[], Any]) -> Any:
    """The result of ``work()``, as JSON gives it back, from a forked process.

    Raises:
        AssertionError: the process crashed.
    """
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with os.fdopen(send, "w") as out:
                json.dump(work(), out)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(send)
    with os.fdopen(receive) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the process ended with {os.waitstatus_to_exitcode(status)}"
    return json.loads(text)


def attack(
    path: Path, read: Callable[[], Any], count: int, seed: int, names: Path | None = None
) -> dict[str, int]:
    """Mutates a file and reads it, many times.

    Args:
        path: the file; it is as before afterwards.
        read: reads it; equal results of equal files.
        count: number of mutations.
        seed: of the mutations.
        names: what a refusal must name; by default the file.

    Returns:
        The number of mutations that were read rightly, and that were refused.

    Raises:
        AssertionError: a mutation was read wrongly, crashed, or was refused in another way than by
            one line that names the file.
    """
    sound, expected = path.read_bytes(), read()
    rng = random.Random(seed)
    mutations = [mutate(sound, rng) for _ in range(count)]
    named = str(path if names is None else names)

    def one(content: bytes) -> str:
        path.write_bytes(content)
        try:
            value = read()
        except (ValueError, OSError) as error:
            line = str(error)
            return "refused" if named in line and "\n" not in line else f"not named: {line!r}"
        except Exception as error:
            return f"traceback: {type(error).__name__}: {error}"
        return "right" if value == expected else f"wrong: {value!r:.300}"

    counts: dict[str, int] = {"right": 0, "refused": 0}
    try:
        for start in range(0, count, 50):
            part = mutations[start : start + 50]
            outcomes = in_child(lambda part=part: [one(content) for content in part])
            for k, outcome in enumerate(outcomes, start=start):
                assert outcome in counts, f"{path.name}, mutation {k} of seed {seed}: {outcome}"
                counts[outcome] += 1
    finally:
        path.write_bytes(sound)
    return counts
