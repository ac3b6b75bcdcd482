"""What classifier and regressor share: everything but the meaning of ``y``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.base import TransformerMixin
from sklearn.exceptions import NotFittedError
from torch import Tensor
from torch_geometric.data import Data

from softperm.data.collection import Collection, GraphBatch
from softperm.data.graphs import as_graphs
from softperm.data.vocabulary import Vocabulary
from softperm.estimators.preparation import (
    feature_statistics,
    fingerprint,
    hold_out,
    plain,
)
from softperm.estimators.settings import EstimatorSettings
from softperm.nn.model import ModelConfig, PiGNN, build, rebuild
from softperm.nn.model_folder import FolderError, read_folder, write_folder
from softperm.training.devices import find_device
from softperm.training.fit import Epoch, Examples, fit, predict
from softperm.training.progress import EpochBar
from softperm.training.tasks import Task

Fitted = TypeVar("Fitted", bound="PiGNNEstimator")


class PiGNNEstimator(TransformerMixin, EstimatorSettings):
    """A π-GNN behind scikit-learn's interface; what ``y`` means is up to subclasses."""

    model_: PiGNN
    vocabulary_: Vocabulary
    task_: Task
    curve_: tuple[Epoch, ...]

    def fit(
        self: Fitted,
        graphs: Sequence[Any],
        y: Any,
        validation: tuple[Sequence[Any], Any] | None = None,
    ) -> Fitted:
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
            training, held = hold_out(groups, float(self.validation_fraction), plain(self.seed))
        else:
            if not isinstance(validation, (tuple, list)) or len(validation) != 2:
                raise ValueError("validation must be a pair: graphs, and a target for each of them")
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
            self.vocabulary_.check(read)
            return read, self._encode_targets(y, len(read))
        except ValueError as problem:
            raise ValueError(f"validation: {problem}") from None

    def _train(
        self: Fitted, train: Examples, validation: Examples | None, device: torch.device
    ) -> Fitted:
        self.task_ = self._task(train.y[train.index])
        config, settings = self._model_config(train), self._training_config()
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
        assert config is not None, "an estimator's network is built from a configuration"
        latent = range(config.latent_vertices)
        names = [f"adjacency_{i}_{j}" for i in latent for j in latent]
        names += [f"attribute_{i}_{f}" for i in latent for f in range(config.attribute_size)]
        channels = range(config.edge_attribute_size)
        names += [f"edge_{i}_{j}_{c}" for i in latent for j in latent for c in channels]
        return np.asarray(names, dtype=object)

    def save(self, folder: str | Path) -> None:
        """Writes ``config.json`` and ``model.safetensors``, the Hugging Face Hub's layout."""
        self._check_fitted()
        model = self.model_
        assert model.config is not None, "an estimator's network is built from a configuration"
        params = {name: plain(value) for name, value in self.get_params().items()}
        config = {
            "kind": type(self).__name__,
            "params": {**params, "checkpoint": None},
            "model": asdict(model.config),
            "vocabulary": self.vocabulary_.to_config(),
            "targets": self._targets_config(),
            "best_epoch": self.best_epoch_,
        }
        write_folder(folder, config, model.state_dict())

    @classmethod
    def load(
        cls: type[Fitted], folder: str | Path, device: str | torch.device | None = None
    ) -> Fitted:
        """Reads what :meth:`save` wrote; never runs code from the folder.

        Args:
            folder: where it was saved, or ``hf://owner/name`` on the Hugging Face Hub.
            device: where to put the model; by default what ``device`` was set to.
        """
        config, tensors = read_folder(folder, kind=cls.__name__)
        model = rebuild(config.get("model"), tensors, str(folder))
        try:
            made = cls._restore(config)
            made._check_fits(model)
        except KeyError as problem:
            raise FolderError(f"{folder}: config.json lacks {problem}") from None
        except (TypeError, ValueError, AttributeError) as problem:
            detail = " ".join(str(problem).split())
            raise FolderError(f"{folder}: config.json is damaged: {detail}") from None
        made.device = device or made.device
        made.model_ = model.to(find_device(made.device))
        made.curve_, made.interrupted_ = (), False
        return made

    @classmethod
    def _restore(cls: type[Fitted], config: dict[str, Any]) -> Fitted:
        """An estimator with all that a configuration says, but for the network."""
        unknown = set(config) - {"kind", "params", "model", "vocabulary", "targets", "best_epoch"}
        if unknown:
            raise ValueError(f"unknown keys: {', '.join(sorted(unknown))}")
        made = cls(**config["params"])
        made._check_settings()
        made.vocabulary_ = Vocabulary.from_config(config["vocabulary"])
        made._set_targets(config["targets"])
        made.best_epoch_ = int(config["best_epoch"])
        return made

    def _check_fits(self, model: PiGNN) -> None:
        """Raises ValueError unless targets and vocabulary are those of the network."""
        vocabulary = self.vocabulary_
        edges = sum(map(len, vocabulary.edge_labels)) + vocabulary.edge_attr_size
        expected = {
            "outputs": self.task_.outputs,
            "attribute_size": sum(map(len, vocabulary.labels)) + vocabulary.x_size,
            "edge_attribute_size": edges,
            "weighted": vocabulary.weighted,
        }
        for name, value in expected.items():
            found = getattr(model.config, name)
            if found != value:
                raise ValueError(
                    f"its model has {name} {found}, its targets and vocabulary {value}"
                )

    def _outputs(self, graphs: Sequence[Any]) -> Tensor:
        """The network's outputs (B, C) for each graph."""
        collection = self._encode(graphs)
        device = next(self.model_.parameters()).device
        everything = torch.arange(len(collection))
        return predict(self.model_, collection, everything, int(self.batch_size), device)

    def _encode(self, graphs: Sequence[Any]) -> Collection:
        self._check_fitted()
        return self.vocabulary_.encode(as_graphs(graphs, symmetrise=self.symmetrise))

    def _batches(self, collection: Collection) -> Iterator[GraphBatch]:
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

    def _model_config(self, train: Examples) -> ModelConfig:
        largest = int(train.graphs.sizes[train.index].max())
        collection = train.graphs
        capacity = largest if self.capacity == "auto" else plain(self.capacity)
        if isinstance(capacity, int) and capacity < largest:
            warnings.warn(
                f"capacity is {capacity}, but the largest training graph has {largest} "
                "vertices: graphs larger than the capacity are not padded",
                stacklevel=4,
            )
        return ModelConfig(
            self.task_.outputs,
            **self._choices(),
            capacity=capacity,
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
