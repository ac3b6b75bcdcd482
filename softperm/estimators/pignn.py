"""π-GNN behind scikit-learn's interface: the shared estimator, the classifier and the regressor."""

from __future__ import annotations

import inspect
import math
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin
from sklearn.exceptions import NotFittedError, UndefinedMetricWarning
from torch import Tensor, nn

from softperm.data.collection import Collection, GraphBatch
from softperm.data.datasets.splits import Split
from softperm.data.features import ColourVocabulary, StructuralFeatures, VertexFeatures
from softperm.data.graphs import read_list
from softperm.data.vocabulary import Vocabulary
from softperm.errors import GraphError, counted, one_line
from softperm.nn.attribution import TOLERANCE, Explainer, Explanation, mean_explanation
from softperm.nn.encoders import VertexStatistics
from softperm.nn.model import ModelConfig, PiGNN, build, evaluating, rebuild
from softperm.nn.model_folder import FolderError, read_folder, write_folder
from softperm.nn.permutation import Sharpness
from softperm.parallel import batches
from softperm.progress import progress_bars
from softperm.pyg import Data
from softperm.settings import (
    RECOMMENDED,
    SOURCES,
    FieldNames,
    ForestConfig,
    TrainingConfig,
    check_settings,
    choose,
    parameters,
    training_config,
)
from softperm.training.data import Examples, TrainingData, divide
from softperm.training.devices import Fabric, OneDevice, find_device
from softperm.training.forest import GraphForest, mean_with_network
from softperm.training.loop import Epoch, FitResult, TrainingInterrupted, fit
from softperm.training.stack import Stack
from softperm.training.tasks import (
    Classification,
    LinearFit,
    MultiLabel,
    Regression,
    Task,
    check_classes,
    class_array,
    class_factors,
    encode_answers,
    encode_classes,
    encode_numbers,
    find_classes,
    mean_prediction,
    target_array,
    weight_array,
)

SHARPNESS_GRAPHS = 256  # training graphs whose permutations are measured
BATCH_VERTICES = (1 << 15, 1 << 17)  # of a batch that is not trained on, on a CPU and on a GPU
FOREST_GRAPHS = 4096  # whose aligned vectors are in memory together
ITERATED_GRAPHS = 512  # that iter_predict and iter_transform hold at once
NOT_FINITE = (
    "is not a finite number: its attributes or weights are too large for this model; scale them as "
    "those of the training graphs are, or leave the graph out"
)
FAR_GRAPHS, FAR_VERTICES = 256, 128  # training graphs, and vertices of each, that are compared
FAR_SHARE = 0.1  # of their pairs that may be farther apart than distance_range without a warning
UNIFORM_ENTROPY = 0.99  # row entropy above which permutations count as uniform

Graphs = Sequence[Any] | np.ndarray
"""Graphs of users: a list, or an array of objects (see softperm.data.graphs.graph_array)."""
Fitted = TypeVar("Fitted", bound="PiGNNEstimator")


class UniformPermutationsWarning(UserWarning):
    """A network assigns every vertex to all latent vertices alike."""


