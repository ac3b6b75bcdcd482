"""Small datasets made for the purpose, and surroundings no test depends on."""

import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from file_server import FileServer, serving

from softperm.data.datasets.store import Store


@pytest.fixture(autouse=True)
def _no_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test may depend on the machine's settings, write to its cache, or reach the network."""
    for name in ("SOFTPERM_DATA", "SOFTPERM_MIRROR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SOFTPERM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SOFTPERM_MIRROR", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setattr("softperm.data.datasets.store._ATTEMPTS", 1)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "root").mkdir(exist_ok=True)
    return Store(tmp_path / "cache", tmp_path / "root")


@pytest.fixture
def write_tu(tmp_path: Path) -> Callable[..., Path]:
    """Writes a random TUDataset ``tu/NAME.zip`` below a data root, and gives the data root."""

    def make(name: str = "TOY", graphs: int = 40, seed: int = 0, **changes: str | None) -> Path:
        rng = np.random.default_rng(seed)
        sizes = rng.integers(2, 8, graphs)
        first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        paths = [
            (f + k, f + k + 1) for f, n in zip(first, sizes, strict=True) for k in range(n - 1)
        ]
        ends = np.array(paths) + 1
        label = rng.integers(0, 3, sizes.sum())
        files: dict[str, str | None] = {
            "A": "".join(f"{u}, {v}\n{v}, {u}\n" for u, v in ends),
            "graph_indicator": _column(np.repeat(np.arange(graphs) + 1, sizes)),
            "graph_labels": _column(np.arange(graphs) % 2 * 2 - 1),
            "node_labels": _column(label),
            "node_attributes": _column(label / 4),
            **changes,
        }
        root = tmp_path / "root"
        (root / "tu").mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(root / "tu" / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for kind, text in files.items():
                if text is not None:
                    archive.writestr(f"{name}/{name}_{kind}.txt", text)
        return root

    return make


def _column(values: np.ndarray) -> str:
    return "".join(f"{v}\n" for v in values.tolist())


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving() as served:
        yield served
