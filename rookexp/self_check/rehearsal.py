"""A run's own parts on a few prompts, for the self-check; parts that would change are copied, the others are shared."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from rookexp import generate, per_task_sampling
from rookexp.evaluation import Greedy
from rookexp.objectives.grpo import GRPO
from rookexp.self_check.golds import golds_of
from rookexp.self_check.reciter import Reciter
from rookexp.trainer import Trainer
from rookexp.types import Experience, Prompt, Reward, Scores, Tokenizer

Part = TypeVar("Part")
SURE = 0.01  # nats a token; a policy with a higher mean log-prob than -SURE is sure


@dataclass(frozen=True, slots=True)
class Subject:
    """The parts of a run that is about to start."""

    objective: GRPO
    trainer: Trainer
    greedy: Greedy
    tokenizer: Tokenizer
    step: int  # steps that are done; above 0 the policy is no longer its reference


@dataclass(frozen=True, slots=True)
class Size:
    """How much the self-check looks at."""

    prompts: int  # of the step
    rows: int  # completions of each
    tokens: int  # the longest of them
    golds: int  # gold answers


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found wrong."""

    seen: str
    cause: str  # the likely one
    fix: str  # one sentence


@dataclass(frozen=True, slots=True)
class Skipped:
    """Why a check was not made."""

    why: str


@dataclass(frozen=True, slots=True)
class Recital:
    """What the run made of completions with known ids, because a `Reciter` emitted them."""

    scripts: tuple[tuple[int, ...], ...]  # emitted in each row, end-of-text included
    experience: Experience
    scored: tuple[str, ...]  # the text of each row as the reward got it
    rewards: tuple[float, ...]  # of each row, as the reward gave it


