"""What an install and a newcomer meet: metadata, pins, the Makefile, and the commands of README."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import hydra
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rookexp import dry_run
from rookexp.config import composing, door
from rookexp.tasks import released

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings it where the standard library has none
    import tomli as tomllib


@pytest.fixture(scope="module")
def project(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def pins(root: Path) -> dict[str, Requirement]:
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(r.name): r for r in requirements}


def test_every_pin_is_exact_and_of_a_public_version(root: Path) -> None:
    for name, pin in pins(root).items():
        (specifier,) = pin.specifier
        assert specifier.operator == "==", name
        assert "+" not in specifier.version, name
    assert str(pins(root)["torch"].specifier) == "==2.13.0"


def test_every_dependency_is_pinned_within_its_range(root: Path, project: dict[str, Any]) -> None:
    extras = project["optional-dependencies"]
    for text in [*project["dependencies"], *extras["test"], *extras["dev"]]:
        requirement = Requirement(text)
        if requirement.name == project["name"]:
            assert requirement.extras <= set(extras)
            continue
        (pin,) = pins(root)[canonicalize_name(requirement.name)].specifier
        assert pin.version in requirement.specifier, text


def test_every_console_script_has_its_door(root: Path, project: dict[str, Any]) -> None:
    for name, target in project["scripts"].items():
        module, function = target.split(":")
        path = root / f"{module.replace('.', '/')}.py"
        assert name == f"rookexp-{path.stem}"
        assert f"\ndef {function}() -> None:" in path.read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
def test_make_lists_every_target_and_leaves_another_python_alone(root: Path) -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert phony
    targets = phony[1].split()
    run = {"cwd": root, "capture_output": True, "text": True, "check": True}
    listed = re.findall(r"^  make ([a-z-]+) +\S", subprocess.run(["make"], **run).stdout, re.MULTILINE)
    assert sorted(listed) == sorted(targets)
    plan = subprocess.run(["make", "-n", "install", "train", "test", "PY=some-python"], **run).stdout
    assert "venv" not in plan
    assert "some-python -m rookexp.train" in plan


# For a dry run that judges the gold answers of 256 positions.
QUICK_ENGINE = ["reward.rewards.P.engine.nodes=200", "reward.rewards.P.engine.depth=null"]
PAGES = ("README.md", *(f"docs/{path.name}" for path in sorted((composing.PACKAGE.parent / "docs").glob("*.md"))))


def commands_of(page: Path) -> list[list[str]]:
    """The words of each command on a page: lines of bash blocks, and `make` or `python -m` between backticks."""
    text = page.read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    lines += re.findall(r"`((?:make|python -m) [^`]*)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [shlex.split(line.replace("\n", " "), comments=True) for line in lines]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_only_what_there_is(root: Path, page: str) -> None:
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    door.register_resolvers()
    for words in filter(None, commands_of(root / page)):
        if words[0] == "make" and len(words) > 1:
            assert f"\n{words[1]}:" in makefile, words
        if words[:2] == ["python", "-m"] and words[2].startswith("rookexp"):
            assert (root / f"{words[2].replace('.', '/')}.py").is_file(), words
        if words[:3] == ["python", "-m", "rookexp.train"] and "NAME" not in " ".join(words):
            typed = [w for w in words[3:] if not w.startswith("resume=")]  # of a folder that stands for the reader's
            arranged = door.arrange(typed, "config")
            with hydra.initialize_config_dir(str(root / "conf"), **composing.version_base()):
                hydra.compose("config", [w for w in arranged if "=" in w and "," not in w])


def trained(page: Path) -> list[list[str]]:
    """What a page types after `rookexp.train` for a run that needs neither the reader's folder nor a released model."""
    typed = [words[3:] for words in commands_of(page) if words[:3] == ["python", "-m", "rookexp.train"]]
    beyond = re.compile(r"^-|=.*\b[A-Z]+$|rookworld_124m|^debug=")  # debug cuts answers short
    return [words for words in typed if words and not any(beyond.search(word) for word in words)]


def test_what_readme_trains_passes_the_dry_run(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    no_engine = shutil.which("stockfish", path=f"{os.environ['PATH']}:/usr/games") is None
    shown = trained(root / "README.md")
    assert len(shown) > 3
    door.register_resolvers()
    for words in shown:
        quick = QUICK_ENGINE if any("engine" in word for word in words) else []
        if quick and no_engine:
            continue
        arranged = door.arrange([*words, *quick], "config")
        with hydra.initialize_config_dir(str(root / "conf"), **composing.version_base()):
            config = hydra.compose("config", arranged)
        dry_run.run(door.plain(config))


def test_readme_shows_documents_as_the_data_has_them(root: Path) -> None:
    text = (root / "README.md").read_text(encoding="utf-8")
    policy, environment = re.findall(r"^[PA]: .*", text, re.MULTILINE)
    row, label = released.row_of(policy)
    assert label == row.moves[0]
    assert f"`{row.moves[-1]}` above" in text
    assert released.row_of(environment)[1] == "e2e4"


def test_readme_lists_every_option_of_a_group(root: Path) -> None:
    rows = re.findall(r"^\| `(\w+)` \| (`.*?) \|", (root / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    listed = {group: options for group, options in rows if (root / "conf" / group).is_dir() and "..." not in options}
    assert {"model", "task", "loss", "baseline", "optim"} <= listed.keys()
    for group, options in listed.items():
        there = {path.stem for path in (root / "conf" / group).glob("*.yaml")}
        words = re.findall(r"`(\w+)`", options)
        assert {f"adamw{word}" if word.startswith("_") else word for word in words} == there, group


def test_readme_shows_how_to_train(root: Path) -> None:
    commands = commands_of(root / "README.md")
    assert ["make", "train"] in commands
    assert sum(words[:3] == ["python", "-m", "rookexp.train"] for words in commands) > 3
