"""The A task: prompts of documents and of made games, answers of the oracle, passes, and lines that are wrong."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import chess
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookexp import chess_text
from rookexp.errors import DataError
from rookexp.tasks import environment
from rookexp.tasks.environment import EnvironmentTask, load_questions

ASSETS = Path(environment.__file__).parents[1] / "assets" / "positions"
START = chess.STARTING_FEN
FIRST = f"A: {START}+e2e4+e2e4+"
MATE, MATED = "6k1/5ppp/8/8/8/8/8/R5K1 w - - 30 60", "R5k1/5ppp/8/8/8/8/8/6K1 b - - 31 60"
AFTER = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"


class Bytes:
    def encode(self, text: str) -> list[int]:
        return list(text.encode())


def task_of(positions: Any, **changes: Any) -> EnvironmentTask:
    options = {"prompts": 4, "order": "epochs", "moves": "legal", "legality": "legacy", "seed": 1} | changes
    return EnvironmentTask(Bytes(), positions=positions, **options)


def written(folder: Path, *lines: str) -> str:
    path = folder / "questions.txt"
    path.write_text("".join(line + "\n" for line in lines))
    return str(path)


def test_prompt_carries_text_ids_and_the_oracles_transition(tmp_path: Path) -> None:
    task = task_of(written(tmp_path, f"{FIRST}{AFTER}+0.001+0+0"), prompts=1, order="fixed")
    (prompt,) = task.select(3)
    assert (prompt.text, prompt.ids, prompt.task) == (FIRST, tuple(FIRST.encode()), "A")
    assert prompt.answer == chess_text.transition(START, "e2e4", legality="legacy")
    assert task.gold(prompt) == f"{AFTER}+0.001+0+0"
    assert task.prompts() == (prompt,)


def test_the_first_moves_are_all_twenty() -> None:
    prompts = task_of(environment.first_moves()).prompts()
    assert {prompt.text.split("+")[1] for prompt in prompts} == chess_text.legal_ucis(chess.Board())
    assert {prompt.answer.new_fen for prompt in prompts} == {
        after.fen() for after in map(pushed, chess.Board().legal_moves)
    }


def pushed(move: chess.Move) -> chess.Board:
    board = chess.Board()
    board.push(move)
    return board


@pytest.mark.parametrize("name", ["train", "eval"])
def test_what_ships_is_held_out_distinct_and_legal(name: str) -> None:
    from rookexp.tasks.positions import position_key, split_of

    rows, _ = load_questions(ASSETS / f"transitions-{name}.txt", "legacy")
    other, _ = load_questions(ASSETS / f"transitions-{'eval' if name == 'train' else 'train'}.txt", "legacy")
    assert len(rows) == len(set(rows)) >= 120
    assert not set(rows) & set(other)
    assert all(environment.is_legal(row) for row in rows)
    assert {split_of(position_key(chess.Board(row.fen))) for row in rows} == {"test"}


def test_games_ask_their_own_moves_with_at_most_ten_plies() -> None:
    made = environment.games(games=6, max_plies=40, moves="legal", seed=3)
    assert made == environment.games(games=6, max_plies=40, moves="legal", seed=3) != ()
    assert made != environment.games(games=6, max_plies=40, moves="legal", seed=4)
    assert len(set(made)) == len(made)
    assert {len(row.history) for row in made} == set(range(1, 11))
    for row in made:
        assert environment.is_legal(row)
        assert environment.question_of(chess_text.a_prompt(row.fen, row.move, row.history), "legacy") == row
    for before, after in itertools.pairwise(made):
        if after.history[:-1] == before.history[-9:]:
            assert after.fen == chess_text.transition(before.fen, before.move, legality="strict").new_fen


def test_illegal_moves_are_apart_and_answered_as_the_oracle_is_told() -> None:
    made = environment.games(games=4, max_plies=30, moves="any", seed=3)
    assert Counter(map(environment.is_legal, made)) == {True: len(made) // 2, False: len(made) // 2}
    assert len(task_of(made).prompts()) == len(made) // 2
    for prompt in task_of(made, moves="illegal", legality="strict").prompts():
        assert (prompt.answer.reward, prompt.answer.truncated) == (-1.0, True)
        assert prompt.answer.new_fen == chess_text.parse_a_prompt(prompt.text).fen
    carried_out = [p.answer.reward for p in task_of(made, moves="illegal").prompts()]
    assert 0.001 in carried_out  # the published data asks for no legality
    with pytest.raises(DataError, match="none of its 20 questions has a move that is illegal"):
        task_of(environment.first_moves(), moves="illegal")


def test_a_fixed_batch_is_the_same_in_every_step_and_needs_enough() -> None:
    task = task_of(environment.first_moves(), prompts=7, order="fixed")
    assert task.select(0) == task.select(11) == task.prompts()
    assert len(set(task.select(0))) == 7
    with pytest.raises(DataError, match="too few for 21 prompts"):
        task_of(environment.first_moves(), prompts=21, order="fixed")


@settings(max_examples=30, deadline=None)
@given(count=st.integers(1, 20), prompts=st.integers(1, 25), steps=st.integers(1, 12), seed=st.integers(0, 5))
def test_every_prompt_is_asked_equally_often(count: int, prompts: int, steps: int, seed: int) -> None:
    task = task_of(environment.first_moves()[:count], prompts=prompts, seed=seed)
    asked = Counter({prompt.text: 0 for prompt in task.prompts()})
    for step in range(steps):
        selected = task.select(step)
        assert len(selected) == prompts
        assert task_of(environment.first_moves()[:count], prompts=prompts, seed=seed).select(step) == selected
        asked.update(prompt.text for prompt in selected)
        assert max(asked.values()) - min(asked.values()) <= 1
    assert len(asked) == count


def test_documents_of_a_corpus_and_rows_with_a_prompt_are_read(tmp_path: Path) -> None:
    fivefold = "A: 6k1/8/8/8/8/8/8/R5K1 w - - 30 60+a1a2+a2a1 g8h8 a1a2 h8g8 a2a1 g8h8 a1a2 h8g8 a2a1 a1a2+"
    outcome = chess_text.transition("6k1/8/8/8/8/8/8/R5K1 w - - 30 60", "a1a2", legality="legacy").new_fen
    lines = ["P: not asked here", FIRST, f"{fivefold}{outcome}+0.5+1+0", "", f"{FIRST}{AFTER}+0.001+0+0"]
    lines.append(f"A: {START}+e2e5+e2e5+")
    path = written(tmp_path, *lines)
    assert [row.move for row in load_questions(Path(path), "legacy")[0]] == ["e2e4", "e2e4", "e2e5"]
    assert task_of(path).notes() == [
        f"{path}: 1 P documents are left out",
        f"{path}: 1 documents are left out, with a draw that the prompt does not show, as by fivefold repetition",
        f"{path}: 1 questions are left out, whose moves are not legal (task.moves)",
        f"{path}: 1 of 2 questions repeat an earlier one, and are asked all the same",
    ]
    assert task_of(environment.first_moves()).notes() == []
    written(tmp_path, FIRST)
    (tmp_path / "rows.json").write_text(json.dumps([{"prompt": FIRST, "expected_fen": AFTER}]))
    for path in (tmp_path / "questions.txt", tmp_path / "rows.json"):  # as Windows' editors write it
        path.write_text(path.read_text(), encoding="utf-8-sig")
        assert [row.move for row in load_questions(path, "legacy")[0]] == ["e2e4"]


def test_documents_of_either_answer_to_an_illegal_move_are_read_where_the_task_is_strict(tmp_path: Path) -> None:
    """Those that such a task asks for, and the published ones, whose questions it answers anew."""
    asked = [f"A: {START}+{move}+{move}+" for move in ("e2e5", "e4e5")]
    answers = {
        legality: [chess_text.transition(START, move, legality=legality).text() for move in ("e2e5", "e4e5")]
        for legality in ("legacy", "strict")
    }
    assert not set(answers["legacy"]) & set(answers["strict"])
    for said in answers.values():
        path = written(tmp_path, *(prompt + answer for prompt, answer in zip(asked, said, strict=True)))
        task = task_of(path, moves="illegal", legality="strict")
        assert sorted(map(task.gold, task.prompts())) == sorted(answers["strict"])
    rows = [{"prompt": asked[0], "expected_fen": START}]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    assert load_questions(tmp_path / "rows.json", "strict")[0][0].move == "e2e5"
    for path in (written(tmp_path, asked[0] + answers["strict"][0]), str(tmp_path / "rows.json")):
        with pytest.raises(DataError, match="row 1"):
            task_of(path, moves="illegal")


def test_what_a_row_expects_is_checked(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps([{"prompt": FIRST}, {"prompt": FIRST, "expected_fen": START}]))
    with pytest.raises(DataError, match=r"rows\.json, row 2: expected_fen '.*' does not follow 'A: "):
        task_of(str(tmp_path / "rows.json"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("B: nothing", "not an A document"),
        ("A: nonsense+e2e4+e2e4+", "six fields"),
        (f"A: {START}+e2e4+e7e5+", "history"),
        (f"A: {START}+e2e4+{' '.join(['a2a3'] * 10)} e2e4+", "history"),
        (f"A: {START}+e2e4+a2a3,e2e4+", "history"),
        (f"A: {' '.join(START.split()[:4])}+e2e4+e2e4+", "six fields"),
        (f"A: {AFTER}+e7e5+e2e9 e7e5+", "history has a word that is no move: 'e2e9 e7e5'"),
        (f"A: {AFTER}+e7e5+0001 e2e4 e7e5+", "no move"),
        (f"A: {AFTER}+e7e5+d2d4 e2-e4 e7e5+", "no move"),
        (f"A: {START} +e2e4+e2e4+", "spaces"),
        (f"{FIRST}{START}+0.001+0+0", "the oracle answers"),
        (f"{FIRST}{AFTER}+0.001+0+0+0", "the oracle answers"),
        (f"{FIRST}{AFTER}+1+0+0", "the oracle answers"),
        (f"{FIRST}{AFTER}+0.5+1+0", "the oracle answers"),  # a draw that no game could have brought about
        (f"A: {MATE}+a1a8+a1a8+{MATED}+0.5+1+0", "the oracle answers"),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(DataError, match=rf"questions\.txt, row 2: .*{words}"):
        load_questions(Path(written(tmp_path, FIRST, line)), "legacy")


def test_a_null_move_may_be_in_a_history(tmp_path: Path) -> None:
    path = written(tmp_path, f"A: {AFTER}+e7e5+0000 e2e4 e7e5+")
    assert load_questions(Path(path), "legacy")[0][0].history == ("0000", "e2e4", "e7e5")


def test_a_fivefold_repetition_takes_16_quiet_half_moves(tmp_path: Path) -> None:
    history = "a2a1 g8h8 a1a2 h8g8 a2a1 g8h8 a1a2 h8g8 a2a1 a1a2"
    lines = []
    for quiet in (15, 14):
        fen = f"6k1/8/8/8/8/8/8/R5K1 w - - {quiet} 60"
        lines.append(f"A: {fen}+a1a2+{history}+{chess_text.transition(fen, 'a1a2', legality='legacy').new_fen}+0.5+1+0")
    assert task_of(written(tmp_path, FIRST, lines[0])).notes()[0].endswith("as by fivefold repetition")
    with pytest.raises(DataError, match="row 2: .*the oracle answers"):
        load_questions(Path(written(tmp_path, FIRST, lines[1])), "legacy")


def test_missing_and_empty_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere"):
        load_questions(tmp_path / "nowhere.txt", "legacy")
    with pytest.raises(DataError, match="no A prompts"):
        load_questions(Path(written(tmp_path, "P: only")), "legacy")
    for text in ("[{}]", '[{"prompt": 3}]'):
        (tmp_path / "rows.json").write_text(text)
        with pytest.raises(DataError, match=r"rows\.json"):
            load_questions(tmp_path / "rows.json", "legacy")


def test_sampled_opening_rows_are_prompts_with_the_expected_answer(shared_dir: Path) -> None:
    sample = shared_dir / "data" / "opening_positions_sample.json"
    expected = [row["expected_fen"] for row in json.loads(sample.read_text())]
    rows, _ = load_questions(sample, "legacy")
    repeated = f"{sample}: 27 of 200 questions repeat an earlier one, and are asked all the same"
    assert task_of(str(sample)).notes() == [repeated]
    assert [chess_text.transition(row.fen, row.move, legality="legacy").new_fen for row in rows] == expected
