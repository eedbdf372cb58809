"""Shares of a whole, as a mapping in the configuration gives them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rookexp import check


def shares_of(key: str, given: Mapping[str, float], names: tuple[str, ...]) -> dict[str, float]:
    """Shares of all of `names`, which sum to 1; an absent name has none.

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
