"""The law of stacked training: each model gets the numbers that it gets alone."""

from dataclasses import replace
from functools import partial

import networkx as nx
import numpy as np
import pytest
import torch
from samples import collect, every_variant, random_graph
from torch import nn

from softperm.errors import GraphWarning
from softperm.nn import permutation as perm
from softperm.nn.model import ModelConfig, build
from softperm.settings import TrainingConfig
from softperm.training.data import Examples, equal_features, index_batches
from softperm.training.loop import fit, predict
from softperm.training.stack import Stack, StackedAdam, predict_stack
from softperm.training.tasks import Classification, MultiLabel, Regression

GRAPHS = [random_graph(n, seed=n) for n in (1, 3, 9, 5, 7, 4, 12, 6, 8, 2, 10, 11, 5, 3, 8, 6)]
TRAIN = [torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 8]), torch.arange(4, 14)]
HELD = [torch.tensor([14, 15, 13]), torch.tensor([0, 1])]
HELD_FEW = [torch.tensor([10, 11]), torch.tensor([0, 1])]
SEEDS = [3, 4]
SETTINGS = TrainingConfig(epochs=7, batch_size=4, learning_rate=1e-2)  # 20 steps and more

pytestmark = pytest.mark.usefixtures("shapes_unchecked")


def networks(variant: dict, outputs: int = 2) -> list:
    settings = {**variant, "attribute_size": 3 if variant["attributes"] else 0}
    del settings["attributes"]
    made = []
    for seed, capacity in zip(SEEDS, (12, 9), strict=True):
        own = {**settings, "capacity": capacity if settings["capacity"] else None}
        config = ModelConfig(outputs, latent_vertices=5, hidden=6, layers=2, **own)
        model = build(config, seed).double()
        made.append(break_ties(model, seed) if variant["head"] == "conv" else model)
    return made


def break_ties(model: nn.Module, seed: int) -> nn.Module:
    """Gives the shifts of LayerNorm random values.

    A network whose scores are all 0, such as the linear one of seed 3, aligns every graph to a
    constant matrix, so that all positions of a filter tie for its maximum. A tie shares the
    gradient among the positions, and rounding, which differs between devices, decides what ties.
    """
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            shift = torch.randn(module.bias.shape, generator=generator, dtype=torch.float64)
            module.bias.data.copy_(shift / 10)
    return model


def each_alone(models, tasks, y, settings=SETTINGS):
    collection = collect(GRAPHS)
    results = []
    for m, model in enumerate(models):
        results.append(
            fit(
                model,
                tasks[m],
                Examples(collection, y, TRAIN[m]),
                replace(settings, seed=SEEDS[m]),
                validation=Examples(collection, y, HELD[m]),
            )
        )
    return results


def close(a, b, tolerance=1e-8):
    a, b = (torch.as_tensor(x, dtype=torch.float64) for x in (a, b))
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@every_variant()
def test_a_stack_gives_each_model_the_numbers_it_gets_alone(variant, stack_device, monkeypatch):
    monkeypatch.setattr("softperm.training.stack.CAPTURE_SECONDS", 0)  # several shapes on a GPU too
    # Adam divides a gradient by its size: one that is 0 but for rounding, such as a bias's that
    # moves all scores of a graph alike, makes steps that differ between devices.
    slack = 1e-8 if stack_device == "cpu" else 1e-6
    y = torch.tensor([0, 1] * 8)
    tasks = [Classification(2)] * 2
    alone, stacked = networks(variant), networks(variant)
    one_by_one = each_alone(alone, tasks, y)
    rest = (tasks, collect(GRAPHS), y, TRAIN, HELD, SEEDS, SETTINGS)
    together = Stack(stacked, *rest, device=stack_device).fit()
    for a, b, result_a, result_b in zip(alone, stacked, one_by_one, together, strict=True):
        assert result_a.best_epoch == result_b.best_epoch
        for epoch_a, epoch_b in zip(result_a.curve, result_b.curve, strict=True):
            close(epoch_a.train_loss, epoch_b.train_loss, slack)
            close(epoch_a.validation_loss, epoch_b.validation_loss, 1e-6)  # of float32 answers
            close(epoch_a.validation_score, epoch_b.validation_score)
        everything = collect(GRAPHS).batch(torch.arange(len(GRAPHS)))
        close(a.eval()(everything), b.cpu().eval()(everything), slack)
        for name, tensor in a.state_dict().items():
            close(tensor, b.state_dict()[name], 10 * slack)


