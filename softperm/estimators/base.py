"""What classifier and regressor share: everything but the meaning of ``y``."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import NotFittedError
from torch import Tensor
from torch_geometric.data import Batch

from softperm.collection import Collection
from softperm.folder import FolderError, read_folder, write_folder
from softperm.graphs import as_graphs
from softperm.model import ModelConfig, PiGNN, build, rebuild
from softperm.training.fit import Epoch, Examples, FitConfig, fit, predict
from softperm.training.progress import EpochBar
from softperm.training.tasks import Task
from softperm.vocabulary import Vocabulary


class PiGNNEstimator(TransformerMixin, BaseEstimator):
    """A π-GNN behind scikit-learn's interface; what ``y`` means is up to subclasses.

    Args:
        latent_vertices: number P of latent vertices to which all graphs are aligned.
        hidden: size of hidden vertex vectors.
        encoder: how degree and triangles (and, for ``gcn`` and ``gin``, attributes and
            neighbourhoods) become hidden vectors.
        layers: rounds of message passing of ``gcn`` and ``gin``.
        dustbin: let vertices and latent vertices stay unmatched (π-GNN-d).
        capacity: size to which the paper pads every graph: ``auto`` for the largest training
            graph, a number, or None for no padding. It costs nothing.
        scaling: of degree and triangle counts: ``log``, ``standard``, or the paper's ``raw``.
        normaliser: ``sinkhorn``, or ``softmax`` over latent vertices.
        iterations: at most how many Sinkhorn iterations.
        head: ``mlp``, or ``conv`` over consecutive latent vertices.
        epochs: passes over the training graphs.
        batch_size: graphs in a mini-batch.
        learning_rate: of Adam.
        weight_decay: of Adam.
        validation_fraction: share of the training graphs held out to choose the best epoch;
            0 for none, which keeps the last epoch.
        criterion: the validation figure that chooses: ``loss`` or ``score``.
        patience: stop after so many epochs without a better one; None for never.
        seed: of initial parameters, mini-batches and the held-out part: same seed, same numbers.
        device: ``auto`` (a GPU if there is one), or a torch device.
        symmetrise: accept directed graphs, reading every edge in both directions.
        checkpoint: file in which training is kept while it runs and from which it resumes.
        progress: show a progress bar while training, if there is a terminal.
    """

    def __init__(
        self,
        latent_vertices: int = 20,
        hidden: int = 32,
        encoder: Literal["linear", "gcn", "gin"] = "linear",
        layers: int = 3,
        dustbin: bool = False,
        capacity: int | Literal["auto"] | None = "auto",
        scaling: Literal["raw", "log", "standard"] = "log",
        normaliser: Literal["sinkhorn", "softmax"] = "sinkhorn",
        iterations: int = 100,
        head: Literal["mlp", "conv"] = "mlp",
        epochs: int = 300,
        batch_size: int = 64,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.0,
        validation_fraction: float = 0.1,
        criterion: Literal["loss", "score"] = "loss",
        patience: int | None = None,
        seed: int = 0,
        device: str = "auto",
        symmetrise: bool = False,
        checkpoint: str | Path | None = None,
        progress: bool = True,
    ) -> None:
        self.latent_vertices = latent_vertices
        self.hidden = hidden
        self.encoder = encoder
        self.layers = layers
        self.dustbin = dustbin
        self.capacity = capacity
        self.scaling = scaling
        self.normaliser = normaliser
        self.iterations = iterations
        self.head = head
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.validation_fraction = validation_fraction
        self.criterion = criterion
        self.patience = patience
        self.seed = seed
        self.device = device
        self.symmetrise = symmetrise
        self.checkpoint = checkpoint
        self.progress = progress

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Adds the settings, described once, to the documentation of each subclass."""
        super().__init_subclass__(**keywords)
        cls.__doc__ = f"{cls.__doc__}\n{(PiGNNEstimator.__doc__ or '').partition(chr(10))[2]}"

    model_: PiGNN
    vocabulary_: Vocabulary
    task_: Task
    curve_: tuple[Epoch, ...]

    def fit(
        self,
        graphs: Sequence[Any],
        y: Any,
        validation: tuple[Sequence[Any], Any] | None = None,
    ) -> Self:
        """Learns soft permutations and predictions from graphs and their targets.

        Args:
            graphs: all of one kind: networkx graphs, PyG ``Data``, (edges, number of vertices)
                pairs, adjacency matrices, or SMILES.
            y: a target for each graph.
            validation: other graphs and targets that choose the best epoch, in place of
                ``validation_fraction``.
        """
        self._check_settings()
        graphs = as_graphs(graphs, symmetrise=self.symmetrise)
        targets = self._read_targets(y, len(graphs))
        self.vocabulary_ = Vocabulary.learn(graphs)
        if validation is None:
            training, held = _hold_out(targets, self.validation_fraction, self.seed)
        else:
            more = as_graphs(validation[0], symmetrise=self.symmetrise)
            targets = torch.cat([targets, self._encode_targets(validation[1], len(more))])
            training, held = np.split(np.arange(len(targets)), [len(graphs)])
            graphs = [*graphs, *more]
        collection = self.vocabulary_.encode(graphs)
        train = Examples(collection, targets, torch.from_numpy(training))
        kept = Examples(collection, targets, torch.from_numpy(held)) if len(held) else None
        return self._train(train, kept)

    def _train(self, train: Examples, validation: Examples | None) -> Self:
        self.task_ = self._task(train.y[train.index])
        config = self._model_config(train)
        settings = FitConfig(
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            criterion=self.criterion,
            patience=self.patience,
            seed=self.seed,
        )
        model = build(config, self.seed, _statistics(train))
        with EpochBar(self.epochs, shown=self.progress) as bar:
            result = fit(
                model,
                self.task_,
                train,
                settings,
                validation=validation,
                device=_device(self.device),
                checkpoint=None if self.checkpoint is None else Path(self.checkpoint),
                fingerprint=_fingerprint(config, settings, train, validation),
                on_epoch=bar.update,
            )
        if result.interrupted and self.checkpoint is None:
            warnings.warn(
                f"training was interrupted after {len(result.curve)} of {self.epochs} epochs; "
                "the best epoch so far is kept. With checkpoint= it could be resumed.",
                stacklevel=3,
            )
        self.model_ = model
        self.curve_, self.best_epoch_ = result.curve, result.best_epoch
        self.interrupted_ = result.interrupted
        return self

    def transform(self, graphs: Sequence[Any]) -> np.ndarray:
        """The aligned vector of each graph: vec(DᵀAD), then vec(DᵀX) and edge attributes if any.

        Returns:
            (B, P · P + P · F + P · P · d_e).
        """
        collection = self._encode(graphs)
        with torch.no_grad():
            parts = [self.model_.transform(b).cpu().numpy() for b in self._batches(collection)]
        return np.concatenate(parts)

    def permutations(self, graphs: Sequence[Any]) -> list[np.ndarray]:
        """The soft permutation (N, P) of each graph, rows in the graph's own vertex order."""
        collection = self._encode(graphs)
        with torch.no_grad():
            parts = [self.model_.permutations(b) for b in self._batches(collection)]
        return [d.cpu().numpy() for part in parts for d in part]

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns of :meth:`transform`."""
        self._check_fitted()
        config = self.model_.config
        latent = range(config.latent_vertices)
        names = [f"adjacency_{i}_{j}" for i in latent for j in latent]
        names += [f"attribute_{i}_{f}" for i in latent for f in range(config.attribute_size)]
        channels = range(config.edge_attribute_size)
        names += [f"edge_{i}_{j}_{c}" for i in latent for j in latent for c in channels]
        return np.asarray(names, dtype=object)

    def save(self, folder: str | Path) -> None:
        """Writes ``config.json`` and ``model.safetensors``, the Hugging Face Hub's layout."""
        self._check_fitted()
        params = {**self.get_params(), "checkpoint": None}
        config = {
            "kind": type(self).__name__,
            "params": params,
            "model": asdict(self.model_.config),
            "vocabulary": self.vocabulary_.to_config(),
            "targets": self._targets_config(),
            "best_epoch": self.best_epoch_,
        }
        write_folder(folder, config, self.model_.state_dict())

    @classmethod
    def load(cls, folder: str | Path, device: str | None = None) -> Self:
        """Reads what :meth:`save` wrote; never runs code from the folder.

        Args:
            folder: where it was saved, or ``hf://owner/name`` on the Hugging Face Hub.
            device: where to put the model; by default what ``device`` was set to.
        """
        config, tensors = read_folder(folder, kind=cls.__name__)
        model = rebuild(config.get("model"), tensors, str(folder))
        try:
            made = cls(**config["params"])
            made.device = device or made.device
            made.vocabulary_ = Vocabulary.from_config(config["vocabulary"])
            made._set_targets(config["targets"])
            made.best_epoch_ = int(config["best_epoch"])
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise FolderError(
                f"{folder}: config.json is incomplete or damaged: {problem!r}"
            ) from None
        made.model_ = model.to(_device(made.device))
        made.curve_, made.interrupted_ = (), False
        return made

    def _outputs(self, graphs: Sequence[Any]) -> Tensor:
        """The network's outputs (B, C) for each graph."""
        collection = self._encode(graphs)
        device = next(self.model_.parameters()).device
        everything = torch.arange(len(collection))
        return predict(self.model_, collection, everything, self.batch_size, device)

    def _encode(self, graphs: Sequence[Any]) -> Collection:
        self._check_fitted()
        return self.vocabulary_.encode(as_graphs(graphs, symmetrise=self.symmetrise))

    def _batches(self, collection: Collection) -> Iterator[Batch]:
        device = next(self.model_.parameters()).device
        for part in torch.arange(len(collection)).split(self.batch_size):
            yield collection.batch(part).to(device)

    def _check_fitted(self) -> None:
        if not hasattr(self, "model_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit first")

    def _check_settings(self) -> None:
        """Raises ValueError for settings that no later check would name as well."""
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(
                "validation_fraction must be at least 0 and below 1; "
                f"got {self.validation_fraction}"
            )
        if isinstance(self.capacity, str) and self.capacity != "auto":
            raise ValueError(f"capacity must be 'auto', a number or None; got {self.capacity!r}")
        ModelConfig(1, **self._choices())

    def _choices(self) -> dict[str, Any]:
        """The settings that are also the model's."""
        names = ("latent_vertices", "hidden", "encoder", "layers", "dustbin", "scaling")
        names += ("normaliser", "iterations", "head")
        return {name: getattr(self, name) for name in names}

    def _model_config(self, train: Examples) -> ModelConfig:
        largest = int(train.graphs.sizes[train.index].max())
        collection = train.graphs
        return ModelConfig(
            self.task_.outputs,
            **self._choices(),
            capacity=largest if self.capacity == "auto" else self.capacity,
            attribute_size=collection.attribute_size,
            edge_attribute_size=collection.edge_attribute_size,
            weighted=collection.edge_weight is not None,
        )

    def _read_targets(self, y: Any, count: int) -> Tensor:
        """Learns what targets there are, and encodes them."""
        raise NotImplementedError

    def _encode_targets(self, y: Any, count: int) -> Tensor:
        """Encodes targets of the kind that was learnt."""
        raise NotImplementedError

    def _task(self, y: Tensor) -> Task:
        """The task that the training targets pose."""
        raise NotImplementedError

    def _targets_config(self) -> dict[str, Any]:
        """What :meth:`_set_targets` needs, as JSON can hold it."""
        raise NotImplementedError

    def _set_targets(self, config: dict[str, Any]) -> None:
        """Goes back to the targets of a saved estimator."""
        raise NotImplementedError


