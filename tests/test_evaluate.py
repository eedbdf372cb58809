"""The evaluation: gold answers score everything, broken ones nothing, and the files say what was asked and said."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import chess
import pytest
import torch

from rookexp import chess_text, generate, tokenizers
from rookexp.draw import Sampling
from rookexp.errors import ConfigError, DataError, EngineError
from rookexp.examination import exam
from rookexp.examination.exam import Exam
from rookexp.examination.heldout import token_documents
from rookexp.generate import Samples
from rookexp.models.gpt2 import GPT2, GPT2Config
from rookexp.policies import Pretrained
from rookexp.rewards.engine import Line
from rookexp.tasks import made, reading
from rookexp.tasks.figures import Figure

TOKENIZER = tokenizers.characters()
BACK = "r5k1/5ppp/8/8/8/8/5PPP/6K1 b - - 0 20"
P_DOCUMENTS = [
    chess_text.build_p(chess.STARTING_FEN, ["d2d4", "e2e4"], [30, 35], "e2e4"),
    chess_text.build_p(BACK, ["h7h6", "a8a1"], [400, 99_999], "h7h6"),
]


def a_document(fen: str, move: str, legality: Any = "legacy") -> str:
    return chess_text.build_a(fen, move, [move], chess_text.transition(fen, move, legality=legality))


A_DOCUMENTS = [a_document(chess.STARTING_FEN, "d2d4"), a_document(BACK, "a8a1"), a_document(BACK, "g8f8")]
ALWAYS = ("ended by an answer without a move", "parted by a move that is not legal")
FOOLS_MATE = ["f2f3", "e7e5", "g2g4", "d8h4"]


def policy() -> Pretrained:
    torch.manual_seed(0)
    sizes = GPT2Config(n_layer=1, n_head=1, n_embd=8, n_positions=400, vocab_size=TOKENIZER.vocab_size)
    return Pretrained(GPT2(sizes), TOKENIZER)


def exam_of(folder: Path, files: Sequence[Path], **other: Any) -> Exam:
    """An evaluation of documents alone, unless more is asked for."""
    settings: dict[str, Any] = {
        "limit": None, "p_style": "bare", "max_new_tokens": 200, "batch": 2, "illegal_moves": 0, "mates": [],
        "games": 0, "plies": 6, "temperature": 0.6, "top_k": 5, "seed": 0,
        "engine": None, "engine_path": None, "engine_nodes": 100,
    }  # fmt: skip
    return Exam(
        policy=policy(),
        autocast=nullcontext,
        head_chunk=64,
        name="<tiny>",
        folder=folder,
        record={"precision": "fp32"},
        documents=[str(file) for file in files],
        **(settings | other),
    )


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "test.txt"
    path.write_text("\n".join([A_DOCUMENTS[0], *P_DOCUMENTS, "", *A_DOCUMENTS[1:]]) + "\n")
    return path


Say = Callable[[str], str]


@pytest.fixture
def speak(monkeypatch: pytest.MonkeyPatch) -> Callable[[Say], list[int]]:
    """Puts `say(prompt)` in the place of decoding; the list takes the size of each batch."""

    def put(say: Say) -> list[int]:
        sizes: list[int] = []

        def sample(model: GPT2, prompts: Any, seeds: Any, sampling: Sampling, eot_id: int) -> Samples:
            assert len(seeds) == len(prompts)
            sizes.append(len(prompts))
            longest = sampling.max_new_tokens - 1
            texts = [TOKENIZER.encode(say(TOKENIZER.decode(ids))) for ids in prompts]
            said = [[*text[:longest], eot_id] for text in texts]
            width = max(len(ids) + len(new) for ids, new in zip(prompts, said, strict=True))
            tokens = torch.full((len(said), width), eot_id)
            mask = torch.zeros(len(said), width, dtype=torch.bool)
            for i, (ids, new) in enumerate(zip(prompts, said, strict=True)):
                end = len(ids) + len(new)
                tokens[i, :end] = torch.tensor([*ids, *new])
                mask[i, len(ids) : end] = True
            zeros = torch.zeros(len(said), width)
            cut = torch.tensor([len(text) > longest for text in texts])
            return Samples(tokens, mask, zeros, cut, mask.sum(1))

        monkeypatch.setattr(generate, "sample", sample)
        return sizes

    return put


def gold(prompt: str) -> str:
    """The rest of the document that the prompt begins."""
    document, *more = [
        t for t in (*P_DOCUMENTS, *A_DOCUMENTS, *made.first_move_documents()[:-1]) if t.startswith(prompt)
    ]
    assert set(more) <= {document}
    return document[len(prompt) :]


def perfect(prompt: str) -> str:
    """What one would say who knows the rules and follows the fool's mate."""
    asked = chess_text.parse_a_prompt(prompt)
    if asked is not None:
        return chess_text.transition(asked.fen, asked.move, legality="legacy").text()
    board = chess.Board(chess_text.parse_p(prompt).fen)
    legal = chess_text.legal_ucis(board)
    moves = [*(uci for uci in FOOLS_MATE if uci in legal), *sorted(legal - {*FOOLS_MATE})][:2]
    return chess_text.build_p("", moves, [20, 10], moves[0])[chess_text.FEN_WIDTH + 3 :]


