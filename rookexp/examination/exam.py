"""What a model can do: its figures on held-out documents, on mates in one, and on games against itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, MinLen

from rookexp import chess_text
from rookexp.errors import ConfigError, DataError
from rookexp.examination import exam_page
from rookexp.examination.answers import Answers
from rookexp.examination.exam_page import Part, Shown
from rookexp.examination.heldout import HeldOut, held_out, prompt_of, token_documents
from rookexp.files import write_atomic
from rookexp.policies import Pretrained
from rookexp.rewards.engine import ALL_MOVES, Lasting, Stockfish
from rookexp.tasks import games, made, mates, reading
from rookexp.tasks.a_figures import environment_figures, same
from rookexp.tasks.figures import Figure, Figures, mean_of, ratio_of
from rookexp.tasks.mates import Problem
from rookexp.tasks.p_figures import best_moves, policy_figures
from rookexp.track import METRICS
from rookexp.types import Autocast

FIGURES, COMPLETIONS, GAMES, PAGE = "figures.json", "completions.jsonl", "games.jsonl", "evaluation.html"
RECORD = "evaluation.json"
ENGINE_TIMEOUT_S = 60.0
ENGINE_RETRIES = 2  # of a position whose engine crashes or hangs
NAMED = 3  # so many problems that cannot be read are named; all are counted


@dataclass(kw_only=True, eq=False)
class Exam:
    """A model's answers to prompts that it has not been trained on, and their figures."""

    policy: Pretrained
    autocast: Autocast
    head_chunk: int
    name: str
    folder: Path
    record: Mapping[str, Any]  # what is evaluated, how and by what code
    documents: Annotated[Sequence[str], MinLen(1)]
    limit: Annotated[int, Ge(1)] | None
    p_style: Literal["bare", "padded_prefill"] | None  # build puts the style of the model's run in place of null
    max_new_tokens: Annotated[int, Ge(1)]
    batch: Annotated[int, Ge(1)]
    illegal_moves: Annotated[int, Ge(0)]
    mates: Sequence[str]
    games: Annotated[int, Ge(0)]
    plies: Annotated[int, Ge(1)]
    temperature: Annotated[float, Ge(0)]
    top_k: Annotated[int, Ge(1)] | None
    seed: Annotated[int, Ge(0)]
    engine: Literal["stockfish"] | None
    engine_path: str | None
    engine_nodes: Annotated[int, Ge(1)]

    def __post_init__(self) -> None:
        self.answers = Answers(
            policy=self.policy,
            autocast=self.autocast,
            head_chunk=self.head_chunk,
            batch=self.batch,
            max_new_tokens=self.max_new_tokens,
        )
        self.cut_off = f"cut off at {self.max_new_tokens} tokens"
        self.prompt = chess_text.P_PROMPTS[self.p_style or "bare"]
        self.asked: list[str] = []  # the P documents of all files
        self.readings: dict[str, reading.Reading] = {}  # of the files of documents, by name
        self.known: dict[str, dict[str, int]] | None = None  # Stockfish's evaluations of them; see `values`

    def run(self, tell: Callable[[str], object]) -> dict[str, Figures]:
        """Figures by part; writes them and their page into the folder.

        The files: figures.json, completions.jsonl, games.jsonl, evaluation.html, malformed.jsonl if rows are, and, on
        how it was done, evaluation.json, with what became of each file's rows. `tell` gets the first malformed rows of
        each file, then each part's figures as text as soon as they are known.

        Raises, before any answer: DataError where a file cannot be read or has nothing that can be used; EngineError;
        ConfigError for a training's folder.
        """
        waiting = [*self.document_parts(), *self.made_parts(), *self.mate_parts(), *self.game_parts()]
        self.known = self.values()
        if (self.folder / METRICS).exists():
            raise ConfigError(
                f"hydra.run.dir={self.folder}: the folder of a training, whose {COMPLETIONS} would be lost; allowed: "
                "another one"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in (FIGURES, GAMES, PAGE):  # an earlier evaluation's are not of these answers
            (self.folder / name).unlink(missing_ok=True)
        rows = {name: dict(read.counts) for name, read in self.readings.items()}
        malformed = [row for read in self.readings.values() for row in read.malformed]
        reading.write(malformed, self.folder)
        write_atomic(self.folder / RECORD, json.dumps({**self.record, "rows": rows}, indent=2) + "\n")
        parts: list[Part] = []
        with open(self.folder / COMPLETIONS, "w", encoding="utf-8") as answers:
            tell(self.name)
            for name, read in self.readings.items():
                if read.malformed:
                    tell("\n".join(f"{name}: {line}" for line in read.notes()))
            for line in reading.note_of(malformed, self.folder):
                tell(line)
            for make in waiting:
                for part in make():
                    parts.append(part)
                    width = max(map(len, part.figures))
                    lines = [f"  {name:<{width}} {figure}" for name, figure in part.figures.items()]
                    tell("\n".join([f"\n{part.name}: {part.about} (95 % intervals)", *lines]))
                    for shown in part.shown:
                        row = {"part": part.name, **asdict(shown)}
                        answers.write(json.dumps(row) + "\n")
        plain = {part.name: {name: f.record() for name, f in part.figures.items()} for part in parts}
        write_atomic(self.folder / FIGURES, json.dumps(plain, indent=2) + "\n")
        write_atomic(self.folder / PAGE, exam_page.html(self.name, parts))
        tell(f"\npage: {self.folder / PAGE}")
        return {part.name: part.figures for part in parts}

    # ---- documents ---------------------------------------------------------------------------------------------

    def document_parts(self) -> Iterator[Callable[[], Iterator[Part]]]:
        """Yields a part for each task of each file, and one of illegal moves in the positions of its A documents."""
        needed = {"P": self.limit, "A": None if self.limit is None else max(self.limit, self.illegal_moves)}
        for file in of_different_names(self.documents):
            parts, read = held_out(file, needed)
            self.readings[file.name] = read
            for task, part in parts.items():
                yield self.document_part(f"{file.name}, {task}", file, part, self.limit, read.counts["malformed"])
            illegal = made.illegal_moves(parts["A"].usable, self.illegal_moves, self.seed) if "A" in parts else []
            if illegal:
                yield self.document_part(f"{file.name}, A, illegal moves", file, made_documents(illegal), None)

    def made_parts(self) -> Iterator[Callable[[], Iterator[Part]]]:
        """Yields a part of all first moves of a game: they are few, and models get them wrong."""
        first = made_documents(made.first_move_documents())
        yield self.document_part("first moves, A", Path("first moves"), first, None)

    def document_part(
        self, name: str, file: Path, part: HeldOut, limit: int | None, malformed: int = 0
    ) -> Callable[[], Iterator[Part]]:
        """The part of the documents of one task, the first `limit`; `malformed` rows of their file are left out."""
        golds, total = part.usable[:limit], len(part.questions)
        out = {"that repeat a question": part.repeated, "malformed rows of the file": malformed}
        left_out = ", ".join(f"{count} {what}" for what, count in out.items() if count)
        about = counted(len(golds), total, "documents") + (f"; left out: {left_out}" if left_out else "")
        prompts = [prompt_of(gold, self.p_style or "bare") for gold in golds]
        tokens = token_documents(self.policy, file, golds)
        self.asked += [gold for gold in golds if gold.startswith("P: ")]

        def make() -> Iterator[Part]:
            completions, cut = self.answers.greedy(prompts)
            rows = list(zip(prompts, completions, golds, strict=True))
            if golds[0].startswith("P: "):
                known = None if self.known is None else [self.known[gold] for gold in golds]
                figures = policy_figures(golds, completions, prompts, known)
                shown = [policy_shown(*row, best_moves(row[2])) for row in rows]
            else:
                figures = environment_figures(golds, completions)
                shown = [environment_shown(*row) for row in rows]
            figures[self.cut_off] = Figure(cut, len(golds))
            nats, counts = self.answers.nats(tokens)
            figures["cross-entropy, nats a completion token"] = ratio_of(nats, counts)
            figures["cross-entropy, nats a document"] = mean_of(nats)
            yield Part(name, about, figures, shown)

        return make

    def values(self) -> dict[str, dict[str, int]] | None:
        """P document -> legal move -> Stockfish's evaluation in centipawns; None without an engine.

        Raises: EngineError.
        """
        if self.engine is None:
            return None
        path, nodes = self.engine_path, self.engine_nodes
        start = partial(Stockfish, path=path, nodes=nodes, depth=None, multipv=ALL_MOVES, timeout_s=ENGINE_TIMEOUT_S)
        engine = Lasting(start, retries=ENGINE_RETRIES)
        try:
            engine.started()  # if it is missing, nothing is repeated
            found: dict[str, dict[str, int]] = {}
            for gold in self.asked:
                parsed = chess_text.parse_p(gold)
                board = None if parsed is None else chess_text.board_of(parsed.fen)
                found[gold] = {} if board is None else {line.move.uci(): line.eval_cp for line in engine.lines(board)}
            return found
        finally:
            engine.close()

    # ---- mates in one ------------------------------------------------------------------------------------------

    def mate_parts(self) -> Iterator[Callable[[], Iterator[Part]]]:
        """Yields a part for each file of problems."""
        for file in of_different_names(self.mates):
            problems, skipped = mates.read(file)
            yield partial(self.mate_part, file, problems[: self.limit], len(problems), skipped)

    def mate_part(self, file: Path, problems: Sequence[Problem], total: int, skipped: Sequence[str]) -> Iterator[Part]:
        """The part of `problems`, the first of the `total` that a file has."""
        prompts = [self.prompt(problem.fen) for problem in problems]
        completions, cut = self.answers.greedy(prompts)
        about = counted(len(problems), total, "positions")
        if skipped:
            named = "; ".join(skipped[:NAMED])
            about += f", {len(skipped)} examples of the file cannot be used: {named}" + "; ..." * (len(skipped) > NAMED)
        shown = [
            policy_shown(prompt, completion, " ".join(problem.mates), problem.mates)
            for prompt, completion, problem in zip(prompts, completions, problems, strict=True)
        ]
        figures = mates.mate_figures(problems, completions, prompts) | {self.cut_off: Figure(cut, len(problems))}
        yield Part(f"{file.name}, mate in one", about, figures, shown, best_is=("mates", "a mate is"))

    # ---- games -------------------------------------------------------------------------------------------------

    def game_parts(self) -> Iterator[Callable[[], Iterator[Part]]]:
        """Yields what makes the parts of self-play and of the environment's answers along the same games."""
        if self.games:
            yield self.play

    def play(self) -> Iterator[Part]:
        """The parts of the games; writes games.jsonl."""
        played = games.play(
            partial(self.answers.sampled, temperature=self.temperature, top_k=self.top_k),
            self.prompt,
            games=self.games if self.temperature else 1,
            plies=self.plies,
            seed=self.seed,
        )
        count = f"{len(played)} game{'' if len(played) == 1 else 's'}"
        about = f"{count}, temperature {self.temperature}, top-k {self.top_k or 'none'}"
        if not self.temperature:
            about = f"{count}, temperature 0: every game would be the same"
        yield Part("self-play", about, games.self_play_figures(played, self.plies), [])
        steps = [games.steps_of(game) for game in played]
        completions = iter(self.answers.greedy([step.prompt for game in steps for step in game])[0])
        shown = [[environment_shown(s.prompt, next(completions), s.prompt + s.text) for s in game] for game in steps]
        right = [[answer.right for answer in game] for game in shown]
        figures = games.closed_loop_figures(played, right, self.plies)
        yield Part("closed loop", about, figures, [answer for game in shown for answer in game])
        rows = [
            {"moves": " ".join(game.moves), "end": game.end, "said": game.said, "followed": games.followed(exact)}
            for game, exact in zip(played, right, strict=True)
        ]
        write_atomic(self.folder / GAMES, "".join(json.dumps(row) + "\n" for row in rows))


def counted(asked: int, total: int, what: str) -> str:
    """How much of a file is asked, in words."""
    return f"{total} {what}" if asked == total else f"the first {asked} of {total} {what}"


def made_documents(texts: Sequence[str]) -> HeldOut:
    """Documents that were made here, each once."""
    different = list(dict.fromkeys(texts))
    return HeldOut(different, set(different), len(texts) - len(different))


def of_different_names(paths: Sequence[str]) -> list[Path]:
    """The files. Raises: DataError for two of the same name."""
    files = [Path(path).expanduser() for path in paths]
    if len({file.name for file in files}) < len(files):
        names = ", ".join(map(str, files))
        raise DataError(f"{names}: files of one name cannot be told apart in the figures; evaluate one at a time")
    return files


def policy_shown(prompt: str, completion: str, gold: str, best: Sequence[str]) -> Shown:
    """A P answer; right where B is one of `best`."""
    chosen = chess_text.p_answer(prompt, completion).best
    found = chosen if chosen in best else None
    return Shown(prompt, completion, gold, right=found is not None, best=found or best[0])


def environment_shown(prompt: str, completion: str, gold: str) -> Shown:
    """An A answer; right where it is exact."""
    pair = (chess_text.parse_a_completion(text) for text in (completion, gold[len(prompt) :]))
    return Shown(prompt, completion, gold, right=same(*pair), best=None)
