"""Proven nearest neighbours: an index of graphs by exact distance."""

from softperm.search.index import GraphIndex, Hit, SearchResult

__all__ = ["GraphIndex", "Hit", "SearchResult"]
