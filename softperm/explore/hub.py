"""A run folder as a repository of the Hugging Face Hub: model, model card, curve and page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from softperm.errors import counted
from softperm.estimators.pignn import PiGNNEstimator, load_estimator
from softperm.nn.model_folder import CONFIG, WEIGHTS

FILES = ("curve.png", "curve.csv", "result.json", "explore.html")
"""Files of a run that go beside the model, where they exist."""
SCORES = {
    "train_score": "training graphs",
    "validation_score": "validation graphs",
    "test_score": "test graphs",
}
LISTED = 20  # labels and classes that a card lists


def push_to_hub(
    run: str | Path,
    repository: str,
    *,
    private: bool | None = None,
    license: str | None = None,
    token: str | None = None,
    endpoint: str | None = None,
) -> str:
    """Uploads a run to the Hub in one commit; the repository is created if it is missing.

    ``PiGNNClassifier.load("hf://owner/name")`` and every command that takes a run read it there.

    Args:
        run: run folder of ``softperm train``, or a model folder.
        repository: ``owner/name``.
        private: whether a new repository is private; by default as the owner's settings say.
        license: of the model, such as ``mit``, for the card.
        token: of the Hub; by default that of ``hf auth login`` or ``HF_TOKEN``.
        endpoint: address of the Hub; for one of your own.

    Returns:
        The address of the repository.

    Raises:
        ValueError: the folder holds no model, or the Hub refuses; the message says why.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    run = Path(run)
    model = run / "model" if (run / "model").is_dir() else run
    card = model_card(run, repository, license)
    files = {name: (model / name).read_bytes() for name in (CONFIG, WEIGHTS)}
    files |= {name: (run / name).read_bytes() for name in FILES if (run / name).is_file()}
    files["README.md"] = card.encode()
    hub = HfApi(endpoint=endpoint, token=token, library_name="softperm")
    try:
        address = hub.create_repo(repository, private=private, exist_ok=True)
        operations = [CommitOperationAdd(name, content) for name, content in files.items()]
        hub.create_commit(repository, operations, commit_message="Model trained with softperm")
    except Exception as problem:  # the Hub's client raises errors of many libraries
        reason = " ".join(str(problem).split()) or type(problem).__name__
        raise ValueError(
            f"{repository} cannot be pushed: {reason[:300]}; hf auth login, or HF_TOKEN, gives "
            "the right to write"
        ) from None
    return str(address)


