"""``softperm distance``: exact distances between all graphs of a file."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated, Any

import typer

from softperm.cli.console import called, give, ready_file, say, warnings_as_lines


def distance(
    data: Annotated[Path, typer.Argument(help="Graphs, in any format that train reads.")],
    out: Annotated[Path, typer.Option(help="File to write: .npz or .csv.")] = Path("distances.npz"),
    labels: Annotated[
        bool, typer.Option(help="Match only vertices of equal label with each other.")
    ] = False,
    time_limit: Annotated[
        float | None, typer.Option(help="Seconds that one pair may take; intervals beyond.")
    ] = 60.0,
    workers: Annotated[int | None, typer.Option(help="Threads; all cores by default.")] = None,
    smiles_column: Annotated[str | None, typer.Option(help="Column of SMILES in a table.")] = None,
    symmetrise: Annotated[
        bool, typer.Option(help="Read directed edges in both directions.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Compute the Frobenius distance of every pair of graphs, proven where time allows.

    Finished pairs are kept beside the output while it runs: the same command goes on from there.
    """
    import numpy as np

    from softperm.cli.trained import read
    from softperm.distance import frobenius_intervals
    from softperm.files import write_atomically

    writers = {".npz": _npz, ".csv": _csv}
    if out.suffix not in writers:
        raise ValueError(f"--out must end in .npz or .csv; got {out}")
    ready_file(out)
    kept = out.with_name(f".{out.name}.pairs")
    with warnings_as_lines():
        file = read(data, smiles_column, symmetrise)
        with called(file.ids):
            found = frobenius_intervals(
                file.graphs,
                labels=labels,
                time_limit=time_limit,
                workers=workers,
                checkpoint=kept,
                progress=True,
            )
    write_atomically(out, writers[out.suffix](list(file.ids), found))
    kept.unlink(missing_ok=True)
    pairs = np.triu_indices(len(file.graphs), 1)
    proven = int(found.exact[pairs].sum())
    if proven < len(pairs[0]):
        say("some distances are not proven: they lie between lower bound and distance")
    result = {"graphs": len(file.graphs), "pairs": len(pairs[0]), "proven": proven}
    give({**result, "distances": str(out)}, as_json)


def _npz(ids: list[str], found: Any) -> bytes:
    import numpy as np

    content = io.BytesIO()
    np.savez_compressed(
        content,
        graph=np.array(ids),
        distance=found.distance,
        lower_bound=found.lower_bound,
        exact=found.exact,
    )
    return content.getvalue()


def _csv(ids: list[str], found: Any) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["first", "second", "distance", "lower_bound", "exact"])
    for i, first in enumerate(ids):
        for k in range(i + 1, len(ids)):
            numbers = (float(found.distance[i, k]), float(found.lower_bound[i, k]))
            writer.writerow([first, ids[k], *numbers, bool(found.exact[i, k])])
    return text.getvalue().encode()
