"""What classifier and regressor share: everything but the meaning of ``y``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import NotFittedError
from torch import Tensor
from torch_geometric.data import Batch, Data

from softperm.collection import Collection
from softperm.estimators import saving
from softperm.estimators.preparation import (
    feature_statistics,
    find_device,
    fingerprint,
    hold_out,
    plain,
)
from softperm.graphs import as_graphs
from softperm.model import ModelConfig, PiGNN, build
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
        patience: stop after so many epochs without a better one; None for never. Needs graphs
            that are held out.
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
        device: str | torch.device = "auto",
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
        self._forget()
        self._check_settings()
        device = find_device(self.device)
        graphs = as_graphs(graphs, symmetrise=self.symmetrise)
        targets = self._read_targets(y, len(graphs))
        self.vocabulary_ = Vocabulary.learn(graphs)
        if validation is None:
            groups = targets.numpy() if targets.ndim == 1 else np.zeros(len(targets))
            training, held = hold_out(groups, self.validation_fraction, self.seed)
        else:
            more, more_targets = self._read_validation(*validation)
            targets = torch.cat([targets, more_targets])
            training, held = np.split(np.arange(len(targets)), [len(graphs)])
            graphs = [*graphs, *more]
        collection = self.vocabulary_.encode(graphs)
        train = Examples(collection, targets, torch.from_numpy(training))
        kept = Examples(collection, targets, torch.from_numpy(held)) if len(held) else None
        return self._train(train, kept, device)

    def _read_validation(self, graphs: Sequence[Any], y: Any) -> tuple[list[Data], Tensor]:
        try:
            read = as_graphs(graphs, symmetrise=self.symmetrise)
            return read, self._encode_targets(y, len(read))
        except ValueError as problem:
            raise ValueError(f"validation: {problem}") from None

    def _train(self, train: Examples, validation: Examples | None, device: torch.device) -> Self:
        self.task_ = self._task(train.y[train.index])
        config, settings = self._model_config(train), self._fit_config()
        model = build(config, settings.seed, feature_statistics(train))
        place = None if self.checkpoint is None else Path(self.checkpoint)
        identity = place and fingerprint(config, self.task_, settings, train, validation)
        with EpochBar(settings.epochs, shown=self.progress) as bar:
            result = fit(
                model,
                self.task_,
                train,
                settings,
                validation=validation,
                device=device,
                checkpoint=place,
                fingerprint=identity or "",
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
        saving.save(self, folder)

    @classmethod
    def load(cls, folder: str | Path, device: str | torch.device | None = None) -> Self:
        """Reads what :meth:`save` wrote; never runs code from the folder.

        Args:
            folder: where it was saved, or ``hf://owner/name`` on the Hugging Face Hub.
            device: where to put the model; by default what ``device`` was set to.
        """
        return saving.load(cls, folder, device)

    def _outputs(self, graphs: Sequence[Any]) -> Tensor:
        """The network's outputs (B, C) for each graph."""
        collection = self._encode(graphs)
        device = next(self.model_.parameters()).device
        everything = torch.arange(len(collection))
        return predict(self.model_, collection, everything, int(self.batch_size), device)

    def _encode(self, graphs: Sequence[Any]) -> Collection:
        self._check_fitted()
        return self.vocabulary_.encode(as_graphs(graphs, symmetrise=self.symmetrise))

    def _batches(self, collection: Collection) -> Iterator[Batch]:
        device = next(self.model_.parameters()).device
        for part in torch.arange(len(collection)).split(int(self.batch_size)):
            yield collection.batch(part).to(device)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def _check_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit first")

    def _forget(self) -> None:
        """Drops what an earlier fit left, so that a fit that fails leaves no mixture of both."""
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)

    def _check_settings(self) -> None:
        """Raises ValueError for settings that no later check would name as well."""
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(
                "validation_fraction must be at least 0 and below 1; "
                f"got {self.validation_fraction}"
            )
        capacity = plain(self.capacity)
        if capacity not in ("auto", None) and not (type(capacity) is int and capacity > 0):
            raise ValueError(
                f"capacity must be 'auto', a whole number of at least 1, or None; got {capacity!r}"
            )
        ModelConfig(1, **self._choices())
        self._fit_config()

    def _choices(self) -> dict[str, Any]:
        """The settings that are also the model's."""
        names = ("latent_vertices", "hidden", "encoder", "layers", "dustbin", "scaling")
        names += ("normaliser", "iterations", "head")
        return {name: plain(getattr(self, name)) for name in names}

    def _fit_config(self) -> FitConfig:
        """The settings that are the training's."""
        return FitConfig(**{f.name: plain(getattr(self, f.name)) for f in fields(FitConfig)})

    def _model_config(self, train: Examples) -> ModelConfig:
        largest = int(train.graphs.sizes[train.index].max())
        collection = train.graphs
        return ModelConfig(
            self.task_.outputs,
            **self._choices(),
            capacity=largest if self.capacity == "auto" else plain(self.capacity),
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
