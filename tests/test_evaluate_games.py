"""Games and mates in one: what is asked is by the rules, what ends a game is told apart, any mate is a mate."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import chess
import pytest

from rookexp import chess_text
from rookexp.errors import DataError
from rookexp.tasks import games, made, mates, positions
from rookexp.tasks.figures import Figure
from rookexp.tasks.games import Game

ASSETS = Path(__file__).resolve().parent.parent / "rookexp" / "assets" / "positions"
SHIPPED = ASSETS / "mate_in_one.jsonl"
FOOLS_MATE = ("f2f3", "e7e5", "g2g4", "d8h4")
SHUFFLE = ("g1f3", "g8f6", "f3g1", "f6g8")


def p_answer(move: str) -> str:
    return f"   M: {move} a2a3 E: 0.1 0.2 B: {move}"


def follows(*lines: Sequence[str]) -> Callable[[Sequence[str], Sequence[int]], list[str]]:
    """Plays the first line that fits the position; beyond its end and off it, an illegal move."""
    known: dict[str, str] = {}
    for line in lines:
        board = chess.Board()
        for move in line:
            known.setdefault(chess_text.p_prompt(board.fen()), move)
            if move in chess_text.legal_ucis(board):
                board.push_uci(move)
    return lambda prompts, seeds: [p_answer(known.get(prompt, "e4e5")) for prompt in prompts]


def play(ask: Callable[[Sequence[str], Sequence[int]], list[str]], **other: int) -> list[Game]:
    return games.play(ask, chess_text.p_prompt, **{"games": 1, "plies": 20, "seed": 0, **other})


# ---- games --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "plies", "game"),
    [
        (FOOLS_MATE, 20, Game(FOOLS_MATE, "rule", None)),
        (FOOLS_MATE, 4, Game(FOOLS_MATE, "rule", None)),
        (FOOLS_MATE, 3, Game(FOOLS_MATE[:3], "limit", None)),
        (("e2e4", "e7e5", "e4e5"), 20, Game(("e2e4", "e7e5"), "illegal", "e4e5")),
        (("e2e4", "Nf6"), 20, Game(("e2e4",), "unreadable", "Nf6")),
        ((), 20, Game((), "illegal", "e4e5")),
    ],
)
def test_a_game_ends_by_what_it_should(line: Sequence[str], plies: int, game: Game) -> None:
    assert play(follows(line), plies=plies) == [game]


def test_fivefold_repetition_ends_a_game_and_the_environment_is_told() -> None:
    ply = 0

    def ask(prompts: Sequence[str], seeds: Sequence[int]) -> list[str]:
        nonlocal ply
        ply += 1
        return [p_answer(SHUFFLE[(ply - 1) % 4])] * len(prompts)

    (game,) = play(ask, plies=60)
    assert (len(game.moves), game.end) == (16, "rule")
    steps = games.steps_of(game)
    assert {step.text.split("+", 1)[1] for step in steps[:-1]} == {"0.001+0+0"}
    assert steps[-1].text.endswith("+0.5+1+0")
    assert chess_text.parse_a_prompt(steps[-1].prompt).history == game.moves[-10:]


def test_seeds_belong_to_game_and_ply_and_finished_games_are_not_asked() -> None:
    seen: list[list[int]] = []

    def ask(prompts: Sequence[str], seeds: Sequence[int]) -> list[str]:
        seen.append(list(seeds))
        return [p_answer("e2e4" if chess_text.parse_p(p).fen == chess.STARTING_FEN else "zzzz") for p in prompts]

    assert [game.moves for game in play(ask, games=3)] == [("e2e4",)] * 3
    assert [len(seeds) for seeds in seen] == [3, 3]
    assert len({seed for seeds in seen for seed in seeds}) == 6
    first, seen = seen, []
    play(ask, games=2)
    assert [seeds[:2] for seeds in first] == seen


def literal_loop(ask: Callable[..., list[str]], environment: Callable[[str], str], plies: int) -> int:
    """Plies of one game that is played in the environment's own answers until it is no game by the rules."""
    fen, history, board = chess.STARTING_FEN, [], chess.Board()
    for ply in range(plies):
        prompt = chess_text.p_prompt(fen)
        move = chess_text.parse_p(prompt + ask([prompt], [0])[0]).best
        if move not in chess_text.legal_ucis(board):
            return ply
        history.append(move)
        said = environment(chess_text.a_prompt(fen, move, history))
        truth = chess_text.transition(board.fen(), move, legality="strict", game_board=board)
        if said != truth.text():
            return ply
        board.push_uci(move)
        fen = chess_text.parse_a_completion(said).new_fen
        if board.is_game_over():
            break
    return len(history)


