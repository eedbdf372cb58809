"""Whether a right answer fits, is paid as such, and means the same to the evaluation as to training."""

from __future__ import annotations

from rookexp.reciter import Reciter
from rookexp.rehearsal import Finding, Rehearsal, Skipped, altered

SAME_REWARD = 1e-6  # rewards that differ by less are equal


def max_new_tokens(case: Rehearsal) -> str | Finding | Skipped:
    """The gold answers and their end fit into a completion, of rollouts and of the evaluation."""
    if not case.golds:
        return Skipped("the task offers no gold(prompt)")
    lengths = [len(case.words.encode(answer)) + 1 for _, answer in case.golds]
    longest, whole = max(lengths), max(n + len(prompt.ids) for n, (prompt, _) in zip(lengths, case.golds, strict=True))
    seen = f"the longest of {len(lengths)} gold answers has {longest} tokens with its end"
    needed: dict[tuple[str, int], int] = {}  # of each key and its value, in tokens
    for length, (prompt, _) in zip(lengths, case.golds, strict=True):
        for limited in case.limits(prompt).items():
            needed[limited] = max(length, needed.get(limited, 0))
    for (key, limit), length in needed.items():
        if length > limit:
            return Finding(seen, f"a right answer cut off by {key}={limit}", f"set {key} to {length} or more.")
    if whole > case.policy.config.n_positions:
        cause = f"a right answer cut off by the model's {case.policy.config.n_positions} positions"
        return Finding(f"{seen}, {whole} with its prompt", cause, "use shorter prompts or a model with more positions.")
    return f"{seen}, of {min(limit for _, limit in needed)} allowed"


def gold_answers(case: Rehearsal) -> str | Finding | Skipped:
    """Every gold answer earns the highest reward seen of its task, and an empty answer earns less."""
    if not case.golds:
        return Skipped("the task offers no gold(prompt)")
    prompts, answers = zip(*case.golds, strict=True)
    score = case.own.source.reward.score
    gold, empty = (score(prompts, texts).rewards.tolist() for texts in (answers, [""] * len(answers)))
    tasks = [prompt.task for prompt in prompts]
    best = {
        task: max(r for t, *both in zip(tasks, gold, empty, strict=True) if t == task for r in both) for task in tasks
    }
    worst = min(range(len(gold)), key=lambda i: gold[i] - best[tasks[i]])
    highest = best[tasks[worst]]
    seen = f"the gold answer to {prompts[worst].text[:60]!r} earns {gold[worst]:.3g}, an empty one {empty[worst]:.3g}"
    above_empty = all(right > nothing + SAME_REWARD for right, nothing in zip(gold, empty, strict=True))
    if not (above_empty and gold[worst] >= highest - SAME_REWARD):
        doubled = score(prompts, [p.text + answer for p, answer in case.golds]).rewards.tolist()
        if doubled[worst] > max(gold[worst] + SAME_REWARD, highest - SAME_REWARD):
            cause = "the prompt stripped before scoring: only with its prompt put in front is the answer read rightly"
            return Finding(
                seen, cause, "score the whole completion, and the prompt before it where the parser needs it."
            )
        cause = "a parser that does not read the answers, or labels that are not the reward's best"
        return Finding(f"{seen}; the highest is {highest:.3g}", cause, "compare the answer's format with the parser's.")
    return f"{len(gold)} gold answers earn {gold[worst]:.3g}, empty ones at most {max(empty):.3g}"


def evaluation(case: Rehearsal) -> str | Finding:
    """The evaluation reads and scores a text as training does: gold answers, and ids that say nothing."""
    gold = {prompt.text: case.words.encode(answer) for prompt, answer in case.golds}
    room = case.subject.greedy.length_of
    said = [(prompt, ids[: room(prompt) - 1]) for prompt, (ids, *_) in zip(case.prompts, case.blind, strict=True)]
    said += [(prompt, gold[prompt.text]) for prompt in case.prompts if prompt.text in gold]
    prompts, texts = [prompt for prompt, _ in said], [case.words.decode(ids) for _, ids in said]
    greedy = altered(case.subject.greedy, prompts=prompts)
    scripts = [[*said[row][1], case.words.eot_id] for rows, _ in greedy.batches() for row in rows]
    greedy.policy = Reciter(case.policy, scripts)
    greedy(case.subject.step)
    rewards = case.own.source.reward.score(prompts, texts).rewards.tolist()
    for text, reward, row in zip(texts, rewards, greedy.completions, strict=True):
        if row["completion"] != text or not abs(row["reward"] - reward) <= SAME_REWARD:
            seen = f"{text!r} is read as {row['completion']!r} and earns {row['reward']:.3g} in the evaluation, "
            cause = "an evaluation with a parser of its own"
            return Finding(f"{seen}{reward:.3g} in training", cause, "use one reward object and one decoder for both.")
    return f"{len(texts)} answers, gold and blind, are read and scored as in training"
