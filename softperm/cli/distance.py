"""``softperm distance``: exact distances between all graphs of a file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated, Any

import typer

from softperm.cli.console import echo, lines, naming_graphs, print_result, ready_file
from softperm.cli.inputs import (
    DataRoot,
    Json,
    SkipEmpty,
    SmilesColumn,
    Source,
    Strict,
    Symmetrise,
    graphs_file,
    output_option,
    read_file,
)
from softperm.files import CSVWriter, remove_abandoned_parts, write_atomically


def distance(
    data: Source,
    out: Annotated[Path, output_option(help="File to write: .npz or .csv.")] = Path(
        "distances.npz"
    ),
    labels: Annotated[
        bool, typer.Option(help="Match only vertices of equal label with each other.")
    ] = False,
    time_limit: Annotated[float | None, typer.Option(help="Seconds for each pair.")] = 60.0,
    workers: Annotated[int | None, typer.Option(help="Threads; all cores by default.")] = None,
    smiles_column: SmilesColumn = None,
    symmetrise: Symmetrise = False,
    skip_empty: SkipEmpty = False,
    strict: Strict = False,
    data_root: DataRoot = None,
    as_json: Json = False,
) -> None:
    """Compute the Frobenius distance of every pair of graphs.

    A pair that is not proven within the time limit gets an interval. An interrupted command resumes
    when it is started again: finished pairs are saved every ten seconds.
    """
    import numpy as np

    from softperm.distance import frobenius_intervals

    writers = {".npz": _npz, ".csv": _csv}
    if out.suffix not in writers:
        raise ValueError(f"--out must end in .npz or .csv; got {out}")
    data = graphs_file(data, data_root)
    ready_file(out, data)
    checkpoint = out.with_name(f".{out.name}.pairs")
    remove_abandoned_parts(checkpoint)
    with lines():
        file = read_file(data, smiles_column, symmetrise, skip_empty, strict)
        with naming_graphs(file.ids):
            intervals = frobenius_intervals(
                file.graphs,
                labels=labels,
                time_limit=time_limit,
                workers=workers,
                checkpoint=checkpoint,
                progress=True,
            )
    write_atomically(out, writers[out.suffix](list(file.ids), intervals))
    checkpoint.unlink(missing_ok=True)
    pairs = np.triu_indices(len(file.graphs), 1)
    proven = int(intervals.exact[pairs].sum())
    if proven < len(pairs[0]):
        echo("unproven distances lie between lower_bound and distance; a longer --time-limit helps")
    result = {"graphs": len(file.graphs), "pairs": len(pairs[0]), "proven": proven}
    print_result({**result, "distances": str(out)}, as_json)


def _npz(ids: list[str], intervals: Any) -> bytes:
    import numpy as np

    content = io.BytesIO()
    np.savez_compressed(
        content,
        graph=np.array(ids),
        distance=intervals.distance,
        lower_bound=intervals.lower_bound,
        exact=intervals.exact,
    )
    return content.getvalue()


def _csv(ids: list[str], intervals: Any) -> bytes:
    text = io.StringIO()
    writer = CSVWriter(text)
    writer.writerow(["first", "second", "distance", "lower_bound", "exact"])
    for i, first in enumerate(ids):
        for k in range(i + 1, len(ids)):
            numbers = (float(intervals.distance[i, k]), float(intervals.lower_bound[i, k]))
            writer.writerow([first, ids[k], *numbers, bool(intervals.exact[i, k])])
    return text.getvalue().encode()