def test_the_closed_loop_is_the_one_that_feeds_answers_back() -> None:
    rng, lengths = random.Random(3), Counter()
    for _ in range(40):
        board = positions.random_game(rng, 12)
        line = [move.uci() for move in board.move_stack]
        wrong = rng.choice([*line, "never"])

        def environment(prompt: str, wrong: str = wrong) -> str:
            asked = chess_text.parse_a_prompt(prompt)
            text = chess_text.transition(asked.fen, asked.move, legality="strict").text()
            return text.replace("+0+0", "+1+0") if asked.move == wrong else text

        ask = follows(line)
        (game,) = play(ask, plies=12)
        right = [environment(step.prompt) == step.text for step in games.steps_of(game)]
        assert games.followed(right) == literal_loop(ask, environment, 12)
        lengths[games.followed(right)] += 1
    assert len(lengths) > 4


def test_figures_of_games_count_moves_games_and_partings() -> None:
    played = [Game(FOOLS_MATE, "rule", None), Game(("e2e4",), "illegal", "x"), Game(("e2e4", "e7e5"), "limit", None)]
    figures = games.self_play_figures(played, 5)
    assert figures["a move is legal"] == Figure(7, 8)
    assert figures["legal plies, at most 5"].value == pytest.approx(7 / 3)
    ends = [figures[words] for words in games.ENDS.values()]
    assert ends == [Figure(1, 3), Figure(0, 3), Figure(1, 3), Figure(1, 3)]
    loop = games.closed_loop_figures(played, [[True] * 4, [True], [True, False]], 5)
    assert loop["the environment's answer is exact"] == Figure(6, 7)
    partings = [loop[f"parted by {by}"] for by in ("the environment", "a move that is not legal")]
    assert [*partings, loop["never parted"]] == [Figure(1, 3)] * 3
    assert loop["plies before parting, at most 5"].value == pytest.approx((4 + 1 + 1) / 3)


# ---- made documents -----------------------------------------------------------------------------------------------


def test_first_moves_are_all_twenty() -> None:
    documents = made.first_move_documents()
    assert len(set(documents)) == 20
    assert all(text.endswith("+0.001+0+0") for text in documents)


def test_illegal_moves_are_illegal_and_of_three_kinds() -> None:
    rng = random.Random(0)
    boards = [positions.middlegame(rng) for _ in range(60)]
    documents = []
    for board in boards:
        if move := next(iter(board.legal_moves), None):
            history = [*(m.uci() for m in board.move_stack), move.uci()]
            outcome = chess_text.transition(board.fen(), move.uci(), legality="strict")
            documents.append(chess_text.build_a(board.fen(), move.uci(), history, outcome))
    illegal = made.illegal_moves(documents, 50, 7)
    assert illegal == made.illegal_moves(documents, 50, 7) != made.illegal_moves(documents, 50, 8)
    kinds: Counter[object] = Counter()
    for text, document in zip(illegal, documents, strict=False):
        asked, before = chess_text.parse_a_prompt(text), chess_text.parse_a_prompt(document)
        board = chess.Board(asked.fen)
        assert asked.fen == before.fen
        assert asked.history == (*before.history[:-1], asked.move)
        assert asked.move not in chess_text.legal_ucis(board)
        piece = board.piece_at(chess.parse_square(asked.move[:2]))
        kinds[piece and piece.color == board.turn] += 1
    assert sorted(kinds.values()) == [16, 17, 17]


# ---- mates in one -------------------------------------------------------------------------------------------------


def test_the_shipped_problems_are_balanced_held_out_and_new() -> None:
    problems, skipped = mates.read(SHIPPED)
    assert (len(problems), skipped) == (240, [])
    assert SHIPPED.stat().st_size <= 60_000
    boards = [chess.Board(problem.fen) for problem in problems]
    assert sum(board.turn for board in boards) == 120
    keys = [positions.position_key(board) for board in boards]
    assert len(set(keys)) == 240
    assert "train" not in {positions.split_of(key) for key in keys}
    rows = "".join((ASSETS / f"{name}.jsonl").read_text() for name in ("train", "eval")).splitlines()
    assert not {positions.position_key(chess.Board(json.loads(row)["fen"])) for row in rows} & set(keys)
    for board, problem in zip(boards, problems, strict=True):
        found = []
        for move in list(board.legal_moves):
            board.push(move)
            found += [move.uci()] * board.is_checkmate()
            board.pop()
        assert sorted(found) == list(problem.mates) != []


