"""Recipes: one for each table, complete, and read without surprises."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from lab.evaluations import DATA
from samples import collect, random_graph

from softperm.data.datasets.catalogue import PAPER
from softperm.lab.configurations import (
    ensemble_size,
    model_settings,
    predicts_by,
    settings_of,
)
from softperm.lab.protocol import Contender, fit_to, make_contender
from softperm.lab.recipes import grid_points, published, read_recipe, recipe_names
from softperm.lab.records import Run
from softperm.lab.systems import DataShape, find_system
from softperm.settings import (
    ForestConfig,
    ModelConfig,
    StructuralFeatures,
    TrainingConfig,
    choose,
    parameters,
    rules,
)
from softperm.settings import training_config as estimator_training


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_name_systems_that_exist(name):
    recipe = read_recipe(name)
    for model in recipe.models:
        assert find_system(model).name == model


@pytest.mark.parametrize(
    ("model", "changes", "sentence"),
    [
        ("pi-gnn", {"nonsense": 3}, "pi-gnn\\+odd has no setting nonsense: it has"),
        ("gin", {"normaliser": "softmax"}, "gin\\+odd has no setting normaliser: it has"),
        ("wl-kernel", {"normaliser": "softmax"}, "wl-kernel\\+odd has no setting normaliser"),
        ("pi-gnn", {"latent_vertices": -3}, "latent_vertices must be a whole number of at least 1"),
        ("pi-gnn", {"normaliser": "softmaxx"}, "normaliser must be one of sinkhorn, softmax"),
        ("pi-gnn", {"capacity": "none", "hidden": "many"}, "hidden must be a whole number"),
        ("pi-gnn", {"capacity": -3}, "capacity must be a whole number of at least"),
        ("pi-gnn", {"capacity": "large"}, "capacity must be a whole number of at least"),
        ("pi-gnn", {"decay": 3.0}, "decay must be a number between 0 and 1"),
        ("pi-gnn", {"epochs": [1, 2]}, "epochs must be a whole number of at least 1"),
        ("pi-gnn", {"learning_rate": "fast"}, "learning_rate must be a number above 0; got 'fast'"),
        ("pi-gnn", {"decay": "fast"}, "decay must be a number between 0 and 1"),
    ],
)
def test_what_a_variant_cannot_be_is_said_before_anything_is_trained(model, changes, sentence):
    recipe = replace(read_recipe("tu-table"), variants={"odd": changes})
    with pytest.raises(ValueError, match=sentence):
        make_contender(recipe, f"{model}+odd")


@pytest.mark.parametrize("name", recipe_names())
def test_every_variant_is_trained_by_what_it_says(name):
    recipe = read_recipe(name)
    named = {model.partition("+")[2] for model in recipe.models} - {""}
    assert named <= set(recipe.variants)  # others are chosen by name
    others = [f"{recipe.models[0]}+{variant}" for variant in set(recipe.variants) - named]
    for model in [*recipe.models, *others]:
        for configuration in make_contender(recipe, model).configurations:
            assert configuration.items() >= recipe.variant_settings(model).items()


def test_variants_are_combined():
    recipe = read_recipe("qm9-table")
    found = recipe.variant_settings("pi-gnn-d+linear-fit+positions")
    assert found == {"linear_fit": True, "distance_bins": 16}
    for configuration in make_contender(recipe, "pi-gnn-d+linear-fit+positions").configurations:
        assert configuration.items() >= found.items()
    assert find_system("pi-gnn+linear-fit+positions").title == "π-GNN, linear-fit, positions"
    with pytest.raises(ValueError, match="recipe qm9-table has no variant 'odd': there are"):
        recipe.variant_settings("pi-gnn+linear-fit+odd")


def test_a_variant_differs_in_nothing_else():
    recipe = read_recipe("ablations")
    (base,), (other,) = (
        make_contender(replace(recipe, configurations=1), model).configurations
        for model in ("pi-gnn", "pi-gnn+by-loss")
    )
    assert {**base, "criterion": "loss"} == other
    assert find_system("pi-gnn+by-loss").title == "π-GNN, by-loss"
    with pytest.raises(ValueError, match="recipe tu-table has no variant 'softmax': there are"):
        make_contender(read_recipe("tu-table"), "pi-gnn+softmax")
    with pytest.raises(ValueError, match="no system is called gnn: there are pi-gnn,"):
        find_system("gnn+softmax")


def test_the_classification_tables_have_the_papers_datasets_and_grid():
    recipe = read_recipe("tu-table")
    assert recipe.datasets == PAPER
    assert grid_points(recipe.grid) == [
        {"latent_vertices": p, "hidden": h} for p in (20, 30) for h in (32, 64)
    ]
    assert len(grid_points(read_recipe("mpnn-table").grid)) == 12


TABLES = ("tu-table", "mpnn-table", "ogb-table", "molpcba-table", "qm9-table")


@pytest.mark.parametrize(
    ("name", "model"),
    [
        (name, model)
        for name in TABLES
        for model in read_recipe(name).models
        if "+" not in model and find_system(model).name.startswith("pi-gnn")
    ],
)
def test_the_papers_tables_have_the_authors_start_and_head(name, model):
    """What the authors' networks have and the paper does not say."""
    recipe = read_recipe(name)
    shape = DataShape.of(collect([random_graph(5, seed=1), random_graph(7, seed=2)]), outputs=2)
    for configuration in make_contender(recipe, model).configurations:
        run = Run("", model, "final", 0, 1, configuration, 0)
        assert settings_of(run, TrainingConfig).criterion == "late-score"
        network = find_system(model).build(shape, model_settings(run), seed=3)
        parameters = dict(network.named_parameters())
        p, hidden = network.config.latent_vertices, network.config.hidden
        dustbins = [n for n in parameters if "dustbin" in n]
        assert dustbins == (["permutation.dustbin"] if "-d" in model else [])
        assert all(parameters[n].item() == 1 for n in dustbins)
        latent = {n: value for n, value in parameters.items() if n.endswith("latent")}
        if network.config.encoder == "linear":
            assert parameters["permutation.alpha"].item() == pytest.approx(0.01, rel=1e-4)
            assert len(latent) == 2
        else:  # one permutation, from structure and attributes together
            assert list(latent) == ["permutation.latent"]
            first = "linears" if network.config.encoder == "gcn" else "inner"
            weight = parameters[f"permutation.encoder.{first}.0.weight"]
            assert weight.shape == (hidden, 2 + shape.attribute_size)
        for value in latent.values():
            assert value.shape == (p, hidden)
            assert 0.98 < value.abs().max() < 1
        if network.config.encoder == "gin":
            assert network.permutation.encoder.own_weight == 2
        widths = (p * p, p * shape.attribute_size)
        if shape.edge_attribute_size:
            widths += (p * p * shape.edge_attribute_size,)
        matrices = [tuple(v.shape) for n, v in parameters.items() if "head" in n and v.ndim == 2]
        assert matrices == [*((256, w) for w in widths), (64, 256 * len(widths)), (2, 64)]
        literal = recipe.variants.get("paper-head", {})
        assert literal in ({}, {"head_hidden": [256, 128]})


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
        ("title = 'x'\nmodels = 'pi-gnn'", "models must be a list of names; got 'pi-gnn'"),
        ("title = 'x'\n[grid]\nhidden = 32", "grid.hidden must be a list of values; got 32"),
        ("title = 'x'\nvariants = 3", "variants must be a table of tables"),
        ("title = 'x'\nvariants = ['a']", "variants must be a table of tables"),
        ("title = 'x'\n[variants]\na = 3", "variants must be a table of tables"),
        ("title = 3", "title must be text; got 3"),
        ("final_runs = 1.5", "final_runs must be a whole number; got 1.5"),
        ("final_runs = '3'", "final_runs must be a whole number; got '3'"),
        ("configurations = true", "configurations must be a whole number; got True"),
        ("edges = 'false'", "edges must be true or false; got 'false'"),
        ("models = [3]", r"models must be a list of names; got \[3\]"),
        ("training = 'x'", "training must be a table; got 'x'"),
        ("settings = 'x'", "settings must be a table; got 'x'"),
        ("grid = 3", "grid must be a table, or a list of tables; got 3"),
        ("defaults = 'mine'", "defaults must be one of paper, estimators; got 'mine'"),
        ("[training]\nepochs = []", "training.epochs is an empty list"),
        ("title = ", "cannot be read as a recipe"),
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
        read_recipe("tu-table").check_dataset("IMDB")


