"""The tables of a comparison's page: points, runs, settings, failures; each as HTML with what it sorts by."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from rookexp.comparison import points, wording
from rookexp.comparison.measures import FIGURES
from rookexp.comparison.points import Comparison, Point
from rookexp.run_folder import runs
from rookexp.statistics import Difference
from rookexp.trackers.console import duration

MAX_COLUMNS = 8  # settings that have a column each; more are one text
OWN = re.compile(r"^step \d+: | \([^()]*\)$")  # the parts of a reason that concern one run alone: its step, its values
MAX_MATRIX = 12  # points that have a column each in the table of settings
BADGES = {
    "higher": "good",
    "higher?": "unsure",
    "lower": "bad",
    "lower?": "unsure",
    "within noise": "same",
    "identical": "same",
    "cannot tell": "unsure",
}
NO_REFERENCE = "not measured: without a KL coefficient there is no reference"
SHORT = {  # headings
    "kl": "KL", "kl_share": "KL share", "dead_groups": "dead groups", "grad_norm_max": "grad norm, max",
    "seconds": "time", "tokens_per_s": "tokens/s",
}  # fmt: skip


def points_table(comparison: Comparison) -> str:
    """The table of points: settings, figures with intervals, and their differences from the baseline."""
    keys = list(comparison.baseline.settings)
    own = keys if len(keys) <= MAX_COLUMNS else []
    alone = len(comparison.points) == 1
    figures = [name for name in FIGURES if any(point.by_seed(name) for point in comparison.points)]
    scale = _scale([value for p in comparison.points for value in p.by_seed(comparison.main).values()])
    head = [_th("curve", "draw this point's curves", "curve"), _th("point", "trial or folder", "point")]
    head += [_th(escape(key), "setting", key) for key in own] or (
        [_th("settings", "what varies", "settings")] if keys else []
    )
    head += [_th("seeds", "finished of all", "seeds")]
    for name in figures:
        about, better, _ = FIGURES[name]
        if name == comparison.main and comparison.minimized:
            better = "down"
        arrow = {"up": " ↑", "down": " ↓", None: ""}[better]
        head.append(_th(SHORT.get(name, name) + arrow, about, name))
        if name == comparison.main:
            head.append(
                _th("", "seeds (dots), mean and interval; dashed: the baseline", f"{name}_drawn", sortable=False)
            )
            head += [] if alone else [_th("beside baseline", "by the rule below the table", "beside")]
    head.append(_th("verdict", "runs whose verdict is PASS", "verdict"))
    rows = []
    for index, point in enumerate(comparison.points):
        base = point is comparison.baseline
        name = escape(point.name) + (' <span class="tag">baseline</span>' if base and not alone else "")
        cells = [
            _td(f'<input type="checkbox" data-point="{index}" aria-label="draw {escape(point.name)}">', 0),
            f'<th scope="row" data-sort="{index}">{name}</th>',
        ]
        cells += [_setting(point, comparison.baseline, key) for key in own]
        if keys and not own:
            cells.append(_td(_changed(comparison.baseline, point), index, "wide"))
        done, total = len(point.finished), point.total
        cells.append(_td(str(done) if done == total else f'<span class="badge bad">{done} of {total}</span>', done))
        for figure in figures:
            beside = None if base else comparison.beside[point.name].get(figure)
            cells.append(_figure(point, figure, beside))
            if figure == comparison.main:
                cells.append(_td(_forest(point, comparison.baseline, figure, scale), 0))
                cells += [] if alone else [_word(beside, base, comparison.minimized)]
        cells.append(_td(*_passed(point)))
        rows.append(f'<tr data-row="{index}"{" class=base" if base else ""}>{"".join(cells)}</tr>')
    return _table("points", head, rows, "values")


def _changed(base: Point, point: Point) -> str:
    """The first few settings in which the point differs from the baseline; the table of settings has all."""
    keys = [key for key, _, value in wording.changes(base, point) if value != runs.ABSENT]
    listed = " ".join(f"<code>{escape(points.label(key, point.settings[key]))}</code>" for key in keys[:MAX_COLUMNS])
    more = f" and {len(keys) - MAX_COLUMNS} more" if len(keys) > MAX_COLUMNS else ""
    return listed + more or "as the baseline"


def _figure(point: Point, figure: str, beside: Difference | str | None) -> str:
    """A cell with the value and, for the other view, the difference from the baseline."""
    found = point.interval(figure)
    if math.isnan(found.value):
        why = f' title="{NO_REFERENCE}"' if figure == "kl" else ""
        return _td(f'<span class="v"{why}>-</span><span class="d">-</span>', math.nan)
    spell = duration if figure == "seconds" else wording.number
    bounds = "" if math.isnan(found.low) else f"<small>{spell(found.low)} to {spell(found.high)}</small>"
    shown = f'<span class="v">{spell(found.value)}{bounds}</span>'
    if isinstance(beside, Difference) and beside.n:
        span = beside.interval
        limits = (
            ""
            if math.isnan(span.low)
            else f"{wording.signed(span.low)} to {wording.signed(span.high)}, p {beside.p:.2g}, "
        )
        unit = " s" if figure == "seconds" else ""
        other = f"{wording.signed(span.value)}{unit}<small>{limits}n {beside.n}</small>"
    else:
        other = f"<small>{escape(beside)}</small>" if isinstance(beside, str) else "-"
    return _td(f'{shown}<span class="d">{other}</span>', found.value)


def _word(beside: Difference | str | None, base: bool, minimized: bool) -> str:
    order = list(BADGES)
    if isinstance(beside, Difference):
        amount = (
            f"<small>{wording.signed(beside.interval.value)}, n {beside.n}</small>"
            if beside.n
            else "<small>no common seed</small>"
        )
        badge = BADGES[beside.said]
        if minimized:
            badge = {"good": "bad", "bad": "good"}.get(badge, badge)
        return _td(f'<span class="badge {badge}">{beside.said}</span>{amount}', order.index(beside.said))
    if beside is None:
        return _td("" if base else "-", len(order))
    return _td(f'<span class="badge unsure">not compared</span><small>{escape(beside)}</small>', len(order), "why")


def _setting(point: Point, base: Point, key: str) -> str:
    value, same = point.settings[key], repr(point.settings[key]) == repr(base.settings[key])
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else points.text(value)
    return _td(escape(points.text(value)), number, "dim" if same and point is not base else "")


def _passed(point: Point) -> tuple[str, float]:
    judged = point.verdicts
    if not judged:
        return "-", math.nan
    count = sum(judged)
    kind = "good" if count == len(judged) else "bad" if not count else "unsure"
    return f'<span class="badge {kind}">{count} of {len(judged)} pass</span>', count / len(judged)


def _scale(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        return 0.0, 1.0
    margin = 0.12 * (max(values) - min(values)) or 0.5
    return min(values) - margin, max(values) + margin


def _forest(point: Point, base: Point, figure: str, scale: tuple[float, float]) -> str:
    """An SVG of seeds, mean and interval on the scale that all rows share; what leaves the scale is cut off."""
    width, height = 150, 22

    def at(value: float) -> float:
        return round(min(max((value - scale[0]) / (scale[1] - scale[0]), 0), 1) * width, 1)

    values, found, line = point.by_seed(figure).values(), point.interval(figure), base.interval(figure).value
    if math.isnan(found.value):
        return ""
    marks = [] if math.isnan(line) else [f'<path class="base" d="M{at(line)} 0V{height}"/>']
    if not math.isnan(found.low):
        marks.append(f'<path class="span" d="M{at(found.low)} 11H{at(found.high)}"/>')
    marks += [f'<circle cx="{at(value)}" cy="11" r="2.6"/>' for value in values]
    marks.append(f'<path class="mean" d="M{at(found.value)} 4V18"/>')
    described = f"{figure} {wording.interval(found)}, n {len(values)}"
    about = f'class="forest" viewBox="0 0 {width} {height}" role="img" aria-label="{described}"'
    return f"<svg {about}>{''.join(marks)}</svg>"


def runs_table(comparison: Comparison) -> str:
    """The table of runs: how each ended, and its figures."""
    names = [name for name in FIGURES if any(name in own for point in comparison.points for own in point.figures)]
    head = [_th(*three) for three in (
        ("run", "folder", "run"), ("point", "the point it is of", "point"), ("seed", "", "seed"),
        ("status", "how it ended", "status"), ("steps", "done", "steps"), ("verdict", "", "verdict"),
    )]  # fmt: skip
    head += [_th(SHORT.get(name, name), FIGURES[name][0], name) for name in names]
    rows = []
    for index, point in enumerate(comparison.points):
        for run, own in zip(point.runs, point.figures, strict=True):
            kind = "good" if run.status == "finished" else "unsure" if run.status in ("running", "pruned") else "bad"
            reason = f"<small>{escape(run.reason)}</small>" if run.reason else ""
            verdict = run.summary.get("verdict")
            failed = [_criterion(line) for line in verdict["reasons"] if line.startswith("FAIL")] if verdict else []
            said = f"FAIL<small>{escape(', '.join(failed))}</small>"
            if not verdict or verdict["passed"]:
                said = "PASS" if verdict else "-"
            cells = [
                f'<th scope="row" data-sort="{escape(run.folder.name)}">{escape(run.folder.name)}</th>',
                _td(escape(point.name), index), _td("-" if run.seed is None else str(run.seed), run.seed or 0),
                _td(f'<span class="badge {kind}">{escape(run.status)}</span>{reason}', run.status, "why"),
                _td(f"{own.get('steps', 0):g}", own.get("steps", 0)), _td(said, said),
            ]  # fmt: skip
            for name in names:
                value = own.get(name, math.nan)
                shown = duration(value) if name == "seconds" and math.isfinite(value) else wording.number(value)
                cells.append(_td(shown, value))
            rows.append(f"<tr>{''.join(cells)}</tr>")
    return _table("runs", head, rows)


def settings(comparison: Comparison) -> str:
    """The table of settings that vary: a column for each point where they are few, else how often each value occurs."""
    keys = list(comparison.baseline.settings)
    if not keys:
        return "<p>Nothing but the seed.</p>"
    if len(comparison.points) <= MAX_MATRIX:
        head = [
            _th("key", "", "key"),
            *(_th(escape(point.name), "", f"p{i}") for i, point in enumerate(comparison.points)),
        ]
        rows = [
            f"<tr>{_key(key)}"
            + "".join(_setting(point, comparison.baseline, key) for point in comparison.points)
            + "</tr>"
            for key in keys
        ]
        return _table("settings", head, rows)
    rows = []
    for key in keys:
        counts = Counter(points.text(point.settings[key]) for point in comparison.points)
        listed = ", ".join(
            f"{escape(value)} <small class=inline>&times; {count}</small>" for value, count in counts.most_common(12)
        )
        more = f" and {len(counts) - 12} more values" if len(counts) > 12 else ""
        rows.append(f"<tr>{_key(key)}{_td(listed + more, len(counts), 'wide')}</tr>")
    return _table("settings", [_th("key", "", "key"), _th("values &times; points", "", "values")], rows)


def _key(key: str) -> str:
    return f'<th scope="row" data-sort="{escape(key)}"><code>{escape(key)}</code></th>'


def ends(comparison: Comparison) -> str:
    """A list of why runs did not finish, and of the verdict's criteria that failed, each with its runs."""
    reasons: dict[str, list[str]] = {}
    criteria: dict[str, list[str]] = {}
    for point in comparison.points:
        for run in point.runs:
            step = f"step {run.rows[-1]['step']}" if run.rows else "no step"
            place = f"{run.folder.name} ({point.name}, {step})"
            if run.status != "finished":
                why = run.reason or ("still running, or killed" if run.status == "running" else "no reason noted")
                reasons.setdefault(f"{run.status}: {OWN.sub('', why)}", []).append(place)
            for line in (run.summary.get("verdict") or {}).get("reasons", ()):
                if line.startswith("FAIL"):
                    criteria.setdefault(_criterion(line), []).append(
                        f"{run.folder.name}: {line.partition(':')[2].strip()}"
                    )
    parts = ["<p>Every run finished.</p>" if not reasons else ""]
    parts += [_listed(why, places) for why, places in sorted(reasons.items(), key=lambda item: -len(item[1]))]
    if criteria:
        parts.append("<h3>Criteria of the verdict that failed</h3>")
        parts += [_listed(name, places) for name, places in sorted(criteria.items(), key=lambda item: -len(item[1]))]
    return "".join(parts)


