"""The A prompts that ship: exact quotas, colours in balance, no position twice, made by one command."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import chess
import hydra
import pytest

from rookexp import data
from rookexp.config import composing, door
from rookexp.corpora import a_documents
from rookexp.corpora.transition_mix import TransitionMix
from rookexp.errors import ConfigError, DataError
from rookexp.shares import row_counts
from rookexp.tasks import positions
from rookexp.tasks.environment import EnvironmentPrompt, load_questions

ASSETS = composing.PACKAGE / "assets" / "positions"
SHARES = {"ongoing": 0.47, "opening": 0.27, "castling": 0.06, "en_passant": 0.04, "promotion": 0.06, "mate": 0.06}
SHARES |= {"draw": 0.04}  # those of conf/data.yaml


def mix(**changes: Any) -> TransitionMix:
    return TransitionMix(**{"rows": 40, "eval_rows": 21, "shares": SHARES, "seed": 4} | changes)


def place_of(row: EnvironmentPrompt) -> tuple[str, bool]:
    """Its class as quotas have it, and whether White is to move."""
    board = chess.Board(row.fen)
    kind = a_documents.class_of(board, chess.Move.from_uci(row.move))
    return "opening" if kind == "ongoing" and board.ply() < 10 else kind, board.turn


def checked(folder: Path, rows: int, eval_rows: int) -> None:
    """Quotas, colours, distinct positions and right answers of both files."""
    keys: set[str] = set()
    for name, count in (("train", rows), ("eval", eval_rows)):
        questions = load_questions(folder / f"transitions-{name}.txt", "legacy")[0]
        assert len(questions) == count, "every draw can be seen"
        places = Counter(map(place_of, questions))
        for kind, wanted in row_counts(count, SHARES).items():
            assert places[kind, True] + places[kind, False] == wanted
            assert abs(places[kind, True] - places[kind, False]) <= 1
        white = sum(number for (_, turn), number in places.items() if turn)
        assert abs(2 * white - count) <= 1
        found = {positions.position_key(chess.Board(row.fen)) for row in questions}
        assert len(found) == count
        assert not found & keys
        assert {positions.split_of(key) for key in found} == {"test"}
        keys |= found


def test_quotas_are_exact_and_nothing_is_asked_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "split_of", lambda key: "test")  # one position in fifty is, and that takes a minute
    assert mix().write(tmp_path) == mix().write(tmp_path / "again")
    checked(tmp_path, 40, 21)
    for name in ("train", "eval"):
        one, other = (folder / f"transitions-{name}.txt" for folder in (tmp_path, tmp_path / "again"))
        assert one.read_bytes() == other.read_bytes()
    assert mix(seed=5).make() != mix().make()


def test_what_ships_is_what_the_command_makes_balanced_and_held_out() -> None:
    checked(ASSETS, 256, 128)


def test_only_positions_of_the_test_split_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "split_of", lambda key: "train")
    monkeypatch.setattr("rookexp.corpora.transition_mix.ATTEMPTS", 3)
    with pytest.raises(DataError, match=r"transitions: no further opening in 3 games"):
        mix(rows=1, eval_rows=1, shares={"opening": 1.0}).make()


def test_a_class_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"transitions\.shares\.mates=.*did you mean transitions\.shares\.mate\?"):
        mix(shares={"mates": 1.0})


def test_the_door_writes_positions_and_transitions_where_both_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(positions, "split_of", lambda key: "test")
    door.register_resolvers()
    asked = [f"folder={tmp_path}", "mix.positions=10", "transitions.rows=40", "transitions.eval_rows=21"]
    with hydra.initialize_config_dir(str(composing.conf_dir()), **composing.version_base()):
        config = door.plain(hydra.compose("data", asked))
    data.make_corpus(config, tmp_path)
    said = capsys.readouterr().err.splitlines()[0]
    assert said == "no corpus is made: all that is read is folder, seed, mix.* and transitions.*"
    assert len((tmp_path / "positions.jsonl").read_text(encoding="utf-8").splitlines()) == 10
    checked(tmp_path, 40, 21)
    assert not (tmp_path / "train.txt").exists()