class PiGNNEstimator(TransformerMixin, BaseEstimator):
    """A π-GNN behind scikit-learn's interface; subclasses define the meaning of ``y``."""

    model_: PiGNN  # the first of the networks
    models_: tuple[PiGNN, ...]
    vocabulary_: Vocabulary
    features_: VertexFeatures
    task_: Task
    target_names_: tuple[str, ...]
    molecules_: str | None
    curve_: tuple[Epoch, ...]
    sharpness_: Sharpness | None  # None of a folder that was written without it
    linear_fit_: LinearFit | None = None  # subtracted from targets before training
    forest_: GraphForest | None  # None if the head has no forest, or training was interrupted

    sources: ClassVar[tuple[type, ...]] = SOURCES  # the dataclasses that declare its settings
    changed: ClassVar[Mapping[str, Any]] = RECOMMENDED  # defaults other than theirs

    def __init__(self, **settings: Any) -> None:
        given = inspect.signature(type(self).__init__).bind(self, **settings)
        given.apply_defaults()
        for name, value in given.arguments.items():
            if name != "self":
                setattr(self, name, value)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:  # the parameters, which settings declare
            ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Gives each subclass its settings: as the signature of __init__, and in its docstring."""
        super().__init_subclass__(**keywords)
        settings = _describe_settings(cls.sources, cls.changed)
        cls.__doc__ = f"{inspect.cleandoc(cls.__doc__ or '')}\n\n{settings}"
        if "__init__" not in vars(cls):

            def initialise(self: PiGNNEstimator, **settings: Any) -> None:
                PiGNNEstimator.__init__(self, **settings)

            initialise.__signature__ = signature_of(cls.sources, cls.changed)  # type: ignore[attr-defined]
            cls.__init__ = initialise

    def fit(
        self: Fitted,
        graphs: Graphs,
        y: Any,
        validation: tuple[Graphs, Any] | None = None,
        sample_weight: Any = None,
        callbacks: Sequence[Callable[[Epoch], object]] = (),
    ) -> Fitted:
        """Learns soft permutations and predictions from graphs and their targets.

        Args:
            graphs: all of one kind: networkx graphs, PyG ``Data``, (edges, number of vertices)
                pairs, adjacency matrices, or SMILES.
            y: a target for each graph.
            validation: other graphs and targets that select the best epoch, in place of
                ``validation_fraction``.
            sample_weight: a weight for each graph in the training and validation loss; a graph of
                weight 2 counts as two. Validation graphs of their own have weight 1.
            callbacks: functions that are called with each finished epoch; after resuming from a
                checkpoint, with its epochs first. In an ensemble they receive the figures of the
                first network.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed. With ``checkpoint`` the checkpoint is written
                first, the estimator holds the best epoch so far, and the next fit resumes.
        """
        self._forget()
        settings = self._settings()
        device = find_device(self.device)
        graphs, columns = read_list(graphs, self.symmetrise, self.field_names)
        targets = self._read_targets(y, len(graphs))
        weight = weight_array(sample_weight, len(graphs))
        vocabulary = Vocabulary.learn(graphs, columns)
        if validation is None:
            fraction, seed = settings["validation_fraction"], settings["seed"]
            split = divide(targets, getattr(self, "classes_", None), 0.0, fraction, seed)
        else:
            more, more_targets = self._read_validation(validation, vocabulary)
            parts = [torch.arange(len(graphs)), torch.arange(len(more)) + len(graphs)]
            split = Split(parts[0], parts[1], torch.arange(0))
            graphs, targets = [*graphs, *more], torch.cat([targets, more_targets])
            if weight is not None:
                weight = torch.cat([weight, weight.new_ones(len(more))])
        task = self._make_task(
            targets[split.train], None if weight is None else weight[split.train]
        )
        data = TrainingData(
            vocabulary.encode(graphs), targets, task, split, vocabulary, weight=weight
        )
        return self._train(data, device, callbacks)

    def _read_validation(
        self, validation: Any, vocabulary: Vocabulary
    ) -> tuple[list[Data], Tensor]:
        if not isinstance(validation, (tuple, list)) or len(validation) != 2:
            raise ValueError("validation must be a pair: graphs, and a target for each of them")
        graphs, y = validation
        try:
            graphs, _ = read_list(graphs, self.symmetrise, self.field_names, again=True)
            vocabulary.check(graphs)
            return graphs, self._encode_targets(y, len(graphs))
        except GraphError as error:
            raise GraphError(error.index, error.problem, f"validation: {error.name}") from None
        except ValueError as error:
            raise ValueError(f"validation: {error}") from None

    def fit_data(
        self: Fitted,
        data: TrainingData,
        device: torch.device | Fabric | OneDevice,
        callbacks: Sequence[Callable[[Epoch], object]] = (),
    ) -> Fitted:
        """Learns from graphs that are encoded and divided already, as ``softperm train`` does.

        Args:
            data: graphs, targets, task and split; in several processes, the same in each.
            device: a device, or the processes and devices that train together.
            callbacks: called with each finished epoch, in the first process.
        """
        self._forget()
        self._settings()
        self._take_targets(data)
        return self._train(data, device, callbacks)

    def _train(
        self: Fitted,
        data: TrainingData,
        device: torch.device | Fabric | OneDevice,
        callbacks: Sequence[Callable[[Epoch], object]] = (),
    ) -> Fitted:
        values = self._settings()
        values["class_weight"] = self._class_weight(values["class_weight"])
        self.task_, self.vocabulary_ = data.task, data.vocabulary
        self.target_names_, self.molecules_ = data.target_names, data.molecules
        self.linear_fit_ = None
        if values["linear_fit"]:
            data = self._subtract_fit(data)
            self.task_ = data.task
        chosen = StructuralFeatures(**choose(StructuralFeatures, values))
        self.features_ = VertexFeatures.learn(data.graphs, data.split.train, chosen)
        if chosen != StructuralFeatures():
            data = replace(data, graphs=self.features_.extend(data.graphs), content=None)
        config = self.model_config(data)
        settings = training_config(values, len(data.split.train))
        train = data.examples(data.split.train, config.embeds_labels)
        seeds = _network_seeds(settings.seed, values.get("ensemble", 1))
        models = self._build(config, train, seeds)
        files: dict[str, Any] = {}
        if self.checkpoint is not None:
            fingerprint = data.fingerprint(config, settings)
            names = fingerprint if len(models) == 1 else f"{fingerprint} x {len(models)}"
            files = {"checkpoint": Path(self.checkpoint), "fingerprint": names}
        interruption = None
        with progress_bars(self.progress) as report:
            try:
                files["callbacks"] = callbacks
                result = _fit(models, data, train, settings, device, report, **files)
            except TrainingInterrupted as raised:
                interruption, result = raised, raised.results[0]
        if result.interrupted and self.checkpoint is None:  # by max_time
            warnings.warn(
                f"training stopped after {len(result.curve)} of {settings.epochs} epochs; the best "
                "epoch so far is kept. With checkpoint= it could be resumed.",
                stacklevel=3,
            )
        self.model_, self.models_ = models[0], tuple(models)
        self.curve_, self.best_epoch_ = result.curve, result.best_epoch
        self.interrupted_ = result.interrupted
        self.sharpness_ = self._measure(train)
        self.forest_ = None
        if interruption is not None:
            raise interruption
        if "forest" in values.get("head", ""):
            self.forest_ = self._grow_forest(train, settings)
            if len(data.split.validation) and values["weigh_forests"]:
                self._weigh_network(train, data.split.validation)
        return self

    def _subtract_fit(self, data: TrainingData) -> TrainingData:
        """The training data without what a linear fit explains."""
        if not isinstance(data.task, Regression):
            raise ValueError("linear_fit is for regressions: leave it out for classification")
        train, weight = data.split.train, data.weight
        self.linear_fit_ = LinearFit.of(data.graphs, train, data.y, weight)
        y = data.y.double() - self.linear_fit_(data.graphs)
        task = Regression.of(y[train], None if weight is None else weight[train])
        # Outputs hold the fit in units of std, so a target that it explains needs one too.
        largest = np.nanmax(data.y[train].abs().numpy(), axis=0, initial=1e-290)
        task = replace(task, std=tuple(np.maximum(task.std, 1e-16 * largest).tolist()))
        return replace(data, y=y, task=task)

    def _build(self, config: ModelConfig, train: Examples, seeds: Sequence[int]) -> list[PiGNN]:
        """A network for each seed, not trained yet."""
        statistics = VertexStatistics.of(train.graphs, train.index)
        return [build(config, seed, statistics) for seed in seeds]

    def _measure(self, train: Examples) -> Sharpness | None:
        """The sharpness of the permutations of training graphs; None without permutations."""
        sharpness = measure_sharpness(self.model_, train.graphs, train.index)
        if sharpness.row_entropy > UNIFORM_ENTROPY:
            warnings.warn(
                "the soft permutations are nearly uniform (row entropy "
                f"{sharpness.row_entropy:.3f} of 1), so aligned matrices say little more than how "
                "many edges a graph has: more features or labels of vertices, or more epochs, may "
                "tell vertices apart",
                UniformPermutationsWarning,
                stacklevel=4,
            )
        return sharpness

    def _grow_forest(self, train: Examples, settings: TrainingConfig) -> GraphForest:
        """The random forests of the training graphs."""
        forest = ForestConfig(**choose(ForestConfig, self._settings()))
        factors = None
        if settings.class_weight is not None:
            own = None if train.weight is None else train.weight[train.index]
            factors = class_factors(settings.class_weight, self.task_, train.y[train.index], own)
        with progress_bars(self.progress) as report:
            report("growing random forests", 0, 1, counted(forest.trees, "tree"))
            return GraphForest.fit(
                train.graphs,
                train.index,
                train.y,
                self.task_,
                self._align if forest.forest_vectors else None,
                trees=forest.trees,
                rounds=forest.forest_colours,
                seed=settings.seed,
                weight=train.weight,
                factors=factors,
                weigh=forest.weigh_forests,
            )

    @torch.no_grad()
    def _weigh_network(self, train: Examples, held: Int[Tensor, " v"]) -> None:
        """Sets the network's share in the mean with the forests by graphs of neither."""
        assert self.forest_ is not None
        both = (
            self._network_outputs(train.graphs, held),
            self.forest_.outputs(train.graphs, held, self.task_, self._align),
        )
        weight = None if train.weight is None else train.weight[held]
        self.forest_ = self.forest_.with_evidence(self.task_, both, train.y[held], weight)

    def _align(self, graphs: Collection, index: Int[Tensor, " b"]) -> Float[np.ndarray, "b Z"]:
        """The aligned vectors of the chosen graphs of an encoded collection."""
        with torch.no_grad(), evaluating(self.model_):
            rows = [self.model_.transform(batch).cpu() for batch in self._batches(graphs, index)]
        return torch.cat(rows).numpy()

    def transform(self, graphs: Graphs | Collection) -> np.ndarray:
        """The aligned vector of each graph: vec(DᵀAD), then vec(DᵀX) and edge attributes if any.

        Distances come last.

        Returns:
            (B, P · P + P · F + P · P · d_e + P · P · distance_channels).
        """
        vectors = self.vectors_of(self._encode(graphs))
        _check_finite(vectors, "vector")
        return vectors

    def vectors_of(self, graphs: Collection) -> Float[np.ndarray, "b F"]:
        """The aligned vectors of an encoded collection; see :meth:`transform`."""
        return self._align(graphs, torch.arange(len(graphs)))

    def iter_transform(self, graphs: Iterable[Any]) -> Iterator[np.ndarray]:
        """The aligned vector of each graph, one after the other, in constant memory.

        Args:
            graphs: any iterable of graphs of one kind, such as a generator.
        """
        return self._iterate(self.transform, graphs)

    def iter_predict(self, graphs: Iterable[Any]) -> Iterator[Any]:
        """The prediction for each graph, one after the other, in constant memory.

        Args:
            graphs: any iterable of graphs of one kind, such as a generator.
        """
        return self._iterate(self.predict, graphs)

    def _iterate(
        self, function: Callable[[Sequence[Any]], np.ndarray], graphs: Iterable[Any]
    ) -> Iterator[Any]:
        """The results of a function for some graphs at a time; errors count all graphs."""
        self._check_fitted()
        first = 0
        for some in batches(graphs, ITERATED_GRAPHS):
            try:
                yield from function(some)
            except GraphError as error:
                raise GraphError(first + error.index, error.problem) from None
            first += len(some)

    def permutations(self, graphs: Graphs) -> list[np.ndarray]:
        """The soft permutation (N, P) of each graph, rows in the graph's own vertex order.

        With ``permutation_heads`` of K > 1, they are K side by side, (K, N, P).
        """
        collection = self._encode(graphs)
        with torch.no_grad():
            parts = [self.model_.permutations(b) for b in self._batches(collection)]
        return [d.cpu().numpy() for part in parts for d in part]

    def explain(
        self,
        graphs: Graphs | Collection,
        *,
        through_network: bool = True,
        reference: Graphs | None = None,
        probabilities: bool = False,
        tolerance: float = TOLERANCE,
    ) -> list[Explanation]:
        """The contributions of vertices, edges and attributes to each output of each graph.

        Outputs are the logits of classes, centred so that they sum to 0; of binary targets; or
        predicted numbers in the units of the targets. Contributions of a graph sum to the
        difference of its outputs from those of the same graph with features of zero, which keeps
        its edges but whose vertices are indistinguishable. Vertices receive all contributions;
        ``edge_totals`` shares them out among the edges.

        An ensemble is explained by the means of its networks' contributions. They sum to its
        prediction for numbers and for probabilities; the mean of logits is not the logit of the
        mean probability. If a network and a forest predict together, the network's
        part is explained. ``explains`` of an explanation says what its outputs are.

        Args:
            graphs: as for ``predict``.
            through_network: whether the soft permutation moves with the features of vertices. If
                it is held fixed, edges and their attributes receive contributions of their own, the
                baseline is the empty graph, and explanations are about ten times faster. See
                :class:`softperm.nn.attribution.Explainer`.
            reference: graphs whose mean aligned matrices are the baseline in place of the empty
                graph; only with ``through_network=False``.
            probabilities: explain probabilities of classes or binary targets in place of logits.
            tolerance: largest error of the sums, relative to the largest difference.
        """
        return list(
            self.iterate_explanations(
                graphs,
                through_network=through_network,
                reference=reference,
                probabilities=probabilities,
                tolerance=tolerance,
            )
        )

    def iterate_explanations(
        self,
        graphs: Graphs | Collection,
        *,
        index: Sequence[int] | None = None,
        through_network: bool = True,
        reference: Graphs | None = None,
        probabilities: bool = False,
        tolerance: float = TOLERANCE,
    ) -> Iterator[Explanation]:
        """The results of :meth:`explain` one after the other, for the graphs at ``index``."""
        if self.head == "forest" and self.forest_ is not None:
            raise ValueError(
                "the head forest predicts by trees alone, which have no contributions: fit with "
                "the head mlp or mlp+forest"
            )
        collection = self._encode(graphs)
        others = None if reference is None else self._encode(reference)
        decode = partial(self._explained, probabilities=probabilities)
        explainers = [
            Explainer(
                model,
                decode,
                through_network,
                None if others is None else _mean_aligned(model, others),
                tolerance,
                sum_is_constant=isinstance(self.task_, Classification),
            )
            for model in self.models_
        ]
        names = self._explanation_names()
        words = self._explains(probabilities)
        for i in range(len(collection)) if index is None else index:
            batch = collection.batch(torch.tensor([i]))
            explanations = [explainer(batch) for explainer in explainers]
            yield replace(mean_explanation(explanations), **names, explains=words)

    def _explains(self, probabilities: bool = False) -> str:
        """A description of the outputs that :meth:`explain` explains."""
        words = self._explained_words(probabilities)
        if getattr(self, "forest_", None) is not None:
            words += "; the network's part of the prediction, without the forest's"
        if self.linear_fit_ is not None:
            words += "; without the linear fit"
        return words

    def _explained(self, outputs: Float[Tensor, "B C"], probabilities: bool) -> Tensor:
        """The outputs (B, C) of a network in the form in which they are explained."""
        raise NotImplementedError

    def _explained_words(self, probabilities: bool) -> str:
        """What an explanation explains."""
        raise NotImplementedError

    def _output_names(self) -> Sequence[object]:
        """A name for each output."""
        return self.target_names_

    def _explanation_names(self) -> dict[str, tuple[str, ...]]:
        """The user's names for the outputs and attributes of an explanation."""
        config, vocabulary = self.model_.config, self.vocabulary_
        assert config is not None, "an estimator's network is built from a configuration"
        outputs = self._output_names()
        if len(outputs) != config.outputs:
            outputs = range(config.outputs)
        vertex, edge = self._vertex_channels(config), []
        if config.label_sizes:  # the vectors of a label have one contribution
            columns = [("label", c) for c in range(len(config.label_sizes))]
            vertex = columns + vertex[config.embedding_size :]
        if config.edge_label_sizes:
            edge = [("edge_label", c) for c in range(len(config.edge_label_sizes))]
        one_hot = not config.edge_label_sizes
        edge += _channels("edge_", vocabulary, config.edge_attribute_size, False, one_hot)
        if config.encodes != "none":
            vertex.append(("encoded", "vertex"))
        return {
            "output_names": tuple(map(str, outputs)),
            "attribute_names": tuple(f"{kind} {name}" for kind, name in vertex),
            "edge_attribute_names": tuple(f"{kind} {name}" for kind, name in edge),
            "structure_names": self.features_.settings.names,
        }

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns of :meth:`transform`, with labels as the training graphs have them.

        ``adjacency_1_3`` is an entry of DᵀAD, ``adjacency2_1_3`` of DᵀA²D, ``label_2_C`` the amount
        of label C at latent vertex 2, ``colour1_2_7`` that of code 7 of the colours after one
        round, ``attribute_2_0`` that of the first attribute, ``encoded_2_0`` that of the first unit
        of φ, and ``edge_label_1_3_C`` and ``edge_attribute_1_3_0`` are entries of DᵀA_cD,
        ``distance_1_3_0`` of the first mixture of distances. With
        several permutations the names of the second one begin with ``permutation1_``. Labels and
        attributes that were chosen by name keep it: ``element_2_C``, ``attribute_2_charge``.
        """
        self._check_fitted()
        config, vocabulary = self.model_.config, self.vocabulary_
        assert config is not None, "an estimator's network is built from a configuration"
        latent = range(config.latent_vertices)
        if config.encodes == "none":
            vertex = self._vertex_channels(config)
        else:
            vertex = [("encoded", unit) for unit in range(config.encoded_size)]
        edge = _channels("edge_", vocabulary, config.edge_width, bool(config.edge_label_sizes))
        powers = ["adjacency", *(f"adjacency{k}" for k in range(2, config.powers + 1))]
        names = [f"{power}_{i}_{j}" for power in powers for i in latent for j in latent]
        names += [f"{kind}_{i}_{c}" for i in latent for kind, c in vertex]
        names += [f"{kind}_{i}_{j}_{c}" for i in latent for j in latent for kind, c in edge]
        mixtures = range(config.distance_width)
        names += [f"distance_{i}_{j}_{c}" for i in latent for j in latent for c in mixtures]
        for k in range(1, config.permutation_heads):
            names += [f"permutation{k}_{name}" for name in names[: len(names) // k]]
        return np.asarray(names, dtype=object)

    def _vertex_channels(self, config: ModelConfig) -> list[tuple[str, object]]:
        """The meaning of each input of a vertex: labels, codes of colours, attributes."""
        labels, colours = self.vocabulary_.labels, self.features_.colours
        embedded = bool(config.label_sizes)
        if colours is None or embedded:
            return _channels("", self.vocabulary_, config.vertex_width, embedded)
        codes = [
            (f"colour{k}", code)
            for k, size in zip(colours.rounds, colours.sizes, strict=True)
            for code in range(size)
        ]
        names = _channels("", self.vocabulary_, config.vertex_width - len(codes), embedded)
        count = sum(map(len, labels))
        return names[:count] + codes + names[count:]

    def save(self, folder: str | Path) -> None:
        """Writes ``config.json`` and ``model.safetensors``, the Hugging Face Hub's layout."""
        self._check_fitted()
        config = {
            "kind": type(self).__name__,
            "params": self._saved_params(),
            "model": self._network_config(),
            "vocabulary": self.vocabulary_.to_config(),
            "colours": self.features_.colours and self.features_.colours.to_config(),
            "molecules": self.molecules_,
            "target_names": list(self.target_names_),
            "targets": self._targets_config(),
            "best_epoch": self.best_epoch_,
            "sharpness": self.sharpness_ and asdict(self.sharpness_),
            "forest": self.forest_ and self.forest_.config(),
        }
        write_folder(folder, config, self._tensors())

    def _network_config(self) -> dict[str, Any]:
        """The configuration of the networks, as JSON values."""
        assert self.model_.config is not None, "the network is built from a configuration"
        return asdict(self.model_.config)

    def _tensors(self) -> dict[str, Tensor]:
        """The parameters of the networks, and the arrays of the forest."""
        tensors = dict(self.model_.state_dict())
        for k, other in enumerate(self.models_[1:], start=1):
            tensors |= {f"{_MEMBER}{k}.{name}": t for name, t in other.state_dict().items()}
        if self.forest_ is not None:
            arrays = self.forest_.trees.tensors()
            tensors |= {f"{_FOREST}{name}": array for name, array in arrays.items()}
        return tensors

    @classmethod
    def load(
        cls: type[Fitted], folder: str | Path, device: str | torch.device | None = None
    ) -> Fitted:
        """Reads a model folder; never runs code from it.

        Args:
            folder: written by :meth:`save` or ``softperm train``, or ``hf://owner/name`` on the
                Hugging Face Hub.
            device: where to put the model; by default the device it was trained with.
        """
        config, tensors = read_folder(folder, kind=cls.__name__)
        return cls._from_folder(config, tensors, folder, device)

    @classmethod
    def _from_folder(
        cls: type[Fitted],
        config: dict[str, Any],
        tensors: dict[str, Tensor],
        folder: str | Path,
        device: str | torch.device | None,
    ) -> Fitted:
        try:
            estimator = cls._restore(config)
            estimator._load_networks(config, tensors, str(folder))
        except FolderError:
            raise
        except KeyError as problem:
            raise FolderError(f"{folder}: its configuration lacks {problem}") from None
        except (TypeError, ValueError, AttributeError) as problem:
            detail = one_line(problem)
            raise FolderError(f"{folder}: its configuration is damaged: {detail}") from None
        estimator.device = device or estimator.device
        estimator._place(find_device(estimator.device))
        estimator.curve_, estimator.interrupted_ = (), False
        return estimator

    def _load_networks(
        self, config: dict[str, Any], tensors: Mapping[str, Tensor], folder: str
    ) -> None:
        """Takes the networks and the forest from the content of a folder.

        Raises:
            ValueError: they do not fit each other or the targets.
        """
        arrays = {n.removeprefix(_FOREST): t for n, t in tensors.items() if n.startswith(_FOREST)}
        members = _split_tensors({n: t for n, t in tensors.items() if not n.startswith(_FOREST)})
        self.models_ = tuple(rebuild(config.get("model"), each, folder) for each in members)
        self._check_fits(self.models_)
        forest = config.get("forest")
        self.forest_ = None if forest is None else GraphForest.from_config(forest, arrays)
        if forest is not None and forest["outputs"] > self.task_.outputs:
            raise ValueError(f"its forest has {forest['outputs']} outputs")

    def _place(self, device: torch.device) -> None:
        """Moves the networks to a device."""
        self.models_ = tuple(each.to(device) for each in self.models_)
        self.model_ = self.models_[0]

    @classmethod
    def _restore(cls: type[Fitted], config: dict[str, Any]) -> Fitted:
        """An estimator with everything in a configuration except the network."""
        known = {"kind", "params", "model", "vocabulary", "colours", "molecules", "target_names"}
        if unknown := set(config) - known - {"targets", "best_epoch", "sharpness", "forest"}:
            raise ValueError(f"unknown keys: {', '.join(sorted(unknown))}")
        params = config["params"]
        lists: dict[str, Any] = {
            name: tuple(value) for name, value in params.items() if isinstance(value, list)
        }
        if "class_weight" in lists:
            lists["class_weight"] = dict(lists["class_weight"])
        estimator = cls(**{**params, **lists})
        values = estimator._settings()
        estimator.vocabulary_ = Vocabulary.from_config(config["vocabulary"])
        colours = config.get("colours")
        estimator.features_ = VertexFeatures(
            StructuralFeatures(**choose(StructuralFeatures, values)),
            None if colours is None else ColourVocabulary.from_config(colours),
        )
        estimator.molecules_ = config.get("molecules")
        estimator.target_names_ = tuple(map(str, config.get("target_names", ())))
        estimator._set_targets(config["targets"])
        estimator.best_epoch_ = int(config["best_epoch"])
        measured = config.get("sharpness")
        estimator.sharpness_ = None if measured is None else Sharpness(**measured)
        return estimator

    def _check_fits(self, models: Sequence[PiGNN]) -> None:
        """Raises ValueError unless settings, targets and vocabulary fit the networks."""
        model = models[0]
        if len(models) != self.ensemble:
            raise ValueError(
                f"ensemble is {self.ensemble}, but the file holds {counted(len(models), 'network')}"
            )
        config, vocabulary = model.config, self.vocabulary_
        assert config is not None
        labels = [sum(map(len, columns)) for columns in (vocabulary.labels, vocabulary.edge_labels)]
        if self.features_.colours is not None:
            labels[0] += sum(self.features_.colours.sizes)
        sizes = (config.label_sizes, config.edge_label_sizes)
        one_hot = [0 if embedded else n for n, embedded in zip(labels, sizes, strict=True)]
        expected = {
            "outputs": self.task_.outputs,
            "structure_size": len(self.features_.settings.names),
            "attribute_size": one_hot[0] + vocabulary.x_size,
            "edge_attribute_size": one_hot[1] + vocabulary.edge_attr_size,
            "weighted": vocabulary.weighted,
        }
        for name, value in expected.items():
            found = getattr(config, name)
            if found != value:
                raise ValueError(
                    f"its model has {name} {found}, its targets and vocabulary {value}"
                )

    def _outputs(self, graphs: Graphs | Collection) -> Tensor:
        """The outputs (B, C) for each graph."""
        collection = self._encode(graphs)
        outputs = self.outputs_of(collection, torch.arange(len(collection)))
        _check_finite(outputs.numpy(), "prediction")
        return outputs

    @torch.no_grad()
    def outputs_of(self, graphs: Collection, index: Int[Tensor, " b"]) -> Float[Tensor, "b C"]:
        """The outputs for some graphs of an encoded collection, on the CPU.

        The outputs of an ensemble give the mean of its networks' predictions; with the head
        ``mlp+forest``, the mean of the predictions of networks and forests. A linear fit is added.
        """
        outputs, fit = self._fitted_outputs(graphs, index), self.linear_fit_
        if fit is None:
            return outputs
        assert isinstance(self.task_, Regression)
        std = torch.tensor(self.task_.std, dtype=torch.float64)
        return outputs.double() + fit(graphs.select(index)) / std

    def _fitted_outputs(self, graphs: Collection, index: Int[Tensor, " b"]) -> Float[Tensor, "b C"]:
        """The outputs of networks and forests."""
        forest = self.forest_
        if forest is None:
            return self._network_outputs(graphs, index)
        if self.head == "forest":
            return forest.outputs(graphs, index, self.task_, self._align)
        outputs = []
        for part in index.split(FOREST_GRAPHS):
            align, first = None, None
            if forest.aligned:  # one alignment serves the first network and the forest
                vectors, first = self._align_and_predict(graphs, part)
                align = lambda graphs, part, rows=vectors: rows  # noqa: E731
            network = self._network_outputs(graphs, part, first)
            trees = forest.outputs(graphs, part, self.task_, align)
            outputs.append(mean_with_network(self.task_, network, trees, forest.network_share))
        return torch.cat(outputs) if outputs else torch.empty(0, self.task_.outputs)

    def _align_and_predict(
        self, graphs: Collection, index: Int[Tensor, " b"]
    ) -> tuple[Float[np.ndarray, "b Z"], Float[Tensor, "b C"]]:
        """The aligned vectors and the outputs of the first network."""
        with evaluating(self.model_):
            pairs = [
                [each.float().cpu() for each in self.model_.transform_and_predict(batch)]
                for batch in self._batches(graphs, index)
            ]
        vectors, outputs = map(torch.cat, zip(*pairs, strict=True))
        return vectors.numpy(), outputs

    def _network_outputs(
        self,
        graphs: Collection,
        index: Int[Tensor, " b"],
        first: Float[Tensor, "b C"] | None = None,
    ) -> Float[Tensor, "b C"]:
        """The outputs of the networks alone, given those of the first one if they are known."""
        outputs = [] if first is None else [first]
        for model in self.models_[len(outputs) :]:
            with evaluating(model):
                parts = [model(batch).float() for batch in self._batches(graphs, index)]
            outputs.append(torch.cat(parts).cpu())
        return (
            outputs[0] if len(outputs) == 1 else mean_prediction(self.task_, torch.stack(outputs))
        )

    def _encode(self, graphs: Graphs | Collection) -> Collection:
        """Graphs as the network reads them; a collection is encoded by the vocabulary already.

        The collection has degree and triangles as its structure; the model's own features and
        colours are added here.
        """
        collection = self.collect(graphs)
        config = self.model_.config
        codes = config is not None and config.embeds_labels
        return replace(self.features_.extend(collection), codes=codes)

    def collect(self, graphs: Graphs | Collection) -> Collection:
        """Graphs encoded by the vocabulary of the training graphs, without the model's features."""
        self._check_fitted()
        if isinstance(graphs, Collection):
            return graphs
        if self.molecules_ is not None and not self.field_names.positions:
            from softperm.training.sources import encode_smiles

            collection, problems = encode_smiles(self.molecules_, list(graphs), self.vocabulary_)
            if problems or collection is None:
                raise GraphError(*next(iter(problems.items()), (0, "expected a list of SMILES")))
            return collection
        graphs, _ = read_list(graphs, self.symmetrise, self.field_names, again=True)
        return self.vocabulary_.encode(graphs)

    @property
    def field_names(self) -> FieldNames:
        """Names of the attributes of vertices and edges that are read."""
        return FieldNames.of(self._plain_params())

    def _batches(
        self, collection: Collection, index: Int[Tensor, " b"] | None = None
    ) -> Iterator[GraphBatch]:
        """Batches of about equal numbers of vertices, on the device of the network."""
        device = next(self.model_.parameters()).device
        index = torch.arange(len(collection)) if index is None else index
        for part in collection.split(index, BATCH_VERTICES[device.type == "cuda"]):
            yield collection.batch(part).to(device)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def _check_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit first")

    def _forget(self) -> None:
        """Drops the results of an earlier fit, so that a fit that fails leaves none of them."""
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)

    def _settings(self) -> dict[str, Any]:
        """The settings as plain Python values, checked."""
        values = self._plain_params()
        check_settings(values)
        return values

    def _plain_params(self) -> dict[str, Any]:
        return {name: plain(value) for name, value in self.get_params(deep=False).items()}

    def _saved_params(self) -> dict[str, Any]:
        """The settings as JSON values; a dict of weights as pairs, as JSON's keys are strings."""
        params = {**self._plain_params(), "checkpoint": None}
        if isinstance(params["class_weight"], dict):
            params["class_weight"] = [*params["class_weight"].items()]
        return params

    def _class_weight(self, class_weight: Any) -> Any:
        """The weights of classes, by code instead of by class."""
        return class_weight

    def model_config(self, data: TrainingData) -> ModelConfig:
        """The configuration of the network for some training data."""
        values = self._settings()
        graphs, capacity = data.graphs, values["capacity"]
        largest = int(graphs.sizes[data.split.train].max())
        if isinstance(capacity, int) and capacity < largest:
            warnings.warn(
                f"capacity is {capacity}, but the largest training graph has {largest} "
                "vertices: graphs larger than the capacity are not padded",
                stacklevel=4,
            )
        if values["distance_bins"] and "pos" in graphs.extra:
            _warn_far_pairs(graphs, data.split.train, values["distance_range"])
        codes = values["categories"] == "embedding"
        graphs = replace(graphs, codes=codes)
        return ModelConfig(
            data.task.outputs,
            **choose(ModelConfig, values),
            capacity=max(largest, 1) if capacity == "auto" else capacity,
            structure_size=graphs.structure.shape[1],
            attribute_size=graphs.attribute_size,
            edge_attribute_size=graphs.edge_attribute_size,
            label_sizes=graphs.label_sizes if codes else (),
            edge_label_sizes=graphs.edge_label_sizes if codes else (),
            weighted=graphs.edge_weight is not None,
        )

    def predict(self, graphs: Sequence[Any]) -> np.ndarray:
        """The prediction for each graph."""
        raise NotImplementedError

    def decode(self, outputs: Tensor) -> np.ndarray:
        """The predictions that follow from the network's outputs (B, C)."""
        raise NotImplementedError

    def _read_targets(self, y: Any, count: int) -> Tensor:
        """Learns the classes or the shape of the targets, and encodes them."""
        raise NotImplementedError

    def _encode_targets(self, y: Any, count: int) -> Tensor:
        """Encodes further targets of the same kind."""
        raise NotImplementedError

    def _make_task(self, y: Tensor, weight: Tensor | None = None) -> Task:
        """The task of the training targets."""
        raise NotImplementedError

    def _take_targets(self, data: TrainingData) -> None:
        """Takes the classes or the shape of the targets from training data."""
        raise NotImplementedError

    def _targets_config(self) -> dict[str, Any]:
        """Targets and task as JSON values, for :meth:`_set_targets`."""
        raise NotImplementedError

    def _set_targets(self, config: dict[str, Any]) -> None:
        """Restores the targets and the task of a saved estimator."""
        raise NotImplementedError


