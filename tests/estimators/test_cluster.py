"""Ray Data gives the parts that one process gives, also when a worker dies."""

import os
import signal
from functools import partial

import pytest
from samples import FAST

from softperm import PiGNNClassifier
from softperm.data.formats.shards import read_shards
from softperm.estimators import cluster
from softperm.estimators.cluster import run_on_ray
from softperm.estimators.streaming import ShardWorker, Summary, run_shards, write_table

ray = pytest.importorskip("ray")
pytest.importorskip("pyarrow")
pytestmark = pytest.mark.filterwarnings(
    "default",  # Ray leaves sockets and processes to the end
    "ignore:the soft permutations are nearly uniform:UserWarning",  # of networks trained briefly
)


@pytest.fixture(scope="module")
def two_workers():
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    ray.init(
        address="local",  # not the cluster of another test
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": environment},
    )
    yield
    ray.shutdown()


def test_the_tasks_of_a_cluster_write_the_parts_of_one_process(tmp_path):
    """Without a cluster: the rows of the reading task, one after the other to an actor."""
    molecules = ["C" * (1 + i % 6) + "ON"[i % 2] for i in range(60)]
    PiGNNClassifier(**FAST).fit(molecules[:40], [i % 2 for i in range(40)]).save(tmp_path / "m")
    (tmp_path / "t.csv").write_text("\n".join(["smiles", *molecules, "broken"]))
    shards = partial(read_shards, tmp_path / "t.csv", rows=20)
    options = {"model": str(tmp_path / "m"), "device": "cpu", "vectors": False, "ending": ".csv"}

    def in_turn(worker, open_shards, report):
        actor = cluster._Actor(worker)
        for table in cluster._shard_rows(worker, open_shards):
            done = actor(table.to_pydict())
            yield done["number"][0], Summary.from_json(done["summary"][0])

    here, there = tmp_path / "here.csv", tmp_path / "there.csv"
    first = ShardWorker(**options, folder=tmp_path / "there.parts")
    next(iter(in_turn(first, shards, None)))  # a worker that is killed after a shard
    counted, _ = write_table(first, shards, there, {}, in_turn)
    assert (counted.rows, counted.problems) == (61, 1)
    plain = ShardWorker(**options, folder=tmp_path / "here.parts")
    write_table(plain, shards, here, {}, partial(run_shards, processes=1))
    assert there.read_bytes() == here.read_bytes()
    strict = ShardWorker(**options, folder=tmp_path / "strict.parts", strict=True)
    (*_, last) = cluster._shard_rows(strict, shards)
    assert (
        "t.csv line 62: 'broken' is not valid"
        in cluster._Actor(strict)(last.to_pydict())["error"][0]
    )


def dying_worker(mark: str, **options) -> ShardWorker:
    """A worker that kills its process the first time it is at the third shard."""

    class Dying(ShardWorker):
        def __call__(self, shard):
            if shard.number == 2 and not os.path.exists(mark):
                with open(mark, "w"):
                    os.kill(os.getpid(), signal.SIGKILL)
            return super().__call__(shard)

    return Dying(**options)


@pytest.mark.slow
def test_a_killed_worker_costs_its_shard_only_and_the_parts_are_the_same(two_workers, tmp_path):
    molecules = ["C" * (1 + i % 6) + "ON"[i % 2] for i in range(200)]
    PiGNNClassifier(**FAST).fit(molecules[:40], [i % 2 for i in range(40)]).save(tmp_path / "m")
    (tmp_path / "t.csv").write_text("\n".join(["smiles", *molecules, "broken"]))
    shards = partial(read_shards, tmp_path / "t.csv", rows=30)
    options = {"model": str(tmp_path / "m"), "device": "cpu", "vectors": False, "ending": ".csv"}
    here, there, mark = tmp_path / "here.csv", tmp_path / "there.csv", tmp_path / "died"
    dying = dying_worker(str(mark), **options, folder=tmp_path / "there.parts")
    counted, _ = write_table(dying, shards, there, {}, partial(run_on_ray, workers=2))
    assert mark.exists()
    assert (counted.rows, counted.problems) == (201, 1)
    plain = ShardWorker(**options, folder=tmp_path / "here.parts")
    write_table(plain, shards, here, {}, partial(run_shards, processes=1))
    assert there.read_bytes() == here.read_bytes()
    strict = ShardWorker(**options, folder=tmp_path / "strict.parts", strict=True)
    with pytest.raises(ValueError, match=r"t.csv line 202: 'broken' is not valid SMILES"):
        write_table(strict, shards, tmp_path / "s.csv", {}, partial(run_on_ray, workers=2))
