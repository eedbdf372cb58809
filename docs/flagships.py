"""The pages of the two flagships: docs/black_repair.md with its curve and boards, docs/a_openings.md.

`python docs/flagships.py black_repair RUN...`, and the same with `a_openings`, writes one from finished runs of that
recipe with different seeds; a folder of runs will do. The models before and after are asked the documents first, by
`python -m rookexp.evaluate` into RUN/evaluate and, of the first run, RUN/evaluate_before, where that is not done yet.

`python docs/flagships.py held_out FILE` writes the positions for `eval.positions`: those of a corpus that neither the
pretraining nor black_repair has seen. `python docs/flagships.py others FILE HELD_OUT` then writes 20 000 other ones,
for `task.positions`.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a checkout without an install will do

from rookexp import boards, chess_text, documents, model_card, runs, statistics, track  # noqa: E402
from rookexp.errors import DataError, RookexpError  # noqa: E402
from rookexp.run_info import write_atomic  # noqa: E402
from rookexp.statistics import Interval  # noqa: E402
from rookexp.tasks.a_figures import PLY_BUCKETS  # noqa: E402
from rookexp.tasks.figures import Figure, bootstrapped  # noqa: E402
from rookexp.tasks.positions import position_key, split_of  # noqa: E402
from rookexp.tasks.rookworld import load_annotations  # noqa: E402

SIDES = {"Black": "b", "White": "w"}
ENOUGH = 500  # held-out positions a colour
LIMIT = 500  # documents of each task that are asked
OTHERS = 20_000  # positions to train on
DRAWN, COLUMNS, SCALE, MARGIN, CAPTION = 8, 4, 0.5, 12, 30  # boards; lengths in pixels of the sheet
BEFORE, AFTER = "#cc2936dd", "#15873bdd"
COLOURS = {"best_is_engine": "#1f6fd6", "argmax_is_engine": "#c98a1b"}
NAMES = {
    "best_is_engine": "B is the engine's best",
    "argmax_is_engine": "argmax E is the engine's best",
    "best_legal": "B is legal",
}
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found of each item, from 0 to 1, before and after the training with each seed."""

    name: str
    before: dict[int, list[float]]
    after: dict[int, list[float]]

    def means(self) -> tuple[dict[int, float], dict[int, float]]:
        """By seed, before and after."""
        before, after = ({seed: float(np.mean(y)) for seed, y in some.items()} for some in (self.before, self.after))
        return before, after

    def start(self) -> Interval:
        """Before: Wilson's interval over the items; where these differ between seeds, a bootstrap one."""
        items = np.mean(list(self.before.values()), axis=0)
        whole = bool(np.isin(items, (0, 1)).all())
        if whole:
            figure = Figure(int(items.sum()), len(items))
            return Interval(figure.share, *figure.interval)
        return over(items.tolist())

    def end(self) -> Interval:
        """After: Student's t interval over seeds."""
        return statistics.mean(list(self.means()[1].values()))

    def line(self, comparisons: int) -> str:
        """A row of the table, in percent."""
        before, after = self.means()
        found = statistics.compared(after, before, comparisons=comparisons)
        gains = np.mean(list(self.after.values()), axis=0) - np.mean(list(self.before.values()), axis=0)
        cells = [self.name, str(len(gains)), percent(self.start()), percent(self.end())]
        cells += [percent(found.interval, sign="+"), percent(over(gains.tolist()), sign="+"), found.said]
        return f"| {' | '.join(cells)} |"


def over(items: Sequence[float]) -> Interval:
    """The mean with its bootstrap interval."""
    found = bootstrapped(items)
    return Interval(found.value, *(found.interval or (math.nan, math.nan)))


def percent(found: Interval, *, sign: str = "") -> str:
    """In percent, or in points where that is a change."""
    bounds = "" if math.isnan(found.low) else f" [{100 * found.low:{sign}.1f}, {100 * found.high:{sign}.1f}]"
    return f"{100 * found.value:{sign}.1f}{'' if sign else ' %'}{bounds}"


def table(rows: Sequence[Measured]) -> str:
    """Every rate before and after."""
    head = "| | n | before | after | change over seeds | change over items | |\n|---|---|---|---|---|---|---|"
    return "\n".join([head, *(row.line(len(rows)) for row in rows)])


