"""The pages of the two flagships: docs/black_repair.md with its curve and boards, docs/a_openings.md.

`python docs/flagships.py black_repair RUN...`, and the same with `a_openings`, writes one from finished runs of that
recipe with different seeds; a folder of runs will do. The models before and after are asked the documents first, by
`python -m rookexp.evaluate` into RUN/evaluate and, of the first run, RUN/evaluate_before, where that is not done yet.

`python docs/flagships.py held_out FILE` writes the positions for `eval.positions.P`: those of one corpus or several
(`--corpus`) that neither the pretraining nor black_repair has seen. `python docs/flagships.py others FILE HELD_OUT`
then writes 20 000 other ones, for `task.tasks.P.positions`. `python docs/flagships.py replies FILE` writes all second
plies of games, for `--documents` of a_openings.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT), str(DOCS)]  # a checkout without an install will do

from before_after import READING, BeforeAfter, Claim, Rate, Row, judged, percent, table, verdict  # noqa: E402
from flagship_drawings import draw_curve, sheet  # noqa: E402
from flagship_positions import SIDES, held_out, others, replies  # noqa: E402
from flagship_rates import NAMES, a_rates, exact, greedy, p_rates  # noqa: E402

from rookexp import boards, statistics  # noqa: E402
from rookexp.errors import DataError, RookexpError  # noqa: E402
from rookexp.files import write_atomic  # noqa: E402
from rookexp.run_folder import model_card, runs  # noqa: E402
from rookexp.statistics import Interval  # noqa: E402

ENOUGH = 500  # held-out positions a colour
LIMIT = 1000  # documents of each task that are asked: 500 could not tell 1 point from 2
DRAWN = 8  # boards
FIRST_MOVES = "first moves, A"  # a part of every evaluation

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


def head(recipe: str, by_seed: Mapping[int, runs.Run], texts: Sequence[Path]) -> str:
    """Title, claim, commands, and what was run."""
    text = (ROOT / "conf" / "experiment" / f"{recipe}.yaml").read_text(encoding="utf-8")
    said = re.search(r"^# Claim: (.*)$", text, re.MULTILINE)
    assert said, f"{recipe}.yaml: no line '# Claim: ...'"
    first = next(iter(by_seed.values()))
    typed = [word for word in first.overrides if not re.match(r"[+~]*(hydra|track|seed)\b", word)]
    words = " ".join(shlex.quote(str(model_card.portable(word))) for word in typed)
    seeds = " ".join(map(str, by_seed))
    asked = " ".join(shlex.quote(str(model_card.portable(str(text)))) for text in texts)
    return f"""\
# {recipe}

Made by `docs/flagships.py` from the runs' own records: do not edit. The recipe:

> [`{recipe}`](../conf/experiment/{recipe}.yaml) {said[1]}

