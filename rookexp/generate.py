"""Decoding with a KV cache: sampled or greedy completions of P prompts, G rows each, and every token's log-prob."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rookexp.draw import LEAST, Sampling, draw
from rookexp.errors import DataError
from rookexp.lookup import guess
from rookexp.ops import rounded

COMPACT_BELOW = 0.9  # share of live rows at which the cache is copied to those alone: cheaper than steps of dead rows
LOOK_EVERY = {"cpu": 1, "cuda": 8}  # tokens between checks of which rows have ended; on a GPU a check waits for it


@dataclass(frozen=True, slots=True)
class Samples:
    """N = P x G rows, right-padded with end-of-text; row p*G+g continues prompt p."""

    tokens: Int[Tensor, "n t"]  # prompt and completion ids
    mask: Bool[Tensor, "n t"]  # True at completion tokens, end-of-text included
    logprobs: Float[Tensor, "n t"]  # log-prob of each completion token (see `sample`), else 0
    truncated: Bool[Tensor, " n"]  # True where no end-of-text was drawn
    forwards: Int[Tensor, " n"]  # forward passes that drew the row's tokens, the prompt's included


class Cache(Protocol):
    """The KV cache of the rows that a model decodes."""

    def keep(self, rows: Tensor) -> None:
        """Drops all rows but these (N,), given in ascending order."""

    def advance(self, taken: Tensor) -> None:
        """Keeps each row's first `taken` (N,) tokens of the last `decode_ahead` and drops the others."""


class Batch(Protocol):
    """Rows that are decoded in lockstep, from their first token on."""

    live: Bool[Tensor, " n"]  # rows without an end-of-text
    drawn: Int[Tensor, "n c"]  # tokens so far; entries after them, or after a row's end, are arbitrary
    logprobs: Float[Tensor, "n c"]  # and the log-prob of each

    def step(self) -> None:
        """Decodes one more token per row."""


class Replays(Protocol):
    """Recorded decoding steps, such as CUDA graphs."""

    def begin(self, model: Any, cache: Any, logits: Tensor, uniforms: Tensor, sampling: Sampling, eot_id: int) -> Batch:
        """The batch after its first token; `cache` and `logits` come from the packed model's prefill."""


class Sizes(Protocol):
    """A model's limits."""

    @property
    def n_positions(self) -> int:
        """Longest sequence in tokens."""

    @property
    def vocab_size(self) -> int:
        """Number of different tokens."""


class Decoder(Protocol):
    """What decoding needs of a model."""

    @property
    def config(self) -> Sizes:
        """The model's sizes."""

    @property
    def replays(self) -> Replays | None:
        """Recorded steps of the packed model, which run without the host; None = each token is a call of `decode`."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """The weights; tokens are created on their device."""

    def packed(self) -> Decoder:
        """The same decoder, perhaps a faster copy; valid until the weights change."""

    def prefill(self, tokens: Tensor, lengths: Tensor, group_size: int, capacity: int) -> tuple[Tensor, Any]:
        """Hidden states (P, D) at each prompt's last token; a Cache of G rows each, with room for `capacity` tokens."""

    def decode(self, tokens: Tensor, cache: Any) -> Tensor:
        """Hidden states (N, D) after one more token per row, which joins the cache."""

    def decode_ahead(self, tokens: Tensor, cache: Any) -> Tensor:
        """Hidden states (N, M, D) after (N, M) more tokens, of which `Cache.advance` then says how many stay."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (N, V)."""


