"""All settings, each declared once with its default, its range and one line of help.

Estimators, command-line options, recipes and the documentation are derived from the declarations:

- :class:`ModelConfig`: the network;
- :class:`StructuralFeatures`, :class:`FieldNames`: what is read from graphs and computed for them;
- :class:`TrainingConfig`, :class:`ForestConfig`: how networks and random forests are trained;
- :class:`EstimatorConfig`, :class:`PiGNNConfig`, :class:`AlignerConfig`: what only estimators have;
- :data:`RECOMMENDED`, :data:`PAPER`: the defaults of estimators, and the paper's values.

Nothing here loads torch, so that the help of the command line is quick.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from numbers import Integral, Real
from typing import Any, ClassVar, TypeVar

Built = TypeVar("Built", bound="Settings")


@dataclass(frozen=True)
class Rule:
    """The description of a setting, and the values that it may have.

    Attributes:
        help: one line of description.
        kind: ``int``, ``float``, ``bool``, ``str``, ``tuple`` (of whole numbers), ``list`` (of
            names), or ``object`` for values that are checked where they are used.
        at_least: smallest value.
        above: exclusive lower bound.
        below: exclusive upper bound.
        choices: the values of a ``str``; words that may replace a number.
        optional: whether it may be None.
        group: heading under which help and documentation list it; that of its class by default.
    """

    help: str
    kind: type
    at_least: int | float | None = None
    above: int | float | None = None
    below: int | float | None = None
    choices: tuple[str, ...] = ()
    optional: bool = False
    group: str = ""

    def check(self, name: str, value: object) -> None:
        """Raises ValueError unless ``value`` is allowed for the setting ``name``."""
        if value is None and self.optional:
            return
        if isinstance(value, Integral) and not -(2**63) <= int(value) < 2**63:
            raise ValueError(f"{name} must be below 2**63; got {value}")
        if not self._allows(value):
            raise ValueError(f"{name} must be {self.expectation}; got {value!r}")

    def _allows(self, value: Any) -> bool:
        if self.kind is object:
            return True
        if self.kind is bool:
            return isinstance(value, bool)
        if self.kind is str:
            return isinstance(value, str) and (not self.choices or value in self.choices)
        if self.kind is list:
            return isinstance(value, (str, tuple, list)) and all(isinstance(v, str) for v in value)
        if self.kind is tuple:
            whole = isinstance(value, (tuple, list)) and len(value) > 0
            return whole and all(_is_whole(size) and self._in_range(size) for size in value)
        if isinstance(value, str):
            return value in self.choices
        number = _is_whole(value) if self.kind is int else _is_number(value)
        return number and self._in_range(value)

    def _in_range(self, value: int | float) -> bool:
        if isinstance(value, Integral) and not -(2**63) <= int(value) < 2**63:
            return False
        low = self.at_least is None or value >= self.at_least
        high = self.below is None or value < self.below
        return low and high and (self.above is None or value > self.above) and value < math.inf

    @property
    def expectation(self) -> str:
        """The allowed values in words, as in ``a whole number of at least 1``."""
        if self.kind is bool:
            allowed = ["True or False"]
        elif self.kind is str:
            allowed = [f"one of {', '.join(self.choices)}" if self.choices else "a string"]
        else:
            start = {
                int: "a whole number",
                float: "a number",
                tuple: "one or more whole numbers",
                list: "a name or a list of names",
                object: "any value",
            }
            allowed = [*map(repr, self.choices), f"{start[self.kind]}{self._range_in_words}"]
        if self.optional:
            allowed.append("None")
        return allowed[0] if len(allowed) == 1 else f"{', '.join(allowed[:-1])}, or {allowed[-1]}"

    @property
    def _range_in_words(self) -> str:
        if self.above is not None and self.below is not None:
            return f" between {self.above:g} and {self.below:g}"
        parts = []
        if self.at_least is not None:
            parts.append(f"of at least {self.at_least:g}")
        if self.above is not None:
            parts.append(f"above {self.above:g}")
        if self.below is not None:
            parts.append(f"below {self.below:g}")
        return f" {' and '.join(parts)}" if parts else ""


def setting(default: Any, help: str, **rule: Any) -> Any:
    """A dataclass field that is a setting.

    Args:
        default: its default, from which its kind follows; None needs ``kind``.
        help: one line of description.
        rule: other fields of :class:`Rule`.
    """
    if default is None:
        rule["optional"] = True
    rule.setdefault("kind", type(default))
    return field(default=default, metadata={"rule": Rule(help, **rule)})


class Settings:
    """Base of frozen dataclasses whose fields are settings; checks every value when built.

    Subclasses may give the heading of their settings: ``class Name(Settings, group="Training")``.
    """

    group: ClassVar[str] = "Model"

    def __init_subclass__(cls, group: str | None = None) -> None:
        if group is not None:
            cls.group = group

    def __post_init__(self) -> None:
        for name, rule in rules(type(self)):
            value = getattr(self, name)
            rule.check(name, value)
            if rule.kind is tuple and value is not None:
                object.__setattr__(self, name, tuple(value))
            if rule.kind is list and value is not None:
                names = names_in(value) if isinstance(value, str) else tuple(value)
                object.__setattr__(self, name, names)

    @classmethod
    def from_dict(cls: type[Built], values: Mapping[str, Any]) -> Built:
        """The settings with these values.

        Raises:
            ValueError: a key that is no setting, or a value out of range.
        """
        known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
        if unknown := sorted(set(values) - known):
            names = ", ".join(unknown)
            raise ValueError(f"unknown settings {names}: known are {', '.join(sorted(known))}")
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**{**values, **lists})


def names_in(text: str) -> tuple[str, ...]:
    """Names separated by commas; a name that contains a comma stands in double quotes.

    >>> names_in('size, "log P, measured"')
    ('size', 'log P, measured')
    """
    cells = next(csv.reader([text], skipinitialspace=True), [])
    return tuple(cell.strip() for cell in cells if cell.strip())


@cache
def rules(cls: type[Settings]) -> tuple[tuple[str, Rule], ...]:
    """The settings of a dataclass in the order of their declaration."""
    declared = {f.name: f.metadata["rule"] for f in fields(cls) if "rule" in f.metadata}  # type: ignore[arg-type]
    return tuple((name, replace(r, group=r.group or cls.group)) for name, r in declared.items())


def defaults(cls: type[Settings]) -> dict[str, Any]:
    """The default of each setting of a dataclass, by name."""
    return {each.name: each.default for each in fields(cls) if "rule" in each.metadata}  # type: ignore[arg-type]


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


@dataclass(frozen=True)
class ModelConfig(Settings):
    """All choices of a π-GNN, as plain values that a file can hold.

    The user's choices, whose defaults :data:`RECOMMENDED` and recipes override; then the data:

    Attributes:
        outputs: number C of outputs.
        capacity: number of vertices to which the paper pads; None for no padding.
        structure_size: number of structural features.
        attribute_size: length F of a vertex's attributes in a batch; 0 for none.
        edge_attribute_size: length d_e of an edge's attributes in a batch; 0 for none.
        weighted: whether edges carry weights.
        label_sizes: vocabulary size of each column of vertex labels that the network embeds; empty
            if labels are one-hot vectors among the attributes.
        edge_label_sizes: the same for edge labels.
    """

    outputs: int
    latent_vertices: int = setting(
        20, "Number P of latent vertices to which all graphs are aligned.", at_least=1
    )
    hidden: int = setting(32, "Size H of the hidden vector of a vertex.", at_least=1)
    encoder: str = setting(
        "linear",
        "Turns vertex features into hidden vectors; gcn and gin also read attributes and "
        "neighbourhoods.",
        choices=("linear", "gcn", "gin"),
    )
    layers: int = setting(3, "Rounds of message passing of gcn and gin.", at_least=1)
    encoder_loops: bool = setting(
        False,
        "Every vertex is also its own neighbour in gin, which then counts it twice; gcn always "
        "counts it once.",
    )
    dustbin: bool = setting(
        False, "Allow vertices and latent vertices to stay unmatched (π-GNN-d)."
    )
    shared_dustbin: bool = setting(
        False, "One dustbin score for the permutations from structure and from attributes."
    )
    scaling: str = setting(
        "log",
        "Scaling of structural features; the paper's is raw.",
        choices=("raw", "log", "standard", "log-standard"),
    )
    attribute_scaling: str = setting(
        "raw",
        "Scaling of continuous vertex attributes; standard is that of the training vertices.",
        choices=("raw", "standard"),
    )
    permute_by: str = setting(
        "mixed",
        "Features that permutations are learnt from: mixed has one permutation from structure and "
        "one from attributes, joint has one from both together, encoded has one from "
        "vertices encoded by φ.",
        choices=("mixed", "joint", "structure", "encoded"),
    )
    structure_share: float = setting(
        0.5,
        "Initial share sigmoid(α) of the structural permutation in the mixture.",
        above=0,
        below=1,
    )
    permutation_heads: int = setting(
        1, "Number of permutations side by side, each with aligned matrices of its own.", at_least=1
    )
    compare: str = setting(
        "inner",
        "Compares vertices with latent vertices: inner product, or cosine over a temperature.",
        choices=("inner", "cosine"),
    )
    temperature: float = setting(
        0.1, "Initial temperature of the cosine; smaller means harder assignments.", above=0
    )
    learn_temperature: bool = setting(True, "Learn the temperature of the cosine.")
    latent_init: str = setting(
        "linear",
        "Range of the initial latent vertices: linear is ±1/√hidden, uniform is ±1.",
        choices=("linear", "uniform"),
    )
    latent_scale: float = setting(
        1.0, "Factor on the initial latent vertices; larger means harder assignments.", above=0
    )
    normaliser: str = setting(
        "sinkhorn",
        "Turns scores into a plan: sinkhorn, or a softmax over latent vertices.",
        choices=("sinkhorn", "softmax"),
    )
    iterations: int = setting(100, "Maximum number of Sinkhorn iterations.", at_least=1)
    tolerance: float | None = setting(
        None,
        "Marginal error at which Sinkhorn stops early; None for the default, 0 for never.",
        kind=float,
        at_least=0,
    )
    powers: int = setting(
        1, "Highest power k of the adjacency matrix that is aligned: DᵀAD, …, DᵀAᵏD.", at_least=1
    )
    distance_bins: int = setting(
        0,
        "Gaussian bins of the distances between all pairs of vertices, by their positions (pos); 0 "
        "for none. Learnt mixtures of the bins are aligned as DᵀAD is. Time and memory grow with "
        "the square of a graph's vertices.",
        at_least=0,
        below=257,
    )
    distance_channels: int = setting(4, "Number of mixtures of these bins.", at_least=1, below=257)
    distance_range: float = setting(
        12.0,
        "Centre of the last bin of distances, in the unit of the positions; the first is at 0.",
        above=0,
    )
    encoded: str = setting(
        "none",
        "Vertex features that a small network φ encodes before they are aligned, Dᵀφ(X); with "
        "none, attributes are aligned as they are, DᵀX.",
        choices=("none", "attributes", "structure", "both"),
    )
    encoded_size: int = setting(64, "Number of units of φ.", at_least=1)
    encoded_rounds: int = setting(0, "Residual rounds of message passing in φ.", at_least=0)
    attribute_dropout: float = setting(
        0.0, "Share of vertex attributes dropped in training.", at_least=0, below=1
    )
    head: str = setting(
        "mlp",
        "Reads the aligned matrices: mlp, or conv over consecutive latent vertices. With forest, "
        "random forests on counts, quantiles and aligned vectors predict in place of the trained "
        "mlp; with mlp+forest, predictions are the mean of both.",
        choices=("mlp", "conv", "forest", "mlp+forest"),
    )
    head_hidden: tuple[int, ...] = setting(
        (256, 128), "Layer sizes of the MLP of each aligned matrix.", at_least=1
    )
    head_final: int = setting(64, "Hidden size of the final MLP.", at_least=1)
    head_norm: bool = setting(
        True, "LayerNorm before the head; without it the head sees the size of a graph."
    )
    dropout: float = setting(
        0.0,
        "Share of aligned entries and hidden units of the head, and of messages in φ, dropped in "
        "training.",
        at_least=0,
        below=1,
    )
    embedding_size: int = setting(32, "Length of the vector of an embedded vertex.", at_least=1)
    edge_embedding_size: int = setting(8, "Length of the vector of an embedded edge.", at_least=1)
    capacity: int | None = None
    structure_size: int = 2
    attribute_size: int = 0
    edge_attribute_size: int = 0
    weighted: bool = False
    label_sizes: tuple[int, ...] = ()
    edge_label_sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.permute_by == "encoded" and self.encoded == "none":
            raise ValueError(
                "permute_by encoded needs encoded vertices: set encoded to both, or permute_by to "
                "mixed"
            )
        Rule("", int, at_least=1).check("outputs", self.outputs)
        Rule("", int, at_least=1, optional=True).check("capacity", self.capacity)
        Rule("", bool).check("weighted", self.weighted)
        for name in ("structure_size", "attribute_size", "edge_attribute_size"):
            Rule("", int, at_least=0).check(name, getattr(self, name))
        for name in ("label_sizes", "edge_label_sizes"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @property
    def embeds_labels(self) -> bool:
        """Whether labels reach the network as codes, which it embeds."""
        return bool(self.label_sizes or self.edge_label_sizes)

    @property
    def encodes(self) -> str:
        """The vertex features that φ encodes; what does not exist is left out."""
        if self.vertex_width:
            return self.encoded
        return {"attributes": "none", "both": "structure"}.get(self.encoded, self.encoded)

    @property
    def vertex_width(self) -> int:
        """Length of a vertex's attributes after its labels are embedded."""
        return self.attribute_size + (self.embedding_size if self.label_sizes else 0)

    @property
    def distance_width(self) -> int:
        """Number of aligned matrices of distances."""
        return self.distance_channels if self.distance_bins else 0

    @property
    def edge_width(self) -> int:
        """Length of an edge's attributes after its labels are embedded."""
        return self.edge_attribute_size + (self.edge_embedding_size if self.edge_label_sizes else 0)


