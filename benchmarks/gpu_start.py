"""Seconds until the first fits end on a GPU machine whose kernel caches are empty.

    python benchmarks/gpu_start.py RESULT.json [--device cuda]

Every round is a process of its own. ``one after the other`` fits with the paper's settings and
P = 20, again, with P = 12, and with the defaults; ``warm`` does the same with the caches that this
left; ``P = 12`` and ``defaults`` begin with empty caches; ``at launch`` compiles every kernel at
its first launch, as before kernels were compiled together. The caches of Triton, of numba and of
CUDA are folders of the run; the machine's disk cache is not emptied, so the import is only cold in
the first round of a fresh machine.

For every fit the result has its seconds, and the kernels that were compiled: how many, the longest,
the seconds of all together, and the names of those that were compiled outside
``softperm.training.precompile``. That list should be empty except under ``at launch``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(folder) for folder in Path(__file__).resolve().parents[:2]]

EPOCHS = 10
ROUNDS = {  # the fits of each round, and where its caches are
    "one after the other": (("P = 20", "P = 20", "P = 12", "defaults"), "first"),
    "warm": (("P = 20", "P = 20", "P = 12", "defaults"), "first"),
    "P = 12": (("P = 12", "P = 12"), "second"),
    "defaults": (("defaults", "defaults"), "third"),
    "at launch": (("P = 20", "P = 20", "P = 12", "defaults"), "fourth"),
}


def like_mutag(count: int = 188) -> tuple[list, list[int]]:
    """Rings, of which every second has a tail: of MUTAG's sizes, 7 labels and 4 edge labels."""
    import numpy as np
    import torch

    from softperm.pyg import Data

    generator = np.random.default_rng(0)
    graphs, classes = [], []
    for k in range(count):
        n = int(generator.integers(10, 29))
        ring = n - 4 * (k % 2)
        source = torch.arange(n)
        target = torch.where(source < ring, (source + 1) % ring, source - 1)
        kinds = torch.from_numpy(generator.integers(0, 4, n))
        graphs.append(
            Data(
                edge_index=torch.stack([torch.cat([source, target]), torch.cat([target, source])]),
                label=torch.from_numpy(generator.integers(0, 7, n)),
                edge_label=torch.cat([kinds, kinds]),
                num_nodes=n,
            )
        )
        classes.append(k % 2)
    return graphs, classes


class Compilations:
    """The kernels that Triton compiles, and whether ``precompile`` asked for them."""

    def __init__(self, at_launch: bool) -> None:
        self.kernels: list[tuple[str, float, bool]] = []  # name, seconds, ahead of a step
        self.ahead = False
        from triton import knobs

        from softperm.training import cuda_graphs

        knobs.compilation.listener = self._listen
        compile_kernels = cuda_graphs.compile_kernels

        def watched(*given, **named) -> None:
            self.ahead = True
            if not at_launch:
                compile_kernels(*given, **named)
            self.ahead = False

        cuda_graphs.compile_kernels = watched

    def _listen(self, *, src, metadata, metadata_group, times, cache_hit) -> None:
        if not cache_hit:
            seconds = times.ir_initialization + sum(time for _, time in times.lowering_stages)
            self.kernels.append((src.name, seconds / 1e6, self.ahead))

    def take(self) -> dict:
        """What was compiled since the last call."""
        kernels, self.kernels = self.kernels, []
        seconds = [one for _, one, _ in kernels]
        return {
            "kernels": len(kernels),
            "longest": round(max(seconds, default=0.0), 2),
            "sum": round(sum(seconds), 2),
            "outside": sorted(name for name, _, ahead in kernels if not ahead),
        }


def measure(fits: list[str], device: str, at_launch: bool) -> list[dict]:
    """Imports the package, starts the device, and fits."""
    records: list[dict] = []

    def timed(name: str, function, **more) -> None:
        begin = time.perf_counter()
        function()
        records.append({"what": name, "seconds": round(time.perf_counter() - begin, 2), **more})

    def load() -> None:
        from softperm import PiGNNClassifier  # noqa: F401

    def start() -> None:
        import torch

        torch.ones(1, device=device).sum().item()

    timed("import", load)
    timed("start of the device", start)
    timed("import of triton", lambda: __import__("triton"))
    from softperm import PiGNNClassifier
    from softperm.settings import PAPER

    graphs, classes = like_mutag()
    compilations = Compilations(at_launch)
    settings = {
        "P = 20": {**PAPER, "latent_vertices": 20},
        "P = 12": {**PAPER, "latent_vertices": 12},
        "defaults": {},
    }
    for name in fits:
        model = PiGNNClassifier(
            **{**settings[name], "epochs": EPOCHS}, device=device, progress=False, seed=0
        )
        timed(name, lambda model=model: model.fit(graphs, classes))
        records[-1] |= compilations.take()
        records[-1]["accuracy"] = round(float(model.score(graphs, classes)), 4)
        records[-1]["compiled_by_score"] = compilations.take()["outside"]
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--round", help="run this round here and print its records")
    options = parser.parse_args()
    if options.round:
        fits, _ = ROUNDS[options.round]
        print(json.dumps(measure(list(fits), options.device, options.round == "at launch")))
        return
    result: dict = {"cores": len(os.sched_getaffinity(0)), "rounds": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name, (_, caches) in ROUNDS.items():
            variables = ("TRITON_CACHE_DIR", "NUMBA_CACHE_DIR", "CUDA_CACHE_PATH")
            own = {variable: str(Path(folder, caches, variable)) for variable in variables}
            command = [sys.executable, __file__, str(options.result), "--device", options.device]
            command[1:1] = ["-W", "ignore"]  # ten epochs do not train the permutations
            done = subprocess.run(
                [*command, "--round", name], env={**os.environ, **own}, stdout=subprocess.PIPE,
                text=True, check=False,
            )  # fmt: skip
            failed = {"failed": done.returncode}
            records = failed if done.returncode else json.loads(done.stdout.splitlines()[-1])
            result["rounds"][name] = records
            print(name, json.dumps(records), flush=True)
            options.result.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
