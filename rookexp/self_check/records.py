"""Checks that the trained ids and the scored texts are the sampled ones, on completions with known ids."""

from __future__ import annotations

import copy

import torch

from rookexp.returns import TokenRewards
from rookexp.self_check.golds import SAME_REWARD
from rookexp.self_check.rehearsal import Finding, Rehearsal, Skipped

MIXED_UP = "rewards of other rows, a wrong sign, or a mean over something else than the group"


def selection(case: Rehearsal) -> str | Finding:
    """A step selects the same prompts when it is asked again, and every prompt's ids are those of its text."""
    once, again = ([(p.text, p.ids) for p in case.task.select(case.subject.step)] for _ in range(2))
    if once != again:
        cause = "a task that draws from a state of its own, as an iterator or a generator does"
        fix = "derive what a step asks from its number alone, so that a run that goes on asks the same."
        return Finding("select(step) gives other prompts when it is asked again", cause, fix)
    evaluated = case.subject.greedy.prompts[: case.size.golds]
    for text, ids in [*once, *((prompt.text, prompt.ids) for prompt in evaluated)]:
        if tuple(case.words.encode(text)) != ids:
            seen = f"the ids of the prompt {text[:40]!r} are those of another text"
            return Finding(seen, "a task that changes text or ids after encoding", "encode the text that is asked.")
    return f"{len(once)} prompts of the step are the same again; their ids and {len(evaluated)} evaluated ones' fit"


