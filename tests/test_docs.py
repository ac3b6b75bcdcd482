"""The sources of the documentation: code is fenced, and derived pages name all that exists."""

import sys
from pathlib import Path

import pytest

import softperm

ROOT = Path(softperm.__file__).parents[1]


@pytest.fixture
def reference_pages(monkeypatch):
    """The module that writes the derived pages."""
    pytest.importorskip("sphinx", reason="the documentation needs the extra docs")
    monkeypatch.setattr(sys, "path", [str(ROOT / "docs" / "_extensions"), *sys.path])
    import reference_pages

    return reference_pages


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_code_in_the_documentation_is_fenced(path):
    """A prompt outside a fence is executed by the tests but set as running text by the site."""
    fenced = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        assert fenced or not line.startswith(">>>"), f"{path.name}, line {number}"


def test_every_parameter_of_an_estimator_is_in_the_settings_page(reference_pages):
    page = reference_pages.settings_page()
    for name in softperm.PiGNNClassifier().get_params():
        assert f"| `{name}` |" in page


def test_every_command_is_in_the_commands_page(reference_pages):
    page = reference_pages.commands_page()
    for name in ("train", "predict", "embed", "distance", "evaluate", "report", "data list"):
        assert f"`softperm {name}`" in page


def test_every_public_name_and_room_is_in_the_reference(reference_pages):
    pages = reference_pages.api_pages()
    for name in softperm.__all__:
        assert f":: softperm.{name}\n" in pages["index.md"]
    for room in ("data", "ops", "nn", "training", "estimators", "distance", "lab"):
        assert any(name.startswith(f"softperm.{room}") for name in pages), room
