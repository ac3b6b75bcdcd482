"""The wheel: built from the sources, installed in a fresh environment, used as a user would."""

import os
import re
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import softperm

ROOT = Path(softperm.__file__).parents[1]


def run(*command: str | Path, cwd: Path) -> str:
    """Standard output of a command that sees neither the sources nor the user's settings."""
    hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The ``bin`` folder of an environment with the wheel, and the dependencies of this one."""
    if not (ROOT / "pyproject.toml").is_file():
        pytest.skip("softperm was not imported from its sources")
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "environment")
    binaries = folder / "environment" / ("Scripts" if os.name == "nt" else "bin")
    python = binaries / "python"
    (packages,) = run(
        python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder
    ).split()
    (Path(packages) / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    pip = [sys.executable, "-m", "pip", "--python", python]
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    return binaries


@pytest.mark.slow
def test_the_readme_example_runs_from_an_installed_wheel(installed, tmp_path):
    where = run(
        installed / "python", "-c", "import softperm; print(softperm.__file__)", cwd=tmp_path
    )
    assert Path(where.strip()).is_relative_to(installed.parent)
    shutil.copy(ROOT / "README.md", tmp_path)
    assert ">>> " in (tmp_path / "README.md").read_text(encoding="utf-8")
    options = ["-o", "NORMALIZE_WHITESPACE", "-o", "ELLIPSIS"]
    run(installed / "python", "-m", "doctest", *options, "README.md", cwd=tmp_path)


@pytest.mark.slow
def test_the_installed_command_knows_its_version_and_the_recipes(installed, tmp_path):
    version = run(installed / "softperm", "--version", cwd=tmp_path).split()
    assert version == ["softperm", softperm.__version__]
    where = run(
        installed / "python", "-c", "import softperm; print(softperm.__file__)", cwd=tmp_path
    )
    recipes = Path(where.strip()).parent / "experiments"
    expected = {path.name for path in (ROOT / "experiments").iterdir()}
    assert {path.name for path in recipes.iterdir()} == expected


@pytest.mark.slow
def test_the_wheel_has_the_sources_of_the_page(installed, tmp_path):
    code = "from softperm.explore.write_page import join_modules; print(len(join_modules()))"
    assert int(run(installed / "python", "-c", code, cwd=tmp_path)) > 10_000


def test_a_wheel_holds_the_modules_the_page_and_the_recipes():
    from hatchling.builders.wheel import WheelBuilder

    if not (ROOT / "pyproject.toml").is_file():
        pytest.skip("softperm was not imported from its sources")
    files = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "softperm").rglob("*.py")}
    page = {str(p.relative_to(ROOT)) for p in (ROOT / "softperm/explore/page").rglob("*.*")}
    recipes = {f"softperm/experiments/{path.name}" for path in (ROOT / "experiments").iterdir()}
    assert len(page) > 3
    assert len(recipes) > 5
    assert modules | page | recipes | {"softperm/py.typed"} <= files


def test_the_version_is_written_in_one_place():
    """The builder reads ``softperm.__version__``; a release is described in the changelog."""
    version = re.escape(softperm.__version__)
    for name in ("pyproject.toml", "CITATION.cff"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not re.search(rf"^version\W+{version}", text, re.MULTILINE), name
