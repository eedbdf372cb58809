"""A model as the evaluation sees it: prompts in, completions out, and the log-probs that it gives to a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rookexp import generate
from rookexp.draw import Sampling
from rookexp.objectives.likelihood import Documents, token_logprobs
from rookexp.objectives.rollouts import completion_texts
from rookexp.policies import Pretrained
from rookexp.types import Autocast


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Completions and log-probs, batch by batch; an answer does not depend on what shares its batch."""

    policy: Pretrained
    autocast: Autocast
    head_chunk: int  # tokens whose logits exist at a time
    batch: int  # texts at a time
    max_new_tokens: int  # longest completion in tokens

    def greedy(self, prompts: Sequence[str]) -> tuple[list[str], int]:
        """The most likely completion of each prompt, token by token; how many of them were cut off before their end."""
        return self._drawn(prompts, [0] * len(prompts), temperature=0.0, top_k=None)

    def sampled(
        self, prompts: Sequence[str], seeds: Sequence[int], *, temperature: float, top_k: int | None
    ) -> list[str]:
        """A completion of each prompt, drawn with its seed."""
        return self._drawn(prompts, seeds, temperature=temperature, top_k=top_k)[0]

    def _drawn(
        self, prompts: Sequence[str], seeds: Sequence[int], *, temperature: float, top_k: int | None
    ) -> tuple[list[str], int]:
        sampling = Sampling(temperature, top_k, None, self.max_new_tokens)
        tokenizer = self.policy.tokenizer
        texts: list[str] = []
        cut = 0
        for start in range(0, len(prompts), self.batch):
            rows = slice(start, start + self.batch)
            ids = [tokenizer.encode(prompt) for prompt in prompts[rows]]
            with self.autocast():
                samples = generate.sample(self.policy.model, ids, seeds[rows], sampling, tokenizer.eot_id)
            texts += completion_texts(samples, tokenizer)
            cut += int(samples.truncated.sum())
        return texts, cut

    @torch.no_grad()
    def nats(self, documents: Documents) -> tuple[list[float], list[int]]:
        """For each document, in no particular order: its completion's -log p in nats and number of tokens."""
        model, nats, tokens = self.policy.model, [], []
        for start in range(0, len(documents), self.batch):
            rows = range(start, min(start + self.batch, len(documents)))
            ids, mask, prompt = (part.to(model.wte.weight.device) for part in documents.batch(rows))
            asked = mask & ~prompt
            asked[:, 0] = False
            at = asked[:, 1:].flatten().nonzero()[:, 0]
            with self.autocast():
                logprobs = token_logprobs(model, ids, at, self.head_chunk)
            row = at // (ids.shape[1] - 1)
            nats += (-torch.zeros(len(ids), device=ids.device).index_add(0, row, logprobs.float())).tolist()
            tokens += asked.sum(1).tolist()
        return nats, tokens
