"""docs/flagships.py: the pages say what runs and evaluations have recorded, and the words follow from the numbers."""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import chess
import made_runs
import numpy as np
import pytest

from rookexp import boards, chess_text, track
from rookexp.config import composing
from rookexp.errors import DataError
from rookexp.statistics import Interval
from rookexp.tasks import made
from rookexp.tasks.rookworld import Annotation, load_annotations

DOCS = composing.PACKAGE.parent / "docs"
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="an installed package has no docs")
NAN = float("nan")
STEPS = (0, 5, 10)


@pytest.fixture(scope="module")
def flagships() -> ModuleType:
    spec = importlib.util.spec_from_file_location("flagships", DOCS / "flagships.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["flagships"] = module  # a dataclass looks its module up
    spec.loader.exec_module(module)
    return module


MIX = {
    "task": {"tasks": {"P": {"positions": "/elsewhere/positions/train.jsonl"}, "A": {"positions": "/elsewhere/a.txt"}}},
    "eval.positions": {"P": "/home/somebody/held.jsonl"},
}


def greedy(row: Annotation, step: int, best: str, right: float) -> dict[str, object]:
    """An answer that lists the engine's moves with its evaluations and then names `best`."""
    prompt = chess_text.p_prompt_padded(row.fen)
    text = chess_text.build_p(row.fen, row.moves, row.evals_cp, best).removeprefix(prompt)
    known = {"best_is_engine": right, "argmax_is_engine": 1.0, "best_legal": 1.0}
    return {"step": step, "kind": "greedy", "prompt": prompt, "completion": text, **known}


def run(folder: Path, seed: int, learns: int) -> Path:
    """A finished run: White's B is the engine's best, Black's is in `learns` of ten positions at the end."""
    made_runs.make(folder, seed=seed, **MIX)
    rows = list(load_annotations(boards.ASSETS / "eval.jsonl"))
    sides = {side: [row for row in rows if row.fen.split()[1] == side][:10] for side in "wb"}
    trained = load_annotations(boards.ASSETS / "train.jsonl")[0]
    found = []
    for step in STEPS:
        found.append(greedy(trained, step, trained.moves[0], 1.0))  # is not held out
        found.append({"step": step, "kind": "greedy", "prompt": made.first_move_documents()[0][:70], "completion": "x"})
        found += [greedy(row, step, row.moves[0], 1.0) for row in sides["w"]]
        for i, row in enumerate(sides["b"]):
            right = i < learns * step // STEPS[-1]
            found.append(greedy(row, step, row.moves[0 if right else -1], float(right)))
    (folder / track.COMPLETIONS).write_text("".join(json.dumps(row) + "\n" for row in found))
    return folder


def evaluation(folder: Path, wrong: int) -> None:
    """The first moves, of which the first `wrong` are answered with a wrong move number, and two later ones."""
    folder.mkdir()
    after = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"
    later = [
        chess_text.build_a(after, move, ["e2e4", move], chess_text.transition(after, move, legality="legacy"))
        for move in ("e7e5", "a7a6")
    ]
    rows = []
    for part, golds in (
        ("first moves, A", made.first_move_documents()),
        ("x.txt, A", [*later, made.first_move_documents()[0]]),
    ):
        for i, gold in enumerate(golds):
            prompt = chess_text.prompt_of(gold)
            right = i >= wrong or part != "first moves, A"
            said = gold[len(prompt) :] if right else gold[len(prompt) :].replace(" 1+", " 2+", 1)
            rows.append(
                {"part": part, "prompt": prompt, "completion": said, "gold": gold, "right": right, "best": None}
            )
    rows.append({"part": "x.txt, P", "prompt": "", "completion": "", "gold": "", "right": True, "best": ""})
    (folder / "completions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "figures.json").write_text("{}")


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """Three runs in a folder, with their evaluations."""
    for seed, learns in enumerate((9, 8, 9)):
        folder = run(tmp_path / "runs" / str(seed), seed, learns)
        evaluation(folder / "evaluate", wrong=0)
    evaluation(tmp_path / "runs" / "0" / "evaluate_before", wrong=15)
    return tmp_path / "runs"


def test_black_repair_says_what_the_runs_recorded(flagships: ModuleType, three: Path, tmp_path: Path) -> None:
    outs = [tmp_path / "a", tmp_path / "b"]
    for out in outs:
        out.mkdir()
        flagships.main(["black_repair", str(three), "--out", str(out)])
    names = {"black_repair.md", "black_repair.png", "black_repair.svg"}
    assert {path.name for path in outs[0].iterdir()} == names
    assert all((outs[0] / name).read_bytes() == (outs[1] / name).read_bytes() for name in names), "the same twice"
    page = (outs[0] / "black_repair.md").read_text(encoding="utf-8")
    assert "somebody" not in page
    assert str(tmp_path) not in page
    lines = {line.split(" | ")[0].strip("| "): line for line in page.splitlines() if line.startswith("| ")}
    assert "| 10 | 0.0 % [0.0, 27.8] | 86.7 % [72.3, 100.0] |" in lines["Black: B is the engine's best"]
    assert lines["Black: B is the engine's best"].endswith("| higher |")
    assert lines["White: B is the engine's best"].endswith("| 100.0 % | +0.0 | +0.0 | identical |")
    assert lines["first moves, A: answer exact"].split(" | ")[1:4] == [
        "20",
        "25.0 % [11.2, 46.9]",
        "100.0 %",
    ]
    for asked, found, word in (
        ("at least 500 held-out positions a colour", "10 Black, 10 White", "does not hold"),
        ("Black's B is the engine's best in less than 5 % before", "0.0 % [0.0, 27.8]", "holds in the mean, not in"),
        ("and after in at least three quarters of what argmax E reaches", "86.7 % [72.3, 101.0]", "holds in"),
        ("White's change is within the noise of the seeds", "+0.0", "holds"),
        ("White's change stays within 1 point, over seeds", "+0.0", "holds in the mean; there is no interval"),
        ("White's change stays within 1 point, over positions", "+0.0", "holds in the mean; there is no interval"),
        ("x.txt, A: answer exact stays within 1 point", "+0.0", "holds in the mean; there is no interval"),
    ):
        [line] = [line for key, line in lines.items() if key.startswith(asked)]
        assert line.split(" | ")[1] == found
        assert line.split(" | ")[2].startswith(word)
    assert "**Does not hold: at least 500 held-out positions a colour; first moves, A: answer exact stays" in page
    assert "for SEED in 0 1 2; do python -m rookexp.train" in page
    svg = ElementTree.fromstring((outs[0] / "black_repair.svg").read_text(encoding="utf-8"))
    said = [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert len(said) == 2 * flagships.DRAWN
    firsts = [row for row in load_annotations(boards.ASSETS / "eval.jsonl") if row.fen.split()[1] == "b"]
    assert said[:2] == [f"before {firsts[0].moves[-1]}", f"after {firsts[0].moves[0]}, the engine's best"]


def test_a_openings_lists_every_first_move_and_ply(flagships: ModuleType, three: Path, tmp_path: Path) -> None:
    flagships.main(["a_openings", str(three), "--out", str(tmp_path)])
    page = (tmp_path / "a_openings.md").read_text(encoding="utf-8")
    moves = sorted(chess_text.legal_ucis(chess.Board()))
    said = ["wrong move number"] * 15 + ["exact"] * 5
    for move, words in zip(moves, said, strict=True):
        assert f"| {move} | {words} | 3 of 3 |" in page
    assert "| x.txt, A: next state exact, ply 1 | 1 | 100.0 % [20.7, 100.0] |" in page
    assert "| x.txt, A: next state exact, ply 2 | 2 |" in page
    assert "| at least 95 % of the 20 first moves after | 100.0 % | holds in the mean; there is no interval |" in page
    assert "**Holds in the means.**" in page


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (Interval(0.8, 0.76, 0.84), "holds"),
        (Interval(0.8, 0.7, 0.9), "holds in the mean, not in the whole interval"),
        (Interval(0.7, 0.6, 0.8), "does not hold"),
        (Interval(math.nextafter(0.75, 0), math.nextafter(0.75, 0), 0.8), "holds"),  # less by rounding alone
        (Interval(0.7499, 0.7, 0.8), "does not hold"),
        (Interval(0.8, NAN, NAN), "holds in the mean; there is no interval"),
        (Interval(NAN, NAN, NAN), "does not hold"),
    ],
)
def test_words_follow_from_numbers(flagships: ModuleType, found: Interval, word: str) -> None:
    assert flagships.judged(found, 0.75, 1.0) == word


@pytest.mark.parametrize(
    ("lost", "won", "seeds", "words"),
    [
        ([20, 21, 22], 0, 3, ["does not hold", "does not hold", "does not hold"]),
        (
            [20, 21, 22],
            21,
            3,
            ["holds", "holds in the mean, not in the whole interval", "holds in the mean, not in"],
        ),
        ([9, 0, 1], 0, 3, ["holds", "does not hold", "does not hold"]),
        ([20, 21], 0, 2, ["does not hold: cannot tell", "does not hold", "does not hold"]),
        ([0, 0, 0], 0, 3, ["holds", "holds in the mean; there is", "holds in the mean; there is"]),
    ],
)
def test_a_change_is_set_beside_the_noise_of_seeds_and_beside_a_point(
    flagships: ModuleType, lost: list[int], won: int, seeds: int, words: list[str]
) -> None:
    before = np.tile(np.arange(100) < 50, (seeds, 1)).astype(float)
    after = before.copy()
    for row, count in enumerate(lost):
        after[row, :count] = 0
        after[row, 99 - won : 99] = 1
    found = flagships.stays("asked", flagships.Rate("rate", tuple(range(seeds)), before, after))
    assert all(claim.word.startswith(word) for claim, word in zip(found, words, strict=True))


def test_runs_that_do_not_belong_together_are_refused(flagships: ModuleType, three: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no run folders; make them with"):
        flagships.read("black_repair", [tmp_path / "none"])
    made_runs.make(tmp_path / "lr", **{**MIX, "seed": 7, "optim.lr": 1.0})
    with pytest.raises(DataError, match="optim.lr: the runs of one recipe differ in their seeds"):
        flagships.read("black_repair", [three, tmp_path / "lr"])
    made_runs.make(tmp_path / "late", status="interrupted", seed=8)
    with pytest.raises(DataError, match="late: interrupted, not finished"):
        flagships.read("black_repair", [three, tmp_path / "late"])
    with pytest.raises(DataError, match="seed: the runs"):
        flagships.read("black_repair", [three, three / "0"])
    shutil.rmtree(three / "1" / "evaluate")
    evaluation(three / "1" / "evaluate", wrong=0)
    path = three / "1" / "evaluate" / "completions.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))
    with pytest.raises(DataError, match="seed 1, x.txt, A: not what the model before was asked"):
        flagships.a_openings(flagships.read("a_openings", [three]), tmp_path, [], 1)
    trained = [greedy(load_annotations(boards.ASSETS / "train.jsonl")[0], 0, "e2e4", 1.0)]
    (three / "0" / track.COMPLETIONS).write_text(json.dumps(trained[0]) + "\n")
    with pytest.raises(DataError, match="no held-out positions among its answers; train with eval.positions.P=FILE"):
        flagships.greedy(flagships.read("black_repair", [three / "0"])[0])
    made_runs.make(tmp_path / "old", **{"task.positions": "p"})
    with pytest.raises(DataError, match=r"old: no task\.tasks\.P, so it is of an earlier recipe"):
        flagships.greedy(next(iter(flagships.read("black_repair", [tmp_path / "old"]).values())))


def test_an_evaluation_is_made_where_there_is_none(
    flagships: ModuleType, three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = flagships.read("a_openings", [three])[1]
    found.config["model"] |= {"path": "/models/base", "revision": "abc"}
    shutil.rmtree(three / "1" / "evaluate")
    typed: list[list[str]] = []

    def failing(command: list[str], **options: object) -> object:
        typed.append(command[3:])
        return type("Done", (), {"returncode": 2, "stderr": "error: no such file\n"})

    monkeypatch.setattr(flagships.subprocess, "run", failing)
    for before in (False, True):
        with pytest.raises(DataError, match="not evaluated .error: no such file"):
            flagships.evaluated(found, before=before, texts=[Path("x.txt")], limit=5)
    assert typed[0][0] == f"model.path='{three / '1'}'"
    assert typed[1][0] == "model.path='/models/base'"
    assert "model.revision=abc" in typed[1]
    assert {"games=0", "mates=[]", "limit=5", f"hydra.run.dir='{three / '1' / 'evaluate_before'}'"} <= {*typed[1]}
    found.config["model"].pop("path")
    with pytest.raises(DataError, match="it started from random weights"):
        flagships.evaluated(found, before=True, texts=[], limit=5)


def test_held_out_positions_are_those_that_nothing_trains_on(flagships: ModuleType, tmp_path: Path) -> None:
    rows = [row for name in ("train", "eval") for row in load_annotations(boards.ASSETS / f"{name}.jsonl")]
    line = {"kind": "opening"}
    shard = [{"fen": row.fen, "moves": row.moves, "evals_cp": row.evals_cp, **line} for row in rows]
    shard.append({"fen": chess.STARTING_FEN, "moves": ["e2e4"], "evals_cp": [30], **line})
    (tmp_path / "annotations-00000.jsonl").write_text("".join(json.dumps(row) + "\n" for row in shard))
    path = tmp_path / "held.jsonl"
    assert flagships.held_out([tmp_path, tmp_path], path) == {"Black": 64, "White": 64}
    assert {row.fen for row in load_annotations(path)} == {row.fen for row in rows[-128:]}
    with pytest.raises(DataError, match="none: no annotated positions"):
        flagships.held_out([tmp_path, tmp_path / "none"], path)


def test_other_positions_are_drawn_from_the_rest_of_the_corpus(flagships: ModuleType, tmp_path: Path) -> None:
    lines = [json.dumps({"fen": f"8/8/8/8/8/8/8/{i + 1}k{6 - i} w - - 0 1"}) + "\n" for i in range(6)]
    (tmp_path / "annotations-00000.jsonl").write_text("".join(lines), encoding="utf-8")
    held, path = tmp_path / "held.jsonl", tmp_path / "others.jsonl"
    held.write_text(lines[0] + lines[3], encoding="utf-8")
    assert flagships.others(tmp_path, held, path) == 4
    found = path.read_text(encoding="utf-8").splitlines(keepends=True)
    assert sorted(found) == sorted([lines[1], lines[2], lines[4], lines[5]])
    assert flagships.others(tmp_path, held, path) == 4
    assert path.read_text(encoding="utf-8").splitlines(keepends=True) == found
    with pytest.raises(DataError, match="no other annotated positions; make them with"):
        flagships.others(tmp_path / "none", held, path)


def test_the_replies_are_all_second_plies(flagships: ModuleType, tmp_path: Path) -> None:
    flagships.main(["replies", str(tmp_path / "replies.txt")])
    lines = (tmp_path / "replies.txt").read_text(encoding="utf-8").splitlines()
    assert len(set(lines)) == len(lines) == 400
    after = "rnbqkbnr/ppppppp1/7p/8/7P/8/PPPPPPP1/RNBQKBNR w KQkq - 0 2"
    assert lines[-1] == f"A: rnbqkbnr/pppppppp/8/8/7P/8/PPPPPPP1/RNBQKBNR b KQkq - 0 1+h7h6+h2h4 h7h6+{after}+0.001+0+0"
    assert all(line.split("+")[3].endswith(" 2") for line in lines)
