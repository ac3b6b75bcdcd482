"""Preparing a dataset: once, completely or not at all, and never from old code."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from softperm.data.datasets import prepared as module
from softperm.data.datasets.prepared import (
    ArrayWriter,
    Part,
    RawData,
    Recipe,
    Schema,
    codes_type,
    prepare,
)
from softperm.data.datasets.store import Store

HOME = Path(__file__).parents[3]


def part(graphs: int) -> Part:
    """Triangles."""
    edges = np.array([[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]], dtype=np.int32)
    return Part(
        sizes=np.full(graphs, 3),
        edge_counts=np.full(graphs, 6),
        edge_index=np.tile(edges, graphs),
        classes=np.zeros(graphs, dtype=np.int64),
    )


def recipe(built: list[str] | None = None, **changes: object) -> Recipe:
    def read(progress: Callable) -> RawData:
        if built is not None:
            built.append("built")
        return RawData(
            Schema("TOY", "classification", class_names=("a",)), iter([part(2), part(3)])
        )

    made = Recipe("TOY", "raw digest", {"symmetrise": False}, ("softperm.data.formats.tu",), read)
    return replace(made, **changes)


def files(store: Store) -> list[str]:
    return sorted(p.name for p in (store.cache / "prepared").iterdir() if p.suffix != ".lock")


def test_parts_become_one_collection_with_structure(store: Store) -> None:
    arrays = prepare(recipe(), store).arrays
    assert arrays["ptr"].tolist() == [0, 3, 6, 9, 12, 15]
    assert arrays["edge_ptr"].tolist() == [0, 6, 12, 18, 24, 30]
    assert arrays["edge_index"].shape == (2, 30)
    np.testing.assert_array_equal(arrays["structure"], np.tile([2.0, 1.0], (15, 1)))


def test_a_prepared_dataset_is_opened_and_not_prepared_again(store: Store) -> None:
    built: list[str] = []
    first, second = (prepare(recipe(built), store) for _ in range(2))
    assert built == ["built"]
    assert first.path == second.path


@pytest.mark.parametrize(
    "changes",
    [
        {"source": "another digest"},
        {"options": {"symmetrise": True}},
        {"modules": ("softperm.data.archive",)},
    ],
)
def test_other_data_options_or_code_lead_to_another_folder(store: Store, changes: dict) -> None:
    prepare(recipe(), store)
    prepare(recipe(**changes), store)
    assert len(files(store)) == 2


def test_an_edited_module_leads_to_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(HOME / "softperm", tmp_path / "softperm")
    monkeypatch.setattr(module, "_PACKAGES", tmp_path)
    before = recipe().key
    assert recipe().key == before
    for name in ("data/features.py", "data/formats/tu.py", "data/datasets/prepared.py"):
        with (tmp_path / "softperm" / name).open("a") as source:
            source.write("# edited\n")
        assert recipe().key != before
        before = recipe().key


def test_a_damaged_dataset_is_prepared_again(store: Store) -> None:
    built: list[str] = []
    path = prepare(recipe(built), store).path
    os.truncate(path / "ptr.npy", 100)
    assert prepare(recipe(built), store).arrays["ptr"].size == 6
    assert built == ["built", "built"]


def test_downloaded_data_that_is_not_the_known_data_is_refused(store: Store) -> None:
    with pytest.raises(
        ValueError, match="TOY: the downloaded files hold other data than the known"
    ):
        prepare(recipe(fingerprint="0" * 64), store)
    assert files(store) == []


def test_an_error_midway_leaves_nothing_and_the_next_run_succeeds(store: Store) -> None:
    def read(progress: Callable) -> RawData:
        def parts():
            yield part(2)
            raise ValueError("graph 2: expected something else")

        return RawData(Schema("TOY", "classification", class_names=("a",)), parts())

    with pytest.raises(ValueError, match="graph 2"):
        prepare(recipe(read=read), store)
    assert files(store) == []
    assert len(prepare(recipe(), store).arrays["ptr"]) == 6


def test_a_full_disk_is_reported_and_the_next_run_succeeds(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(ArrayWriter, "append", fail)
        with pytest.raises(OSError, match=r"the disk is full; free some space.*TOY-") as caught:
            prepare(recipe(), store)
    assert caught.value.errno == errno.ENOSPC
    assert files(store) == []
    assert len(prepare(recipe(), store).arrays["ptr"]) == 6


@pytest.mark.parametrize("name", ["ptr", "classes", "edge_index"])
def test_a_flipped_bit_in_any_array_makes_the_dataset_anew(store: Store, name: str) -> None:
    built: list[str] = []
    before = prepare(recipe(built), store)
    path = before.path / f"{name}.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 64
    path.write_bytes(content)
    again = prepare(recipe(built), store)
    assert len(built) == 2
    assert again.damaged_arrays() == []
    assert again.fingerprint == before.fingerprint


FULL_DISK = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import numpy as np
from softperm.data.datasets.prepared import RawData, Schema, prepare
from softperm.data.datasets.store import Store
from test_prepared import part, recipe
from softperm.data.datasets import prepared as module
module._structure = lambda part: np.zeros((part.sizes.sum(), 2))  # starts faster without torch
store = Store(Path({disk!r}))
toy = Schema("TOY", "classification", class_names=("a",))
big = lambda progress: RawData(toy, (part(5000) for _ in range(50)))
try:
    prepare(recipe(read=big), store)
except OSError as error:
    print(error)
print(sorted(p.name for p in (store.cache / "prepared").iterdir() if p.suffix != ".lock"))
print(len(prepare(recipe(), store).arrays["ptr"]))
"""