@torch.no_grad()
def sample(
    model: Decoder, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling, eot_id: int
) -> Samples:
    """Completions of P prompts, one for each of the N = P x G seeds, and the log-prob in nats of every token drawn.

    A row ends at end-of-text, after `max_new_tokens`, or at the model's last position. Its uniforms come from a CPU
    generator of its own (torch reads the low 32 bits of a seed) and invert the cumulative distribution, so its tokens
    depend on its prompt, its seed and the weights, not on the rest of the batch, up to rounding (coarse in bf16).
    With an `eot_id` of -1, which is then the padding too, no row ends early; this is for prompts of equal length.
    Log-probs are log_softmax(logits / temperature) over the whole vocabulary, as the training forward has them: top-k
    and top-p do not renormalise them. At temperature 0 they are those of temperature 1. Runs under the caller's
    autocast; everything after the logits is fp32.

    Raises: DataError for an empty prompt, one that leaves no room for a new token, or one with a token that the model
    does not know; ValueError without prompts, or unless there are equally many seeds for each prompt.
    """
    if not prompts:
        raise ValueError("no prompts to complete")
    device = next(model.parameters()).device
    lengths = checked_lengths(prompts, model.config)
    group_size, rest = divmod(len(seeds), len(prompts))
    if rest or not seeds:
        raise ValueError(f"{len(seeds)} seeds for {len(prompts)} prompts: each prompt takes the same number of seeds")
    room = torch.tensor([min(sampling.max_new_tokens, model.config.n_positions - length) for length in lengths])
    room, steps = room.repeat_interleave(group_size).to(device), int(room.max())  # (N,)
    uniforms = _uniforms(seeds, sampling.max_new_tokens)[:steps].to(device)  # (steps, N)
    prompt_lengths = torch.tensor(lengths, device=device)
    padded = [[*ids, *[eot_id] * (max(lengths) - len(ids))] for ids in prompts]
    prompt_tokens = torch.tensor(padded, device=device)  # (P, S)

    replays = model.replays if sampling.blind else None
    model = model.packed()
    # The last token drawn is never fed back, hence steps - 1; a guess may reach past a row's end; replays have room.
    capacity = steps - 1 + (sampling.lookup + 1 if sampling.lookup else 0) if replays is None else 0
    hidden, cache = model.prefill(prompt_tokens, prompt_lengths, group_size, capacity)
    logits = model.logits(hidden).repeat_interleave(group_size, 0)
    forwards = None  # one per token
    if sampling.lookup:
        text = F.pad(prompt_tokens, (0, capacity + 1)).repeat_interleave(group_size, 0)
        starts = prompt_lengths.repeat_interleave(group_size)
        drawn, logprobs, forwards = _by_lookup(model, cache, logits, text, starts, uniforms, room, sampling, eot_id)
    elif replays is not None:
        drawn, logprobs = _replayed(replays.begin(model, cache, logits, uniforms, sampling, eot_id), steps)
    else:
        drawn, logprobs = _one_by_one(model, cache, logits, uniforms, room, sampling, eot_id)
    return _assemble(prompt_tokens, prompt_lengths, drawn, logprobs, forwards, room, eot_id)


def greedy(model: Decoder, prompts: Sequence[Sequence[int]], max_new_tokens: int, eot_id: int) -> Samples:
    """The most likely completion of each prompt, token by token; log-probs are those of temperature 1."""
    sampling = Sampling(temperature=0.0, top_k=None, top_p=None, max_new_tokens=max_new_tokens)
    return sample(model, prompts, [0] * len(prompts), sampling, eot_id)


@torch.inference_mode()  # without autograd's bookkeeping a tenth of the time at small sizes
def _one_by_one(
    model: Decoder,
    cache: Cache,
    logits: Float[Tensor, "n v"],
    uniforms: Float[Tensor, "t n"],
    room: Int[Tensor, " n"],
    sampling: Sampling,
    eot_id: int,
) -> tuple[Tensor, Tensor]:
    """Tokens and log-probs, each (N, C), with one forward per token; entries after a row's end are arbitrary."""
    (steps, n), device = uniforms.shape, logits.device
    drawn = torch.full((n, steps), eot_id, device=device)
    logprobs = torch.zeros(n, steps, device=device)
    rows = torch.arange(n, device=device)  # those still in the batch
    live = torch.ones_like(rows, dtype=torch.bool)
    for step in range(steps):
        tokens, logprobs[rows, step] = draw(logits, uniforms[step, rows], sampling)
        drawn[rows, step] = tokens
        live &= (tokens != eot_id) & (room[rows] > step + 1)
        if step == steps - 1:
            break
        if (step + 1) % LOOK_EVERY.get(device.type, 1) == 0:
            count = int(live.sum())
            if count == 0:
                break
            if (size := rounded(count)) <= COMPACT_BELOW * len(rows):
                kept = _kept(live, size)
                cache.keep(kept)
                rows, live, tokens = rows[kept], live[kept], tokens[kept]
        logits = model.logits(model.decode(tokens, cache))
    return drawn, logprobs


def _kept(live: Bool[Tensor, " n"], count: int) -> Int[Tensor, " k"]:
    """Indices, ascending, of all live rows and of as many others as make `count`."""
    return live.sort(descending=True, stable=True).indices[:count].sort().values


def _replayed(batch: Batch, steps: int) -> tuple[Tensor, Tensor]:
    """The result of `_one_by_one`, with all rows kept to the end; only the check for ended rows waits for a GPU."""
    for step in range(1, steps):
        if step % LOOK_EVERY.get(batch.live.device.type, 1) == 0 and not bool(batch.live.any()):
            break
        batch.step()
    return batch.drawn[:, :steps], batch.logprobs[:, :steps]


