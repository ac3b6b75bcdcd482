"""The settings of a π-GNN, readable without loading torch: the command line's help needs them."""

from __future__ import annotations

from dataclasses import dataclass

from softperm.settings import Rule, Settings, setting


@dataclass(frozen=True)
class ModelConfig(Settings):
    """All choices of a π-GNN, as plain values that a file can hold.

    The first fields are the user's choices. The others describe the graphs and the task:

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
        "one from attributes, joint has one from both together, encoded has one from what φ "
        "makes of a vertex.",
        choices=("mixed", "joint", "structure", "encoded"),
    )
    structure_share: float = setting(
        0.5, "Initial share sigmoid(α) of the structural permutation in the mixture.",
        above=0, below=1,
    )  # fmt: skip
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
        "Reads the aligned matrices: mlp, or conv over consecutive latent vertices. With forest, a "
        "random forest on aligned vectors and colour counts predicts in place of the trained "
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
            raise ValueError("permute_by encoded needs encoded vertices: set encoded, as to both")
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
    def edge_width(self) -> int:
        """Length of an edge's attributes after its labels are embedded."""
        return self.edge_attribute_size + (self.edge_embedding_size if self.edge_label_sizes else 0)