def _warn_far_pairs(graphs: Collection, train: Int[Tensor, " t"], furthest: float) -> None:
    """Warns if many pairs of vertices of training graphs are farther apart than the last bin."""
    chosen = graphs.select(train[:: -(-len(train) // FAR_GRAPHS)])
    apart = []
    for first, last in pairwise(chosen.ptr.tolist()):
        some = chosen.extra["pos"][first : last : -(-max(last - first, 1) // FAR_VERTICES)]
        apart.append(torch.nn.functional.pdist(some.double()))
    distances = torch.cat(apart).numpy()
    share = float((distances > furthest).mean()) if len(distances) else 0.0
    if share > FAR_SHARE:
        warnings.warn(
            f"{share:.0%} of the pairs of vertices are farther apart than distance_range, "
            f"{furthest:g}, and distances far beyond it count as 0: set distance_range to the size "
            f"of the graphs (99% of the pairs are within {np.quantile(distances, 0.99):.3g})",
            stacklevel=5,
        )


_MEMBER = "ensemble."  # begins the names of tensors of all networks but the first
_FOREST = "forest."  # begins the names of the arrays of a random forest


def _network_seeds(seed: int, count: int) -> list[int]:
    """A seed for each network of an ensemble, of which the first has the seed itself."""
    return [(seed + 1_000_003 * k) % 2**63 for k in range(count)]


def _fit(
    models: Sequence[nn.Module],
    data: TrainingData,
    train: Examples,
    settings: TrainingConfig,
    device: torch.device | Fabric | OneDevice,
    report: Callable[..., None],
    callbacks: Sequence[Callable[[Epoch], object]],
    **files: Any,
) -> FitResult:
    """Trains one network, or an ensemble as one stack; returns the result of the first network."""
    held, count = data.split.validation, len(models)
    if count == 1:

        def on_epoch(epoch: Epoch) -> None:
            report("training", epoch.number, settings.epochs, describe_epoch(epoch, data.task))
            for callback in callbacks:
                callback(epoch)

        validation = replace(train, index=held) if len(held) else None
        return fit(
            models[0], data.task, train, settings, validation=validation, device=device,
            on_epoch=on_epoch, **files,
        )  # fmt: skip
    if not isinstance(device, torch.device):
        if not isinstance(device, OneDevice):
            raise ValueError("an ensemble is trained on one device in 32 bits: set ensemble to 1")
        device = device.device
    stack = Stack(
        models, [data.task] * count, train.graphs, train.y,
        [train.index] * count, [held] * count,
        _network_seeds(settings.seed, count), settings,
        weight=train.weight, device=device,
    )  # fmt: skip
    results = stack.fit(
        on_epoch=lambda number: report(
            "training", number, settings.epochs, counted(count, "network")
        ),
        callbacks=callbacks,
        **files,
    )
    if not all(math.isfinite(epoch.train_loss) for each in results for epoch in each.curve):
        raise FloatingPointError(
            "the training loss of a network is not finite: lower learning_rate (now "
            f"{settings.learning_rate}) or scale attributes and weights"
        )
    return results[0]


def _mean_aligned(model: PiGNN, graphs: Collection) -> list[Float[Tensor, "P ..."]]:
    """The means of the aligned matrices of some graphs."""
    explainer = Explainer(model)
    parts = [explainer.aligned(graphs.batch(i)) for i in torch.arange(len(graphs)).split(1)]
    return [torch.cat(matrices).mean(0) for matrices in zip(*parts, strict=True)]


def _check_finite(rows: Float[np.ndarray, "B C"], what: str) -> None:
    """Raises GraphError about the first graph whose row is not finite."""
    wrong = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if wrong.size:
        raise GraphError(int(wrong[0]), f"its {what} {NOT_FINITE}")


@torch.no_grad()
def measure_sharpness(model: PiGNN, graphs: Collection, train: Int[Tensor, " t"]) -> Sharpness:
    """The sharpness of the permutations of at most 256 training graphs, at even distances."""
    count = min(len(train), SHARPNESS_GRAPHS)
    sample = train[torch.linspace(0, len(train) - 1, count).long()]
    with evaluating(model):
        return model.sharpness(graphs.batch(sample).to(next(model.parameters()).device))


def _split_tensors(tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """The tensors of each network of a model folder."""
    members: dict[str, dict[str, Tensor]] = {"0": {}}
    for name, tensor in tensors.items():
        member = "0"
        if name.startswith(_MEMBER):
            member, _, name = name.removeprefix(_MEMBER).partition(".")
        members.setdefault(member, {})[name] = tensor
    return [members[key] for key in sorted(members, key=lambda key: (len(key), key))]


def load_estimator(
    folder: str | Path,
    device: str | torch.device | None = None,
    others: Sequence[type[PiGNNEstimator]] = (),
) -> PiGNNEstimator:
    """The estimator of a model folder; see :meth:`PiGNNEstimator.load`.

    Args:
        folder: the model folder.
        device: where to put the model.
        others: kinds of estimators besides those of this package.
    """
    import softperm.estimators as known

    config, tensors = read_folder(folder)
    name = str(config.get("kind"))
    kind = {each.__name__: each for each in others}.get(name)
    if name in known.__all__ and name != "PAPER":
        kind = getattr(known, name)  # loads the module of this one alone
    if kind is None:
        raise FolderError(f"{folder} holds a {name}, not a trained estimator of π-GNN")
    return kind._from_folder(config, tensors, folder, device)


def plain(value: Any) -> Any:
    """A setting as a JSON value: NumPy's numbers, devices and paths become Python's own."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple | list):
        return tuple(map(plain, value))
    if isinstance(value, Mapping):
        return {plain(key): plain(each) for key, each in value.items()}
    return str(value) if isinstance(value, torch.device | Path) else value


def describe_epoch(epoch: Epoch, task: Task) -> str:
    """Training loss, validation loss and validation score, short enough for a progress bar."""
    words = f"loss {epoch.train_loss:.4g}"
    if not math.isnan(epoch.validation_loss):
        words += f", validation {epoch.validation_loss:.4g}"
        words += f", {task.metric} {epoch.validation_score:.4g}"
    return words


def _channels(
    prefix: str, vocabulary: Vocabulary, width: int, embedded: bool, labelled: bool = True
) -> list[tuple[str, object]]:
    """The meaning of each of the ``width`` inputs of a vertex or an edge: a kind, and a name in it.

    The ``prefix`` is ``edge_`` for edges. The numbers are those of embedded labels, or they begin
    with one-hot labels if ``labelled``.
    """
    names: list[tuple[str, object]] = []
    labels = vocabulary.edge_labels if prefix else vocabulary.labels
    if not embedded and labelled:
        given = vocabulary.columns.get(f"{prefix}label", ())
        for c, column in enumerate(labels):
            usual = "label" if len(labels) == 1 else f"label{c}"
            names += [(f"{prefix}{given[c] if given else usual}", value) for value in column]
    kind = f"{prefix}embedding" if embedded else f"{prefix}attribute"
    given = () if embedded else vocabulary.columns.get("edge_attr" if prefix else "x", ())
    rest = range(width - len(names))
    return names + [(kind, given[k] if len(given) == len(rest) else k) for k in rest]


def _describe_settings(sources: Sequence[type], changed: Mapping[str, Any]) -> str:
    """The ``Args`` section of an estimator's docstring."""
    lines = [
        textwrap.fill(
            f"{each.name} (default {each.default!r}): {each.rule.help}",
            width=96,
            initial_indent=" " * 4,
            subsequent_indent=" " * 8,
        )
        for each in parameters(sources, changed)
    ]
    return "\n".join(["Args:", *lines])


def signature_of(sources: Sequence[type], changed: Mapping[str, Any]) -> inspect.Signature:
    """The signature of an estimator's ``__init__``: every setting, as a keyword."""
    settings = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default)
        for each in parameters(sources, changed)
    ]
    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Signature([first, *settings])


PiGNNEstimator.__init__.__signature__ = signature_of(SOURCES, RECOMMENDED)  # type: ignore[attr-defined]


class PiGNNClassifier(ClassifierMixin, PiGNNEstimator):
    """Classifies graphs by aligning them to learnt latent vertices.

    ``y`` is one class per graph (strings, whole numbers or booleans), or a matrix (B, T) of
    binary targets (1, 0, and NaN where unknown).
    """

    classes_: np.ndarray

    def predict(self, graphs: Graphs) -> np.ndarray:
        """The most likely class of each graph, or the likelier value of each binary target."""
        return self.decode(self._outputs(graphs))

    def predict_proba(self, graphs: Graphs) -> np.ndarray:
        """Probability of each class (B, classes), or that each binary target is 1 (B, T)."""
        return self.probabilities(self._outputs(graphs))

    def decode(self, outputs: Float[Tensor, "B C"]) -> np.ndarray:
        """The predictions that follow from the network's outputs."""
        chances = self.probabilities(outputs)
        if isinstance(self.task_, MultiLabel):
            return (chances > 0.5).astype(np.int64)
        return self.classes_[chances.argmax(axis=1)]

    def probabilities(self, outputs: Float[Tensor, "B C"]) -> np.ndarray:
        """The probabilities that follow from the network's outputs."""
        several = isinstance(self.task_, MultiLabel)
        return (outputs.double().sigmoid() if several else outputs.double().softmax(1)).numpy()

    def score(self, graphs: Graphs, y: Any, sample_weight: Any = None) -> float:
        """Accuracy; with several binary targets, their mean ROC-AUC."""
        self._check_fitted()
        if isinstance(self.task_, MultiLabel):
            if sample_weight is not None:
                raise ValueError("sample_weight is for classes, not for several binary targets")
            outputs = self._outputs(graphs)
            return self.task_.score(outputs, self._encode_targets(y, len(outputs)))
        return super().score(graphs, y, sample_weight)

    def _explained(self, outputs: Float[Tensor, "B C"], probabilities: bool) -> Tensor:
        """Probabilities or logits; those of classes are centred, as only differences matter."""
        if isinstance(self.task_, MultiLabel):
            return outputs.sigmoid() if probabilities else outputs
        return outputs.softmax(1) if probabilities else outputs - outputs.mean(1, keepdim=True)

    def _explained_words(self, probabilities: bool) -> str:
        several = len(self.models_) > 1
        each = "answers" if isinstance(self.task_, MultiLabel) else "classes"
        if probabilities:
            return f"probabilities of {each}" + " (means of the networks)" * several
        mean = "means of the networks' " if several else ""
        return f"{mean}logits of {each}" + ", centred" * (each == "classes")

    def _output_names(self) -> Sequence[object]:
        return self.target_names_ if self._labels is not None else self.classes_.tolist()

    def _read_targets(self, y: Any, count: int) -> Tensor:
        values = class_array(y, count)
        if values.ndim == 2:
            self.classes_, self._labels = np.array([0, 1]), values.shape[1]
        else:
            self.classes_, self._labels = find_classes(values), None
        return self._encode_targets(values, count)

    def _encode_targets(self, y: Any, count: int) -> Tensor:
        values = class_array(y, count)
        if self._labels is None:
            return encode_classes(values, self.classes_)
        if values.ndim == 1 and self._labels == 1:
            values = values[:, None]
        if values.ndim != 2 or values.shape[1] != self._labels:
            raise ValueError(f"y must have shape ({count}, {self._labels}); got {values.shape}")
        return encode_answers(values)

    def _class_weight(self, class_weight: Any) -> Any:
        if self._labels is not None or not isinstance(class_weight, dict):
            return class_weight
        codes = {value: code for code, value in enumerate(self.classes_.tolist())}
        if unknown := [each for each in class_weight if each not in codes]:
            raise ValueError(f"class_weight has class {unknown[0]!r}, which is not in y")
        return {codes[each]: weight for each, weight in class_weight.items()}

    def _make_task(self, y: Tensor, weight: Tensor | None = None) -> Task:
        if self._labels is None:
            return Classification(len(self.classes_))
        return MultiLabel(self._labels)

    def _take_targets(self, data: TrainingData) -> None:
        self._labels = None if data.classes is not None else data.y.shape[1]
        self.classes_ = np.array([0, 1]) if data.classes is None else data.classes

    def _targets_config(self) -> dict[str, Any]:
        classes = self.classes_.tolist()
        return {"classes": classes, "labels": self._labels, "metric": self.task_.metric}

    def _set_targets(self, config: dict[str, Any]) -> None:
        self.classes_, self._labels = np.asarray(config["classes"]), config["labels"]
        check_classes(self.classes_)
        self.task_ = self._make_task(torch.empty(0))
        if isinstance(self.task_, MultiLabel):
            self.task_ = MultiLabel(self._labels, config.get("metric", self.task_.metric))


class PiGNNRegressor(RegressorMixin, PiGNNEstimator):
    """Predicts numbers of graphs by aligning them to learnt latent vertices.

    ``y`` is one number per graph, or several (B, T), NaN where unknown. Targets are standardised
    for training; predictions are in their own units.
    """

    def predict(self, graphs: Graphs) -> np.ndarray:
        """The predicted numbers, (B,) or (B, T) as ``y`` was."""
        return self.decode(self._outputs(graphs))

    def decode(self, outputs: Float[Tensor, "B T"]) -> np.ndarray:
        """The network's outputs in the units of the targets."""
        assert isinstance(self.task_, Regression)
        return self.task_.decode(outputs).numpy().reshape(len(outputs), *self._shape)

    def score(self, graphs: Graphs, y: Any, sample_weight: Any = None) -> float:
        """R², averaged over the targets; graphs whose target is unknown (NaN) do not count."""
        self._check_fitted()
        graphs = list(graphs)
        known = self._encode_targets(y, len(graphs)).numpy()  # (B, T)
        predicted = self.predict(graphs).reshape(known.shape)
        return r_squared(known, predicted, sample_weight)

    def _explained(self, outputs: Float[Tensor, "B T"], probabilities: bool) -> Tensor:
        assert isinstance(self.task_, Regression)
        if probabilities:
            raise ValueError("a regression has no probabilities: leave out probabilities")
        return self.task_.decode(outputs)

    def _explained_words(self, probabilities: bool) -> str:
        return "predicted numbers"

    def _read_targets(self, y: Any, count: int) -> Tensor:
        self._shape = target_array(y, count).shape[1:]  # (), or (T,)
        return self._encode_targets(y, count)

    def _encode_targets(self, y: Any, count: int) -> Tensor:
        values = target_array(y, count)
        numbers = encode_numbers(values)
        if values.shape[1:] != self._shape:
            raise ValueError(
                f"y must have shape {(count, *self._shape)} as in training; got {values.shape}"
            )
        return numbers

    def _make_task(self, y: Tensor, weight: Tensor | None = None) -> Task:
        return Regression.of(y, weight)

    def _take_targets(self, data: TrainingData) -> None:
        self._shape = data.target_shape

    def _targets_config(self) -> dict[str, Any]:
        assert isinstance(self.task_, Regression)
        config = {"mean": self.task_.mean, "std": self.task_.std, "flat": self._shape == ()}
        fit = self.linear_fit_
        return config if fit is None else {**config, "linear_fit": asdict(fit)}

    def _set_targets(self, config: dict[str, Any]) -> None:
        mean, std = (tuple(map(float, config[key])) for key in ("mean", "std"))
        if len(mean) != len(std):
            raise ValueError(f"there are {len(mean)} means but {len(std)} deviations of targets")
        self._shape = () if config["flat"] else (len(mean),)
        self.task_ = Regression(mean, std)
        if fit := config.get("linear_fit"):
            self.linear_fit_ = LinearFit(
                tuple(tuple(map(float, row)) for row in fit["weights"]),
                tuple(map(float, fit["intercept"])),
                tuple(map(int, fit["label_sizes"])),
                tuple(map(int, fit["edge_label_sizes"])),
            )
            fit, count = self.linear_fit_, len(mean)
            sizes = [len(row) for row in fit.weights], len(fit.intercept)
            if sizes != ([fit.width] * count, count):
                raise ValueError(f"its linear fit is not {count} times {fit.width} weights")


def r_squared(
    known: Float[np.ndarray, "B T"], predicted: Float[np.ndarray, "B T"], weights: Any = None
) -> float:
    """R² averaged over the targets; NaN with a warning if fewer than two values are known.

    Args:
        known: true values, NaN where unknown.
        predicted: predictions.
        weights: of the graphs.
    """
    from sklearn.metrics import r2_score

    weights = None if weights is None else np.asarray(weights)
    scores = []
    for truth, guess in zip(known.T, predicted.T, strict=True):
        there = ~np.isnan(truth)
        if there.sum() > 1:
            share = None if weights is None else weights[there]
            scores.append(r2_score(truth[there], guess[there], sample_weight=share))
    if not scores:
        words = "R² is not defined for fewer than two graphs with known targets"
        warnings.warn(words, UndefinedMetricWarning, stacklevel=3)
    return float(np.mean(scores)) if scores else float("nan")
