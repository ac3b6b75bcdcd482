"""``softperm demo``: needs nothing, leaves a model and pictures."""

import json
from dataclasses import replace

from samples import run_command

from softperm import PiGNNClassifier, plots


def test_the_demo_trains_and_leaves_a_model_and_pictures(tmp_path, monkeypatch):
    """One epoch here, and nothing drawn; the whole of it is ``make demo``."""
    settings = PiGNNClassifier._fit_config
    monkeypatch.setattr(
        PiGNNClassifier, "_fit_config", lambda self: replace(settings(self), epochs=1)
    )
    drawn = []
    monkeypatch.setattr(plots, "save", lambda figure, path: drawn.append(path.name))
    done = run_command("demo", "--out", tmp_path / "demo", "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["test_graphs"] == 90
    assert 0 <= result["test_accuracy"] <= 1
    assert drawn == ["curve", "graph-0", "graph-4", "graph-8"]
    assert PiGNNClassifier.load(tmp_path / "demo" / "model").classes_.tolist() == [
        "random",
        "ring",
        "scale-free",
    ]


def test_a_demo_that_cannot_be_written_is_said_before_it_trains(tmp_path):
    (tmp_path / "file").write_text("")
    done = run_command("demo", "--out", tmp_path / "file")
    assert done.exit_code == 2
    assert "cannot be written to (File exists): choose another --out" in done.stderr
