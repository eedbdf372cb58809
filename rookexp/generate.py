"""Cached decoding: sampled or greedy completions of P prompts, G rows a prompt, and the log-prob of every token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Annotated, Any, Protocol

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Le
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rookexp.errors import DataError

COMPACT_BELOW = 0.9  # copy the cache to fewer rows once it shrinks to this share: cheaper than a step of dead rows


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are drawn: logits are divided by the temperature, then cut by top-k, then by top-p."""

    temperature: Annotated[float, Ge(0)]  # 0 = greedy
    top_k: Annotated[int, Ge(1)] | None  # only the k most likely tokens; None = all
    top_p: Annotated[float, Gt(0), Le(1)] | None  # only the fewest tokens with this share of the mass; None = all
    max_new_tokens: Annotated[int, Ge(1)]  # longest completion in tokens, end-of-text included


@dataclass(frozen=True, slots=True)
class Samples:
    """N = P x G rows, right-padded with end-of-text; row p*G+g continues prompt p."""

    tokens: Int[Tensor, "n t"]  # prompt and completion ids
    mask: Bool[Tensor, "n t"]  # True at completion tokens, end-of-text included
    logprobs: Float[Tensor, "n t"]  # log-prob of each completion token (see `sample`), else 0
    truncated: Bool[Tensor, " n"]  # True where no end-of-text was drawn


class Cache(Protocol):
    """What a model remembers of the rows it decodes."""

    def keep(self, rows: Tensor) -> None:
        """Drops all rows but these (N,), given in ascending order."""


class Sizes(Protocol):
    """A model's limits."""

    @property
    def n_positions(self) -> int:
        """Longest sequence in tokens."""


class Decoder(Protocol):
    """What decoding asks of a model."""

    @property
    def config(self) -> Sizes:
        """The model's sizes."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """The weights; tokens are made on their device."""

    def prefill(self, tokens: Tensor, lengths: Tensor, group_size: int, capacity: int) -> tuple[Tensor, Any]:
        """Hidden states (P, D) at the last token of (P, T) prompts; a Cache for G rows each, `capacity` more tokens."""

    def decode(self, tokens: Tensor, cache: Any) -> Tensor:
        """Hidden states (N, D) after one more token a row, which joins the cache."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (N, V)."""


@torch.no_grad()
def sample(
    model: Decoder, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling, eot_id: int
) -> Samples:
    """Completions of P prompts, one for each of the N = P x G seeds, and the log-prob in nats of every token drawn.

    A row ends at end-of-text, after `max_new_tokens`, or at the model's last position. Its uniforms come from a CPU
    generator of its own (torch reads the low 32 bits of a seed) and invert the cumulative distribution, so its tokens
    depend on its prompt, its seed and the weights, whatever shares the batch; up to rounding, which bf16 makes coarse.
    Log-probs are log_softmax(logits / temperature) over the whole vocabulary, as the training forward has them: top-k
    and top-p do not renormalise them. At temperature 0 they are those of temperature 1. Runs under the caller's
    autocast; everything after the logits is fp32.

    Raises: DataError for an empty prompt, or one that leaves no room for a new token.
    """
    if not prompts:
        raise ValueError("no prompts to complete")
    device = next(model.parameters()).device
    lengths = _checked_lengths(prompts, model.config.n_positions)
    group_size, rest = divmod(len(seeds), len(prompts))
    if rest or not seeds:
        raise ValueError(f"{len(seeds)} seeds for {len(prompts)} prompts: each prompt takes the same number of seeds")
    room = torch.tensor([min(sampling.max_new_tokens, model.config.n_positions - length) for length in lengths])
    room, steps = room.repeat_interleave(group_size).to(device), int(room.max())  # (N,)
    uniforms = _uniforms(seeds, sampling.max_new_tokens).to(device)  # (max_new_tokens, N)
    prompt_lengths = torch.tensor(lengths, device=device)
    padded = [[*ids, *[eot_id] * (max(lengths) - len(ids))] for ids in prompts]
    prompt_tokens = torch.tensor(padded, device=device)  # (P, S)

    # The last token drawn is never fed back, hence steps - 1.
    hidden, cache = model.prefill(prompt_tokens, prompt_lengths, group_size, steps - 1)
    logits = model.logits(hidden).repeat_interleave(group_size, 0)
    drawn = torch.full((len(seeds), steps), eot_id, device=device)
    logprobs = torch.zeros(len(seeds), steps, device=device)
    rows = torch.arange(len(seeds), device=device)  # those still in the batch
    live = torch.ones_like(rows, dtype=torch.bool)
    for step in range(steps):
        tokens, logprobs[rows, step] = _draw(logits, uniforms[step, rows], sampling)
        drawn[rows, step] = tokens
        live &= (tokens != eot_id) & (room[rows] > step + 1)
        count = int(live.sum())
        if count == 0:
            break
        if count <= COMPACT_BELOW * len(rows):
            kept = live.nonzero()[:, 0]
            cache.keep(kept)
            rows, live, tokens = rows[kept], live[kept], tokens[kept]
        logits = model.logits(model.decode(tokens, cache))
    return _assemble(prompt_tokens, prompt_lengths, drawn, logprobs, room, eot_id)


def greedy(model: Decoder, prompts: Sequence[Sequence[int]], max_new_tokens: int, eot_id: int) -> Samples:
    """The most likely completion of each prompt, token by token; log-probs are those of temperature 1."""
    sampling = Sampling(temperature=0.0, top_k=None, top_p=None, max_new_tokens=max_new_tokens)
    return sample(model, prompts, [0] * len(prompts), sampling, eot_id)


