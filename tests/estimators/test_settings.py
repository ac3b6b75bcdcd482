"""Settings are declared once: estimators, their documentation and the command line follow."""

import inspect
import os
import subprocess
import sys
from dataclasses import dataclass

import pytest
from sklearn.base import clone

from softperm import PiGNNClassifier, PiGNNRegressor
from softperm.cli import train
from softperm.cli.inputs import HIDDEN, settings_from
from softperm.settings import (
    SOURCES,
    ModelConfig,
    Parameter,
    Rule,
    Settings,
    StructuralFeatures,
    TrainingConfig,
    parameters,
    setting,
)

ALL = list(parameters())


@pytest.mark.parametrize("each", ALL, ids=lambda each: each.name)
def test_every_setting_is_a_parameter_of_estimators_and_an_option_of_train(each: Parameter):
    for kind in (PiGNNClassifier, PiGNNRegressor):
        assert inspect.signature(kind).parameters[each.name].default == each.default
        assert getattr(kind(), each.name) is each.default
        assert f"{each.name} (default {each.default!r}): " in kind.__doc__
    options = inspect.signature(train.train).parameters
    assert (each.name in options) is (each.name not in HIDDEN)


@pytest.mark.parametrize("each", ALL, ids=lambda each: each.name)
def test_the_default_of_an_option_is_that_of_the_setting(each: Parameter):
    option = inspect.signature(train.train).parameters.get(each.name)
    if each.name in ("checkpoint", "validation_fraction"):  # which the official split may replace
        assert option is None or option.default is None
        return
    assert settings_from({each.name: option.default}) == {each.name: each.default}


def test_no_two_sources_declare_the_same_setting():
    names = [each.name for each in ALL]
    assert len(set(names)) == len(names)
    assert {"latent_scale", "head_hidden", "tolerance", "decay", "ema", "clip"} <= set(names)
    assert SOURCES[:3] == (ModelConfig, StructuralFeatures, TrainingConfig)


BAD = {int: -1, float: -1.0, str: "nonsense", bool: "yes", tuple: (), list: 7}


@pytest.mark.parametrize(
    "each", [p for p in ALL if p.rule.kind is not object], ids=lambda each: each.name
)
def test_every_setting_is_checked_before_anything_is_read(each: Parameter):
    made = PiGNNClassifier(**{each.name: BAD[each.rule.kind]})
    with pytest.raises(ValueError, match=f"^{each.name} must be "):
        made.fit([], [])


def test_settings_that_a_recipe_can_use_reach_the_network():
    made = PiGNNClassifier(latent_scale=2.0, head_hidden=(16, 8), head_final=4, tolerance=0.0)
    assert clone(made).get_params() == made.get_params()
    assert "head_hidden=(16, 8)" in repr(made)


ADDED = """
import sys, types
from pathlib import Path
import softperm

file = Path(softperm.__file__).with_name("settings.py")
before, place, after = file.read_text().partition("    hidden: int = setting(")
assert place
declaration = '    wobble: int = setting(3, "Wobbles of the network.", at_least=2)\\n'
sys.modules["softperm.settings"] = module = types.ModuleType("softperm.settings")
exec(before + declaration + place + after, vars(module))
from softperm import PiGNNClassifier
made = PiGNNClassifier(wobble=1)
assert "wobble (default 3): Wobbles of the network." in made.__doc__
try:
    made.fit([], [])
except ValueError as error:
    print(error)
from softperm.cli import main
main()
"""


def test_a_new_setting_appears_everywhere_by_its_declaration_alone():
    command = [sys.executable, "-c", ADDED, "train", "--help"]
    env = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    assert "wobble must be a whole number of at least 2; got 1" in done.stdout
    assert "--wobble <int>" in done.stdout


@dataclass(frozen=True)
class Sample(Settings):
    """Settings of every kind."""

    size: int | str | None = setting(
        "auto", "A size.", kind=int, at_least=1, choices=("auto",), optional=True
    )
    shares: tuple[int, ...] = setting((1, 2), "Shares.", at_least=1)
    anything: object = setting("x", "Anything.", kind=object)


def test_words_may_stand_for_a_number():
    for value in ("auto", 3, None):
        assert Sample(size=value).size == value
    for value in ("large", 0, 1.5):
        with pytest.raises(ValueError, match="size must be 'auto', a whole number of at least 1, "):
            Sample(size=value)
    assert Sample(anything=object()) != Sample()
    assert Rule("", float, at_least=0, below=1).expectation == "a number of at least 0 and below 1"


def test_help_of_train_cuts_no_option_at_80_columns():
    done = subprocess.run(
        [sys.executable, "-m", "softperm", "train", "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "80"},
        check=True,
    )
    for each in ALL:
        if each.name not in HIDDEN:
            assert f"--{each.name.replace('_', '-')} " in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    for group in ("Data:", "Model:", "Training:", "Hardware:", "Output:"):
        assert f"\n{group}\n" in done.stdout
