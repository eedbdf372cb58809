"""Held-out documents: gold answers score everything, broken ones nothing, and the files say what was asked and said."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import chess
import pytest
import torch

from rookexp import chess_text, heldout, tokenizers
from rookexp.errors import DataError
from rookexp.generate import Samples
from rookexp.heldout import HeldOut, read_documents
from rookexp.models.gpt2 import GPT2, GPT2Config

TOKENIZER = tokenizers.characters()
BACK = "r5k1/5ppp/8/8/8/8/5PPP/6K1 b - - 0 20"
P_DOCUMENTS = [
    chess_text.build_p(chess.STARTING_FEN, ["d2d4", "e2e4"], [30, 35], "e2e4"),
    chess_text.build_p(BACK, ["h7h6", "a8a1"], [400, 99_999], "h7h6"),
]


def a_document(fen: str, move: str) -> str:
    return chess_text.build_a(fen, move, [move], chess_text.transition(fen, move, legality="legacy"))


A_DOCUMENTS = [a_document(chess.STARTING_FEN, "e2e4"), a_document(BACK, "a8a1"), a_document(BACK, "g8f8")]


def held_out(folder: Path, files: Sequence[Path], **other: Any) -> HeldOut:
    settings: dict[str, Any] = {"limit": None, "style": "bare", "max_new_tokens": 200, "batch": 2}
    sizes = GPT2Config(n_layer=1, n_head=1, n_embd=8, n_positions=400, vocab_size=TOKENIZER.vocab_size)
    return HeldOut(
        model=GPT2(sizes),
        tokenizer=TOKENIZER,
        documents=[str(file) for file in files],
        autocast=nullcontext,
        folder=folder,
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

        def greedy(model: GPT2, prompts: Sequence[Sequence[int]], max_new_tokens: int, eot_id: int) -> Samples:
            sizes.append(len(prompts))
            said = [[*TOKENIZER.encode(say(TOKENIZER.decode(ids)))[: max_new_tokens - 1], eot_id] for ids in prompts]
            width = max(len(ids) + len(new) for ids, new in zip(prompts, said, strict=True))
            tokens = torch.full((len(said), width), eot_id)
            mask = torch.zeros(len(said), width, dtype=torch.bool)
            for i, (ids, new) in enumerate(zip(prompts, said, strict=True)):
                end = len(ids) + len(new)
                tokens[i, :end] = torch.tensor([*ids, *new])
                mask[i, len(ids) : end] = True
            return Samples(tokens, mask, torch.zeros(len(said), width), torch.zeros(len(said), dtype=torch.bool))

        monkeypatch.setattr(heldout.generate, "greedy", greedy)
        return sizes

    return put


def gold(prompt: str) -> str:
    """The rest of the document that the prompt begins."""
    document, *more = [text for text in (*P_DOCUMENTS, *A_DOCUMENTS) if text.startswith(prompt)]
    assert not more
    return document[len(prompt) :]


def shares(figures: dict[str, Any]) -> dict[str, float]:
    return {name: figure["share"] for name, figure in figures.items() if "share" in figure}


@pytest.mark.parametrize("style", ["bare", "padded_prefill"])
def test_gold_answers_score_everything(tmp_path, corpus, speak, style) -> None:
    sizes = speak(gold)
    run = held_out(tmp_path / "run", [corpus], style=style)
    told: list[str] = []
    results = run.run(told.append)
    written = json.loads((tmp_path / "run" / "figures.json").read_text())
    assert list(written) == list(results) == ["test.txt, P", "test.txt, A"]
    assert sizes == [2, 2, 1]
    policy = shares(written["test.txt, P"])
    missed = {
        "B is the engine's move, Black",  # the label of the published data
        "B is the highest-valued listed move, Black",
        "B is the lowest-valued listed move, White",
    }
    for name, share in policy.items():
        if name.endswith(("White", "Black")):
            assert share == (0 if name in missed else 1), name
    assert policy["format valid"] == policy["B is the label"] == 1
    environment = shares(written["test.txt, A"])
    assert environment.pop("outcome right, were it always ongoing") == pytest.approx(2 / 3)
    assert set(environment.values()) == {1.0}
    assert written["test.txt, A"]["next state exact"] == {
        "share": 1.0,
        "interval": pytest.approx([0.438503, 1.0], abs=1e-6),
        "hits": 3,
        "total": 3,
    }
    assert [text.split(":")[0] for text in told] == ["\ntest.txt, P", "\ntest.txt, A"]
    assert told[0].startswith("\ntest.txt, P: 2 documents")
    assert "100.0 % [43.9, 100.0] (3/3)" in told[1]


def test_broken_answers_score_nothing(tmp_path, corpus, speak) -> None:
    speak(lambda prompt: "?")
    held_out(tmp_path / "run", [corpus]).run(tell=print)
    written = json.loads((tmp_path / "run" / "figures.json").read_text())
    for part in written.values():
        for name, share in shares(part).items():
            assert share == 0 or name.startswith("outcome right, were it"), name
    assert written["test.txt, A"]["outcome, macro recall"] == {"mean": 0.0, "interval": None, "total": 3}


def test_completions_hold_prompt_completion_and_document(tmp_path, corpus, speak) -> None:
    speak(gold)
    held_out(tmp_path / "run", [corpus]).run(tell=print)
    rows = [json.loads(line) for line in (tmp_path / "run" / "completions.jsonl").read_text().splitlines()]
    assert [row["gold"] for row in rows] == [*P_DOCUMENTS, *A_DOCUMENTS]
    assert all(row["prompt"] + row["completion"] == row["gold"] for row in rows)
    assert rows[0]["prompt"] == f"P: {chess.STARTING_FEN}"
    assert rows[2]["prompt"] == f"A: {chess.STARTING_FEN}+e2e4+e2e4+"


def test_a_limit_takes_the_first_of_each_task(tmp_path, corpus, speak) -> None:
    speak(gold)
    held_out(tmp_path / "run", [corpus], limit=1).run(tell=print)
    rows = [json.loads(line) for line in (tmp_path / "run" / "completions.jsonl").read_text().splitlines()]
    assert [row["gold"] for row in rows] == [P_DOCUMENTS[0], A_DOCUMENTS[0]]


def test_a_model_answers_what_greedy_decoding_gives(tmp_path, corpus) -> None:
    torch.manual_seed(0)
    run = held_out(tmp_path / "run", [corpus], max_new_tokens=6)
    together = run.answer([f"P: {BACK}", "A: x", f"P: {chess.STARTING_FEN}"])
    alone = [run.answer([prompt])[0] for prompt in (f"P: {BACK}", "A: x", f"P: {chess.STARTING_FEN}")]
    assert together == alone
    assert all(len(text) <= 6 for text in together)
    results = run.run(tell=print)
    assert {
        name: figures["B is the label" if ", P" in name else "valid"].total for name, figures in results.items()
    } == {
        "test.txt, P": 2,
        "test.txt, A": 3,
    }


def rows_of(*documents: str) -> list[dict[str, str]]:
    prompts = [text[: -len(text.split("+", 3)[3])] for text in documents]
    return [
        {"prompt": prompt, "expected_fen": text[len(prompt) :].split("+")[0]}
        for prompt, text in zip(prompts, documents, strict=True)
    ]


def test_a_json_list_gives_whole_documents(tmp_path, speak) -> None:
    path = tmp_path / "list.json"
    path.write_text(json.dumps(rows_of(*A_DOCUMENTS)))
    assert read_documents(path) == A_DOCUMENTS
    speak(gold)
    results = held_out(tmp_path / "run", [path]).run(tell=print)
    assert list(results) == ["list.json, A"]
    assert results["list.json, A"]["answer exact"].hits == 3


def test_the_opening_sample_is_read(shared_dir) -> None:
    path = shared_dir / "data" / "opening_positions_sample.json"
    if not path.is_file():
        pytest.skip(f"{path} is missing")
    documents = read_documents(path)
    assert len(documents) == len(json.loads(path.read_text()))
    assert {text.split("+", 4)[4] for text in documents} == {"0.001+0+0"}


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.json", "[", "no documents can be read"),
        ("a.json", "[1]", "no documents can be read"),
        ("a.json", '[{"prompt": "A: x+e2e4+e2e4+", "expected_fen": "y"}]', "not an A prompt"),
        ("a.json", json.dumps([rows_of(A_DOCUMENTS[0])[0] | {"expected_fen": "y"}]), "'y' does not follow"),
        ("a.txt", "", "no documents in it"),
        ("a.txt", f"{P_DOCUMENTS[0]}\nQ: what\n", "document 2: starts with neither"),
        ("a.txt", "P: nonsense\n", "neither a P nor an A document"),
        ("a.txt", "A: nonsense\n", "neither a P nor an A document"),
    ],
)
def test_what_holds_no_documents_is_named_before_any_answer(tmp_path, speak, name, text, reason) -> None:
    sizes = speak(gold)
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(DataError, match=reason):
        held_out(tmp_path / "run", [path]).run(tell=print)
    assert not sizes


def test_missing_and_like_named_files_are_named(tmp_path, corpus) -> None:
    with pytest.raises(DataError, match=r"none.txt: no documents can be read.*rookexp\.data"):
        held_out(tmp_path / "run", [tmp_path / "none.txt"]).run(tell=print)
    (tmp_path / "b").mkdir()
    other = tmp_path / "b" / "test.txt"
    other.write_text(corpus.read_text())
    with pytest.raises(DataError, match="files of one name"):
        held_out(tmp_path / "run", [corpus, other]).run(tell=print)
