"""`dry_run=true`: checks a run's prompts, rewards and lengths and counts its work, without loading its weights."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from rookexp import build, chess_text, parts, per_task_sampling, policies
from rookexp.config.nodes import Config
from rookexp.draw import Sampling
from rookexp.errors import CheckupFailed, ConfigError, RookexpError
from rookexp.models import hub, weights
from rookexp.objectives.grpo_choices import refuse_contradictions
from rookexp.self_check.golds import SAME_REWARD, dues, golds_of, is_rewards_own
from rookexp.tasks.mixed import Phases, notes_of, subtasks
from rookexp.tasks.positions import position_key
from rookexp.tokenizers import Tokenizer
from rookexp.types import Prompt, Reward, scores_of

LOOKED_AT = 256  # most prompts of each kind whose gold answers are checked
LEAST_GAIN = 1e-6  # a right answer's reward must exceed an empty one's by more than this


@runtime_checkable
class HoldsOut(Protocol):
    """A task that knows whether its evaluation positions are kept out of training."""

    @property
    def held_out(self) -> bool:
        """True if no position is in both training and evaluation."""


class Table:
    """Prints lines with a verdict each; `failed` has the names of those that failed."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def line(self, name: str, said: str, wrong: str = "") -> None:
        """Prints one line; it fails if `wrong`, which says what is wrong and how to fix it, is not empty."""
        print(f"{'FAIL' if wrong else 'ok  '} {name:<14} {said}{f'; {wrong}' if wrong else ''}", flush=True)
        if wrong:
            self.failed.append(name)


def run(config: Config) -> None:
    """Prints a line each for the phases, the split, gold answers, their lengths, the choices and a step's arithmetic.

    Raises: ConfigError, DataError or EngineError for what cannot be built; CheckupFailed naming the lines that failed.
    """
    own = build.check_config(config)
    tokenizer, n_positions = words(config["model"])
    objects = {"tokenizer": tokenizer, "seed": own.seed}
    task = parts.build_group(config, "task", **objects)
    asked = parts.evaluation_prompts(config, task, objects)
    reward: Reward = parts.build_group(config, "reward")
    for note in notes_of([task]):
        print(note)
    shared = per_task_sampling.shared_sampling(config["grpo"])
    own_sampling = per_task_sampling.own_sampling(task, shared)
    own_lengths = per_task_sampling.own_lengths(own_sampling, shared)
    table = Table()
    seen = steps_of(task, own.steps)
    if len(seen) < own.steps:
        table.line("steps", f"only the first and the last {len(seen) // 2} of {own.steps} are looked at below")
    trained = {prompt.text: prompt for _, prompts in seen for prompt in prompts}
    phases(table, task, seen, own.steps)
    split(table, config, task, trained, asked)
    both = {**trained, **{prompt.text: prompt for prompt in asked}}
    for kind in sorted({prompt.task for prompt in both.values()}):
        some = [prompt for prompt in both.values() if prompt.task == kind][:LOOKED_AT]
        if known := golds_of(some, reward, task):
            prompts, golds = zip(*known, strict=True)
            gold_rewards(table, kind, reward, prompts, golds)
            limits = per_task_sampling.limits(kind, shared, own_sampling, config["eval"]["max_new_tokens"], own_lengths)
            lengths(table, kind, limits, tokenizer, n_positions, prompts, golds)
    choices(table, config, reward, shared, own_sampling)
    arithmetic(table, config, own.steps, len(seen[0][1]), len(trained))
    if table.failed:
        raise CheckupFailed(f"the dry run found something: {', '.join(dict.fromkeys(table.failed))}")


def words(node: Config) -> tuple[Tokenizer, int]:
    """The tokenizer that a model's node names, and the model's longest sequence in tokens; reads no weights."""
    if "path" not in node:
        return policies.tokenizer_of(node["tokenizer"]), node["n_positions"]
    folder = policies.model_folder(hub.fetch(node["path"], node["revision"]))
    tokenizer = policies.tokenizer_of(node["tokenizer"]) if "tokenizer" in node else Tokenizer.from_folder(folder)
    return tokenizer, weights.read_config(folder / "config.json").n_positions


def steps_of(task: Any, steps: int) -> list[tuple[int, tuple[Prompt, ...]]]:
    """Each step with its prompts; of a run with more than 1000 steps only the first and the last 500."""
    looked_at = [*range(min(steps, 500)), *range(max(500, steps - 500), steps)]
    return [(step, task.select(step)) for step in looked_at]


def phases(table: Table, task: Any, seen: Sequence[tuple[int, tuple[Prompt, ...]]], steps: int) -> None:
    """Prints a line per phase, its steps and the shares of its kinds of prompt; fails for phases never reached."""
    rows = task.table() if isinstance(task, Phases) else [("the task", 0, steps)]
    for name, start, end in rows:
        counts = Counter(prompt.task for step, prompts in seen if start <= step < end for prompt in prompts)
        shares = ", ".join(f"{kind} {100 * n / counts.total():.1f} %" for kind, n in sorted(counts.items()))
        table.line("phase", f"{name}: steps {start + 1} to {end}, {shares}")
    if isinstance(task, Phases):
        never = task.phases[len(rows) :]
        if never:
            names = ", ".join(name for name, _ in never)
            table.line("phases", f"the run's {steps} steps end before {names}", "raise steps or shorten task.schedule")


