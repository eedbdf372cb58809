"""Checks that a right answer fits the length limits, earns its due, and is scored in the evaluation as in training."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rookexp.self_check.golds import SAME_REWARD, dues, is_rewards_own
from rookexp.self_check.reciter import Reciter
from rookexp.self_check.rehearsal import Finding, Rehearsal, Skipped, altered
from rookexp.types import Prompt

OTHERS = 64  # prompts that are also given another's gold answer
GROUP = 3  # completions of a prompt, when rows are mixed up on purpose
NOISY = "the reward gives the same text other rewards each time"


def max_new_tokens(case: Rehearsal) -> str | Finding | Skipped:
    """Each gold answer with its end-of-text fits the limits of rollouts and evaluation, and the model's positions."""
    if not case.golds:
        return Skipped("the task offers no gold(prompt)")
    lengths = [len(case.words.encode(answer)) + 1 for _, answer in case.golds]
    longest, whole = max(lengths), max(n + len(prompt.ids) for n, (prompt, _) in zip(lengths, case.golds, strict=True))
    seen = f"the longest of {len(lengths)} gold answers has {longest} tokens with its end"
    needed: dict[tuple[str, int], int] = {}  # tokens, by key and its value
    for length, (prompt, _) in zip(lengths, case.golds, strict=True):
        for limited in case.limits(prompt).items():
            needed[limited] = max(length, needed.get(limited, 0))
    for (key, limit), length in needed.items():
        if length > limit:
            seen = f"a gold answer that it limits has {length} tokens with its end"
            return Finding(seen, f"a right answer cut off by {key}={limit}", f"set {key} to {length} or more.")
    if whole > case.policy.config.n_positions:
        cause = f"a right answer cut off by the model's {case.policy.config.n_positions} positions"
        return Finding(f"{seen}, {whole} with its prompt", cause, "use shorter prompts or a model with more positions.")
    return f"{seen}, of {min(limit for _, limit in needed)} allowed"


def gold_answers(case: Rehearsal) -> str | Finding | Skipped:
    """Every gold answer earns more than an empty one, and no less than another prompt's gold answer earns in its place.

    It also earns no less than the others of its task where two or more of them earn the highest reward; a single
    highest sets no standard, because a reward may say that some prompts are worth more. Answers that the reward itself
    calls right are exempt from this, as an engine's to a prompt that holds other analyses.
    """
    if not case.golds:
        return Skipped("the task offers no gold(prompt)")
    prompts, answers = zip(*case.golds, strict=True)
    tasks = [prompt.task for prompt in prompts]
    gold, again, empty = (earned(case, prompts, texts) for texts in (answers, answers, [""] * len(answers)))
    if gold != again:
        return Skipped(NOISY)
    few = range(min(len(prompts), OTHERS))
    next_of = {i: next(j for j in (*range(i + 1, len(few)), *few) if tasks[j] == tasks[i]) for i in few}
    theirs = [answers[next_of[i]] for i in few]
    if broken := _unscored(case, [*prompts, *(prompts[i] for i in few)], ["" for _ in prompts] + theirs):
        return broken
    other = earned(case, [prompts[i] for i in few], theirs)
    other += [-math.inf] * (len(prompts) - len(few))
    due = dues(prompts, gold)
    own = [is_rewards_own(case.own.source.reward, prompt) for prompt in prompts]
    lacks = [
        max(nothing + 2 * SAME_REWARD, elsewhere, -math.inf if itself else due[task]) - right
        for right, nothing, elsewhere, task, itself in zip(gold, empty, other, tasks, own, strict=True)
    ]
    worst = max(range(len(gold)), key=lacks.__getitem__)
    highest = gold[worst] + lacks[worst]
    seen = f"the gold answer to {prompts[worst].text[:60]!r} earns {gold[worst]:.3g}, an empty one {empty[worst]:.3g}"
    if lacks[worst] > SAME_REWARD:
        (doubled,) = earned(case, [prompts[worst]], [prompts[worst].text + answers[worst]])
        another = answers[next_of.get(worst, worst)]
        (longer,) = earned(case, [prompts[worst]], [prompts[worst].text + another])
        read = another == answers[worst] or longer < doubled - SAME_REWARD  # else any longer text earns more
        if read and doubled > max(gold[worst] + SAME_REWARD, highest - SAME_REWARD):
            cause = "the prompt stripped before scoring: only with its prompt put in front is the answer read rightly"
            return Finding(
                seen, cause, "score the whole completion, and the prompt before it where the parser needs it."
            )
        if other[worst] > gold[worst] + SAME_REWARD:
            seen += f", the gold answer to another prompt {other[worst]:.3g}"
            cause = "a reward that pays errors, or labels of other prompts"
            return Finding(seen, cause, "let the reward fall with the error, and compare with the prompt's own label.")
        cause = "a parser that does not read the answers, or labels that are not the reward's best"
        return Finding(f"{seen}; the highest is {highest:.3g}", cause, "compare the answer's format with the parser's.")
    return f"{len(gold)} gold answers earn {gold[worst]:.3g}, empty ones at most {max(empty):.3g}"