BIG_BENCH = {
    "name": "checkmate_in_one",
    "examples": [
        {"input": "1. f3 e5 2. g4 ", "target": "Qh4#", "target_scores": {"Qh4#": 1, "Qg5": 0}},
        {"input": "\n1. e4 e5 2. Qh5 Nc6\n3. Bc4 Nf6\n4. ", "target": "Qxf7"},
        {"input": "1.e4 e5 2.Qh5 Ke7 3.", "target": "Qxe5#"},
        {"input": "1. e4 e5 2. Qh5 Nc6 3. Bc4 Nf6 4. ", "target": "Bxf7"},  # a check, no mate
        {"input": "1. e4 e5 2. Qh5 Nc6 3. Bc4 Nf6 4. ", "target": "Qxe9"},
        {"input": "1. e4 e4", "target": "Qxf7"},
        {"target": "Qxf7"},
        "1. f3",
    ],
}


def test_big_benchs_layout_is_read_and_what_is_no_problem_is_named(tmp_path: Path) -> None:
    path = tmp_path / "task.json"
    path.write_text(json.dumps(BIG_BENCH), encoding="utf-8-sig")
    problems, skipped = mates.read(path)
    assert [(problem.target, problem.mates) for problem in problems] == [
        ("d8h4", ("d8h4",)),
        ("h5f7", ("h5f7",)),
        ("h5e5", ("h5e5",)),
    ]
    assert problems[0].fen == "rnbqkbnr/pppp1ppp/8/4p3/6P1/5P2/PPPPP2P/RNBQKBNR b KQkq g3 0 2"
    assert [note.split(":")[0] for note in skipped] == ["4", "5", "6", "7", "8"]
    assert "does not mate" in skipped[0]
    assert skipped[3] == "7: no 'input'"


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.json", "[]", "no mate-in-one problems can be read"),
        ("a.json", "{}", "no list of examples"),
        ("a.json", '{"examples": []}', "no mate-in-one problem in it"),
        ("a.jsonl", "\n{", "no mate-in-one problem in it; example 2: Expecting"),
        ("a.json", "[" * 200_000, "no mate-in-one problems can be read"),
        ("a.jsonl", json.dumps({"fen": "6k1/5ppp/8/8/8/8/8/R5K1 w - -"}), "example 1: not a position"),
        ("a.jsonl", json.dumps({"fen": chess.STARTING_FEN}), "example 1: no move mates"),
        ("a.jsonl", json.dumps({"fen": "8/8/8/8 w"}), "example 1: not a position"),
        (
            "a.jsonl",
            json.dumps({"fen": "6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1", "mates": ["a1a7"]}),
            "mates .'a1a7'. given",
        ),
        ("none.jsonl", None, "No such file"),
        ("task.json", '{"examples": 3}', "no list of examples"),
        ("odd.jsonl", '{"fen": 3}', "not a position: 3"),
    ],
)
def test_a_file_without_problems_is_named(tmp_path: Path, name: str, text: str | None, reason: str) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(DataError, match=reason):
        mates.read(path)


def test_any_mate_counts_and_the_target_is_told_apart() -> None:
    fen = "k7/8/1K6/8/8/8/8/6RR w - - 0 60"
    problem = mates.Problem(fen, mates.mating_moves(chess.Board(fen)), "g1g8")
    assert problem.mates == ("g1g8", "h1h8")
    answers = ["  M: h1h8 g1g8 E: 1.0 2.0 B: h1h8", "  M: b6c6 E: 1.0 B: g1g8", " M: g1g8 E: 1.0 B: b6b9", "?"]
    figures = mates.mate_figures([problem] * 4, answers, [chess_text.p_prompt(fen)] * 4)
    assert figures["B mates"] == figures["B mates, White"] == Figure(2, 4)
    assert figures["B is the target"] == Figure(1, 4)
    assert figures["the highest-valued listed move mates"] == Figure(1, 4)
    assert figures["the highest-valued listed move is the target"] == Figure(1, 4)
    assert figures["a mating move is listed"] == Figure(2, 4)
    assert figures["B legal"] == Figure(2, 4)
    assert figures["a random legal move mates"].value == pytest.approx(2 / chess.Board(fen).legal_moves.count())
    without = mates.mate_figures([mates.Problem(fen, problem.mates, None)], answers[:1], [chess_text.p_prompt(fen)])
    assert not [name for name in without if "target" in name]
