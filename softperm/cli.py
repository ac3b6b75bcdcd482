"""The command ``softperm``: parses, calls the library, prints. Heavy imports wait for a command."""

from __future__ import annotations

import sys

import typer

from softperm import __version__
from softperm.commands import demo, embed, predict, train

app = typer.Typer(
    help="Soft permutations of graphs: learn from, align and compare collections of graphs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(train.train)
app.command()(predict.predict)
app.command()(embed.embed)
app.command()(demo.demo)


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        typer.echo(f"softperm {__version__}")
        raise typer.Exit


def main() -> None:
    """Runs the command line; bad input is one sentence on standard error and exit code 2."""
    try:
        app()
    except KeyboardInterrupt:
        typer.secho("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)
    except (ValueError, OSError, FloatingPointError, ImportError, MemoryError) as problem:
        typer.secho(f"error: {_sentence(problem)}", err=True, fg=typer.colors.RED)
        sys.exit(2)


def _sentence(problem: BaseException) -> str:
    """What went wrong, on one line."""
    if isinstance(problem, OSError) and problem.filename and problem.strerror:
        return f"{problem.filename}: {problem.strerror}"
    if isinstance(problem, MemoryError):
        return "out of memory: use a smaller --batch-size"
    return " ".join(str(problem).split()) or type(problem).__name__
