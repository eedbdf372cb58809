"""Shares of a whole: read from a mapping in the configuration, and converted to rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from rookexp.config import check


def shares_of(key: str, given: Mapping[str, float], names: tuple[str, ...]) -> dict[str, float]:
    """The share of each of `names`, which sum to 1; a name that `given` lacks has share 0.

    Raises: ConfigError naming the key, its value, what is allowed and the nearest spelling.
    """
    for name, share in given.items():
        if name not in names:
            listed = f"no such key; allowed in {key}: {', '.join(names)}"
            raise check.refusal(f"{key}.{name}", share, f"{listed}{check.nearest(name, names, f'{key}.')}")
        if not 0 <= share <= 1:
            raise check.refusal(f"{key}.{name}", share, "allowed: a number >= 0 and <= 1")
    shares = {name: float(given.get(name, 0.0)) for name in names}
    total = math.fsum(shares.values())
    if abs(total - 1) > 1e-6:
        listed = ", ".join(f"{name}: {share:g}" for name, share in shares.items() if share)
        raise check.refusal(key, f"{{{listed}}}", f"sums to {total:g}; allowed: shares that sum to 1")
    return shares


def row_counts(rows: int, shares: Mapping[str, float]) -> dict[str, int]:
    """How many of `rows` each name gets: its share rounded down, and one more for the largest remainders."""
    exact = {name: share * rows for name, share in shares.items()}
    counts = {name: int(value + 1e-9) for name, value in exact.items()}
    by_remainder = sorted(counts, key=lambda name: counts[name] - exact[name])
    for name in by_remainder[: rows - sum(counts.values())]:
        counts[name] += 1
    return counts


def in_turns(rows: int, shares: Mapping[str, float]) -> Iterator[tuple[str, bool]]:
    """For each of `rows` its name and whether White is to move, which is so in half of the rows of each name.

    A name with an odd number of rows has one more of one colour; over all rows, one colour has at most one more.
    """
    done = 0
    for name, count in row_counts(rows, shares).items():
        for i in range(count):
            yield name, done % 2 == 0 if i == count - 1 and count % 2 else i % 2 == 0
            done += 1
