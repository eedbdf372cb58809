"""What each figure of a run is, and why two figures of the same name may not measure the same thing."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rookexp import track
from rookexp.run_folder import runs
from rookexp.run_folder.run_info import read_info
from rookexp.run_folder.runs import Run
from rookexp.statistics import Interval

# Keys that affect a reward; and those that also affect that of a sampled completion.
SCORED = (
    "reward",
    "eval.max_new_tokens",
    "eval._target_",
    "task.sampling.P.max_new_tokens",
    "task.sampling.A.max_new_tokens",
)
# Ends of keys below these that change no value: which engine judged is noted by its content, not its place.
UNSCORED = tuple(f".engine.{name}" for name in ("path", "processes", "timeout_s", "retries", "cache"))
UNMEASURED = (*UNSCORED, ".lookup")  # tokens that were guessed ahead are the same tokens
SAMPLED = ("grpo.temperature", "grpo.top_k", "grpo.top_p", "grpo.overlong_buffer", "task.sampling")
# Name -> what it is, which way is better (None: neither), and the keys of the config that define it: values under other
# settings of these do not measure the same thing.
FIGURES: dict[str, tuple[str, Literal["up", "down"] | None, tuple[str, ...]]] = {
    "gain": ("last minus first greedy reward", "up", SCORED),
    "reward": ("last greedy reward", "up", SCORED),
    "best": ("highest greedy reward on the way", "up", (*SCORED, "eval.every")),
    "slope": (
        "reward per 100 steps, of the 20-value mean; greedy where each step has it, else sampled",
        "up",
        (*SCORED, "eval.every", *SAMPLED),
    ),
    "kl": (
        "forward KL to the reference, nats a token, mean of the last 20 steps",
        None,
        ("model", "reference", "grpo.temperature", "task.sampling"),
    ),
    "entropy": (
        "entropy of the policy, nats a token, mean of the last 20 steps",
        None,
        ("grpo.temperature", "task.sampling"),
    ),
    "kl_share": ("KL penalty beside the advantages, mean of the last 20 steps", None, ()),
    "dead_groups": ("share of groups whose rewards are all equal, mean of the last 20 steps", "down", ()),
    "grad_norm_max": ("largest gradient norm before clipping", None, ()),
    "seconds": ("time of all steps, without evaluation", "down", ()),
    "tokens_per_s": ("tokens learned from a second, median", "up", ()),
}
# The metrics of rookexp whose names have no slash, besides figures; steps is a figure of every run, without a table.
PLAIN = (
    "step", "steps", "epoch", "lr", "step_s", "core_wait", "frac_reward_zero_std", "frac_groups_all_best",
    "frac_groups_all_worst", "loss", "grad_norm", "update_ratio", "kl_coef",
)  # fmt: skip
SHARES = ("kl_share", "dead_groups")  # figures between 0 and 1
AT_LEAST_0 = ("kl", "entropy", *SHARES, "grad_norm_max", "seconds", "tokens_per_s")
ON_PROMPTS = ("gain", "reward", "best", "slope")  # compared only where the evaluation asks the same prompts
ANSWER = {"step", "prompt", "completion"}  # what a line of completions.jsonl has at least
NOT_KNOWN = "the prompts of the evaluation are not known"
OTHER_PROMPTS = "the evaluation asks other prompts"
OTHER_ANSWERS = "the same prompts are judged by other right answers, as of other positions or task.legality"
OTHER_ENGINES = "other engines judge the answers (engines in run.json)"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run's last evaluation asked, and who judged it."""

    prompts: tuple[str, ...]  # sorted
    answers: str | None  # a digest of the right answers; None in runs that did not note it
    engines: tuple[str, ...] = ()  # that judged in any of the run's starts, sorted; () without any, or not noted


def unlike(
    figure: str, one: Run, other: Run, our_asked: Mapping[int, Asked], their_asked: Mapping[int, Asked]
) -> str | None:
    """Why a figure of two points, of each a run and what its evaluations asked, is not one measure; None if it is."""
    ours, theirs = (runs.flat(run.config) for run in (one, other))
    defining = FIGURES[figure][2]
    if figure == "slope" and ours.get("eval.every") == theirs.get("eval.every") == 1:  # of greedy answers
        defining = SCORED
    for key in sorted((ours.keys() | theirs.keys()) - runs.seed_following_keys([ours, theirs])):
        if ours.get(key) != theirs.get(key) and runs.within(key, defining) and not key.endswith(UNMEASURED):
            return f"not the same measure: {key} differs"
    return asked_apart(our_asked, their_asked) if figure in ON_PROMPTS else None


def possible(figure: str, found: Interval) -> Interval:
    """The interval, cut to the values that the figure can have; for few seeds Student's t reaches beyond them."""
    low = max(found.low, 0.0) if figure in AT_LEAST_0 else found.low
    return Interval(found.value, low, min(found.high, 1.0) if figure in SHARES else found.high)


def asked_apart(ours: Mapping[int, Asked], theirs: Mapping[int, Asked]) -> str | None:
    """How the evaluations of two points differ, seed by seed where they share seeds; None where they do not."""
    if not ours or not theirs:
        return NOT_KNOWN
    common = ours.keys() & theirs.keys()
    pairs = [(ours[seed], theirs[seed]) for seed in common] or list(itertools.product(ours.values(), theirs.values()))
    if any(one.prompts != other.prompts for one, other in pairs):
        return OTHER_PROMPTS
    if any(len({one.answers, other.answers} - {None}) > 1 for one, other in pairs):
        return OTHER_ANSWERS
    return OTHER_ENGINES if any(len({one.engines, other.engines} - {()}) > 1 for one, other in pairs) else None


def asked(group: Sequence[Run]) -> dict[int, Asked]:
    """Seed -> what that run of a point was asked; without runs of which it is not known."""
    found = {
        run.seed or 0: Asked(
            tuple(sorted(str(row["prompt"]) for row in last_answers(run.folder))),
            run.summary.get(track.ANSWERS),
            _engines(run.folder),
        )
        for run in group
    }
    return {seed: one for seed, one in found.items() if one.prompts}


def _engines(folder: Path) -> tuple[str, ...]:
    info = read_info(folder)
    starts = (info, *info.get("earlier_starts", ()))
    return tuple(sorted({each for start in starts for each in start.get("engines", ())}))


def last_answers(folder: Path) -> list[dict[str, Any]]:
    """The greedy completions of a run's last evaluation, one a prompt, as logged."""
    return _answers(folder, last=True)


def first_answers(folder: Path) -> list[dict[str, Any]]:
    """The greedy completions of a run's first evaluation, before any update, one a prompt, as logged."""
    return _answers(folder, last=False)


def _answers(folder: Path, *, last: bool) -> list[dict[str, Any]]:
    """Parses only as many lines of completions.jsonl as it needs, from the end or the start of the file."""
    path = folder / track.COMPLETIONS
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1] if path.is_file() else []
    rows: list[dict[str, Any]] = []
    for line in reversed(lines) if last else lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue  # torn by a kill
        if not isinstance(row, dict) or row.get("kind") != "greedy" or not row.keys() >= ANSWER:
            continue
        if rows and row["step"] != rows[0]["step"]:
            break
        rows.append(row)
    return rows[::-1] if last else rows