def shares(figures: dict[str, Any]) -> dict[str, float]:
    return {name: figure["share"] for name, figure in figures.items() if "share" in figure}


def written(folder: Path) -> dict[str, Any]:
    return json.loads((folder / exam.FIGURES).read_text())


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_made_documents_that_repeat_are_asked_once_and_counted() -> None:
    found = exam.made_documents(["one", "two", "one", "one"])
    assert (found.usable, found.repeated) == (["one", "two"], 2)


@pytest.mark.parametrize("style", ["bare", "padded_prefill"])
def test_gold_answers_score_everything(tmp_path, corpus, speak, style) -> None:
    sizes = speak(lambda prompt: gold(prompt) if "d2d4" in prompt or "P: " in prompt else perfect(prompt))
    told: list[str] = []
    results = exam_of(tmp_path / "run", [corpus], p_style=style).run(told.append)
    found = written(tmp_path / "run")
    assert list(found) == list(results) == ["test.txt, P", "test.txt, A", "first moves, A"]
    assert sizes == [2, 2, 1, *[2] * 10]
    missed = {
        "B is the engine's move, Black",  # the label of the published data
        "B is the highest-valued listed move, Black",
        "B is the lowest-valued listed move, White",
    }
    of_policy = shares(found["test.txt, P"])
    assert of_policy.pop("cut off at 200 tokens") == 0
    for name, share in of_policy.items():
        if name.endswith(("White", "Black")):
            assert share == (0 if name in missed else 1), name
    assert of_policy["format valid"] == of_policy["B is the label"] == 1
    environment = shares(found["test.txt, A"])
    assert environment.pop("cut off at 200 tokens") == 0
    baselines = {name: environment.pop(name) for name in list(environment) if "were it always" in name}
    assert baselines == {
        "reward right, were it always 0.001": pytest.approx(2 / 3),
        "terminated right, were it always 0": pytest.approx(2 / 3),
        "truncated right, were it always 0": 1,
        "outcome right, were it always ongoing": pytest.approx(2 / 3),
    }
    assert set(environment.values()) == {1.0}
    assert found["test.txt, A"]["next state exact"] == {
        "share": 1.0,
        "interval": pytest.approx([0.438503, 1.0], abs=1e-6),
        "hits": 3,
        "total": 3,
    }
    assert results["first moves, A"]["answer exact"].hits == 20
    assert told[1].startswith("\ntest.txt, P: 2 documents")
    assert "100.0 % [43.9, 100.0] (3/3)" in told[2]
    rows = lines(tmp_path / "run", exam.COMPLETIONS)
    assert [row["gold"] for row in rows[:5]] == [*P_DOCUMENTS, *A_DOCUMENTS]
    assert [row["right"] for row in rows] == [True, False, *[True] * 23]
    if style == "bare":
        assert all(row["prompt"] + row["completion"] == row["gold"] for row in rows)


def test_broken_answers_score_nothing(tmp_path, corpus, speak) -> None:
    speak(lambda prompt: "?")
    run = exam_of(tmp_path / "run", [corpus], illegal_moves=2, games=3)
    results = run.run(tell=print)
    for part, figures in written(tmp_path / "run").items():
        for name, share in shares(figures).items():
            assert share in (0, None) or name in ALWAYS or "were it always" in name, name
        assert figures, part
    assert results["self-play"]["ended by an answer without a move"].hits == 3
    assert results["closed loop"]["parted by a move that is not legal"].hits == 3


