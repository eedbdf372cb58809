"""The released data sets' format: files of every kind, rows that are repaired, refused and counted, splits, labels."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import chess
import huggingface_hub
import pytest

from rookexp import chess_text
from rookexp.errors import DataError
from rookexp.rewards.chess import PolicyReward
from rookexp.tasks import shards
from rookexp.tasks.mixed import Phases, malformed_of
from rookexp.tasks.positions import position_key, split_of
from rookexp.tasks.released import RookWorld, row_of

HERE = Path(__file__).parent / "released.txt"  # 12 P and 10 A documents, some A without their prefix
TEXTS = HERE.read_text().splitlines()
START = chess.STARTING_FEN
PUSHED = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"


class Bytes:
    def encode(self, text: str) -> list[int]:
        return list(text.encode())


def task_of(data: Path, **changes: Any) -> RookWorld:
    options: dict[str, Any] = {
        "revision": None,
        "files": "*train*",
        "column": "text",
        "rows": None,
        "evaluate": "validation",
        "eval_rows": 100,
        "p_share": 0.5,
        "prompts": 4,
        "order": "epochs",
        "colours": "balanced",
        "sampling": {},
        "p_style": "bare",
        "analysed": 0.0,
        "list_order": "shuffled",
        "black_best": "corrected",
        "seed": 1,
    }
    return RookWorld(Bytes(), data=str(data), **options | changes)


def fen_of(prompt: Any) -> str:
    return (chess_text.parse_a_prompt(prompt.text) or chess_text.parse_p(prompt.text)).fen


def put(folder: Path, kind: str, name: str, texts: list[Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"id": range(len(texts)), "text": texts}), folder / f"{name}.parquet",
                            row_group_size=3)  # fmt: skip
        return
    lines = [json.dumps({"text": text}) if kind == "jsonl" else text for text in texts]
    text = "".join(f"{line}\n" for line in lines)
    mark = "\ufeff" if lines else ""  # that some editors put first
    (folder / f"{name}.{kind}").write_text(mark + text, encoding="utf-8")


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "txt"])
def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path, kind: str) -> None:
    put(tmp_path / "data", kind, "train-00000-of-00002", TEXTS[:13])
    put(tmp_path / "data", kind, "train-00001-of-00002", TEXTS[13:])
    put(tmp_path / "data", kind, "test-00000-of-00001", ["not to be read"])
    (tmp_path / "data" / "train.json").write_text("[]")
    put(tmp_path / ".cache/huggingface/download/data", "txt", "train-00000-of-00002.parquet", ["a note of the Hub's"])
    put(tmp_path / "data", "jsonl", "._train-00000-of-00002", ["what another system keeps beside a file"])
    task, whole = task_of(tmp_path), task_of(HERE)
    unread = f"{tmp_path}: files that task.files matches, not read: 1, as train.json: not .parquet, .jsonl, .txt"
    assert (unread in task.notes(), len(task.notes())) == (True, len(whole.notes()) + 1)
    asked = [{prompt.text for step in range(20) for prompt in each.select(step)} for each in (task, whole)]
    assert asked[0] == asked[1]
    assert len(asked[0]) == 8 + 6
    assert {prompt.text for prompt in task.prompts()} == {prompt.text for prompt in whole.prompts()}
    assert Counter(prompt.task for prompt in task.prompts()) == {"P": 2, "A": 2}
    assert [task_of(tmp_path).select(step) for step in range(9)] == [task.select(step) for step in range(9)]
    assert task_of(tmp_path, seed=2).select(0) != task.select(0)


def test_splits_share_no_position_and_are_what_the_hash_says() -> None:
    for evaluate in ("validation", "test"):
        task = task_of(HERE, evaluate=evaluate)
        found = [(prompt, "train") for step in range(9) for prompt in task.select(step)]
        found += [(prompt, evaluate) for prompt in task.prompts()]
        for prompt, split in found:
            assert split_of(position_key(chess.Board(fen_of(prompt)))) == split
    assert task.held_out
    fixed = task_of(HERE, order="fixed")
    assert fixed.prompts() == fixed.select(0) == fixed.select(7)
    assert not fixed.held_out


def test_the_data_sets_own_test_files_lose_the_positions_that_are_trained(tmp_path: Path) -> None:
    put(tmp_path, "txt", "train-0", TEXTS)
    fresh = "A: 8/8/8/8/3k4/8/8/K6R w - - 0 60+h1h2+h1h2+"
    fresh += chess_text.transition(fresh.split("+")[0][3:], "h1h2", legality="legacy").text()
    put(tmp_path, "txt", "test-0", [*TEXTS, fresh])
    task = task_of(tmp_path, evaluate="*test*")
    trained = {fen_of(prompt) for step in range(20) for prompt in task.select(step)}
    evaluated = {fen_of(prompt) for prompt in task.prompts()}
    assert len(trained) == 14
    assert len(evaluated) == 22 - 14 + 1
    assert not trained & evaluated
    with pytest.raises(DataError, match=r"task\.evaluate=\*test\*: files of a folder, and task\.data=.* is one file"):
        task_of(tmp_path / "train-0.txt", evaluate="*test*")


def test_files_for_evaluation_are_not_trained_on_where_both_patterns_match_them(tmp_path: Path) -> None:
    put(tmp_path, "txt", "train-0", TEXTS[:15])
    put(tmp_path, "txt", "test-0", TEXTS)
    alone, whole = (task_of(tmp_path, evaluate="*test*", files=files) for files in ("*train*", "*"))
    assert whole.prompts() == alone.prompts()
    assert [whole.select(step) for step in range(9)] == [alone.select(step) for step in range(9)]
    with pytest.raises(DataError, match=r"task\.evaluate=\*-0\* matches every file that task\.files=\*train\* does"):
        task_of(tmp_path, evaluate="*-0*")


def test_a_gold_answer_of_another_tasks_position_begins_with_its_best_move() -> None:
    task = task_of(HERE, black_best="legacy")
    prompt = next(prompt for prompt in task.prompts() if prompt.task == "P")
    assert isinstance(prompt.answer, chess_text.Annotation)
    other = replace(prompt.answer, fen=chess.STARTING_FEN)
    assert task.gold(replace(prompt, answer=other)).endswith(f"B: {other.moves[0]}")


def test_rows_that_are_no_documents_are_counted_listed_and_never_asked(tmp_path: Path) -> None:
    good_p = next(text for text in TEXTS if text.startswith("P: ") and " w " in text)
    moves = chess_text.parse_p(good_p).moves
    failed = f"A: {START}+e4e5+e4e5+{chess_text.transition(START, 'e4e5', legality='legacy').text()}"
    bad = {
        "no best move": good_p.partition("B:")[0],
        "not a legal one": good_p.replace(moves[0], "a1a1"),
        "label not listed": good_p[: -len(good_p.split()[-1])] + "h8h1",
        "no position": good_p.replace("P: ", "P: x", 1),
        "other answer": f"{START}+e2e4+e2e4+{START}+0.001+0+0",
        "draw of a game that goes on": f"{START}+e2e4+e2e4+{PUSHED}+0.5+1+0",
        "nothing": "once upon a time",
    }
    for text in bad.values():
        with pytest.raises(ValueError):
            row_of(text)
    put(tmp_path, "jsonl", "train", [*TEXTS, *bad.values(), 7, failed, TEXTS[0], TEXTS[0] + "\n<|endoftext|>"])
    with (tmp_path / "train.jsonl").open("a") as file:
        file.write("{broken\n")
    task = task_of(tmp_path)
    counts = task.reading.counts
    assert counts["malformed"] == len(bad) + 2
    assert counts["with an illegal move"] == 1
    assert counts["repeated"] + counts["of another split or not needed"] >= 2
    assert counts.total() == len(TEXTS) + len(bad) + 5
    first, *rest = (line for line in task.notes() if "malformed" in line)
    assert f"{len(bad) + 2} malformed" in first
    assert sum(f"{tmp_path}: malformed: train.jsonl, line " in line for line in rest) == 5
    kept = {row.place: row.text for row in task.reading.malformed}
    wanted = {f"train.jsonl, line {number}": text for number, text in enumerate(bad.values(), start=len(TEXTS) + 1)}
    whole = {1: '{"text": 7}', 5: "{broken"}  # lines without a document are kept as they are
    assert kept == wanted | {f"train.jsonl, line {len(TEXTS) + len(bad) + at}": line for at, line in whole.items()}
    phases = Phases(tasks={"one": task, "two": task_of(HERE)}, schedule=[("one", 1), ("two", None)], total_steps=2,
                    sampling={})  # fmt: skip
    assert malformed_of([phases, object()]) == malformed_of([task]) == task.reading.malformed
    clean = task_of(HERE)
    assert {p.text for s in range(20) for p in task.select(s)} == {p.text for s in range(20) for p in clean.select(s)}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"text": "x", "id": 1}', "no column 'body'; it has text, id"),
        (b"{}", "no column 'body'; it has none"),
        (b'{"body": null}', "no text under 'body'"),
        (b"[]", "not a JSON object"),
        (b"{broken", "not JSON"),
        (b'{"body": "\xff"}', r"not UTF-8 \(invalid start byte at byte 11\)"),
    ],
)
def test_a_row_without_a_text_says_why_and_where_all_are_such_no_more_are_asked_for(
    tmp_path: Path, line: bytes, why: str
) -> None:
    (tmp_path / "train.jsonl").write_bytes(b"\n".join([line] * 9))
    with pytest.raises(DataError, match=rf"all 9 are malformed; train\.jsonl, line \d: {why}$"):
        task_of(tmp_path, column="body")


def test_space_before_an_end_of_text_makes_no_p_row_another(tmp_path: Path) -> None:
    put(tmp_path, "jsonl", "train", [f"\n<|endoftext|>{text}" for text in TEXTS])
    for share in (0.5, 1.0):
        task, plain = task_of(tmp_path, p_share=share), task_of(HERE, p_share=share)
        assert task.reading.counts == plain.reading.counts
        assert task.prompts() == plain.prompts()


def test_rows_without_a_prefix_are_a_rows() -> None:
    bare = [text for text in TEXTS if not text.startswith(("P: ", "A: "))]
    assert len(bare) >= 2
    for text in bare:
        question, move = row_of(text)
        assert (question, move) == row_of(f"A: {text}")
        assert text.startswith(question.fen)


def test_two_analyses_of_one_position_keep_their_own_labels(tmp_path: Path) -> None:
    fen = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq e3 0 1"
    texts = [chess_text.build_p(fen, ["e7e5", "c7c5", last], [-30, -40, -70], last) for last in ("a7a5", "h7h5")]
    put(tmp_path, "txt", "train", [*texts, *(text for text in TEXTS if text.startswith("P: "))])
    task = task_of(tmp_path, p_share=1.0, colours="as_found", black_best="legacy")
    golds = {task.gold(prompt) for step in range(20) for prompt in task.select(step) if fen in prompt.text}
    assert {gold.split()[-1] for gold in golds} == {"a7a5", "h7h5"}


def test_blacks_label_is_corrected_unless_it_is_wanted_as_published() -> None:
    corrected, legacy = task_of(HERE), task_of(HERE, black_best="legacy")
    reward = PolicyReward(best=1.0, candidates=0.0, evals=0.0)
    blacks = 0
    for prompt in (p for step in range(9) for p in corrected.select(step) if p.task == "P"):
        row = prompt.answer
        assert row.evals_cp == tuple(sorted(row.evals_cp, reverse=True))
        (document,) = (text for text in TEXTS if text.startswith(prompt.text))
        said = chess_text.parse_p(document)
        assert dict(said.pairs()) == {m: e / 100 for m, e in zip(row.moves, row.evals_cp, strict=True)}
        labels = [chess_text.parse_p(prompt.text + each.gold(prompt)).best for each in (corrected, legacy)]
        assert labels == [row.moves[0], said.best]
        assert reward.score([prompt], [corrected.gold(prompt)]).rewards.item() == 1
        black = " b " in row.fen
        blacks += black
        assert (labels[0] != labels[1]) == black
    assert blacks


def test_a_quota_that_the_rows_cannot_fill_is_said() -> None:
    task = task_of(HERE, rows=4, eval_rows=100, p_share=0.75)
    counts = Counter(prompt.task for prompt in task.prompts())
    (note,) = (line for line in task.notes() if "asked for" in line)
    assert note.endswith(
        f"evaluation has {counts['P']} P and {counts['A']} A rows where 75 P and 25 A were asked for; "
        "give more rows, or lower task.eval_rows"
    )
    filled = task_of(HERE, rows=None, eval_rows=2)
    assert not any("asked for" in line for line in filled.notes())


def test_a_history_is_no_longer_than_the_game_that_the_counters_tell() -> None:
    """The position after 1. e4 a5 is two half-moves old, whatever is said before it."""
    state = chess_text.transition(PUSHED, "a7a5", legality="legacy").new_fen
    moves = ["e2e4", "a7a5", "d2d4"]
    right = chess_text.build_a(state, "d2d4", moves, chess_text.transition(state, "d2d4", legality="legacy"))
    assert row_of(right)[1] == "d2d4"
    assert row_of(right.replace("+e2e4 a7a5 d2d4+", "+d2d4+"))[1] == "d2d4", "a history may be shorter"
    longer = right.replace("+e2e4 a7a5 d2d4+", "+h7h6 e2e4 a7a5 d2d4+")
    with pytest.raises(ValueError, match=r"^history has 3 half-moves before 'd2d4', but the fen's counters allow 2$"):
        row_of(longer)
    unknown = longer.replace("w KQkq - 0 2+", "w KQkq - 0 1+").replace("b KQkq - 0 2+", "b KQkq - 0 1+")
    assert row_of(unknown)[1] == "d2d4", "counters that nobody kept"
    first = f"{START}+e2e4+a7a5 b2b4 h8h1 e2e4+{PUSHED}+0.001+0+0"
    with pytest.raises(ValueError, match="history has 3 half-moves before 'e2e4', but the fen's counters allow 0"):
        row_of(first)


@pytest.mark.parametrize("value", ["1000.01", "-1000.01", "99999"])
def test_no_evaluation_is_beyond_that_of_a_mate(value: str) -> None:
    text = "P: " + START + " M: e2e4 d2d4 E: {} 0.3 B: d2d4"
    assert sorted(row_of(text.format("-1000.0"))[0].evals_cp) == [-chess_text.MATE_CP, 30]
    with pytest.raises(ValueError, match=f"^no evaluation: {value}, as mate in n is 1000 - n/100 pawns$"):
        row_of(text.format(value))


def test_quotas_end_the_reading_and_shares_of_none_read_none_of_a_kind() -> None:
    task = task_of(HERE, rows=4, eval_rows=2, p_share=0.5)
    assert len({p.text for step in range(9) for p in task.select(step)}) == 4
    assert Counter(prompt.task for prompt in task.prompts()) == {"P": 1, "A": 1}
    alone = task_of(HERE, p_share=0.0)
    assert {prompt.task for step in range(9) for prompt in alone.select(step)} == {"A"}
    assert alone.kinds == ("A",)
    assert alone.gold(alone.select(0)[0]) == alone.select(0)[0].answer.text()


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file or folder, and not a Hub id"):
        task_of(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no revision 'main'"):
        task_of(HERE, revision="main")
    with pytest.raises(DataError, match=r"no file of it matches '\*train\*' .*; task.files='\*' takes all"):
        task_of(tmp_path)
    with pytest.raises(DataError, match="; it is empty$"):
        task_of(tmp_path, files="*")
    put(tmp_path / "other", "json", "train", TEXTS[:1])
    with pytest.raises(DataError, match="; it has train.json$"):
        task_of(tmp_path / "other", files="*")
    put(tmp_path, "txt", "train", TEXTS[:1])
    with pytest.raises(DataError, match=r"matches 'tset' .*; allowed in task.evaluate: validation, test, or"):
        task_of(tmp_path, evaluate="tset")
    with pytest.raises(
        DataError, match=r"no A rows for train; .*\(task.p_share=1\); a hash of .*; 1 P for train of 1 rows"
    ):
        task_of(tmp_path)
    put(tmp_path, "txt", "train", [])
    with pytest.raises(DataError, match="; no rows in it"):
        task_of(tmp_path)
    for name in ("train", "valid"):
        put(tmp_path / "both", "txt", name, TEXTS[:3])
    with pytest.raises(DataError, match=r"no P rows for evaluation; .*; rows of \*valid\* at positions that"):
        task_of(tmp_path / "both", evaluate="*valid*", p_share=1.0)


def test_a_parquet_file_that_is_none_and_a_missing_library_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "train.parquet").write_bytes(b"nonsense")
    with pytest.raises(DataError, match="cannot be read"):
        shards.find(str(tmp_path), None, "*.parquet", "text")
    put(tmp_path, "parquet", "train", TEXTS)
    whole = (tmp_path / "train.parquet").read_bytes()
    (tmp_path / "train.parquet").write_bytes(whole[:4] + bytes(len(whole) // 3) + whole[4 + len(whole) // 3 :])
    with pytest.raises(DataError, match=r"train\.parquet, row \d+: cannot be read .*; copy or download"):
        task_of(tmp_path, files="*.parquet")
    put(tmp_path, "parquet", "train", TEXTS)
    with pytest.raises(DataError, match="no column 'document'; it has id, text"):
        shards.find(str(tmp_path), None, "*.parquet", "document")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"pip install 'rookexp\[data\]'"):
        shards.find(str(tmp_path), None, "*.parquet", "text")


def test_a_parquet_row_that_is_not_utf8_is_a_malformed_row(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    texts = [*(text.encode() for text in TEXTS), b"P: \xff"]
    wrong = pyarrow.array(texts, pyarrow.binary()).view(pyarrow.string())  # as a careless writer stores it
    parquet.write_table(pyarrow.table({"text": wrong}), tmp_path / "train.parquet")
    task = task_of(tmp_path)
    said = f"{tmp_path}: malformed: train.parquet, row {len(texts)}: not UTF-8 (invalid start byte at byte 4)"
    assert said in task.notes()
    assert {prompt.text for prompt in task.prompts()} == {prompt.text for prompt in task_of(HERE).prompts()}


def test_of_the_hub_only_the_files_that_match_are_asked_at_the_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "data", "txt", "train-0", TEXTS)
    asked: list[Any] = []

    def snapshot_download(repo: str, **options: Any) -> str:
        asked.append((repo, options))
        if options["revision"] == "gone":
            raise FileNotFoundError("cannot be reached\nand more")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    found, _ = shards.find("someone/some_data", "abc123", "*train*", "text")
    assert [len(shard) for shard in found] == [len(TEXTS)]
    assert asked == [
        ("someone/some_data", {"repo_type": "dataset", "revision": "abc123", "allow_patterns": ["*train*"]})
    ]
    with pytest.raises(DataError, match=r"no download \(cannot be reached\).*--repo-type dataset"):
        shards.find("someone/some_data", "gone", "*train*", "text")


def test_every_order_is_equally_likely_and_every_row_comes_once(tmp_path: Path) -> None:
    orders = Counter(tuple(shards.permuted(3, random.Random(seed))) for seed in range(3000))
    assert len(orders) == 6
    assert all(abs(count - 500) < 100 for count in orders.values())
    put(tmp_path, "txt", "a", [f"a{i}" for i in range(5000)])
    put(tmp_path, "txt", "b", [f"b{i}" for i in range(300)])
    rows = list(shards.shuffled(shards.find(str(tmp_path), None, "*", "text")[0], "7"))
    assert len(rows) == len(set(rows)) == 5300
    assert all(text == f"{place[0]}{int(place.split()[-1]) - 1}" for place, text in rows)
    late = sum(text[0] == "b" for _, text in rows[:2650])
    assert 110 < late < 190  # the smaller file's rows are spread over all


def test_published_rows_are_read_whole_and_blacks_are_corrected(shared_dir: Path) -> None:
    rows = [row_of(text) for text in (shared_dir / "data" / "rook_val_sample.txt").read_text().splitlines()]
    worst = {" w ": 0, " b ": 0}
    for row, label in rows:
        assert row.evals_cp == tuple(sorted(row.evals_cp, reverse=True))
        assert label in row.moves
        side = " b " if " b " in row.fen else " w "
        worst[side] += row.evals_cp[row.moves.index(label)] < row.evals_cp[0]
    assert worst[" w "] == 0
    assert worst[" b "] > 40
