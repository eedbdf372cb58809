"""The bench: the same work for both sides, phases that add up, settings refused in one line, a report that grows."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import hydra
import pytest
import torch

from rookexp import bench, build, core_wait, generate, policies
from rookexp.benchmark import default_run, ours, products, report, roofline, settings, tables, theirs, workload
from rookexp.benchmark.roofline import Machine
from rookexp.benchmark.runner import Runner, shape
from rookexp.benchmark.sides import Side
from rookexp.benchmark.turns import PHASES, Stopwatch
from rookexp.config import composing, door
from rookexp.draw import Sampling
from rookexp.errors import ConfigError, DataError, RookexpError
from rookexp.models.gpt2 import GPT2

SMALL = (
    "sizes=[tiny]", "warmups=0", "repeats=2", "batches=[4]", "scaling_rows=[4,8]", "scaling_tokens=[3,5]",
    "prompt_tokens=[3,9]", "grpo.prompts_per_step=2", "grpo.group_size=4", "grpo.max_new_tokens=5", "hardware=cpu",
    "hardware.threads=1", "hardware.precision=fp32", "report=null",
)  # fmt: skip
MACHINE = Machine(
    name="a CPU", sets=("avx2",), cores=2, threads=2, memory_gib=8.0, precision="fp32",
    copy_gb_s=10.0, weights_gb_s=8.0, gflop_s={"fp32": 50.0},
)  # fmt: skip


def composed(*overrides: str) -> dict[str, Any]:
    door.register_resolvers()
    with hydra.initialize_config_dir(str(composing.conf_dir()), **composing.version_base()):
        return door.plain(hydra.compose("bench", [*SMALL, *overrides]))


def made(folder: Path, **changes: Any) -> list[int]:
    arguments: dict[str, Any] = {"prompts": 4, "lengths": (3, 9), "end_rate": 0.0, "seed": 0}
    return workload.make(folder, "tiny", **arguments | changes)


# ---- the work -------------------------------------------------------------------------------------------------------


def test_prompts_are_ragged_within_their_bounds_and_the_same_for_the_same_seed() -> None:
    texts = workload.ragged_texts(400, (31, 108), 97, seed=0)
    lengths = [len(text.split()) for text in texts]
    assert min(lengths) >= 31
    assert max(lengths) <= 108
    assert 57 < sum(lengths) / len(lengths) < 63
    assert texts == workload.ragged_texts(400, (31, 108), 97, seed=0)
    assert texts != workload.ragged_texts(400, (31, 108), 97, seed=1)


@pytest.mark.parametrize(("end_rate", "shortest", "longest"), [(0.0, 40, 40), (0.2, 4, 6)])
def test_completions_end_as_often_as_was_asked(end_rate: float, shortest: int, longest: int, tmp_path: Path) -> None:
    lengths = made(tmp_path / "model", end_rate=end_rate)
    policy = policies.load(tmp_path / "model")
    prompts = [policy.tokenizer.encode(text) for text in workload.read_prompts(tmp_path / "model")]
    assert [len(ids) for ids in prompts] == lengths
    sampling = Sampling(temperature=1.0, top_k=None, top_p=None, max_new_tokens=40)
    samples = generate.sample(policy.model, prompts, range(400), sampling, policy.tokenizer.eot_id)
    assert shortest <= samples.mask.sum() / 400 <= longest
    assert samples.truncated.all() == (end_rate == 0)


def test_both_sides_rewards_are_the_share_of_even_words() -> None:
    assert workload.worth("w2 w13 w40 w7") == 0.5
    assert workload.worth("") == 0
    assert workload.EvenShare().score((), ["w2 w13", "w8"]).rewards.tolist() == [0.5, 1.0]


def test_the_prompts_of_a_step_follow_those_of_the_last_and_begin_again(tmp_path: Path) -> None:
    made(tmp_path / "model")
    tokenizer = policies.load(tmp_path / "model").tokenizer
    asked = workload.Words(folder=str(tmp_path / "model"), prompts=2, tokenizer=tokenizer)
    steps = [[prompt.text for prompt in asked.select(step)] for step in range(3)]
    assert steps[0] + steps[1] == workload.read_prompts(tmp_path / "model")
    assert steps[2] == steps[0]


# ---- settings -------------------------------------------------------------------------------------------------------


def test_our_side_gets_a_training_that_the_build_takes(tmp_path: Path) -> None:
    config = composed("kl.coef=0.5", "grpo.temperature=0.7")
    assert settings.checked(config).repeats == 2
    training = settings.training(config, tmp_path, steps=3, prompts_per_step=7)
    assert build.check_config(training).steps == 3
    assert (training["task"]["prompts"], training["kl"]["coef"], training["grpo"]["temperature"]) == (7, 0.5, 0.7)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("sizes=[2m]", "sizes=['2m']: allowed: a list of length >= 1, each tiny, 1m, nano, 4m, 124m"),
        ("repeats=0", "repeats=0: allowed: an integer >= 1"),
        ("+repeat=3", "repeat=3: no such key or group"),
        ("prompt_tokens=[9,3]", "prompt_tokens=[9, 3]: allowed: the shorter number first"),
        (
            "prompt_tokens=[1000,1020]",
            "prompt_tokens=[1000, 1020]: with grpo.max_new_tokens=5 up to 1025 tokens; allowed: at most 1024 together",
        ),
        ("grpo.max_new_tokens=1016", "prompt_tokens=[3, 9]: with grpo.max_new_tokens=1016 up to 1025 tokens; allowed:"),
        ("scaling_tokens=[3,1016]", "prompt_tokens=[3, 9]: with scaling_tokens=1016 up to 1025 tokens; allowed: at"),
        ("grpo.group_size=1", "grpo.group_size=1: TRL's side needs two; allowed: an integer >= 2, or against=[]"),
        ("scaling_rows=[6]", "scaling_rows=[6]: allowed: multiples of grpo.group_size=4"),
        (
            "grpo.kl_type=forward",
            "grpo.kl_type=forward: TRL's side has no such setting; allowed: ratio_k3, or against=[]",
        ),
        ("optim.betas=[0.9]", "optim.betas=[0.9]: allowed: a list"),
        (f"report={__file__}/x.md", f"report={__file__}/x.md: cannot be written ("),
        ("report=/", "Is a directory: '/'); allowed: a file in a folder of yours, or null"),
        ("report='~nobody-here/x.md'", "report=~nobody-here/x.md: cannot be written (Could not determine home"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(override: str, line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        settings.checked(composed(override))
    assert line in str(refused.value)
    if "or against=[]" in line:
        assert settings.checked(composed(override, "against=[]", "parts=[step]")).against == []


def test_looking_whether_a_report_can_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    settings.checked(composed(f"report={tmp_path}/new/folder/page.md", "against=[]", "parts=[step]"))
    assert not list(tmp_path.iterdir())
    (tmp_path / "link.md").symlink_to("new.md")
    settings.checked(composed(f"report={tmp_path}/link.md", "against=[]", "parts=[step]"))
    assert [path.name for path in tmp_path.iterdir()] == ["link.md"]
    (tmp_path / "page.md").write_text("mine")
    settings.checked(composed(f"report={tmp_path}/page.md", "against=[]", "parts=[step]"))
    assert (tmp_path / "page.md").read_text() == "mine"


def test_a_missing_package_is_named_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "trl" else object())
    with pytest.raises(ConfigError, match=r"^trl: not installed; type `pip install 'rookexp\[bench\]'`"):
        settings.checked(composed())
    assert settings.checked(composed("parts=[step]", "against=[]")).parts == ["step"]


def test_lengths_up_to_all_positions_are_taken_and_those_of_a_part_that_is_not_measured() -> None:
    fits = composed("prompt_tokens=[3,1019]")  # and 5 new tokens
    assert settings.checked(fits).prompt_tokens == [3, 1019]
    for parts, unread in (("scaling", "grpo.max_new_tokens=2000"), ("step", "scaling_tokens=[2000]")):
        assert settings.checked(composed(f"parts=[{parts}]", "against=[]", unread)).parts == [parts]
    assert settings.checked(composed("parts=[train]", "prompt_tokens=[9,2000]")).parts == ["train"]


@pytest.mark.parametrize(("rows", "expected"), [(1, (1, 1)), (16, (4, 4)), (64, (8, 8)), (32, (8, 4)), (7, (7, 1))])
def test_a_batch_is_made_of_groups(rows: int, expected: tuple[int, int]) -> None:
    assert shape(rows) == expected


# ---- figures --------------------------------------------------------------------------------------------------------


def test_a_phase_inside_another_is_taken_off_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 3.0, 6.0, 10.0, 15.0])
    watch = Stopwatch("cpu")
    monkeypatch.setattr(watch, "_now", lambda: next(clock))
    watch.start()
    with watch.phase("loss"), watch.phase("reference"):  # 1 to 10, and of it 3 to 6
        pass
    found = watch.stop()
    assert (found["seconds"], found["loss"], found["reference"], found["generate"]) == (15.0, 6.0, 3.0, 0.0)


def test_the_floor_counts_the_models_matrices_and_every_prompt_once() -> None:
    config = workload.config_of("tiny")
    matrices = [p.numel() for name, p in GPT2(config).named_parameters() if p.dim() == 2 and "blocks" in name]
    assert roofline.block_weights(config) == sum(matrices)
    head = config.n_embd * config.vocab_size
    expected = 2 * (sum(matrices) * (11 + 30) + head * 30)
    work = {"prompt_tokens": 11, "completion_tokens": 30}
    assert roofline.step_flop(config, **work, reference=False) == 4 * expected
    assert roofline.step_flop(config, **work, reference=True) == 5 * expected
    one, many = (roofline.decode_floor_s(config, MACHINE, rows=n, tokens=3, precision="fp32") for n in (1, 1000))
    assert one == pytest.approx(3 * 4 * (sum(matrices) + head) / 10e9)  # bound by reading
    assert many == pytest.approx(3 * 2 * 1000 * (sum(matrices) + head) / 50e9)  # by arithmetic


def test_ratios_are_of_medians_within_a_pair() -> None:
    sides = [Side("rookexp", name, Path()) for name in ("rookexp", "TRL, default")]
    seconds = [[1.0, 9.0, 2.0], [8.0, 7.0, 90.0]]
    pairs = [
        (side, [{"seconds": s, "peak_bytes": peak} for s in turns])
        for side, turns, peak in zip(sides, seconds, (100, 400), strict=True)
    ]
    expected = "- against TRL, default: **4.00x** as fast, 0.25x the peak memory"
    sides[1].about = {"precision": "fp32"}
    assert tables.ratio_lines(pairs, MACHINE) == [expected]
    sides[1].about = {"precision": "bf16"}  # which MACHINE emulates
    assert tables.ratio_lines(pairs, MACHINE)[0].startswith(f"{expected}; it computes in bf16, which is slow")


def test_figures_of_a_busy_machine_are_marked_and_those_of_a_quiet_one_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = {"rookexp": [0.0, 0.9, 0.0], "TRL": [0.9, 0.5, 0.4]}

    def turns(sides: list[Side], **_: Any) -> list[list[dict[str, Any]]]:
        return [[{"core_wait": share} for share in shares[side.label]] for side in sides]

    monkeypatch.setattr("rookexp.benchmark.runner.interleaved", turns)
    config, said = composed("against=[]", "parts=[step]"), [""]
    runner = Runner(settings.checked(config), config, tmp_path, said.append)
    ours, theirs = (Side(kind, kind, tmp_path) for kind in shares)
    runner.take_turns([ours])
    runner.show("### Quiet")
    runner.take_turns([ours, theirs])
    runner.show("### Busy")
    runner.show("### Quiet again")
    busy = (
        "### Busy\n\n**The machine was busy**: for 50% of the time in which it could compute, a side waited for a free"
    )
    quiet, marked, again = runner.parts
    assert (quiet, again) == ("### Quiet", "### Quiet again")
    assert marked.startswith(busy)
    monkeypatch.setattr("rookexp.benchmark.runner.interleaved", lambda sides, **_: [[{}] for _ in sides])
    runner.take_turns([ours])  # on a system that does not tell
    runner.show("### Unknown")
    assert runner.parts[-1] == "### Unknown"


def test_products_alone_bound_what_a_step_can_gain() -> None:
    sides = [Side(kind, kind, Path()) for kind in ("rookexp", "TRL")]
    pairs = [(side, [{"seconds": s}]) for side, s in zip(sides, (2.0, 6.0), strict=True)]
    expected = "- its matrix products alone, one after the other: 0.500 (0.500..0.500) s, 25% of our step"
    assert tables.product_lines(pairs, [[{"seconds": 0.5}]]) == [f"{expected}; at most 12.0x as fast as TRL with them"]
    assert tables.product_lines(pairs[:1], [[{"seconds": 0.5}]]) == [expected]


def test_a_report_is_added_to_and_names_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "sizes=[1m]", "track.token=hush"])
    file = tmp_path / "docs" / "benchmarks.md"
    for _ in range(2):
        report.add(file, report.heading(MACHINE) + "\n")
    text = file.read_text(encoding="utf-8")
    assert text.count("# Benchmarks\n") == 1
    assert text.count("\n## ") == 2
    assert text.count("- command: `python -m rookexp.bench 'sizes=[1m]'`\n") == 2
    assert f"torch {torch.__version__}" in text
    assert "hush" not in text


def test_the_door_adds_at_the_end_and_an_interrupted_run_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = composed(f"report={tmp_path}/page.md", "against=[]", "parts=[step]")
    monkeypatch.setattr(Runner, "run", lambda self: "## a section\n")
    bench.bench(config, tmp_path)
    bench.bench(config, tmp_path)

    def interrupted(self: Runner) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(Runner, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.bench(config, tmp_path)
    assert "nothing was added" in capsys.readouterr().out
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(Runner, "run", lambda self: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(SystemExit) as ended:
        bench.bench(config, tmp_path)
    assert ended.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before
    assert "nothing was added" in capsys.readouterr().out
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == "# Benchmarks\n" + "\n## a section\n" * 2


def test_what_was_measured_before_a_side_fails_is_in_a_file_that_the_error_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(self: Runner, part: str, size: str) -> None:
        if size == "1m":
            raise RookexpError("mine: ended")
        self.show("### Step, tiny", "1 s")

    def machine(self: Runner) -> None:
        self.parts.append("## today")

    config = composed(f"report={tmp_path}/page.md", "against=[]", "parts=[step]", "sizes=[tiny,1m]")
    monkeypatch.setattr(Runner, "measure", fails)
    monkeypatch.setattr(Runner, "measure_machine", machine)
    with pytest.raises(RookexpError, match=rf"^mine: ended; what was measured is in {tmp_path}/section.md$"):
        bench.bench(config, tmp_path)
    assert (tmp_path / "section.md").read_text(encoding="utf-8") == "## today\n\n### Step, tiny\n\n1 s\n"
    monkeypatch.setattr(Runner, "measure", lambda self, part, size: (tmp_path / "page.md").mkdir(exist_ok=True))
    with pytest.raises(DataError, match=rf"^report={tmp_path}/page.md: cannot .*measured is in {tmp_path}/section.md$"):
        bench.bench(config, tmp_path)


def test_a_used_folder_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    config = composed("report=null", "against=[]", "parts=[step]")
    (tmp_path / ".hydra").mkdir()
    (tmp_path / "step-1m").mkdir()
    with pytest.raises(ConfigError, match=rf"hydra.run.dir={tmp_path}: .* \(step-1m\); allowed: a new"):
        bench.bench(config, tmp_path)


# ---- sides ----------------------------------------------------------------------------------------------------------


class TwoTurns:
    """A bench that has two turns."""

    def __init__(self) -> None:
        self.waited = 0
        self.answers: list[dict[str, Any]] = []
        self.facts: dict[str, Any] = {}

    def about(self, **facts: Any) -> None:
        self.facts |= facts

    def wait(self) -> dict[str, Any]:
        self.waited += 1
        if self.waited > 2:
            raise SystemExit(0)
        return {"prompts": 2, "group": 2}

    def answer(self, **figures: Any) -> None:
        self.answers.append(figures)


def test_our_step_is_the_trainers_and_its_phases_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "backward", torch.Tensor.backward)  # what a side wraps for good
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", torch.nn.utils.clip_grad_norm_)
    monkeypatch.setattr("rookexp.benchmark.turns.register_optimizer_step_pre_hook", lambda hook: None)
    monkeypatch.setattr("rookexp.benchmark.turns.register_optimizer_step_post_hook", lambda hook: None)
    made(tmp_path / "model")
    training = settings.training(composed(), tmp_path / "model", steps=4)
    turns: Any = TwoTurns()
    with pytest.raises(SystemExit):
        ours.step({"config": training, "folder": str(tmp_path)}, turns)
    assert len(turns.answers) == 2
    for figures in turns.answers:
        assert figures["tokens"] == 2 * 4 * 5
        assert all(figures[name] > 0 for name in PHASES)
        assert sum(figures[name] for name in PHASES) <= figures["seconds"]
        assert figures["peak_bytes"] >= turns.facts["imported_bytes"] > 0


@pytest.mark.parametrize("reference", [True, False])
def test_the_products_alone_are_the_steps_floor_less_the_last_tokens_decoding(reference: bool) -> None:
    turns: Any = TwoTurns()
    with pytest.raises(SystemExit):
        products.step({"config": composed(), "size": "tiny", "prompt_tokens": 11, "reference": reference}, turns)
    config, rows, prompts, new = workload.config_of("tiny"), 2 * 4, 2, 5
    floor = roofline.step_flop(config, prompt_tokens=11, completion_tokens=rows * new, reference=reference)
    head = config.n_embd * config.vocab_size
    least = floor - 2 * (roofline.block_weights(config) * rows + head * (rows - prompts))
    assert [figures["flop"] for figures in turns.answers] == [least] * 2
    assert all(figures["seconds"] > 0 for figures in turns.answers)


@pytest.mark.parametrize(
    "decode", [ours.decode, pytest.param(theirs.decode, marks=pytest.mark.slow)], ids=["ours", "transformers"]
)
def test_decoding_answers_with_the_tokens_up_to_each_end(decode: Any, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers comes with the extra `bench`")
    for end_rate in (0.0, 0.5):
        folder = tmp_path / str(end_rate)
        made(folder, end_rate=end_rate)
        turns: Any = TwoTurns()
        spec = {"config": composed(), "workload": str(folder), "precision": "fp32", "new_tokens": 30}
        with pytest.raises(SystemExit), warnings.catch_warnings():
            decode(spec, turns)
        counts = [figures["tokens"] for figures in turns.answers]
        assert counts == [2 * 2 * 30] * 2 if not end_rate else 8 <= sum(counts) <= 40


@pytest.mark.slow
def test_transformers_is_not_timed_for_encoding_what_our_side_has_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers comes with the extra `bench`")
    encode, start, events = transformers.PreTrainedTokenizerFast.__call__, theirs.Stopwatch.start, []
    monkeypatch.setattr(
        transformers.PreTrainedTokenizerFast, "__call__", lambda *a, **k: events.append("encode") or encode(*a, **k)
    )
    monkeypatch.setattr(theirs.Stopwatch, "start", lambda watch: events.append("start") or start(watch))
    made(tmp_path / "model")
    turns: Any = TwoTurns()
    spec = {"config": composed(), "workload": str(tmp_path / "model"), "precision": "fp32", "new_tokens": 3}
    with pytest.raises(SystemExit), warnings.catch_warnings():
        theirs.decode(spec, turns)
    assert events == ["encode", "start"] * 2


COMPUTES = "import time\nend = time.time() + {}\nwhile time.time() < end: pass\n"  # for these seconds
ANSWERS = f"""
import sys
for _ in sys.stdin:
    exec({COMPUTES.format(1.0)!r})
    print('{{"figures": {{"seconds": 1.0}}}}', '{{"ready": {{}}}}', sep=chr(10), flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity") or not core_wait.OWN.is_file(), reason="Linux tells")
def test_a_side_beside_other_work_on_its_core_tells_that_it_waited(tmp_path: Path) -> None:
    side = Side("mine", "mine", tmp_path)
    side.process = subprocess.Popen([sys.executable, "-c", ANSWERS], stdin=-1, stdout=-1, text=True)
    with subprocess.Popen([sys.executable, "-c", COMPUTES.format(30)]) as other:
        for process in (side.process, other):
            os.sched_setaffinity(process.pid, [min(os.sched_getaffinity(0))])
        figures = side.turn()
        other.kill()
    side.close()
    assert figures["seconds"] == 1
    assert 0.2 < figures["core_wait"] <= 1


@pytest.mark.parametrize("told", ["0 0 0\n", None])
def test_a_system_that_does_not_tell_how_long_was_waited_adds_no_figure(told: str | None, tmp_path: Path) -> None:
    file = tmp_path / "schedstat"
    if told:
        file.write_text(told)
    found = core_wait.seconds(file)
    assert found == (0, 0)
    assert core_wait.waited_share(found, found) is None


@pytest.mark.slow
def test_a_side_that_fails_says_why_in_one_line(tmp_path: Path) -> None:
    side = Side("nothing", "mine", tmp_path, config={"hardware": {"threads": 1}, "seed": 0})
    with pytest.raises(RookexpError, match=r"^mine: ended with status 1: KeyError: 'nothing'; all it said is in "):
        side.__enter__()


@pytest.mark.slow
def test_a_whole_run_is_timed_to_its_first_step_and_its_end(tmp_path: Path) -> None:
    line, wait = default_run.timed(tmp_path / "train", ("debug=fast",))
    found = re.fullmatch(
        r"`python -m rookexp.train debug=fast`: first step logged (\S+) s after the command, 2 steps in (\S+) s, "
        r"median step (\S+) s; `--cfg job` (\S+) s",
        line,
    )
    assert found, line
    first_s, whole_s, step_s, shown_s = map(float, found.groups())
    assert step_s < first_s <= whole_s
    assert 0 < shown_s < whole_s
    assert 0 <= wait <= 1


@pytest.mark.slow
def test_ours_and_trls_do_the_same_work_and_all_tables_are_there(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="trl comes with the extra `bench`")
    config = composed("parts=[step,scaling]", "against=[trl_fastest]", "scaling_rows=[4]", "scaling_tokens=[3]")
    said: list[str] = []
    section = Runner(settings.checked(config), config, tmp_path, said.append).run()
    titles = [line for line in section.splitlines() if line.startswith("### ")]
    assert [title.split()[1].rstrip(",") for title in titles] == ["Machine", "Step", "Scaling"]
    raw = {entry["part"]: entry["figures"] for entry in json.loads((tmp_path / "bench.json").read_text())}
    *pair, alone = raw["step"]  # the sides of a pair and the products took turns
    assert [side["label"] for side in pair] == ["rookexp", "TRL, fastest setting"]
    assert "\n- its matrix products alone" in section
    assert len(alone["turns"]) == 2
    for side in pair:
        assert [turn["tokens"] for turn in side["turns"]] == [2 * 4 * 5] * 2
        for turn in side["turns"]:
            assert all(turn[name] > 0 for name in PHASES)
            assert sum(turn[name] for name in PHASES) <= turn["seconds"]
    assert [turn["tokens"] for cell in raw["scaling"] for turn in cell["turns"]] == [4 * 3] * 2
    assert not list(tmp_path.rglob("*.safetensors"))  # the models are gone
