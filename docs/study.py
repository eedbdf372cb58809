"""The comparison in docs/algorithms.md: runs it, draws docs/study.png, writes the table docs/study.md.

`python docs/study.py` (or `make study`) trains what multirun/study does not hold yet, goes on with runs that were
stopped, and draws when all are finished; with `--jobs 2` it trains two at a time, each with one thread: an hour and a
half on two cores with bf16. Every run answers the same prompts, and the runs of a seed draw the same random numbers, so
that differences are paired by seed.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a checkout without an install will do

from rookexp import statistics, track, verdict  # noqa: E402
from rookexp.run_folder import run_info, runs  # noqa: E402

RUNS = ROOT / "multirun" / "study"
FIGURE, TABLE = ROOT / "docs" / "study.png", ROOT / "docs" / "study.md"
SEEDS = tuple(range(24))
# Of each family the first is what the others are compared with.
ALGORITHMS = {
    "GRPO": ["baseline=group_mean", "grpo.aggregation=sequence_mean"],
    "Dr GRPO": ["baseline=dr_grpo", "grpo.aggregation=constant_length"],
    "RLOO": ["baseline=rloo", "loss=reinforce", "grpo.aggregation=sequence_mean"],
    "PPO": ["baseline=gae", "grpo.inner_epochs=2", "grpo.minibatches=2", "grpo.advantage_clip=null"],
    "REINFORCE": ["baseline=none", "loss=reinforce", "grpo.aggregation=sequence_mean"],
}
DIVERGENCES = {word: [f"grpo.kl_type={word}"] for word in ("forward", "reverse", "symmetric", "k1", "k3")}
FAMILIES = {"algorithm": ALGORITHMS, "grpo.kl_type": DIVERGENCES}
PANELS = (
    ("eval/reward", "greedy reward of the prompts trained on"),
    ("kl/forward", "exact KL(policy || reference), nats a token"),
)
COLOURS = ("#2f6fb5", "#c0392b", "#2a8f5b", "#c98a1b", "#6a4c93")


def folder(variant: str, seed: int) -> Path:
    """Where a variant's run with a seed lies."""
    return RUNS / variant.lower().replace(" ", "_") / f"seed-{seed}"


def finished(variant: str, seed: int) -> bool:
    """Whether a variant's run with a seed is there, whole."""
    where = folder(variant, seed)
    return (where / run_info.CONFIG).is_file() and runs.read(where).status == "finished"


def train(words: Sequence[str], variant: str, seed: int, threads: int | None) -> str:
    """Trains one run, or what is left of it, unless it is finished; what is to be said of it."""
    if finished(variant, seed):
        return f"{variant}, seed {seed}: there already"
    where = folder(variant, seed)
    begun = (where / run_info.CONFIG).is_file()
    typed = [f"resume='{where}'"] if begun else ["experiment=study", *words, f"seed={seed}", f"hydra.run.dir='{where}'"]
    typed += [] if threads is None else [f"hardware.threads={threads}"]
    command = [sys.executable, "-m", "rookexp.train", *typed]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return f"{variant}, seed {seed}: " + ("done" if done.returncode == 0 else f"FAILED: {done.stderr.strip()[-300:]}")


