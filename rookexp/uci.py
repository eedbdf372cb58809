"""`python -m rookexp.uci`: any checkpoint as a chess engine that speaks UCI on standard input and output."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rookexp.config import door
from rookexp.errors import RookexpError

if TYPE_CHECKING:
    from rookexp.player import Player

GROUPS = ("model", "hardware")
QUIT_S = 0.1  # seconds between a `quit` that came by itself and the end, for the lines before it


def main() -> None:
    """Entry point: composes conf/uci.yaml, then answers a GUI."""
    door.enter(uci, "uci")


def uci(config: dict[str, Any], run_folder: Path) -> None:
    """Answers commands until `quit` or the end of input; the model is loaded after the GUI has received the options.

    Raises: ConfigError or DataError for what cannot be built, which is also sent to the GUI's log as `info string`.
    """
    from rookexp.config import nodes
    from rookexp.run_folder import runs
    from rookexp.uci_protocol import Engine, Settings

    own = nodes.check_groups(nodes.without(config, GROUPS), (), Settings, group_given={}, group_also={})
    if own["p_style"] is None:
        own["p_style"] = runs.p_style_of(config["model"].get("path"))
    name = Path(str(config["model"].get("path", "random"))).name
    with contextlib.suppress(BrokenPipeError), answering() as out:  # the GUI is gone
        engine = Engine(name=f"rookexp {name}", settings=Settings(**own), load=lambda: load(config), out=out)
        try:
            engine.run(asked())
        except RookexpError as error:
            engine.tell(f"error: {error}")
            raise


def load(config: dict[str, Any]) -> Player:
    """A player with the config's model on its device.

    Raises: ConfigError or DataError for what cannot be built.
    """
    from rookexp import build
    from rookexp.config import nodes
    from rookexp.player import Player
    from rookexp.uci_protocol import Settings

    build.check_groups(config, GROUPS, Settings)
    hardware = nodes.make(config["hardware"])
    hardware.refuse_fit()
    policy = build.load_policy(config, hardware)
    return Player(model=policy.model, tokenizer=policy.tokenizer, autocast=hardware.autocast)


def asked() -> Iterator[str]:
    """Yields the lines of standard input; bytes that are no UTF-8 become replacement characters and end nothing.

    A `quit` that arrives by itself, as from a GUI, ends the process `QUIT_S` later, whatever it is doing then; one that
    arrives together with lines before it, as from a file, is obeyed after them.
    """
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        rest = b""
        with contextlib.suppress(OSError):  # a closed input, which is at its end
            while more := os.read(0, 1 << 16):  # sys.stdin would be locked while Python exits
                *whole, rest = re.split(rb"[\r\n]+", rest + more)
                for line in whole:
                    lines.put(line.decode("utf-8", errors="replace"))
                if whole and whole[0].split() == [b"quit"]:
                    time.sleep(QUIT_S)
                    os._exit(0)
        lines.put(rest.decode("utf-8", errors="replace"))
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    yield from iter(lines.get, None)


@contextlib.contextmanager
def answering() -> Iterator[IO[str]]:
    """Yields standard output for UCI alone; what anything else prints meanwhile goes to standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr), open(kept, "w", encoding="utf-8", closefd=False) as out:
            yield out
    finally:
        os.dup2(kept, 1)
        os.close(kept)


if __name__ == "__main__":
    main()
