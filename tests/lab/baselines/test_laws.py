"""Laws of every system: renumbering, regrouping, nasty graphs, overfitting, seeds."""

from dataclasses import replace

import networkx as nx
import pytest
import torch
from lab.baselines.cases import GRAPHS, SMALL, network, outputs, shuffled
from samples import collect, double, labelled_path, plain_graph
from torch.testing import assert_close

from softperm.lab.systems import CLASSICAL, SYSTEMS, DataShape, find_system
from softperm.training.tasks import Classification, mean_loss

NAMES = list(SYSTEMS)
OGB = [name for name, s in SYSTEMS.items() if "ogb" in s.tables]
PLAIN = [plain_graph(n, seed=n, density=0.5) for n in (5, 8, 11)]


def test_every_system_is_tested():
    assert set(SMALL) == set(SYSTEMS)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_vertices_does_not_matter(name, mode):
    model = network(name, collect(GRAPHS)).train(mode == "train")
    other = network(name, collect(GRAPHS)).train(mode == "train")
    assert_close(outputs(model, GRAPHS), outputs(other, shuffled(GRAPHS)), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_a_graph_does_not_see_the_others_of_its_batch(name):
    collection = double(collect(GRAPHS))
    model = network(name, collection)
    outputs(model.train(), collection)  # moves the statistics of batch normalisation
    model.eval()
    together = outputs(model, collection)
    with torch.no_grad():
        alone = torch.cat([model(collection.batch(torch.tensor([i]))) for i in range(len(GRAPHS))])
        turned = model(collection.batch(torch.tensor([3, 1, 3])))
    assert_close(alone, together, rtol=1e-7, atol=1e-9)
    assert_close(turned, together[[3, 1, 3]], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("graphs", [GRAPHS, PLAIN], ids=["attributes", "plain"])
@pytest.mark.parametrize("name", NAMES)
def test_nasty_graphs_get_finite_outputs_and_gradients(name, graphs):
    """One vertex; no edge in the whole batch; larger than any training graph."""
    known = collect(graphs)
    model = network(name, known)
    plain = graphs is PLAIN
    lonely, empty, large = (
        collect(some if plain else _dressed(some, graphs[0]))
        for some in (
            [nx.empty_graph(1)],
            [nx.empty_graph(3), nx.empty_graph(1)],
            [nx.path_graph(30), nx.empty_graph(1), nx.star_graph(20)],
        )
    )
    for collection in (lonely, empty, large):
        if not plain and not collection.edge_attribute_size:  # no edge, so nothing said their size
            collection = _with_edge_room(collection)
        model.train()
        y = model(double(collection).batch(torch.arange(len(collection))))
        assert y.shape == (len(collection), 3)
        assert bool(y.isfinite().all())
        y.square().sum().backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        assert all(bool(g.isfinite().all()) for g in grads)
        model.zero_grad()


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_without_graphs_has_no_outputs(name):
    known = collect(GRAPHS)
    y = network(name, known).eval()(double(known).batch(torch.arange(0)))
    assert y.shape == (0, 3)


def _dressed(graphs: list[nx.Graph], like: nx.Graph) -> list[nx.Graph]:
    """The graphs with attributes of the same sizes as those of another."""
    vertex = like.nodes[0]["x"]
    edge = next(iter(like.edges(data="x")))[2]
    for graph in graphs:
        for v in graph:
            graph.nodes[v]["x"] = vertex * (v + 1)
        for k, (u, v) in enumerate(graph.edges):
            graph.edges[u, v]["x"] = edge * (k + 1)
    return graphs


def _with_edge_room(collection):
    return replace(collection, edge_attr=torch.zeros(0, 2))


@pytest.mark.parametrize("name", NAMES)
def test_it_can_learn_32_small_graphs_by_heart(name):
    generator = torch.Generator().manual_seed(0)
    graphs = [plain_graph(5 + i % 6, seed=i, density=0.4) for i in range(32)]
    for i, graph in enumerate(graphs):
        noise = torch.randn(len(graph), 3, generator=generator).numpy()
        for v in graph:
            graph.nodes[v]["x"] = noise[v]
        if i == 0:
            assert graph.number_of_edges()
        nx.set_edge_attributes(graph, noise[0, :2], "x")
    y = torch.randint(2, (32,), generator=generator)
    collection = collect(graphs)
    model = SYSTEMS[name].build(DataShape.of(collection, 2), WIDE.get(name, {}), 0)
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE.get(name, 1e-2))
    task, batch = Classification(2), collection.batch(torch.arange(32))
    for _ in range(400):
        loss = mean_loss(task, model(batch), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if loss < 0.01:
            break
    assert loss < 0.01, f"{name}: the loss is still {loss:.3f}"


WIDE: dict[str, dict] = {
    "gin": {"widths": (32, 32)},
    "structure-free": {"hidden": 128},
    "mpnn": {"hidden": 16, "width": 16},
    "1-2-3-gnn": {"hidden": 16, "rounds": 2},
    "ppgn": {"hidden": 16, "blocks": 2},
    **{name: {"hidden": 32, "layers": 2, "dropout": 0.0} for name in OGB},
}
RATE: dict[str, float] = {}


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_decides_the_network_and_leaves_torch_alone(name):
    collection = collect(GRAPHS)
    before = torch.random.get_rng_state()
    one, same, other = (network(name, collection, seed=s) for s in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert_close(outputs(one.eval(), GRAPHS), outputs(same.eval(), GRAPHS), rtol=0, atol=0)
    assert not torch.allclose(outputs(one, GRAPHS), outputs(other.eval(), GRAPHS))


@pytest.mark.parametrize("name", NAMES)
def test_every_value_of_the_grid_builds(name):
    chosen = SYSTEMS[name]
    shape = DataShape.of(collect(GRAPHS), 2)
    for key, values in chosen.grid.items():
        for value in values:
            model = chosen.build(shape, {key: value}, 0)
            assert outputs(model.double().eval(), GRAPHS).shape == (len(GRAPHS), 2)


def test_unknown_names_and_settings_are_refused():
    with pytest.raises(ValueError, match=r"no system is called gim: there are pi-gnn, .*ppgn"):
        find_system("gim")
    with pytest.raises(ValueError, match=r"gin has the settings widths.*; got hidden"):
        find_system("gin").build(DataShape.of(collect(GRAPHS), 2), {"hidden": 3}, 0)


def test_labels_as_codes_are_refused():
    collection = collect([labelled_path("CCO"), labelled_path("NC")])
    model = network("gin", collection)
    with pytest.raises(ValueError, match="codes=False"):
        model(replace(collection, codes=True).batch(torch.arange(2)))


def test_names_and_tables_are_those_of_the_issue():
    tables = {table for s in SYSTEMS.values() for table in s.tables}
    assert tables == {"classification", "ogb", "qm9"}
    assert [s.name for s in SYSTEMS.values()] == list(SYSTEMS)
    assert list(CLASSICAL) == ["wl-kernel", "wl-forest", "forest"]