def curves(variant: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps (S,) and the metric of each seed's run (seeds, S)."""
    found = [verdict.column(track.read_jsonl(folder(variant, seed) / track.METRICS), metric) for seed in SEEDS]
    return found[0][0], np.stack([values for _, values in found])


def draw(path: Path) -> None:
    """The figure: a column a family, the mean over seeds as a line and all seeds inside the band."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(PANELS), len(FAMILIES), sharex=True, sharey="row")
    for column, (family, variants) in enumerate(FAMILIES.items()):
        for row, (metric, label) in enumerate(PANELS):
            axis: Any = axes[row, column]
            for colour, variant in zip(COLOURS, variants, strict=True):
                x, y = curves(variant, metric)
                axis.plot(x, y.mean(0), color=colour, linewidth=1.6, label=variant)
                axis.fill_between(x, y.min(0), y.max(0), color=colour, alpha=0.13, linewidth=0)
            axis.grid(alpha=0.25, linewidth=0.6)
            axis.spines[["top", "right"]].set_visible(False)
            axis.margins(x=0.01)
            axis.set_title(label, fontsize=10, loc="left")
            if row == len(PANELS) - 1:
                axis.set_xlabel("steps done")
        axes[0, column].legend(title=family, fontsize=8, title_fontsize=8, frameon=False, loc="lower right")
    figure.suptitle(f"rook_nano, {len(SEEDS)} seeds each: mean (line) and all seeds (band)", fontsize=12)
    figure.savefig(path)


def figures(variant: str) -> dict[str, dict[int, float]]:
    """The variant's figures by name and seed."""
    found: dict[str, dict[int, float]] = {}
    for seed in SEEDS:
        rows = track.read_jsonl(folder(variant, seed) / track.METRICS)
        nats = verdict.column(rows, "kl/forward")[1][-runs.LAST :].mean()
        for name, value in {**runs.figures(rows), "kl": float(nats)}.items():
            found.setdefault(name, {})[seed] = value
    return found


def table(family: str, variants: Mapping[str, Sequence[str]]) -> list[str]:
    """The family as lines of Markdown: means with 95 % intervals, and differences from the first variant by seed."""
    first, *others = variants
    base = figures(first)
    lines = [
        f"| {family} | gain in greedy reward | beside {first} | KL, last 20 steps | beside {first} |",
        "|---|---|---|---|---|",
    ]
    for variant in variants:
        own = figures(variant)
        cells = [variant]
        for name in ("gain", "kl"):
            cells.append(spelled(statistics.mean(list(own[name].values()))))
            if variant == first:
                cells.append("")
                continue
            found = statistics.compared(own[name], base[name], comparisons=len(others))
            cells.append(f"{spelled(found.interval, signed=True)}: {found.said}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def spelled(interval: statistics.Interval, *, signed: bool = False) -> str:
    """A value and its interval."""
    form = "+.3f" if signed else ".3f"
    bounds = "" if math.isnan(interval.low) else f" [{interval.low:{form}}, {interval.high:{form}}]"
    return f"{interval.value:{form}}{bounds}"


INTRO = f"""\
# The study's table

Made by `make study`: do not edit; what it says is in [algorithms.md](algorithms.md#what-separates-on-rook_nano).
{len(SEEDS)} seeds each, 95 % Student's t intervals over them. Differences are paired by seed; "higher" and "lower" hold
at the level 0.05 / (differences in the column), with a question mark at 0.05 alone; else it is "within noise", which is
not "equal". KL is the forward one, exact, in nats a token, whatever the run's own divergence.
"""


def revisions() -> str:
    """What the runs were made with."""
    told = [json.loads((folder(v, s) / "run.json").read_text(encoding="utf-8")) for _, v, s in planned()]
    found = {(str(one["packages"]["rookexp"]), str((one["git"] or {}).get("revision"))) for one in told}
    return "Runs: " + "; ".join(f"rookexp {version}, git {git[:12]}" for version, git in sorted(found)) + ".\n"


def planned() -> list[tuple[Sequence[str], str, int]]:
    """Words, variant and seed of every run, all variants of a seed before the next one."""
    return [(words, v, s) for s in SEEDS for family in FAMILIES.values() for v, words in family.items()]


def page() -> str:
    """The text of docs/study.md."""
    return "\n".join([INTRO, revisions(), *("\n".join(table(*family)) + "\n" for family in FAMILIES.items())])


def main() -> None:
    """Trains, draws and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; with 2 or more each has one thread")
    jobs = parser.parse_args().jobs
    with ThreadPoolExecutor(jobs) as pool:
        for said in pool.map(lambda run: train(*run, None if jobs == 1 else 1), planned()):
            print(said, flush=True)
    missing = [f"{variant}, seed {seed}" for _, variant, seed in planned() if not finished(variant, seed)]
    if missing:  # half a run has figures, too
        sys.exit(f"nothing is drawn, these are not finished: {'; '.join(missing)}")
    draw(FIGURE)
    TABLE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