def test_recipes_travel_with_the_package():
    project = Path(__file__).parents[2] / "pyproject.toml"
    assert '"experiments" = "softperm/experiments"' in project.read_text()


def test_gin_and_graphsage_have_the_grids_of_the_fair_comparison():
    """Those of Errica et al. (ICLR 2020), in their table of hyper-parameters."""
    recipe = read_recipe("baselines-table")
    grids = {
        "gin": {
            "widths": {(64, 64, 64, 64), (32, 32, 32, 32), (64,), (32, 32)},
            "train_eps": {True, False},
            "readout": {"mean", "sum"},
            "dropout": {0.5, 0.0},
            "learning_rate": {1e-2},
            "halve_every": {50},
            "batch_size": {32, 128},
        },
        "graphsage": {
            "hidden": {32, 64},
            "layers": {3, 5},
            "aggregation": {"add", "max", "mean"},
            "learning_rate": {1e-2, 1e-3, 1e-4},
            "batch_size": {32},
        },
    }
    for model, grid in grids.items():
        found = make_contender(recipe, model).configurations
        values = {name: {c[name] for c in found} for name in found[0]}
        assert values == {
            **grid, "epochs": {1000}, "patience": {500}, "criterion": {"late-score", "loss"}
        }  # fmt: skip
        assert len(found) == math.prod(len(v) for v in values.values())


