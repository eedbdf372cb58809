"""The recipes: whole, taken by build, runnable, true to their sources; and the two pages of docs about them."""

from __future__ import annotations

import copy
import importlib.util
import math
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from fixture_t import MAX_NEW_TOKENS, fixture_t, total
from omegaconf import OmegaConf
from tiny import Record

from rookexp import aggregation, baselines, build, kl
from rookexp.config import check, composing, hints, nodes
from rookexp.errors import ConfigError
from rookexp.objectives.grpo import GRPO

DOCS = Path(__file__).resolve().parent.parent / "docs"
CONF = composing.conf_dir()
FIXTURE_R = torch.tensor([[1.0, 0.0, 0.5, 0.0]], dtype=torch.float64)


def load(path: Path) -> ModuleType:
    """A script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


presets = load(DOCS / "presets.py")
NAMES = [name for names in presets.FAMILIES.values() for name in names]


def text(name: str) -> str:
    return (CONF / "experiment" / f"{name}.yaml").read_text(encoding="utf-8")


def composed(name: str, *overrides: str) -> dict[str, Any]:
    """The configuration of a recipe."""
    config: dict[str, Any] = presets.compose(f"experiment={name}", *overrides)[0]
    return config


def values(name: str) -> dict[str, str]:
    """Every value of a recipe, as one types it, by its dotted key; the option of a group by the group's name."""
    config, chosen = presets.compose(f"experiment={name}")
    return {key: presets.spell(value).replace(", ", ",") for key, value in flat(config).items()} | chosen


