"""Models that options build: other tokens for a pretrained one, and doubts about one that cannot do its task."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import chess
import pytest
import torch

from rookexp import chess_text, generate, policies, tokenizers
from rookexp.errors import ConfigError
from rookexp.models import weights
from rookexp.types import Prompt

FEN = "rnb1k2r/pp3ppp/4pn2/2bp4/P1P5/B4N2/2P1PPPP/R2QKB1R b KQkq - 2 8"


def test_other_tokens_keep_their_vectors_or_start_as_the_mean_of_their_parts(tmp_path: Path) -> None:
    sizes = {"n_layer": 1, "n_head": 1, "n_embd": 8, "n_positions": 32, "seed": 0}
    old = policies.random_gpt2(tokenizer="characters", spelled=False, **sizes)
    weights.save_model(old.model, tmp_path, dtype="float32", tokenizer_file=None)
    old.tokenizer.save(tmp_path)
    new = policies.retokenized(path=str(tmp_path), revision=None, tokenizer="square_aware")
    assert new.tokenizer.vocab_size == new.model.config.vocab_size == tokenizers.square_aware().vocab_size

    def vector(policy: policies.Pretrained, token: str) -> torch.Tensor:
        return policy.model.wte.weight[policy.tokenizer.backend.token_to_id(token)].detach()

    for token in ("+", "x", tokenizers.END_OF_TEXT, tokenizers.UNKNOWN):
        assert torch.equal(vector(new, token), vector(old, token))
    torch.testing.assert_close(vector(new, "\u280ce4"), (vector(old, "e") + vector(old, "4")) / 2)
    torch.testing.assert_close(vector(new, "\u2460\u24d4K"), vector(old, "K"))
    there = old.model.state_dict()
    assert all(torch.equal(value, there[name]) for name, value in new.model.state_dict().items() if "wte" not in name)


def test_a_new_token_without_text_starts_as_the_mean_of_all(tmp_path: Path) -> None:
    sizes = {"n_layer": 1, "n_head": 1, "n_embd": 8, "n_positions": 32, "seed": 0}
    old = policies.random_gpt2(tokenizer="characters", spelled=False, **sizes)
    weights.save_model(old.model, tmp_path / "old", dtype="float32", tokenizer_file=None)
    old.tokenizer.save(tmp_path / "old")
    old.tokenizer.backend.add_special_tokens(["<|pad|>"])
    old.tokenizer.save(tmp_path / "new")
    new = policies.retokenized(path=str(tmp_path / "old"), revision=None, tokenizer=str(tmp_path / "new"))
    vectors = old.model.wte.weight.detach()
    added = new.model.wte.weight[new.tokenizer.backend.token_to_id("<|pad|>")]
    torch.testing.assert_close(added.detach(), vectors.mean(0))


def prompts(policy: policies.Pretrained) -> list[Prompt]:
    """Ten P prompts in both styles, and ten A prompts."""
    found = []
    for move in sorted(chess_text.legal_ucis(chess.Board()))[:10]:
        board = chess.Board()
        board.push_uci(move)
        style = (chess_text.p_prompt, chess_text.p_prompt_padded)[len(found) % 4 // 2]
        for task, text in (("P", style(board.fen())), ("A", chess_text.a_prompt(chess.STARTING_FEN, move, [move]))):
            found.append(Prompt(text=text, ids=tuple(policy.tokenizer.encode(text)), answer=None, task=task))
    return found


def test_a_model_that_cannot_do_its_task_is_doubted_once_for_each_kind_of_prompt() -> None:
    sizes = {"n_layer": 1, "n_head": 1, "n_embd": 8, "n_positions": 200, "seed": 0}
    policy = policies.random_gpt2(tokenizer="square_aware", spelled=False, **sizes)
    first, second = policies.sanity_warnings(policy, prompts(policy), nullcontext)
    assert first.startswith("0 of 4 greedy answers have the format of P: '")
    assert first.endswith("'; is this the right model? Of the released one, 93 of 100 have it")
    assert second.startswith("0 of 4 greedy answers have the format of A: '")
    assert policies.sanity_warnings(policy, [], nullcontext) == []
    small = policies.random_gpt2(tokenizer="square_aware", spelled=False, **{**sizes, "n_positions": 4})
    assert policies.sanity_warnings(small, prompts(small), nullcontext) == [], "no room to be asked"


def test_prompts_that_the_tokenizer_cannot_spell_are_counted(root: Path) -> None:
    policy = policies.load(root / "rookexp" / "assets" / "rook_nano")
    asked = prompts(policy)
    odd = Prompt(text="P: é8", ids=tuple(policy.tokenizer.encode("P: é8")), answer=None, task="text")
    (line,) = policies.sanity_warnings(policy, [*asked, odd], nullcontext)
    assert line.startswith(f"the tokens of 1 of {len(asked) + 1} prompts spell another text: of 'P: é8' is left 'P: ")


def test_the_embedded_model_is_not_doubted_and_asked_little(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policies.load(root / "rookexp" / "assets" / "rook_nano")
    asked, state = prompts(policy), torch.get_rng_state()
    greedy, decoded = generate.greedy, []

    def spied(model: Any, rows: list[Any], most: int, eot_id: int) -> Any:
        decoded.append((len(rows), most))
        return greedy(model, rows, most, eot_id)

    monkeypatch.setattr(generate, "greedy", spied)
    assert policies.sanity_warnings(policy, asked, nullcontext) == []
    assert decoded == [(4, 160)] * 2, "a few prompts of each kind, 0.4 s on an idle machine"
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("task", "prompt", "text", "right"),
    [
        ("P", f"P: {FEN}", "  M: c5a3 E: 0.1 B: c5a3", True),
        ("P", f"P: {FEN}", " 9 M: c5a3 E: 0.1 B: c5a3", False),  # goes on with the position
        ("P", f"P: {FEN:<90}M:", " c5a3 b8d7 E: 0.1 B: c5a3", False),
        ("A", f"A: {FEN}+c5a3+c5a3+", "8/8 w+0.001+0+0", True),
        ("A", f"A: {FEN}+c5a3+c5a3+", "8/8 w+0.001+0", False),
    ],
)
def test_a_format_is_kept_whatever_is_said(task: str, prompt: str, text: str, right: bool) -> None:
    assert policies.is_well_formed(Prompt(text=prompt, ids=(), answer=None, task=task), text) == right


def test_a_tokenizer_that_is_neither_a_name_nor_a_folder_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model.tokenizer=squareaware: no such folder; allowed: square_aware, char"):
        policies.tokenizer_of("squareaware")
