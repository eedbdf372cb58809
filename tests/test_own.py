"""docs/own.md, typed as it stands: files from its blocks, then its commands."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import pytest

from rookexp import train

FILE = re.compile(r"```(?:python|yaml)\n((?:# @package _global_\n)?# ([\w/]+\.(?:py|yaml)).*?)```", re.DOTALL)
COMMAND = re.compile(r"```\n(python -m rookexp\.train .*?)\n```")
ALGORITHM = "loss=held baseline=middle grpo.minibatches=2"
SHORT = ["debug=fast", "track=local", "hardware.threads=1", "hydra.run.dir=run"]
Typed = Callable[..., tuple[int | str | None, str, str]]


@pytest.fixture
def page(root: Path) -> str:
    return (root / "docs" / "own.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(page: str, tmp_path: Path) -> Path:
    for text, name in FILE.findall(page):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def in_a_shell(folder: Path, root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": f"{folder}:{root}", "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-m", "rookexp.train", *words], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.fixture
def typed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], quiet_logging: None
) -> Typed:
    """The same in this process, which is quicker: what a command returns, prints, and says on stderr."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)

    def typed(*words: str) -> tuple[int | str | None, str, str]:
        monkeypatch.setattr(sys, "argv", ["train", *words])
        status: int | str | None = 0
        try:
            train.main()
        except SystemExit as end:
            status = end.code
        finally:
            for name in ("my_rewards", "my_tasks", "my_algorithm"):
                sys.modules.pop(name, None)
        return status, *capfd.readouterr()

    return typed


def test_the_page_has_a_reward_a_task_an_algorithm_and_a_recipe(page: str, folder: Path) -> None:
    names = {"my_rewards.py", "options/reward/short.yaml", "my_tasks.py", "options/task/sums.yaml"}
    names |= {"my_algorithm.py", "options/loss/held.yaml", "options/baseline/middle.yaml"}
    names |= {"options/experiment/mine.yaml", "options/sweep/pulls.yaml"}
    assert {name for _, name in FILE.findall(page)} == names
    assert len(COMMAND.findall(page)) == 2
    assert "`task=sums reward=short`" in page
    assert f"`{ALGORITHM}`" in page


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_what_it_shows_trains(number: int, page: str, folder: Path, root: Path) -> None:
    reward, recipe = COMMAND.findall(page)
    task = "python -m rookexp.train --config-dir options task=sums reward=short"
    line = [reward, recipe, task, f"{reward} {ALGORITHM}"][number]
    done = in_a_shell(folder, root, *shlex.split(line)[3:], *SHORT)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(row) for row in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert 0 <= rows[-1]["reward/mean"] <= 1
    assert rows[-1]["eval/characters"] > 0


def test_its_sweep_runs(page: str, folder: Path, root: Path) -> None:
    line = "-m --config-dir options sweep=pulls"
    assert f"`{line}`" in page
    done = in_a_shell(folder, root, *line.split(), "sweep.study_name=pulls", *SHORT[:-1])
    assert done.returncode == 0, done.stderr
    assert (folder / "multirun" / "pulls" / "trials.csv").read_text(encoding="utf-8").count(",complete,") == 2


def test_a_schedule_of_ones_own_has_keys_of_its_own(page: str, typed: Typed, folder: Path) -> None:
    (folder / "my_schedule.py").write_text(
        "from rookexp.schedule import Schedule\n\n\nclass Low(Schedule):\n    def __init__(self, *, low):\n"
        "        self.low = low\n\n    def factor(self, step):\n        return self.low\n"
    )
    words = ["optim.schedule._target_=my_schedule.Low", "+optim.schedule.low=0.3"]
    status, _, errors = typed(*words, *SHORT)
    assert status != 0
    assert "optim.schedule.warmup_steps=0: no such key" in errors
    without = "~optim.schedule.warmup_steps"
    assert f"`'{without}'`" in page
    assert f"`{words[1]}`" in page
    status, _, errors = typed(*words, without, *SHORT)
    assert status == 0, errors


@pytest.mark.parametrize("algorithm", ["", ALGORITHM])
def test_its_reward_and_algorithm_pass_the_self_check(algorithm: str, page: str, folder: Path, root: Path) -> None:
    line, _ = COMMAND.findall(page)
    words = shlex.split(f"{line} {algorithm}")[3:]
    done = in_a_shell(folder, root, *words, "steps=1", *SHORT[1:], "grpo.prompts_per_step=2")
    assert done.returncode == 0, done.stderr
    assert "self-check: nothing found" in done.stdout


