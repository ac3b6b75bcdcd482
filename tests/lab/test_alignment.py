"""The demonstration's two graphs: alike once they are aligned, whatever their numbering."""

from softperm.explore import plots
from softperm.lab.studies import alignment


def test_two_graphs_of_one_kind_are_alike_once_aligned():
    pair = alignment.run(epochs=15)
    assert pair.before < 0.5 < 0.95 < pair.after
    figure = plots.aligned_pair(pair.graphs, pair.permutations)
    assert len(figure.axes) == 2 * 3 + 2  # and two scales of colours
