"""``softperm push``: a run becomes a repository of the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softperm.cli.console import lines, print_result
from softperm.cli.inputs import Json
from softperm.files import remove_abandoned_parts, write_atomically


def push(
    run: Annotated[Path, typer.Argument(help="Run folder of softperm train, or a model folder.")],
    repository: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="On the Hub.")],
    private: Annotated[
        bool | None, typer.Option("--private/--public", help="Visibility of a new repository.")
    ] = None,
    license: Annotated[str | None, typer.Option(help="Licence for the card, such as mit.")] = None,
    card: Annotated[
        Path | None, typer.Option(help="Write the model card to this file and push nothing.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Upload a run to the Hugging Face Hub, with a model card; hf://OWNER/NAME then names it."""
    from softperm.explore.hub import model_card, push_to_hub

    with lines():
        if card is not None:
            remove_abandoned_parts(card)
            write_atomically(card, model_card(run, repository, license))
            print_result({"card": str(card)}, as_json)
            return
        address = push_to_hub(run, repository, private=private, license=license)
    print_result({"repository": address, "load": f"hf://{repository}"}, as_json)
