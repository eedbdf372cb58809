"""A model as a UCI engine: what a GUI may send is answered as the protocol says, and every move is legal."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import chess
import chess.engine
import chess.pgn
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookexp import chess_text, policies
from rookexp.config import door
from rookexp.errors import DataError
from rookexp.player import Player, choose
from rookexp.rewards.engine import find_stockfish
from rookexp.uci_protocol import Answer, Engine, Settings, seconds

SETTINGS = Settings(
    temperature=0.0, reading="written", illegal_move="best_listed", multipv=5, p_style="bare", max_new_tokens=160,
    seed=0, pgn=None,
)  # fmt: skip


def never() -> bool:
    return False


START = chess_text.legal_ucis(chess.Board())
BACK = "r5k1/5ppp/8/8/8/8/5PPP/6K1 b - - 0 20"


class Scripted:
    """A player that says what it is told to, and notes what it is asked."""

    def __init__(self, text: str = " M: e2e4 d2d4 E: 0.3 0.25 B: d2d4") -> None:
        self.text = text
        self.asked: list[tuple[str, frozenset[str]]] = []

    def answer(
        self, fen: str, legal: frozenset[str], settings: Settings, turn: int, stopped: Callable[[], bool]
    ) -> Answer:
        self.asked.append((fen, legal))
        return choose(f"P: {fen}{self.text}", legal, settings, turn)


def talk(*lines: str, player: Any = None, **changes: Any) -> list[str]:
    """What an engine says to these lines."""
    out, player = io.StringIO(), Scripted() if player is None else player
    Engine(name="test", settings=replace(SETTINGS, **changes), load=lambda: player, out=out).run(lines)
    assert out.getvalue().isascii()
    return out.getvalue().splitlines()


# ---- the protocol ---------------------------------------------------------------------------------------------------


def test_options_come_before_the_model_and_readyok_after() -> None:
    loaded: list[int] = []
    out = io.StringIO()
    engine = Engine(name="test", settings=SETTINGS, load=lambda: loaded.append(1) or Scripted(), out=out)
    engine.run(["uci\n"])
    assert not loaded
    lines = out.getvalue().splitlines()
    assert (lines[0], lines[-1]) == ("id name test", "uciok")
    assert "option name Reading type combo default written var written var argmax" in lines
    assert "option name MultiPV type spin default 5 min 1 max 5" in lines
    engine.run(["isready", "isready"])
    assert loaded == [1]
    assert out.getvalue().splitlines()[-2:] == ["readyok"] * 2


@pytest.mark.parametrize(
    "limits",
    ["", "movetime 1", "wtime 1 btime 1 winc 0 binc 0 movestogo 4", "depth 3", "nodes 5", "mate 2", "movetime x y"],
)
def test_every_limit_is_answered_at_once(limits: str) -> None:
    assert talk("position startpos", f"go {limits}") == [
        "info depth 1 multipv 2 score cp 30 pv e2e4",
        "info depth 1 multipv 1 score cp 25 pv d2d4",
        "bestmove d2d4",
    ]


@pytest.mark.parametrize(("search", "end"), [("infinite", "stop"), ("ponder wtime 9", "ponderhit")])
def test_a_search_without_end_keeps_its_move_until_it_is_ended(search: str, end: str) -> None:
    engine = ["position startpos", f"go {search}", "isready", "setoption name Reading value argmax"]
    assert [line for line in talk(*engine) if line.startswith("bestmove")] == []
    assert "readyok" in talk(*engine)
    assert [line for line in talk(*engine, end, "stop") if not line.startswith("info")] == ["readyok", "bestmove d2d4"]


def test_readyok_does_not_wait_for_the_answer_and_all_else_does() -> None:
    may_answer, out = threading.Event(), io.StringIO()

    class Slow(Scripted):
        def answer(self, *args: Any) -> Answer:
            assert may_answer.wait(10)
            return super().answer(*args)

    player = Slow()
    engine = Engine(name="test", settings=SETTINGS, load=lambda: player, out=out)

    def lines() -> Iterator[str]:
        yield from ("isready", "position startpos", "go", "isready")
        assert out.getvalue().splitlines() == ["readyok"] * 2
        assert not player.asked
        threading.Timer(0.05, may_answer.set).start()
        yield from ("stop", "position startpos moves e2e4", "isready")

    engine.run(lines())
    assert [line for line in out.getvalue().splitlines() if not line.startswith("info")] == [
        *["readyok"] * 2,
        "bestmove d2d4",
        "readyok",
    ]
    assert player.asked == [(chess.STARTING_FEN, START)]


class UntilStopped(Scripted):
    """A player that thinks until it is stopped, ten seconds at most."""

    def __init__(self, limit_s: float = 10) -> None:
        super().__init__()
        self.limit_s = limit_s

    def answer(self, fen: str, legal: frozenset[str], settings: Settings, turn: int, stopped: Any) -> Answer:
        deadline = time.monotonic() + self.limit_s
        while not stopped():
            assert time.monotonic() < deadline, "nobody has stopped it"
            time.sleep(0.001)
        return choose(f"P: {fen} M: e2e4 d2", legal, settings, turn)


@pytest.mark.parametrize("lines", [["go", "stop"], ["go ponder", "ponderhit", "isready", "stop"], ["go infinite"]])
def test_stop_and_the_end_of_an_infinite_search_cut_the_answer_short(lines: list[str]) -> None:
    said = talk("isready", *lines, player=UntilStopped())
    why = "the model was stopped and says no move: e2e4 instead, the best legal move of its list"
    assert f"info string fallback 1 in 1 answers: {why}" in said
    assert said.count("bestmove e2e4") == (lines != ["go infinite"])
    assert said.count("readyok") == 1 + lines.count("isready")


@pytest.mark.parametrize(
    "lines", [["go movetime 50"], ["go wtime 100 btime 100000"], ["go ponder movetime 50", "ponderhit", "isready"]]
)
def test_an_answer_is_cut_short_before_the_time_is_over(lines: list[str]) -> None:
    began = time.monotonic()
    said = talk("isready", *lines, "ucinewgame", player=UntilStopped())
    assert said[-1] == "bestmove e2e4"
    assert time.monotonic() - began < 5
    with pytest.raises(AssertionError, match="nobody has stopped it"):  # the clock of one search is not the next one's
        talk("isready", "go movetime 50", "position startpos", "go", "ucinewgame", player=UntilStopped(limit_s=0.5))


@pytest.mark.parametrize(
    ("words", "white", "black"),
    [
        ("movetime 1000", 0.9, 0.9),
        ("wtime 8000 btime 400 winc 1000", 2.0, 0.1),
        ("movetime 1000 wtime 400", 0.9, 0.9),
        ("wtime -5 btime 4e3", 0.0, None),
        ("movetime x wtime", None, None),
        ("infinite", None, None),
        (f"movetime {10**30}", None, None),
    ],
)
def test_how_long_an_answer_may_take(words: str, white: float | None, black: float | None) -> None:
    for colour, expected in ((chess.WHITE, white), (chess.BLACK, black)):
        assert seconds(words.split(), colour) == (threading.TIMEOUT_MAX if expected is None else expected)


@pytest.mark.parametrize(("sent", "obeyed"), [(["go\n", "quit\n"], b""), (["go\nquit\n"], b"done")])
def test_a_quit_that_comes_by_itself_ends_the_process_whatever_it_does(
    root: Path, sent: list[str], obeyed: bytes
) -> None:
    busy = (
        "import time; from rookexp.uci import asked; lines = asked(); next(lines); print('read', flush=True); "
        "time.sleep(1.5); print('done')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", busy], env=environment(root), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for text in sent:
            process.stdin.write(text.encode())
            process.stdin.flush()
            if text == sent[0]:
                assert process.stdout.readline() == b"read\n"
        assert process.stdout.read().strip() == obeyed
    assert process.returncode == 0


def test_what_a_search_raises_ends_the_engine() -> None:
    class Broken:
        def answer(self, *args: Any) -> Answer:
            raise DataError("no room")

    out = io.StringIO()
    engine = Engine(name="test", settings=SETTINGS, load=Broken, out=out)
    with pytest.raises(DataError, match="no room"):
        engine.run(["go", "position startpos", "go"])
    assert out.getvalue() == "bestmove (none)\n"

    def nothing() -> Any:
        raise DataError("no such folder")

    def lines() -> Iterator[str]:
        yield "go"
        raise AssertionError("a model that is not there is told before the next line")

    with pytest.raises(DataError, match="no such folder"):
        Engine(name="test", settings=SETTINGS, load=nothing, out=out).run(lines())


def test_searchmoves_leave_no_other_move() -> None:
    player = Scripted()
    assert talk("go searchmoves a2a3 e2e4 e2e5", player=player)[-1] == "bestmove e2e4"
    assert talk("go searchmoves E2E4", player=player)[-1] == "bestmove e2e4"
    said = talk("go searchmoves e2e5", player=player)
    assert said[0] == "info string no legal move to search: searchmoves e2e5; all are"
    assert player.asked[0][1] == {"a2a3", "e2e4"}


def test_the_position_is_asked_as_it_was_written() -> None:
    player = Scripted()
    odd = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq e3 0 1"  # python-chess would write no e3
    talk(f"position fen {odd}", "go", f"position fen {odd} moves e7e5", "go", "position startpos", "go", player=player)
    after = chess.Board(odd)
    after.push_uci("e7e5")
    assert [fen for fen, _ in player.asked] == [odd, after.fen(en_passant="fen"), chess.STARTING_FEN]
    assert player.asked[1][0].endswith(" w KQkq e6 0 2"), "as in the data, after every double push"


def test_castling_rights_are_asked_in_the_usual_notation() -> None:
    player = Scripted()
    talk("position fen rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w HAha - 0 1", "go", player=player)
    assert player.asked[0][0] == chess.STARTING_FEN


@pytest.mark.parametrize("fen", ["7k/5Q2/6K1/8/8/8/8/8 b - - 0 1", "R5k1/5ppp/8/8/8/8/8/K7 b - - 0 1"])
def test_no_move_where_the_game_is_over(fen: str) -> None:
    said = talk(f"position fen {fen}", "go infinite")
    assert said == ["info string no legal move in this position", "bestmove (none)"]


def test_what_cannot_be_done_is_told_and_changes_nothing() -> None:
    said = talk(
        "position fen nonsense", "position", "position startpos moves e2e4 0000",
        "position startpos d2d4 moves e2e4 e2e4 e7e5", "setoption name Speed value 3",
        "setoption", "setoption name Temperature value -1", "setoption name MultiPV value 2.5",
        "setoption name reading value ARGMAX", "setoption name multipv value 1", "joho debug on", "wibble", "go",
        player=Scripted(" M: e7e5 c7c5 E: 0.1 0.2 B: e7e5"),
    )  # fmt: skip
    assert said == [
        "info string no position: fen nonsense; the last one stays",
        "info string no position: ; the last one stays",
        "info string no legal move: 0000; it and what follows it is left out",
        "info string left out: d2d4; the moves of a position come after the word moves",
        "info string no legal move: e2e4; it and what follows it is left out",
        "info string no such option: name Speed value 3; there are Temperature, Reading, IllegalMove, MultiPV",
        "info string no such option: ; there are Temperature, Reading, IllegalMove, MultiPV",
        "info string Temperature=-1: allowed: a number >= 0; it stays 0.0",
        "info string MultiPV=2.5: allowed: an integer >= 1 and <= 5; it stays 5",
        "info depth 1 multipv 1 score cp 20 pv c7c5",
        "bestmove c7c5",
    ]


WORDS = [
    "uci", "isready", "ucinewgame", "stop", "go", "infinite", "searchmoves", "position", "startpos", "fen", "moves",
    "e2e4", "e7e8q", "0000", "e1g1", "setoption", "name", "value", "MultiPV", "Temperature", "1e999", "9" * 20, "\x00",
    "é", "ponderhit", "debug", "w", "b", "-", "KQkq", "0",
]  # fmt: skip
ODD = [
    "8/8/8/8/8/8/8/8 w - - 0 1",
    "kkkkkkkk/8/8/8/8/8/8/KKKKKKKK b KQkq e3 99 1",
    "4k3/PPPPPPPP/8/8/8/8/pppppppp/8 w KQkq - 0 1",
    "4k3/4Q3/8/8/8/8/8/4K3 w",
    BACK,
]
LINES = [f"position fen {fen}{moves}" for fen in ODD for moves in ("", " moves 0000 e7e8", " moves e8e7 e2e4")]


@settings(max_examples=100)
@given(
    st.lists(
        st.sampled_from([*LINES, "go"])
        | st.lists(st.sampled_from(WORDS) | st.text(max_size=8), max_size=9).map(" ".join),
        max_size=8,
    )
)
def test_no_input_ends_the_engine(lines: list[str]) -> None:
    said = talk(*lines, "uci", player=Scripted(""), pgn=os.devnull)  # which is told to be no file
    assert ("uciok" in said) or any("quit" in line for line in lines)
    words = ("id ", "option ", "uciok", "readyok", "info ", "bestmove ")
    assert all(line.startswith(words) for line in said)


@pytest.mark.parametrize("line", LINES)
def test_odd_positions_are_answered(line: str) -> None:
    said = talk(line, "go", player=Scripted(""), pgn=os.devnull)
    assert said[-1].startswith("bestmove ")
    unwritten = f"info string pgn={os.devnull}: the game cannot be written (not a regular file)"
    assert (unwritten in said) == (said[-1] != "bestmove (none)")


# ---- the move -------------------------------------------------------------------------------------------------------

LISTED = "P: x M: e2e4 d2d4 e2e5 g1f3 E: 0.3 0.25 0.9 0.35 B: "


@pytest.mark.parametrize(
    ("text", "changes", "move", "instead"),
    [
        (LISTED + "d2d4", {}, "d2d4", None),
        (LISTED + "a2a3", {}, "a2a3", None),
        (LISTED + "e2e5", {}, "g1f3", "e2e5, which cannot be played: g1f3 instead, the best legal move of its list"),
        (LISTED, {}, "g1f3", "no move: g1f3 instead, the best legal move of its list"),
        (LISTED + "d2d4", {"reading": "argmax"}, "g1f3", "e2e5, which cannot be played: g1f3 instead, the best legal"),
        ("P: x M: d2d4 e2e4 E: 0.1 B: zz", {}, "d2d4", "zz, which cannot be played: d2d4 instead, the best legal move"),
        ("P: x M: d2d4 e2e4 E: 0.1 B: e2e4", {"reading": "argmax"}, "d2d4", "no move: d2d4 instead, the best legal"),
        ("P: x M: E: B:", {}, None, "any legal move"),
        ("", {}, None, "any legal move"),
        (LISTED + "e2e5", {"illegal_move": "any_legal"}, None, "any legal move"),
    ],
)
def test_the_move_of_an_answer(text: str, changes: dict[str, Any], move: str | None, instead: str | None) -> None:
    found = choose(text, START, replace(SETTINGS, **changes), 0)
    assert found.move in START
    assert move in (None, found.move)
    assert found.instead == instead if instead is None else instead in (found.instead or "")
    assert found.lines[0][0] == found.move
    assert found == choose(text, START, replace(SETTINGS, **changes), 0)


def test_lines_are_legal_distinct_and_ranked_after_the_move() -> None:
    found = choose(
        LISTED.replace("g1f3 E", "g1f3 e2e4 E").replace("0.35 B", "0.35 -0.1 B") + "d2d4", START, SETTINGS, 0
    )
    assert found.lines == (("d2d4", 25), ("g1f3", 35), ("e2e4", 30))
    assert choose(LISTED + "a2a3", START, SETTINGS, 0).lines[0] == ("a2a3", None)


def test_mates_are_told_as_mates_and_fallbacks_are_counted() -> None:
    player = Scripted(" M: a8a1 g8f8 h7h5 E: 999.99 -999.97 -0.0 B: a8a9")
    said = talk(f"position fen {BACK}", "go", "go", player=player)
    why = "the model says a8a9, which cannot be played: a8a1 instead, the best legal move of its list"
    assert said[:5] == [
        f"info string fallback 1 in 1 answers: {why}",
        "info depth 1 multipv 3 score mate -3 pv g8f8",
        "info depth 1 multipv 2 score cp 0 pv h7h5",
        "info depth 1 multipv 1 score mate 1 pv a8a1",
        "bestmove a8a1",
    ]
    assert said[5] == f"info string fallback 2 in 2 answers: {why}"


@pytest.fixture(scope="module")
def tiny_player() -> Player:
    """A model with random weights, whose answers are noise."""
    sizes = {"n_layer": 1, "n_head": 1, "n_embd": 8, "n_positions": 200, "seed": 0}
    policy = policies.random_gpt2(tokenizer="characters", spelled=False, **sizes)
    return Player(model=policy.model, tokenizer=policy.tokenizer, autocast=nullcontext)


def test_a_stopped_model_says_nothing_more(tiny_player: Player) -> None:
    long, asked = replace(SETTINGS, temperature=1.0, max_new_tokens=100), iter([False] * 3)
    cut = tiny_player.complete("P: ", long, 0, lambda: next(asked, True))
    whole = tiny_player.complete("P: ", long, 0, never)
    assert len(cut) == 3
    assert len(whole) > 3
    assert whole.startswith(cut)


def test_a_random_model_plays_legal_moves_that_its_seed_repeats(tiny_player: Player) -> None:
    fast = replace(SETTINGS, temperature=1.0, max_new_tokens=5)
    games = []
    for seed in (0, 0, 1):
        board = chess.Board()
        for turn in range(8):
            legal = chess_text.legal_ucis(board)
            board.push_uci(tiny_player.answer(board.fen(), legal, replace(fast, seed=seed), turn, never).move)
        games.append(board.fen())
    assert games[0] == games[1] != games[2]
    said = {tiny_player.complete("P: ", replace(fast, seed=0), turn, never) for turn in range(5)}
    assert len(said) > 1
    said = {tiny_player.complete("P: ", replace(fast, temperature=0.0), turn, never) for turn in range(5)}
    assert len(said) == 1


# ---- games ----------------------------------------------------------------------------------------------------------


def read_games(path: Path) -> list[chess.pgn.Game]:
    with path.open(encoding="utf-8", errors="replace") as file:
        return list(iter(lambda: chess.pgn.read_game(file), None))


def test_games_are_appended_as_pgn(tmp_path: Path) -> None:
    path = tmp_path / "games.pgn"
    mating = Scripted(" M: a8a1 E: 999.99 B: a8a1")
    lines = ["position startpos", "go", "position startpos moves d2d4 d7d5", "go", "ucinewgame", "ucinewgame"]
    talk(*lines, "position startpos moves e2e4", "go", player=Scripted(" B: d2d4"), pgn=str(path))
    talk(f"position fen {BACK}", "go", "quit", player=mating, pgn=str(path))
    games = read_games(path)
    assert [game.headers["White"] for game in games] == ["test", "?", "?"]
    assert [move.uci() for move in games[0].mainline_moves()][:2] == ["d2d4", "d7d5"]
    assert len(list(games[0].mainline_moves())) == 3
    assert (games[2].headers["FEN"], games[2].headers["Result"]) == (BACK, "0-1")
    *_, told, best = talk("go", pgn=str(tmp_path / "no" / "folder.pgn"))
    assert told.startswith("info string pgn=")
    assert best.startswith("bestmove ")


def test_a_game_is_in_the_file_as_far_as_it_is_known_while_it_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "games.pgn"
    path.write_bytes(b'[Event "mine \xe9"]\n\n1. e4 *\n\n')
    mating = "position startpos moves f2f3 e7e5 g2g4"
    seen: list[list[str]] = []

    def lines() -> Iterator[str]:
        for line in (
            "position startpos", "go", "position startpos moves f2f3 e7e5", "go", "go", f"{mating} d8h4", "ucinewgame",
            "position startpos moves e2e4 e7e5", "go infinite", "position startpos moves e2e4 e7e5",
        ):  # fmt: skip
            yield line
            if engine.search is not None:
                engine.search.result()
            text = path.read_bytes()
            assert text.startswith(b'[Event "mine \xe9"]\n\n1. e4 *\n\n'), "what was there stays to the byte"
            games = read_games(path)[1:]
            seen.append([" ".join(move.uci() for move in game.mainline_moves()) for game in games])
            assert [path.name for path in tmp_path.iterdir()] == ["games.pgn"]
        raise KeyboardInterrupt  # killed

    player = Scripted(" B: f2f3")
    engine = Engine(name="test", settings=replace(SETTINGS, pgn=str(path)), load=lambda: player, out=io.StringIO())
    said = lines()
    with pytest.raises(KeyboardInterrupt):
        engine.run(turn(player, said))
    lost = "f2f3 e7e5 g2g4 d8h4"
    assert seen == [
        [], ["f2f3"], ["f2f3 e7e5"], ["f2f3 e7e5 g2g4"], ["f2f3 e7e5 g2g4"], [lost], [lost], [lost],
        [lost, "e2e4 e7e5 g2g4"], [lost, "e2e4 e7e5 g2g4"],
    ]  # fmt: skip
    assert [game.headers["Result"] for game in read_games(path)] == ["*", "0-1", "*"]


def turn(player: Scripted, lines: Iterator[str]) -> Iterator[str]:
    """The lines; from the third on the player says g2g4."""
    for number, line in enumerate(lines):
        if number == 2:
            player.text = " B: g2g4"
        yield line


@pytest.mark.parametrize(
    ("then", "games"),
    [
        ("e2e4 g8f6 b1c3", ["e2e4 g8f6 b1c3 a7a6"]),  # the same question
        ("e2e4 g8f6 b1c3 a7a6 a2a3", ["e2e4 g8f6 b1c3 a7a6 a2a3 a6a5"]),
        ("e2e4 g8f6 d2d4", ["e2e4 g8f6 d2d4 a7a6"]),  # the other's last move taken back
        ("e2e4", ["e2e4 g8f6 b1c3 a7a6", "e2e4 a7a6"]),  # another game
        ("d2d4 g8f6 b1c3", ["e2e4 g8f6 b1c3 a7a6", "d2d4 g8f6 b1c3 a7a6"]),
        ("e2e4 g8f6", ["e2e4 g8f6 b1c3 a7a6", "e2e4 g8f6 a2a3"]),  # with the other colour
    ],
)
def test_a_question_again_or_a_take_back_is_the_same_game(tmp_path: Path, then: str, games: list[str]) -> None:
    path = tmp_path / "games.pgn"
    asked = ["position startpos moves e2e4 g8f6 b1c3", "go nodes 1", f"position startpos moves {then}", "go infinite"]

    class First:
        def answer(self, fen: str, legal: frozenset[str], *rest: Any) -> Answer:
            return Answer(next(move for move in ("a7a6", "a6a5", "a2a3") if move in legal), (), None)

    talk(*asked, "stop", player=First(), pgn=str(path))
    assert [" ".join(move.uci() for move in game.mainline_moves()) for game in read_games(path)] == games


def test_games_that_begin_alike_are_two_after_ucinewgame(tmp_path: Path) -> None:
    path = tmp_path / "games.pgn"
    game = ["position startpos moves e2e4", "go"]
    talk(*game, "ucinewgame", *game, player=Scripted(" B: e7e5"), pgn=str(path))
    assert [" ".join(move.uci() for move in game.mainline_moves()) for game in read_games(path)] == ["e2e4 e7e5"] * 2


def test_two_engines_share_a_file(tmp_path: Path) -> None:
    path, began = tmp_path / "games.pgn", date.today()
    engines = [
        Engine(name=name, settings=replace(SETTINGS, pgn=str(path)), load=Scripted, out=io.StringIO())
        for name in ("one", "two")
    ]
    moves: list[str] = []
    for ply in range(4):
        player = engines[ply % 2]
        player.run([f"position startpos moves {' '.join(moves)}", "go"])
        moves.append(player.record.game.peek().uci())  # type: ignore[union-attr]
    games = read_games(path)
    assert [(game.headers["White"], game.headers["Black"]) for game in games] == [("one", "?"), ("?", "two")]
    days = {f"{day:%Y.%m.%d}" for day in (began, date.today())}
    assert {game.headers["Date"] for game in games} <= days
    assert [len(list(game.mainline_moves())) for game in games] == [3, 4]


def command(*typed: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "rookexp.uci",
        "hardware=cpu",
        "hardware.precision=fp32",
        "hardware.threads=1",
        *typed,
    ]


def environment(root: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(root), "PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}


def test_a_model_that_cannot_be_loaded_is_told_to_the_gui(root: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        command("model.path=nowhere"), input="uci\nisready\n", cwd=tmp_path, env=environment(root), text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    lines = done.stdout.splitlines()
    assert lines[-2] == "uciok"
    assert lines[-1].startswith("info string error: model: nowhere: no such folder")
    assert done.stderr == lines[-1].removeprefix("info string ") + "\n"
    assert not list(tmp_path.iterdir()), "nothing is written where a GUI starts it"


def test_bytes_that_are_no_text_end_nothing(root: Path, tmp_path: Path) -> None:
    strict = environment(root) | {"PYTHONIOENCODING": "utf-8:strict"}  # as in most people's locale
    done = subprocess.run(
        command("model.path=nowhere"), input=b"\xff\xfe\nuci\nquit\n", cwd=tmp_path, env=strict, capture_output=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.endswith(b"uciok\n")


def test_the_door_has_its_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    from rookexp import uci

    seen: list[tuple[Any, str]] = []
    monkeypatch.setattr(door, "enter", lambda task, name: seen.append((task, name)))
    uci.main()
    assert seen == [(uci.uci, "uci")]


@pytest.mark.slow
@pytest.mark.engine
def test_a_whole_game_against_stockfish(root: Path, tmp_path: Path) -> None:
    path, board, scores = tmp_path / "games.pgn", chess.Board(), 0
    us = chess.engine.SimpleEngine.popen_uci(
        command(f"pgn={path}"), cwd=tmp_path, env=environment(root), timeout=60, stderr=subprocess.DEVNULL
    )
    them = chess.engine.SimpleEngine.popen_uci(find_stockfish(None))
    with us, them:
        us.configure({"Reading": "argmax", "Temperature": "0.2"})
        them.configure({"Skill Level": 0, "Threads": 1})
        lines = us.analyse(board, chess.engine.Limit(nodes=1), multipv=3)
        assert [line["multipv"] for line in lines] == [1, 2, 3][: len(lines)]
        while not board.is_game_over(claim_draw=True) and board.ply() < 300:
            side = us if board.turn == chess.WHITE else them
            played = side.play(board, chess.engine.Limit(nodes=200), game="one", info=chess.engine.INFO_SCORE)
            assert played.move in board.legal_moves
            scores += side is us and "score" in played.info
            board.push(played.move)
        us.quit()
    assert board.is_game_over(claim_draw=True)
    assert scores > 1
    [_, game] = read_games(path)  # the first is the analysis
    moves = [move.uci() for move in game.mainline_moves()]
    assert moves == [move.uci() for move in board.move_stack][: len(moves)]
    assert board.ply() - len(moves) in (0, 1)  # a last move of the other side is not told to us
    assert not game.errors
