"""A network trained on a named dataset, and how it reads graphs that are not of that dataset.

Beside the network's own files lies ``reading.json``: the meaning of its outputs, and how graphs
become what it was trained on. Molecules of OGB and QM9 are read from SMILES with the features of
their dataset; other graphs by their fields, whose labels are those of the dataset.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from softperm.data.collection import Collection
from softperm.data.features import structural_features
from softperm.data.vocabulary import Vocabulary
from softperm.estimators import PiGNNClassifier, PiGNNRegressor
from softperm.files import write_atomically
from softperm.nn.model import ModelConfig, PiGNN
from softperm.nn.model_folder import FolderError
from softperm.training.devices import find_device
from softperm.training.tasks import Classification, Regression

if TYPE_CHECKING:
    from softperm.cli.dataset_runs import Problem

READING = "reading.json"
_MOLECULES = {"ogbg-molhiv": "ogb", "ogbg-molpcba": "ogb", "QM9": "qm9"}


class _ReadsAsTrained:
    """What estimators of named datasets do otherwise: they read graphs as their dataset does."""

    model_: PiGNN
    reading: dict[str, Any]

    @property
    def wants_smiles(self) -> bool:
        """Whether graphs are given as SMILES."""
        return self.reading["molecules"] is not None

    def _encode(self, graphs: Sequence[Any]) -> Collection:
        if self.wants_smiles:
            made = _molecules(self.reading["molecules"], graphs)
        else:
            made = Vocabulary.from_config(self.reading["vocabulary"]).encode(graphs)
        return replace(made, codes=self.reading["codes"])

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns of ``transform``."""
        config = self.model_.config
        assert config is not None
        latent = range(config.latent_vertices)
        names = [f"adjacency_{i}_{j}" for i in latent for j in latent]
        names += [f"attribute_{i}_{f}" for i in latent for f in range(config.vertex_width)]
        names += [
            f"edge_{i}_{j}_{c}" for i in latent for j in latent for c in range(config.edge_width)
        ]
        return np.asarray(names, dtype=object)


class DatasetClassifier(_ReadsAsTrained, PiGNNClassifier):
    """A classifier of canonical graphs, or of SMILES."""


class DatasetRegressor(_ReadsAsTrained, PiGNNRegressor):
    """A regressor of canonical graphs, or of SMILES."""


def write_reading(folder: Path, problem: Problem, config: ModelConfig) -> None:
    """Writes how a network reads graphs, beside the network.

    Args:
        folder: of the network.
        problem: what it was trained on.
        config: the network.
    """
    dataset, task = problem.dataset, problem.task
    if isinstance(task, Regression):
        single = len(problem.targets) == 1
        targets: dict[str, Any] = {"mean": list(task.mean), "std": list(task.std), "flat": single}
    elif isinstance(task, Classification):
        targets = {"classes": list(dataset.class_names), "labels": None}
    else:
        targets = {"classes": [0, 1], "labels": task.outputs}
    graphs, molecules = dataset.collection, _MOLECULES.get(dataset.name)
    vocabulary = None
    if molecules is None:
        vocabulary = Vocabulary(
            labels=tuple(tuple(map(int, column)) for column in dataset.meta.label_values),
            edge_labels=tuple(tuple(map(int, column)) for column in dataset.meta.edge_label_values),
            x_size=0 if graphs.x is None else graphs.x.shape[1],
            edge_attr_size=0 if graphs.edge_attr is None else graphs.edge_attr.shape[1],
        ).to_config()
    content = {
        "dataset": dataset.name,
        "regression": isinstance(task, Regression),
        "targets": targets,
        "molecules": molecules,
        "vocabulary": vocabulary,
        "codes": bool(config.label_sizes or config.edge_label_sizes),
    }
    write_atomically(folder / READING, (json.dumps(content, indent=2) + "\n").encode())


def read_reading(folder: Path) -> dict[str, Any]:
    """What :func:`write_reading` wrote.

    Raises:
        FolderError: it is not there, or damaged.
    """
    try:
        content = json.loads((folder / READING).read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it holds no settings")
    except FileNotFoundError:
        raise FolderError(
            f"{folder} holds a network without {READING}, which says how it reads graphs: give "
            "the run folder of softperm train"
        ) from None
    except (OSError, ValueError) as problem:
        raise FolderError(f"{folder / READING} is damaged: {problem}") from None
    return content


def dataset_estimator(folder: Path, device: str) -> DatasetClassifier | DatasetRegressor:
    """The network of a folder behind the interface of an estimator."""
    reading = read_reading(folder)
    made = DatasetRegressor() if reading.get("regression") else DatasetClassifier()
    try:
        made._set_targets(reading["targets"])
        made.reading = {name: reading[name] for name in ("molecules", "vocabulary", "codes")}
    except (KeyError, TypeError, ValueError) as problem:
        raise FolderError(f"{folder / READING} is damaged: {problem}") from None
    made.model_ = PiGNN.load(folder).to(find_device(device)).eval()
    return made


def _molecules(kind: str, smiles: Sequence[str]) -> Collection:
    """Molecules with the features of OGB, or of QM9."""
    from softperm.data.datasets.molecules import OGB, parse_smiles
    from softperm.data.datasets.molecules import encode as lay_out

    if kind == "qm9":
        from softperm.data.datasets.qm9_molecules import QM9, SmilesBatch, encode_smiles

        encoding, (found, _) = QM9, encode_smiles(SmilesBatch(0, tuple(smiles)))
    else:
        numbered = enumerate(smiles)
        encoding = OGB
        found = lay_out([parse_smiles(text, f"graph {i}") for i, text in numbered], OGB)
    ptr, edge_ptr = (
        torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]))
        for counts in (found.sizes, found.edge_counts)
    )
    edges = torch.from_numpy(found.edge_index).long()
    shift = torch.repeat_interleave(ptr[:-1], edge_ptr.diff())
    return Collection(
        ptr=ptr,
        edge_ptr=edge_ptr,
        edge_index=edges,
        structure=structural_features(edges + shift, ptr),
        label=torch.from_numpy(found.atom).long(),
        label_sizes=tuple(map(len, encoding.atom_features.values())),
        edge_label=torch.from_numpy(found.bond).long(),
        edge_label_sizes=tuple(map(len, encoding.bond_features.values())),
    )
