"""``softperm embed``: the aligned vectors of a file of graphs or of a dataset."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softperm.cli.console import called, give, lines, ready_file
from softperm.cli.inputs import (
    DataRoot,
    Device,
    Json,
    Run,
    SmilesColumn,
    Source,
    Symmetrise,
    load_model,
    read_for,
)
from softperm.files import CSVWriter

if TYPE_CHECKING:
    import numpy as np


def embed(
    run: Run,
    data: Source,
    out: Annotated[Path, typer.Option(help="File to write: .npz, .parquet or .csv.")] = Path(
        "vectors.npz"
    ),
    device: Device = "auto",
    smiles_column: SmilesColumn = None,
    symmetrise: Symmetrise = False,
    data_root: DataRoot = None,
    as_json: Json = False,
) -> None:
    """Align each graph; writes its vector vec(DᵀAD), vec(DᵀX) to a file."""
    from softperm.files import write_atomically

    writers = {".npz": _npz, ".parquet": _parquet, ".csv": _csv}
    if out.suffix not in writers:
        raise ValueError(f"--out must end in .npz, .parquet or .csv; got {out}")
    ready_file(out)
    with lines():
        estimator = load_model(run, device)
        source = read_for(estimator, data, data_root, smiles_column, symmetrise)
        with called(source.ids):
            vectors = estimator.transform(source.graphs)
    names = estimator.get_feature_names_out().tolist()
    write_atomically(out, writers[out.suffix](list(source.ids), names, vectors))
    give({"graphs": len(vectors), "length": vectors.shape[1], "vectors": str(out)}, as_json)


def _npz(ids: list[str], names: list[str], vectors: np.ndarray) -> bytes:
    import numpy as np

    content = io.BytesIO()
    np.savez_compressed(content, graph=np.array(ids), name=np.array(names), vectors=vectors)
    return content.getvalue()


def _csv(ids: list[str], names: list[str], vectors: np.ndarray) -> bytes:
    text = io.StringIO()
    writer = CSVWriter(text)
    writer.writerow(["graph", *names])
    writer.writerows([i, *row] for i, row in zip(ids, vectors.tolist(), strict=True))
    return text.getvalue().encode()


def _parquet(ids: list[str], names: list[str], vectors: np.ndarray) -> bytes:
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