def judged(found: Interval, low: float, high: float) -> str:
    """Whether a value, and its whole interval, is from `low` to `high`."""
    if not low <= found.value <= high:
        return "does not hold"
    if math.isnan(found.low):
        return "holds in the mean; there is no interval"
    return "holds" if low <= found.low and found.high <= high else "holds in the mean, not in the whole interval"


def verdict(asked: Sequence[tuple[str, str, str]]) -> str:
    """What was asked, what was found, and the word; then the word for all."""
    lines = ["| asked | found | |", "|---|---|---|", *(f"| {' | '.join(each)} |" for each in asked)]
    words = [word for *_, word in asked]
    missed = [text for text, _, word in asked if not word.startswith("holds")]
    whole = all(word == "holds" for word in words)
    said = f"Does not hold: {'; '.join(missed)}" if missed else "All of it holds" if whole else "Holds in the means"
    return "\n".join([*lines, "", f"**{said}.**"])


# ---- runs -------------------------------------------------------------------------------------------------------


def read(recipe: str, folders: Sequence[Path]) -> dict[int, runs.Run]:
    """The runs in these folders by seed.

    Raises: DataError where one is not finished, two have the same seed, or more than the seed differs.
    """
    found = [runs.read(folder) for path in folders for folder in runs.find(path)]
    if not found:
        given = ", ".join(map(str, folders))
        raise DataError(f"{given}: no run folders; make them with `python -m rookexp.train experiment={recipe}`")
    for run in found:
        if run.status != "finished":
            raise DataError(f"{run.folder}: {run.status}, not finished; leave it out, or go on with resume=")
    different = runs.differing([run.config for run in found])
    by_seed = {run.seed if run.seed is not None else -1: run for run in found}
    if different or len(by_seed) < len(found):
        key = next(iter(different), "seed")
        raise DataError(
            f"{key}: the runs of one recipe differ in their seeds and in nothing else; name such runs alone"
        )
    return dict(sorted(by_seed.items()))