@pytest.mark.parametrize("dustbin", [False, True])
def test_merging_equal_vertices_changes_no_number(dustbin, stack_device, monkeypatch):
    slack = 1e-9 if stack_device == "cpu" else 1e-6
    graphs = collect(GRAPHS)
    kinds = torch.arange(int(graphs.ptr[-1])) // 3 % 2
    graphs = replace(graphs, structure=torch.eye(2, dtype=torch.double)[kinds], x=graphs.x.round())
    y, tasks = torch.tensor([0, 1] * 8), [Classification(2)] * 2
    rest = (tasks, graphs, y, TRAIN, HELD, SEEDS, SETTINGS)
    variant = {"encoder": "linear", "attributes": True, "dustbin": dustbin, "capacity": True}
    merged, single = (networks({**variant, "head": "mlp"}) for _ in range(2))
    assert set(equal_features(graphs, merged[0])) == {"structure"}
    kinds = torch.arange(int(graphs.ptr[-1])) // 2 % 3
    rest = (tasks, replace(graphs, x=torch.eye(3, dtype=torch.double)[kinds]), *rest[2:])
    assert set(equal_features(rest[1], merged[0])) == {"structure", "attributes"}
    ours = Stack(merged, *rest, device=stack_device).fit()
    monkeypatch.setattr("softperm.training.stack.equal_features", lambda graphs, model: {})
    theirs = Stack(single, *rest, device=stack_device).fit()
    for one, other, a, b in zip(ours, theirs, merged, single, strict=True):
        for epoch, again in zip(one.curve, other.curve, strict=True):
            close(epoch.train_loss, again.train_loss, slack)
        for name, tensor in a.state_dict().items():
            close(tensor.cpu(), b.state_dict()[name].cpu(), 10 * slack)


def test_features_of_the_users_own_are_not_merged_whatever_their_name():
    def structure(batch):
        return torch.arange(len(batch.structure), device=batch.structure.device)[:, None]

    graphs = collect(GRAPHS)
    graphs = replace(graphs, structure=torch.ones_like(graphs.structure))
    model = build(ModelConfig(2), seed=0)
    assert set(equal_features(graphs, model)) == {"structure"}
    for features in (structure, partial(perm.structure)):
        model.permutation.features = features
        assert equal_features(graphs, model) == {}


def test_a_network_that_learns_the_scale_of_attributes_has_its_gradient():
    class Learnt(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.ones(()))

        def forward(self, batch):
            batch = batch.clone()
            batch.x = batch.x * self.factor
            return batch

    graphs = collect(GRAPHS)
    graphs = replace(graphs, x=torch.ones_like(graphs.x))
    model = build(ModelConfig(2, attribute_size=3), seed=0)
    model.standardise = Learnt()
    assert "attributes" not in equal_features(graphs, model)


def test_numbers_that_differ_in_their_last_digits_are_told_apart():
    graphs = collect(GRAPHS)
    wide = 1e8 + torch.arange(int(graphs.ptr[-1]), dtype=torch.double)[:, None].expand(-1, 2)
    assert equal_features(replace(graphs, structure=wide), build(ModelConfig(2), seed=0)) == {}


def test_graphs_without_vertices_are_predicted_in_a_stack():
    with pytest.warns(GraphWarning, match="have no vertices"):
        graphs = collect([nx.empty_graph(0), nx.empty_graph(0)])
    models = [build(ModelConfig(2, latent_vertices=3), seed).eval() for seed in range(2)]
    outputs = predict_stack(models, graphs, [torch.tensor([0, 1]), torch.tensor([1])], 2)
    assert [tuple(each.shape) for each in outputs] == [(2, 2), (1, 2)]
    assert torch.equal(outputs[0][0], outputs[0][1])


