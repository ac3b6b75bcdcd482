"""The command ``softperm``: parses, calls the library, prints.

Torch and other large libraries are imported by the commands that use them, so that help is fast.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from softperm import __version__
from softperm.cli import data, distance, embed, evaluate, predict, report, study, train
from softperm.cli.options import GroupedHelp
from softperm.cli.startup import defer_imports


class OneSentenceErrors(TyperGroup):
    """Commands that report bad input as one sentence on standard error, with exit code 2."""

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
            if not any(words in str(problem) for words in _NO_MEMORY):
                raise
            sentence = _sentence(MemoryError())
        typer.secho(f"error: {sentence}", err=True, fg=typer.colors.RED)
        raise typer.Exit(2)


app = typer.Typer(
    cls=OneSentenceErrors,
    help="Soft permutations of graphs: learn from, align and compare collections of graphs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(cls=GroupedHelp)(train.train)
app.command(cls=GroupedHelp)(predict.predict)
app.command(cls=GroupedHelp)(embed.embed)
app.command(cls=GroupedHelp)(distance.distance)
app.command(cls=GroupedHelp)(evaluate.evaluate)
app.command(cls=GroupedHelp)(report.report)
app.add_typer(data.app, name="data")
app.add_typer(study.app, name="study")

_NO_MEMORY = ("out of memory", "can't allocate memory")
"""PyTorch's messages, for a GPU and for the machine."""


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        typer.echo(f"softperm {__version__}")
        raise typer.Exit


def main() -> None:
    """Runs the command line."""
    defer_imports()
    app(prog_name="softperm")


def _sentence(problem: BaseException) -> str:
    """An error message on one line."""
    if isinstance(problem, OSError) and problem.strerror:
        return ": ".join(str(part) for part in (problem.filename, problem.strerror) if part)
    if isinstance(problem, MemoryError) and not str(problem):
        return "out of memory: use a smaller --batch-size"
    return " ".join(str(problem).split()) or type(problem).__name__
