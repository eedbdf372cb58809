"""The P task: fixed batches, passes in which no position is asked twice more than another, and rows that are wrong."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import chess
import pytest
import rewarded
from hypothesis import given, settings
from hypothesis import strategies as st

from rookexp.chess_text import Annotation, build_p, parse_p
from rookexp.config import door
from rookexp.errors import ConfigError, DataError
from rookexp.rewards.chess import PolicyReward
from rookexp.tasks.mixed import Mixed
from rookexp.tasks.rookworld import PolicyTask, load_annotations


class Bytes:
    def encode(self, text: str) -> list[int]:
        return list(text.encode())


def row_of(board: chess.Board) -> dict[str, Any]:
    moves = sorted(move.uci() for move in board.legal_moves)[:5]
    return {"fen": board.fen(en_passant="fen"), "kind": "opening", "moves": moves, "evals_cp": [50, 20, 20, 0, -9]}


def rows_of(count: int) -> list[dict[str, Any]]:
    """Distinct positions of one long game, White and Black to move in turn."""
    board, rows = chess.Board(), []
    while len(rows) < count:
        rows.append(row_of(board))
        board.push(sorted(board.legal_moves, key=lambda move: move.uci())[len(rows) % 2])
    return rows


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def task_of(positions: str, **changes: Any) -> PolicyTask:
    options = {"prompts": 4, "order": "epochs", "colours": "balanced", "p_style": "bare", "seed": 1}
    options |= {"analysed": 0.0, "list_order": "best_first"}
    return PolicyTask(Bytes(), positions=positions, **options | changes)


def turns(prompts: tuple) -> str:
    return "".join(prompt.answer.fen.split()[1] for prompt in prompts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("positions")


def test_prompt_carries_text_ids_and_annotation(folder: Path) -> None:
    positions = write(folder / "one.jsonl", [row_of(chess.Board())])
    (bare,) = task_of(positions, prompts=1, order="fixed").select(0)
    assert bare.text == f"P: {chess.STARTING_FEN}"
    assert (bare.ids, bare.task) == (tuple(bare.text.encode()), "P")
    assert bare.answer == Annotation(chess.STARTING_FEN, ("a2a3", "a2a4", "b1a3", "b1c3", "b2b3"), (50, 20, 20, 0, -9))
    (padded,) = task_of(positions, prompts=1, order="fixed", p_style="padded_prefill").select(0)
    assert padded.text == f"P: {chess.STARTING_FEN:<90}M:"


@pytest.mark.parametrize("style", ["bare", "padded_prefill"])
def test_gold_completes_the_document_and_earns_the_most(folder: Path, style: str) -> None:
    task = task_of(write(folder / "gold.jsonl", rows_of(9)), p_style=style)
    prompts = task.prompts()
    whole = [prompt.text + task.gold(prompt) for prompt in prompts]
    for prompt, text in zip(prompts, whole, strict=True):
        row = prompt.answer
        assert text == build_p(row.fen, row.moves, row.evals_cp, row.moves[0])
    reward = PolicyReward(best=0.5, candidates=0.3, evals=0.2)
    assert reward.score(prompts, [task.gold(prompt) for prompt in prompts]).rewards.tolist() == pytest.approx([1] * 8)


@pytest.mark.parametrize("list_order", ["best_first", "sorted", "shuffled"])
def test_an_analysed_prompt_asks_for_the_choice_alone(folder: Path, list_order: str) -> None:
    rows = rows_of(40)
    for row in rows:
        row["moves"] = [row["moves"][2], *row["moves"][:2], *row["moves"][3:]]  # the best is not the first by name
    task = task_of(write(folder / "analysed.jsonl", rows), analysed=1.0, list_order=list_order)
    orders = set()
    for prompt in task.select(2):
        row, said = prompt.answer, parse_p(prompt.text)
        assert prompt.text.endswith("B:")
        assert said is not None
        assert (said.fen, said.best) == (row.fen, None)
        evals = [cp / 100 for cp in row.evals_cp]
        assert sorted(said.pairs() or []) == sorted(zip(row.moves, evals, strict=True))
        orders.add(tuple(row.moves.index(move) for move in said.moves))
        first = {"best_first": row.moves[0], "sorted": min(row.moves)}
        assert list_order == "shuffled" or said.moves[0] == first[list_order]
        rest = said.moves[1:] if list_order == "best_first" else said.moves
        falls = sum(one > other for one, other in itertools.pairwise(rest))
        assert list_order == "shuffled" or falls <= (list_order == "best_first")
        assert task.gold(prompt) == f" {row.moves[0]}"
        assert prompt.text + task.gold(prompt) == build_p(row.fen, said.moves, [
            dict(zip(row.moves, row.evals_cp, strict=True))[move] for move in said.moves], row.moves[0])  # fmt: skip
    assert len(orders) > 1 or list_order != "shuffled"
    assert task.select(2) == task_of(str(folder / "analysed.jsonl"), analysed=1.0, list_order=list_order).select(2)
    assert {prompt.text for prompt in task.prompts()} == {f"P: {row['fen']}" for row in rows}, "the evaluation asks all"
    reward = PolicyReward(best=0.5, candidates=0.3, evals=0.2)
    prompts = task.select(2)
    assert reward.score(prompts, [task.gold(prompt) for prompt in prompts]).rewards.tolist() == pytest.approx([1] * 4)
    worst = reward.score(prompts, [f" {prompt.answer.moves[-1]}" for prompt in prompts])
    assert worst.rewards.tolist() == pytest.approx([0.5 * 0.2 + 0.5] * 4)
    assert worst.stages is not None
    assert worst.stages.ends.tolist() == [[0, 0, 5]] * 4


@pytest.mark.parametrize(("analysed", "of_eight"), [(0.0, 0), (0.25, 2), (0.5, 4), (0.8, 6), (1.0, 8)])
def test_the_share_of_analysed_prompts_is_a_quota_of_each_colour(folder: Path, analysed: float, of_eight: int) -> None:
    positions = write(folder / "share.jsonl", rows_of(80))
    task = task_of(positions, analysed=analysed, prompts=20)
    shown = [prompt.text.endswith("B:") for step in range(4) for prompt in task.select(step)]
    assert shown[::2] == shown[1::2], "White and Black alike"
    assert sum(shown) == round(80 * analysed)
    assert sum(shown[:16]) in (2 * of_eight, 2 * of_eight + 2)
    fixed = task_of(positions, analysed=analysed, prompts=8, order="fixed")
    assert fixed.select(0) == fixed.select(5)


def test_the_quota_of_analysed_prompts_runs_on_from_pass_to_pass(folder: Path) -> None:
    task = task_of(write(folder / "odd.jsonl", rows_of(14)), analysed=0.3, prompts=10)
    shown = [prompt.text.endswith("B:") for step in range(30) for prompt in task.select(step)]
    assert shown[::2] == shown[1::2]
    assert [sum(shown[: 2 * turns : 2]) for turns in range(150)] == [turns * 3 // 10 for turns in range(150)]


def test_a_share_of_analysed_prompts_that_leaves_none_is_refused(folder: Path) -> None:
    positions = write(folder / "few.jsonl", rows_of(80))
    with pytest.raises(ConfigError, match=r"task\.analysed=0\.4: leaves none of 4 positions analysed"):
        task_of(positions, analysed=0.4, prompts=4, order="fixed")
    task = task_of(positions, analysed=0.5, prompts=4, order="fixed")
    assert sum(prompt.text.endswith("B:") for prompt in task.select(0)) == 2


def test_a_position_without_an_analysis_has_none_to_show(folder: Path) -> None:
    positions = write(folder / "bare.jsonl", [*rows_of(3), {"fen": chess.STARTING_FEN}])
    assert task_of(positions, prompts=2)
    with pytest.raises(DataError, match=r"bare\.jsonl: rnbq.* analysed=0\.5 shows; allowed: 0, or positions with one"):
        task_of(positions, analysed=0.5)


def test_fixed_batch_is_the_same_in_every_step(folder: Path) -> None:
    positions = write(folder / "twelve.jsonl", rows_of(12))
    task = task_of(positions, order="fixed", prompts=7)
    assert task.select(0) == task.select(11) == task.prompts()
    assert len(set(task.select(0))) == 7
    assert turns(task.select(0)) == "wbwbwbw"
    assert task_of(positions, order="fixed", prompts=7).select(3) == task.select(3)
    assert task_of(positions, order="fixed", prompts=7, seed=2).select(3) != task.select(3)
    with pytest.raises(DataError, match="6 with Black are too few for 13 prompts"):
        task_of(positions, order="fixed", prompts=13)


def test_too_few_positions_of_a_colour_are_counted_with_what_to_do(folder: Path) -> None:
    white = write(folder / "white.jsonl", rows_of(12)[::2])
    said = re.escape(f"{white}: 6 positions with White to move and 0 with Black are too few for ")
    few = r"give more, ask fewer \(grpo\.prompts_per_step\)"
    with pytest.raises(DataError, match=f"{said}4 prompts, half of each; {few}, or use colours=as_found$"):
        task_of(white, order="fixed")
    with pytest.raises(DataError, match=f"{said}7 prompts; {few}$"):
        task_of(white, order="fixed", colours="as_found", prompts=7)
    assert len(task_of(white, order="fixed", colours="as_found", prompts=6).prompts()) == 6


def test_balanced_passes_alternate_the_colours(folder: Path) -> None:
    rows = rows_of(20)
    uneven = [row for i, row in enumerate(rows) if i % 2 == 0 or i < 8]  # 10 White, 4 Black
    task = task_of(write(folder / "uneven.jsonl", uneven))
    assert len(task.prompts()) == 8
    assert all(turns(task.select(step)) == "wbwb" for step in range(9))
    assert task.notes() == [
        f"{folder}/uneven.jsonl: colours=balanced leaves out 6 of 14 positions, with White to move; "
        "colours=as_found asks all"
    ]
    as_found = task_of(write(folder / "uneven.jsonl", uneven), colours="as_found")
    assert (len(as_found.prompts()), as_found.notes()) == (14, [])
    assert task_of(write(folder / "even.jsonl", rows)).notes() == []
    tasks = {"P": task, "other": as_found}
    mixed = Mixed(tasks=tasks, shares={"P": 0.5, "other": 0.5}, prompts=4, order="epochs", sampling={})
    assert mixed.notes() == task.notes()
    with pytest.raises(DataError, match="as_found"):
        task_of(write(folder / "white.jsonl", rows[::2]))


@settings(max_examples=30, deadline=None)
@given(
    count=st.integers(2, 9),
    prompts=st.integers(1, 12),
    steps=st.integers(1, 12),
    seed=st.integers(0, 5),
    colours=st.sampled_from(["balanced", "as_found"]),
)
def test_every_position_is_asked_equally_often(
    folder: Path, count: int, prompts: int, steps: int, seed: int, colours: str
) -> None:
    positions = write(folder / f"pass-{count}.jsonl", rows_of(count))
    task = task_of(positions, prompts=prompts, seed=seed, colours=colours)
    asked: Counter[str] = Counter({prompt.text: 0 for prompt in task.prompts()})
    for step in range(steps):
        selected = task.select(step)
        assert len(selected) == prompts
        asked.update(prompt.text for prompt in selected)
        assert max(asked.values()) - min(asked.values()) <= 1
    assert len(asked) == len(task.prompts())


def test_selection_depends_on_seed_and_step_alone(folder: Path) -> None:
    positions = write(folder / "ten.jsonl", rows_of(10))
    straight = [task_of(positions).select(step) for step in range(8)]
    resumed = task_of(positions)
    assert [resumed.select(step) for step in (7, 2, 5)] == [straight[7], straight[2], straight[5]]
    passes = [
        tuple(p.text for s in range(5 * e, 5 * e + 5) for p in task_of(positions, prompts=2).select(s)) for e in (0, 1)
    ]
    assert passes[0] != passes[1]
    assert sorted(passes[0]) == sorted(passes[1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fen": "not a position"}, "six fields"),
        ({"fen": "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq"}, "six fields"),
        ({"fen": 7}, "six fields"),
        ({"fen": "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1\n"}, "six fields"),
        ({"fen": "4k3/8/8/8/4R3/8/8/4K3 w - - 0 1"}, "a game can have"),
        ({"fen": "8/8/8/8/4R3/8/8/8 w - - 0 1"}, "a game can have"),
        ({"moves": ["e2e5"], "evals_cp": [1]}, "legal moves"),
        ({"moves": ["e2e4", "e2e4"], "evals_cp": [1, 1]}, "distinct"),
        ({"moves": [], "evals_cp": []}, "legal moves"),
        ({"moves": "e2e4"}, "list of moves"),
        ({"moves": [3]}, "list of moves"),
        ({"evals_cp": [1, 2]}, "one value per move"),
        ({"evals_cp": [1, 2, 3, 4, 5]}, "best first"),
        ({"evals_cp": [1.5, 1, 1, 1, 1]}, "whole centipawns"),
        ({"evals_cp": None}, "whole centipawns"),
    ],
)
def test_malformed_row_is_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    good = row_of(chess.Board())
    path = Path(write(tmp_path / "rows.jsonl", [good, good | change]))
    with pytest.raises(DataError, match=rf"rows\.jsonl, row 2: .*{words}"):
        load_annotations(path)


@pytest.mark.parametrize("line", ["{", "[]", "null", '{"fen": "x"}', "\n{}", "[" * 100_000])
def test_line_that_is_no_row_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(DataError, match=r"rows\.jsonl, row 1: "):
        load_annotations(path)


@pytest.mark.parametrize("text", ["", "\n\n", "\ufeff \r\n"])
def test_a_file_without_rows_is_not_called_broken(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"rows\.jsonl: no annotated positions in it; wanted: an object with fen"):
        load_annotations(path)


def test_a_byte_order_mark_is_no_part_of_the_rows(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "rows.jsonl", [row_of(chess.Board())]))
    rows = load_annotations(path)
    path.write_text(path.read_text(), encoding="utf-8-sig")
    assert load_annotations(path) == rows


def test_a_row_may_be_a_position_alone(tmp_path: Path) -> None:
    fens = [chess.STARTING_FEN, chess.STARTING_FEN.replace(" w ", " b ")]
    positions = write(tmp_path / "fens.jsonl", [{"fen": fen, "kind": "opening"} for fen in fens])
    assert load_annotations(Path(positions)) == tuple(Annotation(fen, (), ()) for fen in fens)
    task = task_of(positions, prompts=2, colours="balanced")
    asked = task.prompts()
    texts = [task.gold(prompt) for prompt in asked]
    own = rewarded.option("self_consistency").score(asked, texts)
    assert own.rewards.tolist() == [1.0, 1.0]
    assert own.parts["best_is_engine"].isnan().all()
    assert own.parts["argmax_is_engine_white"].isnan().all()
    assert own.parts["best_legal"].tolist() == [1.0, 1.0]
    for name in ("policy", "dataset", "graduated", "full_graduated", "full_additive"):
        with pytest.raises(DataError, match="no analysis of it .*; reward=engine asks Stockfish"):
            rewarded.option(name).score(asked, texts)
    mated = "rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w KQkq - 1 3"
    for row, said in (({"fen": mated}, "without a move"), ({"fen": fens[0], "moves": ["e2e4"]}, "or with fen alone")):
        with pytest.raises(DataError, match=f"row 1: .*{said}"):
            load_annotations(Path(write(tmp_path / "wrong.jsonl", [row])))


def test_evaluations_from_whites_view_are_told(tmp_path: Path) -> None:
    shipped = door.PACKAGE / "assets" / "positions" / "train.jsonl"
    rows = [json.loads(line) for line in shipped.read_text(encoding="utf-8").splitlines()]
    assert not task_of(str(shipped), colours="as_found").notes()
    turned = []
    for row in rows:
        whites = [value * (-1 if " b " in row["fen"] else 1) for value in row["evals_cp"]]
        order = sorted(range(len(whites)), key=lambda i: -whites[i])
        turned.append(row | {"moves": [row["moves"][i] for i in order], "evals_cp": [whites[i] for i in order]})
    (note,) = task_of(write(tmp_path / "white.jsonl", turned), colours="as_found").notes()
    assert "white.jsonl: with Black to move, and 5 pawns or more up or down, 38 of 38 evaluations say the op" in note


def test_missing_and_empty_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.jsonl: .* cannot be read \(No such file or directory\)$"):
        load_annotations(tmp_path / "nowhere.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError, match=r"empty\.jsonl"):
        load_annotations(tmp_path / "empty.jsonl")


def test_lines_beyond_the_fifth_are_left_out_and_counted_as_positions_that_come_again_are(tmp_path: Path) -> None:
    row = row_of(chess.Board()) | {
        "moves": ["e2e4", "d2d4", "c2c4", "b2b3", "a2a3", "h2h3"],
        "evals_cp": [6, 5, 4, 3, 2, 1],
    }
    path = write(tmp_path / "six.jsonl", [row, row, row_of(chess.Board()) | {"moves": ["e2e4"], "evals_cp": [6]}])
    task = task_of(path, colours="as_found", order="fixed", prompts=1)
    assert task.notes() == [
        f"{path}: 2 of 3 positions have more than 5 moves, of which the first 5 are used",
        f"{path}: 2 of 3 positions repeat an earlier one, and are asked all the same",
    ]
    task = task_of(write(tmp_path / "six.jsonl", [row]), colours="as_found", order="fixed", prompts=1)
    kept = task.prompts()[0].answer
    assert (kept.moves[-1], kept.evals_cp[-1], len(kept.moves)) == ("a2a3", 2, 5)
