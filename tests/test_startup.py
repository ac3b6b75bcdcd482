"""Commands load what they use, and nothing else of the large libraries."""

import subprocess
import sys
from pathlib import Path

import pytest
from samples import FAST, as_options, rings_and_cliques, write_json_lines

from softperm import PiGNNClassifier
from softperm.settings import PAPER

PREDICT = """
import sys
from softperm.cli import main
sys.argv = ["softperm", "predict", *{arguments!r}]
try:
    main()
finally:
    heavy = ["torch._dynamo.convert_frame", "pandas.core", "lightning_fabric", "matplotlib",
             "sklearn.metrics", "sklearn.ensemble", "torch_geometric.nn.conv", "scipy.optimize",
             "networkx.algorithms", "softperm.distance", "torch.export.exported_program",
             "torch._inductor", "sympy", "triton", "scipy.stats._stats_py", "huggingface_hub",
             "pyarrow", "rdkit", "PIL", "starlette", "ray", "faiss", "softperm.search",
             "softperm.explain", "softperm.explore", "softperm.lab.protocol"]
    print("loaded:", [name for name in heavy if name in sys.modules])
"""

ONE_COMMAND = """
import atexit, gc, sys
from softperm.cli import COMMANDS, main
atexit.register(lambda: print("left to the last collection:", len(gc.get_objects())))
sys.argv = ["softperm", "report", "--help"]
try:
    main()
finally:
    print("loaded:", [name for name in COMMANDS if f"softperm.cli.{name}" in sys.modules])
"""

DEFERRED = """
import sys
from softperm import startup
sys.path.insert(0, {folder!r})
startup.DEFERRED |= {{"slow_package", "slow_package.part"}}
startup.defer_imports()
import slow_package, inspect
assert "ran" not in vars(slow_package)
assert slow_package.__file__
inspect.getmodule(inspect.currentframe())
assert "ran" not in vars(slow_package), "listing modules loads none"
from slow_package.part import answer
assert answer == 42 and slow_package.ran == 1
assert slow_package.__class__ is type(sys)
"""


def test_predict_loads_neither_compiler_nor_plots_nor_tables(tmp_path):
    graphs, kinds = rings_and_cliques(12)
    PiGNNClassifier(**FAST).fit(graphs, kinds).save(tmp_path / "model")
    data = write_json_lines(tmp_path / "g.jsonl", graphs)
    arguments = [str(tmp_path / "model"), str(data), "--out", str(tmp_path / "p.csv")]
    code = PREDICT.format(arguments=arguments)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "loaded: []" in done.stdout


def test_a_command_imports_no_other_command_and_ends_without_a_collection():
    command = [sys.executable, "-c", ONE_COMMAND]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "loaded: ['report']" in done.stdout
    assert "left to the last collection: 0" in done.stdout


def test_a_deferred_module_runs_at_its_first_use(tmp_path):
    package = tmp_path / "slow_package"
    package.mkdir()
    (package / "__init__.py").write_text("ran = globals().get('ran', 0) + 1\n")
    (package / "part.py").write_text("answer = 42\n")
    code = DEFERRED.format(folder=str(tmp_path))
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2])
def test_several_devices_train_on_a_file_as_one_does(devices, tmp_path):
    import torch

    graphs, kinds = rings_and_cliques(20)
    data = write_json_lines(tmp_path / "g.jsonl", graphs, kind=kinds.tolist())
    runs = [run(data, tmp_path / str(count), count) for count in (1, devices)]
    for name, tensor in runs[0].items():
        torch.testing.assert_close(runs[1][name], tensor, rtol=1e-3, atol=1e-4)
    assert (tmp_path / str(devices) / "log.txt").read_text().count("20 graphs") == 1


def run(data: Path, out: Path, devices: int) -> dict:
    """The weights after training in so many processes."""
    options = "--epochs 2 --latent-vertices 3 --hidden 4 --batch-size 8 --device cpu --no-progress"
    command = [sys.executable, "-m", "softperm", "train", str(data), "--out", str(out)]
    command += [*as_options(PAPER), *options.split(), "--devices", str(devices)]
    subprocess.run(command, capture_output=True, text=True, check=True)
    return PiGNNClassifier.load(out / "model").model_.state_dict()


def test_the_end_of_a_command_reports_no_leaks_of_triton():
    """It would if the last garbage collection were spared with Triton loaded, as on a GPU."""
    pytest.importorskip("triton")
    code = (
        "import triton._C.libtriton\nfrom softperm.startup import collect_rarely\ncollect_rarely()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "leaked" not in done.stderr
