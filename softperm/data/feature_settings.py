"""The settings of structural features, readable without loading torch: help texts need them."""

from __future__ import annotations

from dataclasses import dataclass

from softperm.settings import Settings, setting

_GROUP = "Features"


@dataclass(frozen=True)
class StructuralFeatures(Settings):
    """Which structural features vertices have; the paper's are degree and triangles.

    Colours are no numbers but labels: their codes are learnt on training graphs, see
    :class:`softperm.data.features.ColourVocabulary`. All other features are columns of
    ``Collection.structure``.
    """

    degree: bool = setting(True, "Number of neighbours of a vertex.", group=_GROUP)
    triangles: bool = setting(True, "Number of triangles through a vertex.", group=_GROUP)
    clustering: bool = setting(
        False, "Share of pairs of neighbours that are neighbours themselves.", group=_GROUP
    )
    core: bool = setting(
        False, "Core number: greatest k such that the vertex is in a k-core.", group=_GROUP
    )
    neighbours: bool = setting(
        False, "Mean and maximum degree of a vertex's neighbours.", group=_GROUP
    )
    rings: int = setting(
        0, "Longest ring (chordless cycle) counted through a vertex, 4 to 12; 0 for none.",
        at_least=0, below=13, group=_GROUP,
    )  # fmt: skip
    walks: int = setting(
        0, "Steps of random walks whose probabilities of return are features; 0 for none.",
        at_least=0, below=257, group=_GROUP,
    )  # fmt: skip
    heat: tuple[int, ...] | None = setting(
        None, "Times of the heat-kernel signature, such as 1 4 16.",
        kind=tuple, at_least=1, below=65, group=_GROUP,
    )  # fmt: skip
    colours: int = setting(
        0, "Rounds of Weisfeiler-Leman colours, which become vertex labels; 0 for none.",
        at_least=0, below=17, group=_GROUP,
    )  # fmt: skip
    joint_labels: bool = setting(
        False, "Where vertices have several labels, one more label for all of them together.",
        group=_GROUP,
    )  # fmt: skip
    colour_size: int = setting(
        512, "Number of colours of a round that have a code of their own.",
        at_least=1, group=_GROUP,
    )  # fmt: skip
    colour_min_graphs: int = setting(
        2, "Number of training graphs that must have a colour; rarer ones share a code.",
        at_least=1, group=_GROUP,
    )  # fmt: skip
    colour_degree: bool = setting(
        False, "Begin colours with the degree of a vertex beside its labels.", group=_GROUP
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rings in (1, 2, 3):
            raise ValueError(
                f"rings must be 0 or from 4 to 12, got {self.rings}; triangles counts those of 3"
            )
        if not self.names:
            raise ValueError(
                "vertices need at least one structural feature: switch degree on, or another one"
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
