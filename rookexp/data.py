"""`python -m rookexp.data`: positions, the engine's analyses of them, games, and the corpus that is made of these."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rookexp import door


def main() -> None:
    """The door: composes conf/data.yaml, then makes the corpus."""
    door.enter(make_corpus, "data")


def make_corpus(config: dict[str, Any], run_folder: Path) -> None:
    """Annotates the shards that are missing, then builds the documents anew; writes into `folder` of the config.

    With `mix.positions` it writes so many positions there instead, and with `transitions.rows` A prompts; neither needs
    an engine.
    """
    from rookexp import nodes
    from rookexp.corpus import Corpus

    corpus = Corpus(**check_config(config))
    mix, transitions = nodes.make(config["mix"]), nodes.make(config["transitions"])
    asked = [part for part, rows in ((mix, mix.positions), (transitions, transitions.rows)) if rows is not None]
    for part in asked:
        print(part.write(corpus.folder))
        print(f"written: {', '.join(str(corpus.folder / name) for name in part.files)}", file=sys.stderr)
    if asked:
        return
    corpus.annotate()
    print(corpus.build())


def check_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that the corpus takes; the rest is refused.

    Raises: ConfigError naming the key, the value, what is allowed and the nearest spelling.
    """
    from rookexp import nodes
    from rookexp.corpus import Corpus

    return nodes.check_groups(config, ("mix", "transitions"), Corpus, group_given={}, group_also={})


if __name__ == "__main__":
    main()
