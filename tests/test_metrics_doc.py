"""docs/metrics.md has every metric that is logged, and none that is not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from rewarded import BLACK_ROW, WHITE_ROW, a_prompts, option, p_of
from tiny import EOT, LETTERS, Ask, Letters, Record, Vowels, grpo, policy, trainer

from rookexp import kl, losses, returns
from rookexp.comparison import measures
from rookexp.core_wait import CoreWait
from rookexp.evaluation import Greedy
from rookexp.health import SYMPTOMS
from rookexp.objectives.likelihood import Documents, NextToken
from rookexp.rewards.combine import Clipped, Combined
from rookexp.types import Prompt, Reward, Scores

DOC = (Path(__file__).resolve().parent.parent / "docs" / "metrics.md").read_text(encoding="utf-8")
COLUMNS = ["formula", "unit", "mask", "direction", "healthy"]
# Made up here, as users make up theirs: tasks, parts of a reward, and rewards under a name.
MADE_UP = {f"{where}/mean_{name}" for where in ("reward", "eval") for name in ("letters", "numbers")}
MADE_UP |= {f"{where}/{name}" for where in ("reward", "eval") for name in ("first", "vowels", "vowels/first")}


def tables() -> list[tuple[list[str], list[list[str]]]]:
    """The header and the rows of each table, a list of cells each."""
    found: list[list[list[str]]] = []
    before = ""
    for line in DOC.splitlines():
        if line.startswith("|"):
            found += [] if before.startswith("|") else [[]]
            found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        before = line
    return [(header, rows) for header, _, *rows in found]


def documented() -> list[str]:
    """The metrics on the page in its order, patterns included; a part of the reward is two metrics."""
    names = []
    for header, rows in tables():
        if header[1:] == COLUMNS:
            prefixes = ["reward/", "eval/"] if header[0] == "part" else [""]
            names += [prefix + row[0].strip("`") for row in rows for prefix in prefixes]
    return names


class Instead:
    """A reward of chess that is asked about these prompts, in turn, whatever was asked."""

    def __init__(self, reward: Reward, *prompts: Prompt) -> None:
        self.reward = reward
        self.prompts = prompts

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        return self.reward.score([self.prompts[i % len(self.prompts)] for i in range(len(prompts))], texts)


class Slow(Vowels):
    """A reward that takes its time, with an engine's metrics."""

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        self.prompts = prompts

    def metrics(self) -> dict[str, float]:
        names = ("wait_s", "hit_rate", "positions_per_s", "restarts")
        return {f"engine/{name}": 1.0 for name in names}


class TwoTasks(Ask):
    """Every other prompt belongs to another task."""

    def select(self, step: int) -> tuple[Prompt, ...]:
        names = ("letters", "numbers")
        return tuple(Prompt(p.text, p.ids, p.answer, names[i % 2]) for i, p in enumerate(super().select(step)))


def names_of(objective: Any, evaluate: Any, **changes: Any) -> set[str]:
    """What one step of training logs, and the evaluations around it."""
    record = Record()
    arguments = {"lr": 1e-3, "steps": 1, "diagnose_every": 1, "evaluate": evaluate, "tracker": record} | changes
    trainer(objective.policy, objective, **arguments).fit()
    return {name for row in record.rows for name in row}


def reinforced(reward: Any = None, minibatches: int = 1, **changes: Any) -> set[str]:
    """What reinforcement logs; several minibatches are several updates of a batch."""
    model, reward = policy(), reward or Vowels()
    objective = grpo(model, reward=reward, single_update=minibatches == 1, **changes)
    greedy = Greedy(
        policy=model,
        tokenizer=Letters(),
        prompts=changes.get("task", Ask(LETTERS[1:5])).select(0),
        reward=reward,
        max_new_tokens=3,
        own_lengths={},
        autocast=torch.no_grad,
    )
    return names_of(objective, greedy, minibatches=minibatches)


def pretrained() -> set[str]:
    documents = Documents([([1, 2, 3, EOT], 1), ([4, 5, EOT], 1)])
    objective = NextToken(
        policy=policy(),
        documents=documents,
        batch_documents=2,
        prompt_weight=1.0,
        seed=0,
        autocast=nullcontext,
        head_chunk=5,
        device=torch.device("cpu"),
    )
    evaluate = lambda step: {"eval/loss": objective.validation_loss(documents, 2)}  # noqa: E731
    return names_of(objective, evaluate, diagnose_every=None)