class Rehearsal:
    """The run's objective on the shortest, the longest and some other prompts of its next step.

    Nothing here depends on the values of the rewards: dead groups and truncated completions count like all others.
    Raises: DataError for a prompt that the policy cannot continue.
    """

    def __init__(self, subject: Subject, size: Size) -> None:
        self.subject = subject
        self.size = size
        self.own = subject.objective
        self.policy = subject.objective.policy
        self.device = self.policy.head_weight.device
        self.words = subject.tokenizer
        self.task = self.own.source.task
        asked = sorted(self.task.select(subject.step), key=lambda prompt: len(prompt.ids))
        generate.checked_lengths([prompt.ids for prompt in asked], self.policy.config)
        count = min(size.prompts, len(asked))
        self.prompts = tuple(asked[i * (len(asked) - 1) // max(1, count - 1)] for i in range(count))
        self.rows = min(size.rows, self.own.group_size)
        samplings = [self.own.source.sampling_of(prompt) for prompt in self.prompts]
        self.tokens = min(size.tokens, *(sampling.max_new_tokens for sampling in samplings))
        self.filtered = any(sampling.top_k or sampling.top_p for sampling in samplings)
        by_prompt = torch.tensor([sampling.temperature for sampling in samplings], device=self.device)
        self.temperatures = by_prompt.repeat_interleave(self.rows)  # of each row, as configured
        self.temperature = " and ".join(
            f"{each:g}" for each in dict.fromkeys(sampling.temperature for sampling in samplings)
        )

    def objective(self, autocast: Callable[[], AbstractContextManager[None]] = nullcontext, **of_source: Any) -> GRPO:
        """A copy of the objective, in fp32 unless `autocast` is given, whose experience has the sampler's log-probs.

        `of_source`: attributes of its rollout source to replace.
        """
        source = self.own.source
        short = {kind: replace(sampling, max_new_tokens=self.tokens) for kind, sampling in source.own_sampling.items()}
        same = {"group_size": self.rows, "autocast": autocast}
        fixed = {"task": _Asked(self.prompts), "resamples": 0, "overlong_buffer": None}
        fixed |= {"sampling": replace(source.sampling, max_new_tokens=self.tokens), "own_sampling": short}
        return altered(
            self.own,
            source=altered(source, **same | fixed | of_source),
            baseline=copy.deepcopy(self.own.baseline),
            dead_groups="kept",
            truncated="kept",
            exact_sampler=True,
            on_completions=lambda step, rows: None,
            **same,
        )

    @cached_property
    def sampled(self) -> Experience:
        """The experience that the policy samples, in fp32."""
        return self.objective().collect(self.subject.step)[0]

    @cached_property
    def blind(self) -> list[list[list[int]]]:
        """Random ids for each row of each prompt, without end-of-text; re-encoding their text would give other ids."""
        eot, vocabulary = self.words.eot_id, self.policy.head_weight.shape[0]
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randint(1, vocabulary, (len(self.prompts), self.rows, self.tokens - 1), generator=generator)
        return [*((drawn + eot) % vocabulary).tolist()]

    @cached_property
    def recited(self) -> Recital:
        """What the run makes of a gold answer that fits, in a prompt's first row, and of random ids in its other rows.

        Where a prompt has a single row, only every second prompt gets its gold answer.
        """
        gold = {prompt.text: self.words.encode(answer) for prompt, answer in self.golds}
        own = self.own.source
        scripts = []
        for i, prompt in enumerate(self.prompts):
            answer, (first, *others) = gold.get(prompt.text, []), self.blind[i]
            if 0 < len(answer) < own.sampling_of(prompt).max_new_tokens and (others or i % 2):
                first = answer
            scripts += [(*ids, self.words.eot_id) for ids in (first, *([*first[:1], *ids[1:]] for ids in others))]
        reward = _Listening(own.reward)
        whole: dict[str, Any] = {"reward": reward, "sampling": own.sampling, "own_sampling": own.own_sampling}
        rows = range(self.rows)
        said = [scripts[p * self.rows + g] for some, _ in own.batches(self.prompts) for p in some for g in rows]
        objective = self.objective(policy=Reciter(self.policy, said), **whole)
        objective.kl_placement, objective.advantage_clip = "loss", None  # so that advantages are of rewards alone
        experience = objective.collect(self.subject.step)[0]
        return Recital(tuple(scripts), experience, tuple(reward.texts), tuple(reward.rewards))

    @cached_property
    def golds(self) -> tuple[tuple[Prompt, str], ...]:
        """Prompts of the step and of the evaluation with their gold answers, all kinds in turn; () for none."""
        prompts = [*self.task.select(self.subject.step), *self.subject.greedy.prompts]
        by_kind: dict[str, dict[tuple[str, str], Prompt]] = {}  # each once: a text may be asked with another answer
        for prompt in prompts:
            by_kind.setdefault(prompt.task, {})[prompt.text, repr(prompt.answer)] = prompt
        in_turn = [prompt for some in zip_longest(*(each.values() for each in by_kind.values())) for prompt in some]
        taken = [prompt for prompt in in_turn if prompt is not None][: self.size.golds]
        return golds_of(taken, self.own.source.reward, self.task)

    def limits(self, prompt: Prompt) -> dict[str, int]:
        """The keys that limit a completion of the prompt, in rollouts and evaluation, and the tokens they allow."""
        own, greedy = self.own.source, self.subject.greedy
        return per_task_sampling.limits(
            prompt.task, own.sampling, own.own_sampling, greedy.max_new_tokens, greedy.own_lengths
        )

    @cached_property
    def trained_on(self) -> Float[Tensor, " m"]:
        """The training forward's log-probs of the sampled tokens, all rows in one batch, in fp32."""
        return self.trained(self.objective(), self.sampled)

    @property
    def sure(self) -> bool:
        """Whether the policy was so sure of every sampled token that hardly any weight has a gradient."""
        return float(self.plain().mean()) > -SURE

    @cached_property
    def hidden(self) -> list[Tensor]:
        """The hidden states of each sampled row from a plain forward of the row alone, without padding, (T, D) each."""
        ends = [int(row.nonzero()[-1]) + 1 for row in self.sampled.weights]
        with torch.no_grad():
            return [self.policy.hidden(row[None, :end])[0] for row, end in zip(self.sampled.tokens, ends, strict=True)]

    @cached_property
    def apart(self) -> dict[str, float]:
        """By source, the largest difference in nats between log-probs of rows in one batch and each row alone."""
        ids = [prompt.ids for prompt in self.prompts]
        ids.append(ids[-1][: (len(ids[-1]) + 1) // 2])  # so that there is padding, whatever the prompts
        # A token that the first row emits early serves as end-of-text, so that this row ends while others go on.
        samples = generate.greedy(self.policy, ids[:1], self.tokens, self.words.eot_id)
        end = int(samples.tokens[samples.mask][: max(1, self.tokens // 2)][-1])
        answers = zip(self.greedy(ids, end), [self.greedy([each], end)[0] for each in ids], strict=True)
        alone = []
        for i, hidden in enumerate(self.hidden):
            row = self.sampled.rows(torch.tensor([i], device=self.device), len(hidden))
            alone.append(self.trained(self.objective(), row))
        return {
            "the sampler": max(gap(together, apart) for together, apart in answers),
            "the training forward": gap(self.trained_on, torch.cat(alone)),
        }

    def greedy(self, prompts: Sequence[Sequence[int]], end: int) -> list[Tensor]:
        """The log-probs of each prompt's greedy answer, up to the token `end`; all prompts in one batch, in fp32."""
        samples = generate.greedy(self.policy, prompts, self.tokens, end)
        return [row[kept] for row, kept in zip(samples.logprobs, samples.mask, strict=True)]

    def trained(self, objective: GRPO, rows: Experience) -> Float[Tensor, " m"]:
        """The log-probs that the objective's training forward gives the rows' tokens with a weight."""
        with torch.no_grad():
            per_token = objective.loss(replace(rows, logprobs=torch.zeros_like(rows.logprobs))).per_token
        return -per_token["approx_kl/k1"]  # k1 is old - new, and old is 0

    def plain(self, *, temperature: float | None = None, position: int = 0, token: int = 0) -> Float[Tensor, " m"]:
        """The plain forward's log-prob of each of the M sampled tokens.

        With arguments, what a mistaken forward would give: at another temperature, read `position` places too late, or
        of the token that stands `token` places later; NaN where there is none.
        """
        found = []
        for row, hidden in enumerate(self.hidden):
            columns = self.sampled.weights[row].nonzero()[:, 0]
            at, of = columns - 1 + position, columns + token
            inside = (at >= 0) & (at < len(hidden)) & (of < len(hidden))
            at, of = at.clamp(0, len(hidden) - 1), of.clamp(max=len(hidden) - 1)
            heat = temperature or self.temperatures[row]
            logits = hidden[at].float() @ self.policy.head_weight.detach().float().T / heat
            logprobs = logits.log_softmax(1).gather(1, self.sampled.tokens[row, of, None])[:, 0]
            found.append(torch.where(inside, logprobs, torch.nan))
        return torch.cat(found)


class _Listening:
    """A reward that records the texts that it was given and the rewards that it returned."""

    def __init__(self, reward: Reward) -> None:
        self.reward = reward
        self.texts: Sequence[str] = ()
        self.rewards: Sequence[float] = ()

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        """The reward's scores."""
        scores = self.reward.score(prompts, texts)
        self.texts, self.rewards = texts, scores.rewards.tolist()
        return scores


class _Asked:
    """A task that selects the same prompts at every step."""

    def __init__(self, prompts: tuple[Prompt, ...]) -> None:
        self.prompts = prompts

    def select(self, step: int) -> tuple[Prompt, ...]:
        """All of them."""
        return self.prompts


def gap(one: Tensor, other: Tensor) -> float:
    """The largest absolute difference; infinite for different shapes."""
    return float((one - other).abs().max()) if one.shape == other.shape else math.inf


def altered(part: Part, **changes: Any) -> Part:
    """A shallow copy with other attributes, which the part must have; what they hold is shared."""
    twin = copy.copy(part)
    for name, value in changes.items():
        assert hasattr(twin, name), name  # else one that was renamed would be changed in vain
        setattr(twin, name, value)
    return twin
