"""The notebooks run from top to bottom; the site executes them again and shows their output."""

import ast
import json
from pathlib import Path

import matplotlib
import pytest

NOTEBOOKS = sorted(Path(__file__).parents[1].joinpath("examples").glob("*.ipynb"))


def cells(path: Path, kind: str) -> list[dict]:
    document = json.loads(path.read_text(encoding="utf-8"))
    return [cell for cell in document["cells"] if cell["cell_type"] == kind]


def test_there_are_notebooks():
    assert {path.stem for path in NOTEBOOKS} >= {"own_graphs", "molecules", "distances"}


@pytest.mark.usefixtures("shapes_unchecked")
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=pytest.mark.slow) for path in NOTEBOOKS],
)
def test_a_notebook_runs(path):
    """In this process, where torch is loaded; a kernel would spend most of its time importing."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    names: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(cells(path, "code")):
        exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), names)
    pyplot.close("all")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_a_notebook_imports_is_there(path):
    """The quick part of running it."""
    code = "\n".join("".join(cell["source"]) for cell in cells(path, "code"))
    imports = [
        each for each in ast.parse(code).body if isinstance(each, ast.Import | ast.ImportFrom)
    ]
    assert any("softperm" in ast.unparse(each) for each in imports)
    exec(compile(ast.Module(imports, []), path.name, "exec"), {})


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs(path):
    for cell in cells(path, "code"):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
