"""The command ``softperm``: parses, calls the library, prints.

The module of a command is imported when the command is invoked or listed. Torch and other large
libraries are imported by the functions that use them, so that help is fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from softperm import __version__
from softperm.errors import one_line
from softperm.startup import collect_rarely, defer_imports

COMMANDS = (
    "train", "predict", "embed", "explain", "distance", "index", "search", "explore", "evaluate",
    "report", "data", "study", "push",
)  # fmt: skip
"""Modules of this package, in the order of the help; each has a function or group of its name."""
GROUPS = ("Arguments", "Data", "Model", "Training", "Hardware", "Output", "Options")
"""Headings of options in the help of a command."""


class GroupedHelp(TyperCommand):
    """A command whose help lists options in groups and never cuts their names."""

    context_class = typer.Context  # what commands with a parameter of this type expect

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes one section for each group."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for each in self.get_params(ctx):
            record = each.get_help_record(ctx)
            if record is not None:
                kind = "Arguments" if each.param_type_name == "argument" else "Options"
                groups.setdefault(getattr(each, "rich_help_panel", None) or kind, []).append(record)
        for title in sorted(groups, key=lambda each: GROUPS.index(each) if each in GROUPS else 1):
            with formatter.section(title):
                formatter.write_dl(groups[title])


class _LazyCommands(Mapping[str, Any]):
    """The commands by name; reading one imports its module."""

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        module = import_module(f"softperm.cli.{name}")
        holder = typer.Typer(rich_markup_mode=None)
        if hasattr(module, "app"):
            holder.add_typer(module.app, name=name)
        else:
            holder.command(cls=GroupedHelp)(getattr(module, name))
        return get_group(holder).commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class SoftpermCommands(TyperGroup):
    """The group of all commands.

    Bad input is reported as one sentence on standard error, with exit code 2.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _LazyCommands()  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the commands, in the order of the help."""
        return list(COMMANDS)

    def invoke(self, ctx: Any) -> Any:
        """Runs a command; exit code 130 after Ctrl-C."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.secho("interrupted", err=True)
            raise typer.Exit(130) from None
        except BrokenPipeError:
            raise  # typer ends quietly when the reader of our output has gone
        except (ValueError, OSError, ArithmeticError, ImportError, MemoryError) as problem:
            sentence = _sentence(problem)
        except RuntimeError as problem:
            if "CUDA error" in str(problem):
                cause = str(problem).partition("\n")[0]
                sentence = f"the GPU failed ({cause}): run the same command again, which resumes it"
            elif any(words in str(problem) for words in _NO_MEMORY):
                sentence = _sentence(MemoryError())
            else:
                raise
        typer.secho(f"error: {sentence}", err=True, fg=typer.colors.RED)
        raise typer.Exit(2)


app = typer.Typer(
    cls=SoftpermCommands,
    help="Soft permutations of graphs: learn from, align and compare collections of graphs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_NO_MEMORY = ("out of memory", "can't allocate memory")
"""PyTorch's messages, for a GPU and for the machine."""


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        typer.echo(f"softperm {__version__}")
        raise typer.Exit


def main() -> None:
    """Runs the command line."""
    collect_rarely()
    defer_imports()
    app(prog_name="softperm")


def _sentence(problem: BaseException) -> str:
    """An error message on one line."""
    if isinstance(problem, OSError) and problem.strerror:
        return ": ".join(str(part) for part in (problem.filename, problem.strerror) if part)
    if isinstance(problem, MemoryError) and not str(problem):
        return "out of memory: use a smaller --batch-size"
    return one_line(problem) or type(problem).__name__
