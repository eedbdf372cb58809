"""The results as Markdown: plain columns, medians, with minimum and maximum in brackets."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rookexp.benchmark.roofline import Machine, block_weights, decode_floor_s, step_flop
from rookexp.benchmark.sides import Figures, Side
from rookexp.benchmark.turns import PHASES
from rookexp.core_wait import BUSY
from rookexp.models.gpt2 import GPT2Config

MB = 1e6


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def median(figures: Sequence[Figures], name: str) -> float:
    """The median over the turns of the figure `name`."""
    return float(statistics.median(turn[name] for turn in figures))


def described(size: str, config: GPT2Config) -> str:
    """A model size in words: layers x width, vocabulary and parameters."""
    embeddings = (config.vocab_size + config.n_positions) * config.n_embd
    millions = (block_weights(config) + embeddings) / 1e6
    return f"{size}: {config.n_layer} x {config.n_embd}, vocabulary {config.vocab_size}, {millions:.2f} M parameters"


def machine_table(machine: Machine) -> str:
    """A table of the machine's measured limits."""
    rows = [
        ["copy, GB/s", f"{machine.copy_gb_s:.1f}"],
        ["product of one row, GB/s of weights", f"{machine.weights_gb_s:.1f}"],
        *([f"best product, {name}, GFLOP/s", f"{rate:.0f}"] for name, rate in machine.gflop_s.items()),
    ]
    return table(["measured limit", "all threads"], rows)


def step_table(
    pairs: Sequence[tuple[Side, Sequence[Figures]]],
    config: GPT2Config,
    machine: Machine,
    *,
    prompt_tokens: float,
    reference: bool,
) -> str:
    """One row per side and pair: the step, its phases, tokens, memory, and the share of the roofline."""
    head = ["side", "dtype", "step s", *(f"{name} s" for name in PHASES), "other s"]
    head += ["completion tokens", "tokens/s", "peak MB", "of it imports", "floor s", "share of roofline"]
    rows = []
    for side, figures in pairs:
        seconds, tokens = median(figures, "seconds"), median(figures, "tokens")
        phases = [median(figures, name) for name in PHASES]
        flop = step_flop(config, prompt_tokens=prompt_tokens, completion_tokens=tokens, reference=reference)
        floor = flop / machine.best_gflop_s / 1e9
        rows.append(
            [
                side.label,
                side.about["precision"],
                spread(figures, "seconds"),
                *(f"{phase:.3f}" for phase in phases),
                f"{max(0.0, seconds - sum(phases)):.3f}",
                f"{tokens:.0f}",
                f"{rate(figures):.0f}",
                f"{max(turn['peak_bytes'] for turn in figures) / MB:.0f}",
                f"{side.about['imported_bytes'] / MB:.0f}",
                f"{floor:.3f}",
                f"{floor / seconds:.0%}",
            ]
        )
    return table(head, rows)


def ratio_lines(pairs: Sequence[tuple[Side, Sequence[Figures]]], machine: Machine) -> list[str]:
    """A line per pair (ours, theirs): the speed-up, the ratio of peak memory, and a note where that is unfair."""
    lines = []
    for (_, ours), (side, theirs) in zip(pairs[::2], pairs[1::2], strict=True):
        faster = median(theirs, "seconds") / median(ours, "seconds")
        memory = max(t["peak_bytes"] for t in ours) / max(t["peak_bytes"] for t in theirs)
        emulated = side.about["precision"] == "bf16" != machine.precision
        unfair = "; it computes in bf16, which is slow on this machine: the ratio says little" if emulated else ""
        lines.append(f"- against {side.label}: **{faster:.2f}x** as fast, {memory:.2f}x the peak memory{unfair}")
    return lines


def product_lines(pairs: Sequence[tuple[Side, Sequence[Figures]]], alone: Sequence[Sequence[Figures]]) -> list[str]:
    """A line per pair (ours, theirs): the time of a step's matrix products alone, and the most speed-up it allows."""
    ours, lines = [figures for side, figures in pairs if side.kind == "rookexp"], []
    theirs = [(side, figures) for side, figures in pairs if side.kind != "rookexp"]
    for i, turns in enumerate(alone):
        seconds = median(turns, "seconds")
        share = f"{seconds / median(ours[i], 'seconds'):.0%} of our step"
        line = f"- its matrix products alone, one after the other: {spread(turns, 'seconds')} s, {share}"
        if theirs:
            side, figures = theirs[i]
            line += f"; at most {median(figures, 'seconds') / seconds:.1f}x as fast as {side.label} with them"
        lines.append(line)
    return lines


def busy_line(waits: Sequence[float]) -> str | None:
    """A line for figures that other work made slow, given the share of its time that each side waited for a core.

    None for a quiet machine: no share above core_wait.BUSY.
    """
    share = max(waits, default=0.0)
    if share <= BUSY:
        return None
    return (
        f"**The machine was busy**: for {share:.0%} of the time in which it could compute, a side waited for a free "
        "core. These figures say little; measure again when nothing else runs."
    )


def decode_table(
    batches: Sequence[tuple[int, str, Sequence[Figures], Sequence[Figures]]],
    config: GPT2Config,
    machine: Machine,
    new_tokens: int,
) -> str:
    """One row per batch and dtype: tokens per second of both sides, and their shares of the roofline."""
    head = ["rows", "dtype", "generate tokens/s", "rookexp tokens/s", "ratio", "to generate in fp32", "floor tokens/s"]
    head += ["generate's share", "rookexp's share"]
    exact = {batch: rate(theirs) for batch, precision, theirs, _ in batches if precision == "fp32"}
    rows = []
    for batch, precision, theirs, ours in batches:
        rates = [rate(theirs), rate(ours)]
        floor_s = decode_floor_s(config, machine, rows=batch, tokens=new_tokens, precision=precision)
        most = batch * new_tokens / floor_s
        cells = [str(batch), precision, *(f"{found:.0f}" for found in rates), f"{rates[1] / rates[0]:.2f}x"]
        cells.append(f"{rates[1] / exact[batch]:.2f}x")
        rows.append([*cells, f"{most:.0f}", *(f"{found / most:.0%}" for found in rates)])
    return table(head, rows)


def scaling_table(found: Sequence[tuple[int, int, Sequence[Figures]]]) -> str:
    """One row per workload: time per completion token, and its ratio to the first row's."""
    head = ["rows", "new tokens", "step s", "us a completion token", "against the first"]
    times = [1e6 / rate(turns) for *_, turns in found]
    rows = [
        [str(rows), str(tokens), spread(turns, "seconds"), f"{us:.0f}", f"{us / times[0]:.2f}x"]
        for (rows, tokens, turns), us in zip(found, times, strict=True)
    ]
    return table(head, rows)


def rate(figures: Sequence[Figures]) -> float:
    """The median over the turns of completion tokens per second."""
    return float(statistics.median(turn["tokens"] / turn["seconds"] for turn in figures))


def spread(figures: Sequence[Figures], name: str) -> str:
    """Median, minimum and maximum over the turns, as text."""
    values = [turn[name] for turn in figures]
    return f"{statistics.median(values):.3f} ({min(values):.3f}..{max(values):.3f})"
