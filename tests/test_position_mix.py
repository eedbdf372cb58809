"""Positions by exact quotas: shares, colours, plies and pieces are what was asked, and the files say the same."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import chess
import pytest

from rookexp.corpora.position_mix import PositionMix, report
from rookexp.errors import ConfigError, DataError, PartError
from rookexp.files import write_lines
from rookexp.tasks.positions import position_key

SHARES = {"opening": 0.2, "middlegame": 0.6, "endgame": 0.2}


def mix(**changes: Any) -> PositionMix:
    options: dict[str, Any] = {
        "positions": 60,
        "shares": SHARES,
        "opening_plies": 10,
        "middlegame_plies": [8, 20],
        "endgame_pieces": 14,
        "sheet": 8,
        "seed": 1,
    }
    return PositionMix(**options | changes)


@pytest.mark.parametrize(("count", "kinds"), [(60, (12, 36, 12)), (33, (7, 20, 6)), (5, (1, 3, 1))])
def test_quotas_and_colours_are_exact(count: int, kinds: tuple[int, ...]) -> None:
    found = mix().make(count)
    assert tuple(Counter(each.kind for each in found).values()) == kinds
    for kind in (None, *SHARES):
        turns = Counter(each.board.turn for each in found if kind in (None, each.kind))
        assert abs(turns[chess.WHITE] - turns[chess.BLACK]) <= 1


def test_positions_are_running_distinct_and_what_their_kind_says() -> None:
    found = mix().make(60)
    assert len({position_key(each.board) for each in found}) == 60
    for each in found:
        assert each.board.is_valid()
        assert not each.board.is_game_over()
        match each.kind:
            case "opening":
                assert 0 <= each.plies <= 10
            case "middlegame":
                assert 8 <= each.plies <= 20
                assert each.pieces >= 14
            case "endgame":
                assert each.plies is None
                assert each.pieces < 14
    assert all(each.pieces < 6 for each in mix(shares={"endgame": 1.0}, endgame_pieces=6).make(12))
    assert {each.plies for each in mix(shares={"middlegame": 1.0}, middlegame_plies=[9, 12]).make(9)} <= {9, 10, 11, 12}


def test_the_mix_follows_from_the_seed() -> None:
    fens = [[each.board.fen() for each in mix(seed=seed).make(20)] for seed in (1, 1, 2)]
    assert fens[0] == fens[1] != fens[2]


def test_the_files_are_the_positions_their_report_and_a_sheet(tmp_path: Path) -> None:
    text = mix().write(tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "positions.jsonl").read_text().splitlines()]
    assert [row["fen"] for row in rows] == [each.board.fen(en_passant="fen") for each in mix().make(60)]
    said = json.loads((tmp_path / "positions.json").read_text())
    assert said == json.loads(text) == report(mix().make(60))
    assert (said["positions"], said["white to move"], said["black to move"]) == (60, 30, 30)
    middle = [row for row in rows if row["kind"] == "middlegame"]
    assert said["kinds"]["middlegame"]["positions"] == len(middle) == 36
    assert said["kinds"]["middlegame"]["plies"]["most"] == max(row["plies"] for row in middle)
    sheet = ElementTree.parse(tmp_path / "positions.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    heading, *captions = [text.text for text in sheet.iter(f"{space}text")]
    assert heading == "8 positions, the side to move below"
    assert len(captions) == 8
    assert Counter(caption.split(",")[0] for caption in captions) == {"opening": 2, "middlegame": 5, "endgame": 1}
    drawn = [len(list(group)) - 1 for group in sheet.findall(f"{space}g")]
    assert drawn == [int(caption.split(" pieces")[0].split()[-1]) for caption in captions]


def test_what_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no further opening with black to move"):
        mix(shares={"opening": 1.0}, opening_plies=0).make(2)
    with pytest.raises(ConfigError, match=r"mix\.shares=\{opening: 0\.5\}: sums to 0\.5"):
        mix(shares={"opening": 0.5})
    with pytest.raises(PartError, match=r"^middlegame_plies=\[20, 8\]: allowed: the smallest number first, then"):
        mix(middlegame_plies=[20, 8])
    mix(middlegame_plies=[9, 9])
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        mix(positions=2, shares={"endgame": 1.0}).write(tmp_path / "file")


def test_a_file_that_cannot_be_written_takes_no_room_on_the_disk(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(DataError, match="taken: cannot be written"):
        write_lines(tmp_path / "taken", ["a line"])
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_other_positions_in_the_folder_are_not_lost(tmp_path: Path) -> None:
    few = mix(positions=2, shares={"endgame": 1.0})
    assert few.write(tmp_path) == few.write(tmp_path), "the same ones may be made again"
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "positions.json").unlink()
    with pytest.raises(DataError, match=r"positions\.jsonl: is there already and would be lost; give another folder"):
        mix(positions=2, shares={"endgame": 1.0}, seed=9).write(tmp_path)
    del before["positions.json"]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
