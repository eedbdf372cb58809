"""Next-token training: every document once an epoch, and the plain cross-entropy."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from tiny import EOT, Record, bf16, flat, gradient, policy, trainer

from rookexp.objectives.likelihood import Documents, NextToken

# Document i begins with letter i + 1, so that a batch says which documents are in it; lengths 1 to 9.
TEXTS = [[i + 1, *[(3 * i + j) % 16 + 1 for j in range(i)], EOT][: i + 1] for i in range(9)]
PROMPTS = [0, 1, 1, 2, 3, 3, 4, 7, 9]  # tokens of each document's prompt
LEARNABLE = sum(len(text) - 1 for text in TEXTS)


def next_token(
    batch_documents: int = 4, seed: int = 0, model: torch.nn.Module | None = None, prompt_weight: float = 1.0
) -> NextToken:
    return NextToken(
        policy=model or policy().double(),  # type: ignore[arg-type]
        documents=Documents(zip(TEXTS, PROMPTS, strict=True)),
        batch_documents=batch_documents,
        prompt_weight=prompt_weight,
        seed=seed,
        autocast=nullcontext,
        head_chunk=5,
        device=torch.device("cpu"),
    )


def firsts(objective: NextToken, steps: range) -> list[int]:
    """The documents of some steps, in order of steps."""
    return [first - 1 for step in steps for first in objective.collect(step)[0].tokens[:, 0].tolist()]


@pytest.mark.parametrize("batch_documents", [1, 2, 4, 9, 13])
def test_every_document_once_an_epoch(batch_documents: int) -> None:
    objective = next_token(batch_documents)
    for epoch in range(3):
        # Steps need not end where epochs do: all documents up to an epoch's end have been seen equally often.
        steps = -(-9 * (epoch + 1) // batch_documents)
        seen = firsts(objective, range(steps))
        counts = [seen.count(i) for i in range(9)]
        assert sum(counts) == steps * batch_documents
        assert max(counts) - min(counts) <= 1 + batch_documents // 9
        if steps * batch_documents == 9 * (epoch + 1):
            assert counts == [epoch + 1] * 9


def test_the_order_follows_from_seed_and_epoch_alone() -> None:
    objective = next_token(9)
    orders = [next_token(1).collect(step)[0].tokens[0, 0].item() for step in range(18)]
    assert orders[:9] != orders[9:]
    late = next_token(1)
    assert [late.collect(step)[0].tokens[0, 0].item() for step in reversed(range(18))] == orders[::-1]
    assert [next_token(1, seed=1).collect(step)[0].tokens[0, 0].item() for step in range(9)] != orders[:9]
    assert objective.collect(0)[1] == {"epoch": 0.0}
    assert next_token(3).collect(4)[1] == {"epoch": pytest.approx(12 / 9)}


def test_documents_come_whole_padded_on_the_right_and_longest_first() -> None:
    tokens, mask, prompt = Documents(zip(TEXTS, PROMPTS, strict=True)).batch([2, 8, 0])
    assert tokens.shape == (3, 9)
    assert [row[kept].tolist() for row, kept in zip(tokens, mask, strict=True)] == [TEXTS[8], TEXTS[2], TEXTS[0]]
    assert mask.sum(1).tolist() == [9, 3, 1]
    assert prompt.sum(1).tolist() == [9, 1, 0]
    assert prompt[1].tolist() == [True] + [False] * 8
    assert len(Documents(zip(TEXTS, PROMPTS, strict=True))) == 9


def naive(model: torch.nn.Module, texts: list[list[int]]) -> torch.Tensor:
    """The mean cross-entropy, a document at a time."""
    losses = []
    for text in texts:
        tokens = torch.tensor([text])
        logits = model.logits(model.hidden(tokens[:, :-1])) if len(text) > 1 else torch.zeros(1, 0, 17)
        losses.append(F.cross_entropy(logits[0], tokens[0, 1:], reduction="none"))
    return torch.cat(losses).mean()


def test_loss_and_gradient_are_those_of_cross_entropy_however_the_batch_is_cut() -> None:
    model = policy().double()
    objective = next_token(9, model=model)
    experience, _ = objective.collect(0)
    assert int((experience.weights != 0).sum()) == LEARNABLE
    assert float(experience.weights.sum()) == pytest.approx(1)
    expected = naive(model, TEXTS)
    terms = objective.loss(experience)
    assert terms.total.item() == pytest.approx(expected.item(), rel=1e-6)
    wanted = gradient(model, expected)
    assert torch.allclose(gradient(model, terms.total), wanted, atol=1e-6 * float(wanted.abs().max()))
    for micro_batch in (1, 2, 9):
        moved = policy().double()
        metrics = trainer(moved, next_token(9, model=moved), micro_batch=micro_batch).update(0, experience)
        assert metrics["loss"] == pytest.approx(expected.item(), rel=1e-6)
        assert metrics["tokens"] == LEARNABLE
        assert torch.allclose(flat(model) - flat(moved), wanted, atol=1e-6 * float(wanted.abs().max()))


@pytest.mark.parametrize("batch_documents", [1, 2, 4, 20])
def test_validation_loss_is_a_token_mean_whatever_the_batches_and_changes_nothing(batch_documents: int) -> None:
    model = policy().double()
    objective = next_token(model=model)
    before, batch = flat(model), objective.collect(3)[0].tokens
    held_out = [text[::-1] for text in TEXTS[3:]]
    found = objective.validation_loss(Documents((text, 1) for text in held_out), batch_documents)
    assert found == pytest.approx(naive(model, held_out).item(), rel=1e-6)
    assert torch.equal(flat(model), before)
    assert torch.equal(objective.collect(3)[0].tokens, batch)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_bf16_is_near() -> None:
    exact, rounded = next_token(9, model=policy()), next_token(9, model=policy())
    rounded.autocast = bf16
    held_out = Documents(zip(TEXTS, PROMPTS, strict=True))
    found, expected = (objective.validation_loss(held_out, 9) for objective in (rounded, exact))
    assert found == pytest.approx(expected, rel=0.01)
    assert found != expected


def test_a_batch_of_which_nothing_is_learned_has_no_weight() -> None:
    weights = [next_token(1).collect(step)[0].weights for step in range(9)]
    assert sorted(round(float(each.sum()), 6) for each in weights) == [0.0] + [1.0] * 8


def test_documents_are_learned_by_heart() -> None:
    model = policy()
    objective = next_token(9, model=model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    record = Record()
    trainer(model, objective, optimizer, lr=1e-2, steps=60, tracker=record).fit()
    assert record.rows[0]["loss"] > 2
    assert record.rows[-1]["loss"] < 0.3
    names = {"loss", "loss/likelihood", "grad_norm", "epoch", "lr", "tokens_per_s", "step_s", "step"}
    assert record.rows[-1].keys() == names
    assert record.rows[-1]["loss/likelihood"] == record.rows[-1]["loss"]


@pytest.mark.parametrize("prompt_weight", [0.0, 0.25, 3.0])
def test_a_prompts_tokens_count_as_much_as_they_are_told_to(prompt_weight: float) -> None:
    model = policy().double()
    objective = next_token(9, model=model, prompt_weight=prompt_weight)
    experience, _ = objective.collect(0)
    assert float(experience.weights.sum()) == pytest.approx(1)
    total, count = 0.0, 0.0
    for text, prompt in zip(TEXTS, PROMPTS, strict=True):
        for t in range(1, len(text)):
            weight = prompt_weight if t < prompt else 1.0
            logits = model.logits(model.hidden(torch.tensor([text[:t]])))[0, -1]
            total -= weight * logits.log_softmax(-1)[text[t]].item()
            count += weight
    assert objective.loss(experience).total.item() == pytest.approx(total / count, rel=1e-6)
    held_out = Documents(zip(TEXTS, PROMPTS, strict=True))
    assert objective.validation_loss(held_out, 4) == next_token(9, model=model).validation_loss(held_out, 4)
