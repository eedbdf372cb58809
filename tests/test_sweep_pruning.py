"""Runs of a sweep that are ended early."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hydra
import optuna
import pytest
from omegaconf import OmegaConf
from sweeping import Sweeps, started

from rookexp.config.composing import conf_dir, version_base
from rookexp.errors import RunPruned
from rookexp.sweep import job, settings
from rookexp.sweep.settings import Settings


@pytest.mark.hydra
def test_a_hopeless_run_is_pruned_at_a_step_and_keeps_its_state(sweep: Sweeps) -> None:
    pruner = "pruner=median sweep.pruner.n_startup_trials=2 sweep.pruner.n_warmup_steps=2"
    sweep(f"optim.lr=0.3,0.2,0.01,0.4 {pruner}")
    assert sweep.column("state") == ["complete", "complete", "pruned", "complete"]
    assert sweep.column("reason")[2] == "pruned by MedianPruner after step 2, at 0.02"
    summary = json.loads((sweep.folder / "2" / "summary.json").read_text(encoding="utf-8"))
    assert summary == {"status": "pruned", "reason": "pruned by MedianPruner after step 2, at 0.02"}
    assert (sweep.folder / "2" / "state").read_text(encoding="utf-8") == "2"
    assert sweep(f"optim.lr=0.3,0.2,0.01,0.4 {pruner}") == [], "a pruned point is done"


def test_hyperband_ends_the_worse_of_a_bracket(sweep: Sweeps) -> None:
    words = "sweep.pruner.min_resource=1 sweep.pruner.max_resource=3"
    sweep(f"optim.lr=0.6,0.5,0.4,0.3,0.2,0.1 sweep.n_trials=null pruner=hyperband {words}")
    states = sweep.column("state")
    assert states[0] == "complete", "the best point goes to its end"
    assert "pruned" in states
    assert all(reason.startswith("pruned by HyperbandPruner after step") for reason in sweep.column("reason") if reason)


def test_a_point_that_is_computed_to_its_end_keeps_its_value(sweep: Sweeps) -> None:
    pruner = "pruner=median sweep.pruner.n_startup_trials=1 sweep.pruner.n_min_trials=1 sweep.pruner.n_warmup_steps=3"
    sweep(f"optim.lr=0.3,0.2,0.1 {pruner}")
    assert sweep.column("state") == ["complete"] * 3
    sweep("optim.lr=0.3,0.1 sweep.seeds=4 pruner=wilcoxon sweep.study_name=seeds")
    assert [path.name for path in sorted(sweep.folder.with_name("seeds").glob("[0-9]*"))] == list("01234567")
    trials = (sweep.folder.with_name("seeds") / "trials.csv").read_text(encoding="utf-8")
    assert "pruned" not in trials


def test_a_pruned_seed_spares_the_others(sweep: Sweeps) -> None:
    pruner = "pruner=median sweep.pruner.n_startup_trials=2 sweep.pruner.n_warmup_steps=1"
    sweep(f"optim.lr=0.3,0.2,0.01 sweep.seeds=3 {pruner}")
    assert started(sweep.log()) == [0, 1, 2, 3, 4, 5, 6]
    assert sweep.column("state")[2] == "pruned"


def test_the_best_value_of_an_earlier_seed_speaks_for_no_later_one(tmp_path: Path) -> None:
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.MedianPruner(n_startup_trials=1))
    for values in ((0.1, 0.2, 0.2, 0.3, 0.4, 0.5), (0.9, 0.9, 0.9)):  # two seeds of three steps; the first of another
        running = study.ask()
        for step, value in enumerate(values, 1):
            running.report(value, step)
        if len(values) == 6:
            study.tell(running, 0.5)
    pruner: dict[str, Any] = {"_target_": "optuna.pruners.MedianPruner"}
    note: dict[str, Any] = {"place": 1, "prune_on": "step", "trial_id": 1, "pruner": pruner}
    trial = job.Trial(note, tmp_path)
    trial._open = study
    ends: list[RunPruned] = []
    watched = trial.watching(lambda _: {job.GREEDY: 0.35}, 3, ends.append)
    watched(1)
    assert ends == [], "0.35, where the other point was at 0.3"
    watched(2)
    assert [str(end) for end in ends] == ["pruned by MedianPruner after step 2, at 0.35"], "beside 0.4"
    for spared in ({"pruner": {**pruner, "n_warmup_steps": 3}}, {"seeds": 2}):
        trial.note = note | spared
        watched(2 if "pruner" in spared else 3)
    assert len(ends) == 1, "each seed has its first steps, and a point that is computed to its end its value"


def composed(words: str) -> Settings:
    """The settings of a sweep that is typed so."""
    with hydra.initialize_config_dir(str(conf_dir()), **version_base()):
        overrides = words.replace("sweep.", "hydra.sweeper.").split()
        node = hydra.compose("config", overrides, return_hydra_config=True).hydra.sweeper
    node.study_name = "a"
    return settings.settings(OmegaConf.to_container(node))


def test_nothing_is_pruned_unless_asked(tmp_path: Path) -> None:
    how = composed("sweep=grid")
    assert not how.prunes
    assert not prunes(how, tmp_path, 9, 1, 45, 1)


def prunes(how: Settings, folder: Path, points: int, seeds: int, steps: int, every: int) -> bool:
    """Whether the pruner ends one of some points, each worse than all before it."""
    study = optuna.create_study(direction="maximize", pruner=how.make_pruner(), study_name="a")
    for point in range(points):
        running = study.ask()
        for place in range(seeds):
            note = {"place": place, "seeds": seeds, "seed": place, "trial_id": point, "objective": "x"}
            trial = job.Trial(note | {"pruner": how.pruner, "prune_on": how.prune_on}, folder)
            trial._open = study
            worth = -point * (1 + place / 10)
            ends: list[RunPruned] = []
            watched = trial.watching(lambda _, worth=worth: {job.GREEDY: worth}, steps, ends.append)  # type: ignore[misc]
            for step in sorted({*range(0, steps, every), steps}):
                watched(step)
            trial.finished([{"step": steps, "x": worth}])
            if trial.pruned():
                return True
        study.tell(running, -point)
    return False


@pytest.mark.parametrize(
    ("pruner", "sizes"),
    [
        ("median", [(5, 1, 12, 1), (4, 1, 12, 1), (5, 1, 10, 1), (5, 1, 11, 1), (5, 2, 10, 1), (5, 2, 9, 1)]),
        ("median", [(5, 1, 15, 5), (5, 1, 15, 8), (5, 1, 17, 8), (5, 1, 12, 20), (5, 2, 12, 20)]),
        ("hyperband", [(9, 1, 45, 1), (9, 1, 6, 1), (9, 1, 5, 1), (9, 1, 9, 9)]),
        ("hyperband", [(9, 2, 5, 1), (9, 2, 3, 1), (9, 2, 2, 1)]),
        ("wilcoxon", [(2, 8, 1, 1), (2, 5, 1, 1), (2, 4, 1, 1), (2, 1, 1, 1)]),
        ("median sweep.prune_on=seed", [(5, 12, 1, 1), (5, 11, 1, 1), (5, 1, 20, 1)]),
        ("median sweep.prune_on=seed sweep.pruner.n_warmup_steps=0", [(5, 2, 1, 1), (5, 1, 1, 1)]),
        ("wilcoxon sweep.pruner.p_threshold=0.125", [(2, 5, 1, 1), (2, 4, 1, 1)]),
        ("wilcoxon sweep.pruner.p_threshold=0.3", [(2, 4, 1, 1), (2, 3, 1, 1)]),
    ],
)  # fmt: skip
def test_a_pruner_that_can_end_nothing_says_so_and_no_other_does(
    pruner: str, sizes: list[tuple[int, int, int, int]], tmp_path: Path
) -> None:
    how = composed(f"sweep=grid pruner={pruner}")
    for points, seeds, steps, every in sizes:
        why = how.never_prunes(points, seeds, [(steps, every)])
        assert (why is None) == prunes(how, tmp_path, points, seeds, steps, every), (points, seeds, steps, every, why)


def test_wilcoxon_gives_a_point_up_after_some_seeds(sweep: Sweeps) -> None:
    sweep("optim.lr=0.3,0.1 sweep.seeds=8 pruner=wilcoxon")
    assert sweep.column("state") == ["complete", "pruned"]
    count = len(started(sweep.log())) - 8
    assert 3 <= count < 8
    assert sweep.column("reason")[1].startswith(f"pruned by WilcoxonPruner after seed {count - 1}")
