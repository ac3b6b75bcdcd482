"""An index built from shards and searched by shares is the index of all graphs."""

import os
from functools import partial

import numpy as np
import pytest
from samples import write_json_lines
from search.conftest import random_collection

from softperm import GraphIndex
from softperm.data.formats.shards import read_shards
from softperm.distance import EditCosts
from softperm.parallel import map_on_ray
from softperm.search import index as index_module
from softperm.search import shards

COSTS = EditCosts.edges()


def in_turn(function, items, workers=None):
    return map(function, items)


def build(path, folder, over=in_turn, **options):
    parts = over(shards.PartReader(COSTS), read_shards(path, rows=7))
    index, left_out, _ = shards.build_from_parts(parts, folder, COSTS, **options)
    index.save(folder)
    return index, left_out


@pytest.fixture
def graphs():
    """Labels and bonds that later shards have and the first do not."""
    first = random_collection(30, labels="C", bonds="s", seed=1)
    return first + random_collection(30, labels="CNO", bonds="sdt", seed=2)


@pytest.fixture
def several(graphs, tmp_path, monkeypatch):
    """An index of several files, and the same graphs in one piece."""
    monkeypatch.setattr(index_module, "FULL", 20)
    path = write_json_lines(tmp_path / "g.jsonl", graphs, size=[len(g) for g in graphs])
    index, _ = build(path, tmp_path / "several")
    ids = [str(line) for line in range(1, len(graphs) + 1)]
    whole = GraphIndex.build(graphs, ids, {"size": [len(g) for g in graphs]}, costs=COSTS)
    return index, whole, tmp_path


def test_an_index_from_shards_holds_the_graphs_of_the_file(several):
    index, whole, folder = several
    assert len(list((folder / "several").glob("*.safetensors"))) == 3
    assert index.checksums == whole.checksums
    assert GraphIndex.open(folder / "several").checksums == whole.checksums


@pytest.mark.parametrize("shares", [1, 2, 3, 9])
def test_shares_of_an_index_give_the_answers_of_the_whole(several, graphs, shares):
    _, whole, folder = several
    queries = random_collection(20, labels="CNO", bonds="sd", seed=3)
    for ask in (
        shards.Question(k=7),
        shards.Question(k=100),
        shards.Question(k=3, where="size < 4"),
        shards.Question(radius=3.0),
    ):
        answers = list(shards.search_shares(folder / "several", queries, ask, shares, in_turn))
        for query, answer in zip(queries, answers, strict=True):
            expected = ask(whole, query)
            assert [h.distance for h in answer] == [h.distance for h in expected]
            assert not answer.undecided
            last = expected.hits[-1].distance if ask.radius is None and expected.hits else np.inf
            nearer = [{h.id for h in r if h.distance < last} for r in (answer, expected)]
            assert nearer[0] == nearer[1]  # of several graphs at the last distance, some


def test_merged_answers_leave_no_undecided_graph_out(several):
    _, whole, folder = several
    query = random_collection(1, labels="CN", bonds="sd", seed=4)[0]
    exact = {hit.id: hit.distance for hit in whole.nearest(query, 60)}
    for ask in (shards.Question(k=5, time_limit=0.0), shards.Question(radius=3.0, time_limit=0.0)):
        (answer,) = shards.search_shares(folder / "several", [query], ask, 3, in_turn)
        listed = {h.id: h.lower_bound for h in (*answer.hits, *answer.undecided)}
        wanted = sorted(exact.values())[4] - 1e-6 if ask.radius is None else ask.radius
        assert {name for name, d in exact.items() if d <= wanted} <= set(listed)
        assert all(bound <= exact[name] + 1e-9 for name, bound in listed.items())


def test_a_share_is_for_reading(several):
    _, _, folder = several
    with pytest.raises(ValueError, match="has not been saved before; pass a folder"):
        GraphIndex.open(folder / "several", share=(0, 2)).save()


def test_graphs_that_are_there_are_skipped_and_full_files_stay(several, graphs):
    _, whole, folder = several
    before = {path.name for path in (folder / "several").glob("*.safetensors")}
    more = random_collection(4, labels="CS", bonds="s", seed=5)
    sizes = [len(g) for g in [*graphs, *more]]
    path = write_json_lines(folder / "more.jsonl", [*graphs, *more], size=sizes)
    opened = GraphIndex.open(folder / "several")
    index, left_out = build(path, folder / "several", add_to=opened)
    assert left_out == len(graphs)
    assert len(index) == len(graphs) + len(more)
    assert {n: index.checksums[n] for n in whole.ids} == whole.checksums
    assert before < {path.name for path in (folder / "several").glob("*.safetensors")}


def test_names_that_repeat_in_later_files_get_numbers(tmp_path, monkeypatch):
    pytest.importorskip("rdkit")
    monkeypatch.setattr(index_module, "FULL", 8)
    (tmp_path / "m.csv").write_text("\n".join(["smiles", *["CCO", "CC"] * 15]))
    index, _ = build(tmp_path / "m.csv", tmp_path / "out")
    assert len(index) == 30
    assert {"CC", "CC #15", "CCO #15"} <= set(index.ids)


def test_columns_keep_one_kind_of_values(graphs, tmp_path, monkeypatch):
    monkeypatch.setattr(index_module, "FULL", 20)
    words = write_json_lines(tmp_path / "w.jsonl", graphs, name=["x"] * 20 + [7] * 40)
    index, _ = build(words, tmp_path / "w")
    assert len(index.ids_where("name == '7'")) == 40
    mixed = write_json_lines(tmp_path / "m.jsonl", graphs, name=[7] * 30 + ["x"] * 30)
    with pytest.raises(ValueError, match="column 'name' holds numbers in the first graphs"):
        build(mixed, tmp_path / "m")
    assert not (tmp_path / "m" / "index.json").exists()


def test_graphs_without_the_labels_of_others_are_named(graphs, tmp_path, monkeypatch):
    monkeypatch.setattr(index_module, "FULL", 20)
    plain = [*graphs[:28], *random_collection(20, seed=6)]
    path = write_json_lines(tmp_path / "g.jsonl", plain)
    with pytest.raises(ValueError, match=r"line 29: .*no vertex labels"):
        build(path, tmp_path / "out")


@pytest.fixture
def two_workers():
    ray = pytest.importorskip("ray")
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


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # Ray leaves sockets and processes to the end
def test_two_workers_of_ray_build_and_search_as_one_process(two_workers, several, graphs):
    """The quicker sibling is the same law with ``map`` in place of Ray."""
    index, whole, folder = several
    there, _ = build(folder / "g.jsonl", folder / "ray", partial(map_on_ray, workers=2))
    assert there.checksums == whole.checksums
    assert there.ids == index.ids
    queries = random_collection(40, labels="CNO", bonds="sd", seed=3)  # of three tasks
    for ask in (shards.Question(k=7), shards.Question(radius=3.0)):
        answers = list(shards.search_shares(folder / "ray", queries, ask, 2))
        expected = shards.search_shares(folder / "several", queries, ask, 2, in_turn)
        for one, other in zip(answers, expected, strict=True):
            assert [(h.id, h.distance) for h in one] == [(h.id, h.distance) for h in other]
    (folder / "broken.jsonl").write_text('{"nodes": [{"id": 0}], "edges": []}\n{')
    with pytest.raises(ValueError, match=r"broken.jsonl line 2"):
        build(folder / "broken.jsonl", folder / "broken", partial(map_on_ray, workers=2))