@pytest.mark.parametrize(
    "changes", [{"attribute_dropout": 0.5}, {"label_sizes": (2,), "attribute_size": 0}]
)
def test_attributes_that_a_network_changes_are_not_merged(changes):
    graphs = collect(GRAPHS)
    graphs = replace(graphs, x=torch.ones_like(graphs.x))
    model = build(ModelConfig(2, **{"attribute_size": 3, **changes}), seed=0)
    assert set(equal_features(graphs, model)) <= {"structure"}
    assert "attributes" in equal_features(graphs, build(ModelConfig(2, attribute_size=3), seed=0))


def test_shapes_of_several_sizes_give_the_same_numbers(stack_device, monkeypatch):
    monkeypatch.setattr("softperm.training.stack.CAPTURE_SECONDS", 0)
    graphs = [random_graph(n, seed=n) for n in (3, 150, 9, 220, 5, 70, 4, 30, 12, 100, 6, 8)]
    collection, y = collect(graphs), torch.tensor([0, 1] * 6)
    variant = {"encoder": "gcn", "attributes": True, "dustbin": True, "capacity": 9, "head": "mlp"}
    alone, stacked = networks(variant), networks(variant)
    settings = TrainingConfig(epochs=5, batch_size=2, learning_rate=1e-2)
    train = [torch.arange(10), torch.arange(2, 12)]
    tasks, rest = [Classification(2)] * 2, (train, HELD_FEW, SEEDS, settings)
    stack = Stack(stacked, tasks, collection, y, *rest, device=stack_device)
    assert len(stack.train_epochs.steps) > 1
    for _ in stack.epochs():
        pass
    for m, result in enumerate(stack.results()):
        own = replace(settings, seed=SEEDS[m])
        parts = (Examples(collection, y, index[m]) for index in (train, HELD_FEW))
        one = fit(alone[m], tasks[m], next(parts), own, validation=next(parts))
        for epoch_a, epoch_b in zip(one.curve, result.curve, strict=True):
            close(epoch_a.train_loss, epoch_b.train_loss, 1e-7)


@pytest.mark.parametrize("kind", ["regression", "multilabel"])
def test_the_law_holds_for_other_tasks_and_missing_targets(kind):
    rng = np.random.default_rng(0)
    if kind == "regression":
        y = torch.from_numpy(rng.normal(5, 3, size=(16, 2)))
        y[3, 1] = torch.nan
        tasks = [Regression.of(y[index]) for index in TRAIN]
    else:
        y = torch.from_numpy(rng.integers(0, 2, size=(16, 2)).astype(np.float32))
        y[5, 0] = torch.nan
        tasks = [MultiLabel(2)] * 2
    variant = {"encoder": "gin", "attributes": True, "dustbin": True, "capacity": 15, "head": "mlp"}
    alone, stacked = networks(variant), networks(variant)
    one_by_one = each_alone(alone, tasks, y)
    together = Stack(stacked, tasks, collect(GRAPHS), y, TRAIN, HELD, SEEDS, SETTINGS).fit()
    for a, b, result_a, result_b in zip(alone, stacked, one_by_one, together, strict=True):
        for epoch_a, epoch_b in zip(result_a.curve, result_b.curve, strict=True):
            close(epoch_a.train_loss, epoch_b.train_loss)
            if kind == "regression":
                close(epoch_a.validation_score, epoch_b.validation_score, 1e-5)
        for name, tensor in a.state_dict().items():
            close(tensor, b.state_dict()[name])


