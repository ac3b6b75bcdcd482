"""A stack that runs through Triton's kernels trains as torch does; ``kernels.py`` says where."""

import pytest
from kernels import DEVICE, law
from samples import collect, random_graph
from torch import tensor
from torch.testing import assert_close

from softperm.lab.systems import SYSTEMS, DataShape
from softperm.ops import layers, ragged
from softperm.settings import TrainingConfig
from softperm.training.stack import Stack
from softperm.training.tasks import Classification

GRAPHS = collect([random_graph(n, seed=n) for n in (1, 3, 6, 2, 5, 4)])
TRAIN, HELD = [tensor([0, 1, 2]), tensor([3, 4])], [tensor([5]), tensor([0])]


@law
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("gin", {"widths": (4,), "train_eps": True}),
        pytest.param(
            "graphsage",
            {"hidden": 4, "layers": 1, "aggregation": "max"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_kernels_change_no_training(name, settings, monkeypatch):
    def trained(kernels: bool):
        monkeypatch.setattr(layers, "_has_kernels", lambda *given: kernels)
        monkeypatch.setattr(ragged, "_has_kernels", lambda x: kernels)
        shape = DataShape.of(GRAPHS, 2)
        models = [SYSTEMS[name].build(shape, settings, seed).double() for seed in (3, 4)]
        rest = ([Classification(2)] * 2, GRAPHS, tensor([0, 1] * 3), TRAIN, HELD, [3, 4])
        config = TrainingConfig(epochs=2, batch_size=2, learning_rate=1e-2)
        results = Stack(models, *rest, config, device=DEVICE if kernels else "cpu").fit()
        return [epoch.train_loss for result in results for epoch in result.curve], models

    ours, theirs = trained(True), trained(False)
    assert_close(ours[0], theirs[0], rtol=1e-9, atol=1e-9)
    for a, b in zip(ours[1], theirs[1], strict=True):
        for key, value in b.state_dict().items():
            assert_close(a.state_dict()[key].cpu(), value, rtol=1e-8, atol=1e-8)
