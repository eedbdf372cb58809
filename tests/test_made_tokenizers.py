"""The tokenizers that are made here: for P and A documents, lossless, one token a square."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chess
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import ByteLevelBPETokenizer

from rookexp import tokenizers
from rookexp.chess_text import prompt_of
from rookexp.tokenizers import Tokenizer

BOARDS = (
    "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1",
    "8/8/5b2/p7/k7/8/K7/8 b - - 1 73",
    "1N2k1nr/1p3pbp/p5p1/4p2P/5B2/8/PPP2PP1/R3K2R w KQ e6 0 20",
)


def documents() -> list[str]:
    """P and A documents with castling, promotion, failed moves, mates and every width of padding."""
    found = []
    for fen in BOARDS:
        found.append(f"P: {fen:<90}M: a4b4 f6h8 a7a8q                E: 999.89 -0.3 -12.07                     B: f6g7")
        found.append(f"A: {fen}+e1g1+a2a3 e1g1+{fen}+0.001+0+0")
        found.append(f"A: {fen}+e4e5+e4e5+{fen}+-1.0+0+1")
    return found


@pytest.mark.parametrize("make", [tokenizers.square_aware, tokenizers.characters])
def test_documents_come_back_and_prompts_are_prefixes(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    unknown = tokenizer.backend.token_to_id(tokenizers.UNKNOWN)
    for text in documents():
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert not {unknown, tokenizer.eot_id} & set(ids)
        if text[0] == "A":
            cuts = ["+".join(text.split("+")[:3]) + "+"]
        else:
            cuts = [text.split("  ")[0], text.split("M:")[0] + "M:"]
        for prompt in cuts:
            assert tokenizer.encode(prompt) == ids[: len(tokenizer.encode(prompt))], prompt


@pytest.mark.parametrize("make", [tokenizers.square_aware, tokenizers.characters])
def test_documents_are_cut_where_their_prompts_end(make: Callable[[], Tokenizer], monkeypatch: Any) -> None:
    monkeypatch.setattr(tokenizers, "AT_ONCE", 2)
    tokenizer, texts = make(), documents()
    prompts = [prompt_of(text) for text in texts]
    found = list(tokenizer.encode_cut(texts, [len(prompt) for prompt in prompts]))
    assert found == [(tokenizer.encode(a), len(tokenizer.encode(b))) for a, b in zip(texts, prompts, strict=True)]


def test_a_token_across_the_cut_is_not_the_prompts(tmp_path: Path) -> None:
    learned = ByteLevelBPETokenizer()
    learned.train_from_iterator(documents(), 300, special_tokens=[tokenizers.END_OF_TEXT], show_progress=False)
    learned.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_folder(tmp_path)
    text = next(t for t in documents() if len(tokenizer.encode(t)) < len(t))
    for cut in range(len(text) + 1):
        ((ids, count),) = tokenizer.encode_cut([text], [cut])
        inside, further = (len(tokenizer.decode(ids[:n])) for n in (count, count + 1))
        assert inside <= cut
        assert further > cut or count == len(ids)


def test_a_square_has_one_token_wherever_the_board_begins() -> None:
    tokenizer = tokenizers.square_aware()
    fen = BOARDS[2]
    tokens = tokenizer.backend.encode(f"A: {fen}+a1b1+h2h4 g8f6 a1b1+{fen}+0.001+0+0").tokens
    first = tokens.index("\u2467\u24d0_")
    again = tokens.index("\u2467\u24d0_", first + 1)
    assert tokens[first : first + 64] == tokens[again : again + 64]
    assert len(set(tokens[first : first + 64])) == 64
    assert tokens[first + 60] == "\u2460\u24d4K"
    assert [tokens.count(word) for word in ("a1", "b1", "h2", "h4", " g8", " a1")] == [1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (" e2e4", [" e2", "\u280ce4"]),
        (" d2e4 e2e4", [" d2", "\u280be4", " e2", "\u280ce4"]),
        (" a7a8q a7b8n a2a1k", [" a7", "\u2830a8q", " a7", "\u2830b8n", " a2", "\u2808a1", "k"]),
        (" e2h3", [" e2", "h3"]),  # no piece goes there
        ("+e2e4", ["+", "e2", "e4"]),
    ],
)
def test_the_end_of_a_move_says_where_it_started(text: str, tokens: list[str]) -> None:
    assert made("square_aware").backend.encode(text).tokens == tokens


def test_every_move_of_a_game_has_an_end_of_its_own() -> None:
    moves = {move for fen in BOARDS for move in map(str, chess.Board(fen).legal_moves)}
    assert moves
    ends = [made("square_aware").encode(f" {move}") for move in moves]
    assert {len(end) for end in ends} == {2}
    assert len({end[1] for end in ends}) == len(moves)


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126, exclude_characters="_")))
def test_any_printable_text_without_the_empty_square_comes_back(text: str) -> None:
    tokenizer = made("square_aware")
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.lists(st.integers(0, 3997), max_size=60))
def test_any_ids_decode(ids: list[int]) -> None:
    made("square_aware").decode(ids)


@functools.cache
def made(name: str) -> Tokenizer:
    return getattr(tokenizers, name)()


def test_made_tokenizers_are_saved_whole(tmp_path: Path) -> None:
    tokenizer = tokenizers.square_aware()
    tokenizer.save(tmp_path)
    again = Tokenizer.from_folder(tmp_path)
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    for text in documents():
        assert again.encode(text) == tokenizer.encode(text) == theirs(text)["input_ids"]
        assert again.decode(again.encode(text)) == text == theirs.decode(tokenizer.encode(text))
