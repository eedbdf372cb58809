"""The pool answers in order and asks once; engines may crash, hang or be killed, and no answer is made up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import chess
import pytest
from pretenders import Moody

from rookexp.errors import ConfigError, DataError, EngineError
from rookexp.rewards.engine import Line, find_stockfish
from rookexp.rewards.engine_pool import EnginePool, Question

Make = Callable[..., EnginePool]


@pytest.fixture
def moody(tmp_path: Path) -> Moody:
    return Moody(tmp_path)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Pools of one engine with a short patience and a cache in a file, closed at the end."""
    made: list[EnginePool] = []

    def build(path: str, **changes: Any) -> EnginePool:
        settings = {"depth": 3, "nodes": None, "multipv": 2, "timeout_s": 5.0, "retries": 1, "processes": 1}
        made.append(EnginePool(path=path, **settings | {"cache": str(tmp_path / "cache.sqlite")} | changes))
        return made[-1]

    yield build
    for pool in made:
        pool.close()


def question(clock: int, move: str = "") -> Question:
    """The first position with another halfmove clock, which the pretender gives as its value."""
    return Question(f"rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - {clock}", move)


def lines(clock: int) -> list[Line]:
    """What the pretender says of it."""
    return [Line(chess.Move.from_uci("e2e4"), clock - 1), Line(chess.Move.from_uci("d2d4"), clock - 2)]


def scripted(path: str, folder: Path) -> str:
    """A shell script that starts an engine and waits for it, and writes its own number into the file `pid`."""
    script = folder / "engine.sh"
    script.write_text(f"#!/bin/sh\necho $$ > {folder}/pid\n{path}\nexit $?\n", encoding="utf-8")
    script.chmod(0o755)
    return str(script)


def test_answers_are_in_order_and_equal_questions_are_asked_once(moody: Moody, make: Make) -> None:
    pool = make(moody.path, processes=3)
    asked = [question(clock) for clock in (5, 0, 7, 5, 5, 9)] + [question(7, "a2a3")] * 2
    only = [Line(chess.Move.from_uci("a2a3"), 6)]
    assert pool.analyse(asked) == [lines(clock) for clock in (5, 0, 7, 5, 5, 9)] + [only] * 2
    assert sorted(clock for _, clock, _ in moody.asked()) == [0, 5, 7, 7, 9]
    assert [command for _, clock, command in moody.asked() if "a2a3" in command] == ["go depth 3 searchmoves a2a3"]
    assert pool.analyse([]) == []


def test_what_is_in_the_cache_needs_no_engine(moody: Moody, make: Make) -> None:
    first = make(moody.path)
    asked = [question(4), question(8), question(4, "g1f3")]
    found = first.analyse(asked)
    first.close()
    moody.moods("crash crash crash")
    second = make(moody.path, retries=0)
    second.begin(asked[:1])
    assert second.analyse(asked) == found
    assert len(moody.asked()) == 3
    metrics = second.metrics()
    assert metrics.pop("engine/wait_s") < 1
    assert metrics == {"engine/hit_rate": 1.0, "engine/restarts": 0.0}
    with pytest.raises(EngineError):
        second.analyse([question(5)])


def test_another_limit_or_number_of_lines_is_another_answer(moody: Moody, make: Make) -> None:
    for changes in ({}, {}, {"depth": 4}, {"depth": None, "nodes": 3}, {"multipv": 1}):
        pool = make(moody.path, **changes)
        pool.analyse([question(4), question(4, "g1f3")])
        pool.close()
    commands = [command for _, _, command in moody.asked()]
    expected = ["go depth 3", "go depth 4", "go nodes 3"]
    assert commands == [c + s for c in expected for s in ("", " searchmoves g1f3")] + ["go depth 3"]


@pytest.mark.parametrize("mood", ["crash", "hang"])
def test_a_lost_engine_is_replaced_and_asked_again(moody: Moody, make: Make, mood: str) -> None:
    pool = make(moody.path, timeout_s=2.0 if mood == "hang" else 5.0)
    moody.moods(f"fine {mood} fine")
    assert pool.analyse([question(clock) for clock in (1, 2, 3)]) == [lines(clock) for clock in (1, 2, 3)]
    assert [clock for _, clock, _ in moody.asked()] == [1, 2, 2, 3]
    pids = [pid for pid, _, _ in moody.asked()]
    assert pids[0] == pids[1] != pids[2] == pids[3]
    pool.begin([])
    assert pool.metrics()["engine/restarts"] == 1
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script")
def test_a_hung_engine_that_a_script_started_is_killed_with_it(moody: Moody, make: Make, tmp_path: Path) -> None:
    pool = make(scripted(moody.path, tmp_path), timeout_s=2.0)
    moody.moods("fine hang fine hang hang")
    assert pool.analyse([question(clock) for clock in (1, 2)]) == [lines(clock) for clock in (1, 2)]
    with pytest.raises(EngineError, match="no answer in 2.0 s"):
        pool.analyse([question(3)])


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script")
def test_a_hung_engine_is_killed_after_the_script_that_started_it(moody: Moody, make: Make, tmp_path: Path) -> None:
    pool = make(scripted(moody.path, tmp_path), timeout_s=2.0)
    moody.moods("hang")
    pool.begin([question(3)])
    while not moody.asked():
        time.sleep(0.01)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert pool.analyse([question(3)]) == [lines(3)]
    first, second = [pid for pid, _, _ in moody.asked()]
    assert first != second


