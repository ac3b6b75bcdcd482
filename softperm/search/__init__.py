"""Look-alikes: proven nearest neighbours by exact distance, and neighbours by learnt vector."""

from softperm.search.index import GraphIndex, Hit, SearchResult
from softperm.search.vectors import VectorIndex

__all__ = ["GraphIndex", "Hit", "SearchResult", "VectorIndex"]
