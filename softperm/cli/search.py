"""``softperm search``: the graphs of an index that are nearest to given graphs."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from softperm.cli.console import echo, lines, naming_graphs, print_result, ready_file
from softperm.cli.index import VECTORS
from softperm.cli.inputs import (
    DataRoot,
    Engine,
    IdColumn,
    Json,
    Processes,
    SmilesColumn,
    Source,
    Strict,
    Symmetrise,
    check_engine,
    graphs_file,
    output_option,
    read_file,
)
from softperm.errors import by_count, counted
from softperm.files import CSVWriter, write_atomically
from softperm.progress import progress_bars

PICTURED = 5  # hits beside a query in a picture


def search(
    library: Annotated[Path, typer.Argument(metavar="INDEX", help="Folder of softperm index.")],
    queries: Source,
    k: Annotated[int | None, typer.Option("-k", help="Number of graphs; 10 by default.")] = None,
    within: Annotated[float | None, typer.Option(help="All graphs up to this distance.")] = None,
    where: Annotated[
        str | None, typer.Option(help="Condition on metadata, such as 'mass < 300'.")
    ] = None,
    by: Annotated[
        str, typer.Option(help="graph: exact distances, with proof; vector: learnt vectors.")
    ] = "graph",
    rerank: Annotated[
        int, typer.Option(help="With --by vector: candidates ranked again by exact distance.")
    ] = 0,
    time_limit: Annotated[
        float,
        typer.Option(help="Seconds for each query; graphs undecided by then have an interval."),
    ] = 10.0,
    out: Annotated[Path, output_option(help="CSV file of hits to write.")] = Path("hits.csv"),
    matchings: Annotated[
        Path | None, typer.Option(help="JSON file to write: the matched vertices of each hit.")
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(help="Picture to write: the first query beside its nearest hits."),
    ] = None,
    smiles_column: SmilesColumn = None,
    id_column: IdColumn = None,
    symmetrise: Symmetrise = False,
    strict: Strict = False,
    data_root: DataRoot = None,
    engine: Engine = "local",
    processes: Processes = None,
    as_json: Json = False,
) -> None:
    """Find the graphs of an index that are nearest to each query, with proof.

    With --by vector the hits are those of the learnt vectors that softperm index --vectors stored:
    fast for graphs of any size, not proven.

    Graphs that are not decided within the time limit are listed too, with proven False and the
    interval of their distance.
    """
    from softperm.search import GraphIndex, VectorIndex
    from softperm.search.shards import Question, search_shares

    if k is not None and within is not None:
        raise ValueError("-k and --within exclude each other")
    if by not in ("graph", "vector"):
        raise ValueError(f"--by must be graph or vector; got {by}")
    if by == "vector" and within is not None:
        raise ValueError("--within needs --by graph: distances of vectors are not exact")
    if by == "graph" and rerank:
        raise ValueError("--rerank needs --by vector")
    check_engine(engine)
    if engine == "ray" and by == "vector":
        raise ValueError("--engine ray needs --by graph")
    queries = graphs_file(queries, data_root)
    for path in (out, matchings, picture):
        if path is not None:
            ready_file(path, queries, library / "index.json")
    with lines(), progress_bars() as report:
        index: Any = GraphIndex.open(library)
        vectors = VectorIndex.open(library / VECTORS, index) if by == "vector" else None
        file = read_file(queries, smiles_column, symmetrise, strict=strict, id_column=id_column)
        results: list[Any] = []
        ask = Question(10 if k is None else k, within, where, time_limit)
        with naming_graphs(file.ids):
            if engine == "ray":
                answers = search_shares(library, file.graphs, ask, processes)
            elif vectors is not None:
                options: dict[str, Any] = {"rerank": rerank, "where": where}
                options["time_limit"] = time_limit
                answers = (vectors.nearest(graph, ask.k, **options) for graph in file.graphs)
            else:
                answers = (ask(index, graph) for graph in file.graphs)
            for done, result in enumerate(answers, start=1):
                results.append(result)
                report("queries", done, len(file.graphs))
    write_atomically(out, _csv(file.ids, results))
    if matchings is not None:
        write_atomically(matchings, _json(file.ids, results))
    if picture is not None:
        _draw(index, file.graphs[0], file.ids[0], results[0], picture)
    undecided = sum(len(result.undecided) for result in results)
    if undecided:
        echo(
            f"{counted(undecided, 'graph')} {by_count(undecided, 'is', 'are')} undecided; a longer "
            "--time-limit helps"
        )
    print_result(
        {
            "queries": len(results),
            "hits": sum(len(result) for result in results),
            "undecided": undecided,
            "written": str(out),
        },
        as_json,
    )


def _csv(ids: Any, results: list[Any]) -> str:
    text = io.StringIO()
    writer = CSVWriter(text)
    writer.writerow(["query", "rank", "hit", "distance", "lower_bound", "proven"])
    for query, result in zip(ids, results, strict=True):
        for rank, hit in enumerate((*result.hits, *result.undecided), start=1):
            writer.writerow([query, rank, hit.id, hit.distance, hit.lower_bound, hit.proven])
    return text.getvalue()


def _json(ids: Any, results: list[Any]) -> str:
    content = [
        {"query": query, "hit": hit.id, "distance": hit.distance, "matching": hit.matching.tolist()}
        for query, result in zip(ids, results, strict=True)
        for hit in result
    ]
    return json.dumps(content) + "\n"


def _draw(index: Any, query: Any, name: str, result: Any, path: Path) -> None:
    from softperm.explore.matches import draw_matches
    from softperm.explore.plots import save

    hits = [
        (index.graph(hit.id), f"{hit.id}\ndistance {hit.distance:g}", hit.matching)
        for hit in result.hits[:PICTURED]
    ]
    save(draw_matches(query, f"{name}\nquery", hits), path)
