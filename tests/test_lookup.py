"""Drawing several tokens in a forward by guessing ahead: the same tokens and log-probs, in fewer forwards."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from test_generate import EOT, SETTINGS, equal, mixed_prompts, name, wild

from rookexp import generate, policies
from rookexp.draw import Sampling
from rookexp.generate import sample
from rookexp.lookup import guess
from rookexp.self_check.rehearsal import Reciter

NANO = Path(generate.__file__).parent / "assets" / "rook_nano"


def guesses(text: list[int], count: int) -> list[int]:
    return guess(torch.tensor([[*text, 99, 99]]), torch.tensor([len(text)]), count)[0].tolist()


def test_guesses_what_followed_a_like_place() -> None:
    assert guesses([7, 8, 1, 2, 3, 4, 5, 9, 1, 2], 3) == [3, 4, 5]
    assert guesses([1, 2, 3, 4, 5, 6, 9, 1, 2, 0], 2) == [4, 5]  # one token changed
    assert guesses([1, 2, 3, 4, 1, 5, 6, 7, 8, 1], 2) == [5, 6]  # of places alike the latest
    assert guesses([4, 1, 2, 1, 2], 5) == [1, 2, 1, 2, 1]  # past the end it repeats itself
    assert guesses([4], 2) == [4, 4]
    both = guess(torch.tensor([[1, 2, 3, 1, 0, 0], [5, 6, 5, 99, 99, 99]]), torch.tensor([4, 3]), 2)
    assert both.tolist() == [[2, 3], [6, 5]]


def test_autocast_changes_no_guess() -> None:
    text = torch.randint(20, (50, 1000), generator=torch.Generator().manual_seed(0))
    lengths = torch.full((50,), 990)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = guess(text, lengths, 8)
    assert torch.equal(rounded, guess(text, lengths, 8))


@pytest.mark.parametrize("ahead", [1, 5])
@pytest.mark.parametrize("sampling", SETTINGS, ids=name)
def test_draws_what_decoding_one_by_one_draws(sampling: Sampling, ahead: int) -> None:
    """Ragged prompts, two rows each, ends at end-of-text, at the limit and at the model's last position."""
    model, prompts = wild(), mixed_prompts()
    plain = sample(model, prompts, range(64), sampling, EOT)
    fast = sample(model, prompts, range(64), dataclasses.replace(sampling, lookup=ahead), EOT)
    equal(fast, plain)
    assert torch.equal(plain.forwards, plain.mask.sum(1))
    assert (fast.forwards <= plain.forwards).all()
    assert (fast.forwards * (ahead + 1) >= plain.forwards).all()
    assert fast.forwards.sum() < 0.95 * plain.forwards.sum()


def test_stops_at_the_last_position() -> None:
    model, prompts = wild(-100.0), [[5] * 39, [6] * 30, [7]]
    plain = sample(model, prompts, range(6), Sampling(1.0, None, None, 15), EOT)
    fast = sample(model, prompts, range(6), Sampling(1.0, None, None, 15, lookup=12), EOT)
    assert plain.mask.sum(1).tolist() == [1, 1, 10, 10, 15, 15]
    equal(fast, plain)


def test_a_copy_with_a_token_changed_takes_the_forwards_that_it_must() -> None:
    """By hand, with 4 tokens ahead: 1, 4 + 1, 3 and the changed one, 4 + 1, 3 and the end."""
    prompt = list(range(5, 23))
    script = [*prompt[:9], 36, *prompt[10:], EOT]
    samples = sample(Reciter(wild(), [script] * 2), [prompt], [0, 1], Sampling(1.0, None, None, 30, lookup=4), EOT)
    assert samples.tokens.tolist() == [prompt + script] * 2
    assert samples.forwards.tolist() == [5, 5]


def test_finished_rows_leave_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    model, decoded = wild(), []
    ahead = model.decode_ahead
    monkeypatch.setattr(model, "decode_ahead", lambda fed, cache: decoded.append(len(fed)) or ahead(fed, cache))
    samples = sample(model, mixed_prompts(8, longest=10), range(64), Sampling(1.0, None, None, 24, lookup=3), EOT)
    needed = samples.forwards - 1
    assert len(decoded) == needed.max()
    assert needed.sum() <= sum(decoded) <= 1.1 * needed.sum()


def test_copying_a_position_takes_few_forwards() -> None:
    policy = policies.load(NANO)
    prompt = policy.tokenizer.encode(
        "A: r1b4r/2pp1kpp/p1nb4/2P1pPPP/1Pp3n1/N2P1PN1/P7/R1BK1Bq1 b - - 2 26+g7g6+b3b4 f6g4 e2g3 g7g6+"
    )
    sampling, eot_id = Sampling(1.0, None, None, 96), policy.tokenizer.eot_id
    plain = sample(policy.model, [prompt], range(3), sampling, eot_id)
    fast = sample(policy.model, [prompt], range(3), dataclasses.replace(sampling, lookup=8), eot_id)
    equal(fast, plain)
    assert fast.mask.sum() > 3.5 * fast.forwards.sum()


def test_looking_for_ends_less_often_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where a look waits for the device."""
    model, prompts = wild(), mixed_prompts()
    often = [sample(model, prompts, range(64), sampling, EOT) for sampling in (SETTINGS[0], SETTINGS[6])]
    monkeypatch.setitem(generate.LOOK_EVERY, "cpu", 5)
    for expected, sampling in zip(often, (SETTINGS[0], SETTINGS[6]), strict=True):
        equal(sample(model, prompts, range(64), sampling, EOT), expected)