def reward_rows(case: Rehearsal) -> str | Finding | Skipped:
    """A completion earns alone what it earns in a batch: each row is scored with its own prompt.

    A reward that compares the completions of a prompt need only give each its own reward when they change places.
    """
    if len(case.prompts) < 2:
        return Skipped("a single prompt: every row is its own")
    golds = {prompt.text: answer for prompt, answer in case.golds}
    blind = [case.words.decode(rows[0]) for rows in case.blind]
    said = [golds.get(prompt.text, text) for prompt, text in zip(case.prompts, blind, strict=True)]
    count = len(said)
    texts = [said[(p + g) % count] if g < 2 else blind[p] for p in range(count) for g in range(GROUP)]
    together, again = (earned(case, case.prompts, texts) for _ in range(2))
    if together != again:
        return Skipped(NOISY)
    alone = [earned(case, [case.prompts[i // GROUP]], [text])[0] for i, text in enumerate(texts)]
    if furthest(together, alone) <= SAME_REWARD:
        return f"{len(texts)} rows earn together what each earns alone"
    turned = [p * GROUP + (g - 1) % GROUP for p in range(count) for g in range(GROUP)]
    moved = earned(case, case.prompts, [texts[i] for i in turned])
    if furthest(moved, [together[i] for i in turned]) <= SAME_REWARD:
        return f"{len(texts)} rows earn what they earn in any place of their group"
    row = max(range(len(texts)), key=lambda i: abs(together[i] - alone[i]))
    return Finding(
        f"row {row} of {len(texts)}, {GROUP} a prompt, earns {together[row]:.3g} and alone {alone[row]:.3g}",
        "rows that are scored with another prompt, or rewards in another order than the texts",
        "score text i with prompt i // group_size, and return the rewards in the order of the texts.",
    )


def _unscored(case: Rehearsal, prompts: Sequence[Prompt], texts: Sequence[str]) -> Finding | None:
    """The finding for a prompt of the step and a text whose reward is not a finite number, which a training refuses."""
    rewards = case.own.source.reward.score(prompts, texts).rewards
    if rewards.isfinite().all():
        return None
    asked = {prompt.text for prompt in case.task.select(case.subject.step)}
    for prompt, text, reward in zip(prompts, texts, rewards.tolist(), strict=True):
        if not math.isfinite(reward) and prompt.text in asked:
            cause = "a division by 0 in the reward, as by the length of an empty answer, or no part of it that applies"
            fix = "return a finite number for every text; 0 where there is nothing to praise."
            return Finding(f"{text[:60]!r}, as an answer to {prompt.text[:60]!r}, earns {reward}", cause, fix)
    return None


def earned(case: Rehearsal, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
    """The rewards of the texts; 0 where the reward does not apply."""
    rewards: list[float] = case.own.source.reward.score(prompts, texts).rewards.nan_to_num().tolist()
    return rewards


def furthest(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest absolute difference, element by element."""
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def evaluation(case: Rehearsal) -> str | Finding | Skipped:
    """The evaluation decodes and scores a text as training does, for gold answers and for random ids."""
    gold = {prompt.text: case.words.encode(answer) for prompt, answer in case.golds}
    room = case.subject.greedy.length_of
    said = [(prompt, ids[: room(prompt) - 1]) for prompt, (ids, *_) in zip(case.prompts, case.blind, strict=True)]
    said += [(prompt, gold[prompt.text]) for prompt in case.prompts if prompt.text in gold]
    prompts, texts = [prompt for prompt, _ in said], [case.words.decode(ids) for _, ids in said]
    greedy = altered(case.subject.greedy, prompts=prompts)
    scripts = [[*said[row][1], case.words.eot_id] for rows, _ in greedy.batches() for row in rows]
    greedy.policy = Reciter(case.policy, scripts)
    greedy(case.subject.step)
    rewards, again = (case.own.source.reward.score(prompts, texts).rewards.tolist() for _ in range(2))
    if furthest(rewards, again) > SAME_REWARD:
        return Skipped(NOISY)
    for text, reward, row in zip(texts, rewards, greedy.completions, strict=True):
        if row["completion"] != text or not abs(row["reward"] - reward) <= SAME_REWARD:
            seen = f"{text!r} is read as {row['completion']!r} and earns {row['reward']:.3g} in the evaluation, "
            cause = "an evaluation with a parser of its own"
            return Finding(f"{seen}{reward:.3g} in training", cause, "use one reward object and one decoder for both.")
    return f"{len(texts)} answers, gold and blind, are read and scored as in training"
