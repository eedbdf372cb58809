"""docs/study.py: what it runs composes, and what it writes says what the runs logged."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import hydra
import numpy as np
import pytest

from rookexp import build
from rookexp.config import composing, door

DOCS = composing.PACKAGE.parent / "docs"
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="an installed package has no docs")


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("study", DOCS / "study.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RUNS", tmp_path)
    monkeypatch.setattr(module, "SEEDS", (0, 1, 2))
    return module


def write(study: ModuleType, variant: str, gains: list[float], kl: list[float]) -> None:
    """Finished runs of 30 steps, whose reward rises by a seed's gain and whose KL ends at its value."""
    for seed, (gain, nats) in enumerate(zip(gains, kl, strict=True)):
        where = study.folder(variant, seed)
        where.mkdir(parents=True)
        rows = [{"step": 0, "eval/reward": -0.2}]
        rows += [
            {
                "step": step,
                "eval/reward": -0.2 + gain * step / 30,
                "kl/forward": nats,
            }
            for step in range(1, 31)
        ]
        (where / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (where / "config.yaml").write_text(f"seed: {seed}\n")
        (where / "summary.json").write_text('{"status": "finished"}')
        (where / "run.json").write_text('{"packages": {"rookexp": "0.1.0"}, "git": {"revision": "abc"}}')


def test_every_run_is_one_that_the_door_accepts(study: ModuleType) -> None:
    door.register_resolvers()
    seen = set()
    for variants in study.FAMILIES.values():
        for overrides in variants.values():
            typed = door.arrange(["experiment=study", *overrides], "config")
            with hydra.initialize_config_dir(str(composing.conf_dir()), **composing.version_base()):
                config = door.plain(hydra.compose("config", typed))
            build.check_config(config)
            seen.add(json.dumps(config))
    assert len(seen) == 10


def test_the_table_has_means_intervals_and_differences_paired_by_seed(study: ModuleType) -> None:
    write(study, "GRPO", [0.5, 0.6, 0.7], [0.1, 0.1, 0.1])
    write(study, "RLOO", [0.8, 0.91, 1.0], [0.1, 0.1, 0.1])
    write(study, "REINFORCE", [0.7, 0.3, 0.8], [0.3, 0.31, 0.32])
    names = ("GRPO", "RLOO", "REINFORCE")
    lines = study.table("algorithm", {name: study.ALGORITHMS[name] for name in names})
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| GRPO", "| RLOO", "| REINFORCE"]
    assert "0.600 [0.352, 0.848]" in lines[2]  # 0.1 / sqrt(3) times 4.303
    assert "+0.303 [+0.289, +0.318]: higher" in lines[3]
    assert "+0.000: identical" in lines[3]
    assert ": within noise" in lines[4].split(" | ")[2]
    assert ": higher" in lines[4].split(" | ")[4]


def test_the_figure_is_drawn_from_all_runs_and_finished_ones_are_not_run_again(
    study: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variants = [(v, o) for family in study.FAMILIES.values() for v, o in family.items()]
    for i, (variant, overrides) in enumerate(variants):
        write(study, variant, [0.1 * i, 0.2, 0.3], [0.05, 0.06, 0.07])
        monkeypatch.setattr(study.subprocess, "run", lambda *_, **__: pytest.fail("trained again"))
        assert study.train(overrides, variant, 0, None).endswith("there already")
    study.draw(tmp_path / "study.png")
    assert (tmp_path / "study.png").read_bytes().startswith(b"\x89PNG")
    steps, values = study.curves("k3", "kl/forward")
    assert values.shape == (3, 30)
    assert np.array_equal(steps, np.arange(1, 31))
    page = study.page()
    assert page.count("| GRPO |") == 1
    assert "Runs: rookexp 0.1.0, git abc.\n" in page
    assert all(f"| {variant} |" in page for variant, _ in variants)


def test_a_stopped_run_goes_on_and_half_a_run_is_not_drawn(
    study: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for family in study.FAMILIES.values():
        for variant in family:
            write(study, variant, [0.1, 0.2, 0.3], [0.05, 0.06, 0.07])
    half, absent = study.folder("PPO", 2), study.folder("k1", 0)
    (half / "summary.json").write_text('{"status": "interrupted"}')
    shutil.rmtree(absent)
    monkeypatch.setattr(study, "FIGURE", tmp_path / "study.png")
    monkeypatch.setattr(study, "TABLE", tmp_path / "study.md")
    monkeypatch.setattr("sys.argv", ["study.py"])
    typed = []

    def failing(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        typed.append(command[3:])
        return subprocess.CompletedProcess(command, 1, "", "error: no space left")

    monkeypatch.setattr(study.subprocess, "run", failing)
    with pytest.raises(SystemExit, match="nothing is drawn, these are not finished: k1, seed 0; PPO, seed 2"):
        study.main()
    assert typed[0][:2] == ["experiment=study", "grpo.kl_type=k1"]
    assert typed[1:] == [[f"resume='{half}'"]]
    assert "PPO, seed 2: FAILED: error: no space left" in capsys.readouterr().out
    assert not study.FIGURE.exists()
    assert not study.TABLE.exists()

    (half / "summary.json").write_text('{"status": "finished"}')
    write(study, "k1", [0.1], [0.05])
    study.main()
    assert study.TABLE.read_text().startswith("# The study's table")
    assert study.FIGURE.exists()
