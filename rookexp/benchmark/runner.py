"""Runs the measurements of the bench, in order."""

from __future__ import annotations

import json
import math
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rookexp.benchmark import default_run, report, settings, tables, workload
from rookexp.benchmark.roofline import Machine
from rookexp.benchmark.settings import Bench
from rookexp.benchmark.sides import Figures, Side, interleaved
from rookexp.files import write_atomic

LABELS = {"trl_default": "TRL, default", "trl_fastest": "TRL, fastest setting"}
RAW, SECTION = "bench.json", "section.md"  # in the run folder: all figures; the section so far


class Runner:
    """Measures what is asked for, shows each table as soon as it is ready, and keeps all of it in the run folder."""

    def __init__(self, asked: Bench, config: Mapping[str, Any], folder: Path, tell: Callable[[str], None]) -> None:
        self.asked = asked
        self.config = config
        self.folder = folder.resolve()
        self.tell = tell
        self.turns = asked.warmups + asked.repeats  # turns of each side
        self.parts: list[str] = []  # texts of the report's section, in order
        self.raw: list[dict[str, Any]] = []
        self.waits: list[float] = []  # of each side of the part that is measured: the share that it waited for a core

    def run(self) -> str:
        """Measures everything; returns the run's section of the report."""
        self.measure_machine()
        for size in self.asked.sizes:
            for part in ("step", "decode", "scaling"):
                if part in self.asked.parts:
                    self.tell(f"{part}, {size}")
                    self.measure(part, size)
        if "train" in self.asked.parts:
            self.tell("train: python -m rookexp.train, whole")
            line, wait = default_run.timed(self.folder / "train", ())
            self.waits.append(wait)
            self.show("### The default run", line)
        return self.section()

    def measure_machine(self) -> None:
        """Measures the limits of the machine; begins the section."""
        with self.side("machine", "machine", "machine", config=self.config) as side:
            self.tell("measuring the machine")
            figures = side.turn()
        self.waits.append(figures.pop("core_wait", 0.0))
        self.machine = Machine(**figures)
        self.parts.append(report.heading(self.machine))
        self.show("### Machine", tables.machine_table(self.machine))

    def measure(self, part: str, size: str) -> None:
        """Measures one part for one size; its workload is made before and removed after."""
        asked, per_step = self.asked, self.config["grpo"]["prompts_per_step"]
        prompts = {
            "step": per_step * self.turns,
            "decode": max([shape(rows)[0] for rows in asked.batches], default=1),
            "scaling": max(asked.scaling_rows) * self.turns,
        }
        model = self.folder / f"{part}-{size}" / "model"
        lengths = workload.make(
            model,
            size,
            prompts=prompts[part],
            lengths=asked.prompt_tokens,
            end_rate=asked.end_rate,
            seed=asked.seed,
        )
        try:
            getattr(self, part)(size, model, lengths)
        finally:
            shutil.rmtree(model)

    def step(self, size: str, model: Path, lengths: Sequence[int]) -> None:
        """Measures rookexp's step, TRL's, and a step's products alone; only one TRL setting at a time is in memory."""
        asked, grpo, beta = self.asked, self.config["grpo"], self.config["kl"].get("coef", 0.0)
        folder = model.parent.name
        taken: list[tuple[Side, list[Figures]]] = []
        prompt_tokens = sum(lengths) / self.turns
        work = {"size": size, "prompt_tokens": prompt_tokens, "reference": bool(beta)}

        def told(steps: int) -> dict[str, Any]:
            return {"workload": str(model), "config": settings.training(self.config, model, steps=steps)}

        ours = self.side("rookexp", "rookexp", f"{folder}/rookexp", **told(self.turns * max(1, len(asked.against))))
        products = self.side("products", "products alone", f"{folder}/products", config=self.config, **work)
        with ours, products:
            for setting in asked.against:
                self.tell(f"  starting {LABELS[setting]}")
                theirs = self.side(setting, LABELS[setting], f"{folder}/{setting}", setting=setting, **told(self.turns))
                with theirs:
                    taken += self.take_turns([ours, theirs, products])
            if not asked.against:
                taken += self.take_turns([ours, products])
        pairs = [(side, turns) for side, turns in taken if side is not products]
        alone = [turns for side, turns in taken if side is products]
        self.keep("step", size, [{**side.about, "label": side.label, "turns": turns} for side, turns in taken])
        config = workload.config_of(size)
        lines = tables.ratio_lines(pairs, self.machine) if asked.against else []
        lines += [] if asked.end_rate else tables.product_lines(pairs, alone)
        self.show(
            f"### Step, {tables.described(size, config)}",
            f"{grpo['prompts_per_step']} prompts x {grpo['group_size']} completions of at most "
            f"{grpo['max_new_tokens']} tokens, prompts of {min(lengths)}-{max(lengths)} tokens (mean "
            f"{sum(lengths) / len(lengths):.0f}), beta {beta:g}; medians of {asked.repeats} turns after "
            f"{asked.warmups}, in brackets the least and the most.",
            tables.step_table(pairs, config, self.machine, prompt_tokens=prompt_tokens, reference=bool(beta)),
            *(["\n".join(lines)] if lines else []),
        )

    def decode(self, size: str, model: Path, lengths: Sequence[int]) -> None:
        """Measures decoding alone, in fp32 and, where that is faster here, in bf16, all in turns."""
        new_tokens, folder, rows = self.config["grpo"]["max_new_tokens"], model.parent.name, []
        precisions = list(dict.fromkeys(("fp32", self.machine.precision)))
        with ExitStack() as stack:
            sides = []
            for precision in precisions:
                told = {"workload": str(model), "config": self.config, "precision": precision, "new_tokens": new_tokens}
                sides += [
                    self.side("generate", "transformers.generate", f"{folder}/generate-{precision}", **told),
                    self.side("sample", "rookexp", f"{folder}/rookexp-{precision}", **told),
                ]
            for side in sides:
                stack.enter_context(side)
            for batch in self.asked.batches:
                prompts, group = shape(batch)
                self.tell(f"  {batch} rows")
                turns = [figures for _, figures in self.take_turns(sides, prompts=prompts, group=group)]
                rows += list(zip([batch] * len(precisions), precisions, turns[::2], turns[1::2], strict=True))
        names = ("rows", "dtype", "generate", "rookexp")
        self.keep("decode", size, [dict(zip(names, row, strict=True)) for row in rows])
        config = workload.config_of(size)
        title = f"### Decoding alone, {tables.described(size, config)}, {new_tokens} new tokens"
        self.show(title, tables.decode_table(rows, config, self.machine, new_tokens))

    def scaling(self, size: str, model: Path, lengths: Sequence[int]) -> None:
        """Measures rookexp's step with more rows, and with longer completions."""
        asked, group, found = self.asked, self.config["grpo"]["group_size"], []
        cells = [(rows, asked.scaling_tokens[0]) for rows in asked.scaling_rows]
        cells += [(asked.scaling_rows[0], tokens) for tokens in asked.scaling_tokens[1:]]
        for rows, tokens in cells:
            self.tell(f"  {rows} rows, {tokens} new tokens")
            told = settings.training(
                self.config, model, steps=self.turns, prompts_per_step=rows // group, max_new_tokens=tokens
            )
            with self.side("rookexp", "rookexp", f"{model.parent.name}/{rows}x{tokens}", config=told) as side:
                found.append((rows, tokens, self.take_turns([side])[0][1]))
        self.keep("scaling", size, [dict(zip(("rows", "tokens", "turns"), cell, strict=True)) for cell in found])
        title = f"### Scaling of our step, {tables.described(size, workload.config_of(size))}"
        self.show(title, tables.scaling_table(found))

    def side(self, kind: str, label: str, name: str, **told: Any) -> Side:
        """A side with its own folder."""
        return Side(kind, label, self.folder / name, **told)

    def take_turns(self, sides: Sequence[Side], **asked: Any) -> list[tuple[Side, list[Figures]]]:
        """Each side with the figures of its measured turns."""
        warmups, repeats = self.asked.warmups, self.asked.repeats
        found = interleaved(sides, warmups=warmups, repeats=repeats, tell=self.tell, asked=asked)
        self.waits += [statistics.median(turn.get("core_wait", 0.0) for turn in figures) for figures in found]
        return list(zip(sides, found, strict=True))

    def keep(self, part: str, size: str, figures: Sequence[Any]) -> None:
        """Adds the figures of a part to the raw results, and writes all of these."""
        self.raw.append({"part": part, "size": size, "figures": figures})
        write_atomic(self.folder / RAW, json.dumps(self.raw, indent=1) + "\n")

    def show(self, *paragraphs: str) -> None:
        """Shows a part of the report's section, marked if the machine was busy; writes the section so far."""
        busy = tables.busy_line(self.waits)
        self.waits = []
        text = "\n\n".join([*paragraphs, *([busy] if busy else [])])
        self.tell(f"\n{text}\n")
        self.parts.append(text)
        write_atomic(self.folder / SECTION, self.section())

    def section(self) -> str:
        """The section so far, as Markdown."""
        return "\n\n".join(self.parts) + "\n"


def shape(rows: int) -> tuple[int, int]:
    """(prompts, completions of each) with `rows` as product; the group is the largest divisor up to sqrt(rows)."""
    group = next(size for size in range(math.isqrt(rows), 0, -1) if rows % size == 0)
    return rows // group, group
