"""The padded way computes the same as ours, which is why its time may be held against ours."""

import pytest
import torch
from samples import collect, plain_graph, random_graph

from softperm.lab.studies import runtime
from softperm.lab.studies.runtime import PaddedPiGNN, pad
from softperm.nn.model import ModelConfig, build

SIZES = [3, 7, 9, 1, 5]


@pytest.mark.parametrize("attributes", [False, True])
@pytest.mark.parametrize("capacity", [9, 14])
def test_padded_network_equals_ragged_one(attributes, capacity):
    make = random_graph if attributes else plain_graph
    graphs = [make(n, seed) for seed, n in enumerate(SIZES)]
    for graph in graphs:
        for _, _, data in graph.edges(data=True):
            data.clear()
    collection = collect(graphs)
    config = ModelConfig(
        outputs=2,
        latent_vertices=4,
        hidden=6,
        capacity=capacity,
        scaling="raw",
        attribute_size=collection.attribute_size,
        tolerance=0.0,
    )
    model = build(config, 0).double().eval()
    index = torch.arange(len(graphs))
    parts = [None if t is None else t.double() for t in pad(collection, index, capacity)]
    padded = PaddedPiGNN(model)(*parts)
    ragged = model(collection.batch(index))
    torch.testing.assert_close(padded, ragged, atol=1e-9, rtol=1e-9)


def test_runtime_study_measures_both_ways_and_writes_its_page(tmp_path, monkeypatch):
    monkeypatch.setattr(runtime, "SIZES", (10, 12))
    over_n, over_p = runtime.run(tmp_path, epochs=1, naive_epochs=1)
    assert [(t.vertices, t.latent_vertices) for t in over_n] == [(10, 10), (12, 10)]
    assert [(t.vertices, t.latent_vertices) for t in over_p] == [(50, 10), (50, 12)]
    assert all(t.ours > 0 and t.naive > 0 for t in (*over_n, *over_p))
    page = runtime.write(over_n, over_p, tmp_path, "cpu")
    assert "padded, ms" in page.read_text()
    assert (tmp_path / "runtime.png").exists()
    assert (tmp_path / "runtime.svg").exists()


def test_a_runtime_study_that_was_cut_short_is_gone_on_with(tmp_path, monkeypatch):
    monkeypatch.setattr(runtime, "SIZES", (10, 12))
    measured = []

    def measure(n, p, *_):
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append((n, p))
        return runtime.Timing(n, p, 1.0, float(n * p))

    monkeypatch.setattr(runtime, "measure", measure)
    with pytest.raises(KeyboardInterrupt):
        runtime.run(tmp_path, epochs=1, naive_epochs=1)
    first, measured[:] = list(measured), []
    over_n, over_p = runtime.run(tmp_path, epochs=1, naive_epochs=1)
    assert first == [(10, 10), (12, 10)]
    assert measured == [(50, 10), (50, 12)]
    assert [t.naive for t in (*over_n, *over_p)] == [100, 120, 500, 600]
    with pytest.raises(ValueError, match="holds a study with other epochs"):
        runtime.run(tmp_path, epochs=2, naive_epochs=1)
    for odd in ("{", "[]", "{}", '{"over_n": [3], "over_p": []}'):
        (tmp_path / "runtime.json").write_text(odd)
        with pytest.raises(ValueError, match=r"runtime\.json is damaged: delete it"):
            runtime.run(tmp_path, epochs=1, naive_epochs=1)
