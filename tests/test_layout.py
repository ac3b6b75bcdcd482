"""The shape of the package: imports point upstream, only commands print, help needs no torch."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import softperm

PACKAGE = Path(softperm.__file__).parent
FOUNDATION = [
    "errors", "files", "jit", "vectors", "startup", "parallel", "progress", "pyg", "settings",
]  # fmt: skip
ROOMS = [
    "data", "ops", "nn", "training", "distance", "estimators", "search", "explain", "explore",
    "lab", "cli", "__main__",
]  # fmt: skip
ORDER = [*FOUNDATION, *ROOMS]
FILES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    """The dotted name of a module, without ``softperm``; empty for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in FILES}


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(nodes, home: Path) -> set[str]:
    """Modules of this package that the given statements import, by their names in ``MODULES``."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{home}: imports are absolute"
            module = node.module or ""
            for alias in node.names:  # the name of a module, or a name in one
                inner = f"{module}.{alias.name}"
                known = inner.removeprefix("softperm.") in MODULES
                found.add(inner if known else module)
    ours = {name for name in found if name == "softperm" or name.startswith("softperm.")}
    return {name.removeprefix("softperm").removeprefix(".") for name in ours}


def at_import(module: ast.Module):
    """The statements that run when a module is imported: not in functions, not for checkers."""
    waiting = list(module.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting.extend(node.orelse)
            continue
        yield node
        waiting.extend(child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))


def test_the_order_names_every_part_of_the_package():
    assert {name.partition(".")[0] for name in MODULES if name} <= set(ORDER)


@pytest.mark.parametrize("name", [name for name in MODULES if name])
def test_imports_point_upstream(name):
    """Also those inside functions: they only wait, they do not turn the direction around."""
    part = name.partition(".")[0]
    for other in imported(ast.walk(tree(MODULES[name])), MODULES[name]):
        theirs = other.partition(".")[0]
        if theirs and theirs != part:
            assert ORDER.index(theirs) < ORDER.index(part), f"{name} imports {other}"


def test_no_module_needs_itself_to_be_imported():
    graph = {name: imported(at_import(tree(path)), path) for name, path in MODULES.items()}
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, f"imports run in a circle: {' -> '.join([*above, name])}"
        if name not in done:
            for other in graph.get(name, set()) - {name}:
                visit(other, (*above, name))
            done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize("name", [n for n in MODULES if n.partition(".")[0] not in {"cli"}])
def test_only_commands_print(name):
    for node in ast.walk(tree(MODULES[name])):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "print", f"{name}:{node.lineno} prints"
        if isinstance(node, ast.Import | ast.ImportFrom):
            assert "typer" not in ast.dump(node), f"{name}:{node.lineno} speaks to the terminal"


HELP = """
import sys
from softperm.cli import main
sys.argv = ["softperm", *{arguments}]
try:
    main()
finally:
    heavy = {heavy} & set(sys.modules)
    assert not heavy, f"imported: {{heavy}}"
"""
HEAVY = {"torch", "torch_geometric", "numpy", "scipy", "sklearn", "numba", "matplotlib", "networkx"}
COMMANDS = [
    "train", "predict", "embed", "explain", "distance", "explore", "evaluate", "report", "study",
    "data", "push",
]  # fmt: skip


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)], ids=" ".join
)
def test_help_imports_no_heavy_library(arguments):
    """Each of these libraries takes from a tenth of a second to several seconds to import."""
    done = subprocess.run(
        [sys.executable, "-c", HELP.format(arguments=arguments, heavy=HEAVY)],
        capture_output=True,
        text=True,
        env={**os.environ, "TERM": "dumb", "COLUMNS": "100"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "softperm" in done.stdout


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, softperm; assert not {'torch', 'numpy'} & set(sys.modules); dir(softperm)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_there():
    for name in softperm.__all__:
        assert getattr(softperm, name) is not None
    assert set(softperm.__all__) <= set(dir(softperm))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        softperm.nothing  # noqa: B018


def test_the_slowest_test_files_exist():
    """A file that was renamed would lose its place at the start of the run."""
    import conftest

    stems = {path.stem for path in Path(conftest.__file__).parent.rglob("test_*.py")}
    assert set(conftest.SLOWEST) <= stems


def shown_strings(module: ast.Module) -> list[str]:
    """All text of a module but docstrings."""
    described = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
    texts = [node for node in ast.walk(module) if isinstance(node, ast.Constant)]
    return [n.value for n in texts if isinstance(n.value, str) and id(n) not in described]


@pytest.mark.parametrize("name", [name for name in MODULES if not name.startswith("cli")])
def test_only_commands_speak_of_their_options(name):
    """A message of the library is read in Python too, where there are no options."""
    if name == "explore.write_page":
        pytest.skip("a page is read by people who may start a command, and names it in full")
    assert not [t for t in shown_strings(tree(MODULES[name])) if re.search(r"\B--[a-z]", t)]
