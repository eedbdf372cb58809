"""Documents: symmetric positions keep their moves legal, splits share no position, rare classes are what they say."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import chess
import pytest

from rookexp import a_documents, chess_text, documents, tokenizers
from rookexp.annotate import shard_path, values_path
from rookexp.errors import DataError
from rookexp.tasks import positions

A_SHARES = dict(zip(a_documents.A_KINDS, (0.3, 0.2, 0.1, 0.05, 0.1, 0.1, 0.1, 0.05), strict=True))


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
    text = l_document(row_at(promotions))
    assert text is not None
    assert text.endswith("g7h8n g7h8q g7h8r")
    question = len(squares.encode(chess_text.prompt_of(text)))
    assert len(squares.encode(text)) == question + 2 * (3 + 8 * 4), "the king's, and eight ways to promote"
    assert question + documents.L_TOKENS <= 256
    assert l_document(row_at(queens)) is None
    assert l_document(row_at(promotions, valued=True)) is not None
    middle = row_at("r1bq1rk1/1p2bppp/p1nppn2/8/3NP3/1BN1B3/PPP2PPP/R2QR1K1 w - - 0 10", valued=True)
    valued = l_document(middle, "losses")
    assert valued is not None
    asked = len(squares.encode(chess_text.prompt_of(valued)))
    assert len(squares.encode(valued)) == asked + 3 * len(middle.values_cp) == asked + 3 * 43


def l_document(row: documents.Row, form: str = "moves") -> str | None:
    return documents.l_document(row, form, random.Random(1))


def row_at(fen: str, valued: bool = False) -> documents.Row:
    """A position alone, perhaps with a value for each move."""
    board = chess.Board(fen)
    return documents.Row(board, "any", (), (), dict.fromkeys(chess_text.legal_ucis(board), 0) if valued else {})


def test_an_l_document_says_what_each_move_loses_beside_the_best() -> None:
    row = documents.Row(
        chess.Board("7k/8/8/8/8/8/8/K7 w - - 0 1"), "endgame", (), (), {"a1a2": -20, "a1b1": 9, "a1b2": -700}
    )
    text = l_document(row, "losses")
    assert text is not None
    assert text.partition("M: ")[2] == "a1a2 0 a1b1 0 a1b2 9"
    values = {"a": 100, "b": 71, "c": 70, "d": 0, "e": -100, "f": -249, "g": -250, "h": -499, "i": -500, "j": -99_998}
    assert list(documents.pawns_lost(values).values()) == [0, 0, 1, 2, 3, 3, 5, 5, 9, 9]
    assert documents.pawns_lost({"a": 99_999, "b": 2501, "c": 2450}) == {"a": 0, "b": 0, "c": 1}, "won is won"
    assert documents.pawns_lost({"a": -99_999, "b": -2600}) == {"a": 0, "b": 0}, "and lost is lost"
    assert documents.pawns_lost({}) == {}


def test_lists_of_moves_are_followed_by_what_they_lose() -> None:
    values = {move: -40 * i for i, move in enumerate(sorted(chess_text.legal_ucis(chess.Board())))}
    row = replace(row_at(chess.STARTING_FEN), values_cp=values)
    text = l_document(row, "lists")
    assert text is not None
    words = text.partition("M: ")[2].split()
    listed = [words[start : start + 11] for start in range(0, len(words), 11)]
    assert sorted(move for each in listed for move in each[:5]) == sorted(row.values_cp), "each once: 20 are four lists"
    lost = documents.pawns_lost(row.values_cp)
    for each in listed:
        assert each[:5] == sorted(each[:5])
        assert each[5:] == ["E:", *(f"{lost[move]}.0" for move in each[:5])]
    squares = tokenizers.square_aware()
    prompt = chess_text.prompt_of(text)
    assert len(squares.encode(text)) == len(squares.encode(prompt)) + 4 * documents.LIST_TOKENS
    many = row_at("r1bq1rk1/1p2bppp/p1nppn2/8/3NP3/1BN1B3/PPP2PPP/R2QR1K1 w - - 0 10", valued=True)
    longest = l_document(many, "lists")
    assert longest is not None
    assert longest.count("E:") == documents.L_TOKENS // documents.LIST_TOKENS == 7
    assert l_document(row_at("8/8/8/8/8/1k6/8/K7 w - - 0 1", valued=True), "lists") is None, "one move is no list"
    assert len({l_document(row, "lists"), documents.l_document(row, "lists", random.Random(2))}) == 2


def test_symmetric_forms_keep_each_moves_value() -> None:
    board = chess.Board("7k/8/8/8/8/8/8/1K6 w - - 0 1")
    row = documents.Row(board, "endgame", ("b1a1",), (5,), {"b1a1": 5, "b1c1": -300})
    forms = {tuple(documents.symmetric(row, random.Random(seed)).values_cp.items()) for seed in range(30)}
    assert forms == {
        (("b1a1", 5), ("b1c1", -300)),
        (("g1h1", 5), ("g1f1", -300)),
        (("b8a8", 5), ("b8c8", -300)),
        (("g8h8", 5), ("g8f8", -300)),
    }


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


def build(folder: Path, form: str = "moves") -> dict:
    return documents.build_corpus(
        folder,
        shards=1,
        seed=1,
        copies=2,
        black_best="legacy",
        list_order="sorted",
        l_share=0.5,
        l_forms={each: float(each == form) for each in documents.L_FORMS},
        p_share=0.5,
        a_shares=A_SHARES,
    )


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


def test_values_of_all_moves_stand_in_l_documents_and_change_nothing_else(tmp_path: Path) -> None:
    write_shard(tmp_path)
    build(tmp_path)
    bare = (tmp_path / "train.txt").read_text().splitlines()
    boards = [chess.Board(json.loads(line)["fen"]) for line in shard_path(tmp_path, 0).read_text().splitlines()]
    values = [{m.uci(): 50 * i for i, m in enumerate(board.legal_moves)} for board in boards]
    values_path(tmp_path, 0).write_text("".join(json.dumps(each) + "\n" for each in values))
    build(tmp_path, "losses")
    valued = (tmp_path / "train.txt").read_text().splitlines()
    assert [line for line in valued if line[0] != "L"] == [line for line in bare if line[0] != "L"]
    known = {line.partition("M:")[0]: line for line in bare if line[0] == "L"}
    listed = [line for line in valued if line[0] == "L"]
    assert listed
    for line in listed:
        words = line.partition("M: ")[2].split()
        question = line.partition("M:")[0]
        assert " ".join(words[::2]) == known[question].partition("M: ")[2]
        assert set(words[1::2]) <= {"0", "1", "2", "3", "5", "9"}
        assert "0" in words[1::2]
    assert {word for line in listed for word in line.partition("M: ")[2].split()[1::2]} == set("012359")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"values-00000.jsonl: missing; make the shards with `python -m rookexp.data`"),
        ("{}\n{}\n", r"values-00000.jsonl: 2 rows beside the 1 of annotations-00000.jsonl; delete the file"),
        ('{"e2e4": 1}\n', r"values-00000.jsonl, line 1: not a value for each legal move at '.*'; delete the file"),
        ("[]\n", "values-00000.jsonl, line 1: not a value for each legal move"),
        ("{\n", "values-00000.jsonl, line 1: not a value for each legal move"),
    ],
)
def test_wrong_values_name_file_line_and_remedy(tmp_path: Path, text: str | None, message: str) -> None:
    row = {"fen": chess.STARTING_FEN, "kind": "opening", "moves": ["e2e4"], "evals_cp": [30]}
    shard_path(tmp_path, 0).write_text(json.dumps(row) + "\n")
    if text is not None:
        values_path(tmp_path, 0).write_text(text)
    with pytest.raises(DataError, match=message):
        documents.load_rows(tmp_path, 1, valued=True)


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
    ((read,), _, _) = documents.load_rows(tmp_path, 1, valued=False)
    assert read.moves == ("e2e4",)


def test_a_broken_row_is_named(tmp_path: Path) -> None:
    shard_path(tmp_path, 0).write_text('{"fen": "nonsense"}\n')
    with pytest.raises(DataError, match="line 1"):
        documents.load_rows(tmp_path, 1, valued=False)
    for moves in ([], ["e2e4", "d2d4"], 5):
        row = {"fen": chess.STARTING_FEN, "kind": "opening", "moves": moves, "evals_cp": [3]}
        shard_path(tmp_path, 0).write_text(json.dumps(row) + "\n")
        with pytest.raises(DataError, match="line 1"):
            documents.load_rows(tmp_path, 1, valued=False)
    with pytest.raises(DataError, match=r"rookexp\.data"):
        documents.load_rows(tmp_path / "none", 1, valued=False)
