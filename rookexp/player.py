"""Finds a move for a position: the one of the model's P answer, read in one of two ways, or a legal substitute."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rookexp import chess_text, generate, ops
from rookexp.draw import Sampling
from rookexp.objectives.rollouts import completion_texts
from rookexp.tokenizers import Tokenizer
from rookexp.types import Autocast
from rookexp.uci_protocol import Answer, Settings


@dataclass(frozen=True, kw_only=True)
class Player:
    """A model that answers one position at a time."""

    model: generate.Decoder
    tokenizer: Tokenizer
    autocast: Autocast

    def answer(
        self, fen: str, legal: Collection[str], settings: Settings, turn: int, stopped: Callable[[], bool]
    ) -> Answer:
        """The answer to the position `fen` with a move of `legal`, which is not empty; `turn` varies the random draws.

        At temperature 0 it depends on the position alone, unless it was `stopped` or its move is a random legal one.
        """
        prompt = chess_text.P_PROMPTS[settings.p_style or "bare"](fen)
        return choose(prompt + self.complete(prompt, settings, turn, stopped), legal, settings, turn)

    def complete(self, prompt: str, settings: Settings, turn: int, stopped: Callable[[], bool]) -> str:
        """The model's completion of a prompt; once `stopped` returns True, it ends with the token being generated.

        Raises: DataError if the model has too few positions for the prompt.
        """
        sampling = Sampling(
            temperature=settings.temperature, top_k=None, top_p=None, max_new_tokens=settings.max_new_tokens
        )
        seeds = [ops.seed_of(settings.seed, "uci", turn)]
        ids = self.tokenizer.encode(prompt)
        model = Stoppable(self.model, stopped, self.tokenizer.eot_id)
        with self.autocast():
            samples = generate.sample(model, [ids], seeds, sampling, self.tokenizer.eot_id)
        (text,) = completion_texts(samples, self.tokenizer)
        return text


@dataclass(frozen=True)
class Stoppable:
    """A decoder that only yields end-of-text once it is stopped; recorded GPU steps run on to the end."""

    model: Any
    stopped: Callable[[], bool]
    eot_id: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def packed(self) -> Any:
        """The model's packed copy, which can be stopped as well, unless its steps are recorded."""
        packed = self.model.packed()
        return packed if self.model.replays is not None else Stoppable(packed, self.stopped, self.eot_id)

    def logits(self, hidden: Tensor) -> Tensor:
        """The model's logits; once stopped, -inf for every token but end-of-text."""
        logits: Tensor = self.model.logits(hidden)
        if self.stopped():
            logits.fill_(-float("inf"))[..., self.eot_id] = 0.0
        return logits


def choose(text: str, legal: Collection[str], settings: Settings, turn: int) -> Answer:
    """The answer in a whole P document; its move is in `legal`, whatever the document says."""
    parsed = chess_text.parse_p(text)
    pairs = (parsed.pairs() if parsed else None) or []
    ranked = sorted(pairs, key=lambda pair: -pair[1])
    listed = [move for move, _ in ranked] or list(parsed.moves if parsed else ())
    if settings.reading == "written":
        wanted = parsed.best if parsed else None
    else:
        wanted = ranked[0][0] if ranked else None
    move, instead = wanted, None
    if move is None or move not in legal:
        move = next((m for m in listed if m in legal), None) if settings.illegal_move == "best_listed" else None
        instead = "the best legal move of its list"
        if move is None:
            move = random.Random(ops.seed_of(settings.seed, "fallback", turn)).choice(sorted(legal))
            instead = "any legal move"
        said = "no move" if wanted is None else f"{wanted}, which cannot be played"
        instead = f"{said}: {move} instead, {instead}"
    evals = {m: chess_text.pawns_to_cp(pawns) for m, pawns in reversed(ranked) if m in legal}  # a move's highest
    others = sorted((m for m in evals if m != move), key=lambda m: -evals[m])
    return Answer(move=move, lines=tuple((m, evals.get(m)) for m in [move, *others]), instead=instead)
