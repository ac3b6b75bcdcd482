"""What a user may choose of an estimator, with its defaults."""

from __future__ import annotations

from dataclasses import fields
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import torch
from sklearn.base import BaseEstimator

from softperm.estimators.preparation import plain
from softperm.nn.model import ModelConfig
from softperm.training.fit import TrainingConfig


class EstimatorSettings(BaseEstimator):
    """The settings of every estimator, as scikit-learn reads and copies them.

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
        head_norm: LayerNorm before the head, as in the paper. Without it the head sees how large a
            graph is, which helps where targets grow with it, as energies do.
        epochs: passes over the training graphs.
        batch_size: graphs in a mini-batch.
        learning_rate: of Adam.
        weight_decay: of Adam.
        validation_fraction: share of the training graphs held out to choose the best epoch;
            0 for none, which keeps the last epoch.
        criterion: the validation figure that chooses: ``loss``, ``score``, or ``late-score``, which
            takes the last of equally good epochs.
        patience: stop after so many epochs without a better one; None for never. Needs graphs
            that are held out.
        seed: of initial parameters, mini-batches and the held-out part: same seed, same numbers.
        device: ``auto`` (a GPU if there is one), or a torch device.
        symmetrise: accept directed graphs, reading every edge in both directions.
        checkpoint: file in which training is kept while it runs and from which it resumes.
        progress: show a progress bar while training; where there is no terminal, the logger
            ``softperm`` gets a message every ten seconds.
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
        head_norm: bool = True,
        epochs: int = 300,
        batch_size: int = 64,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.0,
        validation_fraction: float = 0.1,
        criterion: Literal["loss", "score", "late-score"] = "loss",
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
        self.head_norm = head_norm
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
        summary = (cls.__doc__ or "").partition("\n\n    Args:")[0].rstrip()
        cls.__doc__ = f"{summary}\n\n{(EstimatorSettings.__doc__ or '').partition(chr(10) * 2)[2]}"

    def _check_settings(self) -> None:
        """Raises ValueError for settings that no later check would name as well."""
        share = self.validation_fraction
        if not isinstance(share, Real) or not 0 <= share < 1:
            raise ValueError(f"validation_fraction must be at least 0 and below 1; got {share!r}")
        capacity = plain(self.capacity)
        if capacity not in ("auto", None) and not (type(capacity) is int and capacity > 0):
            raise ValueError(
                f"capacity must be 'auto', a whole number of at least 1, or None; got {capacity!r}"
            )
        ModelConfig(1, **self._choices())
        self._training_config()

    def _choices(self) -> dict[str, Any]:
        """The settings that are also the model's."""
        names = ("latent_vertices", "hidden", "encoder", "layers", "dustbin", "scaling")
        names += ("normaliser", "iterations", "head", "head_norm")
        return {name: plain(getattr(self, name)) for name in names}

    def _training_config(self) -> TrainingConfig:
        """The settings that are the training's."""
        names = [f.name for f in fields(TrainingConfig) if hasattr(self, f.name)]
        return TrainingConfig(**{name: plain(getattr(self, name)) for name in names})