def _hold_out(y: Tensor, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Training and held-out graphs; of each class the same share is held out.

    A class of which the share is less than half a graph stays in training whole.
    """
    generator = np.random.default_rng(seed)
    groups = y.numpy() if y.ndim == 1 else np.zeros(len(y), dtype=np.int64)
    held = []
    for group in np.unique(groups):
        members = generator.permutation(np.flatnonzero(groups == group))
        held.append(members[: round(fraction * len(members))])
    chosen = np.sort(np.concatenate(held))
    return np.setdiff1d(np.arange(len(y)), chosen), chosen


def _statistics(train: Examples) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the structural features over the training vertices."""
    owner = torch.repeat_interleave(torch.arange(len(train.graphs)), train.graphs.sizes)
    rows = train.graphs.structure[torch.isin(owner, train.index)].double()
    std, mean = torch.std_mean(rows, dim=0, correction=0)
    return mean.float(), std.float()


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def _fingerprint(
    config: ModelConfig, settings: FitConfig, train: Examples, validation: Examples | None
) -> str:
    """Identifies a training: a change of settings or data changes it."""
    text = json.dumps([asdict(config), {**asdict(settings), "epochs": None}], sort_keys=True)
    digest = hashlib.sha256(text.encode())
    for examples in (train, validation):
        if examples is not None:
            graphs = examples.graphs
            for tensor in (examples.index, examples.y, graphs.ptr, graphs.edge_index):
                digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