def test_patience_is_each_models_own():
    y = torch.tensor([0, 1] * 8)
    variant = {
        "encoder": "linear",
        "attributes": True,
        "dustbin": False,
        "capacity": 15,
        "head": "mlp",
    }
    settings = TrainingConfig(epochs=40, batch_size=4, learning_rate=3e-2, patience=3)
    alone, stacked = networks(variant), networks(variant)
    tasks = [Classification(2)] * 2
    one_by_one = each_alone(alone, tasks, y, settings)
    together = Stack(stacked, tasks, collect(GRAPHS), y, TRAIN, HELD, SEEDS, settings).fit()
    assert [r.best_epoch for r in one_by_one] == [r.best_epoch for r in together]
    lengths = [len(r.curve) for r in together]
    assert lengths == [len(r.curve) for r in one_by_one]
    assert min(lengths) < max(lengths) < 40
    for a, b in zip(alone, stacked, strict=True):
        for name, tensor in a.state_dict().items():
            close(tensor, b.state_dict()[name])


REGULAR = {
    "decoupled decay": {"weight_decay": 0.3, "decoupled_decay": True},
    "cosine": {"schedule": "cosine"},
    "smoothing": {"label_smoothing": 0.2},
    "average": {"ema": 0.8},
    "all": {
        "weight_decay": 0.3,
        "decoupled_decay": True,
        "schedule": "cosine",
        "label_smoothing": 0.2,
        "ema": 0.8,
    },
}


@pytest.mark.parametrize("regular", REGULAR.values(), ids=list(REGULAR))
def test_the_law_holds_with_every_regularisation(regular, stack_device):
    slack = 1e-8 if stack_device == "cpu" else 1e-6
    y, tasks = torch.tensor([0, 1] * 8), [Classification(2)] * 2
    variant = {"encoder": "gin", "attributes": True, "dustbin": True, "capacity": 15, "head": "mlp"}
    settings = replace(SETTINGS, **regular)
    alone, stacked, plain = networks(variant), networks(variant), networks(variant)
    one_by_one = each_alone(alone, tasks, y, settings)
    rest = (tasks, collect(GRAPHS), y, TRAIN, HELD, SEEDS)
    together = Stack(stacked, *rest, settings, device=stack_device).fit()
    Stack(plain, *rest, SETTINGS, device=stack_device).fit()
    for a, b, c, result_a, result_b in zip(
        alone, stacked, plain, one_by_one, together, strict=True
    ):
        assert result_a.best_epoch == result_b.best_epoch
        for epoch_a, epoch_b in zip(result_a.curve, result_b.curve, strict=True):
            close(epoch_a.train_loss, epoch_b.train_loss, slack)
            close(epoch_a.validation_loss, epoch_b.validation_loss, 1e-6)
        for name, tensor in a.state_dict().items():
            close(tensor.cpu(), b.state_dict()[name].cpu(), 10 * slack)
        pairs = zip(b.parameters(), c.parameters(), strict=True)
        assert any(not torch.allclose(p, q) for p, q in pairs)  # the setting does something


@pytest.mark.parametrize(
    ("held", "sentence"),
    [
        ([HELD[0], HELD[1][:0]], "model 1: no validation graphs: hold out more"),
        ([HELD[0], torch.tensor([15])], "model 1: no validation graph has a target: hold out more"),
    ],
)
def test_validation_graphs_that_tell_nothing_are_refused(held, sentence):
    y = torch.arange(16, dtype=torch.float64)[:, None]
    y[15] = torch.nan
    variant = {"encoder": "linear", "attributes": True, "dustbin": False, "capacity": 15}
    models = networks({**variant, "head": "mlp"}, outputs=1)
    with pytest.raises(ValueError, match=sentence):
        Stack(
            models, [Regression.of(y)] * 2, collect(GRAPHS), y, TRAIN, held, SEEDS, SETTINGS
        ).fit()


