"""Counts in messages: one vertex, two vertices."""

import numpy as np
import pytest

from softperm.data.canonical import warn_empty
from softperm.data.formats import GraphFile
from softperm.data.vocabulary import UnseenLabels, Vocabulary
from softperm.errors import by_count, counted
from softperm.training.sources import describe_fields, describe_task


@pytest.mark.parametrize(
    ("count", "noun", "words"),
    [
        (0, "row", "0 rows"),
        (1, "self-loop", "1 self-loop"),
        (2, "class", "2 classes"),
        (3, "latent vertex", "3 latent vertices"),
        (1, "vertex", "1 vertex"),
        (41_127, "graph", "41,127 graphs"),
    ],
)
def test_a_noun_follows_its_count(count, noun, words):
    assert counted(count, noun) == words


def test_irregular_plurals_are_given():
    assert counted(2, "query", "queries") == "2 queries"
    assert by_count(1, "has", "have") == "has"
    assert by_count(0, "has", "have") == "have"


def file_of(targets: list[str]) -> GraphFile:
    return GraphFile([], {"kind": np.array(targets)}, "toy", tuple("ab"))


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (describe_task("classification", file_of(["a", "a"])), "(1 class, the largest: 100% a)"),
        (describe_task("classification", file_of(["a", "b"])), "(2 classes, the largest: 50% a)"),
        (describe_task("regression", file_of(["1", "1"])), "(1 distinct number)"),
        (describe_fields(Vocabulary(((0,),), (), 1, 0)), "vertex labels (1 value), "),
        (describe_fields(Vocabulary((), (), 1, 0)), "vertex attributes (1 number)"),
        (UnseenLabels([0], 1, 0, ["a"]), "graph 0: 1 vertex has a label that training did not see"),
        (UnseenLabels([0], 1, 2, ["a"]), "1 vertex and 2 edges have labels that training did not"),
    ],
)
def test_messages_agree_with_their_counts(message, words):
    assert words in str(message)


def test_one_graph_has_and_two_graphs_have_no_vertices():
    with pytest.warns(UserWarning, match="1 of 23 graphs has no vertices"):
        warn_empty([0] + [3] * 22)
    with pytest.warns(UserWarning, match="2 of 23 graphs have no vertices"):
        warn_empty([0, 0] + [3] * 21)
