"""Arrays in few bytes: small types, planes of bytes, deflate, base64.

A packet is a JSON line that lists its arrays, followed by their bytes; ``page/data.js`` reads it.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping

import numpy as np

TYPES = {"uint8": "u8", "uint16": "u16", "uint32": "u32", "float32": "f32"}
"""The types of arrays and their names in a packet."""
MANTISSA = 16  # bits of a number's mantissa that are kept, about five decimal digits


def pack(arrays: Mapping[str, np.ndarray]) -> str:
    """Arrays as text: compressed and in base64.

    Whole numbers get the smallest type that holds them; they must not be negative. Other numbers
    are rounded to about five decimal digits.
    """
    header, parts = [], []
    for name, values in arrays.items():
        values = _smallest(np.asarray(values).ravel())
        header.append([name, TYPES[values.dtype.name], values.size])
        little = values.astype(values.dtype.newbyteorder("<"))
        planes = np.frombuffer(little.tobytes(), np.uint8).reshape(-1, values.itemsize)
        parts.append(planes.T.tobytes())  # first bytes first: equal exponents stand side by side
    content = json.dumps(header, separators=(",", ":")).encode() + b"\n" + b"".join(parts)
    return base64.b64encode(zlib.compress(content, 9)).decode()


def pack_text(content: object) -> str:
    """A JSON value as text: compressed and in base64."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _smallest(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind in "iub":
        largest = int(values.max(initial=0))
        assert not values.size or int(values.min()) >= 0, "packed whole numbers are not negative"
        return values.astype(
            np.uint8 if largest < 1 << 8 else np.uint16 if largest < 1 << 16 else np.uint32
        )
    return round_mantissa(values.astype(np.float32))


def round_mantissa(values: np.ndarray) -> np.ndarray:
    """Numbers in single precision whose last bits are zero, which compress better.

    >>> float(round_mantissa(np.float32([3.14159265]))[0])
    3.1416015625
    """
    low = 23 - MANTISSA
    bits = values.view(np.uint32)
    finite = np.isfinite(values)
    rounded = (bits + np.uint32(1 << (low - 1))) & np.uint32(~((1 << low) - 1) & 0xFFFFFFFF)
    return np.where(finite, rounded, bits).astype(np.uint32).view(np.float32)
