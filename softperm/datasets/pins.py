"""SHA-256 of data that is known; what is fetched must match."""

from __future__ import annotations

CONTENT: dict[str, str] = {}
SPLITS: dict[str, str] = {}
FILES: dict[str, dict[str, str]] = {}