@dataclass(frozen=True)
class StructuralFeatures(Settings, group="Features"):
    """Which structural features vertices have; the paper's are degree and triangles.

    Colours are no numbers but labels: their codes are learnt on training graphs, see
    :class:`softperm.data.features.ColourVocabulary`. All other features are columns of
    ``Collection.structure``.
    """

    degree: bool = setting(True, "Number of neighbours of a vertex.")
    triangles: bool = setting(True, "Number of triangles through a vertex.")
    clustering: bool = setting(
        False, "Share of pairs of neighbours that are neighbours themselves."
    )
    core: bool = setting(False, "Core number: greatest k such that the vertex is in a k-core.")
    neighbours: bool = setting(False, "Mean and maximum degree of a vertex's neighbours.")
    rings: int = setting(
        0,
        "Longest ring (chordless cycle) counted through a vertex, 4 to 12; 0 for none.",
        at_least=0,
        below=13,
    )
    walks: int = setting(
        0,
        "Steps of random walks whose probabilities of return are features; 0 for none.",
        at_least=0,
        below=257,
    )
    heat: tuple[int, ...] | None = setting(
        None,
        "Times of the heat-kernel signature, such as 1 4 16.",
        kind=tuple,
        at_least=1,
        below=65,
    )
    colours: int = setting(
        0,
        "Rounds of Weisfeiler-Leman colours, which become vertex labels; 0 for none.",
        at_least=0,
        below=17,
    )
    joint_labels: bool = setting(
        False, "If vertices have several labels, add one label that combines them all."
    )
    colour_size: int = setting(
        512, "Number of colours of a round that have a code of their own.", at_least=1
    )
    colour_min_graphs: int = setting(
        2, "Number of training graphs that must have a colour; rarer ones share a code.", at_least=1
    )
    colour_degree: bool = setting(
        False, "Begin colours with the degree of a vertex in addition to its labels."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rings in (1, 2, 3):
            raise ValueError(
                f"rings must be 0 or from 4 to 12, got {self.rings}; triangles counts those of 3"
            )
        if not self.names:
            raise ValueError(
                "vertices need at least one structural feature: enable degree or another one"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each column, as in ``triangles`` or ``return after 4 steps``."""
        switches = ("degree", "triangles", "clustering", "core")
        names = [name for name in switches if getattr(self, name)]
        if self.neighbours:
            names += ["mean degree of neighbours", "maximum degree of neighbours"]
        names += [f"rings of {length}" for length in range(4, self.rings + 1)]
        names += [f"return after {k} steps" for k in range(2, self.walks + 1)]
        return (*names, *(f"heat after {time}" for time in self.heat or ()))


@dataclass(frozen=True)
class FieldNames(Settings, group="Data"):
    """Names of the attributes to read; None means the default names for the kind of graph.

    These are ``label`` for labels and ``x`` for numbers; in PyG, those of edges are ``edge_label``
    and ``edge_attr``. A name may refer to a vector, or to a matrix with a row for each vertex.

    Attributes:
        positions: whether to read ``pos`` of the vertices, which ``distance_bins`` asks for.
    """

    vertex_labels: Sequence[str] | None = setting(
        None, "Vertex attributes to read as discrete labels, by name; by default label.", kind=list
    )
    vertex_attributes: Sequence[str] | None = setting(
        None, "Vertex attributes to read as numbers, by name; by default x.", kind=list
    )
    edge_labels: Sequence[str] | None = setting(
        None, "Edge attributes to read as discrete labels, by name; by default label.", kind=list
    )
    edge_attributes: Sequence[str] | None = setting(
        None, "Edge attributes to read as numbers, by name; by default x.", kind=list
    )
    positions: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> FieldNames:
        """The names that the settings of an estimator give."""
        return cls(**choose(cls, values), positions=bool(values.get("distance_bins")))

    @property
    def vertices_chosen(self) -> bool:
        """Whether any name is given for vertices."""
        return self.vertex_labels is not None or self.vertex_attributes is not None

    @property
    def edges_chosen(self) -> bool:
        """Whether any name is given for edges."""
        return self.edge_labels is not None or self.edge_attributes is not None


STANDARD_FIELDS = FieldNames()
CRITERIA = ("loss", "score", "late-score", "last")


@dataclass(frozen=True)
class TrainingConfig(Settings, group="Training"):
    """How a network is trained."""

    epochs: int = setting(300, "Passes over the training graphs.", at_least=1)
    batch_size: int = setting(
        64, "Graphs in a mini-batch; several devices share a mini-batch.", at_least=1
    )
    learning_rate: float = setting(1e-3, "Learning rate of Adam.", above=0)
    weight_decay: float = setting(0.0, "L2 penalty, added to the gradient.", at_least=0)
    decoupled_decay: bool = setting(
        False,
        "Shrink the weights by weight_decay times the learning rate in every step, as AdamW does, "
        "in place of adding the penalty to the gradient.",
    )
    schedule: str = setting(
        "constant",
        "Learning rate over the epochs: constant, or cosine, which falls along half a cosine to "
        "2 % of the initial rate.",
        choices=("constant", "cosine"),
    )
    class_weight: object = setting(
        None,
        "Weights of classes in the loss, as in scikit-learn: balanced for weights inversely "
        "proportional to the numbers of training graphs, or a dict from class to weight; None for "
        "equal weights.",
        kind=object,
    )
    label_smoothing: float = setting(
        0.0,
        "Share of a target's probability that the training loss spreads evenly over all classes; "
        "no effect in regression.",
        at_least=0,
        below=1,
    )
    criterion: str = setting(
        "loss",
        "Validation figure that selects the best epoch: loss, score, or late-score. Among "
        "equally good epochs, late-score selects the last and the others select the first. "
        "last always selects the last epoch.",
        choices=CRITERIA,
    )
    patience: int | None = setting(
        None,
        "Stop after this many epochs without a better one; None to train all epochs.",
        kind=int,
        at_least=1,
    )
    seed: int = setting(
        0,
        "Seed of parameters and mini-batches; with the same number of threads, results repeat.",
        at_least=0,
    )
    accumulate: int = setting(
        1,
        "Number of parts in which a mini-batch is computed, one after the other, to save memory. "
        "The gradient is that of the whole mini-batch; batch normalisation sees the parts.",
        at_least=1,
    )
    clip: float | None = setting(
        None, "Maximum norm of the gradient; None for no limit.", kind=float, above=0
    )
    decay: float | None = setting(
        None,
        "Factor on the learning rate after more than decay_patience epochs without a better one; "
        "None for a constant rate.",
        kind=float,
        above=0,
        below=1,
    )
    decay_patience: int = setting(
        10,
        "Epochs without a better one before decay, counted as ReduceLROnPlateau does.",
        at_least=1,
    )
    ema: float | None = setting(
        None,
        "Decay of an exponential moving average of the weights, which is then validated and "
        "returned in place of the weights; None for no average.",
        kind=float,
        above=0,
        below=1,
    )
    max_time: float | None = setting(
        None,
        "Seconds after which training stops, to be resumed from its checkpoint; None for no limit.",
        kind=float,
        above=0,
    )
    halve_every: int | None = setting(
        None, "Epochs between halvings of the learning rate; None for never.", kind=int, at_least=1
    )
    decay_floor: float = setting(0.0, "Learning rate at which decay ends.", at_least=0)
    linear_fit: bool = setting(
        False,
        "Subtract a linear fit on counts of vertices and edges by their labels from the numbers of "
        "a regression before training, and add it to predictions.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decay_floor and self.decay is None:
            raise ValueError("decay_floor needs decay: it is the learning rate at which decay ends")
        if self.decay_floor and self.halve_every is not None:
            raise ValueError("decay_floor works with decay alone, not with halve_every")
        check_class_weight(self.class_weight)
        if self.schedule == "cosine" and (self.decay or self.halve_every):
            other = "decay" if self.decay else "halve_every"
            raise ValueError(f"schedule cosine works alone, not with {other}: set {other} to None")


@dataclass(frozen=True)
class ForestConfig(Settings, group="Forest"):
    """The random forest of a head ``forest`` or ``mlp+forest``."""

    trees: int = setting(300, "Number of trees of a random forest.", at_least=1)
    forest_colours: int = setting(
        3, "Rounds of Weisfeiler-Leman colours that a random forest counts.", at_least=0, below=17
    )
    forest_vectors: bool = setting(
        True, "Random forests also read aligned vectors, besides counts and quantiles."
    )
    weigh_forests: bool = setting(
        False,
        "Grow a third random forest, on counts of labels and degrees, and weight the forests by "
        "their predictions of training graphs that their trees have not seen; with forest_vectors "
        "there are no such predictions, and weights are equal. The network's weight follows from "
        "validation graphs; without them it is 1/4, in regression 1/2.",
    )


def check_class_weight(class_weight: object) -> None:
    """Raises ValueError unless it is None, ``balanced``, or a dict of weights."""
    if isinstance(class_weight, Mapping):
        for each, weight in class_weight.items():
            Rule("", float, at_least=0).check(f"class_weight of class {each!r}", weight)
    elif class_weight is not None and class_weight != "balanced":
        raise ValueError(
            "class_weight must be 'balanced', a dict from class to weight, or None; "
            f"got {class_weight!r}"
        )


ONE_MODEL_ONLY = ("accumulate", "clip")
"""Settings that a stack of models does not support."""

TRAINING = tuple(name for name, _ in rules(TrainingConfig) if name not in ("seed", *ONE_MODEL_ONLY))
"""Settings that a recipe may choose for any system."""


@dataclass(frozen=True)
class PiGNNConfig(Settings):
    """The settings that only estimators of π-GNN have, besides those of the network."""

    categories: str = setting(
        "one-hot",
        "Turns discrete labels into one-hot vectors or into learnt embeddings.",
        choices=("one-hot", "embedding"),
    )
    capacity: int | str | None = setting(
        None,
        "Number of vertices to which the paper pads every graph, at no cost; auto for the size of "
        "the largest training graph, None for no padding.",
        kind=int,
        at_least=1,
        choices=("auto",),
        optional=True,
    )
    ensemble: int = setting(
        1,
        "Number of networks, trained together from different seeds; their predictions are "
        "averaged. Vectors and permutations are those of the first.",
        at_least=1,
        group="Training",
    )


@dataclass(frozen=True)
class EstimatorConfig(Settings):
    """The settings of an estimator besides those of its network and its training."""

    epochs: int | str = setting(
        "auto",
        "Passes over the training graphs; auto for 30 to 150, fewer the more graphs there are.",
        kind=int,
        at_least=1,
        choices=("auto",),
        group="Training",
    )
    validation_fraction: float = setting(
        0.0,
        "Share of the graphs held out to select the best epoch; 0 keeps the last epoch.",
        at_least=0,
        below=1,
        group="Training",
    )
    device: object = setting(
        "auto", "Torch device; auto is a GPU if there is one.", kind=object, group="Hardware"
    )
    symmetrise: bool = setting(False, "Read directed edges in both directions.", group="Data")
    checkpoint: object = setting(
        None,
        "File that training writes every ten seconds and from which it resumes.",
        kind=object,
        group="Output",
    )
    progress: bool = setting(
        True,
        "Show a progress bar; without a terminal, log a line every ten seconds.",
        group="Output",
    )


@dataclass(frozen=True)
class AlignerConfig(Settings):
    """The settings that only an aligner has."""

    dimensions: int = setting(64, "Entries of a vector that the network computes.", at_least=1)
    sketch: int = setting(
        256,
        "Entries of a vector that count labels, neighbours and colours by hash; 0 for none.",
        at_least=0,
    )
    sample: int = setting(
        400,
        "Number of graphs whose exact distances are learnt, all pairs of them, at most.",
        at_least=2,
        group="Training",
    )
    distance_seconds: float = setting(
        120.0,
        "Seconds of one core for these distances, roughly; at least 20 graphs are compared.",
        above=0,
        group="Training",
    )
    pair_seconds: float = setting(
        0.1,
        "Most seconds for the distance of a pair; the middle of its interval if it takes longer.",
        above=0,
        group="Training",
    )


SOURCES = (
    ModelConfig, StructuralFeatures, TrainingConfig, ForestConfig, FieldNames, PiGNNConfig,
    EstimatorConfig,
)  # fmt: skip
"""The dataclasses whose settings are the parameters of an estimator; later ones have priority."""

RECOMMENDED: dict[str, Any] = {
    "latent_vertices": 16,
    "hidden": 64,
    "scaling": "log-standard",
    "attribute_scaling": "standard",
    "permute_by": "encoded",
    "compare": "cosine",
    "temperature": 0.05,
    "latent_init": "uniform",
    "iterations": 10,
    "encoded": "both",
    "encoded_rounds": 1,
    "head": "mlp+forest",
    "forest_vectors": False,
    "weigh_forests": True,
    "head_hidden": (256,),
    "dropout": 0.5,
    "clustering": True,
    "neighbours": True,
    "walks": 8,
    "weight_decay": 1e-2,
    "decoupled_decay": True,
    "schedule": "cosine",
    "label_smoothing": 0.1,
    "ema": 0.99,
    "criterion": "late-score",
}
"""Defaults of estimators, ``train`` and ``evaluate --data`` that differ from the paper's."""

PAPER: dict[str, Any] = {
    **{
        name: value
        for source in (ModelConfig, StructuralFeatures, TrainingConfig)
        for name, value in defaults(source).items()
        if name in RECOMMENDED
    },
    "scaling": "raw",
    "capacity": "auto",
    "epochs": 300,
    "validation_fraction": 0.1,
}
"""Settings that make an estimator the paper's π-GNN: ``PiGNNClassifier(**PAPER)``."""

STEPS = 4000  # of training with epochs="auto"
FEWEST_EPOCHS, MOST_EPOCHS = 30, 150


@dataclass(frozen=True)
class Parameter:
    """A parameter of the estimators and an option of ``softperm train``."""

    name: str
    default: Any
    rule: Rule


def parameters(
    sources: Sequence[type[Settings]] = SOURCES, changed: Mapping[str, Any] = RECOMMENDED
) -> Iterator[Parameter]:
    """All parameters of the estimators, in the order of their declaration.

    Args:
        sources: the dataclasses that declare them.
        changed: defaults that differ from those of the dataclasses.
    """
    home = {name: source for source in sources for name, _ in rules(source)}
    for source in sources:
        values = {**defaults(source), **changed}
        for name, rule in rules(source):
            if home[name] is source:
                yield Parameter(name, values[name], rule)


def training_config(values: Mapping[str, Any], graphs: int) -> TrainingConfig:
    """The settings of a training; ``graphs`` training graphs decide what is ``auto``."""
    chosen = choose(TrainingConfig, values)
    if chosen["epochs"] == "auto":
        dict(rules(TrainingConfig))["batch_size"].check("batch_size", chosen["batch_size"])
        batches = -(-graphs // chosen["batch_size"])
        chosen["epochs"] = min(max(STEPS // max(batches, 1), FEWEST_EPOCHS), MOST_EPOCHS)
    return TrainingConfig(**chosen)


def check_settings(values: Mapping[str, Any]) -> None:
    """Raises ValueError for the first setting that is out of range or does not fit another."""
    for source in reversed(SOURCES):
        if source is TrainingConfig:
            training_config(values, graphs=1)
        else:
            outputs = {"outputs": 1} if source is ModelConfig else {}
            source(**outputs, **choose(source, values))


def choose(source: type[Settings], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are settings of a dataclass."""
    return {name: values[name] for name, _ in rules(source) if name in values}
