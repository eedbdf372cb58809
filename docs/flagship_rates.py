"""What the flagships' runs and evaluations have recorded, counted: the answers to P and A prompts as rates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import itemgetter
from pathlib import Path

from before_after import BeforeAfter, Rate, Row, rate
from flagship_positions import SIDES, keys_of

from rookexp import boards, chess_text, track
from rookexp.errors import DataError
from rookexp.run_folder import runs
from rookexp.tasks.a_figures import PLY_BUCKETS
from rookexp.tasks.mixed import subtasks
from rookexp.tasks.positions import position_key

NAMES = {
    "best_is_engine": "B is the engine's best",
    "argmax_is_engine": "argmax E is the engine's best",
    "best_legal": "B is legal",
}
Answers = dict[str, list[Row]]  # by side to move, in the order of asking


# ---- P prompts --------------------------------------------------------------------------------------------------


def greedy(run: runs.Run) -> dict[int, Answers]:
    """The answers of each evaluation of a run, by step and side, without those to positions that it was trained on.

    Raises: DataError where none is left, or the training's positions are not found.
    """
    node = subtasks(run.config["task"]).get("P")
    if node is None:
        raise DataError(f"{run.folder}: no task.tasks.P, so it is of an earlier recipe; train with today's")
    named = Path(str(node["positions"]))
    file = next((path for path in (named, boards.ASSETS / named.name) if path.is_file()), None)
    if file is None:
        raise DataError(f"{named}: not found, so that nobody knows what {run.folder} was trained on; put it there")
    trained = keys_of(file)
    rows = [row for row in track.read_jsonl(run.folder / track.COMPLETIONS) if row["kind"] == "greedy"]
    asked = {row["prompt"]: boards.board_of(row["prompt"]) for row in rows if row["step"] == 0}
    sides = {prompt: SIDES[b.turn] for prompt, b in asked.items() if b is not None and position_key(b) not in trained}
    found: dict[int, Answers] = {row["step"]: {side: [] for side in SIDES} for row in rows}
    for row in rows:
        if row["prompt"] in sides:
            found[row["step"]][sides[row["prompt"]]].append(row)
    if not found or not all(any(by_side.values()) for by_side in found.values()):
        raise DataError(f"{run.folder}: no held-out positions among its answers; train with eval.positions.P=FILE")
    return found


def p_rates(steps: Mapping[int, Mapping[int, Answers]]) -> dict[tuple[str, str], Rate]:
    """By side and reading: the rate of the answers of the first and the last evaluation.

    Raises: DataError where the runs were asked different prompts.
    """
    found = {}
    for side in SIDES:
        before, after = ({seed: by_step[pick(by_step)][side] for seed, by_step in steps.items()} for pick in (min, max))
        prompts = [[row["prompt"] for row in rows] for rows in (*before.values(), *after.values())]
        if any(each != prompts[0] for each in prompts):
            raise DataError("eval.positions.P: the runs were asked different prompts; name runs of one file")
        for key, name in NAMES.items():
            found[side, key] = rate(f"{side}: {name}", (before, after), itemgetter(key))
    return found


# ---- A documents ------------------------------------------------------------------------------------------------


def a_rates(parts: Mapping[str, BeforeAfter]) -> Iterator[Rate]:
    """Of each part: answers and next states that are exact, and the latter by ply."""
    for part, answers in parts.items():
        yield rate(f"{part}: answer exact", answers, itemgetter("right"))
        state = rate(f"{part}: next state exact", answers, exact)
        yield state
        plies = [ply_of(row) for row in next(iter(answers[0].values()))]
        for _, name in PLY_BUCKETS:
            at = [i for i, ply in enumerate(plies) if ply == name]
            if 0 < len(at) < len(plies):
                yield state.only(name, at)


def exact(row: Row) -> float:
    """Whether all six fields of the next state are right."""
    said, true = (chess_text.parse_a_completion(t) for t in (row["completion"], row["gold"][len(row["prompt"]) :]))
    return float(chess_text.match(said.new_fen, true.new_fen).strict)


def ply_of(row: Row) -> str:
    """The bucket of the move that an A prompt asks."""
    asked = chess_text.parse_a_prompt(row["prompt"])
    board = None if asked is None else chess_text.board_of(asked.fen)
    assert board is not None, "the evaluation has read it"
    return next(name for last, name in PLY_BUCKETS if board.ply() + 1 <= last)
