"""Documents: symmetric positions keep their moves legal, splits share no position, rare classes are what they say."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import chess
import pytest
from test_corpus import corpus

from rookexp import chess_text, tokenizers
from rookexp.corpora import a_documents, documents
from rookexp.corpora.annotate import shard_path
from rookexp.errors import DataError
from rookexp.tasks import positions


def rows(count: int, seed: int) -> list[documents.Row]:
    """Positions of every kind with their first legal moves as if those were the best."""
    rng = random.Random(seed)
    makers = (positions.opening, positions.middlegame, positions.endgame)
    boards = [makers[i % 3](rng) for i in range(count)]
    found = []
    for board in boards:
        moves = [m.uci() for m in board.legal_moves][:5]
        if moves:
            found.append(documents.Row(board, "any", tuple(moves), tuple(range(len(moves), 0, -1))))
    return found


def test_every_symmetric_form_has_the_same_legal_moves_and_key() -> None:
    rng = random.Random(1)
    for row in rows(60, seed=2):
        for _ in range(4):
            form = documents.symmetric(row, rng)
            assert form.board.is_valid() or not row.board.is_valid()
            assert set(form.moves) <= chess_text.legal_ucis(form.board)
            assert form.board.legal_moves.count() == row.board.legal_moves.count()
            assert positions.position_key(form.board) == positions.position_key(row.board)
            assert form.evals_cp == row.evals_cp


def test_colour_flip_turns_the_side_to_move() -> None:
    row = documents.Row(chess.Board(), "opening", ("e2e4",), (30,))
    forms = {documents.symmetric(row, random.Random(seed)).moves for seed in range(20)}
    assert forms == {("e2e4",), ("e7e5",)}  # castling rights: no left-right mirror


def test_a_position_without_castling_has_four_forms_with_their_pawn_to_take_in_passing() -> None:
    row = documents.Row(chess.Board("4k3/8/8/3pP3/8/8/8/K7 w - d6 0 9"), "any", ("e5d6", "a1b2"), (100, 0))
    forms = {(form.board.fen(), form.moves) for form in (documents.symmetric(row, random.Random(i)) for i in range(30))}
    assert forms == {
        ("4k3/8/8/3pP3/8/8/8/K7 w - d6 0 9", ("e5d6", "a1b2")),
        ("3k4/8/8/3Pp3/8/8/8/7K w - e6 0 9", ("d5e6", "h1g2")),
        ("k7/8/8/8/3Pp3/8/8/4K3 b - d3 0 9", ("e4d3", "a8b7")),
        ("7k/8/8/8/3pP3/8/8/3K4 b - e3 0 9", ("d4e3", "h8g7")),
    }


def test_p_document_pairs_stay_together_and_blacks_label_is_the_worst() -> None:
    board = chess.Board()
    board.push_uci("e2e4")
    row = documents.Row(board, "opening", ("e7e5", "c7c5", "a7a6"), (50, 20, -30))
    orders = set()
    for seed in range(10):
        answer = chess_text.parse_p(documents.p_document(row, random.Random(seed), "legacy", "shuffled"))
        assert answer is not None
        assert answer.best == "a7a6"
        assert dict(zip(answer.moves, answer.evals, strict=True)) == {"e7e5": 0.5, "c7c5": 0.2, "a7a6": -0.3}
        orders.add(answer.moves)
    assert len(orders) > 3
    corrected = chess_text.parse_p(documents.p_document(row, random.Random(0), "corrected", "shuffled"))
    assert corrected is not None
    assert corrected.best == "e7e5"


def test_sorted_lists_are_the_shuffled_ones_in_the_order_of_their_names() -> None:
    row = documents.Row(chess.Board(), "opening", ("e2e4", "a2a3", "c2c4"), (50, -30, 20))
    draws = [random.Random(3), random.Random(3)]
    lists = ("shuffled", "sorted")
    shuffled, by_name = (
        chess_text.parse_p(documents.p_document(row, rng, "legacy", order))
        for rng, order in zip(draws, lists, strict=True)
    )
    assert shuffled is not None
    assert by_name is not None
    assert by_name.moves == ("a2a3", "c2c4", "e2e4")
    assert sorted(zip(shuffled.moves, shuffled.evals, strict=True)) == list(
        zip(by_name.moves, by_name.evals, strict=True)
    )
    assert by_name.best == shuffled.best == "e2e4"
    assert draws[0].random() == draws[1].random()


def test_lists_that_begin_with_the_best_go_round_by_name() -> None:
    row = documents.Row(chess.Board(), "opening", ("c2c4", "a2a3", "e2e4", "b2b3"), (50, 40, 20, -5))
    answer = chess_text.parse_p(documents.p_document(row, random.Random(1), "legacy", "best_first"))
    assert answer is not None
    assert answer.moves == ("c2c4", "e2e4", "a2a3", "b2b3")
    assert answer.evals == (0.5, 0.2, 0.4, -0.05)
    assert answer.best == "c2c4"


def test_l_documents_fit_the_model_that_they_are_for() -> None:
    squares = tokenizers.square_aware()
    promotions = "3n1n1n/k1P1P1P1/8/8/8/8/8/K7 w - - 100 150"
    queens = "R6R/3Q4/1Q4Q1/4Q3/2Q4Q/Q4Q2/pp1Q4/kBNN1KB1 w - - 0 1"
    text = documents.l_document(chess.Board(promotions))
    assert text is not None
    assert text.endswith("g7h8n g7h8q g7h8r")
    question = len(squares.encode(chess_text.prompt_of(text)))
    assert len(squares.encode(text)) == question + 2 * (3 + 8 * 4), "the king's, and eight ways to promote"
    assert question + 2 * documents.L_MOVES <= 256
    assert documents.l_document(chess.Board(queens)) is None


def write_shard(folder: Path) -> None:
    """One shard of 90 positions, some twice, and a game."""
    lines = []
    for row in rows(90, seed=3):
        fields = {
            "fen": row.board.fen(en_passant="fen"),
            "kind": "opening",
            "moves": row.moves,
            "evals_cp": row.evals_cp,
        }
        lines.append(
            json.dumps(
                fields | {"game": " ".join(m.uci() for m in positions.random_game(random.Random(5), 40).move_stack)}
            )
        )
    shard_path(folder, 0).write_text("\n".join([*lines, lines[0]]) + "\n")


def build(folder: Path) -> dict:
    return json.loads(corpus(folder, seed=1, positions=1, shard_positions=1, quotas={"opening": 1.0}).build())


def test_corpus_is_deterministic_valid_and_split_by_position(tmp_path: Path) -> None:
    write_shard(tmp_path)
    report = build(tmp_path)
    first = {split: (tmp_path / f"{split}.txt").read_text() for split in ("train", "validation", "test")}
    prompts = (tmp_path / "prompts-train.jsonl").read_text().splitlines()
    assert len(prompts) == report["prompts"]["train"]
    assert set(prompts) <= set((tmp_path / "positions-test.jsonl").read_text().splitlines())
    build(tmp_path)
    assert first == {split: (tmp_path / f"{split}.txt").read_text() for split in first}
    assert report["duplicates dropped"] >= 1
    keys: dict[str, set[str]] = {}
    for split, text in first.items():
        keys[split] = set()
        for line in text.splitlines():
            answer = chess_text.parse_p(line.replace("L: ", "P: ", 1))
            prompt = chess_text.parse_a_prompt(line)
            fen = answer.fen if answer else prompt.fen if prompt else ""
            board = chess.Board(fen)
            keys[split].add(positions.position_key(board))
            if line.startswith("L: "):
                question, _, moves = line.partition("M:")
                assert question + "M:" == chess_text.prompt_of(line) == "L" + chess_text.p_prompt_padded(fen)[1:]
                assert moves.split() == sorted(m.uci() for m in board.legal_moves)
            elif answer:
                assert answer.well_formed
                assert set(answer.moves) <= chess_text.legal_ucis(board)
            else:
                completion = chess_text.parse_a_completion(line.split("+", 3)[3])
                assert completion.valid
                assert completion.new_fen == chess_text.transition(fen, prompt.move, legality="legacy").new_fen
    assert not keys["train"] & keys["test"]
    assert not keys["train"] & keys["validation"]
    train = Counter(key.split()[0] for key in report["documents"]["train"])
    assert train["P"]
    assert 0.25 < report["documents"]["train"]["L"] / sum("P: " in line for line in first["train"].splitlines()) < 0.75
    assert "L: " not in first["validation"] + first["test"]
    assert train["A"]


def test_a_documents_fill_every_class_without_duplicates() -> None:
    game = positions.random_game(random.Random(4), 60).move_stack
    counts = dict.fromkeys(a_documents.A_KINDS, 6)
    found = a_documents.a_documents([game], counts, seed=9)
    assert Counter(kind for _, kind, _ in found) == Counter(counts)
    assert len({text for text, _, _ in found}) == len(found)
    for text, kind, _ in found:
        completion = text.split("+", 3)[3]
        assert (kind == "mate") == completion.endswith("+1.0+1+0")
        assert (kind == "draw") == completion.endswith("+0.5+1+0")
        assert (kind == "failed") == completion.endswith("+-1.0+0+1")


def test_a_fifth_repetition_ends_the_game() -> None:
    board = chess.Board()
    for uci in (["g1f3", "g8f6", "f3g1", "f6g8"] * 4)[:-1]:
        board.push_uci(uci)
    assert board.halfmove_clock == 15
    assert a_documents.class_of(board, chess.Move.from_uci("f6g8")) == "draw"
    assert a_documents.a_document(board, chess.Move.from_uci("f6g8")).endswith("+0.5+1+0")
    assert a_documents.a_document(board, chess.Move.from_uci("f6e4")).endswith("+0.001+0+0")


def analysed(count: int) -> list[dict[str, Any]]:
    """As many rows with White to move as with Black; every third has four moves."""
    fens = [f"8/8/8/8/8/8/8/8 {'wb'[i % 2]} - - 0 {i + 1}" for i in range(count)]
    return [{"fen": fen, "moves": ["a1a2"] * (4 if i % 3 == 0 else 5)} for i, fen in enumerate(fens)]


def test_prompt_sets_are_balanced_alternate_and_share_no_row() -> None:
    rows = analysed(900)
    sets = documents.prompt_rows(rows, seed=3)
    assert {name: len(chosen) for name, chosen in sets.items()} == {"train": 256, "eval": 128}
    for chosen in sets.values():
        assert [row["fen"].split()[1] for row in chosen] == ["w", "b"] * (len(chosen) // 2)
        assert all(len(row["moves"]) == 5 for row in chosen)
    fens = [row["fen"] for chosen in sets.values() for row in chosen]
    assert len(set(fens)) == len(fens)
    assert documents.prompt_rows(rows, seed=3) == sets != documents.prompt_rows(rows, seed=4)
    assert rows == analysed(900)


def test_prompt_sets_of_few_rows_stay_balanced() -> None:
    sets = documents.prompt_rows(analysed(31)[:-1], seed=3)
    assert {name: len(chosen) for name, chosen in sets.items()} == {"train": 20, "eval": 0}


def shipped(root: Path, name: str) -> Path:
    return root / "rookexp" / "assets" / "positions" / f"{name}.jsonl"


@pytest.mark.parametrize("name", documents.PROMPT_SETS)
def test_shipped_prompts_are_those_of_the_corpus(root: Path, name: str) -> None:
    corpus = root / "outputs" / "corpus" / "positions-test.jsonl"
    if not corpus.is_file():
        pytest.skip("no outputs/corpus in this checkout")
    rows = [json.loads(line) for line in corpus.read_text(encoding="utf-8").splitlines()]
    again = "".join(json.dumps(row) + "\n" for row in documents.prompt_rows(rows, seed=2026)[name])
    assert again.encode() == shipped(root, name).read_bytes()


def test_castling_rights_that_nobody_has_make_no_other_position() -> None:
    keys = {positions.position_key(chess.Board(f"3k4/8/8/8/8/8/4P3/4K3 w {rights} - 0 1")) for rights in ("-", "KQ")}
    assert len(keys) == 1


def test_shipped_prompts_are_of_the_test_split_and_share_no_position(root: Path) -> None:
    keys: list[str] = []
    for name, count in documents.PROMPT_SETS.items():
        rows = [json.loads(line) for line in shipped(root, name).read_text(encoding="utf-8").splitlines()]
        assert len(rows) == count
        keys += [positions.position_key(chess.Board(row["fen"])) for row in rows]
    assert len(set(keys)) == len(keys)
    assert {positions.split_of(key) for key in keys} == {"test"}


def test_a_byte_order_mark_is_no_part_of_the_rows(tmp_path: Path) -> None:
    row = {"fen": chess.STARTING_FEN, "kind": "opening", "moves": ["e2e4"], "evals_cp": [3]}
    shard_path(tmp_path, 0).write_text(json.dumps(row), encoding="utf-8-sig")
    ((read,), _, _) = documents.load_rows(tmp_path, 1, {})
    assert read.moves == ("e2e4",)


def test_a_shard_that_was_cut_is_named_unless_only_openings_are_missing(tmp_path: Path) -> None:
    row = {"fen": chess.STARTING_FEN, "kind": "endgame", "moves": ["e2e4"], "evals_cp": [3]}
    shard_path(tmp_path, 0).write_text(json.dumps(row) + "\n")
    assert documents.load_rows(tmp_path, 1, {"opening": 3, "endgame": 1})[0]
    with pytest.raises(
        DataError, match=r"annotations-00000\.jsonl: 3 rows fewer than a whole shard has; delete the fi"
    ):
        documents.load_rows(tmp_path, 1, {"opening": 3, "endgame": 2, "self_play": 2})
    shard_path(tmp_path, 0).write_text("")
    with pytest.raises(DataError, match="1 rows fewer"):
        documents.load_rows(tmp_path, 1, {"endgame": 1})


def test_a_broken_row_is_named(tmp_path: Path) -> None:
    shard_path(tmp_path, 0).write_text('{"fen": "nonsense"}\n')
    with pytest.raises(DataError, match="line 1"):
        documents.load_rows(tmp_path, 1, {})
    for moves in ([], ["e2e4", "d2d4"], 5):
        row = {"fen": chess.STARTING_FEN, "kind": "opening", "moves": moves, "evals_cp": [3]}
        shard_path(tmp_path, 0).write_text(json.dumps(row) + "\n")
        with pytest.raises(DataError, match="line 1"):
            documents.load_rows(tmp_path, 1, {})
    with pytest.raises(DataError, match=r"rookexp\.data"):
        documents.load_rows(tmp_path / "none", 1, {})
