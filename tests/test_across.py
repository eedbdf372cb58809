"""What cannot go together is refused, and what is typed and cannot act is said, of a run and of a sweep's points."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from test_config import compose
from test_session import TINY

from rookexp import build, losses, parts, train
from rookexp.config import across
from rookexp.draw import Sampling
from rookexp.errors import ConfigError
from rookexp.rewards.by_task import ByTask
from rookexp.types import Scores

ONE = "changes no gradient: each batch has one update, where every ratio is 1; grpo.minibatches=2 makes two"
BY_ROW = "is published for grpo.aggregation=sequence_mean; with token_mean long rows weigh more"
DIVIDED = (
    "divides the penalty by the rewards' spread, too: where the outcomes are equal it has full strength, whatever "
    "kl.coef is; baseline.std_floor=0.05 bounds that"
)
LATE = "changes no gradient: the KL coefficient stays 0 for kl.warmup=20 steps, and the run has "
FIXED = "changes no gradient: the reference first moves after step 10, and the run has 10"
WARM = "warms up over {} steps, and the run has 20: the rate ends at 50% of optim.lr"
UNLISTED = "changes nothing: no prompt holds a list, as the task's share `analysed` is 0"
ZERO_KL = "changes nothing: the KL coefficient stays 0; "
NO_KL = ZERO_KL + "kl=fixed has one"

SAID = {
    "loss.clip_low=0.1": ONE,
    "loss=cispo": ONE,
    "loss=gspo": ONE,
    "loss=luspo": BY_ROW,
    "loss=luspo grpo.aggregation=sequence_mean": "",
    "grpo.minibatches=2 loss=gspo": BY_ROW,
    "experiment=gspo grpo.minibatches=2 grpo.aggregation=constant_length": BY_ROW.replace(
        "token_mean", "constant_length"
    ),
    "loss=gspo grpo.minibatches=2 grpo.aggregation=sequence_mean": "",
    "loss.clip_low=0.1 loss=gspo grpo.minibatches=2 grpo.aggregation=sequence_mean": "",
    "loss=cispo grpo.minibatches=2": "",
    "kl=fixed baseline.std_floor=0 grpo.kl_placement=reward": DIVIDED,
    "kl=fixed baseline=batch_std grpo.kl_placement=reward": DIVIDED,
    "kl=fixed baseline=leave_one_out grpo.kl_placement=reward": DIVIDED.replace(
        "baseline.std_floor=0.05 bounds that", "baseline=rloo does not divide"
    ),
    "kl=fixed grpo.kl_placement=reward": "",
    "kl=fixed baseline.std=none grpo.kl_placement=reward": "",
    "kl=fixed baseline=rloo grpo.kl_placement=reward": "",
    "kl=fixed baseline.std_floor=0": "",
    "loss.clip_low=0.1 grpo.minibatches=2": "",
    "loss.clip_low=0.1 grpo.inner_epochs=2": "",
    "kl=none grpo.kl_type=k2": NO_KL,
    "kl=fixed kl.coef=0 grpo.kl_placement=reward": ZERO_KL + "give kl.coef more",
    "kl=none reference=ema": NO_KL,
    "kl=fixed reference=ema": "",
    "kl=fixed steps=10 reference=hard": FIXED,
    "kl=fixed steps=11 reference=hard": "",
    "steps=20 reference=ema": LATE + "20",
    "steps=20 reference=interpolate": "",
    "kl=anneal kl.start_coef=0 kl.end_coef=0 grpo.kl_type=k2": ZERO_KL + "give kl.start_coef more",
    "kl=anneal kl.end_coef=0 grpo.kl_type=k2": "",
    "kl=adaptive grpo.kl_type=k2": "",
    "grpo.kl_type=k2": "",
    "steps=20 kl=warmup": LATE + "20",
    "steps=20 kl.warmup=20": LATE + "20",
    "steps=20 grpo.kl_type=k3": LATE + "20",
    "steps=20 grpo.kl_placement=reward": LATE + "20",
    "steps=21 grpo.kl_placement=reward": "",
    "steps=5 kl.coef=0.5": LATE + "5",
    "steps=21 kl.coef=0.5": "",
    "steps=5 kl.coef=0.5 kl.shape=linear": "",
    "steps=5 kl.coef=0.5 kl.unit=tokens": "",
    "kl=fixed steps=5 kl.coef=0.5": "",
    "steps=20 optim.schedule.warmup_steps=40": WARM.format(40),
    "steps=20 optim=muon_pretrain optim.schedule.warmup_steps=20": "",
    "steps=20 optim.lr=1e-3 optim=muon_pretrain": WARM.format(150).replace("50%", "13%"),
    "steps=20 optim=adamw_advanced": "",
    "steps=20 optim.schedule.warmup_steps=20": "",
    "grpo.max_resamples=3": "changes nothing with grpo.dead_groups=kept; resampled asks again",
    "grpo.max_resamples=3 grpo.dead_groups=resampled": "",
    "baseline=dr_grpo baseline.std_floor=0.1": "changes nothing with baseline.std=none: nothing is divided",
    "baseline.std_floor=0.1": "",
    "baseline=gae baseline.value_clip=0.1": ONE.replace("ratio is 1", "value is the old one"),
    "baseline=gae grpo=ppo baseline.value_clip=0.1": "",
    "task.list_order=shuffled": UNLISTED,
    "task.analysed=0.5 task.list_order=shuffled": "",
    "task=rookworld_mix task.tasks.P.list_order=shuffled": UNLISTED,
    "task=rookworld_mix task.tasks.P.analysed=0.5 task.tasks.P.list_order=shuffled": "",
    "task=rookworld_mix task.tasks.A.prompts=7": (
        "changes nothing: a step has task.prompts prompts, of which each task gets its part of task.shares"
    ),
    "task=rookworld_phases task.tasks.A.prompts=7": "",
    "kl=fixed grpo.kl_placement=reward grpo.advantage_clip=null baseline=maxrl": (
        "makes returns negative by the penalty, and baseline=maxrl learns nothing from a group whose mean is not above "
        "baseline.min_mean; grpo.kl_placement=loss leaves the rewards as they are"
    ),
    "kl=fixed grpo.advantage_clip=null baseline=maxrl": "",
    "baseline=maxrl": (
        "is cut by grpo.advantage_clip=2, where one success in 24 would earn 23: prompts with few successes pull "
        "alike; null cuts nothing"
    ),
    "grpo.group_size=3 baseline=maxrl": "",
    "grpo.advantage_clip=null reward=combined baseline=maxrl": (
        "learns nothing: rewards that are normalised first have the mean 0 in every group, and it divides by the mean; "
        "reward.normalise=sum_then_normalise leaves them as they are"
    ),
    "grpo.advantage_clip=null reward=combined reward.normalise=sum_then_normalise baseline=maxrl": "",
}


@pytest.mark.parametrize("words", SAID)
def test_what_cannot_act_is_said(words: str) -> None:
    typed = words.split()
    found = list(across.idle(compose(*typed), typed))
    assert found == ([(typed[-1], SAID[words])] if SAID[words] else [])


@pytest.mark.parametrize("name", ["Clip", "DualClip", "Cispo", "Gspo", "GspoToken", "Gmpo", "Sapo", "Vespo"])
def test_with_one_update_losses_have_one_gradient_whatever_their_values(name: str) -> None:
    keys: dict[str, tuple[dict[str, float], dict[str, float]]] = {
        "DualClip": (
            {"clip_low": 0.1, "clip_high": 0.1, "dual_clip": 2.0},
            {"clip_low": 0.3, "clip_high": 1.0, "dual_clip": 9.0},
        ),
        "Gmpo": ({"log_clip": 0.1}, {"log_clip": 2.0}),
        "Sapo": ({"tau_positive": 0.5, "tau_negative": 0.7}, {"tau_positive": 3.0, "tau_negative": 2.0}),
        "Vespo": (
            {"k_positive": 1.0, "lambda_positive": 2.0, "k_negative": 1.0, "lambda_negative": 3.0},
            {"k_positive": 3.0, "lambda_positive": 1.0, "k_negative": 2.0, "lambda_negative": 1.0},
        ),
    }  # fmt: skip
    gradients = []
    for values in keys.get(name, ({"clip_low": 0.1, "clip_high": 0.1}, {"clip_low": 0.5, "clip_high": 2.0})):
        logprobs = torch.tensor([-0.3, -1.0, -2.0, -0.1], requires_grad=True)
        loss: Any = getattr(losses, name)(**values)
        advantages, row = torch.tensor([1.0, 1.0, -2.0, -2.0]), torch.tensor([0, 0, 1, 1])
        (gradient,) = torch.autograd.grad(loss(logprobs, logprobs.detach(), advantages, row).sum(), logprobs)
        gradients.append(gradient)
    torch.testing.assert_close(*gradients)
    torch.testing.assert_close(gradients[0], -advantages)


def test_a_run_and_a_sweep_say_it_once_before_they_begin(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quiet_logging: None, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def said_by(line: str) -> str:
        monkeypatch.setattr(sys, "argv", ["train", *line.split()])
        train.main()
        return capfd.readouterr().out

    line = f"debug=fast {TINY} steps=1"
    said = said_by(f"{line} loss.clip_low=0.1")
    assert said.index(f"note: loss.clip_low=0.1 {ONE}\n") < said.index("M parameters in fp32")
    once = f"note: loss.clip_low=0.1,0.3 {ONE}; points that differ in it alone are the same but for rounding\n"
    assert said_by(f"-m sweep=grid {line} loss.clip_low=0.1,0.3").startswith(once)
    mixed = f"-m sweep=grid {line} sweep.study_name=b loss.clip_low=0.1,0.3 grpo.inner_epochs=1,2 pruner=median"
    said = said_by(mixed)
    assert "the same but for rounding" not in said
    cannot = "note: the pruner can end nothing early: 4 points must finish before one is ended, and there are 4\n"
    assert said.startswith(cannot)


class Own:
    """A reward of a user's own, of which nobody knows."""

    def score(self, prompts: Any, texts: Any) -> Scores:
        return Scores(torch.zeros(len(texts)), {})


