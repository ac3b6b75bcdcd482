"""An evaluation of small graphs that several tests look at, and runs that draw next to nothing."""

from pathlib import Path

import pytest
from samples import rings_and_cliques, run_command, write_json_lines

from softperm.cli import run_folder
from softperm.explore import plots

RECIPE = """
title = "Small"
datasets = []
models = ["pi-gnn"]
final_runs = 2
configurations = 2
[training]
epochs = 2
batch_size = 8
criterion = "score"
[settings]
head_hidden = [8]
head_final = 4
hidden = 4
[grid]
latent_vertices = [3, 4]
"""


@pytest.fixture(scope="module")
def graphs(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "rings.jsonl"
    made, kinds = rings_and_cliques(24)
    write_json_lines(path, made, kind=[("ring", "clique")[k] for k in kinds])
    return path


@pytest.fixture(scope="module")
def evaluated(graphs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluation")
    recipe = folder / "small.toml"
    recipe.write_text(RECIPE)
    command = ("evaluate", "--recipe", recipe, "--data", graphs, "--folds", 3, "--device", "cpu")
    command = (*command, "--model", "pi-gnn,wl-kernel", "--out", folder / "run")
    return run_command(*command), folder / "run", command


@pytest.fixture
def one_quick_picture(monkeypatch):
    monkeypatch.setattr(run_folder, "PICTURES", 1)
    monkeypatch.setattr(plots, "save", outline)


def outline(figure, path: Path) -> None:
    """Stands for drawing, which takes longer than the training here."""
    path.touch()
