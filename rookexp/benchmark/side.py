"""`python -m rookexp.benchmark.side KIND FILE`: runs one side in its own process; FILE is JSON with its settings."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rookexp.benchmark.turns import Turns


def main() -> None:
    """Runs the side until the bench has no more turns for it."""
    kind, file = sys.argv[1:]
    spec = json.loads(Path(file).read_text(encoding="utf-8"))
    turns = Turns()
    import torch

    from rookexp.benchmark import ours, products, roofline, theirs

    if (threads := spec["config"]["hardware"]["threads"]) is not None:
        torch.set_num_threads(threads)
    torch.manual_seed(spec["config"]["seed"])
    sides = {
        "rookexp": ours.step,
        "trl_default": theirs.step,
        "trl_fastest": theirs.step,
        "products": products.step,
        "sample": ours.decode,
        "generate": theirs.decode,
        "machine": roofline.measure,
    }
    sides[kind](spec, turns)


if __name__ == "__main__":
    main()
