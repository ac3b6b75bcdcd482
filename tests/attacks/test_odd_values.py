"""Odd values for every option of ``train`` and every key of a recipe: accepted, or one sentence."""

from dataclasses import fields

import pytest
from samples import labelled_path, run_command, write_json_lines

from softperm.cli.inputs import settings_from
from softperm.estimators import PiGNNClassifier
from softperm.lab.protocol import make_contender
from softperm.lab.recipes import Recipe, read_recipe
from softperm.settings import check_settings, parameters

TEXTS = (
    "", " ", "nan", "-nan", "inf", "-1", "0", "1e999", "1_000", "٣", "0x10", "9" * 30, "9" * 5000,
    "none", "None", "true", "a,b", ",", "1,,2", "1," * 2000, "\0", "\ud800", "../..", "=cmd()",
)  # fmt: skip
VALUES = (
    None, True, -1, 0, 2**63, 10**400, -(10**400), 0.5, float("nan"), float("inf"), "", "none", b"",
    (), (0,), (2**70,), [1, "a"], {}, {"a": 1}, object(), complex(1),
)  # fmt: skip
LITERALS = (
    "nan", "inf", "-1", "0", str(2**70), "1e400", "true", '""', '"none"', "[]", "[[]]", '[""]',
    "[-1]", f"[{2**70}]", "{}", "{a = 1}", "{a = []}", "1979-05-27", "[nan]", '["pi-gnn", 3]',
)  # fmt: skip


def one_line(call) -> None:
    """Raises unless a call returns, or is refused in one line."""
    try:
        call()
    except ValueError as error:
        message = str(error)
        assert message
        assert "\n" not in message
        assert len(message) < 10_000


@pytest.mark.parametrize("name", [each.name for each in parameters()])
def test_settings(name):
    usual = {each.name: each.default for each in parameters()}
    for text in TEXTS:
        one_line(lambda text=text: check_settings({**usual, **settings_from({name: text})}))
    for value in VALUES:
        one_line(lambda value=value: PiGNNClassifier(**{name: value})._settings())


@pytest.mark.parametrize("name", sorted({f.name for f in fields(Recipe)} - {"name"}))
def test_recipes(name, tmp_path):
    path = tmp_path / "odd.toml"
    for literal in LITERALS:
        base = {"title": '"T"', "datasets": '["MUTAG"]', "models": '["pi-gnn"]', name: literal}
        path.write_text("".join(f"{key} = {value}\n" for key, value in base.items()))

        def plan() -> None:
            recipe = read_recipe(str(path))
            for model in recipe.models:
                make_contender(recipe, model)

        one_line(plan)


@pytest.mark.parametrize(
    "option",
    ["--devices", "--nodes", "--precision", "--test-fraction", "--device", "--task"],
)
def test_options_of_train_that_are_no_settings(option, tmp_path):
    path = write_json_lines(tmp_path / "a.jsonl", [labelled_path("ab")] * 4, y=[0, 1, 0, 1])
    for text in ("", "nan", "-1", "9" * 30, "💥"):
        done = run_command("train", path, "--out", tmp_path / "run", option, text)
        assert done.exit_code == 2, (option, text, done.output)
        assert "Traceback" not in done.output
