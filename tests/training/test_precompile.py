"""The operators whose kernels are compiled ahead of a step are those that the step calls."""

import pytest
import torch
from samples import collect, random_graph

from softperm.nn.model import ModelConfig, build
from softperm.ops.layers import VertexBatchNorm
from softperm.training import precompile
from softperm.training.data import BatchShape, equal_features, fixed_batch, gather
from softperm.training.precompile import compile_kernels, operator_calls

GRAPHS = collect([random_graph(n, seed=n) for n in (3, 9, 5, 7, 4)])
INDEX = torch.tensor([4, 1, 0])
BATCH = GRAPHS.batch(INDEX)
BATCH.equal_vertices = {}  # as in a step of fixed shape for which vertices are not merged
SIZES = {"attribute_size": 3, "edge_attribute_size": 2, "hidden": 6, "capacity": 12}
CONFIGS = [
    {"latent_vertices": 4},
    {"latent_vertices": 5, "dustbin": True, "encoder": "gin", "powers": 2},
    {"latent_vertices": 4, "normaliser": "softmax", "encoder": "gcn", "permutation_heads": 2},
    {"latent_vertices": 4, "encoded": "both", "encoded_rounds": 1, "permute_by": "encoded"},
]


def network(settings: dict) -> torch.nn.Module:
    return build(ModelConfig(2, **SIZES, **settings), seed=0).train()


def of_fixed_shape(equal: dict):
    """The mini-batch of a step for which these vertices are merged."""
    shape = BatchShape.for_batches(GRAPHS, INDEX, equal)
    arrays, _ = gather(GRAPHS, INDEX[None], shape, equal)
    return fixed_batch({name: array[0] for name, array in arrays.items()}, shape, equal)


def forms(calls: list) -> set:
    """What distinguishes calls; batch normalisation has no kernel on the CPU."""
    return {
        (str(operator), *[(a.dtype, a.shape) if isinstance(a, torch.Tensor) else a for a in values])
        for operator, values in calls
        if "normalise" not in str(operator)
    }


@pytest.mark.parametrize("merging", [False, True])
@pytest.mark.parametrize("settings", CONFIGS, ids=str)
def test_the_operators_are_those_of_a_real_step(settings, merging):
    model = network(settings)
    batch = of_fixed_shape(equal_features(GRAPHS, model)) if merging else BATCH
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random = torch.get_rng_state()
    found = operator_calls(model, batch)
    assert all(torch.equal(tensor, before[k]) for k, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    learnt = [p for p in model.parameters() if p.requires_grad]
    with precompile._Recorder() as recorder:
        torch.autograd.grad(model(batch).sum(), learnt, allow_unused=True)
    assert forms(found) == forms(recorder.calls)
    linear = settings.get("encoder", "linear") == "linear" and "encoded" not in settings
    assert any("transfer" in str(operator) for operator, _ in found) == (merging and linear)
    normalised = any(isinstance(module, VertexBatchNorm) for module in model.modules())
    assert any("normalise_backward" in str(operator) for operator, _ in found) == normalised


@pytest.mark.parametrize("settings", CONFIGS, ids=str)
def test_the_operators_accept_graphs_without_vertices(settings):
    for call in precompile._distinct(operator_calls(network(settings), BATCH)):
        if "normalise" not in str(call[0]):
            precompile._call(*call, torch.device("cpu"))


def test_a_network_that_reads_tensors_on_the_host_has_none():
    class Reading(torch.nn.Module):
        def forward(self, batch):
            return batch.x * float(batch.x.sum())

    assert operator_calls(Reading(), BATCH) == []


def test_networks_with_other_kernels_are_told_apart():
    forms = {precompile._form(network(settings), BATCH) for settings in CONFIGS}
    assert len(forms) == len(CONFIGS)
    assert precompile._form(network(CONFIGS[0]), BATCH) in forms


def test_on_the_cpu_nothing_is_compiled(monkeypatch):
    monkeypatch.setattr(precompile, "operator_calls", lambda *given: pytest.fail("was called"))
    compile_kernels(network(CONFIGS[0]), GRAPHS, GRAPHS, torch.arange(3))


@pytest.mark.gpu
@pytest.mark.parametrize("merging", [False, True])
@pytest.mark.parametrize("settings", CONFIGS, ids=str)
def test_a_step_on_a_gpu_compiles_nothing_more(settings, merging, monkeypatch):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    from triton.runtime import jit

    model, graphs = network(settings).cuda(), GRAPHS.to("cuda")
    monkeypatch.setattr(precompile, "_compiled", set())
    equal = equal_features(GRAPHS, model) if merging else {}
    compile_kernels(model, GRAPHS, graphs, INDEX, equal=equal)
    torch.cuda.synchronize()
    missed: list[str] = []
    compile_one = jit.JITFunction._do_compile

    def noted(self, *given):
        missed.append(self.__name__)
        return compile_one(self, *given)

    monkeypatch.setattr(jit.JITFunction, "_do_compile", noted)
    learnt = [p for p in model.parameters() if p.requires_grad]
    batch = of_fixed_shape(equal).to("cuda")
    torch.autograd.grad(model(batch).sum(), learnt, allow_unused=True)
    assert missed == []
