"""`python -m rookexp.data`: positions, the engine's analyses of them, games, and the corpus that is made of these."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rookexp.config import door


def main() -> None:
    """Entry point: composes conf/data.yaml, then makes the corpus."""
    door.enter(make_corpus, "data")


def make_corpus(config: dict[str, Any], run_folder: Path) -> None:
    """Annotates the missing shards, then rebuilds the documents; writes into the config's `folder`.

    With `mix.positions` it writes that many positions there instead, with `transitions.rows` that many A prompts;
    neither needs an engine, and both read only `folder` and `seed` of the top-level keys.
    """
    from rookexp.config import nodes
    from rookexp.corpora.corpus import Corpus

    corpus = Corpus(**check_config(config))
    mix, transitions = (nodes.make(config[name], name) for name in ("mix", "transitions"))
    rows = {"mix": mix.positions, "transitions": transitions.rows}
    asked = {name: part for name, part in (("mix", mix), ("transitions", transitions)) if rows[name] is not None}
    if not asked:
        corpus.annotate()
        print(corpus.build())
        return
    read = " and ".join(f"{name}.*" for name in asked)
    print(f"no corpus is made: all that is read is folder, seed, {read}", file=sys.stderr)
    for part in asked.values():
        print(part.write(corpus.path))
        print(f"written: {', '.join(str(corpus.path / name) for name in part.files)}", file=sys.stderr)


def check_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that are parameters of `Corpus`; others, but for checked groups, are refused.

    Raises: ConfigError naming the key, the value, what is allowed and the nearest spelling.
    """
    from rookexp.config import nodes
    from rookexp.corpora.corpus import Corpus

    return nodes.check_groups(config, ("mix", "transitions"), Corpus, group_given={}, group_also={})


if __name__ == "__main__":
    main()