REFUSED = ("binary", "combined", "continuous", "self_consistency", "dataset", "a_exact")


def test_a_baseline_of_stages_is_refused_beside_a_reward_without_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    loaded: list[str] = []

    def load(*args: Any, **values: Any) -> None:
        loaded.append("a model")
        raise ConfigError("loaded")

    monkeypatch.setattr(build, "load_policy", load)
    for reward in (*REFUSED, "policy", "rookworld"):
        config = compose("baseline=process", f"reward={reward}")
        refused = "it compares stages, and the reward does not say" if reward in REFUSED else "loaded"
        with pytest.raises(ConfigError, match=refused):
            build.build_training(config, tmp_path)
    assert len(loaded) == 2
    assert parts.may_have_stages(Own())
    assert parts.may_have_stages(ByTask(rewards={"P": Own()}))


def test_a_step_has_as_many_minibatches_as_rows_at_most() -> None:
    across.check_rows({"prompts_per_step": 3, "group_size": 4, "minibatches": 12})
    with pytest.raises(ConfigError, match=r"grpo\.minibatches=13: allowed: at most the 12 rows of a step"):
        across.check_rows({"prompts_per_step": 3, "group_size": 4, "minibatches": 13})


def test_a_way_back_after_the_last_step_is_refused() -> None:
    for reference in ({"at": 3}, {"every": 9}, {}):
        across.check_moment(reference, 3)
    with pytest.raises(
        ConfigError, match=r"reference\.at=4: it would never come: the run ends with steps=3; allowed: 1 to 3"
    ):
        across.check_moment({"at": 4}, 3)


def test_completions_that_no_prompt_leaves_room_for_are_refused() -> None:
    way = Sampling(temperature=1.0, top_k=None, top_p=None, max_new_tokens=16)
    config: dict[str, dict[str, int]] = {"grpo": {"max_new_tokens": 15}, "eval": {"max_new_tokens": 15}}
    across.check_lengths(config, {}, 16)
    across.check_lengths({"grpo": {"max_new_tokens": 15}, "eval": {}}, {}, 16)
    with pytest.raises(ConfigError, match=r"^eval\.max_new_tokens=16: the model has 16 positions; allowed: .* 15$"):
        across.check_lengths(config | {"eval": {"max_new_tokens": 16}}, {}, 16)
    with pytest.raises(ConfigError, match=r"^task\.sampling\.A\.max_new_tokens=16: "):
        across.check_lengths(config, {"A": way}, 16)
