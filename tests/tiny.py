"""A tiny world for training tests: 17 letters, the first of which ends a text, and models of a few thousand weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from rookexp import aggregation, coefficients, kl, losses
from rookexp.baselines import GroupMean
from rookexp.draw import Sampling
from rookexp.models.gpt2 import GPT2, GPT2Config
from rookexp.objectives.grpo import GRPO
from rookexp.reference import Never
from rookexp.returns import Gae
from rookexp.track import Tracker
from rookexp.trainer import Trainer
from rookexp.types import Experience, Prompt, Scores, Stages

EOT, VOCAB, LONGEST = 0, 17, 6
LETTERS = ".abcdefghijklmnop"
CONFIG = GPT2Config(n_layer=2, n_head=2, n_embd=16, n_positions=24, vocab_size=VOCAB)


def policy(seed: int = 0, config: GPT2Config = CONFIG) -> GPT2:
    """A random model with spread-out logits, no two of whose letters are alike."""
    model, generator = GPT2(config), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "ln_" in name:
                parameter.copy_(0.3 * noise + (1 if name.endswith("weight") else 0))
            else:
                parameter.copy_(noise * 0.3)
    return model


class Letters:
    """A letter a token."""

    eot_id = EOT

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(LETTERS[i] for i in ids if i != EOT)

    def decode_all(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return [self.decode(ids) for ids in rows]

    def encode(self, text: str) -> list[int]:
        return [LETTERS.index(letter) for letter in text]


class Ask:
    """The same prompts at every step, or others at every step."""

    def __init__(self, texts: Sequence[str], *, moving: bool = False) -> None:
        self.texts = texts
        self.moving = moving

    def select(self, step: int) -> tuple[Prompt, ...]:
        turn = step % VOCAB if self.moving else 0
        texts = [text + LETTERS[1:][turn : turn + 1] for text in self.texts] if turn else self.texts
        return tuple(Prompt(text, tuple(Letters().encode(text)), None, "letters") for text in texts)


class Vowels:
    """The share of vowels among the letters of a completion, plus `shift`; its part `first` is NaN for an empty one."""

    def __init__(self, shift: float = 0.0) -> None:
        self.shift = shift

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        rewards = [sum(c in "aeio" for c in text) / max(1, len(text)) + self.shift for text in texts]
        first = [float(text[0] in "aeio") if text else math.nan for text in texts]
        return Scores(torch.tensor(rewards), {"first": torch.tensor(first)})


class InTwo(Vowels):
    """The vowels of a completion, in two stages: its first two letters, and the others."""

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        pieces = [(text[:2], text[2:]) for text in texts]
        counts = torch.tensor([[float(sum(c in "aeio" for c in piece)) for piece in pair] for pair in pieces])
        ends = torch.tensor([(len(first), len(text)) for (first, _), text in zip(pieces, texts, strict=True)])
        return Scores(counts.sum(1), {}, Stages(ends, counts))


PROMPTS = ("abc", "k", "ponmlk")


def bf16() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def grpo(model: Any, **changes: Any) -> GRPO:
    """Three ragged prompts, four completions each, KL and entropy on; `temperature` and any argument may be changed."""
    temperature = changes.pop("temperature", 1.0)
    arguments: dict[str, Any] = {
        "policy": model,
        "tokenizer": Letters(),
        "task": Ask(PROMPTS),
        "reward": Vowels(),
        "baseline": GroupMean(std="none", std_eps=0.0, std_floor=0.0),
        "coefficient": coefficients.FixedKL(coef=0.1),
        "divergence": kl.TYPES["forward"],
        "policy_loss": losses.Clip(clip_low=0.2, clip_high=0.28),
        "aggregation": aggregation.token_mean,
        "reference_sync": Never(),
        "sampling": Sampling(temperature=temperature, top_k=None, top_p=None, max_new_tokens=LONGEST),
        "own_sampling": {},
        "group_size": 4,
        "kl_placement": "loss",
        "entropy_coef": 0.05,
        "advantage_clip": None,
        "dead_groups": "kept",
        "max_resamples": 2,
        "truncated": "kept",
        "overlong_buffer": None,
        "single_update": True,
        "exact_sampler": True,
        "seed": 0,
        "autocast": nullcontext,
        "head_chunk": 7,
        "on_completions": lambda step, rows: None,
    }
    return GRPO(**arguments | changes)


def gae(**changes: Any) -> Gae:
    """PPO's baseline; everything that it can do without standardising, unless changed."""
    arguments: dict[str, Any] = {"gamma": 0.9, "lam": 0.8, "whiten": False, "bootstrap": "value", "value_lr": 0.5}
    return Gae(**arguments | {"value_coef": 0.3, "value_clip": 0.2, "detach": False} | changes)


class Record(Tracker):
    """A tracker that remembers."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.rows.append({"step": step, **metrics})

    def timeless(self) -> list[dict[str, float]]:
        """The rows without what a clock says."""
        return [{k: v for k, v in row.items() if k not in ("step_s", "tokens_per_s")} for row in self.rows]


def trainer(
    model: Any,
    objective: Any,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    lr: float | None = 1.0,
    **changes: Any,
) -> Trainer:
    """Plain gradient descent at rate `lr` (None: the optimizer's own) without clipping: what moves is the gradient."""
    optimizer = optimizer or torch.optim.SGD(model.parameters())
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] if lr is None else lr
    arguments: dict[str, Any] = {
        "policy": model,
        "objective": objective,
        "optimizer": optimizer,
        "schedule": lambda step: 1.0,
        "steps": 2,
        "inner_epochs": 1,
        "minibatches": 1,
        "micro_batch": 100,
        "grad_clip": 1e9,
        "seed": 0,
        "tracker": Record(),
        "evaluate": None,
        "eval_every": 1,
        "diagnose_every": None,
        "after_step": None,
    }
    return Trainer(**arguments | changes)


def nudged(model: nn.Module, size: float = 0.02) -> None:
    """Moves every weight a little, so that the policy is no longer the one that sampled."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator).to(parameter.dtype))


def gradient(model: nn.Module, total: Tensor) -> Tensor:
    """The gradient of `total` at all parameters, flat; 0 where it does not reach."""
    parameters = list(model.parameters())
    found = torch.autograd.grad(total, parameters, allow_unused=True, retain_graph=True)
    pairs = zip(parameters, found, strict=True)
    return torch.cat([torch.zeros_like(p).flatten() if g is None else g.flatten() for p, g in pairs])


def flat(model: nn.Module) -> Tensor:
    """A copy of all parameters."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def shuffled(experience: Experience, seed: int = 1) -> Experience:
    """The same rows in another order."""
    order = torch.randperm(len(experience.tokens), generator=torch.Generator().manual_seed(seed))
    return experience.rows(order, experience.tokens.shape[1])
