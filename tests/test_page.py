"""The page stands alone, says what the comparison says, and works in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
from made_runs import ANSWERS, PROMPTS, make, sweep

from rookexp import boards
from rookexp.comparison import curves, page, points, wording

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
VOID = {"meta", "link", "input", "rect", "path", "circle", "line", "polygon", "use", "br"}


class Balance(HTMLParser):
    """Fails on an element that is closed in the wrong place."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        """Nothing is left open."""

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.stack.pop() == tag, f"</{tag}> at {self.getpos()}"


def data_of(html: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_page_is_whole_and_needs_no_network(tmp_path: Path) -> None:
    found = points.compare([sweep(tmp_path / "s", points=5, seeds=2)])
    html = page.html(found)
    balance = Balance()
    balance.feed(html)
    assert balance.stack == []
    addresses = set(re.findall(r"https?://[^\s\"'<)]+", html))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert not re.search(r"<(script|img|iframe)[^>]* src|@import|url\((?!#)", html)
    for line in wording.said(found):
        assert line.split(" (")[0] in html
    data = data_of(html)
    assert data["names"] == ["#0", "#1", "#2", "#3", "#4"]
    titles = [panel["title"] for panel in data["panels"]]
    assert titles[0] == "Greedy reward"
    assert len(titles) == 7
    first = data["panels"][0]["curves"][0]
    assert (first["n"], len(first["x"])) == (2, 5)
    assert all(low <= mean <= high for low, mean, high in zip(first["lo"], first["y"], first["hi"], strict=True))


def test_text_of_a_run_cannot_become_markup(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>"
    make(tmp_path / "a", status="failed", reason=evil)
    make(tmp_path / "b", prompts=(PROMPTS[0], evil), **{"grpo.note": evil})
    html = page.html(points.compare([tmp_path]))
    assert "<script>alert" not in html
    assert any(prompt["text"] == evil for prompt in data_of(html)["prompts"])


def test_prompts_and_points_whose_answers_are_not_in_the_page_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i, name in enumerate("abc"):
        make(tmp_path / name, **{"optim.lr": float(i + 1)})
    found = points.compare([tmp_path])
    assert "Here are" not in page.html(found)
    asked = len(data_of(page.html(found))["prompts"])
    monkeypatch.setattr(page, "MAX_ANSWERED", 2)
    assert f"Here are {asked} of {asked} prompts and the first 2 of 3 points." in page.html(found)
    monkeypatch.setattr(page, "MAX_PROMPTS", 1)
    assert f"Here are 1 of {asked} prompts and the first 2 of 3 points." in page.html(found)


def test_failures_are_listed_with_their_reasons(tmp_path: Path) -> None:
    make(tmp_path / "a")
    make(tmp_path / "b", gain=0.1, kl={"coef": 0.0})
    make(tmp_path / "c", status="diverged", reason="step 3: loss/kl is inf", kl={"coef": 1.0})
    make(tmp_path / "d", status="diverged", reason="step 4: loss/kl is inf (loss nan)", kl={"coef": 2.0})
    html = page.html(points.compare([tmp_path]))
    assert "diverged: loss/kl is inf <b>&times; 2</b>" in html
    assert "c (c, step 20)" in html
    assert "<summary>slope <b>&times; 1</b></summary>" in html


def test_the_curves_of_a_panel_have_bins_of_one_width(tmp_path: Path) -> None:
    make(tmp_path / "short", steps=90)
    make(tmp_path / "long", steps=2 * curves.PLACES + 20, **{"optim.lr": 1.0})
    found = points.compare([tmp_path])
    drawn = page._panel(found.points, "reward/mean")
    assert [one["bin"] for one in drawn] == [3, 3]
    assert sorted(len(one["x"]) for one in drawn) == [30, 74]
    alone = page._panel(points.compare([tmp_path / "short"]).points, "reward/mean")
    assert (alone[0]["bin"], len(alone[0]["x"]), alone[0]["x"][-1]) == (1, 90, 90)


def test_several_tasks_have_panels_of_their_own(tmp_path: Path) -> None:
    folder = make(tmp_path / "phases")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        task = "first" if row["step"] <= 8 else "other"
        row |= {f"reward/mean_{task}": row["reward/mean"]} if "reward/mean" in row else {}
        row |= {"eval/mean_first": 0.5, "eval/mean_other": 0.25} if "eval/reward" in row else {}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    panels = data_of(page.html(points.compare([tmp_path])))["panels"]
    assert [panel["title"] for panel in panels[:7]] == [
        "Greedy reward", "Greedy reward, first", "Greedy reward, other",
        "Sampled reward", "Sampled reward, first", "Sampled reward, other", "Forward KL to the reference",
    ]  # fmt: skip
    assert [len(panel["curves"][0]["x"]) for panel in panels[:6]] == [5, 5, 5, 20, 8, 12]


def test_a_page_of_one_run_compares_it_with_nothing(tmp_path: Path) -> None:
    make(tmp_path / "a")
    html = page.html(points.compare([tmp_path]))
    assert "beside baseline</button></th>" not in html
    assert '<span class="tag">baseline' not in html
    make(tmp_path / "b", **{"optim.lr": 1.0})
    html = page.html(points.compare([tmp_path]))
    assert "beside baseline</button></th>" in html
    assert html.count('<span class="tag">baseline') == 1


def test_an_answers_moves_are_drawn_by_what_they_are() -> None:
    drawn = boards.answer(PROMPTS[0], ANSWERS[0], "b8d7")
    assert drawn is not None
    assert drawn.words == "best c5a3; engine b8d7; lists 5 moves, 4 different, 3 legal"
    assert [drawn.arrows.count(f'stroke="{colour}"') for colour in (boards.CHOSEN, boards.ENGINE)] == [1, 1]
    agreed = boards.answer(PROMPTS[0], ANSWERS[0], "c5a3")
    assert agreed is not None
    assert agreed.words.startswith("best c5a3, the engine's;")
    assert boards.CHOSEN not in agreed.arrows
    illegal = boards.answer(PROMPTS[1], ANSWERS[1], None)
    assert illegal is not None
    assert illegal.words == "best b3c4, illegal; lists 2 moves, 1 legal"
    assert boards.ILLEGAL in illegal.arrows
    assert boards.answer("A: " + PROMPTS[0], "x", None) is None
    assert boards.position("once upon a time") is None
    assert (boards.position(PROMPTS[0]) or "").count("<use ") == 28


@pytest.mark.parametrize("completion", ["", " M: E: B:", "B: a1a1", " e9e9 B: zzzz", " 0000 B: 0000", "é\0"])
def test_any_completion_can_be_drawn(completion: str) -> None:
    drawn = boards.answer(PROMPTS[0], completion, None)
    assert drawn is not None
    assert "best" in drawn.words


@pytest.mark.slow
def test_two_hundred_runs_take_seconds_and_few_megabytes(tmp_path: Path) -> None:
    sweep(tmp_path / "s", points=67, seeds=3)
    began = time.monotonic()
    html = page.html(points.compare([tmp_path / "s"]))
    assert time.monotonic() - began < 20
    assert len(html) < 3_000_000
    assert html.count("data-row=") == 67


SCRIPT = """
<script>
window.onload = () => {
  const rows = () => all("#points tbody tr").filter((row) => !row.hidden);
  const column = (n) => rows().map((row) => row.cells[n].innerText.trim());
  const heading = all("#points thead th").find((one) => one.dataset.key === "optim.lr");
  const found = { before: column(1) };
  heading.querySelector("button").click(); heading.querySelector("button").click();
  found.after = column(1);
  const input = document.querySelector("[data-filter=points]");
  input.value = "gain>0.5"; input.oninput();
  found.filtered = column(1);
  found.heading = [];
  for (const text of ["dead groups>-1", "deadgroups>-1", "nothing>0"]) {
    input.value = text; input.oninput();
    found.heading.push(document.querySelector("[data-count=points]").textContent);
  }
  input.value = "gain>0.5"; input.oninput();
  found.count = document.querySelector("[data-count=points]").textContent;
  found.lines = all(".panel .line").length;
  found.hidden = all(".panel").map((panel) => (panel.querySelector(".hint") || {}).textContent || "");
  all("[data-point]")[4].click();
  found.fewer = all(".panel .line").length;
  found.boards = all(".card svg").length;
  found.moved = all(".panel").length;
  document.getElementById("theme").click();
  found.theme = root.dataset.theme;
  found.labels = [[8.285, 8.29, 8.295], [0, 0.1, 0.2, 3 * 0.1], [10010, 10020], [2e-5, 2.5e-5]].map(labels);
  document.body.dataset.found = JSON.stringify(found);
};
</script></body>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (`apt-get install chromium`)")
def test_a_browser_draws_sorts_and_filters_without_an_error(tmp_path: Path) -> None:
    html = page.html(points.compare([sweep(tmp_path / "s", points=5, seeds=2)]))
    path = tmp_path / "page.html"
    path.write_text(html.replace("</body>", SCRIPT), encoding="utf-8")
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=2000"]
    command = [str(CHROMIUM), *flags, f"--user-data-dir={tmp_path}/profile", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    found = re.search(r'data-found="([^"]*)"', done.stdout)
    assert found is not None
    seen = json.loads(found[1].replace("&quot;", '"').replace("&gt;", ">"))
    assert [name.split()[0] for name in seen["before"]] == ["#0", "#1", "#2", "#3", "#4"]
    assert [name.split()[0] for name in seen["after"]] == ["#4", "#3", "#2", "#1", "#0"]
    assert seen["filtered"] == ["#4", "#3", "#2"]
    assert seen["count"] == "3 of 5 points"
    assert seen["heading"] == ["no column groups", "5 points", "no column nothing"]
    assert (seen["lines"], seen["fewer"], seen["moved"]) == (35, 28, 7)
    same = "on top of each other: #0, #1, #2, #3, #4"
    assert seen["hidden"] == ["", "", *[same] * 5], "the rewards alone differ"
    assert seen["boards"] == 6
    assert seen["theme"] == "dark"
    narrow, plain, large, small = seen["labels"]
    assert narrow == ["8.285", "8.29", "8.295"]
    assert plain == ["0", "0.1", "0.2", "0.3"]
    assert (large, small) == (["1.001e+4", "1.002e+4"], ["2.0e-5", "2.5e-5"])


def test_an_evaluation_asks_its_own_files_or_those_of_the_task() -> None:
    tasks = {"P": {"positions": "p"}, "A": {"positions": "a"}, "R": {"data": "r"}}
    for task, asked, files in (
        ({"positions": "p"}, None, ["p"]),
        ({"positions": "p"}, "e", ["e"]),
        ({"tasks": tasks}, None, ["p", "a"]),
        ({"tasks": tasks}, {"A": "e"}, ["p", "e"]),
        ({"tasks": tasks}, {"P": "e", "A": "f"}, ["e", "f"]),
        ({"positions": {"_target_": "games"}}, None, []),
        ({"tasks": ["one's own"]}, None, []),
        ({"tasks": {"own": 0.5}, "positions": "p"}, None, ["p"]),
    ):
        assert boards.asked_files({"task": task, "eval": {"positions": asked}}) == files
    assert boards.asked_files({}) == []
    known = boards.engine_moves({"task": {"tasks": tasks}, "eval": {"positions": {"P": "/elsewhere/eval.jsonl"}}})
    assert len(known) == 128