def split(table: Table, config: Config, task: Any, trained: dict[str, Prompt], asked: Sequence[Prompt]) -> None:
    """Prints how many evaluation positions are also trained on; fails for any held out or from `eval.positions`.

    Two files of a mix may have the same position for different questions: neither answer gives the other away.
    """
    held_out = isinstance(task, HoldsOut) and task.held_out
    other = config["eval"]["positions"]
    whole = held_out or isinstance(other, str) or (other and set(other) == set(subtasks(config["task"])))
    keys = {(prompt.task, position_of(prompt)) for prompt in trained.values()}
    anywhere = {position for _, position in keys} if held_out else set()
    found = [(prompt.task, position_of(prompt)) for prompt in asked]
    shared = [kind for kind, position in found if (kind, position) in keys or position in anywhere]
    wrong = whole or (other and set(other) & set(shared))
    said = (
        f"{len(trained)} prompts trained, {len(asked)} evaluated, {len(shared)} of these on positions that are trained"
    )
    one_kind = len({kind for kind, _ in [*keys, *found]}) <= 1
    said += "" if held_out or one_kind else " in prompts of the same kind"
    table.line("split", said, "choose another file or split" if wrong and shared else "")


def position_of(prompt: Prompt) -> str:
    """A key that is equal for prompts on the same position; the prompt's text if it has no position."""
    asked = chess_text.parse_a_prompt(prompt.text) or chess_text.parse_p(prompt.text)
    board = None if asked is None else chess_text.board_of(asked.fen)
    return prompt.text if board is None else position_key(board)


def gold_rewards(table: Table, kind: str, reward: Reward, prompts: Sequence[Prompt], golds: Sequence[str]) -> None:
    """Prints what right answers earn; fails if one earns no more than an empty answer, or less than it should.

    It should earn its due, see `dues`, unless it is the reward's own answer: as the self-check before a training asks.
    """
    empties = [""] * len(golds)
    try:
        gold, again, empty = (scores_of(reward, prompts, texts).rewards.tolist() for texts in (golds, golds, empties))
    except RookexpError as error:
        table.line("gold answers", kind, str(error))
        return
    bad = [i for i, pair in enumerate(zip(gold, empty, strict=True)) if not pair[0] > pair[1] + LEAST_GAIN]
    said = (
        f"{kind}: {len(gold)} earn {min(gold):.3g} to {max(gold):.3g}, empty ones {min(empty):.3g} to {max(empty):.3g}"
    )
    wrong = f"{len(bad)} earn no more than an empty one, as to {prompts[bad[0]].text[:50]!r}" if bad else ""
    due = dues(prompts, gold)[kind] if gold == again else -math.inf
    less = [i for i, earned in enumerate(gold) if earned < due - SAME_REWARD and not is_rewards_own(reward, prompts[i])]
    if less and not bad:
        wrong = f"{len(less)} earn less than the highest, as to {prompts[less[0]].text[:50]!r}: not the reward's best"
    table.line("gold answers", said, wrong)


def lengths(
    table: Table,
    kind: str,
    limits: Mapping[str, int],
    tokenizer: Tokenizer,
    n_positions: int,
    prompts: Sequence[Prompt],
    golds: Sequence[str],
) -> None:
    """Checks that right answers with end-of-text fit, and that a prompt's tokens begin those of its document."""
    sizes = [len(tokenizer.encode(gold)) + 1 for gold in golds]
    whole = max(len(prompt.ids) + size for prompt, size in zip(prompts, sizes, strict=True))
    longest = max(sizes)
    short = [f"{key}={limit}: at least {longest}" for key, limit in limits.items() if longest > limit]
    short += [f"the model has {n_positions} positions" for _ in range(whole > n_positions)]
    said = f"{kind}: answers of at most {longest} tokens, {whole} with their prompts"
    table.line("lengths", said, "; ".join(short))
    joined = [
        prompt.text
        for prompt, gold in zip(prompts, golds, strict=True)
        if tuple(tokenizer.encode(prompt.text + gold)[: len(prompt.ids)]) != prompt.ids
    ]
    wrong = f"the tokenizer joins prompt and answer of {len(joined)}, as of {joined[0][:50]!r}" if joined else ""
    table.line("prefix", f"{kind}: {len(prompts)} prompts begin the tokens of their documents", wrong)


def choices(
    table: Table, config: Config, reward: Reward, shared: Sampling, own_sampling: Mapping[str, Sampling]
) -> None:
    """Builds baseline, loss, KL and reference; fails where a training would refuse them together."""
    grpo, baseline = config["grpo"], parts.build_group(config, "baseline")
    wrong = ""
    try:
        parts.refuse_without_stages(baseline, reward)
        refuse_contradictions(
            baseline=baseline,
            coefficient=parts.build_group(config, "kl"),
            policy_loss=parts.build_group(config, "loss"),
            reference_sync=parts.build_group(config, "reference"),
            sampling=shared,
            own_sampling=own_sampling,
            group_size=grpo["group_size"],
            dead_groups=grpo["dead_groups"],
            overlong_buffer=grpo["overlong_buffer"],
        )
    except ConfigError as error:
        wrong = str(error)
    table.line("choices", "baseline, loss, kl and reference with grpo", wrong)


def arithmetic(table: Table, config: Config, steps: int, prompts: int, distinct: int) -> None:
    """Prints the run's rows, optimizer steps and prompts, of which the task gives `prompts` a step."""
    grpo = config["grpo"]
    group = grpo["group_size"]
    rows, updates = prompts * group, grpo["inner_epochs"] * grpo["minibatches"]
    fewest, more = divmod(rows, grpo["minibatches"])
    said = f"{prompts} prompts x {group} completions = {rows} rows a step, "
    said += f"{updates} update{'s' * (updates > 1)} of {fewest}" + (f" to {fewest + 1} rows" if more else " rows")
    said += f"; {steps} steps ask {steps * prompts} prompts, {distinct} of them distinct"
    if config["hardware"].get("grow") == "batch":
        said += "; hardware.grow=batch may raise the prompts of a step, as the device turns out before the first one"
    table.line("arithmetic", said)
