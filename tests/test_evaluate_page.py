"""The evaluation's page stands alone, has every figure, and draws the answers that it says it draws."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import chess
import pytest
from test_page import CHROMIUM, Balance

from rookexp import boards, chess_text
from rookexp.examination import exam_page
from rookexp.examination.exam import environment_shown, policy_shown
from rookexp.examination.exam_page import Part
from rookexp.tasks.figures import Estimate, Figure

BACK = "r5k1/5ppp/8/8/8/8/5PPP/6K1 b - - 0 20"
EVIL = "</p><script>alert(1)</script>"
A_PROMPT = f"A: {chess.STARTING_FEN}+e2e4+e2e4+"
A_TRUE = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1+0.001+0+0"


def p_shown(move: str, fen: str = chess.STARTING_FEN) -> exam_page.Shown:
    best = "a8a1" if fen == BACK else "e2e4"
    return policy_shown(chess_text.p_prompt(fen), f"  M: {move} E: 0.1 B: {move}", "gold", [best])


def parts() -> list[Part]:
    figures = {
        "B legal": Figure(9, 10),
        "loss": Estimate(0.25, (0.2, 0.3), 10),
        "B legal, White": Figure(5, 5),
        "B legal, Black": Figure(4, 5),
        "nothing, Black": Figure(0, 0),
    }
    answers = [p_shown("d2d4"), p_shown("e2e4"), p_shown("zz"), p_shown("c2c4"), p_shown("a8a1", BACK)]
    wrong = A_TRUE.replace("4P3", "3PP3").replace("+0+0", "+1+0")
    environment = [environment_shown(A_PROMPT, text, A_PROMPT + A_TRUE) for text in (A_TRUE, wrong, EVIL)]
    return [
        Part("test.txt, P", "10 documents", figures, answers),
        Part("a&b, A", EVIL, {"exact": Figure(1, 3), "median": Estimate(7.0, None, 3, "median")}, environment),
    ]


def test_the_page_is_whole_and_needs_no_network() -> None:
    html = exam_page.html(EVIL, parts())
    balance = Balance()
    balance.feed(html)
    assert balance.stack == []
    assert set(re.findall(r"https?://[^\s\"'<)]+", html)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert "<script>alert" not in html
    assert html.count("<script>") == 1
    for words in ("90.0 %", "9 of 10", "100.0 %", "0.200 to 0.300", "median, n = 3", "a&amp;b, A"):
        assert words in html
    for name in exam_page.place_of("test.txt, P"), exam_page.place_of("a&b, A"):
        assert html.count(f'id="{name}"') == html.count(f'href="#{name}"') == 1


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (`apt-get install chromium`)")
def test_on_a_narrow_screen_a_long_name_leaves_room_for_its_figure(tmp_path: Path) -> None:
    part = Part("P", "", {"the highest-valued listed move is among the engine's, White": Figure(9, 10)}, [])
    measure = """<script>onload = () => { document.body.style.width = "375px"; document.body.dataset.found = [
        document.querySelector("tbody th").clientWidth, document.querySelector(".scroll").clientWidth,
        document.querySelector("table").scrollWidth] }</script></body>"""
    path = tmp_path / "page.html"
    path.write_text(exam_page.html("model", [part]).replace("</body>", measure), encoding="utf-8")
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=500,900", "--virtual-time-budget=2000"]
    command = [str(CHROMIUM), *flags, f"--user-data-dir={tmp_path}/profile", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'data-found="(\d+),(\d+),(\d+)"', done.stdout)
    assert found is not None
    name, room, whole = map(int, found.groups())
    assert name < room / 2
    assert whole <= room  # the bar's end, 100 %, needs no scrolling


def test_the_first_right_and_wrong_answers_of_each_side_are_drawn() -> None:
    policy, environment = parts()
    drawn = exam_page.chosen(policy.shown)
    assert drawn == [policy.shown[i] for i in (1, 0, 2, 4)]
    assert [(answer.side, answer.right) for answer in drawn] == [
        ("White", True), ("White", False), ("White", False), ("Black", True),
    ]  # fmt: skip
    assert exam_page.chosen(environment.shown) == list(environment.shown)
    html = exam_page.section(policy)
    assert html.count('class="card"') == html.count('href="#squares"') == 4


def test_columns_are_all_white_and_black_where_there_are_sides() -> None:
    policy, environment = (exam_page.table(part.figures) for part in parts())
    assert re.findall(r'<th scope="col">(\w+)', policy) == ["all", "White", "Black"]
    assert policy.count("<tr>") == 1 + 3
    assert 'scope="col"' not in environment


@pytest.mark.parametrize(
    ("said", "words", "rings"),
    [
        (A_TRUE, "e2e4: exact", 0),
        (A_TRUE.replace("4P3", "3PP3"), "e2e4: wrong placement", 1),
        (A_TRUE.replace("4P3", "8").replace("- 0 1", "e3 1 1"), "e2e4: wrong placement, en passant, halfmove clock", 1),
        (A_TRUE.replace("+0+0", "+1+0+0"), "e2e4: wrong terminated, too many fields", 0),
        (A_TRUE.split()[0], "e2e4: wrong turn, castling, en passant, halfmove clock, move number, reward, ", 0),
    ],
)
def test_a_state_is_drawn_with_rings_where_it_is_wrong(said: str, words: str, rings: int) -> None:
    pieces, drawn = boards.next_state(A_PROMPT, said, A_TRUE)
    assert drawn.words.startswith(words)
    assert drawn.arrows.count("<circle") == rings
    assert drawn.arrows.count("<line") == 1
    assert pieces.count("<use ") == len(re.findall("[a-zA-Z]", said.split()[0]))


@pytest.mark.parametrize(
    "said", ["", "+", "8/8 w", "rnbqkbnr/ppppppppp/8/8/8/8/8/8 w", "é/8/8/8/8/8/8/8 w", "9/8/8/8/8/8/8/8"]
)
def test_an_answer_without_a_board_is_not_drawn(said: str) -> None:
    assert boards.next_state(A_PROMPT, said, A_TRUE) is None
    assert "no board in it" in exam_page.drawing(environment_shown(A_PROMPT, said, A_PROMPT + A_TRUE), ("", ""))


def test_white_is_below_also_where_an_answer_to_black_has_no_board() -> None:
    prompt = "A: 4k3/8/8/8/8/8/8/4K3 b - - 0 1+e8e7+e8e7+"
    right = f"{prompt}8/4k3/8/8/8/8/8/4K3 w - - 1 2+0.001+0+0"
    drawing = exam_page.drawing(environment_shown(prompt, "", right), ("", ""))
    heights = dict(re.findall(r'#(white|black)-king" transform="translate\(\d+, (\d+)', drawing))
    assert int(heights["white"]) > int(heights["black"])