def test_a_dry_run_takes_what_it_shows(typed: Typed) -> None:
    status, said, errors = typed("--config-dir", "options", "task=sums", "reward=short", "dry_run=true", *SHORT)
    assert status == 0, errors
    assert re.search(r"ok +split +4 prompts trained, 2 evaluated", said), said


LACKS: dict[str, tuple[str, str, list[str]]] = {
    "score": ("my_rewards.py", r"error: reward=my_rewards\.Short: it has no method score", ["reward=short"]),
    "select": ("my_tasks.py", r"error: task=my_tasks\.Sums: it has no method select", ["task=sums"]),
    "prompts": ("my_tasks.py", r"error: task=my_tasks\.Sums: it has no method prompts", ["task=sums"]),
}


@pytest.mark.parametrize("method", LACKS)
def test_a_part_without_its_method_is_one_line(method: str, folder: Path, typed: Typed) -> None:
    file, said, words = LACKS[method]
    path: Any = folder / file
    path.write_text(path.read_text().replace(f"def {method}(", "def other("))
    for more in ([], ["dry_run=true"]):
        status, _, errors = typed("--config-dir", "options", *words, *more, *SHORT)
        assert status == 2
        assert re.fullmatch(said + r"[^\n]*docs/own\.md\n", errors), errors


@pytest.mark.parametrize(("group", "kind"), [("loss", "PolicyLoss"), ("baseline", "Baseline")])
def test_a_part_of_no_known_kind_is_one_line(group: str, kind: str, folder: Path, typed: Typed) -> None:
    path = folder / "my_algorithm.py"
    path.write_text(path.read_text().replace(f"({kind}):", ":"))
    status, _, errors = typed("--config-dir", "options", *ALGORITHM.split(), *SHORT)
    assert status == 2
    said = rf"error: {group}=my_algorithm\.\w+: it is no rookexp\.\w+\.{kind}; see docs/own\.md\n"
    assert re.fullmatch(said, errors), errors


UNFINISHED = {  # a part, the text of its class that is replaced, by what, and what is said of it
    "loss": (r"def __call__\(", "def called(", "it has no method __call__"),
    "baseline": (r"def forward\(", "def forwards(", "it has no method forward or advantages"),
    "kl": (r"def coefficient\(", "def coef(", "it has no method coefficient"),
    "kl flag": (r"can_be_nonzero", "can_be_zero", "it has no can_be_nonzero, True or False"),
    "kl init": (r"super\(\).__init__\(\)", "pass", r"its __init__ does not call super\(\).__init__\(\)"),
    "reference": (r"def update\(", "def updates(", "it has no method update"),
    "reference flag": (r"moves = True", "move = True", "it has no moves, True or False"),
}
FALSE = {  # what a part returns instead of `return`'s value in its class, and the one line
    "loss": ("logprobs.mean()", r"loss=Held: it gave a tensor of shape \[\]; wanted: a tensor of shape \[\d+\], .*"),
    "baseline": ("rewards.tolist()", r"baseline=Middle: forward gave list; wanted: a tensor of shape \[\d+, \d+\], .*"),
    "kl": ("-0.1", r"kl=Beta: coefficient gave -0\.1; wanted: a finite number >= 0"),
    "schedule": ("-1.0", r"optim\.schedule=Rate: factor\(0\) gave -1\.0; wanted: a finite number >= 0"),
}
MORE = """
from rookexp.coefficients import Coefficient
from rookexp.reference import Sync
from rookexp.schedule import Schedule


class Beta(Coefficient):
    can_be_nonzero = True

    def __init__(self):
        super().__init__()

    def coefficient(self):
        return 0.1


class Follow(Sync):
    moves = True

    def update(self, step, reference, policy):
        return False


class Rate(Schedule):
    def factor(self, step):
        return 1.0
"""
PARTS = ["loss=held", "baseline=middle", "kl=beta", "reference=follow", "optim.schedule._target_=my_algorithm.Rate"]


def written(folder: Path) -> Path:
    """The file of the page's algorithm, with the other parts that a user may write."""
    path = folder / "my_algorithm.py"
    path.write_text(path.read_text() + MORE)
    for group, name in (("kl", "Beta"), ("reference", "Follow")):
        option = folder / "options" / group / f"{name.lower()}.yaml"
        option.parent.mkdir(exist_ok=True)
        option.write_text(f"_target_: my_algorithm.{name}\n")
    return path


@pytest.mark.parametrize("which", UNFINISHED)
def test_a_part_that_is_unfinished_is_one_line(which: str, folder: Path, typed: Typed) -> None:
    path, (text, by, said) = written(folder), UNFINISHED[which]
    found, count = re.subn(text, by, path.read_text(), count=1)
    assert count == 1
    path.write_text(found)
    status, _, errors = typed("--config-dir", "options", *PARTS, *SHORT)
    assert status == 2
    group = which.split()[0]
    assert re.fullmatch(rf"error: {group}=my_algorithm\.\w+: {said}; see docs/own\.md\n", errors), errors