def flat(node: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Leaves by dotted key."""
    found: dict[str, Any] = {}
    for key, value in node.items():
        found |= flat(value, f"{path}{key}.") if isinstance(value, Mapping) else {f"{path}{key}": value}
    return found


def first_step(config: Mapping[str, Any], folder: Path) -> dict[str, float]:
    """The metrics of a run's first step."""
    trainer, seen = build.build_training({**config, "steps": 1}, folder).trainer, Record()
    trainer.tracker, trainer.evaluate, trainer.after_step = seen, None, None
    trainer.fit()
    return seen.rows[0]


# ---- what every recipe is ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_begins_with_its_claim_its_source_and_its_command(name: str) -> None:
    lines = text(name).splitlines()
    assert lines[0] == "# @package _global_"
    assert [line.split(":")[0] for line in lines[1:4]] == ["# Claim", "# Source", "# Command"]
    assert lines[3] == f"# Command: python -m rookexp.train experiment={name}"
    assert max(map(len, lines)) <= 118
    assert composed(name)["task_name"] == name


@pytest.mark.parametrize("name", [*presets.FAMILIES["The log"], *presets.TASKS])
def test_a_recipe_of_the_projects_own_says_what_to_expect(name: str) -> None:
    expected = text(name).splitlines()[4]
    assert expected.startswith("# Expect offline")
    assert expected.endswith("With the weights: never run.")
    assert len(expected) <= 118


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_says_itself_all_that_defines_the_algorithm(name: str) -> None:
    """So that no change of a default changes it."""
    own: Any = OmegaConf.to_container(OmegaConf.load(CONF / "experiment" / f"{name}.yaml"))
    overridden = {key.removeprefix("override /"): option for each in own["defaults"] for key, option in each.items()}
    config, chosen = presets.compose(f"experiment={name}")
    assert {"grpo", "loss", "baseline", "kl", "reference"} <= set(overridden)
    assert {group: chosen[group] for group in overridden} == overridden
    said = flat({key: value for key, value in own.items() if key != "defaults"})
    needed = {
        key
        for group in ("loss", "baseline", "kl", "reference", "grpo")
        for key in flat(config[group], f"{group}.")
        if key.split(".")[-1] not in check.META_KEYS
    }
    of_the_task = {"grpo.prompts_per_step", "grpo.max_new_tokens", "grpo.lookup"}  # lookup changes no draw
    if config["grpo"]["dead_groups"] != "resampled":
        of_the_task.add("grpo.max_resamples")
    assert needed - set(said) <= of_the_task


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_taken_and_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build.check_config(composed(name))
    config, fast = copy.deepcopy(composed(name)), presets.compose("debug=fast")[0]
    config |= {key: fast[key] for key in ("model", "hardware", "track")}
    config["grpo"] |= {"prompts_per_step": 2, "group_size": 2, "max_new_tokens": 4}
    config["grpo"]["overlong_buffer"] = config["grpo"]["overlong_buffer"] and 2
    config["task"] |= {"prompts": 2, "order": "fixed"}
    monkeypatch.setattr("rookexp.track.FanOut.log_completions", lambda *args: None)
    row = first_step(config, tmp_path)
    assert {"loss/policy", "grad_norm"} <= row.keys()
    assert all(math.isfinite(value) for value in row.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_what_a_recipe_tells_to_type_is_taken(name: str) -> None:
    """Overrides that stand side by side in its comments, as far as they are of our keys."""
    comments = [line.split("#", 1)[1] for line in text(name).splitlines()[4:] if "#" in line]
    words = [word.strip("(),.;:`") for comment in comments for word in comment.split()]
    runs: list[list[str]] = [[]]
    for word in words:
        if re.fullmatch(r"~[a-z_.]+|[a-z_.]+=\S+", word):
            runs[-1].append(word)
        elif runs[-1]:
            runs.append([])
    for run in runs:
        typed = [word for word in run if not word.startswith("experiment=")]
        if typed and all(re.split(r"[.=]", word.strip("~"))[0] in composed(name) for word in typed):
            build.check_config(composed(name, *typed))


# ---- what each recipe sets -----------------------------------------------------------------------------------------

CLIP = "loss=clip loss.clip_low=0.2 loss.clip_high=0.2"
ONE_UPDATE = "grpo.inner_epochs=1 grpo.minibatches=1"
LOG = f"loss=reinforce grpo.aggregation=sequence_mean grpo.kl_placement=loss steps=50 task.order=fixed {ONE_UPDATE}"
FLOOR = "baseline=group_mean baseline.std_floor=0.05 grpo.advantage_clip=2 eval.every=1"
WARMUP = "kl=warmup kl.warmup=20 kl.unit=steps kl.shape=switch"
MINI = f"""
    {CLIP} grpo.group_size=8 grpo.prompts_per_step=8 steps=1000 grpo.entropy_coef=0.01 reward=continuous
    kl=adaptive kl.coef=0.02 kl.target_nats=0.01 kl.band_high=2 kl.up=1.5 kl.band_low=0.5 kl.down=0.8
    kl.min_coef=0.001 kl.max_coef=1 task.p_style=bare eval.every=10
    optim=adamw_cosine optim.lr=1e-05 optim.betas=[0.9,0.95] optim.schedule.warmup_steps=50
    optim.schedule.floor_ratio=0.1 optim.grad_clip=1
    grpo.max_new_tokens=144 grpo.temperature=0.8 grpo.top_k=50 grpo.top_p=0.95
"""
FACTS = {
    "grpo": f"{CLIP} {ONE_UPDATE} grpo.aggregation=sequence_mean grpo.kl_type=k3 grpo.kl_placement=loss kl.coef=0.04",
    "dr_grpo": f"{CLIP} {ONE_UPDATE} kl=none baseline.std=none grpo.aggregation=constant_length",
    "dapo": "loss=clip loss.clip_low=0.2 loss.clip_high=0.28 kl=none grpo.aggregation=token_mean grpo.group_size=16 "
    "grpo.dead_groups=resampled grpo.overlong_buffer=16 grpo.entropy_coef=0",
    "gspo": "loss=gspo loss.clip_low=0.0003 loss.clip_high=0.0004 kl=none grpo.aggregation=sequence_mean "
    "grpo.minibatches=4",
    "cispo": "loss=cispo loss.clip_low=null loss.clip_high=4 kl=none grpo.aggregation=token_mean",
    "ppo": f"{CLIP} grpo=ppo grpo.inner_epochs=4 grpo.minibatches=4 baseline=gae baseline.gamma=1 baseline.lam=0.95 "
    "grpo.kl_type=k1 grpo.kl_placement=reward",
    "reinforce_pp": f"{CLIP} baseline=reinforce_pp grpo.kl_type=k1 grpo.kl_placement=reward",
    "trl_default": f"{CLIP} {ONE_UPDATE} kl=none grpo.group_size=8 grpo.aggregation=token_mean",
    "verl_default": "loss=dual_clip loss.dual_clip=3 kl=none grpo.aggregation=token_mean",
    "openrlhf_group_norm": f"{CLIP} baseline.std_eps=1e-09 grpo.aggregation=token_mean",
    # Recorded with the squared log-ratio as KL at 0.1 and at 0.02, which is k2 at 0.2 and at 0.04: see below.
    "overfit_r1": f"{LOG} optim.lr=1e-06 grpo.group_size=4 grpo.entropy_coef=0 grpo.advantage_clip=null "
    "grpo.kl_type=k2 kl=fixed kl.coef=0.2",
    "overfit_r2": f"{LOG} {FLOOR} {WARMUP} optim.lr=3e-06 grpo.group_size=8 grpo.entropy_coef=0.01 "
    "grpo.kl_type=k2 kl.coef=0.04",
    "overfit_r3": f"{LOG} {FLOOR} {WARMUP} optim.lr=3e-06 grpo.group_size=8 grpo.entropy_coef=0.01 "
    "grpo.kl_type=forward kl.coef=0.005",
    "overfit_r4": f"{LOG} {FLOOR} {WARMUP} optim.lr=2e-06 grpo.group_size=12 grpo.entropy_coef=0.005 "
    "grpo.kl_type=forward kl.coef=0.005 task=rookworld_p",
    "overfit_r4_repaired": f"{FLOOR} {WARMUP} optim.lr=5e-05 grpo.group_size=12 grpo.entropy_coef=0.005 "
    "grpo.kl_type=forward kl.coef=0.005 task=rookworld_p task.order=fixed grpo.temperature=1 grpo.top_p=null",
    "mini": f"{MINI} grpo.kl_type=forward baseline=gae baseline.gamma=1 baseline.lam=0.95 baseline.value_coef=0.1",
    "mini_legacy": f"{MINI} grpo.kl_type=legacy_sampled grpo.aggregation=sequence_sum baseline.std=batch",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_sets_what_its_source_says(name: str) -> None:
    found, facts = values(name), dict(fact.split("=", 1) for fact in FACTS[name].split())
    assert {key: found[key] for key in facts} == facts
    assert found["model"] == "rook_nano"  # whichever it was run on: that choice is the user's


def test_r3_is_r2_but_for_its_divergence() -> None:
    second, third = values("overfit_r2"), values("overfit_r3")
    differ = {key for key in second if second[key] != third[key]}
    assert differ - {"experiment", "task_name", "track.wandb.tags"} == {"grpo.kl_type", "kl.coef"}


@pytest.mark.parametrize(("name", "beta"), [("overfit_r1", 0.1), ("overfit_r2", 0.02)])
def test_the_squared_log_ratio_of_the_record_is_twice_k2(name: str, beta: float) -> None:
    x = torch.tensor([-0.7, 0.0, 0.2, 1.5], dtype=torch.float64)
    config = composed(name)
    penalty = kl.TYPES[config["grpo"]["kl_type"]].formula(x, torch.zeros_like(x), x)
    torch.testing.assert_close(config["kl"]["coef"] * penalty, beta * x.square())


def test_ppo_is_one_word_and_one_baseline_away() -> None:
    config = presets.compose("grpo=ppo", "baseline=gae")[0]
    build.check_config(config)
    assert config["grpo"]["inner_epochs"] > 1
    assert config["grpo"]["minibatches"] > 1
    assert config["grpo"]["advantage_clip"] is None
    assert nodes.make(config["baseline"]).needs_values


# ---- golden numbers through the recipes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("grpo", [1.3053097494, -0.7831858496, 0.2610619499, -0.7831858496]),
        ("trl_default", [1.3053097494, -0.7831858496, 0.2610619499, -0.7831858496]),
        ("verl_default", [1.3055796924, -0.7833478154, 0.2611159385, -0.7833478154]),
        ("openrlhf_group_norm", [1.3055824169, -0.7833494502, 0.2611164834, -0.7833494502]),
        ("dr_grpo", [0.625, -0.375, 0.125, -0.375]),
        ("overfit_r4", [1.3055824197, -0.7833494518, 0.2611164839, -0.7833494518]),
    ],
)
def test_golden_advantages_of_recipes(name: str, expected: list[float]) -> None:
    config = composed(name)
    found = nodes.make(config["baseline"])(FIXTURE_R, ["P"])
    limit = config["grpo"]["advantage_clip"]
    if limit is not None:
        found = found.clamp(-limit, limit)
    torch.testing.assert_close(found[0], torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("grpo", -0.0131059646567),
        ("dr_grpo", -0.0411974014989),
        ("dapo", -0.1378316847965),
        ("gspo", -0.00013125),
        ("trl_default", -0.1318316847965),
        ("verl_default", -0.1318316847965),
    ],
)
def test_golden_losses_of_recipes(name: str, expected: float) -> None:
    """Loss and aggregation together, on fixture T with its centred advantages."""
    config, batch = composed(name), fixture_t()
    weights = aggregation.BY_NAME[config["grpo"]["aggregation"]](batch.mask, max_new_tokens=MAX_NEW_TOKENS)
    found = total(nodes.make(config["loss"]), batch, weights.to(batch.old.dtype))
    assert float(found) == pytest.approx(expected, abs=1e-7)


