"""Shards of a collection on the machines of a Ray cluster, with Ray Data (extra ``cluster``).

One task reads the input and cuts it; actors with a model each, on as many machines as there are,
turn shards into parts. Parts have the names and the content that they have on one machine. If a
machine is lost, Ray gives the shard it was working on to another, which writes the same part.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from softperm.data.formats.shards import Shard
from softperm.errors import counted
from softperm.estimators.streaming import ShardWorker, Summary
from softperm.parallel import check_reachable, ray_cluster
from softperm.progress import Report, silent

if TYPE_CHECKING:
    import pyarrow


def run_on_ray(
    worker: ShardWorker,
    open_shards: Callable[[], Iterable[Shard]],
    report: Report = silent,
    workers: int | None = None,
) -> Generator[tuple[int, Summary]]:
    """Computes all parts that are not there yet, on the machines of a Ray cluster.

    The cluster is that of the environment (``RAY_ADDRESS``), else a new one on this machine. The
    input, the model and the folder of the parts must have the same path on all machines.

    The arguments and results are those of :func:`softperm.estimators.streaming.run_shards`;
    ``workers`` is the number of actors, by default one for each GPU, or on CPUs one for each core.

    Raises:
        ImportError: Ray is not installed.
        ConnectionError: the cluster is gone.
        ValueError: a row has no result, and the worker is strict.
    """
    with ray_cluster() as (ray, cluster):
        ray_data = import_module("ray.data")
        gpus = int(worker.device != "cpu")
        if workers is None:
            workers = max(1, int(ray.cluster_resources().get("GPU" if gpus else "CPU", 1)))
        ray_data.DataContext.get_current().enable_progress_bars = False
        shards = ray_data.read_datasource(
            _shard_source(worker, open_shards), override_num_blocks=1, num_cpus=0
        )
        parts = shards.map_batches(
            _Actor,
            fn_constructor_args=(worker,),
            batch_size=1,
            concurrency=workers,
            num_cpus=1,
            num_gpus=gpus,
        )
        summaries: dict[int, Summary] = {}
        began, rows, share = time.monotonic(), 0, 0.0
        activity = "embedding" if worker.vectors else "predicting"
        try:
            for part in parts.iter_rows():
                if part["error"]:
                    raise ValueError(part["error"])
                summaries[part["number"]] = summary = Summary.from_json(part["summary"])
                rows, share = rows + summary.rows, max(share, part["share"])
                rate = rows / max(time.monotonic() - began, 1e-9)
                note = (
                    f"{counted(rows, 'graph')}, {rate:,.0f} a second, {counted(workers, 'worker')}"
                )
                report(activity, share, 1, note)
        except ray.exceptions.RayError:
            check_reachable(cluster)
            raise
    yield from sorted(summaries.items())


def _shard_source(worker: ShardWorker, open_shards: Callable[[], Iterable[Shard]]) -> Any:
    """A Ray Data source with a row for each shard, read by one task."""
    from ray.data.block import BlockMetadata
    from ray.data.datasource import Datasource, ReadTask

    class Shards(Datasource):
        def get_read_tasks(self, parallelism: int, *_: Any, **__: Any) -> list[ReadTask]:
            read = partial(_shard_rows, worker, open_shards)
            return [ReadTask(read, BlockMetadata(None, None, None))]

        def estimate_inmemory_data_size(self) -> int | None:
            return None

    return Shards()


def _shard_rows(
    worker: ShardWorker, open_shards: Callable[[], Iterable[Shard]]
) -> Iterator[pyarrow.Table]:
    """A table of one row for each shard; a part that is already there needs no content."""
    import pyarrow
    from ray import cloudpickle

    for shard in open_shards():
        there = worker.finished(shard.number) is not None
        content = pyarrow.array(
            [b"" if there else cloudpickle.dumps(shard)], pyarrow.large_binary()
        )
        yield pyarrow.table({"number": [shard.number], "share": [shard.share], "content": content})


class _Actor:
    """Computes parts; its process has the model loaded."""

    def __init__(self, worker: ShardWorker) -> None:
        self.worker = worker

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        from ray import cloudpickle

        number, content = int(batch["number"][0]), batch["content"][0]
        summary, error = self.worker.finished(number), ""
        if summary is None:
            try:
                summary = self.worker(cloudpickle.loads(content))
            except ValueError as problem:
                summary, error = Summary(), str(problem)
        text = json.dumps(asdict(summary))
        share = float(batch["share"][0])
        return {"number": [number], "share": [share], "summary": [text], "error": [error]}
