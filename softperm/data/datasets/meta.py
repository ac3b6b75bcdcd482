"""What a prepared file says of its dataset besides the arrays."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

Task = Literal["classification", "multilabel", "regression"]


@dataclass(frozen=True)
class Meta:
    """Names and counts that go with a dataset's arrays.

    Args:
        name: the dataset's name.
        task: what is predicted.
        target_names: the columns of ``values``.
        class_names: what class number c is called in the source.
        label_values: of every label column, what code c is called in the source.
        label_names: what the label columns are called; empty where the source does not say.
        edge_label_values: of every edge label column, what code c is called in the source.
        edge_label_names: what the edge label columns are called.
        self_loops: lines of the source left out because they join a vertex to itself.
        duplicates: lines of the source left out because they repeat another.
    """

    name: str
    task: Task
    target_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    label_values: tuple[tuple[str, ...], ...] = ()
    label_names: tuple[str, ...] = ()
    edge_label_values: tuple[tuple[str, ...], ...] = ()
    edge_label_names: tuple[str, ...] = ()
    self_loops: int = 0
    duplicates: int = 0

    def to_json(self) -> dict:
        """As plain lists, strings and numbers."""
        return asdict(self)

    @classmethod
    def from_json(cls, said: dict) -> Meta:
        """The inverse of :meth:`to_json`; unknown keys are an error."""
        known = {f.name for f in fields(cls)}
        if set(said) != known:
            raise ValueError(f"expected the keys {sorted(known)}, found {sorted(said)}")
        return cls(**{key: _frozen(value) for key, value in said.items()})


def _frozen(value: Any) -> Any:
    return tuple(_frozen(v) for v in value) if isinstance(value, list) else value