@pytest.mark.parametrize("group", FALSE)
def test_what_a_part_may_not_return_is_one_line(group: str, folder: Path, typed: Typed) -> None:
    """With the self-check off, which would otherwise train on it."""
    path, (gives, said) = written(folder), FALSE[group]
    name = {"loss": "Held", "baseline": "Middle", "kl": "Beta", "schedule": "Rate"}[group]
    found, count = re.subn(
        rf"(class {name}\(.*?\n        return )[^\n]*", rf"\g<1>{gives}", path.read_text(), flags=re.S
    )
    assert count == 1
    path.write_text(found)
    status, _, errors = typed("--config-dir", "options", *PARTS, "doctor=off", *SHORT)
    assert status == 2
    assert re.search(rf"^error: {said}\n\Z", errors, re.M), errors


@pytest.mark.parametrize("text", ["_target_: my_rewards.Short\n  limit: 3\n", "_target_ my_rewards.Short\nlimit: 3\n"])
def test_an_option_that_is_no_yaml_is_named(text: str, folder: Path, typed: Typed) -> None:
    (folder / "options" / "reward" / "short.yaml").write_text(text)
    status, _, errors = typed("--config-dir", "options", "reward=short", *SHORT)
    assert status == 2
    assert re.fullmatch(r"error: reward=short: [^\n]*short\.yaml[^\n]*line 2[^\n]*\n", errors), errors


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Without the tests' own check of shapes, which would speak first."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


WRONG = {
    "Scores([0.0] * len(texts), {})": "reward: the rewards of Scores: list; wanted: .*",
    "Scores(torch.zeros(len(texts), 1), {})": r"reward: the rewards of Scores: .* shape \[\d+, 1\]; wanted: .*",
    "Scores(torch.zeros(len(texts) + 1), {})": r"reward=Short: score gave \d+ for \d+ completions; wanted: .*",
    "Scores(torch.zeros(len(texts)), {'few': torch.zeros(2)})": "reward: part 'few' of Scores: .*; wanted: .*",
    "Scores(lengths / 9, None)": r"reward: the parts of Scores: NoneType; wanted: a mapping, as in \{\}",
    "Scores(lengths, {}, Stages([[1]] * len(texts), lengths[:, None]))": "reward: ends and rewards of Stages are .*",
    "Scores(lengths, {}, Stages(lengths[:, None] - torch.tensor([0, 1]), lengths[:, None] * torch.tensor([0, 1])))": (
        r"reward: the stages of completion 0 end at \[\d+, \d+\]; wanted: ascending"
    ),
    "Scores(lengths, {}, Stages(lengths[:, None] + 1, lengths[:, None]))": (
        r"reward=Short: the stages of completion 0 end at \[\d+\]; wanted: at most \d+, its number of characters"
    ),
    "lengths": r"reward=Short: score gave Tensor for \d+ completions; wanted: .*",
}


@pytest.mark.parametrize("given", WRONG)
def test_scores_of_another_shape_are_one_line(given: str, folder: Path, typed: Typed, unchecked: None) -> None:
    path = folder / "my_rewards.py"
    text, found = re.subn(r"return Scores.*", f"return {given}", path.read_text())
    assert found == 1
    path.write_text(text.replace("import Scores", "import Scores, Stages"))
    status, _, errors = typed("--config-dir", "options", "reward=short", *SHORT)
    assert status == 2
    assert re.fullmatch(f"error: {WRONG[given]}\n", errors), errors


@pytest.mark.parametrize(
    ("method", "gives", "said"),
    [
        ("select", "(self.prompt(i, i) for i in range(2))", "a generator"),
        ("select", "None", "nothing"),
        ("prompts", "()", "nothing"),
        ("prompts", "['1+1=']", "a list with a str"),
    ],
)
def test_other_than_prompts_is_one_line(method: str, gives: str, said: str, folder: Path, typed: Typed) -> None:
    path = folder / "my_tasks.py"
    text, found = re.subn(rf"(def {method}\(.*\n +return) .*", rf"\1 {gives}", path.read_text())
    assert found == 1
    path.write_text(text)
    status, _, errors = typed("--config-dir", "options", "task=sums", "reward=short", *SHORT)
    assert status == 2
    assert re.fullmatch(rf"error: task: {method} gave {said}; wanted: [^\n]*docs/own\.md\n", errors), errors