@pytest.mark.parametrize("regular", [{}, REGULAR["all"]], ids=["plain", "regularised"])
def test_a_resumed_stack_ends_as_an_uninterrupted_one(regular, tmp_path, monkeypatch):
    y = torch.tensor([0, 1] * 8)
    tasks = [Classification(2)] * 2
    variant = {"encoder": "gin", "attributes": True, "dustbin": True, "capacity": 15, "head": "mlp"}
    whole, parts, again = networks(variant), networks(variant), networks(variant)
    settings = replace(SETTINGS, **regular)
    arguments = (tasks, collect(GRAPHS), y, TRAIN, HELD, SEEDS, settings)
    Stack(whole, *arguments).fit()
    monkeypatch.setattr("softperm.training.loop.SAVE_EVERY_SECONDS", 0.0)
    monkeypatch.setattr("softperm.training.loop.SAVING_SHARE", float("inf"))

    def killed(epoch: int) -> None:
        if epoch == 4:
            raise RuntimeError("killed")

    file = tmp_path / "stack.pt"
    with pytest.raises(RuntimeError, match="killed"):
        Stack(parts, *arguments).fit(checkpoint=file, on_epoch=killed)
    seen = []
    Stack(again, *arguments).fit(checkpoint=file, on_epoch=seen.append)
    assert seen == [4, 5, 6, 7]
    for a, b in zip(whole, again, strict=True):
        for name, tensor in a.state_dict().items():
            assert torch.equal(tensor, b.state_dict()[name]), name


def test_stacked_predictions_equal_each_models_own():
    variant = {
        "encoder": "gcn",
        "attributes": True,
        "dustbin": True,
        "capacity": 15,
        "head": "conv",
    }
    models = [model.float().eval() for model in networks(variant)]
    collection = collect(GRAPHS)
    together = predict_stack(models, collection, HELD, batch_size=2)
    for model, index, outputs in zip(models, HELD, together, strict=True):
        alone = predict(model, collection, index, 3, torch.device("cpu"))
        torch.testing.assert_close(outputs, alone, rtol=1e-5, atol=1e-5)


def test_batches_mark_where_a_model_has_run_out():
    cut = index_batches([torch.tensor([5, 6, 7]), torch.tensor([8])], 2)
    assert cut.tolist() == [[[5, 6], [8, -1]], [[7, -1], [-1, -1]]]


def test_a_score_that_validation_graphs_do_not_define_is_an_error():
    y = torch.zeros(16, 1)
    y[::2] = 1
    y[torch.cat(HELD)] = 1  # one answer only: no ROC-AUC among held-out graphs
    variant = {"encoder": "linear", "attributes": True, "dustbin": False, "capacity": None}
    models = networks({**variant, "head": "mlp"}, outputs=1)
    settings = TrainingConfig(epochs=3, batch_size=4, criterion="score")
    task = MultiLabel(1)
    with pytest.raises(ValueError, match="graphs of model 0 do not define a roc_auc"):
        Stack(models, [task] * 2, collect(GRAPHS), y, TRAIN, HELD, SEEDS, settings).fit()


def matrix(models: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(models, 20, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("decoupled", [False, True])
def test_each_row_gets_what_torchs_adam_gives_it(decay, decoupled):
    generator = torch.Generator().manual_seed(0)
    flat = matrix(3, generator)
    alone = [torch.nn.Parameter(row.clone()) for row in flat]
    optimiser = torch.optim.AdamW if decoupled else torch.optim.Adam
    single = [optimiser([p], lr=1e-2, weight_decay=decay) for p in alone]
    together = StackedAdam(flat, 1e-2, decay, decoupled_decay=decoupled)
    for step in range(12):
        gradient = matrix(3, generator)
        active = torch.tensor([True, step % 2 == 0, step > 4])
        together.step(gradient.split(2, dim=1), active)
        for p, optimiser, g, on in zip(alone, single, gradient, active, strict=True):
            if on:
                p.grad = g.clone()
                optimiser.step()
        torch.testing.assert_close(flat, torch.stack([p.detach() for p in alone]))


def test_each_model_may_have_its_own_learning_rate():
    flat, rates = torch.zeros(2, 3), torch.tensor([1e-3, 1e-1])
    StackedAdam(flat, rates).step([torch.ones(2, 3)], torch.tensor([True, True]))
    torch.testing.assert_close(flat, -rates[:, None].expand(2, 3), rtol=1e-5, atol=0.0)