def test_a_recipe_replaces_values_of_a_baselines_grid():
    recipe = read_recipe("baselines-short")
    rates = {c["learning_rate"] for c in make_contender(recipe, "dgcnn").configurations}
    assert rates == {1e-3, 1e-4}
    assert {c["batch_size"] for c in make_contender(recipe, "ecc").configurations} == {32}
    unknown = replace(recipe, baselines={"dgcn": {"hidden": [3]}})
    with pytest.raises(ValueError, match="no system is called dgcn: there are"):
        make_contender(unknown, "gin")
    unknown = replace(recipe, baselines={"gin": {"heads": [3]}})
    with pytest.raises(ValueError, match="gin has no setting heads"):
        make_contender(unknown, "gcn")
    for name in ("pi-gnn", "pi-gnn-d+no-norm", "gin+wide"):
        unread = replace(recipe, baselines={name: {"hidden": [3]}})
        with pytest.raises(ValueError, match=f"baselines.{re.escape(name)}: expected the name"):
            make_contender(unread, "gin")
    with pytest.raises(ValueError, match=r"baselines\.gcn\.hidden must be a list of values; got 3"):
        replace(recipe, baselines={"gcn": {"hidden": 3}})
    with pytest.raises(ValueError, match="baselines must be a table of tables"):
        replace(recipe, baselines={"gcn": 3})


@pytest.mark.parametrize(
    ("recipe", "model", "count"),
    [
        ("tu-table", "pi-gnn", 4),
        ("mpnn-table", "pi-gnn-gin", 12),
        ("mpnn-table", "pi-gnn", 4),
        ("tu-table", "pi-gnn-d-gcn", 12),
        ("own", "gin", 4),
        ("own", "pi-gnn", 4),
        ("best", "pi-gnn", 4),
        ("baselines-table", "gin", 128),
        ("baselines-table", "graphsage", 72),
        ("baselines-table", "wl-kernel", 42),
        ("qm9-table", "pi-gnn-d", 1),
        *(("baselines-short", name, 8) for name in ("gin", "graphsage", "dgcnn", "ecc")),
        ("baselines-short", "diffpool", 3),
        ("qm9-baselines-short", "ppgn", 1),
    ],
)
def test_a_contender_has_the_configurations_of_recipe_or_system(recipe, model, count):
    found = make_contender(read_recipe(recipe), model).configurations
    assert len(found) == len({str(sorted(c.items())) for c in found}) == count
    epochs = {"wl-kernel": None}.get(model, read_recipe(recipe).training.get("epochs", "auto"))
    assert all(c.get("epochs") == epochs for c in found)


def test_message_passing_has_the_papers_layers_where_a_recipe_names_none():
    found = make_contender(read_recipe("tu-table"), "pi-gnn-gin").configurations
    assert {c["layers"] for c in found} == {2, 3, 4}
    linear = make_contender(read_recipe("mpnn-table"), "pi-gnn").configurations
    assert not any("layers" in c for c in linear)


def test_a_recipe_without_a_title_is_called_by_its_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("models = ['pi-gnn']")
    assert read_recipe(str(path)).title == "mine"


def test_own_graphs_are_evaluated_with_the_defaults_of_the_estimators():
    first = make_contender(read_recipe("own"), "pi-gnn").configurations[0]
    usual = {each.name: each.default for each in parameters()}
    (contender,) = [fit_to(Contender("pi-gnn", (first,)), DATA)]
    run = Run("rings", "pi-gnn", "final", 0, 1, contender.configurations[0], 0)
    graphs = max(len(split.train) for split in DATA.splits)
    assert settings_of(run, TrainingConfig) == estimator_training(usual, graphs)
    assert settings_of(run, StructuralFeatures) == StructuralFeatures(
        **choose(StructuralFeatures, usual)
    )
    assert settings_of(run, ForestConfig) == ForestConfig(**choose(ForestConfig, usual))
    assert predicts_by(run) == usual["head"]
    shape = DataShape.of(DATA.graphs, 2)
    config = find_system("pi-gnn").build(shape, model_settings(run), 0).config
    expected = ModelConfig(2, **choose(ModelConfig, {**usual, "head": "mlp"}))
    for name, _ in rules(ModelConfig):
        assert getattr(config, name) == getattr(expected, name), name
    assert (config.capacity, ensemble_size(run)) == (usual["capacity"], usual["ensemble"])


def test_several_grids_follow_one_another():
    recipe = replace(
        read_recipe("tu-table"),
        grid=[{"hidden": [32, 64]}, {"latent_vertices": [5], "hidden": [8]}],
    )
    found = make_contender(recipe, "pi-gnn").configurations
    points = [(c["hidden"], c.get("latent_vertices")) for c in found]
    assert points == [(32, None), (64, None), (8, 5)]
