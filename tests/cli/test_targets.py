"""What ``softperm train`` learns of a file: which targets, and as which task."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from samples import rings_and_cliques, run_command, write_json_lines

from softperm import PiGNNClassifier, PiGNNRegressor
from softperm.data.formats import GraphFile
from softperm.training.sources import choose_task

pytestmark = pytest.mark.usefixtures("one_quick_picture")
GRAPHS, KIND = rings_and_cliques(20)
NAMES = ["clique" if kind else "ring" for kind in KIND]
FAST = ("--epochs", 2, "--latent-vertices", 4, "--hidden", 8, "--batch-size", 8, "--device", "cpu")


TARGETS = {
    "few": [0, 1, 2] * 6 + [0, 1],
    "many": list(range(20)),
    "real": [i / 3 for i in range(20)],
    "gaps": [None if i % 5 == 0 else i / 3 for i in range(20)],
    "yes": [i % 2 for i in range(20)],
    "maybe": [None if i % 4 == 0 else i % 2 for i in range(20)],
    "words": NAMES,
}


@pytest.fixture(scope="module")
def several(tmp_path_factory) -> Path:
    return write_json_lines(tmp_path_factory.mktemp("data") / "s.jsonl", GRAPHS, **TARGETS)


@pytest.mark.parametrize(
    ("target", "task", "kind"),
    [
        ("few", "auto", PiGNNClassifier),
        ("few", "regression", PiGNNRegressor),
        ("gaps", "auto", PiGNNRegressor),
        ("yes,maybe", "auto", PiGNNClassifier),
        ("real, gaps", "auto", PiGNNRegressor),
    ],
)
def test_targets_are_learnt_as_what_they_are(target, task, kind, several, tmp_path):
    arguments = ("--target", target, "--task", task)
    done = run_command("train", several, "--out", tmp_path, *FAST, *arguments, "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout, parse_constant=lambda n: pytest.fail(f"{n} is not JSON"))
    expected = "mae" if kind is PiGNNRegressor else "roc_auc" if "," in target else "accuracy"
    assert result["metric"] == expected
    made = kind.load(tmp_path / "model")
    assert made.task_.outputs == {"few": 3, "gaps": 1}.get(target, 2) or task == "regression"


def graph_file(class_targets=(), **targets) -> GraphFile:
    count = len(next(iter(targets.values())))
    columns = {name: np.array(values) for name, values in targets.items()}
    return GraphFile([], columns, "file", tuple(f"g{i}" for i in range(count)), class_targets)


NAN = float("nan")


@pytest.mark.parametrize(
    ("targets", "task"),
    [
        ({"a": ["x", "y"]}, "classification"),
        ({"a": [0, 1, 5]}, "classification"),
        ({"a": list(range(20))}, "classification"),
        ({"a": list(range(21))}, "regression"),
        ({"a": [1.0, 2.0]}, "classification"),
        ({"a": [1.5, 2.0]}, "regression"),
        ({"a": [1.5, NAN]}, "regression"),
        ({"a": [0, 1], "b": [1, 1]}, "multilabel"),
        ({"a": [0, NAN], "b": [1, 1]}, "multilabel"),
        ({"a": [0, 2], "b": [1, 1]}, "regression"),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:target a is missing")
def test_the_task_follows_from_the_targets(targets, task):
    assert choose_task("auto", graph_file(**targets)) == task


def test_class_labels_of_a_tudataset_are_classes_however_many():
    many = {"graph_label": list(range(100))}
    assert choose_task("auto", graph_file(("graph_label",), **many)) == "classification"
    assert choose_task("auto", graph_file(**many)) == "regression"


@pytest.mark.parametrize(
    ("task", "targets", "message"),
    [
        ("guess", {"a": [0, 1]}, "task must be auto, classification, multilabel or regression"),
        ("multilabel", {"a": [0, 1]}, "task multilabel takes several targets; got a"),
        (
            "classification",
            {"a": [0], "b": [1]},
            "task classification takes one target; got a, b",
        ),
        ("auto", {"a": [0, 1, NAN]}, "target a is missing for graph g2: leave such graphs out"),
        ("auto", {"a": ["x", "", "y"]}, "target a is missing for graph g1"),
        ("regression", {"a": [0, np.inf]}, "target a is infinite for graph g1"),
        (
            "regression",
            {"a": ["1", "2", "many"]},
            "task regression takes numbers; a of graph g2 is 'many'",
        ),
    ],
)
def test_a_task_that_the_targets_do_not_fit_is_refused(task, targets, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        choose_task(task, graph_file(**targets))


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (
            {"a": [1.5, NAN, NAN]},
            "target a is missing for 2 of 3 graphs, graph g1 first: they",
        ),
        (
            {"a": [1.5, 2.5], "b": [NAN, 1], "c": [1.5, NAN], "d": [NAN, 1.5]},
            "target b is missing for 1 of 2 graphs, graph g0 first (and 2 other targets for some)",
        ),
        (
            {"a": ["1.5", "2", "many"]},
            "target a is a number for 2 of 3 graphs, but 'many' for graph g2: all are taken for",
        ),
        (
            {"a": ["1,5", "2", "-0,25"]},
            "target a is '1,5' and similar for 2 of 3 graphs, which are taken for classes",
        ),
    ],
)
def test_targets_that_may_be_mistakes_are_told(targets, message):
    with pytest.warns(UserWarning, match=re.escape(message)):
        choose_task("auto", graph_file(**targets))


def test_a_target_must_be_named_where_there_are_several(several, tmp_path):
    done = run_command("train", several, "--out", tmp_path, *FAST)
    assert done.exit_code == 2
    assert "has these targets: few, many, real, gaps, yes, maybe, words; set target" in done.stderr
    done = run_command("train", several, "--out", tmp_path, *FAST, "--target", "size")
    assert done.exit_code == 2
    assert "has no target 'size'; its targets are: few, many" in done.stderr


def test_a_file_without_targets_cannot_be_learnt_from(tmp_path):
    path = write_json_lines(tmp_path / "g.jsonl", GRAPHS)
    done = run_command("train", path, "--out", tmp_path / "run", *FAST)
    assert done.exit_code == 2
    assert "has no targets to learn from" in done.stderr


def test_a_missing_class_is_named_with_its_line(tmp_path):
    path = tmp_path / "mols.csv"
    path.write_text("smiles,kind\nCCO,a\nCCC,\nCC,b\n")
    done = run_command("train", path, "--out", tmp_path / "run")
    assert done.exit_code == 2
    assert "target kind is missing for graph CCC (mols.csv line 3)" in done.stderr


def test_a_folder_of_archives_is_answered_with_one_of_them(tmp_path):
    (tmp_path / "MUTAG.zip").write_bytes(b"")
    done = run_command("train", tmp_path, "--out", tmp_path / "run")
    assert "holds 1 zip file; name one of them, such as MUTAG.zip" in done.stderr
