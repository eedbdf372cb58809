"""Files of held-out documents: what is in them is read or named, and each document has its prompt."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import chess
import pytest

from rookexp import chess_text, tokenizers
from rookexp.errors import ConfigError, DataError
from rookexp.examination.heldout import held_out, prompt_of, read_documents, token_documents

CORPUS = Path("corpus/train.txt")
BACK = "r5k1/5ppp/8/8/8/8/5PPP/6K1 b - - 0 20"
P_DOCUMENT = chess_text.build_p(BACK, ["h7h6", "a8a1"], [400, 99_999], "h7h6")


def a_document(fen: str, move: str) -> str:
    return chess_text.build_a(fen, move, [move], chess_text.transition(fen, move, legality="legacy"))


A_DOCUMENTS = [a_document(chess.STARTING_FEN, "e2e4"), a_document(BACK, "a8a1"), a_document(BACK, "g8f8")]


ALL = {"P": None, "A": None}


def rows_of(*documents: str) -> list[dict[str, str]]:
    prompts = [text[: -len(text.split("+", 3)[3])] for text in documents]
    return [
        {"prompt": prompt, "expected_fen": text[len(prompt) :].split("+")[0]}
        for prompt, text in zip(prompts, documents, strict=True)
    ]


def test_a_json_list_gives_whole_documents(tmp_path) -> None:
    path = tmp_path / "list.json"
    path.write_text(json.dumps(rows_of(*A_DOCUMENTS)))
    assert read_documents(path) == A_DOCUMENTS


def test_the_opening_sample_is_read(shared_dir) -> None:
    path = shared_dir / "data" / "opening_positions_sample.json"
    if not path.is_file():
        pytest.skip(f"{path} is missing")
    documents = read_documents(path)
    assert len(documents) == len(json.loads(path.read_text()))
    assert {text.split("+", 4)[4] for text in documents} == {"0.001+0+0"}


def test_documents_are_told_apart_by_task(tmp_path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n".join([A_DOCUMENTS[0], P_DOCUMENT, "", *A_DOCUMENTS[1:]]) + "\n")
    parts, reading = held_out(path, ALL)
    assert {task: part.usable for task, part in parts.items()} == {"P": [P_DOCUMENT], "A": A_DOCUMENTS}
    assert reading.counts == {"usable A": 3, "usable P": 1}


def test_rows_as_the_data_sets_have_them_are_documents(tmp_path) -> None:
    end, bare = chess_text.END_OF_TEXT, A_DOCUMENTS[0].removeprefix("A: ")
    rows = [f"{end}{P_DOCUMENT}", f"{P_DOCUMENT}\u00a0 ", bare, f"{end} {A_DOCUMENTS[1]}{end}"]
    documents = [P_DOCUMENT, P_DOCUMENT, *A_DOCUMENTS[:2]]
    (tmp_path / "a.txt").write_text("\r\n".join(rows), encoding="utf-8-sig")
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": row, "id": 1}) for row in rows))
    for name in ("a.txt", "a.jsonl"):
        assert read_documents(tmp_path / name) == documents
    parquet, pyarrow = (pytest.importorskip(name) for name in ("pyarrow.parquet", "pyarrow"))
    parquet.write_table(pyarrow.table({"text": rows}), tmp_path / "a.parquet")
    assert read_documents(tmp_path / "a.parquet") == documents


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.json", "[", "no documents can be read"),
        ("a.json", "{}", "no documents can be read"),
        ("a.json", "[1]", r"a\.json, row 1: not an object with prompt and expected_fen; mend or remove it"),
        ("a.json", '[{"prompt": "A: x+e2e4+e2e4+", "expected_fen": "y"}]', "not an A prompt"),
        ("a.json", json.dumps([rows_of(A_DOCUMENTS[0])[0] | {"expected_fen": "y"}]), "'y' does not follow"),
        (
            "a.jsonl",
            '{"text": "x"}\n{"prompt": "x"}\n',
            r"a\.jsonl, line 2: no column 'text'; it has prompt; mend or remove",
        ),
        ("a.jsonl", '{"text": "x"}\n\n{"text": 5}\n', r"a\.jsonl, line 3: no text under 'text'; mend or remove"),
        ("a.jsonl", '{"text": "x"\n', r"a\.jsonl, line 1: not JSON; mend or remove"),
        ("a.jsonl", "[]\n", r"a\.jsonl, line 1: not a JSON object; mend or remove"),
        ("a.txt", f"\n{P_DOCUMENT}<|endoftext|>{P_DOCUMENT}\n", r"a\.txt, line 2: 2 documents in a row"),
        ("a.json", '[{"prompt": 5, "expected_fen": "x"}]', "not an object with a text `prompt`"),
        ("a.jsonl", None, r"a\.jsonl: no documents can be read"),
        ("a.parquet", "nonsense", r"a\.parquet: cannot be read"),
        ("none.txt", None, r"none.txt: no documents can be read \(no such file\).*rookexp\.data"),
        (".", None, r"no documents can be read \(a folder\); name a file"),
    ],
)
def test_what_holds_no_documents_is_named(tmp_path, name, text, reason) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(DataError, match=reason):
        read_documents(path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no documents in it; make them"),
        (
            "Q: what\nP: nonsense\n",
            "all 2 are malformed; a.txt, line 1: starts with neither `P: ` nor `A: `: 'Q: what'$",
        ),
    ],
)
def test_a_file_of_which_nothing_can_be_used_is_refused(tmp_path, text, reason) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=reason):
        held_out(path, ALL)


def test_malformed_rows_are_left_out_counted_and_listed(tmp_path) -> None:
    """As training does; also where a good document asks the question of a malformed one."""
    good, start = a_document(chess.STARTING_FEN, "g1f3"), A_DOCUMENTS[0]
    bad = ["hello world", P_DOCUMENT.partition("B:")[0], start.replace("0.001", "0.5"), start.partition("+rnb")[0]]
    texts = [*bad[:3], P_DOCUMENT, start, *bad, "", start, good]
    rows = [*(json.dumps({"text": text}) for text in texts), "{broken"]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(rows) + "\n")
    parts, reading = held_out(path, ALL)
    assert {task: part.usable for task, part in parts.items()} == {"P": [P_DOCUMENT], "A": [start, good]}
    assert parts["A"].repeated == 1
    assert reading.counts == {"malformed": 8, "usable P": 1, "usable A": 2, "repeated": 1}
    first, *listed = reading.notes()
    assert first == "8 malformed, 1 usable P, 2 usable A, 1 repeated of 12 rows"
    places = [line.partition(": a.jsonl, line ")[2].partition(": ")[0] for line in listed]
    assert places == ["1", "2", "3", "6", "7"]
    assert "malformed: a.jsonl, line 1: starts with neither `P: ` nor `A: `: 'hello world'" in listed


def test_a_malformed_row_is_kept_as_it_was_found(tmp_path) -> None:
    path, two = tmp_path / "a.txt", f"{P_DOCUMENT}<|endoftext|>{P_DOCUMENT}"
    path.write_text(f"{P_DOCUMENT}\n{two}\n")
    _, reading = held_out(path, ALL)
    assert [row.text for row in reading.malformed] == [two]
    path = tmp_path / "a.jsonl"
    path.write_text(f'{json.dumps({"text": P_DOCUMENT})}\n["no", "object"]\n{{"text": 5}}\n')
    assert [row.text for row in held_out(path, ALL)[1].malformed] == ['["no", "object"]', '{"text": 5}']
    path = tmp_path / "a.json"
    path.write_text(json.dumps([["no", "object"], *rows_of(A_DOCUMENTS[0])]))
    assert [row.text for row in held_out(path, ALL)[1].malformed] == ['["no", "object"]']


def test_no_more_documents_are_checked_than_are_needed(tmp_path) -> None:
    path = tmp_path / "a.txt"
    last = a_document(chess.STARTING_FEN, "g1f3")
    path.write_text("\n".join([*A_DOCUMENTS, A_DOCUMENTS[0], last.replace("0.001", "0.5"), "hello world"]) + "\n")
    parts, reading = held_out(path, {"P": 2, "A": 2})
    assert list(parts) == ["A"]
    assert parts["A"].usable == A_DOCUMENTS[:2]
    assert (len(parts["A"].questions), parts["A"].repeated) == (4, 1)
    assert reading.counts == {"usable A": 2, "not needed": 2, "repeated": 1, "malformed": 1}


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.documents"])
def test_a_line_that_is_not_utf_8_is_named(tmp_path, name) -> None:
    path = tmp_path / name
    good = json.dumps({"text": P_DOCUMENT}) if name == "a.jsonl" else P_DOCUMENT
    path.write_bytes(f"{good}\n\n".encode() + b"P: \xff\n")
    with pytest.raises(DataError, match=r"line 3: not UTF-8 \(invalid start byte at byte 4\); mend or remove it"):
        read_documents(path)


def test_a_prompt_is_the_beginning_of_its_document() -> None:
    assert prompt_of(P_DOCUMENT, "bare") == f"P: {BACK}"
    assert prompt_of(P_DOCUMENT, "padded_prefill") == P_DOCUMENT[: P_DOCUMENT.index("M:") + 2]
    for style in ("bare", "padded_prefill"):
        assert prompt_of(A_DOCUMENTS[0], style) == f"A: {chess.STARTING_FEN}+e2e4+e2e4+"


def tokenized(texts: list[str], places: int) -> Any:
    config = SimpleNamespace(n_positions=places)
    policy = SimpleNamespace(tokenizer=tokenizers.characters(), model=SimpleNamespace(config=config))
    return token_documents(policy, CORPUS, texts)  # type: ignore[arg-type]


def test_documents_are_their_tokens_and_an_end_with_their_prompts_counted() -> None:
    texts = ["P: 8/8 w  M: a1a2 E: 1 B: a1a2", "L: 8/8 M:", "A: no prompt"]
    found, letters = tokenized(texts, 99), tokenizers.characters()
    assert found.flat.tolist() == [i for text in texts for i in (*letters.encode(text), letters.eot_id)]
    assert found.lengths.tolist() == [len(text) + 1 for text in texts]
    assert found.prompt_lengths.tolist() == [texts[0].index("M:") + 2, len(texts[1]), 0]


def test_a_document_may_fill_every_position_and_have_its_end_beyond() -> None:
    assert tokenized(["P: 8/8 M: ", "A: x"], 10).lengths.tolist() == [11, 5]
    with pytest.raises(ConfigError, match=rf"{CORPUS}: a document takes 10 positions, and the model has 9; leave"):
        tokenized(["P: 8/8 M: ", "A: x"], 9)
    with pytest.raises(DataError, match=rf"{CORPUS}: empty; make it"):
        tokenized([], 10)
