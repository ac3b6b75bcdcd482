"""``softperm index``: an index of the graphs of a file, for ``softperm search``."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from softperm.cli.console import (
    echo,
    lines,
    naming_graphs,
    only_writer,
    print_result,
    ready_folder,
)
from softperm.cli.inputs import (
    DataRoot,
    Engine,
    IdColumn,
    Json,
    Processes,
    SkipEmpty,
    SmilesColumn,
    Source,
    Strict,
    Symmetrise,
    check_engine,
    graphs_file,
    output_option,
    read_file,
    say_unreadable,
)
from softperm.errors import by_count, counted
from softperm.parallel import map_in_processes, map_on_ray
from softperm.progress import progress_bars

VECTORS = "vectors"  # folder of the vectors in that of an index


def index(
    data: Source,
    out: Annotated[Path, output_option(help="Folder of the index.")],
    add: Annotated[bool, typer.Option(help="Add to an existing index.")] = False,
    edge_substitution: Annotated[
        float, typer.Option(help="Cost of edges of different label; 0 ignores edge labels.")
    ] = 1.0,
    vectors: Annotated[
        str | None,
        typer.Option(
            help="Store learnt vectors too, for search --by vector: a run or model folder that "
            "computes them, or auto to learn an aligner from these graphs."
        ),
    ] = None,
    smiles_column: SmilesColumn = None,
    id_column: IdColumn = None,
    symmetrise: Symmetrise = False,
    skip_empty: SkipEmpty = False,
    strict: Strict = False,
    data_root: DataRoot = None,
    engine: Engine = "local",
    processes: Processes = None,
    as_json: Json = False,
) -> None:
    """Build an index of graphs, in which softperm search finds look-alikes.

    The distance is the number of edges that differ: vertices are matched with vertices of equal
    label or with none. The other columns of a table become metadata for conditions. With --add,
    graphs that the index already contains are skipped, so an interrupted command can be repeated.
    """
    from softperm.data.formats.shards import read_shards
    from softperm.distance import EditCosts
    from softperm.search import GraphIndex
    from softperm.search.index import unique_ids
    from softperm.search.shards import PartReader, build_from_parts

    if add and not out.exists():
        raise ValueError(f"{out} does not exist; leave out --add to build a new index")
    check_engine(engine)
    data = graphs_file(data, data_root)
    over = map_on_ray if engine == "ray" else map_in_processes
    with only_writer(out, ready_folder(out)), lines(), progress_bars() as report:
        _clear_unfinished(out, add)
        library = GraphIndex.open(out) if add else None
        costs = EditCosts.edges(edge_substitution) if library is None else library.costs
        shards = read_shards(
            data, smiles_column=smiles_column, id_column=id_column, symmetrise=symmetrise
        )
        with closing(shards):
            parts = over(PartReader(costs, symmetrise, skip_empty, strict), shards, processes)
            library, present, problems = build_from_parts(parts, out, costs, library, report)
        if present:
            echo(
                f"{counted(present, 'graph')} {by_count(present, 'is', 'are')} already in the index"
            )
        if vectors is not None or (out / VECTORS).exists():
            file = read_file(data, smiles_column, symmetrise, skip_empty, id_column=id_column)
            with naming_graphs(file.ids):
                graphs = dict(zip(unique_ids(file.ids), file.graphs, strict=True))
                _store_vectors(library, out, vectors, graphs)
        else:
            say_unreadable(problems)
        library.save(out)  # last: without it, a repeated command starts anew
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print_result({"graphs": len(library), "bytes": size, "index": str(out)}, as_json)


def _clear_unfinished(out: Path, add: bool) -> None:
    """Removes what a killed command left in a folder without an index.

    Raises:
        ValueError: the folder holds an index or other files, or none where one is needed.
    """
    left = [path for path in out.iterdir() if not path.name.endswith((".lock", ".lock.soft"))]
    ours = all(_is_ours(path) for path in left)
    unfinished = ours and not (out / "index.json").exists()
    if add and unfinished:
        raise ValueError(f"{out} holds no index; leave out --add to build a new one")
    if not add and not unfinished:
        raise ValueError(
            f"{out} is not empty; use --add to add graphs to an index, or choose another --out"
        )
    for path in left if unfinished else ():
        if path.name == VECTORS:
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _is_ours(path: Path) -> bool:
    """Whether a killed command may have left a file or folder, by its name and content."""
    from softperm.search.storage import is_segment
    from softperm.search.vectors import ABOUT, MODEL, is_vector_file

    if path.name == VECTORS and path.is_dir():
        inside = [inner for inner in path.iterdir() if not _is_part(inner)]
        first = [inner for inner in inside if inner.name == ABOUT or is_vector_file(inner.name)]
        others = [inner for inner in inside if inner not in first and inner.name != MODEL]
        return not others and bool(first or not inside)  # the model is not written first
    return is_segment(path) or _is_part(path)


def _is_part(path: Path) -> bool:
    return path.name.startswith(".") and path.suffix == ".part"


def _store_vectors(library: Any, out: Path, vectors: str | None, graphs: dict[str, Any]) -> None:
    """Computes and saves the vectors of an index, or those of the graphs that are new."""
    folder = out / VECTORS
    from softperm.cli.inputs import load_model
    from softperm.estimators import PiGNNAligner
    from softperm.search import VectorIndex

    if vectors is None:
        stored = VectorIndex.open(folder, library)
        stored.update(graphs)
    else:
        model = PiGNNAligner().fit([*graphs.values()]) if vectors == "auto" else None
        model = model or load_model(vectors, "auto")
        stored = VectorIndex.build(library, model, originals=graphs)
    stored.save(folder)
