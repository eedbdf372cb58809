"""Stockfish gives the same lines for the same position; an engine that hangs, crashes or lies is one clear error."""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from select import select

import chess
import pytest
from pretenders import answering, pretender, uci

from rookexp.errors import ConfigError, EngineError
from rookexp.rewards.engine import Line, Stockfish, find_stockfish

ASKED_DEPTH = """
        if "searchmoves" not in command:
            print("info depth 1 multipv 1 score cp", command.split()[-1], "nodes 1 pv e2e4")
        print("bestmove e2e4", flush=True)"""


def test_lines_are_sorted_and_valued_for_the_side_to_move(tmp_path: Path) -> None:
    lines = [("cp -30", "e7e5"), ("mate 2", "c7c5"), ("cp 15", "d7d5"), ("mate -3", "f7f6")]
    engine = Stockfish(path=answering(tmp_path, lines), nodes=7, depth=None, multipv=4, timeout_s=10.0)
    board = chess.Board()
    board.push_uci("e2e4")
    found = engine.lines(board)
    engine.close()
    assert engine.name == "Pretender 1"
    expected = [("c7c5", 99_998), ("d7d5", 15), ("e7e5", -30), ("f7f6", -99_997)]
    assert found == [Line(chess.Move.from_uci(move), value) for move, value in expected]


def test_a_position_without_moves_has_no_lines(tmp_path: Path) -> None:
    engine = Stockfish(path=uci(tmp_path, "os._exit(3)"), nodes=7, depth=None, multipv=4, timeout_s=10.0)
    assert engine.lines(chess.Board("7k/5Q2/6K1/8/8/8/8/8 b - - 0 1")) == []
    engine.close()


def test_too_few_lines_are_an_error(tmp_path: Path) -> None:
    engine = Stockfish(path=answering(tmp_path, [("cp 1", "e2e4")]), nodes=7, depth=None, multipv=2, timeout_s=10.0)
    with pytest.raises(EngineError, match=r"1 of 2 lines .* 7 nodes: raise the limit"):
        engine.lines(chess.Board())
    engine.close()


def test_a_position_is_searched_without_the_game_before_it(tmp_path: Path) -> None:
    path = uci(
        tmp_path,
        """
        print("info depth 1 multipv 1 score cp", position.count("moves"), "nodes 1 pv g1f3")
        print("bestmove g1f3", flush=True)""",
    )
    board = chess.Board()
    for move in ("g1f3", "g8f6", "f3g1", "f6g8"):
        board.push_uci(move)
    with closing(Stockfish(path=path, nodes=7, depth=None, multipv=1, timeout_s=10.0)) as engine:
        assert engine.lines(board)[0].eval_cp == 0, "the cache and every document know the position alone"
    assert len(board.move_stack) == 4


def test_a_move_on_two_lines_is_not_two_lines(tmp_path: Path) -> None:
    path = answering(tmp_path, [("cp 30", "e2e4"), ("cp 10", "e2e4")])
    with (
        closing(Stockfish(path=path, nodes=7, depth=None, multipv=2, timeout_s=10.0)) as engine,
        pytest.raises(EngineError, match=r"1 of 2 lines .* 7 nodes: raise the limit"),
    ):
        engine.lines(chess.Board())


def test_a_limit_that_ends_the_first_iteration_grows_until_each_move_has_a_value(tmp_path: Path) -> None:
    path = uci(
        tmp_path,
        """
        nodes = int(command.split()[-1])
        for number, move in enumerate(["e2e4", "d2d4"][: 1 + (nodes > 500)], start=1):
            print("info depth 1 multipv", number, "score cp", nodes, "nodes 1 pv", move)
        print("bestmove e2e4", flush=True)""",
    )
    engine = Stockfish(path=path, nodes=7, depth=None, multipv=2, timeout_s=10.0)
    assert [(line.move.uci(), line.eval_cp) for line in engine.lines(chess.Board())] == [("e2e4", 700), ("d2d4", 700)]
    engine.close()