def test_an_engine_killed_between_and_during_searches_is_replaced(moody: Moody, make: Make) -> None:
    pool = make(moody.path)
    pool.analyse([question(1)])
    os.kill(moody.asked()[-1][0], signal.SIGKILL)
    assert pool.analyse([question(2)]) == [lines(2)]
    moody.moods("hang")
    pool.begin([question(3)])
    while moody.asked()[-1][1] != 3:
        time.sleep(0.01)
    os.kill(moody.asked()[-1][0], signal.SIGKILL)
    assert pool.analyse([question(3)]) == [lines(3)]


def test_after_the_last_attempt_there_is_an_error_and_no_value(moody: Moody, make: Make) -> None:
    pool = make(moody.path, retries=2)
    moody.moods("fine crash crash crash")
    with pytest.raises(EngineError) as caught:
        pool.analyse([question(1), question(2), question(3)])
    for part in (moody.path, "depth 3", question(2).position, "3 attempts", "timeout 5.0 s"):
        assert part in str(caught.value)
    assert pool.analyse([question(clock) for clock in (1, 2, 3)]) == [lines(clock) for clock in (1, 2, 3)]
    assert sum(clock == 2 for _, clock, _ in moody.asked()) == 4  # nothing of the failure was kept


def test_work_begins_before_it_is_asked_for_and_is_counted(moody: Moody, make: Make) -> None:
    pool = make(moody.path)
    pool.analyse([question(1)])
    pool.begin([question(1), question(2), question(3), question(3)])
    while len(moody.asked()) < 3:
        time.sleep(0.01)
    assert pool.analyse([question(2), question(3), question(1)]) == [lines(2), lines(3), lines(1)]
    assert [clock for _, clock, _ in moody.asked()] == [1, 2, 3]
    metrics = pool.metrics()
    assert metrics["engine/hit_rate"] == pytest.approx(1 / 3)
    assert 1 < metrics["engine/positions_per_s"] < 10_000
    assert 0 < metrics["engine/wait_s"] < 5
    pool.begin([])
    assert pool.metrics() == {"engine/wait_s": 0.0, "engine/restarts": 0.0}


def test_what_cannot_be_analysed_is_refused_before_an_engine_sees_it() -> None:
    for fen in ("8/8/8/8/8/8/8/K6k w - - 0 1", chess.STARTING_FEN):
        assert Question.lines_of(chess.Board(fen)) == Question(fen.rpartition(" ")[0])
    for fen in ("8/8/8/8/8/8/8/8 w - - 0 1", "k7/1Q6/8/8/8/8/8/K7 w - - 0 1", "7k/5Q2/6K1/8/8/8/8/8 b - - 0 1"):
        with pytest.raises(DataError, match="no legal position with a legal move"):
            Question.lines_of(chess.Board(fen))


def test_what_cannot_work_is_known_at_once(moody: Moody, make: Make, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"nowhere.*apt-get install stockfish"):
        make(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="depth=3, nodes=3"):
        make(moody.path, nodes=3)
    with pytest.raises(DataError, match="no usable cache"):
        make(moody.path, cache=str(tmp_path))


SCRIPT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs are started without
from rookexp.rewards.engine_pool import EnginePool
from test_engine_pool import question
pool = EnginePool(path=sys.argv[1], depth=3, nodes=None, multipv=2, timeout_s=60.0, retries=2, processes=2, cache=None)
pool.begin([question(1), question(2), question(3)])
while len(open(sys.argv[2]).readlines()) < 2:
    time.sleep(0.01)
print("searching", flush=True)
if sys.argv[3] != "ends":
    pool.analyse([question(1)])
    time.sleep(60)
"""


@pytest.mark.parametrize("end", ["ends", "SIGINT", "SIGTERM", "SIGKILL"])
def test_engines_do_not_outlive_us(moody: Moody, end: str) -> None:
    """Where we can still do something they are in the middle of a search; else the end of their input must do."""
    moody.moods("hang hang hang" if end in ("ends", "SIGINT") else "")
    root = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root.parent), str(root)])}
    command = [sys.executable, "-c", SCRIPT, moody.path, str(moody.folder / "asked"), end]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"searching\n"
        begun = time.monotonic()
        if end != "ends":
            time.sleep(0.1)
            process.send_signal(signal.Signals[end])
        errors = process.communicate(timeout=30)[1].decode()
    assert time.monotonic() - begun < 10
    assert process.returncode == (0 if end == "ends" else -signal.Signals[end])
    assert errors == "" or errors.endswith("KeyboardInterrupt\n")
    for pid in {pid for pid, _, _ in moody.asked()}:
        while gone(pid) is False:
            assert time.monotonic() - begun < 10
            time.sleep(0.02)


def gone(pid: int) -> bool:
    """Whether a process has ended, reaped by its parent or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.engine
def test_stockfish_says_the_same_whatever_came_before_and_whoever_is_asked(make: Make) -> None:
    try:
        path = find_stockfish(None)
    except EngineError:
        pytest.skip("no Stockfish here")
    board = chess.Board()
    asked = [Question.lines_of(board)]
    for move in ("e2e4", "e7e5", "g1f3", "b8c6"):
        asked += [Question(asked[-1].position, move)]
        board.push_uci(move)
        asked += [Question.lines_of(board)]
    settings = {"depth": None, "nodes": 500, "multipv": 5, "timeout_s": 30.0, "cache": None}
    one, two = make(path, **settings), make(path, **settings, processes=2)
    found = one.analyse(asked)
    assert two.analyse(asked[::-1]) == found[::-1]
    assert [len(lines) for lines in found] == [5, 1] * 4 + [5]
    victim = two._engines[0].started()
    os.kill(victim._engine.transport.get_pid(), signal.SIGKILL)
    two._cache._file.execute("DELETE FROM analyses")
    assert two.analyse(asked) == found