def test_a_really_full_disk_is_reported_and_the_next_run_succeeds(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    code = FULL_DISK.format(tests=str(Path(__file__).parent), disk=str(disk))
    mount = f'mount -t tmpfs -o size=2m tmpfs {disk} && exec {sys.executable} -c "$CODE"'
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here, so no small disk")
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount],
        env={**os.environ, "CODE": code, "PYTHONPATH": str(HOME)},
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip("this machine does not let a test mount a small disk")
    said, left, count = done.stdout.splitlines()
    assert "the disk is full; free some space, or write to another disk (SOFTPERM_CACHE" in said
    assert (left, count) == ("[]", "6")


CHILD = """
import os, signal, sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from softperm.data.datasets.prepared import RawData, Schema, prepare
from softperm.data.datasets.store import Store
from test_prepared import part, recipe
from softperm.data.datasets import prepared as module
import numpy as np
module._structure = lambda part: np.zeros((part.sizes.sum(), 2))  # starts faster without torch

def read(progress):
    Path({mark!r}).open("a").write("built\\n")
    def parts():
        yield part(2)
        {then}
        yield part(3)
    return RawData(Schema("TOY", "classification", class_names=("a",)), parts())

print(len(prepare(recipe(read=read), Store(Path({cache!r}))).arrays["ptr"]))
"""


def start(store: Store, mark: Path, then: str) -> subprocess.Popen:
    tests = str(Path(__file__).parent)
    code = CHILD.format(tests=tests, mark=str(mark), then=then, cache=str(store.cache))
    env = {**os.environ, "PYTHONPATH": str(HOME)}
    return subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True
    )


def test_kill_9_midway_leaves_no_file_and_the_next_run_succeeds(
    store: Store, tmp_path: Path
) -> None:
    dying = start(store, tmp_path / "mark", "os.kill(os.getpid(), signal.SIGKILL)")
    dying.communicate()
    assert dying.returncode == -signal.SIGKILL
    assert [n for n in files(store) if not n.endswith(".making")] == []
    assert [n for n in files(store) if n.endswith(".making")] != []
    assert prepare(recipe(), store).arrays["ptr"].size == 6
    assert [n for n in files(store) if n.endswith(".making")] == []


def test_two_processes_at_once_do_the_work_once(store: Store, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    children = [start(store, mark, "time.sleep(1.0)") for _ in range(2)]
    assert [child.communicate()[0] for child in children] == ["6\n", "6\n"]
    assert mark.read_text() == "built\n"


def test_a_workspace_of_another_process_at_work_is_left_alone(store: Store, tmp_path: Path) -> None:
    child = start(store, tmp_path / "mark", "time.sleep(2.0)")
    until = time.monotonic() + 30
    while not (tmp_path / "mark").exists() and time.monotonic() < until:
        time.sleep(0.01)
    prepare(recipe(source="another"), store)
    assert any(n.endswith(".making") for n in files(store))
    assert child.communicate()[0] == "6\n"


def test_codes_take_the_smallest_type_that_holds_them() -> None:
    assert codes_type(()) is np.int8
    assert codes_type((2, 128)) is np.int8
    assert codes_type((129,)) is np.int16
    assert codes_type((32_769,)) is np.int32