def _criterion(line: str) -> str:
    """The name in `FAIL name: ...`."""
    name = line.removeprefix("FAIL ").partition(":")[0]
    return "slope" if name.startswith("slope") else name


def _listed(heading: str, items: Sequence[str]) -> str:
    inner = "".join(f"<li>{escape(item)}</li>" for item in items)
    unfolded = " open" if len(items) <= 3 else ""
    return (
        f"<details{unfolded}><summary>{escape(heading)} <b>&times; {len(items)}</b></summary><ul>{inner}</ul></details>"
    )


def definitions() -> str:
    """A list of what each figure is."""
    return "".join(f"<li><b>{SHORT.get(name, name)}</b>: {escape(about)}</li>" for name, (about, *_) in FIGURES.items())


def notes(comparison: Comparison) -> str:
    return f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in comparison.notes)}</ul>" if comparison.notes else ""


def _table(name: str, head: Iterable[str], rows: Iterable[str], view: str = "") -> str:
    shown = f' data-view="{view}"' if view else ""
    return (
        f'<div class="scroll"><table id="{name}"{shown}><thead><tr>{"".join(head)}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _th(text: str, about: str, key: str, *, sortable: bool = True) -> str:
    inner = f"<button>{text}</button>" if sortable else text
    return f'<th scope="col" data-key="{escape(key)}" title="{escape(about)}">{inner}</th>'


def _td(inner: str, sort: Any, kind: str = "") -> str:
    value = "" if isinstance(sort, float) and not math.isfinite(sort) else escape(str(sort))
    return f'<td data-sort="{value}"{f" class={kind}" if kind else ""}>{inner}</td>'
