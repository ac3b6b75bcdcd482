"""Tables of numbers from comma-separated text, parsed as bytes, a few megabytes at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import no_type_check

import numba
import numpy as np
from numpy.typing import DTypeLike

_POWERS = 10.0 ** np.arange(23)  # 10²² is the largest power of ten that float64 holds exactly
_EXACT = 1 << 53  # every smaller integer is exact in float64


def read_table(
    blocks: Iterable[bytes], where: str, dtype: DTypeLike, columns: int | None = None
) -> np.ndarray:
    r"""Parse lines of ``columns`` numbers separated by commas or blanks; empty lines are skipped.

    Every number is rounded correctly: one whose digits and power of ten are both exact in float64
    takes a single multiplication or division, any other goes through Python's own ``float``.

    Args:
        blocks: the text, in pieces of any length.
        where: the file's name, for error messages.
        dtype: type of the result; an integer type refuses numbers with a fraction.
        columns: how many numbers a line holds; by default as many as the first line.

    Returns:
        The numbers, (rows, columns).

    Raises:
        ValueError: if a line does not hold ``columns`` numbers, or a number does not fit ``dtype``.

    >>> read_table([b"1, 2\n3", b", 4\n"], "A.txt", np.int32).tolist()
    [[1, 2], [3, 4]]
    """
    out, rows, lines = np.empty((0, columns or 1), dtype), 0, 0
    for text in _whole_lines(blocks):
        if columns is None:
            first = text.lstrip().split(b"\n", 1)[0]
            columns = max(1, len(first.replace(b",", b" ").split()))
            out = np.empty((0, columns), dtype)
        values = _parse_block(text, columns, where, lines)  # (r, columns)
        _check_fit(values, np.dtype(dtype), where, rows)
        end = rows + len(values)
        if end > len(out):
            # Growing in place lets the allocator move pages instead of copying numbers.
            out.resize((max(end, len(out) * 5 // 4), columns), refcheck=False)
        out[rows:end] = values
        rows, lines = end, lines + text.count(b"\n")
    out.resize((rows, columns or 1), refcheck=False)
    return out


def _whole_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The same text, cut only at line ends."""
    rest = b""
    for number, block in enumerate(blocks):
        if number == 0:
            block = block.removeprefix(b"\xef\xbb\xbf")  # some editors begin so
        cut = block.rfind(b"\n") + 1
        if cut:
            yield rest + block[:cut]
            rest = block[cut:]
        else:
            rest += block
    if rest.strip():
        yield rest


def _parse_block(text: bytes, columns: int, where: str, lines: int) -> np.ndarray:
    data = np.frombuffer(text, dtype=np.uint8)
    values = np.empty(data.size // 2 + 1)  # a number takes a digit and a separator at least
    hard = np.empty((values.size, 3), dtype=np.int64)  # (place in values, begin, end)
    count, difficult, bad = _scan(data, columns, values, hard, _POWERS)
    for place, begin, end in hard[:difficult].tolist():
        try:
            values[place] = float(text[begin:end])
        except ValueError:
            bad = begin if bad < 0 else min(bad, begin)
            break
    if bad >= 0:
        line = text[text.rfind(b"\n", 0, bad) + 1 :].split(b"\n", 1)[0].decode("utf-8", "replace")
        number = lines + text.count(b"\n", 0, bad) + 1
        expected = "1 number" if columns == 1 else f"{columns} numbers separated by commas"
        raise ValueError(
            f"{where} line {number}: expected {expected}, "
            f"found {line.strip()[:60]!r}; the file is cut short or is no TUDataset text"
        )
    return values[:count].reshape(-1, columns)


def _check_fit(values: np.ndarray, dtype: np.dtype, where: str, rows: int) -> None:
    """Refuse fractions and overflow where whole numbers are wanted."""
    if dtype.kind != "i" or values.size == 0:
        return
    limit = min(np.iinfo(dtype).max + 1, _EXACT)
    wrong = ~((np.abs(values) < limit) & (values == np.floor(values)))  # NaN is wrong too
    if wrong.any():
        row, column = np.argwhere(wrong)[0].tolist()
        raise ValueError(
            f"{where} line {rows + row + 1}: expected a whole number below {limit}, "
            f"found {values[row, column]}"
        )


# Compiled code: shape checks must not wrap it, hence no_type_check.


@numba.njit(nogil=True, cache=True)
@no_type_check
def _scan(data, columns, values, hard, powers):
    """Parse whole lines into ``values``.

    Returns how many numbers were found, how many of them were left to Python in ``hard``, and
    where the first line that does not hold ``columns`` numbers goes wrong (−1: nowhere).
    """
    count, difficult, in_line, at, size = 0, 0, 0, 0, data.size
    while at < size:
        byte = data[at]
        if byte == 32 or byte == 9 or byte == 13:  # blank, tab, carriage return
            at += 1
        elif byte == 10:  # the line ends
            if in_line != 0 and in_line != columns:
                return count, difficult, at - 1
            in_line = 0
            at += 1
        elif byte == 44 and in_line > 0:  # a comma must stand between two numbers
            at += 1
            while at < size and (data[at] == 32 or data[at] == 9):
                at += 1
            if at == size or data[at] == 10 or data[at] == 13 or data[at] == 44:
                return count, difficult, at - 1
        elif byte == 44 or in_line == columns:
            return count, difficult, at
        else:
            begin = at
            exact, value, at = _number(data, begin, powers)
            values[count] = value
            if not exact:
                hard[difficult, 0], hard[difficult, 1], hard[difficult, 2] = count, begin, at
                difficult += 1
            count += 1
            in_line += 1
    if in_line != 0 and in_line != columns:
        return count, difficult, size - 1
    return count, difficult, -1


@numba.njit(nogil=True, cache=True)
@no_type_check
def _number(data, at, powers):
    """The number at ``at``, whether it is exact, and where it ends."""
    size = data.size
    negative = data[at] == 45
    if negative or data[at] == 43:
        at += 1
    mantissa, digits, scale, seen_dot, plain = np.int64(0), 0, 0, False, True
    while at < size:
        byte = data[at]
        if 48 <= byte <= 57:
            if mantissa < 900_719_925_474_099:  # one more digit stays below 2⁵³
                mantissa = mantissa * 10 + (byte - 48)
            else:
                plain = False
            digits += 1
            scale -= seen_dot
        elif byte == 46 and not seen_dot:
            seen_dot = True
        elif byte == 44 or byte == 32 or byte == 10 or byte == 9 or byte == 13:
            break
        else:
            plain = False  # an exponent, nan, inf, or no number: Python decides
        at += 1
    if not plain or digits == 0 or scale < -22:
        return False, 0.0, at
    value = mantissa / powers[-scale]
    return True, -value if negative else value, at
