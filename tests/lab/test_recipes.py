"""Recipes: one for each table, complete, and read without surprises."""

import re
from pathlib import Path

import pytest

from softperm.datasets.catalogue import PAPER
from softperm.lab.protocol import contender_of
from softperm.lab.recipes import points, published, read_recipe, recipe_names
from softperm.lab.systems import find_system


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_name_systems_that_exist(name):
    recipe = read_recipe(name)
    for model in recipe.models:
        assert find_system(model).name == model


def test_the_classification_tables_have_the_papers_datasets_and_grid():
    recipe = read_recipe("tu-table")
    assert recipe.datasets == PAPER
    assert points(recipe.grid) == [
        {"latent_vertices": p, "hidden": h} for p in (20, 30) for h in (32, 64)
    ]
    assert len(points(read_recipe("mpnn-table").grid)) == 12


def test_every_number_of_the_papers_tables_is_published():
    numbers = published()
    counts = {table: sum(len(row) for row in rows.values()) for table, rows in numbers.items()}
    assert counts == {"tu-table": 70, "mpnn-table": 60, "ogb-table": 14, "qm9-table": 84}


def test_published_numbers_are_those_of_the_paper(data_root):
    """Held against the paper's own source, which lies beside the data."""
    paper = data_root.parent / "paper" / "permute-me-softly.tex"
    if not paper.exists():
        pytest.skip("the paper is not here")
    text = re.sub(r"\\textbf\{([^}]*)\}", r"\1", paper.read_text(encoding="utf-8"))
    for table in ("tu-table", "mpnn-table"):
        for row in published()[table].values():
            for mean, std in (v for v in row.values() if v != "OOR"):
                shown = "357" if (mean, std) == (48.5, 3.5) and table == "mpnn-table" else std
                assert f"{mean} ($\\pm$ {shown})" in text or f"{mean} ($\\pm$ {std})" in text


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("title = 'x'\nmodel = ['pi-gnn']", "unknown keys model"),
        ("title = 'x'\nsplits = 'leave-one-out'", "splits must be one of"),
        ("title = 'x'\nfinal_runs = 0", "final_runs must be at least 1"),
        ("title = ", "cannot be read as a recipe"),
        ("datasets = ['MUTAG']", "title"),
    ],
)
def test_bad_recipes_are_answered_in_one_sentence(content, sentence, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(content)
    with pytest.raises(ValueError, match=sentence):
        read_recipe(str(path))


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ValueError, match=r"no recipe is called none.*tu-table"):
        read_recipe("none")
    with pytest.raises(ValueError, match=r"no system is called none.*pi-gnn"):
        find_system("none")
    with pytest.raises(ValueError, match="has no dataset IMDB"):
        read_recipe("tu-table").check("IMDB")


def test_recipes_travel_with_the_package():
    project = Path(__file__).parents[2] / "pyproject.toml"
    assert '"experiments" = "softperm/experiments"' in project.read_text()


@pytest.mark.parametrize(
    ("recipe", "model", "count"),
    [
        ("tu-table", "pi-gnn", 4),
        ("mpnn-table", "pi-gnn-gin", 12),
        ("mpnn-table", "pi-gnn", 4),
        ("own", "gin", 4),
        ("baselines-table", "gin", 64),
        ("qm9-table", "pi-gnn-d", 1),
    ],
)
def test_a_contender_has_the_configurations_of_recipe_or_system(recipe, model, count):
    found = contender_of(read_recipe(recipe), model).configurations
    assert len(found) == len({str(sorted(c.items())) for c in found}) == count
    assert all(c["epochs"] == read_recipe(recipe).training["epochs"] for c in found)