# ---- docs/presets.md -----------------------------------------------------------------------------------------------


def test_the_table_of_presets_is_what_hydra_composes() -> None:
    found = presets.PAGE.read_text(encoding="utf-8")
    assert found == presets.page(), "docs/presets.md is stale: make docs"
    assert max(map(len, found.splitlines())) <= presets.WIDTH


def test_the_table_has_every_recipe_and_every_axis() -> None:
    page = presets.page()
    rows = {line.split("|")[1].strip(" `") for line in page.splitlines() if line.startswith("| `")}
    for path in (CONF / "experiment").glob("*.yaml"):
        assert f"[`{path.stem}`]" in page
        assert f"| `{path.stem}` " in page
    config = presets.compose()[0]
    assert {f"grpo.{key}" for key in config["grpo"] if key not in check.META_KEYS} <= rows
    assert {"loss", "baseline", "kl", "reference", "grpo", "optim", "reward", "model", "task"} <= rows


# ---- docs/algorithms.md --------------------------------------------------------------------------------------------

ALGORITHMS = (DOCS / "algorithms.md").read_text(encoding="utf-8")
ANCHORS = set(re.findall(r'<a id="([^"]+)"></a>', ALGORITHMS))


def words() -> list[str]:
    """Every word that selects a formula, as the anchor of what is said about it."""
    groups = ("loss", "kl", "baseline", "reference", "grpo", "reward", "optim")
    found = [f"{group}-{path.stem}" for group in groups for path in sorted((CONF / group).glob("*.yaml"))]
    found += [f"kl_type-{word}" for word in kl.TYPES] + [f"aggregation-{word}" for word in aggregation.BY_NAME]
    of_grpo = hints.type_hints(GRPO)
    found += [f"{key}-{w}" for key in sorted(of_grpo) for w in hints.literal_words(of_grpo[key])]
    found += [f"std-{word}" for word in hints.literal_words(hints.type_hints(baselines.GroupMean)["std"])]
    found += [f"credit-{word}" for word in hints.literal_words(hints.type_hints(baselines.Process)["credit"])]
    return found