def test_an_earlier_evaluation_in_the_folder_leaves_nothing(tmp_path, corpus, speak) -> None:
    speak(lambda prompt: "?")
    exam_of(tmp_path / "run", [corpus], games=1).run(tell=print)

    def stop(text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exam_of(tmp_path / "run", [corpus]).run(tell=stop)
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert left == {exam.COMPLETIONS, exam.RECORD}, "what is left is of one model"


def test_the_folder_of_a_training_keeps_its_completions(tmp_path, corpus, speak) -> None:
    speak(lambda prompt: "?")
    for name in ("metrics.jsonl", exam.COMPLETIONS):
        (tmp_path / name).write_text("{}\n")
    with pytest.raises(
        ConfigError, match=r"hydra\.run\.dir=.*: the folder of a training, whose completions\.jsonl would"
    ):
        exam_of(tmp_path, [corpus]).run(tell=print)
    assert (tmp_path / exam.COMPLETIONS).read_text() == "{}\n"


def test_the_first_documents_are_asked_and_told_to_be_so_and_answers_that_are_cut_off_are_counted(
    tmp_path, corpus, speak
) -> None:
    speak(lambda prompt: "??" if "d2d4" in prompt else "?")
    told: list[str] = []
    results = exam_of(tmp_path / "run", [corpus], max_new_tokens=2, limit=2).run(told.append)
    assert told[0] == "<tiny>"
    assert "test.txt, A: the first 2 of 3 documents" in "".join(told)
    assert "test.txt, P: 2 documents" in "".join(told)
    assert results["test.txt, A"]["cut off at 2 tokens"] == Figure(1, 2)
    asked = [json.loads(line) for line in (tmp_path / "run" / exam.COMPLETIONS).read_text().splitlines()]
    assert [row["gold"] for row in asked if row["part"] == "test.txt, A"] == A_DOCUMENTS[:2]


def test_each_question_is_asked_once_however_often_a_file_repeats_it(tmp_path, speak) -> None:
    """Or the intervals are those of answers that nobody gave."""
    speak(lambda prompt: gold(prompt) if "P: " in prompt else perfect(prompt))
    other_label = P_DOCUMENTS[0].replace("B: e2e4", "B: d2d4").replace(" w KQkq - 0 1   ", " w KQkq - 0 1 ")
    texts = [A_DOCUMENTS[0], *P_DOCUMENTS, *A_DOCUMENTS, A_DOCUMENTS[0], other_label]
    (tmp_path / "twice.txt").write_text("\n".join(texts) + "\n")
    rows = [{"fen": BACK}, {"fen": BACK}]
    (tmp_path / "mates.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told: list[str] = []
    run = exam_of(tmp_path / "run", [tmp_path / "twice.txt"], mates=[tmp_path / "mates.jsonl"], limit=2)
    results = run.run(told.append)
    said = "".join(told)
    assert results["twice.txt, P"]["B is the label"] == Figure(2, 2), "the first document of a question is asked"
    assert "twice.txt, P: 2 documents; left out: 1 that repeat a question (" in said
    assert "twice.txt, A: the first 2 of 3 documents; left out: 2 that repeat a question (" in said
    asked = [row["gold"] for row in lines(tmp_path / "run", exam.COMPLETIONS) if row["part"] == "twice.txt, A"]
    assert asked == A_DOCUMENTS[:2]
    assert results["mates.jsonl, mate in one"]["B legal"].total == 1
    assert "1 positions, 1 examples of the file cannot be used: 2: the position of an earlier one" in said


def test_the_door_evaluates_the_embedded_model_and_notes_how(tmp_path, root, monkeypatch) -> None:
    """From the command line to the files, with sampled games, and a temperature that is obeyed."""
    (tmp_path / "docs.txt").write_text("\n".join([*P_DOCUMENTS, *A_DOCUMENTS]) + "\n")
    moves = {}
    for temperature in ("0.6", "0"):
        folder = tmp_path / f"at-{temperature}"
        typed = f"documents=[{tmp_path / 'docs.txt'}] limit=2 games=2 plies=3 temperature={temperature} illegal_moves=2"
        done = subprocess.run(
            [sys.executable, "-m", "rookexp.evaluate", *typed.split(), f"hydra.run.dir={folder}",
             "hardware.precision=fp32", "hardware.threads=1"],
            cwd=root, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        record = json.loads((folder / exam.RECORD).read_text())
        assert (record["precision"], record["config"]["limit"]) == ("fp32", 2)
        assert record["argv"][1:3] == typed.split()[:2]
        assert "rook_nano, fp32" in (folder / exam.PAGE).read_text(encoding="utf-8")
        games = [json.loads(line) for line in (folder / exam.GAMES).read_text().splitlines()]
        moves[temperature] = [game["moves"] for game in games]
        assert written(folder)["mate_in_one.jsonl, mate in one"]["B mates"]["total"] == 2
    assert [len(each) for each in moves.values()] == [2, 1], "greedy: every game would be the same"
    assert moves["0.6"][0] != moves["0"][0]


def test_cross_entropy_is_that_of_the_completions_one_by_one(tmp_path, corpus, speak) -> None:
    speak(lambda prompt: "?")
    run = exam_of(tmp_path / "run", [corpus])
    figures = run.run(tell=print)["test.txt, A"]
    model, count = run.answers.policy.model, 0
    of_each: list[float] = []
    for text in A_DOCUMENTS:
        ids = torch.tensor([[*TOKENIZER.encode(text), TOKENIZER.eot_id]])
        start = len(TOKENIZER.encode(chess_text.prompt_of(text)))
        with torch.no_grad():
            logp = model.logits(model.hidden(ids[:, :-1])).log_softmax(-1)[0]
        of_each.append(-float(logp.gather(1, ids[0, 1:, None])[start - 1 :].sum()))
        count += ids.shape[1] - start
    total = sum(of_each)
    documents = token_documents(run.answers.policy, tmp_path / "test.txt", 40 * A_DOCUMENTS)
    assert sorted(replace(run.answers, batch=120).nats(documents)[0]) == pytest.approx(sorted(40 * of_each), rel=1e-5)
    assert figures["cross-entropy, nats a document"].value == pytest.approx(total / 3, rel=1e-5)
    assert figures["cross-entropy, nats a completion token"].value == pytest.approx(total / count, rel=1e-5)


def test_a_model_answers_what_greedy_decoding_gives_whatever_shares_the_batch(tmp_path, corpus) -> None:
    run = exam_of(tmp_path / "run", [corpus], max_new_tokens=6, limit=1)
    prompts = [f"P: {BACK}", "A: x", f"P: {chess.STARTING_FEN}"]
    together = run.answers.greedy(prompts)
    together, cut = together
    assert together == [run.answers.greedy([prompt])[0][0] for prompt in prompts]
    assert cut == sum(run.answers.greedy([prompt])[1] for prompt in prompts)
    samples = generate.greedy(run.answers.policy.model, [TOKENIZER.encode("A: x")], 6, TOKENIZER.eot_id)
    assert together[1] == TOKENIZER.decode(samples.tokens[0][samples.mask[0]].tolist())
    results = run.run(tell=print)
    assert results["test.txt, P"]["B is the label"].total == results["test.txt, A"]["valid"].total == 1


def test_illegal_moves_are_asked_in_the_documents_positions(tmp_path, corpus, speak) -> None:
    speak(perfect)  # by the published data, which the rules contradict
    few, results = (
        exam_of(tmp_path / "run", [corpus], limit=limit, illegal_moves=60).run(tell=print) for limit in (1, None)
    )
    figures = results["test.txt, A, illegal moves"]
    assert few["test.txt, A, illegal moves"] == figures, "a limit is one of documents, not of positions"
    assert few["test.txt, A"]["answer exact"].total == 1
    assert figures["answer exact"].hits == figures["answer exact by the legacy oracle, illegal"].hits == 3
    assert figures["answer exact by the strict oracle, illegal"].share < 1
    assert figures["answer exact by the legacy oracle, illegal, from an empty square"].total == 1


def test_an_engine_at_hand_values_every_legal_move(tmp_path, corpus, speak, monkeypatch) -> None:
    closed: list[int] = []
    failures = [True, False, True, False]  # each position's first search

    class Material:
        """Values a move by what it captures, in pawns."""

        def __init__(self, **settings: Any) -> None:
            assert settings["multipv"] >= 218

        def lines(self, board: chess.Board, only: None = None) -> list[Any]:
            if failures.pop(0):
                raise EngineError("killed")
            moves = list(board.legal_moves)
            return [Line(move, 100 * bool(board.piece_type_at(move.to_square))) for move in moves]

        def close(self) -> None:
            closed.append(id(self))

    monkeypatch.setattr(exam, "Stockfish", Material)
    sizes = speak(lambda prompt: gold(prompt) if "P: " in prompt else "?")
    figures = exam_of(tmp_path / "run", [corpus], engine="stockfish").run(tell=print)["test.txt, P"]
    assert figures["win-probability loss of B, by Stockfish"].total == 2
    assert figures["win-probability loss of B, by Stockfish"].value == 0  # neither position has a capture
    assert len(closed) == 3, "one for each failure, and the last"
    failures[:] = [True, True, True]
    sizes.clear()
    with pytest.raises(EngineError, match="killed"):
        exam_of(tmp_path / "again", [corpus], engine="stockfish").run(tell=print)
    assert len(closed) == 6
    assert not sizes, "answers are dear, and come last"


def test_an_engine_that_is_missing_is_said_at_once(tmp_path, corpus, speak) -> None:
    sizes = speak(gold)
    with pytest.raises(EngineError, match="^no Stockfish at '/nowhere': install it"):
        exam_of(tmp_path / "run", [corpus], engine="stockfish", engine_path="/nowhere").run(tell=print)
    assert not sizes


def test_what_cannot_be_read_is_named_before_any_answer(tmp_path, corpus, speak) -> None:
    sizes = speak(gold)
    (tmp_path / "b").mkdir()
    other = tmp_path / "b" / "test.txt"
    other.write_text(corpus.read_text())
    broken = tmp_path / "broken.txt"
    broken.write_text("P: nonsense\n")
    asked = tmp_path / "asked.txt"
    asked.write_text("A: 7k/8/8/8/8/8/8/K7 w - - 0 1+a1a2+a1a2+\n")
    nowhere = tmp_path / "nowhere.txt"
    nowhere.write_text("P: 9/8 w - - 0 1 M: a1a2 E: 0.1 B: a1a2\n")
    unlawful = tmp_path / "unlawful.txt"
    unlawful.write_text(chess_text.build_p(chess.STARTING_FEN, ["e2e4", "e2e5"], [30, 20], "e2e4") + "\n")
    garbled = tmp_path / "garbled.txt"
    garbled.write_text("A: 7k/8/8/8/8/8/8/K7 w - - 0 1+a1a2+a1a2+7k/8/8/8/8/8/9+0.001+0+0\n")
    for files, more, reason in (
        ([unlawful], {}, "unlawful.txt, line 1: moves are not distinct legal moves"),
        ([garbled], {}, "garbled.txt, line 1: the oracle answers"),
        ([corpus, other], {}, "files of one name"),
        ([tmp_path / "none.txt"], {}, "none.txt: no documents can be read"),
        ([broken], {}, "all 1 are malformed; broken.txt, line 1: not one P document with 1 to 5 moves"),
        ([asked], {}, "asked.txt, line 1: neither a P nor an A document"),
        ([nowhere], {}, "nowhere.txt, line 1: fen is not a position"),
        ([corpus], {"mates": ["nowhere.jsonl"]}, "nowhere.jsonl: no mate-in-one problems"),
    ):
        with pytest.raises(DataError, match=reason):
            exam_of(tmp_path / "run", files, **more).run(tell=print)
    assert not sizes


def test_malformed_rows_are_skipped_counted_and_listed(tmp_path, corpus, speak) -> None:
    speak(perfect)
    file = tmp_path / "dirty.txt"
    wrong = A_DOCUMENTS[1].replace("1.0+1", "0.5+1")
    file.write_text("\n".join(["hello world", wrong, *A_DOCUMENTS, "P: nonsense"]) + "\n")
    told: list[str] = []
    results = exam_of(tmp_path / "run", [corpus, file], illegal_moves=3).run(told.append)
    clean = exam_of(tmp_path / "clean", [corpus], illegal_moves=3).run(lambda _: None)
    names = ("A", "A, illegal moves")
    assert [results[f"dirty.txt, {name}"] for name in names] == [clean[f"test.txt, {name}"] for name in names]
    assert "dirty.txt, P" not in results
    listed = told[1].splitlines()
    assert listed[:2] == [
        "dirty.txt: 3 malformed, 3 usable A of 6 rows",
        "dirty.txt: malformed: dirty.txt, line 1: starts with neither `P: ` nor `A: `: 'hello world'",
    ]
    assert len(listed) == 4
    assert told[2] == f"3 malformed rows with reasons and texts: {tmp_path / 'run' / reading.MALFORMED}"
    kept = lines(tmp_path / "run", reading.MALFORMED)
    assert [(row["row"], row["text"]) for row in kept] == [
        ("line 1", "hello world"), ("line 2", wrong), ("line 6", "P: nonsense"),
    ]  # fmt: skip
    assert not any("test.txt: " in line for line in told)
    said = "dirty.txt, A: 3 documents; left out: 3 malformed rows of the file"
    assert any(said in line for line in told)
    assert said.partition(": ")[2] in (tmp_path / "run" / exam.PAGE).read_text(encoding="utf-8")
    assert json.loads((tmp_path / "run" / exam.RECORD).read_text()) == {
        "precision": "fp32",
        "rows": {"test.txt": {"usable A": 3, "usable P": 2}, "dirty.txt": {"malformed": 3, "usable A": 3}},
    }
    exam_of(tmp_path / "run", [corpus]).run(lambda _: None)
    assert not (tmp_path / "run" / reading.MALFORMED).exists()


def test_games_and_mates_are_parts(tmp_path, corpus, speak) -> None:
    speak(perfect)
    mates = tmp_path / "mates.jsonl"
    before = ["rnbqkbnr/pppp1ppp/8/4p3/6P1/5P2/PPPPP2P/RNBQKBNR b KQkq g3 0 2"]
    mates.write_text("".join(json.dumps({"fen": fen}) + "\n" for fen in (*before, chess.STARTING_FEN)))
    told: list[str] = []
    results = exam_of(tmp_path / "run", [corpus], mates=[str(mates)], games=3).run(told.append)
    mate = results["mates.jsonl, mate in one"]
    assert (mate["B mates"].hits, mate["B mates, Black"].total) == (1, 1)
    assert "1 examples of the file cannot be used: 2: no move mates" in "".join(told)
    assert results["self-play"]["ended by a rule of chess"].hits == 3
    assert results["self-play"]["legal plies, at most 6"].value == 4
    assert results["closed loop"]["never parted"].hits == 3
    assert lines(tmp_path / "run", exam.GAMES)[0] == {
        "moves": " ".join(FOOLS_MATE), "end": "rule", "said": None, "followed": 4,
    }  # fmt: skip


# ---- what is evaluated --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (" 0 1+0.001", " 0 9+0.001"),
        ("+e2e4+e2e4+", "+e2e4+d2d4+"),
        ("0.001+0", "1+1"),
        ("0.001+0", "0.5+1"),  # no draw that the prompt could hide
    ],
)
def test_a_document_that_contradicts_the_oracle_is_refused_before_any_answer(
    right: str, wrong: str, tmp_path, corpus, speak
) -> None:
    sizes = speak(gold)
    file = tmp_path / "wrong.txt"
    file.write_text(a_document(chess.STARTING_FEN, "e2e4").replace(right, wrong) + "\n")
    with pytest.raises(DataError, match=r"all 1 are malformed; wrong\.txt, line 1: \w+"):
        exam_of(tmp_path / "run", [corpus, file]).run(tell=print)
    assert not sizes


def test_documents_of_the_strict_oracle_are_evaluated(tmp_path, speak) -> None:
    speak(perfect)
    file = tmp_path / "strict.txt"
    file.write_text(a_document(chess.STARTING_FEN, "e2e5", "strict") + "\n")
    results = exam_of(tmp_path / "run", [file]).run(tell=print)
    assert results["strict.txt, A"]["answer exact by the legacy oracle, illegal"] == Figure(1, 1)
    assert results["strict.txt, A"]["answer exact by the strict oracle, illegal"] == Figure(0, 1)


def test_a_document_that_is_too_long_is_refused_before_any_answer(tmp_path, corpus, speak) -> None:
    sizes = speak(gold)
    long = tmp_path / "long.txt"
    long.write_text(P_DOCUMENTS[0].replace("B: ", " " * 400 + "B: ") + "\n")
    with pytest.raises(ConfigError, match=r"long\.txt: a document takes \d+ positions, and the model has \d+; "):
        exam_of(tmp_path / "run", [corpus, long]).run(tell=print)
    assert not sizes
