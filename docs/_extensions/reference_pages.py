"""Pages that are derived from the package: settings, commands, API; and the notebooks.

They are written to ``docs/reference`` and ``docs/examples`` before Sphinx reads its sources.
"""

import ast
import shutil
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

import softperm

DOCS = Path(__file__).resolve().parents[1]
PACKAGE = Path(softperm.__file__).parent
ROOMS = {
    "data": "Graphs, labels, files and datasets",
    "ops": "Operators on tensors",
    "nn": "Networks",
    "training": "Training",
    "estimators": "Estimators",
    "distance": "Distances",
    "search": "Search",
    "explain": "Explanations",
    "explore": "Pictures and pages",
    "lab": "Laboratory",
}


def setup(app: Sphinx) -> dict[str, bool]:
    """Writes the pages when the builder is ready."""
    app.connect("builder-inited", lambda _: write_pages())
    app.connect("autodoc-skip-member", _skip_member)
    app.connect("doctree-read", _set_text)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _skip_member(app, kind, name: str, member: object, skip: bool, options) -> bool | None:
    """Members that scikit-learn and torch define are documented there."""
    module = getattr(getattr(member, "fget", member), "__module__", None) or "softperm"
    return True if not module.startswith("softperm") else None


def _set_text(app, doctree: nodes.document) -> None:
    """Removes the blank line that doctest needs at the end of a fence; keeps "1 ± 2" unbroken."""
    for block in doctree.findall(nodes.literal_block):
        block.rawsource = block.astext().rstrip()
        block.children = [nodes.Text(block.rawsource)]
    for entry in doctree.findall(nodes.entry):
        for text in [*entry.findall(nodes.Text)]:
            text.parent.replace(text, nodes.Text(text.replace(" ± ", "\N{NBSP}±\N{NBSP}")))


def write_pages() -> None:
    """Writes all derived pages and removes those of modules that no longer exist."""
    reference = DOCS / "reference"
    pages = {
        reference / "settings.md": settings_page(),
        reference / "commands.md": commands_page(),
        **{reference / "api" / name: text for name, text in api_pages().items()},
    }
    for path in [*reference.rglob("*.md")]:
        if path not in pages:
            path.unlink()
    for path, text in pages.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    shutil.copytree(DOCS.parent / "examples", DOCS / "examples", dirs_exist_ok=True)


def settings_page() -> str:
    """A table for each group of the estimators' parameters."""
    from softperm.settings import parameters

    rows: dict[str, list[str]] = {}
    for name, default, rule in ((each.name, each.default, each.rule) for each in parameters()):
        row = f"| `{name}` | `{default!r}` | {_cell(rule.expectation)} | {_cell(rule.help)} |"
        rows.setdefault(rule.group, []).append(row)
    text = [
        "# Settings",
        "Each setting is declared once in the package; this page is derived from the declarations. "
        "The names are those of the estimators' parameters; settings of model and training are "
        "also keys of a recipe. On the command line underscores become hyphens: "
        "`latent_vertices` is `--latent-vertices`.",
    ]
    header = ["| setting | default | values | meaning |", "|---|---|---|---|"]
    for group, lines in rows.items():
        text += [f"## {group}", "\n".join([*header, *lines])]
    return "\n\n".join(text) + "\n"


def commands_page() -> str:
    """Usage and options of every command, from the definitions of the command line."""
    import typer

    from softperm.cli import app

    root = typer.main.get_command(app)
    text = ["# Commands", _cell(root.help or ""), _options(root)]
    for name, command in root.commands.items():
        text += _command(f"softperm {name}", command, "##")
    return "\n\n".join(part for part in text if part) + "\n"


def _command(name: str, command, heading: str) -> list[str]:
    subcommands = getattr(command, "commands", {})
    arguments = [p.name for p in command.params if p.param_type_name == "argument"]
    usage = " ".join([name, *("{" + argument + "}" for argument in arguments)])
    text = [f"{heading} `{name}`", _cell(command.help or "")]
    if not subcommands:
        text += [f"```console\n$ {usage} [OPTIONS]\n```", _options(command)]
    for inner, subcommand in subcommands.items():
        text += _command(f"{name} {inner}", subcommand, heading + "#")
    return text


def _options(command) -> str:
    rows = []
    for parameter in command.params:
        if parameter.name == "help":
            continue
        names = "<br>".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
        default = parameter.default
        if isinstance(default, bool) and parameter.secondary_opts:
            default = (parameter.opts if default else parameter.secondary_opts)[0]
        plain = isinstance(default, str | int | float | Path) and not isinstance(default, bool)
        shown = f"`{default}`" if plain else "required" if parameter.required else ""
        rows.append(f"| {names} | {shown} | {_cell(getattr(parameter, 'help', '') or '')} |")
    header = ["| option | default | meaning |", "|---|---|---|"]
    return "\n".join([*header, *rows]) if rows else ""


def api_pages() -> dict[str, str]:
    """The pages of the API reference by file name: public names, then a page per package."""
    pages = {"index.md": _index_page()}
    for package in _packages():
        modules = _modules(package)
        title = ROOMS.get(package.removeprefix("softperm."))
        heading = f"# `{package}`" if title is None else f"# {title}: `{package}`"
        sections = [_section(name, modules) for name in modules]
        pages[f"{package}.md"] = "\n\n".join([heading, *sections]) + "\n"
    return pages


def _section(name: str, modules: dict[str, Path]) -> str:
    """A module's docstring and members, without those documented as names of the package."""
    submodules = {other.rpartition(".")[2] for other in modules if other.startswith(f"{name}.")}
    elsewhere = ", ".join(sorted({*softperm.__all__, *submodules}))
    directive = f".. automodule:: {name}\n   :exclude-members: {elsewhere}"
    return f"## `{name}`\n\n```{{eval-rst}}\n{directive}\n```"


def _index_page() -> str:
    objects = [(name, getattr(softperm, name)) for name in softperm.__all__]
    objects.sort(key=lambda item: not hasattr(item[1], "fit"))  # estimators first
    directives = [
        f".. auto{'class' if isinstance(value, type) else 'function'}:: softperm.{name}"
        + ("\n   :inherited-members: Module, BaseEstimator" if isinstance(value, type) else "")
        for name, value in objects
    ]
    contents = "\n".join(_packages())
    return "\n\n".join([
        "# API",
        "The names below are imported from `softperm`. The other pages document every module of "
        "the subpackages, in the order in which data flows through them.",
        "```{toctree}\n:hidden:\n\n" + contents + "\n```",
        "```{eval-rst}\n" + "\n\n".join(directives) + "\n```",
    ]) + "\n"  # fmt: skip


def _packages() -> list[str]:
    """The subpackages, and the packages in them that have something to document."""
    folders = [
        path.parent
        for room in ROOMS
        for path in sorted((PACKAGE / room).rglob("__init__.py"), key=lambda path: path.parent)
    ]
    names = [".".join(folder.relative_to(PACKAGE.parent).parts) for folder in folders]
    return [name for name in names if _modules(name)]


def _modules(package: str) -> dict[str, Path]:
    """The modules of a package that define something public, without GPU kernels."""
    found = {}
    for path in sorted(PACKAGE.parent.joinpath(*package.split(".")).glob("*.py")):
        name = package if path.stem == "__init__" else f"{package}.{path.stem}"
        if not path.stem.startswith("gpu") and _defines_public(path):
            found[name] = path
    return found


def _defines_public(path: Path) -> bool:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(
        isinstance(node, ast.FunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and ast.get_docstring(node)
        for node in tree.body
    )


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "\\<")
