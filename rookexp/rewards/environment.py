"""Rewards of A completions, by comparison with the transition that the oracle gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rookexp.chess_text import (
    END_OF_TEXT,
    OUTCOMES,
    EnvironmentAnswer,
    FenMatch,
    Transition,
    board_of,
    match,
    parse_a_completion,
    parse_a_prompt,
)
from rookexp.errors import DataError
from rookexp.rewards.rows import Row, scored
from rookexp.types import Prompt, Scores

FEN_RIGHT, FEN_WRONG, FEN_SIMILAR, SUFFIX_NONE, SUFFIX_SIMILAR = 0.8, -0.8, 0.6, -0.2, 0.4
FOUR_FIELDS, FIELD_FORMED = 0.01, 0.005
SCHEMA_FEN = {"right": 0.5, "fullmove": -0.3, "wrong": -0.7}
KINGS_RIGHT, KINGS_WRONG = 0.01, -0.2


@dataclass(frozen=True, slots=True)
class Given:
    """A parsed A completion."""

    text: str  # up to the end of text, without outer spaces
    answer: EnvironmentAnswer
    fen: FenMatch  # which fields of the right position it gives

    @property
    def formed(self) -> bool:
        """True for exactly four fields: one with a slash, as a position has, a number and two flags."""
        return self.answer.valid and "/" in self.answer.new_fen


class AJudged:
    """The base class of rewards of A completions; `worth` scores each completion by itself."""

    def worth(self, given: Given, truth: Transition) -> Row:
        """The `reward` of a completion, and its components by name."""
        raise NotImplementedError

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scores:
        """Rewards (N,) of N = P x G completions of A prompts, row p*G+g for prompt p; each depends on its row alone.

        Parts (N,): the components; `state_valid` 1 where `Given.formed`; `exact` 1 where the completion is exactly the
        right one; `fen_strict`, `fen_lenient`, `fen_board` 1 where all six, the first four and the first field of the
        position are right; `recall_ongoing`, `recall_mate`, `recall_draw`, `recall_failed` 1 where reward and flags
        are right, NaN in rows with another true outcome.
        Raises: DataError for a prompt that is not an A prompt with its transition.
        """
        return scored(prompts, texts, self._reader)

    def _reader(self, prompt: Prompt) -> Callable[[str], Row]:
        truth = prompt.answer
        if not isinstance(truth, Transition) or parse_a_prompt(prompt.text) is None:
            said = f"not an A prompt with its transition: {prompt.text!r}"
            raise DataError(f"{said}; reward=rookworld has a reward for each task")

        def row(text: str) -> Row:
            text = text.split(END_OF_TEXT, 1)[0].strip()
            answer = parse_a_completion(text)
            given = Given(text, answer, match(answer.new_fen, truth.new_fen))
            return {**self.worth(given, truth), **_diagnostics(given, truth)}

        return row


class Exact(AJudged):
    """1 for exactly the right completion, else 0."""

    def worth(self, given: Given, truth: Transition) -> Row:
        """`reward` 1 or 0."""
        return {"reward": float(given.text == truth.text())}


class Levenshtein(AJudged):
    """Similarity by edits, in [-1, 1]: 0.8 for the right position, else -0.8 + 0.6 s; plus -0.2 + 0.4 s for the rest.

    s is 1 - edits / length of the longer text. The right completion earns 1.0, a wrong position less than 0.
    Source: RookWorld TRL's last A reward. Repaired: a mate is expected as the data write it, `1.0+1+0`.
    """

    def worth(self, given: Given, truth: Transition) -> Row:
        """`reward`, and the similarities `fen` and `suffix`."""
        true_suffix = truth.text().partition("+")[2]
        fen, suffix = similarity(given.answer.new_fen, truth.new_fen), given.text.partition("+")[2]
        tail = similarity(suffix, true_suffix)
        head = FEN_RIGHT if given.fen.strict else FEN_WRONG + FEN_SIMILAR * fen
        reward = max(-1.0, min(1.0, head + (SUFFIX_NONE + SUFFIX_SIMILAR * tail)))
        return {"reward": reward, "fen": fen, "suffix": tail}


class Schema(AJudged):
    """schema + fen + validity, in [-0.9, 0.54]: form and position; reward and flags are never compared.

    schema: 0.01 for four fields and 0.005 each for six words of a position, a number and two flags. fen: 0.5 right,
    -0.3 where only the move number is wrong, else -0.7. validity: 0.01 for a position with as many kings of each
    colour as the right one, else -0.2. The right completion earns 0.54, as does one with another reward and flags.
    Source: RookWorld TRL's A reward in its sweeps. Repaired: moves that cannot be played have a right answer too.
    """

    def worth(self, given: Given, truth: Transition) -> Row:
        """`reward`, and the terms `schema`, `fen`, `validity`."""
        answer, words, right = given.answer, given.answer.new_fen.split(), truth.new_fen.split()
        fields = (
            len(words) == 6,
            answer.reward is not None,
            answer.terminated is not None,
            answer.truncated is not None,
        )
        schema = FOUR_FIELDS * (given.text.count("+") == 3) + FIELD_FORMED * sum(fields)
        nearly = len(words) == 6 and words[:5] == right[:5]
        fen = SCHEMA_FEN["right" if given.fen.strict else "fullmove" if nearly else "wrong"]
        kings = board_of(answer.new_fen) is not None and all(words[0].count(k) == right[0].count(k) for k in "Kk")
        validity = KINGS_RIGHT if kings else KINGS_WRONG
        return {"reward": math.fsum((schema, fen, validity)), "schema": schema, "fen": fen, "validity": validity}


def _diagnostics(given: Given, truth: Transition) -> Row:
    answer = given.answer
    said = (answer.reward, answer.terminated, answer.truncated)
    true = (truth.reward, truth.terminated, truth.truncated)
    right = float(answer.valid and said == true)
    return {
        "state_valid": float(given.formed),
        "exact": float(given.text == truth.text()),
        "fen_strict": float(given.fen.strict),
        "fen_lenient": float(given.fen.lenient),
        "fen_board": float(given.fen.board),
        **{f"recall_{kind}": right if true == outcome else math.nan for outcome, kind in OUTCOMES.items()},
    }


def similarity(a: str, b: str) -> float:
    """1 - Levenshtein distance / length of the longer, in [0, 1]; 1 for two empty texts."""
    return 1.0 - levenshtein(a, b) / max(1, len(a), len(b))


def levenshtein(a: str, b: str) -> int:
    """The least number of characters to insert, delete or replace that turns one text into the other."""
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    a, b = a[same:], b[same:]
    row = list(range(len(b) + 1))  # distances of the part of `a` read so far to each prefix of `b`
    for i, letter in enumerate(a, start=1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(b, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (letter != other))
    return row[-1]