@torch.inference_mode()
def _by_lookup(
    model: Decoder,
    cache: Cache,
    logits: Float[Tensor, "n v"],
    text: Int[Tensor, "n w"],
    starts: Int[Tensor, " n"],
    uniforms: Float[Tensor, "t n"],
    room: Int[Tensor, " n"],
    sampling: Sampling,
    eot_id: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The result of `_one_by_one` in fewer forwards, and their number (N,); `text` has prompts that end at `starts`.

    A forward takes a row's last token and a guess at those that follow. Every position then draws with its own uniform,
    so tokens after right guesses are those that decoding one by one draws; tokens after a wrong guess are drawn again.
    """
    ahead = torch.arange(sampling.lookup + 1, device=logits.device)
    drawn = torch.full(text.shape, eot_id, device=logits.device)
    logprobs = torch.zeros(text.shape, device=logits.device)
    rows = torch.arange(len(logits), device=logits.device)  # those still in the batch
    tokens, logprobs[:, 0] = draw(logits, uniforms[0], sampling)
    drawn[:, 0] = text[rows, starts] = tokens
    ended = tokens == eot_id
    counts, forwards = torch.ones_like(rows), torch.ones_like(rows)  # tokens drawn; forwards run
    while True:
        live = ~ended & (counts < room[rows])
        count = int(live.sum())
        if count == 0:
            return drawn, logprobs, forwards
        if (some := rounded(count)) <= COMPACT_BELOW * len(rows):
            kept = _kept(live, some)
            cache.keep(kept)
            rows, live, counts, ended, text, starts = (x[kept] for x in (rows, live, counts, ended, text, starts))
        size = starts + counts
        guessed = guess(text, size, sampling.lookup)
        fed = torch.cat((text.gather(1, size[:, None] - 1), guessed), 1)  # (N, M)
        logits = model.logits(model.decode_ahead(fed, cache))
        places = counts[:, None] + ahead  # (N, M) in the completion, of the tokens drawn now
        at = uniforms[places.clamp(max=len(uniforms) - 1), rows[:, None]]
        new, found = (x.view_as(fed) for x in draw(logits.flatten(0, 1), at.flatten(), sampling))
        drawn[rows[:, None], places], logprobs[rows[:, None], places] = new, found
        text.scatter_(1, starts[:, None] + places, new)
        right = (new[:, :-1] == guessed).cumprod(1).sum(1)
        taken = (right + 1).minimum(room[rows] - counts).where(live, 0)
        ended = ended | ((new == eot_id) & (ahead < taken[:, None])).any(1)
        counts = counts + taken
        forwards[rows] += live
        cache.advance(taken)


def checked_lengths(prompts: Sequence[Sequence[int]], sizes: Sizes) -> list[int]:
    """The length of each prompt in tokens.

    Raises: DataError for one that is empty, leaves no room, or has a token that the model does not know.
    """
    for row, ids in enumerate(prompts):
        if not ids:
            raise DataError(f"prompt {row} is empty: a completion needs at least one token to continue")
        if len(ids) >= sizes.n_positions:
            raise DataError(
                f"prompt {row} has {len(ids)} tokens and the model {sizes.n_positions} positions: "
                f"no room for a new token; keep prompts to {sizes.n_positions - 1} tokens or fewer"
            )
        if strange := [token for token in (min(ids), max(ids)) if not 0 <= token < sizes.vocab_size]:
            raise DataError(
                f"prompt {row} has the token {strange[0]}, and the model knows 0 to {sizes.vocab_size - 1}: another "
                "tokenizer made it; take the one that the task is given"
            )
    return [len(ids) for ids in prompts]


def _uniforms(seeds: Sequence[int], steps: int) -> Float[Tensor, "t n"]:
    """`steps` uniforms in (0, 1) from the generator of each seed."""
    drawn = torch.stack([torch.rand(steps, generator=torch.Generator().manual_seed(seed)) for seed in seeds], 1)
    return drawn.clamp(min=LEAST)  # at 0, one in 2^24 of what the generator gives, any first token would do


def _assemble(
    prompt_tokens: Int[Tensor, "p s"],
    prompt_lengths: Int[Tensor, " p"],
    drawn: Int[Tensor, "n c"],
    logprobs: Float[Tensor, "n c"],
    forwards: Int[Tensor, " n"] | None,
    room: Int[Tensor, " n"],
    eot_id: int,
) -> Samples:
    """Rows of prompt and completion; tokens drawn after a row's end are dropped."""
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
    forwards = counts[:, 0] if forwards is None else forwards.clone()  # no longer a tensor of inference mode
    return Samples(tokens, mask, logprobs.gather(1, source).where(mask, 0.0), truncated, forwards)
