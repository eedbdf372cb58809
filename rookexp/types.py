"""The frozen records that flow through one step, and what training needs of model, tokenizer and reward.

N = P x G rows (prompt-major: row p*G+g), T tokens, V vocabulary, D width.

Rows are right-padded: position = column, always. Column j describes token j; column 0 is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from rookexp.errors import ConfigError

Autocast = Callable[[], AbstractContextManager[None]]  # a context in which products have the run's precision

# Names of the metrics and columns beside those of a reward's parts; a part of such a name would replace them.
OWN_NAMES = {
    *("mean", "mean_A", "mean_P", "std", "reward", "reward_std", "truncated_frac"),
    *("step", "kind", "prompt", "completion", "advantage", "truncated", "unnormalised"),
}
ROUNDING = 1e-6  # of the largest reward: rewards that differ by less count as equal
SAME = 1e-4  # of 1 + |reward|: by how much a reward and the sum of its stages may differ, by rounding


@runtime_checkable
class Policy(Protocol):
    """A language model that can be scored and trained."""

    @property
    def head_weight(self) -> Float[Tensor, "v d"]:
        """The head's matrix: logits = hidden @ head_weight.T."""

    def hidden(self, tokens: Int[Tensor, "n t"]) -> Float[Tensor, "n t d"]:
        """Final hidden states; hidden[:, t] predicts token t + 1; padding after a row's end changes nothing in it."""

    def hidden_after(
        self,
        prompts: Int[Tensor, "p s"],
        lengths: Int[Tensor, " p"],
        owner: Int[Tensor, " n"],
        completions: Int[Tensor, "n c"],
        sizes: Int[Tensor, " n"],
    ) -> Float[Tensor, "n c d"]:
        """Final hidden states that predict the `sizes` tokens of each completion, which continues prompt `owner`."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """The weights."""


@runtime_checkable
class Tokenizer(Protocol):
    """Text to token ids and back."""

    @property
    def eot_id(self) -> int:
        """The id that ends a completion."""

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, nothing added."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without special tokens."""

    def decode_all(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row of ids."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One problem; `answer` is read only by that task's reward."""

    text: str  # the exact prompt text; the completion is appended without any separator
    ids: tuple[int, ...]  # its token ids
    answer: Any  # whatever the task's reward compares with
    task: str  # the kind of prompt, such as P: which reward judges it and how it is sampled
    source: str = field(default="", compare=False)  # which of several tasks asks it, by its name in the configuration


@dataclass(frozen=True, slots=True)
class Rollouts:
    """What was sampled, and how. Text exists only for rewards and logs."""

    tokens: Int[Tensor, "n t"]  # prompt and completion ids, right-padded
    mask: Bool[Tensor, "n t"]  # True at completion tokens, end-of-text included
    logprobs: Float[Tensor, "n t"]  # log-prob of each completion token at `temperature`, else 0
    temperature: Float[Tensor, " n"]  # sampling temperature of each row
    truncated: Bool[Tensor, " n"]  # True where no end-of-text was sampled
    forwards: Int[Tensor, " n"]  # forward passes that drew the row's tokens, the prompt's included
    prompts: tuple[Prompt, ...]  # P problems
    texts: tuple[str, ...]  # N completions, cut before end-of-text
    group_size: int  # G


@dataclass(frozen=True, slots=True)
class Stages:
    """Where in their texts completions earn their rewards: K consecutive stages of each."""

    ends: Int[Tensor, "n k"]  # characters of the completion up to a stage's end, ascending; the last: all of them
    rewards: Float[Tensor, "n k"]  # what each stage earns; a row adds up to the completion's reward


@dataclass(frozen=True, slots=True)
class Scores:
    """The rewards of completions, with their components."""

    rewards: Shaped[Tensor, " n"]  # outcome reward of each completion
    parts: Mapping[str, Shaped[Tensor, " n"]]  # components and diagnostics; NaN = not applicable
    stages: Stages | None = None  # None: each reward is earned by the whole completion
    unnormalised: Shaped[Tensor, " n"] | None = None  # rewards before normalisation within groups; None: there was none

    def __post_init__(self) -> None:
        """Converts rewards and parts to floats, whatever their dtype.

        Raises: ConfigError unless each is a tensor of one number per completion, and for taken names or unfit stages.
        """
        object.__setattr__(self, "rewards", _floats("the rewards", self.rewards, None))
        if not isinstance(self.parts, Mapping):
            raise ConfigError(
                f"reward: the parts of Scores: {type(self.parts).__name__}; wanted: a mapping, as in {{}}"
            )
        if taken := OWN_NAMES & self.parts.keys():
            name = min(taken)
            raise ConfigError(f"reward: part {name!r}: a metric or column of every run has that name; give it another")
        parts = {name: _floats(f"part {name!r}", part, len(self.rewards)) for name, part in self.parts.items()}
        object.__setattr__(self, "parts", parts)
        if self.unnormalised is not None:
            before = _floats("the unnormalised rewards", self.unnormalised, len(self.rewards))
            object.__setattr__(self, "unnormalised", before)
        if self.stages is not None:
            _refuse_other_sums(self.rewards, self.stages)

    @property
    def comparable(self) -> Tensor:
        """The rewards in a unit in which steps can be compared; normalised ones have the mean 0 in each."""
        return self.rewards if self.unnormalised is None else self.unnormalised

    def dead(self, group_size: int, *, by_stage: bool) -> Bool[Tensor, " p"]:
        """True for groups with nothing to compare: all rewards are equal, with `by_stage` in each stage, if any.

        Two completions may earn the same in total but not in each stage.
        """
        stages = self.stages.rewards if by_stage and self.stages is not None else self.rewards[:, None]
        groups = stages.unflatten(0, (-1, group_size))  # (P, G, K)
        return all_equal(groups, 1).all(1)


def all_equal(rewards: Tensor, over: int) -> Bool[Tensor, "..."]:
    """Whether all rewards along the dimension `over` are equal, up to the rounding of sums."""
    return rewards.amax(over) - rewards.amin(over) <= ROUNDING * rewards.abs().amax(over)


@runtime_checkable
class Reward(Protocol):
    """Scores completions."""

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        """Scores of N = P x G completions, prompt-major."""


@runtime_checkable
class LongReward(Reward, Protocol):
    """A slow reward: it can begin before the completions exist, and reports what its work took."""

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Begins a step's work that needs no completions, in the background."""

    def metrics(self) -> dict[str, float]:
        """What the work since `prepare` took, for the log."""


@dataclass(frozen=True, slots=True)
class Experience:
    """What an update needs. Aggregation is in the data: a loss is (x * weights).sum() over the whole batch."""

    tokens: Int[Tensor, "n t"]  # right-padded ids
    weights: Float[Tensor, "n t"]  # weight of each token's loss in the batch; 0 at prompt and padding
    logprobs: Float[Tensor, "n t"]  # log-probs under the sampling policy
    advantages: Float[Tensor, "n t"]  # advantage of each token
    values: Float[Tensor, "n t"]  # what a value head predicted before each token; 0 without one
    returns: Float[Tensor, "n t"]  # what it should have predicted; 0 without one
    temperature: Float[Tensor, " n"]  # sampling temperature of each row
    prompt: Int[Tensor, " n"]  # number of the row's prompt; rows of one prompt begin with the same tokens
    prompt_lengths: Int[Tensor, " n"]  # tokens of the row's prompt; 0 = none, nothing is shared

    def predicting(self) -> Int[Tensor, " m"]:
        """Indices into the flattened (N, T - 1) positions of those that predict the M weighted tokens."""
        return (self.weights[:, 1:] != 0).flatten().nonzero()[:, 0]

    def rows(self, index: Int[Tensor, " i"], width: int) -> Experience:
        """The first `width` columns of the rows at `index`."""
        picked = {f.name: getattr(self, f.name)[index] for f in fields(self)}
        return Experience(**{k: v[:, :width] if v.dim() == 2 else v for k, v in picked.items()})


@dataclass(frozen=True, slots=True)
class LossTerms:
    """A micro-batch's part of the loss, and values per token to log."""

    terms: Mapping[str, Float[Tensor, ""]]  # by name, including coefficients; backward is called on their sum
    per_token: Mapping[str, Float[Tensor, " m"]]  # detached values at its M weighted tokens: a metric is their mean,
    # over all such tokens of the step, or, where the name ends in /max, the largest of them

    @property
    def total(self) -> Float[Tensor, ""]:
        """The sum of the terms; adds up over the batch."""
        return torch.stack(list(self.terms.values())).sum()


def by_task(prompts: Sequence[Prompt]) -> dict[str, list[int]]:
    """The indices of each task's prompts, by `source` or else by `task`; {} for a single task without a source."""
    names = [prompt.source or prompt.task for prompt in prompts]
    several = len(set(names)) > 1 or any(prompt.source for prompt in prompts)
    return {name: [i for i, of in enumerate(names) if of == name] for name in sorted(set(names)) if several}


def scores_of(reward: Reward, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
    """The scores of N texts by a reward, which may be user code.

    Raises: ConfigError unless those are `Scores` with N rewards, whose stages end within the texts.
    """
    scores = reward.score(prompts, texts)
    found = len(scores.rewards) if isinstance(scores, Scores) else type(scores).__name__
    if found != len(texts):
        raise ConfigError(
            f"reward={type(reward).__name__}: score gave {found} for {len(texts)} completions; "
            "wanted: rookexp.types.Scores with one reward each"
        )
    if scores.stages is not None:
        for row, (text, ends) in enumerate(zip(texts, scores.stages.ends.tolist(), strict=True)):
            if max(ends, default=0) > len(text):
                who = f"reward={type(reward).__name__}: the stages of completion {row} end at {ends}"
                raise ConfigError(f"{who}; wanted: at most {len(text)}, its number of characters")
    return scores


def _refuse_other_sums(rewards: Tensor, stages: Stages) -> None:
    """Raises: ConfigError for stages of the wrong shape or order, or that do not add up to the rewards."""
    ends: Any = stages.ends
    earned: Any = stages.rewards
    if not isinstance(ends, Tensor) or not isinstance(earned, Tensor):
        kinds = f"{type(ends).__name__} and {type(earned).__name__}"
        raise ConfigError(f"reward: ends and rewards of Stages are {kinds}; wanted: tensors of shape (N, K)")
    if ends.dim() != 2 or ends.shape != earned.shape or len(ends) != len(rewards):
        shapes = f"{list(ends.shape)} and {list(earned.shape)}"
        raise ConfigError(
            f"reward: ends and rewards of Stages have the shapes {shapes}; wanted: ({len(rewards)}, K) each"
        )
    if (late := (ends.diff(dim=1) < 0).any(1)).any():
        row = int(late.int().argmax())
        raise ConfigError(f"reward: the stages of completion {row} end at {ends[row].tolist()}; wanted: ascending")
    apart = (earned.sum(1) - rewards).abs() - SAME * (1 + rewards.abs())
    if (apart > 0).any():
        row = int(apart.argmax())
        raise ConfigError(
            f"reward: the stages of completion {row} earn {float(earned[row].sum()):g}, the completion "
            f"{float(rewards[row]):g}; wanted: the same"
        )


def stages_of(found: Sequence[tuple[Sequence[int], Scores]], texts: Sequence[str]) -> Stages | None:
    """The stages of all texts, from pairs of rows and their scores, later pairs winning; None if no scores have any.

    Rows whose scores have no stages earn everything in one.
    """
    count = max((scores.stages.ends.shape[1] for _, scores in found if scores.stages), default=0)
    if not count:
        return None
    whole = torch.tensor([len(text) for text in texts])[:, None].repeat(1, count)
    ends, rewards = whole.clone(), torch.zeros(whole.shape)
    for rows, scores in found:
        index = torch.tensor(rows)
        own = scores.stages or Stages(whole[index, :1], scores.rewards[:, None])
        spare = count - own.ends.shape[1]
        ends[index] = torch.cat((own.ends, whole[index, :spare]), 1)
        rewards[index] = F.pad(own.rewards.to(rewards), (0, spare))
    return Stages(ends, rewards)


def _floats(what: str, x: Tensor, count: int | None) -> Tensor:
    """`x` in at least float32, on the CPU, without a graph.

    Raises: ConfigError unless it is a flat tensor, of `count` numbers if that is given.
    """
    if not isinstance(x, Tensor) or x.dim() != 1 or count not in (None, len(x)):
        numbers = "one number a completion" if count is None else f"{count} numbers, one a completion"
        raise ConfigError(f"reward: {what} of Scores: {described(x)}; wanted: a tensor of {numbers}")
    return x.detach().cpu().to(torch.promote_types(x.dtype, torch.float32))


def described(found: Any) -> str:
    """What user code gave, for an error: "a tensor of shape [2, 3]", or the type's name."""
    return f"a tensor of shape {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