def test_a_hung_analysis_names_binary_limit_position_and_timeout(tmp_path: Path) -> None:
    path = uci(tmp_path, "time.sleep(60)")
    engine = Stockfish(path=path, nodes=7, depth=None, multipv=2, timeout_s=0.5)
    begun = time.monotonic()
    with pytest.raises(EngineError) as caught:
        engine.lines(chess.Board())
    for part in (path, "7 nodes", chess.STARTING_FEN, "no answer in 0.5 s"):
        assert part in str(caught.value)
    with pytest.raises(EngineError):
        engine.lines(chess.Board())
    engine.close()
    assert time.monotonic() - begun < 10


def test_a_crashed_engine_is_an_error_and_closes(tmp_path: Path) -> None:
    path = uci(tmp_path, "os._exit(3)")
    engine = Stockfish(path=path, nodes=7, depth=None, multipv=2, timeout_s=10.0)
    with pytest.raises(EngineError) as caught:
        engine.lines(chess.Board())
    for part in (path, "7 nodes", chess.STARTING_FEN, "timeout 10.0 s"):
        assert part in str(caught.value)
    engine.close()
    engine.close()


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\nexec sleep 60\n", "no program\n"])
def test_what_is_no_engine_does_not_start(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    path = pretender(tmp_path, text)
    words = r"pretender did not start as a UCI engine \(timeout 0.5 s\): .*; name a UCI engine: engine_path=FILE, in "
    with pytest.raises(EngineError, match=rf"{words}training reward\.engine\.path=FILE \(of one task, "):
        Stockfish(path=path, nodes=7, depth=None, multipv=2, timeout_s=0.5)
    gc.collect()  # no process is left that nobody has waited for
    assert not caplog.records


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script")
def test_what_a_script_started_that_is_no_engine_is_killed_with_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "held")
    path = pretender(tmp_path, f"#!/bin/sh\nsleep 60 > {tmp_path}/held &\nwait\n")
    with open(os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK), "rb") as held:
        with pytest.raises(EngineError, match=r"no answer in 0\.5 s"):
            Stockfish(path=path, nodes=7, depth=None, multipv=2, timeout_s=0.5)
        assert select([held], [], [], 10)[0], "nobody holds it open for writing"
    gc.collect()


def test_a_missing_engine_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match=r"nowhere.*apt-get install stockfish.*engine_path=FILE"):
        find_stockfish(str(tmp_path / "nowhere"))
    monkeypatch.setenv("PATH", str(tmp_path))
    if not os.path.exists("/usr/games/stockfish"):
        with pytest.raises(EngineError, match="PATH"):
            find_stockfish(None)


@pytest.mark.parametrize(
    ("nodes", "depth", "named"), [(None, None, "depth=null, nodes=null"), (7, 3, "depth=3, nodes=7")]
)
def test_the_limit_is_one_of_nodes_and_depth(nodes: int | None, depth: int | None, named: str) -> None:
    with pytest.raises(ConfigError, match=f"{named}: allowed: one of the two, the other null"):
        Stockfish(path=None, nodes=nodes, depth=depth, multipv=2, timeout_s=0.5)


def test_the_limit_reaches_the_engine_and_its_errors(tmp_path: Path) -> None:
    engine = Stockfish(path=uci(tmp_path, ASKED_DEPTH), nodes=None, depth=9, multipv=1, timeout_s=10.0)
    assert engine.lines(chess.Board()) == [Line(chess.Move.from_uci("e2e4"), 9)]
    assert engine.limit == "depth 9"
    with pytest.raises(EngineError, match=r"0 of 1 lines .* after d2d4 with depth 9"):
        engine.lines(chess.Board(), chess.Move.from_uci("d2d4"))  # it was not the only move that was searched
    engine.close()


def test_an_engine_has_a_group_of_its_own_and_is_gone_when_closed(tmp_path: Path) -> None:
    """A Ctrl-C in a terminal goes to the whole group of what runs there."""
    engine = Stockfish(path=uci(tmp_path, "time.sleep(60)"), nodes=7, depth=None, multipv=1, timeout_s=60.0)
    pid = engine._engine.transport.get_pid()
    assert os.getpgid(pid) == pid != os.getpgid(0)

    def search() -> None:
        with pytest.raises(EngineError):
            engine.lines(chess.Board())

    searching = threading.Thread(target=search)
    searching.start()
    begun = time.monotonic()
    engine.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    searching.join()
    assert time.monotonic() - begun < 5


