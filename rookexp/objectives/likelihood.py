"""Next-token training on whole documents, run by the same trainer as reinforcement learning."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rookexp import ops
from rookexp.types import Autocast, Experience, LossTerms, Policy


class Documents:
    """Token documents in one flat tensor; each begins with a prompt and ends with its end-of-text token."""

    def __init__(self, documents: Iterable[tuple[Sequence[int], int]]) -> None:
        """`documents` yields, for each document, its token ids and how many of them are the prompt."""
        flat, lengths, prompt_lengths = array("i"), array("q"), array("q")
        for ids, prompt_length in documents:
            flat.extend(ids)
            lengths.append(len(ids))
            prompt_lengths.append(prompt_length)
        self.flat = torch.frombuffer(flat, dtype=torch.int32)
        self.lengths = torch.frombuffer(lengths, dtype=torch.long)
        self.prompt_lengths = torch.frombuffer(prompt_lengths, dtype=torch.long)
        self.ends = self.lengths.cumsum(0)

    def __len__(self) -> int:
        return len(self.ends)

    def batch(self, rows: Sequence[int]) -> tuple[Int[Tensor, "n t"], Bool[Tensor, "n t"], Bool[Tensor, "n t"]]:
        """Right-padded ids, the mask of real tokens and the mask of prompt tokens, (N, T) each, longest row first."""
        spans = [(int(self.ends[r - 1]) if r else 0, int(self.ends[r]), int(self.prompt_lengths[r])) for r in rows]
        spans.sort(key=lambda span: span[0] - span[1])
        width = spans[0][1] - spans[0][0]
        tokens = torch.zeros(len(spans), width, dtype=torch.long)
        mask, prompt = torch.zeros(2, len(spans), width, dtype=torch.bool)
        for i, (start, end, prompt_length) in enumerate(spans):
            tokens[i, : end - start] = self.flat[start:end]
            mask[i, : end - start] = True
            prompt[i, :prompt_length] = True
        return tokens, mask, prompt


def token_logprobs(
    policy: Policy, tokens: Int[Tensor, "n t"], at: Int[Tensor, " m"], head_chunk: int
) -> Float[Tensor, " m"]:
    """Log-probs in nats, at temperature 1, of the tokens predicted by positions `at` of the flattened (N, T - 1)."""
    hidden = policy.hidden(tokens[:, :-1]).flatten(0, 1)[at]
    one = torch.ones(len(at), device=tokens.device)
    return ops.token_stats(hidden, policy.head_weight, ops.predicted(tokens, at), one, chunk=head_chunk).logprobs


@dataclass(kw_only=True, eq=False)
class NextToken:
    """Mean negative log-likelihood in nats per token; every token but a document's first is predicted.

    A prompt token weighs `prompt_weight` times as much as any other token.
    """

    policy: Policy
    documents: Documents
    batch_documents: int
    prompt_weight: float
    seed: int
    autocast: Autocast
    head_chunk: int
    device: torch.device
    modules: dict[str, nn.Module] = field(default_factory=dict, init=False)  # none
    _order: tuple[int, list[int]] = field(default=(-1, []), init=False)  # the latest epoch, and its documents' order

    def collect(self, step: int) -> tuple[Experience, dict[str, float]]:
        """The step's documents, and `epoch`, the passes before it; each pass is a seeded shuffle of all documents."""
        count = len(self.documents)
        start = step * self.batch_documents
        rows = [self._row(i // count, i % count) for i in range(start, start + self.batch_documents)]
        return self._experience(self.documents, rows, self.prompt_weight), {"epoch": start / count}

    def loss(self, micro: Experience) -> LossTerms:
        """Sum over tokens of weight * -log p(token)."""
        at = micro.predicting()
        with self.autocast():
            logprobs = token_logprobs(self.policy, micro.tokens, at, self.head_chunk)
        loss = -ops.weighted_sum(logprobs, ops.predicted(micro.weights, at))
        return LossTerms({"likelihood": loss}, {})

    def observe(self, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        return {}

    @torch.no_grad()
    def validation_loss(self, documents: Documents, batch_documents: int) -> float:
        """Mean negative log-likelihood in nats per token of `documents`, all weighted alike; first tokens excluded."""
        total, count = 0.0, 0
        for start in range(0, len(documents), batch_documents):
            rows = range(start, min(start + batch_documents, len(documents)))
            batch = self._experience(documents, rows, prompt_weight=1.0)
            tokens = int((batch.weights != 0).sum())
            total += float(self.loss(batch).total) * tokens
            count += tokens
        return total / count

    def _row(self, epoch: int, position: int) -> int:
        """The index of the document at `position` in the shuffled order of `epoch`."""
        if self._order[0] != epoch:
            order = list(range(len(self.documents)))
            random.Random(ops.seed_of(self.seed, "documents", epoch)).shuffle(order)
            self._order = (epoch, order)
        return self._order[1][position]

    def _experience(self, documents: Documents, rows: Sequence[int], prompt_weight: float) -> Experience:
        """The documents, with a weight on every token but each one's first; the weights sum to 1."""
        tokens, mask, prompt = (x.to(self.device) for x in documents.batch(rows))
        mask[:, 0] = False
        weights = mask * torch.where(prompt, prompt_weight, 1.0)
        weights = weights / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)
        zeros = torch.zeros_like(weights)
        none = torch.zeros_like(tokens[:, 0])
        ones = torch.ones_like(weights[:, 0])
        return Experience(tokens, weights, zeros, zeros, zeros, zeros, ones, none, none)