def evaluated(run: runs.Run, *, before: bool, texts: Sequence[Path], limit: int) -> Path:
    """The folder of an evaluation of the run's model, or of the one that it started from; made if it is not there.

    Raises: DataError where that fails.
    """
    where = run.folder / ("evaluate_before" if before else "evaluate")
    if (where / "figures.json").is_file():
        return where
    node = run.config["model"]
    path = node.get("path") if before else run.folder.resolve()
    if path is None:
        raise DataError(f"{run.folder}: it started from random weights, which are gone; name runs of a loaded model")
    words = [f"model.path='{path}'", "games=0", "mates=[]", f"limit={limit}"]
    words += [f"model.revision={node['revision']}"] if before and node.get("revision") else []
    words += [f"documents=[{','.join(repr(str(text.resolve())) for text in texts)}]"]
    words += [f"hydra.run.dir='{where.resolve()}'"]
    print(f"evaluating into {where}", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "rookexp.evaluate", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise DataError(f"{where}: not evaluated ({done.stderr.strip()[-300:]})")
    return where


def answered(folder: Path) -> dict[str, list[Row]]:
    """The A answers of an evaluation, by part, in the order of asking."""
    lines = (folder / "completions.jsonl").read_text(encoding="utf-8").splitlines()
    parts: dict[str, list[Row]] = {}
    for row in map(json.loads, lines):
        if row["part"].endswith(", A"):
            parts.setdefault(row["part"], []).append(row)
    return parts


def a_rows(before: Mapping[str, list[Row]], after: Mapping[int, Mapping[str, list[Row]]]) -> Iterator[Measured]:
    """Of each part of A documents: answers and next states that are exact, and the latter by ply.

    Raises: DataError where the models were asked different documents.
    """
    for part, first in before.items():
        for seed, parts in after.items():
            if [row["gold"] for row in parts.get(part, [])] != [row["gold"] for row in first]:
                raise DataError(f"seed {seed}, {part}: not what the model before was asked; delete RUN/evaluate*")
        each = {seed: parts[part] for seed, parts in after.items()}
        yield measured(f"{part}: answer exact", first, each, lambda row: float(row["right"]))
        yield measured(f"{part}: next state exact", first, each, exact)
        plies = [ply_of(row) for row in first]
        for _, name in PLY_BUCKETS:
            at = [i for i, ply in enumerate(plies) if ply == name]
            if 0 < len(at) < len(first):
                some = {seed: [rows[i] for i in at] for seed, rows in each.items()}
                yield measured(f"{part}: next state exact, {name}", [first[i] for i in at], some, exact)


def measured(name: str, before: Sequence[Row], after: Mapping[int, Sequence[Row]], of: Any) -> Measured:
    """A rate of rows; one model before stands for all seeds."""
    start = [of(row) for row in before]
    end = {seed: [of(row) for row in rows] for seed, rows in after.items()}
    return Measured(name, dict.fromkeys(after, start), end)


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


def head(recipe: str, by_seed: Mapping[int, runs.Run]) -> str:
    """Title, claim, commands, and what was run."""
    text = (ROOT / "conf" / "experiment" / f"{recipe}.yaml").read_text(encoding="utf-8")
    claim = re.search(r"^# Claim: (.*)$", text, re.MULTILINE)
    assert claim, f"{recipe}.yaml: no line '# Claim: ...'"
    first = next(iter(by_seed.values()))
    typed = [word for word in first.overrides if not re.match(r"[+~]*(hydra|track|seed)\b", word)]
    words = " ".join(shlex.quote(str(model_card.portable(word))) for word in typed)
    seeds = " ".join(map(str, by_seed))
    return f"""\
# {recipe}

Made by `docs/flagships.py` from the runs' own records: do not edit. The recipe:

> [`{recipe}`](../conf/experiment/{recipe}.yaml) {claim[1]}

```bash
for SEED in {seeds}; do python -m rookexp.train {words} seed=$SEED; done
python docs/flagships.py {recipe} outputs/{recipe}
```

{len(by_seed)} runs of {first.rows[-1]["step"]} steps, seeds {", ".join(map(str, by_seed))}, from \
`{model_card.base_of(first.config)}`; {origin(first)}.
"""


def origin(run: runs.Run) -> str:
    """Which code ran."""
    path = run.folder / "run.json"
    info = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    git = info.get("git") or {}
    changed = ", with changes that are in no commit" if git.get("dirty") else ""
    version = info.get("packages", {}).get("rookexp", "unknown")
    return f"rookexp {version}, git {git.get('revision', 'unknown')}{changed}"


READING = """\
Rates in percent, changes in points. Before: Wilson's 95 % interval over the n items; after and change over seeds:
Student's t over the runs; change over items: bootstrap, with each item's mean over the runs. The last word is that of
`python -m rookexp.compare`: "higher" and "lower" hold at the level 0.05 / (rows of the table), with a question mark
at 0.05 alone; "within noise" is not "equal".
"""


# ---- black_repair -----------------------------------------------------------------------------------------------


def greedy(run: runs.Run) -> dict[int, list[Row]]:
    """The answers of each evaluation of a run by step, without those to positions that it was trained on.

    Raises: DataError where none is left, or the training's positions are not found.
    """
    named = Path(str(run.config["task"].get("positions")))
    file = next((path for path in (named, boards.ASSETS / named.name) if path.is_file()), None)
    if file is None:
        raise DataError(f"{named}: not found, so that nobody knows what {run.folder} was trained on; put it there")
    trained = {key_of(row.fen) for row in load_annotations(file)}
    found: dict[int, list[Row]] = {}
    for row in track.read_jsonl(run.folder / track.COMPLETIONS):
        if row["kind"] == "greedy":
            found.setdefault(row["step"], []).append(row)
    known = {prompt: key_of(fen_of(prompt)) in trained for prompt in {row["prompt"] for row in found.get(0, [])}}
    left = {step: [row for row in rows if not known.get(row["prompt"], True)] for step, rows in found.items()}
    if not left or not all(left.values()):
        raise DataError(f"{run.folder}: no held-out positions among its answers; train with eval.positions=FILE")
    return left


def fen_of(prompt: str) -> str:
    """The position of a P prompt."""
    asked = chess_text.parse_p(prompt)
    assert asked is not None, "the run has asked it"
    return asked.fen


def key_of(fen: str) -> str:
    """What a position is known by, the same for its mirror images."""
    board = chess_text.board_of(fen)
    assert board is not None, "the run has asked it"
    return position_key(board)


def of_side(rows: Sequence[Row], side: str) -> list[Row]:
    """Those with that side to move."""
    return [row for row in rows if fen_of(row["prompt"]).split()[1] == SIDES[side]]


def p_rows(steps: Mapping[int, Mapping[int, list[Row]]]) -> dict[tuple[str, str], Measured]:
    """By side and part: each rate of the answers of the first and the last evaluation.

    Raises: DataError where the runs were asked different prompts.
    """
    first, last = ({seed: by_step[pick(by_step)] for seed, by_step in steps.items()} for pick in (min, max))
    prompts = [[row["prompt"] for row in rows] for some in (first, last) for rows in some.values()]
    if any(each != prompts[0] for each in prompts):
        raise DataError("eval.positions: the runs were asked different prompts; name runs of one file")
    found = {}
    for side in SIDES:
        for part, name in NAMES.items():
            before, after = (
                {seed: [float(row[part]) for row in of_side(rows, side)] for seed, rows in some.items()}
                for some in (first, last)
            )
            found[side, part] = Measured(f"{side}: {name}", before, after)
    return found


def repair_asked(
    found: Mapping[tuple[str, str], Measured], others: Sequence[Measured]
) -> Iterator[tuple[str, str, str]]:
    """The claim, point by point, with what was found."""
    counts = {side: len(next(iter(found[side, "best_is_engine"].after.values()))) for side in SIDES}
    said = ", ".join(f"{count} {side}" for side, count in counts.items())
    word = "holds" if min(counts.values()) >= ENOUGH else "does not hold"
    yield f"at least {ENOUGH} held-out positions a colour", said, word
    start = found["Black", "best_is_engine"].start()
    yield "Black's B is the engine's best in less than 5 % before", percent(start), judged(start, 0, 0.05)
    after = found["Black", "best_is_engine"].means()[1]
    was, top = found["Black", "argmax_is_engine"].means()
    share = statistics.mean([after[seed] / max(was[seed], top[seed], 1e-9) for seed in after])
    text = "and after in at least three quarters of what argmax E reaches, before or after"
    yield text, percent(share), judged(share, 0.75, math.inf)
    was, white = found["White", "best_is_engine"].means()
    moved = statistics.compared(white, was)
    stays = {"within noise": "holds", "identical": "holds"}.get(moved.said, f"does not hold: {moved.said}")
    yield "White's stays within noise", f"{percent(moved.interval, sign='+')} points", stays
    for other in others:
        if other.name.endswith(": answer exact"):
            before, now = other.means()
            change = statistics.paired_difference(now, before)
            yield f"{other.name} stays within 1 point", percent(change, sign="+"), judged(change, -0.01, 0.01)


def draw_curve(steps: Mapping[int, Mapping[int, list[Row]]], path: Path) -> None:
    """A panel a colour: the mean over seeds of both readings at each evaluation, with the 95 % band."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    figure = Canvas(figsize=(11, 4.2), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(SIDES), sharey=True)
    x = sorted(set.intersection(*(set(by_step) for by_step in steps.values())))
    for axis, side in zip(axes, SIDES, strict=True):
        for part, colour in COLOURS.items():
            y = [[np.mean([row[part] for row in of_side(each[step], side)]) for each in steps.values()] for step in x]
            found = [statistics.mean(values) for values in y]
            axis.plot(x, [100 * each.value for each in found], color=colour, marker=".", label=NAMES[part])
            low, high = ([100 * min(max(getattr(each, end), 0), 1) for each in found] for end in ("low", "high"))
            if len(steps) > 1:
                axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        axis.set_title(f"{side} to move", fontsize=10, loc="left")
        axis.set_xlabel("step (updates done)")
        axis.grid(alpha=0.25, linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("% of held-out positions")
    axes[0].set_ylim(bottom=0)
    axes[0].legend(fontsize=8, frameon=False)
    figure.suptitle(f"Greedy answers, {len(steps)} seeds: mean and 95 % band over seeds", fontsize=11)
    figure.savefig(path, metadata={"Software": None})


def sheet(before: Sequence[Row], after: Sequence[Row]) -> str:
    """An SVG of the first Black positions in the order of asking: the move before in red, the one after in green."""
    pairs = list(zip(of_side(before, "Black"), of_side(after, "Black"), strict=True))[:DRAWN]
    side = boards.SIZE * SCALE
    wide, high = side + MARGIN, side + MARGIN + CAPTION
    width, height = COLUMNS * wide + MARGIN, -(-len(pairs) // COLUMNS) * high + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}">',
        f'<defs>{boards.pieces()}</defs><rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for i, (old, new) in enumerate(pairs):
        x, y = MARGIN + i % COLUMNS * wide, MARGIN + i // COLUMNS * high
        board = chess_text.board_of(fen_of(old["prompt"]))
        assert board is not None, "the run has asked it"
        moves = [best_of(row) for row in (old, new)]
        colours = {m: c for m, c in zip(moves, (BEFORE, AFTER), strict=True) if chess_text.MOVE.fullmatch(m)}
        drawn = f"{boards.position(old['prompt'])}{boards.arrows_of(colours, board.turn)}"
        parts.append(f'<g transform="translate({x:g} {y:g}) scale({SCALE})"><use href="#squares"/>{drawn}</g>')
        for line, (word, row, move) in enumerate(zip(("before", "after"), (old, new), moves, strict=True), start=1):
            said = f"{word} {move or 'no move'}" + ", the engine's best" * bool(row["best_is_engine"])
            said += ", illegal" * (not row["best_legal"])
            at = y + side + 12 * line
            style = 'font-family="sans-serif" font-size="10"'
            parts.append(f'<text x="{x:g}" y="{at:g}" {style}>{escape(said)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def best_of(row: Row) -> str:
    """What an answer says after `B:`; "" for nothing."""
    answer = chess_text.parse_p(row["prompt"] + row["completion"])
    return (answer.best or "") if answer is not None else ""


def black_repair(by_seed: Mapping[int, runs.Run], out: Path, texts: Sequence[Path], limit: int) -> None:
    """Writes the page, the curve and the boards."""
    steps = {seed: greedy(run) for seed, run in by_seed.items()}
    found, others = p_rows(steps), a_before_after(by_seed, texts, limit)[0]
    first = next(iter(steps.values()))
    draw_curve(steps, out / "black_repair.png")
    write_atomic(out / "black_repair.svg", sheet(first[min(first)], first[max(first)]))
    asked = (next(iter(by_seed.values())).config.get("eval") or {}).get("positions")
    page = f"""\
{head("black_repair", by_seed)}
{verdict(list(repair_asked(found, others)))}

B is the move after `B:`, argmax E the listed move with the highest evaluation. The positions are those of
`{model_card.portable(str(asked))}` that the training does not ask; `held_out` and `others` of `docs/flagships.py` make
such files from a corpus.

{table([*found.values(), *(row for row in others if "next state exact, " not in row.name)])}

{READING}
![{NAMES["best_is_engine"]} over steps](black_repair.png)

The first {DRAWN} held-out positions with Black to move, in the order of asking, by the run of seed {min(by_seed)}:
B before the training in red, after it in green, which lies on top where it is the same.

![Boards before and after](black_repair.svg)
"""
    write_atomic(out / "black_repair.md", page)


# ---- a_openings -------------------------------------------------------------------------------------------------


def a_before_after(
    by_seed: Mapping[int, runs.Run], texts: Sequence[Path], limit: int
) -> tuple[list[Measured], dict[str, list[Row]], dict[int, dict[str, list[Row]]]]:
    """The rates of A documents, and the answers before and after."""
    ask = partial(evaluated, texts=texts, limit=limit)
    before = answered(ask(next(iter(by_seed.values())), before=True))
    after = {seed: answered(ask(run, before=False)) for seed, run in by_seed.items()}
    return list(a_rows(before, after)), before, after


def first_moves(before: Sequence[Row], after: Mapping[int, Sequence[Row]]) -> str:
    """A row for each of the 20 first moves."""
    lines = ["| move | before | next state exact after |", "|---|---|---|"]
    for i, row in enumerate(before):
        drawn = boards.next_state(row["prompt"], row["completion"], row["gold"][len(row["prompt"]) :])
        words = "no board in it" if drawn is None else drawn[1].words.partition(": ")[2]
        right = sum(exact(rows[i]) for rows in after.values())
        lines.append(f"| {row['gold'].split('+')[1]} | {words} | {right:.0f} of {len(after)} |")
    return "\n".join(lines)


def a_openings(by_seed: Mapping[int, runs.Run], out: Path, texts: Sequence[Path], limit: int) -> None:
    """Writes the page."""
    rows, before, after = a_before_after(by_seed, texts, limit)
    part = "first moves, A"
    asked = []
    for row in rows:
        if row.name == f"{part}: next state exact":
            start, end = row.start(), row.end()
            asked.append(("less than 95 % of the 20 first moves before", percent(start), judged(start, 0, 0.95)))
            asked.append(("at least 95 % of the 20 first moves after", percent(end), judged(end, 0.95, 1)))
        elif row.name.endswith(": next state exact"):
            change = statistics.paired_difference(*reversed(row.means()))
            name = f"{row.name} falls by 1 point at most"
            asked.append((name, percent(change, sign="+"), judged(change, -0.01, math.inf)))
    page = f"""\
{head("a_openings", by_seed)}
{verdict(asked)}

A next state is exact where all six fields of its FEN are; an answer, where reward and flags are right, too. Plies
count from the start of the game.

{table(rows)}

{READING}
All 20 first moves:

{first_moves(before[part], {seed: parts[part] for seed, parts in after.items()})}
"""
    write_atomic(out / "a_openings.md", page)


# ---- positions --------------------------------------------------------------------------------------------------


def held_out(corpus: Path, path: Path) -> dict[str, int]:
    """Writes a corpus's annotated positions that neither pretraining nor black_repair trains on; how many, by side.

    Raises: DataError where there is no corpus.
    """
    shards = len(list(corpus.glob("annotations-*.jsonl")))
    trained = {key_of(row.fen) for row in load_annotations(boards.ASSETS / "train.jsonl")}
    rows = []
    for row in documents.load_rows(corpus, shards)[0]:
        key = position_key(row.board)
        if split_of(key) != "train" and key not in trained:
            fen = row.board.fen(en_passant="fen")
            rows.append({"fen": fen, "kind": row.kind, "moves": row.moves, "evals_cp": row.evals_cp})
    if not rows:
        raise DataError(f"{corpus}: no annotated positions held out; make them with `python -m rookexp.data`")
    write_atomic(path, "".join(json.dumps(row) + "\n" for row in rows))
    return {side: sum(row["fen"].split()[1] == letter for row in rows) for side, letter in SIDES.items()}


def others(corpus: Path, held_out_file: Path, path: Path) -> int:
    """Writes OTHERS of a corpus's annotated positions, none of them in that file, drawn with seed 0; how many.

    Mirror images of held-out ones may be among them: those are what the page leaves out.
    """

    def placement(line: str) -> str:
        return str(json.loads(line)["fen"]).split()[0]

    held = {placement(line) for line in held_out_file.read_text(encoding="utf-8").splitlines()}
    files = sorted(corpus.glob("annotations-*.jsonl"))
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines(keepends=True)]
    left = [line for line in lines if placement(line) not in held]
    if not left:
        raise DataError(f"{corpus}: no other annotated positions; make them with `python -m rookexp.data`")
    random.Random(0).shuffle(left)
    write_atomic(path, "".join(left[:OTHERS]))
    return len(left[:OTHERS])


def main(argv: Sequence[str]) -> None:
    """Writes what is asked; exit status 2 where it cannot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    doors = parser.add_subparsers(dest="what", required=True)
    for recipe in ("black_repair", "a_openings"):
        door = doors.add_parser(recipe)
        door.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="run folders, or folders of runs")
        test = ROOT / "outputs" / "corpus" / "test.txt"
        door.add_argument("--documents", metavar="FILE", nargs="+", type=Path, default=[test])
        door.add_argument("--limit", type=int, default=LIMIT, help="documents of each task (default: %(default)s)")
        door.add_argument("--out", type=Path, default=ROOT / "docs")
    for what in ("held_out", "others"):
        door = doors.add_parser(what)
        door.add_argument("file", metavar="FILE", type=Path)
        if what == "others":
            door.add_argument("held_out", metavar="HELD_OUT", type=Path)
        door.add_argument("--corpus", type=Path, default=ROOT / "outputs/corpus")
    asked = parser.parse_args(argv)
    try:
        if asked.what == "held_out":
            print(held_out(asked.corpus, asked.file))
            return
        if asked.what == "others":
            print(others(asked.corpus, asked.held_out, asked.file))
            return
        write = {"black_repair": black_repair, "a_openings": a_openings}[asked.what]
        write(read(asked.what, asked.runs), asked.out, asked.documents, asked.limit)
    except RookexpError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"page: {asked.out / asked.what}.md")


if __name__ == "__main__":
    main(sys.argv[1:])