def gae() -> returns.Gae:
    return returns.Gae(
        gamma=1.0,
        lam=0.95,
        whiten=True,
        bootstrap="zero",
        value_lr=1e-3,
        value_coef=0.1,
        value_clip=0.2,
        detach=False,
    )


@cache
def logged() -> frozenset[str]:
    """The names of all metrics of runs that together have everything on."""
    both = (p_of(WHITE_ROW), p_of(BLACK_ROW))
    with mock.patch.object(CoreWait, "share", return_value=0.0):  # Linux tells it, of several threads
        names = reinforced(Instead(option("policy"), *both), dead_groups="resampled", overlong_buffer=3) | pretrained()
    for name in ("a_levenshtein", "a_schema"):
        names |= reinforced(Instead(option(name), *a_prompts()))
    for name in ("linear", "clipped"):
        names |= reinforced(Instead(option(name), both[0], a_prompts()[0]))
    names |= reinforced(task=TwoTasks(LETTERS[1:5]), dead_groups="dropped", truncated="masked")
    combined = Combined(rewards={"vowels": Vowels()}, weights={"vowels": 1.0}, normalise="normalise_then_sum")
    names |= reinforced(Clipped(reward=Slow(), low=0.0, high=1.0))
    names |= reinforced(combined, baseline=gae(), exact_sampler=False, minibatches=2)
    for word, divergence in kl.TYPES.items():
        placement = "reward" if word in ("k1", "forward") else "loss"
        names |= reinforced(divergence=divergence, kl_placement=placement)
    names |= reinforced(policy_loss=losses.DualClip(clip_low=0.2, clip_high=0.2, dual_clip=3.0), minibatches=2)
    return frozenset(names)


def test_every_logged_metric_is_documented_by_its_own_name() -> None:
    assert not logged() - set(documented()) - MADE_UP, "add them to docs/metrics.md"


def test_every_documented_metric_is_logged() -> None:
    names = [name for name in documented() if "<" not in name]
    assert not set(names) - logged(), "nothing logs them any more: take them out of docs/metrics.md"
    assert len(names) == len(set(names))


def test_patterns_are_for_what_users_name_themselves() -> None:
    assert logged() >= MADE_UP
    patterns = [re.sub(r"<\w+>", "[^/]+", name) for name in documented() if "<" in name]
    assert {name for name in MADE_UP if any(re.fullmatch(p, name) for p in patterns)} == MADE_UP
    for pattern in patterns:
        assert any(re.fullmatch(pattern, name) for name in MADE_UP), pattern


def test_every_metric_has_all_its_columns() -> None:
    masks = ("tokens", "all tokens", "completions", "its completions", "applicable", "groups", "prompts")
    masks += ("its prompts", "step")
    for header, rows in tables():
        assert header[1:] == COLUMNS or header[0] == "in `summary.json`"
        for row in rows:
            assert len(row) == len(header), row
            assert all(row), row
            if header[1:] == COLUMNS:
                assert row[3] in masks, row
                assert row[4] in ("up", "down", "watch"), row


def test_every_health_line_is_documented_with_the_limits_of_the_yaml(root: Path) -> None:
    yaml = (root / "conf" / "track" / "local.yaml").read_text(encoding="utf-8")
    rows = {row[0].strip("`"): row for header, rows in tables() if header[0] == "in `summary.json`" for row in rows}
    assert set(rows) == {*SYMPTOMS, "entropy", "entropy_rise", "kl_share", "kl_rise", "sampler"}
    for name, row in rows.items():
        for key in re.findall(r"`(?:track\.health)?\.(\w+)`", row[2]):
            limit = re.search(rf"^  {key}: (\S+)$", yaml, re.MULTILINE)
            assert limit, key
            value = float(limit[1])
            assert any(text in row[1] for text in (f"{value:g}", f"{100 * value:g} %")), (name, key, value)


def test_lines_are_short() -> None:
    assert not [line for line in DOC.splitlines() if len(line) > 118]


def test_an_objective_knows_every_metric_without_a_slash() -> None:
    plain = {name for name in documented() if "/" not in name}
    assert set(measures.PLAIN) == plain - measures.FIGURES.keys() | {"steps"}