def filtered(logits: Float[Tensor, "n v"], top_k: int | None, top_p: float | None) -> Float[Tensor, "n v"]:
    """`logits` with -inf outside the k most likely tokens, then outside the fewest of those with a share p of the mass.

    Tokens tied with the last one kept are kept too, so the result does not hang on the order of a sort.
    """
    vocab = logits.shape[-1]
    if top_k is not None and top_k < vocab:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
    if top_p is None or top_p >= 1:
        return logits
    normaliser = logits.logsumexp(-1, keepdim=True)
    width = min(top_k or 64, vocab)
    while True:  # a few tokens mostly hold the share; a full sort of the vocabulary is the last resort
        values = logits.topk(width).values
        mass = (values - normaliser).exp().cumsum(-1)
        if width in (vocab, top_k) or bool((mass[:, -1] >= top_p).all()):
            break
        width = min(8 * width, vocab)
    last = (mass < top_p).sum(-1, keepdim=True).clamp(max=width - 1)
    return logits.masked_fill(logits < values.gather(1, last), -torch.inf)


def inverse_cdf(weights: Float[Tensor, "n v"], uniforms: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """The token at which each row's cumulative weight exceeds its uniform's share of the total; never one of weight 0.

    Finds a block of about sqrt(V) tokens first and the token inside it second: V cumulative sums are slower.
    """
    n, vocab = weights.shape
    side = isqrt(vocab - 1) + 1
    blocks = F.pad(weights, (0, side * side - vocab)).view(n, side, side)
    block, inside = _exceeds(blocks.sum(-1), uniforms)
    token, _ = _exceeds(blocks[torch.arange(n, device=block.device), block], inside)
    return block * side + token


def _exceeds(weights: Float[Tensor, "n m"], uniforms: Float[Tensor, " n"]) -> tuple[Tensor, Tensor]:
    """Where the cumulative weight first exceeds the share `uniforms` of the total, and how far into it, 0..1."""
    # Float sums: a share can round up to the total, and a parallel sum need not grow. With entries of weight zero taken
    # out and the share held below the largest sum, some entry exceeds it, and that entry has a weight.
    cumulative = weights.cumsum(-1).masked_fill_(weights <= 0, 0)
    total = cumulative.amax(-1, keepdim=True)
    share = torch.minimum(uniforms[:, None] * total, total.nextafter(torch.zeros_like(total)))
    index = (cumulative > share).byte().argmax(-1, keepdim=True)
    weight = weights.gather(1, index)
    inside = 1 - (cumulative.gather(1, index) - share) / weight
    return index[:, 0], inside.clamp(0, 1)[:, 0]


def _draw(logits: Float[Tensor, "n v"], uniforms: Float[Tensor, " n"], sampling: Sampling) -> tuple[Tensor, Tensor]:
    """One token a row and its log-prob, each (N,)."""
    logits = logits.float()
    if sampling.temperature > 0:
        logits = logits / sampling.temperature
    normaliser = logits.logsumexp(-1, keepdim=True)
    if sampling.temperature > 0:
        tokens = inverse_cdf((filtered(logits, sampling.top_k, sampling.top_p) - normaliser).exp_(), uniforms)
    else:
        tokens = logits.argmax(-1)
    return tokens, (logits.gather(1, tokens[:, None]) - normaliser)[:, 0]


def _checked_lengths(prompts: Sequence[Sequence[int]], n_positions: int) -> list[int]:
    """The length in tokens of each prompt."""
    lengths = [len(ids) for ids in prompts]
    for row, length in enumerate(lengths):
        if length == 0:
            raise DataError(f"prompt {row} is empty: a completion needs at least one token to continue")
        if length >= n_positions:
            raise DataError(
                f"prompt {row} has {length} tokens and the model {n_positions} positions: "
                f"no room for a new token; keep prompts to {n_positions - 1} tokens or fewer"
            )
    return lengths


def _uniforms(seeds: Sequence[int], steps: int) -> Float[Tensor, "t n"]:
    """`steps` uniforms in [0, 1) from the generator of each seed."""
    return torch.stack([torch.rand(steps, generator=torch.Generator().manual_seed(seed)) for seed in seeds], 1)


def _assemble(
    prompt_tokens: Int[Tensor, "p s"],
    prompt_lengths: Int[Tensor, " p"],
    drawn: Int[Tensor, "n c"],
    logprobs: Float[Tensor, "n c"],
    room: Int[Tensor, " n"],
    eot_id: int,
) -> Samples:
    """Rows of prompt and completion; what was drawn after a row's end is dropped."""
    group_size = len(drawn) // len(prompt_tokens)
    starts = prompt_lengths.repeat_interleave(group_size)[:, None]
    ended = (drawn == eot_id).cumsum(1)
    counts = torch.minimum((ended == 0).sum(1) + 1, room)[:, None]  # tokens of each completion
    columns = torch.arange(int((starts + counts).max()), device=drawn.device)
    mask = (columns >= starts) & (columns < starts + counts)
    source = (columns - starts).clamp(0, drawn.shape[1] - 1)  # completion token of each column, where mask
    prompt = F.pad(prompt_tokens, (0, len(columns) - prompt_tokens.shape[1]), value=eot_id)
    tokens = drawn.gather(1, source).where(mask, prompt.repeat_interleave(group_size, 0))
    truncated = drawn.gather(1, counts - 1)[:, 0] != eot_id
    return Samples(tokens, mask, logprobs.gather(1, source).where(mask, 0.0), truncated)