def prompt_prefix(case: Rehearsal) -> str | Finding:
    """Every trained row begins with its prompt's ids, and so do the ids of its text followed by a right answer."""
    rows = case.recited.experience.tokens.tolist()
    for i, row in enumerate(rows):
        prompt = case.prompts[i // case.rows]
        if tuple(row[: len(prompt.ids)]) != prompt.ids:
            seen = f"row {i} does not begin with the ids of its prompt {prompt.text[:40]!r}"
            return Finding(seen, "a prompt cut, padded on the left or encoded again", "train on the prompt's own ids.")
    answers = {prompt.text: answer for prompt, answer in case.golds}
    for prompt in case.prompts:
        whole = case.words.encode(prompt.text + answers.get(prompt.text, ""))
        if tuple(whole[: len(prompt.ids)]) != prompt.ids:
            seen = f"the ids of prompt and gold answer do not begin with those of the prompt {prompt.text[:40]!r}"
            cause = "a token that spans the end of the prompt and the start of the answer"
            return Finding(seen, cause, "end the prompt where the tokenizer splits.")
    return f"the prompt's ids begin each of {len(rows)} rows and those of its text with an answer"


def shared_prompt(case: Rehearsal) -> str | Finding:
    """The rows of a group continue one prompt."""
    experience = case.recited.experience
    groups = zip(experience.tokens.split(case.rows), experience.prompt.split(case.rows), strict=True)
    for group, ((rows, owner), prompt) in enumerate(zip(groups, case.prompts, strict=True)):
        if (rows[:, : len(prompt.ids)] != rows[0, : len(prompt.ids)]).any() or (owner != owner[0]).any():
            cause = "completions that are not ordered prompt by prompt: rewards of different questions are compared"
            fix = "put the completions of prompt p into rows p * group_size and following."
            return Finding(f"the rows of group {group} continue different prompts", cause, fix)
    return f"the {case.rows} rows of each of {len(case.prompts)} groups continue one prompt"


def trained_ids(case: Rehearsal) -> str | Finding:
    """The trained completion ids are the sampled ones, all of them and no others, apart from the end-of-text."""
    for i, (row, weighted) in enumerate(zip(*_recited_rows(case), strict=True)):
        prompt, script = case.prompts[i // case.rows], case.recited.scripts[i]
        start = len(prompt.ids)
        if tuple(row[start : start + len(script) - 1]) != script[:-1]:
            again = case.words.encode(case.words.decode(script))
            seen = f"row {i} trains on other ids than were sampled"
            if row[start : start + len(again)] == again:
                fix = "keep the ids that the sampler drew; text is for rewards and logs."
                return Finding(seen, "re-tokenised text in place of the sampled ids", fix)
            return Finding(seen, "ids changed between sampler and trainer", "pass the sampler's tokens on as they are.")
        places = list(range(start, start + len(script)))
        if [place for place in weighted if place != places[-1]] != places[:-1]:
            seen = f"row {i} has weights at columns {weighted[:1]} to {weighted[-1:]}, its completion is at "
            seen += f"{places[0]} to {places[-1]}"
            cause = "an off-by-one in the completion mask" if weighted else "a completion without any weight"
            return Finding(seen, cause, "weight column j where token j was sampled: from the prompt's length on.")
    return f"{len(case.recited.scripts[0]) - 1} known ids a row are trained as they were sampled, and nothing else is"


def end_of_text(case: Rehearsal) -> str | Finding:
    """The sampled end-of-text is in the row and in the loss."""
    for i, (row, weighted) in enumerate(zip(*_recited_rows(case), strict=True)):
        end = len(case.prompts[i // case.rows].ids) + len(case.recited.scripts[i]) - 1
        if end >= len(row) or row[end] != case.words.eot_id or end not in weighted:
            fix = "count it as a completion token, so that the policy learns when to stop."
            return Finding(
                f"row {i} has no weight on its sampled end-of-text", "end-of-text masked out as padding", fix
            )
    return f"the sampled end-of-text of {len(case.recited.experience.tokens)} rows is in the loss"


def scored_text(case: Rehearsal) -> str | Finding:
    """The reward gets the text of the sampled ids, to the letter."""
    for i, given in enumerate(case.recited.scored):
        prompt = case.prompts[i // case.rows].text
        said = case.words.decode(case.recited.scripts[i])
        if given != said:
            causes = {
                prompt + said: "the prompt left in the completion",
                said.strip(): "white space stripped from the completion",
                said[len(prompt) :]: "a prompt stripped from a completion that does not hold it",
            }
            if given in map(case.words.decode, case.recited.scripts):
                causes[given] = "the text of another row"
            cause = causes.get(given, "a completion decoded or cut in another way")
            return Finding(f"the reward got {given!r} where {said!r} was sampled", cause, "score what was sampled.")
    return f"the reward gets the text of the sampled ids in {len(case.recited.scored)} rows"


def advantages(case: Rehearsal) -> str | Finding | Skipped:
    """In a group with one best row that row has the highest advantage, and it is above 0."""
    if not case.own.baseline.needs_groups:
        return Skipped("the baseline does not compare the rows of a group")
    experience = case.recited.experience
    per_row = experience.advantages.sum(1) / (experience.weights != 0).sum(1).clamp(min=1)
    groups = zip(torch.tensor(case.recited.rewards).split(case.rows), per_row.cpu().split(case.rows), strict=True)
    seen = 0
    for group, (rewards, found) in enumerate(groups):
        best, second = rewards.topk(2).values
        if best <= second + SAME_REWARD or not found.any():
            continue  # equal answers, or a baseline that learns nothing from such a group
        seen += 1
        others = torch.cat((found[rewards < best], torch.zeros(1)))
        if found[rewards.argmax()] <= others.max():
            given, made = ([round(value, 3) for value in values.tolist()] for values in (rewards, found))
            return Finding(
                f"the rewards {given} of group {group} become the advantages {made}",
                MIXED_UP,
                "compare each reward with those of its own prompt, in the order of the rows.",
            )
    return f"the best row of each of {seen} groups has the highest advantage" if seen else Skipped("no row is the best")


def baseline(case: Rehearsal) -> str | Finding | Skipped:
    """Groups with rewards from 0.1 up to 0.2 and from 0.9 down to 0.8 are each compared within themselves.

    A baseline may leave one of them out, as MaxRL does a group whose mean is low: its advantages are then all 0. A
    third group, of equal rewards, has finite advantages, too, unless such groups are dropped.
    """
    if not case.own.baseline.needs_groups:
        return Skipped("the baseline does not compare the rows of a group")
    size = case.own.group_size
    ends = [(0.1, 0.2), (0.9, 0.8)]
    if case.own.dead_groups == "kept":  # else the baseline never sees dead ones
        ends.append((0.5, 0.5))
    rewards = torch.cat([torch.linspace(first, last, size) for first, last in ends])[:, None]
    mask = torch.ones_like(rewards, dtype=torch.bool)
    kinds = (case.prompts[0].task,) * len(ends)
    given = TokenRewards(rewards, mask, size, kinds, None, torch.zeros(len(rewards), dtype=torch.bool))
    found = copy.deepcopy(case.own.baseline).cpu().advantages(given).advantages[:, 0].split(size)
    if not torch.cat(found).isfinite().all():
        seen = f"the rewards of {len(ends)} known groups become advantages that are not finite"
        cause = "a division by the standard deviation, which is 0 where all rewards of a group are equal"
        return Finding(seen, cause, "add a small number to the divisor, or give such a group advantages of 0.")
    if not torch.cat(found[:2]).any():
        seen = "groups with rewards of 0.1 to 0.2 and of 0.8 to 0.9 have no advantage other than 0"
        cause = "a baseline that lets nothing be learnt, or baseline.min_mean above what such groups earn"
        return Finding(seen, cause, "give the better rows of a group advantages above 0.")
    for group, own in zip(rewards[:, 0].split(size)[:2], found, strict=False):
        if not own.any():
            continue
        best, worst = group.argmax(), group.argmin()
        if own[best] <= 0 or own[worst] > 0 or own.argmax() != best:
            paid, made = ([round(value, 3) for value in values.tolist()] for values in (group, own))
            return Finding(
                f"beside another group the rewards {paid} become the advantages {made}",
                MIXED_UP,
                "compare each reward with those of its own prompt, in the order of the rows.",
            )
    return f"two groups of {size} known rewards are each compared within themselves"


def _recited_rows(case: Rehearsal) -> tuple[list[list[int]], list[list[int]]]:
    """For each recited row, its token ids and the columns with a weight other than 0."""
    experience = case.recited.experience
    return experience.tokens.tolist(), [row.nonzero()[:, 0].tolist() for row in experience.weights]
