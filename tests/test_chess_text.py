"""The grammar of P and A documents and the oracle, against the data's own rows and every edge case."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import chess
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookexp import chess_text
from rookexp.chess_text import transition
from rookexp.errors import DataError

START = chess.STARTING_FEN
ROW = (
    "P: 4R2Q/1kp5/1p6/8/3P4/5N2/p5PK/3r4 b - - 2 46" + " " * 47 + "M: a2a1r d1g1 d1c1 a2a1q d1h1    "
    "E: -999.89 -999.91 -999.91 -999.78 -999.84 B: d1c1"
)
BLACK_MATES = (
    "A: rnbqkbnr/pppp1ppp/8/4p3/6P1/5P2/PPPPP2P/RNBQKBNR b KQkq - 0 2+d8h4+f2f3 e7e5 g2g4 d8h4+"
    "rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w KQkq - 1 3+1.0+1+0"
)
GOLDEN_A = [
    f"A: {START}+e2e4+e2e4+rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1+0.001+0+0",
    BLACK_MATES,
    "A: 5R2/6R1/8/3P4/p7/1b2R2P/2p3P1/6K1 b - - 0 58+b3d5+e1e3 a2b3 f7f2 b5b4 g5g7 b4c3 f2f8 c3c2 d4d5 b3d5+"
    "5R2/6R1/8/3b4/p7/4R2P/2p3P1/6K1 w - - 0 59+0.001+0+0",
    "A: 1k1r2nr/1p4b1/2pP3p/q3N1P1/R1PP1B2/3B1N1P/1P3QP1/5RK1 b - - 0 22+g8e7+"
    "c1f4 b4a5 e4f6 e6e5 f6d7 f8g7 d7e5 c8b8 a1a4 g8e7+"
    "1k1r3r/1p2n1b1/2pP3p/q3N1P1/R1PP1B2/3B1N1P/1P3QP1/5RK1 w - - 1 23+0.001+0+0",
]
PROMOTING = "8/P6k/8/8/8/8/8/K7 w - - 0 60"
ITALIAN = "r1bqk1nr/pppp1ppp/2n5/2b1p3/2B1P3/5N2/PPPP1PPP/RNBQK2R w KQkq - 4 4"
EDGES = [  # position, move, legacy completion, strict completion (None: the same)
    ("7k/8/5K2/6Q1/8/8/8/8 w - - 0 70", "g5g6", "7k/8/5KQ1/8/8/8/8/8 b - - 1 70+0.5+1+0", None),
    (PROMOTING, "a7a8q", "Q7/7k/8/8/8/8/8/K7 b - - 0 60+0.001+0+0", None),
    (PROMOTING, "a7a8n", "N7/7k/8/8/8/8/8/K7 b - - 0 60+0.5+1+0", None),
    (PROMOTING, "a7a8", "P7/7k/8/8/8/8/8/K7 b - - 0 60+0.001+0+0", f"{PROMOTING}+-1.0+0+1"),
    (ITALIAN, "e1g1", "r1bqk1nr/pppp1ppp/2n5/2b1p3/2B1P3/5N2/PPPP1PPP/RNBQ1RK1 b kq - 5 4+0.001+0+0", None),
    (
        "rnbqkbnr/ppp1pppp/8/8/3p4/8/PPPPPPPP/RNBQKBNR w KQkq - 0 3",
        "e2e4",
        "rnbqkbnr/ppp1pppp/8/8/3pP3/8/PPPP1PPP/RNBQKBNR b KQkq e3 0 3+0.001+0+0",
        None,
    ),
    (
        "rnbqkbnr/ppp1pppp/8/8/3pP3/8/PPPP1PPP/RNBQKBNR b KQkq e3 0 3",
        "d4e3",
        "rnbqkbnr/ppp1pppp/8/8/8/4p3/PPPP1PPP/RNBQKBNR w KQkq - 0 4+0.001+0+0",
        None,
    ),
    ("7k/8/8/8/8/8/R7/K7 w - - 149 120", "a2b2", "7k/8/8/8/8/8/1R6/K7 b - - 150 120+0.5+1+0", None),
    ("7k/8/8/8/8/8/R7/K7 w - - 99 120", "a2b2", "7k/8/8/8/8/8/1R6/K7 b - - 100 120+0.001+0+0", None),  # needs a claim
    (START, "e4e5", START.replace(" 0 1", " 1 1") + "+-1.0+0+1", f"{START}+-1.0+0+1"),
    (START, "e2e9", f"{START}+-1.0+0+1", None),
    (START, "", f"{START}+-1.0+0+1", None),
    (START, "e2e5", "rnbqkbnr/pppppppp/8/4P3/8/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1+0.001+0+0", f"{START}+-1.0+0+1"),
    (START, "e7e5", "rnbqkbnr/pppp1ppp/8/4P3/8/8/PPPPPPPP/RNBQKBNR b KQkq - 0 1+0.001+0+0", f"{START}+-1.0+0+1"),
    (START, "0000", START.replace("w KQkq - 0 1", "b KQkq - 1 1") + "+0.001+0+0", f"{START}+-1.0+0+1"),
    (
        "4k3/8/8/8/3pP3/8/8/4K3 b - e3 0 3",
        "a6a5",
        "4k3/8/8/8/3pP3/8/8/4K3 b - - 1 4+-1.0+0+1",  # clocks move on, en passant is gone
        "4k3/8/8/8/3pP3/8/8/4K3 b - e3 0 3+-1.0+0+1",
    ),
    (
        "4r2k/8/8/8/8/8/4R3/4K3 w - - 0 1",
        "e2a2",
        "4r2k/8/8/8/8/8/R7/4K3 b - - 1 1+0.001+0+0",  # leaves its king in check
        "4r2k/8/8/8/8/8/4R3/4K3 w - - 0 1+-1.0+0+1",
    ),
    (ITALIAN, "e1h1", ITALIAN.replace("K2R w KQkq - 4 4", "1RK1 b kq - 5 4") + "+0.001+0+0", f"{ITALIAN}+-1.0+0+1"),
]


@st.composite
def games(draw: Callable) -> chess.Board:
    """A board with at least one legal move, after up to 25 random legal moves."""
    board = chess.Board()
    for pick in draw(st.lists(st.integers(0, 10**6), max_size=25)):
        moves = list(board.legal_moves)
        board.push(moves[pick % len(moves)])
        if board.is_game_over():
            board.pop()
            break
    return board


# ---- P ----------------------------------------------------------------------------------------------------------


def test_p_golden_row_is_rebuilt_exactly() -> None:
    answer = chess_text.parse_p(ROW)
    assert answer is not None
    assert answer.moves == ("a2a1r", "d1g1", "d1c1", "a2a1q", "d1h1")
    assert answer.evals == (-999.89, -999.91, -999.91, -999.78, -999.84)
    assert (answer.best, answer.trailing_garbage, answer.best_in_moves, answer.best_rank()) == ("d1c1", "", True, 3)
    assert answer.well_formed
    evals_cp = [chess_text.pawns_to_cp(value) for value in answer.evals if value is not None]
    assert chess_text.build_p(answer.fen, answer.moves, evals_cp, "d1c1") == ROW


def test_p_validation_file_round_trips(shared_dir: Path) -> None:
    lines = (shared_dir / "data/rook_val_sample.txt").read_text().splitlines()
    assert len(lines) == 100
    for line in lines:
        answer = chess_text.parse_p(line)
        assert answer is not None
        assert answer.well_formed
        assert answer.best_in_moves
        board = chess_text.board_of(answer.fen)
        assert board is not None
        assert all(answer.legality(chess_text.legal_ucis(board)))
        evals_cp = [chess_text.pawns_to_cp(value) for value in answer.evals if value is not None]
        rebuilt = chess_text.build_p(answer.fen, answer.moves, evals_cp, answer.best or "")
        assert rebuilt.replace(" M:", "M:", 1) == line.strip()  # the file was written one column narrower
        turn = chess.WHITE if board.turn else chess.BLACK
        rank = answer.best_rank()
        assert rank is not None
        if turn == chess.BLACK and len(set(answer.evals)) == 5:
            assert rank > 0  # the published label for Black is not its best move


def test_p_prompts() -> None:
    assert chess_text.p_prompt(START) == f"P: {START}"
    assert chess_text.p_prompt_padded(START) == "P: " + START + " " * (90 - len(START)) + "M:"
    long_fen = START.replace(" 0 1", " 0 1" + "0" * 40)
    assert chess_text.p_prompt_padded(long_fen) == f"P: {long_fen}M:"
    document = chess_text.build_p(START, ["e2e4"], [30], "e2e4")
    assert document == f"P: {START:<90}M: e2e4" + " " * 26 + "E: 0.3" + " " * 37 + "B: e2e4"
    for prompt in (chess_text.p_prompt, chess_text.p_prompt_padded):
        assert document.startswith(prompt(START))


@pytest.mark.parametrize(
    ("eval_cp", "text"),
    [(30, "0.3"), (-200, "-2.0"), (-207, "-2.07"), (5, "0.05"), (0, "0.0"), (99_999, "999.99"), (-99_989, "-999.89")],
)
def test_eval_text(eval_cp: int, text: str) -> None:
    assert chess_text.eval_text(eval_cp) == text
    assert chess_text.pawns_to_cp(float(text)) == eval_cp


@settings(deadline=None)
@given(st.integers(-chess_text.MATE_CP, chess_text.MATE_CP))
def test_eval_text_round_trips(eval_cp: int) -> None:
    value = chess_text.decimal(chess_text.eval_text(eval_cp))
    assert value is not None
    assert chess_text.pawns_to_cp(value) == eval_cp


@pytest.mark.parametrize(
    "text", ["", "nan", "inf", "-inf", "1e5", "1_0", "٣", "\uff11", "0x1", "+-1", ".", "--1", "9" * 400, "1.2.3", "²"]
)
def test_decimal_refuses(text: str) -> None:
    assert chess_text.decimal(text) is None


def test_p_tolerates_space_and_stops_at_end_of_text() -> None:
    answer = chess_text.parse_p("  P:x  M:e2e4\n\td2d4 E:+.5 1.\u2003B:  e2e4 and more<|endoftext|> M: a1a2")
    assert answer == chess_text.PolicyAnswer("x", ("e2e4", "d2d4"), (0.5, 1.0), "e2e4", "and more")
    assert answer.well_formed
    cut = chess_text.parse_p("P: x M: e2e4 E: 0.1<|endoftext|>B: e2e4")
    assert cut is not None
    assert cut.best is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("P:", ("", (), (), None)),
        ("P: x B: e2e4", ("x", (), (), "e2e4")),
        ("P: x M: e2e4 B: e2e4", ("x", ("e2e4",), (), "e2e4")),
        ("P: x B: e2e4 M: d2d4", ("x B: e2e4", ("d2d4",), (), None)),
        ("P: x M: e2e4 M: d2d4 E: 1 E: 2 B:", ("x", ("e2e4", "M:", "d2d4"), (1.0, None, 2.0), None)),
        ("P: x M: E: B: ", ("x", (), (), None)),
    ],
)
def test_p_missing_and_misplaced_sections(text: str, expected: tuple) -> None:
    answer = chess_text.parse_p(text)
    assert answer is not None
    assert (answer.fen, answer.moves, answer.evals, answer.best) == expected
    assert not answer.well_formed


def test_p_reports_duplicates_and_undefined_rank() -> None:
    answer = chess_text.parse_p("P: x M: e2e4 e2e4 d2d4 E: 1 2 3 B: e2e4")
    assert answer is not None
    assert (answer.duplicates, answer.best_rank()) == (1, 1)
    unlisted = chess_text.parse_p("P: x M: e2e4 E: 1 B: d2d4")
    assert unlisted is not None
    assert (unlisted.best_in_moves, unlisted.best_rank()) == (False, None)


@settings(max_examples=25, deadline=None)
@given(games(), st.data())
def test_p_round_trip(board: chess.Board, data: st.DataObject) -> None:
    fen = board.fen(en_passant="fen")
    legal = sorted(chess_text.legal_ucis(board))
    moves = data.draw(st.lists(st.sampled_from(legal), min_size=1, max_size=5, unique=True))
    evals_cp = data.draw(st.lists(st.integers(-99_999, 99_999), min_size=len(moves), max_size=len(moves)))
    answer = chess_text.parse_p(chess_text.build_p(fen, moves, evals_cp, moves[-1]) + chess_text.END_OF_TEXT)
    assert answer is not None
    assert (answer.fen, list(answer.moves), answer.best, answer.trailing_garbage) == (fen, moves, moves[-1], "")
    assert [chess_text.pawns_to_cp(value) for value in answer.evals if value is not None] == evals_cp
    assert answer.well_formed
    assert all(answer.legality(chess_text.legal_ucis(board)))


SNIPPETS = st.sampled_from(
    ["P:", "A: ", "M:", "E:", "B:", " ", "+", "e2e4", "a7a8q", "9" * 5000, "-1.0", "nan", "١٢", "\x00", "<|endoftext|>"]
)
FUZZ = st.lists(st.one_of(SNIPPETS, st.text(max_size=8)), max_size=20).map("".join)


@settings(max_examples=80, deadline=None)
@given(FUZZ)
def test_no_text_raises(text: str) -> None:
    for document in (text, "P: " + text):
        answer = chess_text.parse_p(document)
        if answer is not None:
            assert isinstance(answer.well_formed, bool)
            answer.best_rank()
            answer.legality(frozenset({"e2e4"}))
    chess_text.parse_a_prompt(text)
    chess_text.parse_a_prompt("A: " + text)
    assert isinstance(chess_text.parse_a_completion(text).valid, bool)
    chess_text.match(text, START)
    chess_text.board_of(text)
    transition(START, text, legality="legacy")


def test_a_fen_is_ascii_and_of_at_most_128_characters() -> None:
    assert chess_text.board_of(START + " " * (128 - len(START))) == chess.Board()
    for strange in (START + " " * (129 - len(START)), START.replace("0 1", "0 \u0661")):
        chess.Board(strange)  # python-chess is less strict
        assert chess_text.board_of(strange) is None


# ---- values -----------------------------------------------------------------------------------------------------


def test_win_probability() -> None:
    assert chess_text.win_probability(0) == 0.5
    assert chess_text.win_probability(100) == pytest.approx(1 / (1 + math.exp(-0.368208)), abs=1e-12)
    assert chess_text.win_probability(99_900) == 1.0
    assert chess_text.win_probability(-99_997) == 0.0
    values = [chess_text.win_probability(cp) for cp in range(-3000, 3001, 50)]
    assert values == sorted(values)
    assert all(a + b == pytest.approx(1) for a, b in zip(values, reversed(values), strict=True))
    assert chess_text.is_mate(-99_500)
    assert not chess_text.is_mate(20_000)


def test_best_label() -> None:
    moves, evals_cp = ["b1c3", "e2e4", "d2d4", "a2a3"], [10, 30, 30, -50]
    assert chess_text.best_label(moves, evals_cp, chess.WHITE, "legacy") == "e2e4"
    assert chess_text.best_label(moves, evals_cp, chess.WHITE, "corrected") == "e2e4"
    assert chess_text.best_label(moves, evals_cp, chess.BLACK, "corrected") == "e2e4"
    assert chess_text.best_label(moves, evals_cp, chess.BLACK, "legacy") == "a2a3"
    assert chess_text.best_label(["e7e5", "e7e6"], [0, 0], chess.BLACK, "legacy") == "e7e6"  # the last of the lines


# ---- A ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", GOLDEN_A)
def test_a_golden_documents(document: str) -> None:
    prompt = chess_text.parse_a_prompt(document)
    assert prompt is not None
    for legality in ("legacy", "strict"):
        outcome = transition(prompt.fen, prompt.move, legality=legality)
        assert chess_text.build_a(prompt.fen, prompt.move, prompt.history, outcome) == document
    completion = document.split("+", 3)[3]
    answer = chess_text.parse_a_completion(f" {completion}\n<|endoftext|>+1")
    assert answer.valid
    assert (answer.new_fen, answer.reward) == (outcome.new_fen, outcome.reward)
    assert (answer.terminated, answer.truncated, answer.extra) == (outcome.terminated, outcome.truncated, ())


def test_a_opening_sample(shared_dir: Path) -> None:
    rows = json.loads((shared_dir / "data/opening_positions_sample.json").read_text())
    assert len(rows) >= 100
    for row in rows:
        prompt = chess_text.parse_a_prompt(row["prompt"])
        assert prompt is not None
        assert prompt.move == row["move"]
        assert chess_text.a_prompt(prompt.fen, prompt.move, prompt.history) == row["prompt"]
        assert transition(prompt.fen, prompt.move, legality="strict").new_fen == row["expected_fen"]


@pytest.mark.parametrize(("fen", "move", "legacy", "strict"), EDGES)
def test_transition_edges(fen: str, move: str, legacy: str, strict: str | None) -> None:
    assert transition(fen, move, legality="legacy").text() == legacy
    assert transition(fen, move, legality="strict").text() == (strict or legacy)


@pytest.mark.parametrize(
    ("fen", "move"),
    [(START, "e4e5"), (START, "e4e7"), ("4k3/8/8/8/3pP3/8/8/4K3 b - e3 7 3", "a6d4"), (ITALIAN, "e3e1")],
)
def test_failed_move_leaves_what_python_chess_leaves(fen: str, move: str) -> None:
    board = chess.Board(fen)
    with pytest.raises(AssertionError):
        board.push(chess.Move.from_uci(move))
    assert transition(fen, move, legality="legacy").new_fen == board.fen()


def test_fivefold_is_seen_only_in_the_whole_game() -> None:
    board = chess.Board()
    shuffle = ["g1f3", "g8f6", "f3g1", "f6g8"]
    for move in (shuffle * 4)[:-1]:
        board.push_uci(move)
    before = board.fen()
    assert transition(before, "f6g8", legality="strict").text().endswith("+0.001+0+0")
    assert transition(before, "f6g8", legality="strict", game_board=board).text().endswith("+0.5+1+0")
    assert board.fen() == before
    threefold = chess.Board()
    for move in (shuffle * 2)[:-1]:
        threefold.push_uci(move)
    assert not transition(threefold.fen(), "f6g8", legality="strict", game_board=threefold).terminated
    with pytest.raises(DataError):
        transition(START, "e2e4", legality="strict", game_board=board)
    with pytest.raises(DataError):
        transition("not a position", "e2e4", legality="strict")


@settings(max_examples=25, deadline=None)
@given(games(), st.data())
def test_a_round_trip_on_random_games(board: chess.Board, data: st.DataObject) -> None:
    move = data.draw(st.sampled_from(sorted(chess_text.legal_ucis(board))))
    history = [m.uci() for m in board.move_stack] + [move]
    fen = board.fen()
    strict = transition(fen, move, legality="strict", game_board=board)
    assert transition(fen, move, legality="legacy", game_board=board) == strict
    document = chess_text.build_a(fen, move, history, strict)
    prompt = chess_text.parse_a_prompt(document)
    assert prompt is not None
    assert (prompt.fen, prompt.move, list(prompt.history)) == (fen, move, history[-10:])
    answer = chess_text.parse_a_completion(document[len(chess_text.a_prompt(fen, move, history)) :])
    assert answer.valid
    assert chess_text.match(answer.new_fen, strict.new_fen) == chess_text.FenMatch(True, True, True)
    board.push_uci(move)
    assert answer.new_fen == board.fen()
    assert (answer.reward == 1.0) == board.is_checkmate()
    assert not answer.truncated


@settings(max_examples=25, deadline=None)
@given(games(), st.sampled_from(chess.SQUARE_NAMES), st.sampled_from(chess.SQUARE_NAMES))
def test_legacy_transition_of_any_two_squares(board: chess.Board, start: str, end: str) -> None:
    outcome = transition(board.fen(), start + end, legality="legacy")
    occupied = start != end and board.piece_at(chess.parse_square(start)) is not None
    assert outcome.truncated == (not occupied)
    assert outcome.reward in (0.001, 1.0, 0.5, -1.0)


def test_history_ends_with_the_move() -> None:
    for history in ([], ["d2d4"], ["e2e4", "e7e5"]):
        with pytest.raises(DataError):
            chess_text.a_prompt(START, "e2e4", history)


@pytest.mark.parametrize(
    ("completion", "valid", "extra"),
    [
        ("fen+0.001+0+0", True, ()),
        ("fen+0.001+0+0+7", False, ("7",)),
        ("fen+0.001+0", False, ()),
        ("fen+inf+0+0", False, ()),
        ("fen+0.5+true+0", False, ()),
        ("fen+0.5+2+0", False, ()),
        ("fen+-1.0+0+\uff11", False, ()),
        ("", False, ()),
    ],
)
def test_a_completion_validity(completion: str, valid: bool, extra: tuple[str, ...]) -> None:
    answer = chess_text.parse_a_completion(completion)
    assert (answer.valid, answer.extra) == (valid, extra)
    assert answer.new_fen == completion[:3]


def test_matches_are_nested() -> None:
    other_clock, other_castling = START.replace(" 0 1", " 0 2"), START.replace("KQkq", "KQ")
    assert chess_text.match(START, START) == chess_text.FenMatch(True, True, True)
    assert chess_text.match(other_clock, START) == chess_text.FenMatch(False, True, True)
    assert chess_text.match(other_castling, START) == chess_text.FenMatch(False, False, True)
    assert chess_text.match(f"{START}+0.001+0+0", START).strict is False  # the suffix is not part of the position
    assert chess_text.match("", START) == chess_text.FenMatch(False, False, False)


def test_the_prompt_of_a_document_is_what_is_asked():
    p = chess_text.build_p(START, ["e2e4", "d2d4"], [30, 25], "e2e4")
    assert chess_text.prompt_of(p) == chess_text.p_prompt_padded(START)
    outcome = chess_text.transition(START, "e2e4", legality="legacy")
    assert chess_text.prompt_of(chess_text.build_a(START, "e2e4", ["e2e4"], outcome)) == f"A: {START}+e2e4+e2e4+"
    assert [chess_text.prompt_of(text) for text in ("", "P: x", "A: x+y", "M: e2e4")] == [""] * 4
