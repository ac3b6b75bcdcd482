"""``softperm embed``: the aligned vectors of a file of graphs."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated

import typer

from softperm.cli.console import called, give, ready_file, warnings_as_lines


def embed(
    run: Annotated[
        str,
        typer.Argument(
            help="Run folder of softperm train, a model folder, or hf://owner/name on the Hub."
        ),
    ],
    data: Annotated[Path, typer.Argument(help="Graphs, in any format that train reads.")],
    out: Annotated[Path, typer.Option(help="File to write: .npz, .parquet or .csv.")] = Path(
        "vectors.npz"
    ),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, …")] = "auto",
    smiles_column: Annotated[str | None, typer.Option(help="Column of SMILES in a table.")] = None,
    symmetrise: Annotated[
        bool, typer.Option(help="Read directed edges in both directions.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Align each graph of a file; writes its vector vec(DᵀAD), vec(DᵀX) to a file."""
    from softperm.cli.trained import load_trained, read
    from softperm.files import write_atomically

    writers = {".npz": _npz, ".parquet": _parquet, ".csv": _csv}
    if out.suffix not in writers:
        raise ValueError(f"--out must end in .npz, .parquet or .csv; got {out}")
    ready_file(out)
    with warnings_as_lines():
        trained = load_trained(run, device)
        file = read(data, smiles_column, symmetrise)
        with called(file.ids):
            vectors = trained.estimator.transform(trained.prepare(file))
    names = trained.estimator.get_feature_names_out().tolist()
    write_atomically(out, writers[out.suffix](list(file.ids), names, vectors))
    give({"graphs": len(vectors), "length": vectors.shape[1], "vectors": str(out)}, as_json)


def _npz(ids: list[str], names: list[str], vectors) -> bytes:
    import numpy as np

    content = io.BytesIO()
    np.savez_compressed(content, graph=np.array(ids), name=np.array(names), vectors=vectors)
    return content.getvalue()


def _csv(ids: list[str], names: list[str], vectors) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["graph", *names])
    writer.writerows([i, *row] for i, row in zip(ids, vectors.tolist(), strict=True))
    return text.getvalue().encode()


def _parquet(ids: list[str], names: list[str], vectors) -> bytes:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ImportError(
            "writing Parquet needs pyarrow: pip install 'softperm[parquet]', or write .npz or .csv"
        ) from None
    columns = {"graph": pa.array(ids)}
    columns |= {name: pa.array(column) for name, column in zip(names, vectors.T, strict=True)}
    content = io.BytesIO()
    pq.write_table(pa.table(columns), content)
    return content.getvalue()
