"""A comparison as one HTML file that needs nothing else: no network, no other file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from rookexp import boards, chess_text
from rookexp.comparison import curves, measures, wording
from rookexp.comparison import page_tables as tables
from rookexp.comparison.points import Comparison, Point
from rookexp.files import write_atomic

MAX_ANSWERED = 40  # points whose answers are in the page
MAX_PROMPTS = 8
SHOWN_AT_FIRST = 6  # points whose curves are drawn in colour when the page opens
NAV = [(name, f"at-{name.lower()}") for name in ("Points", "Curves", "Answers", "Settings", "Runs")]
NAV.append(("Failures", "at-ends"))


def write(comparison: Comparison, path: Path) -> None:
    """Writes the page atomically: a reader sees an older one or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, html(comparison))


def html(comparison: Comparison) -> str:
    """The page as HTML."""
    words = wording.said(comparison)
    data = _data(comparison)
    parts = {
        "said": "".join(f"<p>{escape(line)}</p>" for line in words),
        "notes": tables.notes(comparison),
        "points": tables.points_table(comparison),
        "settings": tables.settings(comparison),
        "runs": tables.runs_table(comparison),
        "ends": tables.ends(comparison),
        "legend": "".join(f"<p>{escape(line).replace('`', '')}</p>" for line in wording.LEGEND),
        "figures": tables.definitions(),
        "answered": data.pop("answered"),
        "data": _script_safe(json.dumps(data, separators=(",", ":"), allow_nan=False)),
    }
    body = Template(_asset("page.html")).substitute(parts)
    return whole(comparison.title, "compare", NAV, body, script=_asset("page.js"))


def whole(title: str, door: str, nav: Sequence[tuple[str, str]], body: str, *, script: str) -> str:
    """A page that stands alone: `nav` has the words and ids of its sections, `body` the sections, as HTML."""
    parts = {
        "title": escape(title),
        "door": f"rookexp {door}",
        "css": _asset("page.css"),
        "pieces": boards.pieces(),
        "nav": " ".join(f'<a href="#{place}">{escape(word)}</a>' for word, place in nav),
        "body": body,
        "script": _asset("theme.js") + script,
    }
    return Template(_asset("shell.html")).substitute(parts)


def _asset(name: str) -> str:
    return (resources.files("rookexp") / "assets" / "page" / name).read_text(encoding="utf-8")


def _script_safe(text: str) -> str:
    """JSON that cannot end the script element it stands in."""
    return text.replace("<", "\\u003c")


def _data(comparison: Comparison) -> dict[str, Any]:
    """Curves and answers, as plain JSON."""
    first = comparison.ranked
    index = {point.name: i for i, point in enumerate(comparison.points)}
    return {
        "baseline": index[comparison.baseline.name],
        "drawn": [index[point.name] for point in first[:SHOWN_AT_FIRST]],
        "names": [point.name for point in comparison.points],
        "about": [wording.settings(point) for point in comparison.points],
        "panels": [
            {"title": title, "unit": unit, "log": log, "curves": _panel(comparison.points, metric)}
            for metric, title, unit, log in curves.panels(comparison.points)
        ],
        **_answers(first, index),
    }


def _panel(members: Sequence[Point], metric: str) -> list[dict[str, Any]]:
    found = []
    width = curves.bin_width(members, metric)
    for index, point in enumerate(members):
        whole = curves.curve(point, metric, width)
        for one in [*([whole] if whole else []), *curves.broken_off(point, metric, width)]:
            entry: dict[str, Any] = {"p": index, "x": one.steps, "y": one.mean, "n": one.seeds, "bin": one.per_place}
            if one.low:
                entry |= {"lo": one.low, "hi": one.high}
            if one is not whole:
                entry["cut"] = True
            found.append(entry)
    return found


def _answers(ranked: Sequence[Point], index: dict[str, int]) -> dict[str, Any]:
    """Prompts, the last answers of each point's first finished run, and a sentence on how many of all these are."""
    finished = [(point, point.finished[0]) for point in ranked if point.finished]
    chosen = finished[:MAX_ANSWERED]
    prompts: list[str] = []
    columns: list[dict[str, Any]] = []
    for number, (point, run) in enumerate(chosen):
        rows = {str(row["prompt"]): row for row in measures.last_answers(run.folder)}
        if number == 0 and rows:
            before = {str(row["prompt"]): row for row in measures.first_answers(run.folder)}
            columns.append({"label": f"{point.name}, before training", "rows": before, "run": run})
            prompts = list(rows)[:MAX_PROMPTS]
        elif not set(rows) & set(prompts):
            prompts += [prompt for prompt in rows if prompt not in prompts][: max(0, 2 * MAX_PROMPTS - len(prompts))]
        columns.append({"label": f"{point.name}, seed {run.seed}", "rows": rows, "run": run, "p": index[point.name]})
    asked = {prompt for column in columns for prompt in column["rows"]}
    answered = f"Here are {len(prompts)} of {len(asked)} prompts and the first {len(chosen)} of {len(finished)} points."
    engines = {id(column["run"]): boards.engine_moves(column["run"].config) for column in columns}
    best = {}
    for prompt in prompts:
        parsed = chess_text.parse_p(prompt)
        found = [moves[parsed.fen] for moves in engines.values() if parsed is not None and parsed.fen in moves]
        best[prompt] = found[0] if found else None
    return {
        "answered": answered if len(prompts) < len(asked) or len(chosen) < len(finished) else "",
        "prompts": [{"text": prompt.strip(), "pieces": boards.position(prompt)} for prompt in prompts],
        "answers": [
            {
                "label": column["label"],
                "p": column.get("p"),
                "rows": [_answer(prompt, column["rows"].get(prompt), best[prompt]) for prompt in prompts],
            }
            for column in columns
        ],
    }


def _answer(prompt: str, row: dict[str, Any] | None, engine: str | None) -> dict[str, Any] | None:
    if row is None:
        return None
    completion = str(row["completion"])
    drawn = boards.answer(prompt, completion, engine)
    reward = row.get("reward")
    return {
        "text": " ".join(completion.split()),
        "reward": None if reward is None else float(f"{reward:.4g}"),
        **({} if drawn is None else {"arrows": drawn.arrows, "words": drawn.words}),
    }