def test_another_binary_is_another_engine(tmp_path: Path) -> None:
    found = set()
    for lines in ([("cp 1", "e2e4")], [("cp 2", "e2e4")]):
        engine = Stockfish(path=answering(tmp_path, lines), nodes=7, depth=None, multipv=1, timeout_s=10.0)
        found.add(engine.identity())
        engine.close()
    assert len(found) == 2
    assert all(re.fullmatch(r"Pretender 1, Threads 1, Hash 1, sha256 [0-9a-f]{16}", text) for text in found)


@pytest.fixture
def stockfish() -> Iterator[Stockfish]:
    try:
        path = find_stockfish(None)
    except EngineError:
        pytest.skip("no Stockfish here")
    engine = Stockfish(path=path, nodes=500, depth=None, multipv=5, timeout_s=30.0)
    yield engine
    engine.close()


@pytest.mark.engine
def test_the_same_position_gives_the_same_lines_whatever_came_before(stockfish: Stockfish) -> None:
    boards = [chess.Board(), chess.Board("r1bqkb1r/pppp1ppp/2n2n2/4p3/2B1P3/5N2/PPPP1PPP/RNBQK2R w KQkq - 4 4")]
    first = [stockfish.lines(board) for board in boards]
    assert [stockfish.lines(board) for board in reversed(boards)] == first[::-1]
    other = Stockfish(path=stockfish.path, nodes=500, depth=None, multipv=5, timeout_s=30.0)
    assert other.lines(boards[1]) == first[1]
    other.close()
    for board, lines in zip(boards, first, strict=True):
        assert len({line.move for line in lines}) == 5
        assert {line.move for line in lines} <= set(board.legal_moves)
        assert [line.eval_cp for line in lines] == sorted((line.eval_cp for line in lines), reverse=True)


@pytest.mark.engine
def test_mates_and_short_lists_have_their_values(stockfish: Stockfish) -> None:
    mate = stockfish.lines(chess.Board("6k1/5ppp/8/8/8/8/5PPP/R5K1 w - - 0 1"))[0]
    assert (mate.move.uci(), mate.eval_cp) == ("a1a8", 99_999)
    checked = stockfish.lines(chess.Board("7k/8/8/8/8/8/8/K6R b - - 0 1"))
    assert {line.move.uci() for line in checked} == {"h8g7", "h8g8"}
    assert all(line.eval_cp < -200 for line in checked)


@pytest.mark.engine
def test_depth_is_a_limit_that_repeats_itself(stockfish: Stockfish) -> None:
    deep = Stockfish(path=stockfish.path, nodes=None, depth=6, multipv=3, timeout_s=30.0)
    board = chess.Board("r1bqkb1r/pppp1ppp/2n2n2/4p3/2B1P3/5N2/PPPP1PPP/RNBQK2R w KQkq - 4 4")
    first = deep.lines(board), deep.lines(board, chess.Move.from_uci("h2h4"))
    deep.lines(chess.Board())
    assert (deep.lines(board), deep.lines(board, chess.Move.from_uci("h2h4"))) == first
    assert len(first[0]) == 3
    deep.close()


@pytest.mark.engine
@pytest.mark.parametrize(
    ("fen", "move", "value"),
    [
        ("6k1/5ppp/8/8/8/8/5PPP/R5K1 w - - 0 1", "a1a8", 99_999),  # mate
        ("7k/5K2/8/6Q1/8/8/8/8 w - - 0 1", "g5g6", 0),  # stalemate
        ("7k/8/8/8/8/8/6q1/K7 w - - 99 80", "a1b1", 0),  # the draw by 50 moves comes with it
    ],
)
def test_the_value_of_one_move_is_on_the_scale_of_the_lines(
    stockfish: Stockfish, fen: str, move: str, value: int
) -> None:
    assert stockfish.lines(chess.Board(fen), chess.Move.from_uci(move)) == [Line(chess.Move.from_uci(move), value)]