@pytest.mark.parametrize("word", words())
def test_every_word_has_its_place_in_the_page_of_algorithms(word: str) -> None:
    assert word in ANCHORS
    assert f"`{word.split('-')[1]}`" in ALGORITHMS or f"={word.split('-')[1]}`" in ALGORITHMS


def test_the_page_of_algorithms_leads_where_it_says() -> None:
    headings = re.findall(r"^#+ (.*)$", ALGORITHMS, re.MULTILINE)
    known = ANCHORS | {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    for target in re.findall(r"\]\(([^)]+)\)", ALGORITHMS):
        assert target[1:] in known if target.startswith("#") else (DOCS / target).exists(), target
    assert max(map(len, ALGORITHMS.splitlines())) <= 118


def test_the_page_of_algorithms_says_why_there_is_no_mean_of_a_micro_batch() -> None:
    assert "**-0.1318**" in ALGORITHMS
    assert "**+0.0163**" in ALGORITHMS


@pytest.mark.parametrize(
    "overrides",
    [
        "loss=gspo baseline=gae",
        "loss=luspo baseline=reinforce_pp",
        "loss=gmpo baseline=gae",
        "loss=vespo baseline=reinforce_pp",
        "grpo.group_size=1 baseline=rloo",
        "grpo.group_size=1 baseline=none grpo.dead_groups=dropped",
        "baseline=ema grpo.dead_groups=dropped",
        "baseline=process reward=linear",
        "baseline=process loss=gspo",
        "baseline=reinforce_pp grpo.dead_groups=resampled",
        "grpo.temperature=0",
        "loss=two_sided loss.delta=1.1",
        "kl=adaptive kl.coef=1.0",
        "kl=ppo_rule kl.min_coef=0",
        "grpo.overlong_buffer=5",
        "reward=combined reward.weights.move=0 reward.weights.analysis=0",
        "grpo.minibatches=5",
    ],
)
def test_what_the_page_of_algorithms_calls_refused_is_refused(
    overrides: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rookexp.track.FanOut.log_completions", lambda *args: None)
    with pytest.raises(ConfigError):
        first_step(presets.compose("debug=fast", *overrides.split())[0], tmp_path)