```bash
for SEED in {seeds}; do python -m rookexp.train {words} seed=$SEED; done
python docs/flagships.py {recipe} outputs/{recipe} --documents {asked}
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


def claim(asked: str, found: Interval, low: float, high: float, *, sign: str = "") -> Claim:
    """That a value is from `low` to `high`."""
    return Claim(asked, percent(found, sign=sign), judged(found, low, high))


# ---- A documents ------------------------------------------------------------------------------------------------


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
    parts: dict[str, list[Row]] = {}
    for row in map(json.loads, (folder / "completions.jsonl").read_text(encoding="utf-8").splitlines()):
        if row["part"].endswith(", A"):
            parts.setdefault(row["part"], []).append(row)
    return parts


def a_answers(by_seed: Mapping[int, runs.Run], texts: Sequence[Path], limit: int) -> dict[str, BeforeAfter]:
    """By part: the answers to A documents; before, they are those of the model that all runs started from.

    Raises: DataError where the models were asked different documents.
    """
    ask = partial(evaluated, texts=texts, limit=limit)
    before = answered(ask(next(iter(by_seed.values())), before=True))
    after = {seed: answered(ask(run, before=False)) for seed, run in by_seed.items()}
    for part, rows in before.items():
        for seed, parts in after.items():
            if [row["gold"] for row in parts.get(part, [])] != [row["gold"] for row in rows]:
                raise DataError(f"seed {seed}, {part}: not what the model before was asked; delete RUN/evaluate*")
    return {
        part: (dict.fromkeys(after, rows), {seed: parts[part] for seed, parts in after.items()})
        for part, rows in before.items()
    }


# ---- black_repair -----------------------------------------------------------------------------------------------


def stays(asked: str, found: Rate) -> Iterator[Claim]:
    """That a rate does not change: within the noise of the seeds, and by less than a point over seeds and over items.

    The first alone would be the easier to show the fewer seeds there are.
    """
    moved, items = found.change(), found.over_items()
    words = {"within noise": "holds", "identical": "holds", "cannot tell": "does not hold: cannot tell"}
    word = words.get(moved.said, "does not hold")
    yield Claim(f"{asked} is within the noise of the seeds", percent(moved.interval, sign="+"), word)
    yield claim(f"{asked} stays within 1 point, over seeds", moved.interval, -0.01, 0.01, sign="+")
    yield claim(f"{asked} stays within 1 point, over positions", items, -0.01, 0.01, sign="+")


def repair_claims(p: Mapping[tuple[str, str], Rate], a: Sequence[Rate]) -> Iterator[Claim]:
    """The claim, point by point, with what was found."""
    black, white = (p[side, "best_is_engine"] for side in SIDES)
    word = "holds" if min(black.count, white.count) >= ENOUGH else "does not hold"
    yield Claim(f"at least {ENOUGH} held-out positions a colour", f"{black.count} Black, {white.count} White", word)
    yield claim("Black's B is the engine's best in less than 5 % before", black.start(), 0, 0.05)
    after, (was, top) = black.means()[1], p["Black", "argmax_is_engine"].means()
    share = statistics.mean([after[seed] / max(was[seed], top[seed], 1e-9) for seed in after])
    yield claim("and after in at least three quarters of what argmax E reaches, before or after", share, 0.75, math.inf)
    yield from stays("White's change", white)
    for other in a:
        if other.name.endswith(": answer exact"):
            yield claim(f"{other.name} stays within 1 point", other.change().interval, -0.01, 0.01, sign="+")


def black_repair(by_seed: Mapping[int, runs.Run], out: Path, texts: Sequence[Path], limit: int) -> None:
    """Writes the page, the curve and the boards."""
    steps = {seed: greedy(run) for seed, run in by_seed.items()}
    p, a = p_rates(steps), list(a_rates(a_answers(by_seed, texts, limit)))
    first = next(iter(steps.values()))
    draw_curve(steps, out / "black_repair.png")
    before, after = (by_side["Black"][:DRAWN] for by_side in (first[min(first)], first[max(first)]))
    write_atomic(out / "black_repair.svg", sheet(before, after))
    asked = next(iter(by_seed.values())).config["eval"]["positions"]["P"]
    page = f"""\
{head("black_repair", by_seed, texts)}
{verdict(list(repair_claims(p, a)))}

B is the move after `B:`, argmax E the listed move with the highest evaluation. The positions are those of
`{model_card.portable(asked)}` that the training does not ask; `held_out` and `others` of `docs/flagships.py` make
such files from a corpus.

{table([*p.values(), *(rate for rate in a if "next state exact, " not in rate.name)])}

{READING}
![{NAMES["best_is_engine"]} over steps](black_repair.png)

The first {DRAWN} held-out positions with Black to move, in the order of asking, by the run of seed {min(by_seed)}:
B before the training in red, after it in green, which lies on top where it is the same.

![Boards before and after](black_repair.svg)
"""
    write_atomic(out / "black_repair.md", page)


# ---- a_openings -------------------------------------------------------------------------------------------------


def openings_claims(rates: Sequence[Rate]) -> Iterator[Claim]:
    """The claim, point by point, with what was found."""
    for each in rates:
        if each.name == f"{FIRST_MOVES}: next state exact":
            yield claim("less than 95 % of the 20 first moves before", each.start(), 0, 0.95)
            yield claim("at least 95 % of the 20 first moves after", each.end(), 0.95, 1)
        elif each.name.endswith(": next state exact"):
            change = each.change().interval
            yield claim(f"{each.name} falls by 1 point at most", change, -0.01, math.inf, sign="+")


def first_moves(answers: BeforeAfter) -> str:
    """A row for each of the 20 first moves."""
    before, after = next(iter(answers[0].values())), answers[1]
    lines = ["| move | before | next state exact after |", "|---|---|---|"]
    for i, row in enumerate(before):
        drawn = boards.next_state(row["prompt"], row["completion"], row["gold"][len(row["prompt"]) :])
        words = "no board in it" if drawn is None else drawn[1].words.partition(": ")[2]
        right = sum(exact(rows[i]) for rows in after.values())
        lines.append(f"| {row['gold'].split('+')[1]} | {words} | {right:.0f} of {len(after)} |")
    return "\n".join(lines)


def a_openings(by_seed: Mapping[int, runs.Run], out: Path, texts: Sequence[Path], limit: int) -> None:
    """Writes the page."""
    answers = a_answers(by_seed, texts, limit)
    rates = list(a_rates(answers))
    page = f"""\
{head("a_openings", by_seed, texts)}
{verdict(list(openings_claims(rates)))}

A next state is exact where all six fields of its FEN are; an answer, where reward and flags are right, too. Plies
count from the start of the game. `python docs/flagships.py replies FILE` writes the second plies, all 400; other moves
by class come from `python -m rookexp.data transitions.rows=1 transitions.eval_rows=1000 seed=7 folder=FOLDER`.

{table(rates)}

{READING}
All 20 first moves:

{first_moves(answers[FIRST_MOVES])}
"""
    write_atomic(out / "a_openings.md", page)


# ---- the command line -------------------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> None:
    """Writes what is asked; exit status 2 where it cannot."""
    pages = {"black_repair": black_repair, "a_openings": a_openings}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    doors = parser.add_subparsers(dest="what", required=True)
    corpus = ROOT / "outputs" / "corpus"
    for recipe in pages:
        door = doors.add_parser(recipe)
        door.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="run folders, or folders of runs")
        door.add_argument("--documents", metavar="FILE", nargs="+", type=Path, default=[corpus / "test.txt"])
        door.add_argument("--limit", type=int, default=LIMIT, help="documents of each task (default: %(default)s)")
        door.add_argument("--out", type=Path, default=DOCS)
    for what in ("held_out", "others", "replies"):
        door = doors.add_parser(what)
        door.add_argument("file", metavar="FILE", type=Path)
        if what == "others":
            door.add_argument("held_out", metavar="HELD_OUT", type=Path)
            door.add_argument("--corpus", type=Path, default=corpus)
        elif what == "held_out":
            door.add_argument("--corpus", nargs="+", type=Path, default=[corpus], help="one or more")
    asked = parser.parse_args(argv)
    try:
        if asked.what == "held_out":
            print(held_out(asked.corpus, asked.file))
        elif asked.what == "others":
            print(others(asked.corpus, asked.held_out, asked.file))
        elif asked.what == "replies":
            print(replies(asked.file))
        else:
            asked.out.mkdir(parents=True, exist_ok=True)
            pages[asked.what](read(asked.what, asked.runs), asked.out, asked.documents, asked.limit)
            print(f"page: {asked.out / asked.what}.md")
    except RookexpError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