def model_card(run: Path, repository: str, license: str | None = None) -> str:
    """The model card of a run: data, scores, curve, how to load it, and its limits."""
    from huggingface_hub import EvalResult, ModelCardData

    if repository.count("/") != 1 or not all(repository.split("/")):
        raise ValueError(f"a repository is named owner/name; got {repository!r}")
    estimator = load_estimator(run / "model" if (run / "model").is_dir() else run, "cpu")
    result, settings = _read(run / "result.json"), _read(run / "config.json")
    data = str(result.get("data") or settings.get("dataset") or settings.get("data") or "unknown")
    metric = str(result.get("metric", estimator.task_.metric))
    scores = {
        words: float(result[key])
        for key, words in SCORES.items()
        if isinstance(result.get(key), int | float)
    }
    measured = [
        EvalResult(
            task_type="graph-ml", dataset_type="graphs", dataset_name=data,
            metric_type=metric, metric_value=scores["test graphs"],
        )
    ] if "test graphs" in scores else None  # fmt: skip
    header = ModelCardData(
        license=license,
        library_name="softperm",
        pipeline_tag="graph-ml",
        tags=["graph-ml", "soft-permutations", "pi-gnn"],
        model_name=repository.split("/")[1],
        eval_results=measured,
    )
    parts = [
        f"---\n{header.to_yaml()}\n---",
        f"# {_plain(repository.split('/')[1])}",
        _summary(estimator, data),
        _usage(estimator, repository),
        _table("Scores", {f"{metric}, {words}": f"{value:.4g}" for words, value in scores.items()}),
        _table("Soft permutations", _sharpness(estimator)),
        "## Training curve\n\n![Loss and score over the epochs](curve.png)"
        if (run / "curve.png").is_file()
        else "",
        _table("Settings", _changed(estimator)),
        _limits(estimator),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _summary(estimator: PiGNNEstimator, data: str) -> str:
    config = estimator.model_.config
    assert config is not None, "an estimator's network is built from a configuration"
    targets = ", ".join(map(_plain, estimator.target_names_)) or "one target"
    networks = f"{len(estimator.models_)} networks" if len(estimator.models_) > 1 else "a network"
    text = (
        f"A π-GNN ({networks}, {counted(config.latent_vertices, 'latent vertex')}) that predicts "
        f"{targets}, trained on {_plain(data)} with "
        "[softperm](https://github.com/softperm/softperm). It aligns each graph to latent vertices "
        "by a soft permutation D and reads DᵀAD and DᵀX."
    )
    if hasattr(estimator, "classes_"):
        text += f"\n\nClasses: {_listed(estimator.classes_.tolist())}."  # type: ignore[attr-defined]
    return text


def _usage(estimator: PiGNNEstimator, repository: str) -> str:
    kind = type(estimator).__name__
    graphs = "SMILES" if estimator.molecules_ else "networkx graphs, PyG data, matrices or SMILES"
    return (
        f"## Use\n\n```python\nfrom softperm import {kind}\n\n"
        f'model = {kind}.load("hf://{repository}")\n'
        f"model.predict(graphs)  # a list of {graphs}\n```\n\n"
        f"```console\n$ softperm predict hf://{repository} graphs.jsonl\n"
        f"$ softperm explore hf://{repository} graphs.jsonl\n```"
    )


def _limits(estimator: PiGNNEstimator) -> str:
    vocabulary = estimator.vocabulary_
    lines = ["## Limits", ""]
    for name, labels in (("Vertex", vocabulary.labels), ("Edge", vocabulary.edge_labels)):
        for column in labels:
            listed = f"- {name} labels seen in training: {_listed(column)}."
            lines.append(f"{listed} Others count as none.")
    if vocabulary.x_size:
        lines.append(f"- Each vertex needs {counted(vocabulary.x_size, 'attribute')}.")
    lines.append("- Scores are those of one split of the data above; other graphs may differ.")
    return "\n".join(lines)


def _sharpness(estimator: PiGNNEstimator) -> dict[str, str]:
    sharpness = estimator.sharpness_
    if sharpness is None:
        return {}
    return {
        "row entropy (1 is uniform)": f"{sharpness.row_entropy:.3f}",
        "latent vertices in use": f"{sharpness.used_latent_vertices:.1f}",
        "variance in one component": f"{sharpness.first_component:.1%}",
    }


def _changed(estimator: PiGNNEstimator) -> dict[str, str]:
    """The settings that are not at their default."""
    usual = type(estimator)().get_params(deep=False)
    hidden = {"device", "progress", "checkpoint"}
    values = estimator.get_params(deep=False)
    return {
        name: str(value)
        for name, value in values.items()
        if name not in hidden and value != usual[name]
    }


def _table(title: str, rows: Mapping[str, str]) -> str:
    if not rows:
        return ""
    lines = [f"| {_plain(name)} | {_plain(value)} |" for name, value in rows.items()]
    return "\n".join([f"## {title}", "", "| | |", "|---|---|", *lines])


def _listed(values: Any) -> str:
    names = [_plain(value) for value in values]
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def _plain(value: object) -> str:
    """Text that Markdown and HTML leave as it is."""
    text = " ".join(str(value).split()).replace("&", "&amp;").replace("<", "&lt;")
    return "".join(f"\\{letter}" if letter in r"\`*_[]|#" else letter for letter in text)


def _read(path: Path) -> dict[str, Any]:
    """The content of a JSON file; empty if there is none, or if it is something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
