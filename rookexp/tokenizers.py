"""One interface over tokenizer files: text to token ids and back. Only this module knows the `tokenizers` library."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from rookexp.errors import DataError, why
from rookexp.files import write_atomic

CONFIG = "tokenizer_config.json"
END_OF_TEXT = "<|endoftext|>"
UNKNOWN = "<|unknown|>"
LONGEST_SPACE_RUN = 64
AT_ONCE = 4096  # texts; what `tokenizers` keeps of each takes 20 times the memory of its ids
EMPTY = "_"
PIECES = EMPTY + "pnbrqkPNBRQK"
RANKS = [chr(0x2460 + i) for i in range(8)]  # circled digits
FILES = [chr(0x24D0 + i) for i in range(8)]  # circled letters
STARTS = [chr(0x2800 + i) for i in range(64)]  # Braille patterns: the square that a move started from
RANK_ENDS = [chr(0x2474 + i) for i in range(8)]  # digits in parentheses, gone after normalising
BOARD_END = r" [wb] (?:-|K?Q?k?q?) "
SQUARE_AWARE_SPLIT = (
    rf"[{RANKS[0]}-{RANKS[7]}][{FILES[0]}-{FILES[7]}][{PIECES}]/?"
    r"|[PAMEB]:| ?[a-h][1-8]| ?-?(?:999|1\d\d|[1-9]\d|\d)(?!\d)|\.(?:001|\d{1,2})| {1,64}|[\s\S]"
)


class Tokenizer:
    """Text to token ids and back. Ids come from text alone: no special token is added or read from the text."""

    def __init__(self, backend: tokenizers.Tokenizer, source: str) -> None:
        eot_id = backend.token_to_id(END_OF_TEXT)
        if eot_id is None:
            raise DataError(f"{source}: the vocabulary has no {END_OF_TEXT} token; use the tokenizer files of a GPT-2")
        if backend.num_special_tokens_to_add(is_pair=False):
            raise DataError(
                f"{source}: its post_processor puts special tokens around a text, and here none are; where the "
                "model was trained without them write null in its place"
            )
        backend.no_padding()
        backend.no_truncation()
        backend.add_special_tokens([END_OF_TEXT])  # in the vocabulary already: only marks it, so that decode skips it
        backend.encode_special_tokens = True  # the text "<|endoftext|>" is ordinary text, never the delimiter
        self.backend = backend
        self.eot_id: int = eot_id  # the delimiter before and the stop after a document

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """The tokenizer of tokenizer.json, or else of vocab.json and merges.txt (byte-level BPE as in GPT-2).

        Raises: DataError if the folder has neither, if a file cannot be read, or if it needs more than this class does.
        """
        whole, vocab, merges = folder / "tokenizer.json", folder / "vocab.json", folder / "merges.txt"
        try:
            if whole.is_file():
                return cls(tokenizers.Tokenizer.from_file(str(whole)), str(whole))
            if vocab.is_file() and merges.is_file():
                _refuse_variant(vocab)
                return cls(_byte_level(models.BPE.from_file(str(vocab), str(merges))), str(vocab))
        except DataError:
            raise
        except Exception as error:  # the library raises nothing more precise
            raise DataError(
                f"{folder}: tokenizer files cannot be read ({why(error)}); copy them again from the model's repository"
            ) from error
        raise DataError(
            f"{folder}: no tokenizer.json, and not both vocab.json and merges.txt; "
            "copy these files of the model's repository into the folder"
        )

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest id, special tokens included; some ids below it may be unused."""
        return max(self.backend.get_vocab().values()) + 1

    def spellings(self) -> list[str]:
        """Each token's plain characters, "" for special ones: a circled `①` is `1`, so a named square spells `1eK`."""
        words = [self.backend.id_to_token(i) or "" for i in range(self.vocab_size)]
        return ["" if word in (END_OF_TEXT, UNKNOWN) else unicodedata.normalize("NFKC", word) for word in words]

    def encode(self, text: str) -> list[int]:
        """The ids of `text`; nothing is added, and special tokens spelled out in it are ordinary text."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def encode_cut(self, texts: Sequence[str], cuts: Sequence[int]) -> Iterator[tuple[list[int], int]]:
        """The ids of each text, as `encode` gives them, and how many of them lie within its first `cut` characters."""
        for start in range(0, len(texts), AT_ONCE):
            some = list(texts[start : start + AT_ONCE])
            encodings = self.backend.encode_batch(some, add_special_tokens=False)
            for encoding, cut in zip(encodings, cuts[start : start + AT_ONCE], strict=True):
                yield encoding.ids, sum(end <= cut for _, end in encoding.offsets)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; special tokens and ids outside the vocabulary give nothing."""
        return self.backend.decode(list(ids), skip_special_tokens=True)

    def decode_all(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row of ids, as `decode` gives it, by as many threads as there are cores."""
        return self.backend.decode_batch([list(ids) for ids in rows], skip_special_tokens=True)

    def save(self, folder: Path) -> None:
        """Writes tokenizer.json, and the tokenizer_config.json with which `transformers` reads it unchanged."""
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": END_OF_TEXT,
            "eos_token": END_OF_TEXT,
            "clean_up_tokenization_spaces": False,
            # Older versions of `transformers` add token types, for which their GPT-2 adds a vector to each embedding.
            "model_input_names": ["input_ids", "attention_mask"],
        }
        write_atomic(folder / CONFIG, json.dumps(config, indent=2) + "\n")
        write_atomic(folder / "tokenizer.json", self.backend.to_str(pretty=True) + "\n")


def square_aware() -> Tokenizer:
    """One token for a board square with its piece, a move's start, its end, a run of spaces, a number, its decimals.

    Before encoding, run lengths in a FEN's board are written out (`8` becomes eight `_`) and every square gets its
    name (`K` on e1 becomes `①ⓔK`); decoding undoes both. So a piece's token says where it stands, wherever the
    board begins. A number and a move's start absorb a single space before them, and the end of a move after a space
    also says where it started (`e4` in ` e2e4` becomes `⠌e4`), if some piece could go there: the token is the move.
    Text with `_` or characters outside printable ASCII does not survive encoding and decoding.
    """
    numbers = [*map(str, range(200)), "999"]
    words = [END_OF_TEXT, UNKNOWN]
    words += [
        rank + file + piece + ("/" if file == FILES[7] and rank != RANKS[0] else "")
        for rank in RANKS
        for file in FILES
        for piece in PIECES
    ]
    words += [space + file + rank for space in ("", " ") for rank in "12345678" for file in "abcdefgh"]
    words += [space + sign + number for space in ("", " ") for sign in ("", "-") for number in numbers]
    words += [f".{d}" for d in range(10)] + [f".{d:02d}" for d in range(100)] + [".001"]
    words += [" " * n for n in range(1, LONGEST_SPACE_RUN + 1)]
    words += [mark + end for mark, (_, ends) in zip(STARTS, _moves(), strict=True) for end in ends]
    words += ["P:", "A:", "M:", "E:", "B:"]
    words += [chr(code) for code in range(33, 127) if not chr(code).isdigit()]
    backend = tokenizers.Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=UNKNOWN))
    rules = [*_name_squares(), *_name_starts()]
    backend.normalizer = normalizers.Sequence([normalizers.Replace(Regex(p), text) for p, text in rules])
    ends = "|".join(f"{mark}(?:{'|'.join(ends)})" for mark, (_, ends) in zip(STARTS, _moves(), strict=True))
    split = f"(?=[{STARTS[0]}-{STARTS[63]}])(?:{ends})|{SQUARE_AWARE_SPLIT}"
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(split), "isolated")
    backend.decoder = decoders.Sequence(
        [
            decoders.Fuse(),
            decoders.Replace(Regex(f"[{RANKS[0]}-{RANKS[7]}{FILES[0]}-{FILES[7]}{STARTS[0]}-{STARTS[63]}]"), ""),
            *(decoders.Replace(EMPTY * run, str(run)) for run in range(8, 0, -1)),
        ]
    )
    return Tokenizer(backend, "square_aware")


def _moves() -> list[tuple[str, list[str]]]:
    """Each square, and where a queen or a knight could go from it on an empty board, a pawn's promotions first."""
    squares = [(file, rank) for rank in range(8) for file in range(8)]
    names = {(file, rank): "abcdefgh"[file] + "12345678"[rank] for file, rank in squares}
    found = []
    for file, rank in squares:
        away = {end: (abs(end[0] - file), abs(end[1] - rank)) for end in squares if end != (file, rank)}
        reached = [end for end, (x, y) in away.items() if 0 in (x, y) or x == y or {x, y} == {1, 2}]
        promoting = [end for end in reached if (rank, end[1]) in ((1, 0), (6, 7)) and away[end][0] <= 1]
        promotions = [names[end] + piece for end in promoting for piece in "qrbn"]
        found.append((names[file, rank], [*promotions, *(names[end] for end in reached)]))
    return found


def _name_starts() -> Iterator[tuple[str, str]]:
    """Patterns and replacements that put a move's start before its end."""
    for mark, (start, ends) in zip(STARTS, _moves(), strict=True):
        yield f" {start}(?={'|'.join(ends)})", f" {start}{mark}"


def _name_squares() -> Iterator[tuple[str, str]]:
    """Patterns and replacements, in order, that spell out the boards of a text square by square."""
    square = f"[{PIECES}]"
    for run in range(8, 0, -1):  # a digit followed by nothing but board up to a side to move and castling rights
        yield f"{run}(?=[{PIECES}1-8/]*{BOARD_END})", EMPTY * run
    end_above = f"[{RANK_ENDS[1]}-{RANK_ENDS[7]}]"
    for rank in range(1, 8):  # the slash with `rank` ranks after it ends rank `rank` + 1; the lower ones are done
        below = f"{square}{{8}}" + f"{end_above}{square}{{8}}" * (rank - 1)
        yield f"(?<={square})/(?={below}{BOARD_END})", RANK_ENDS[rank]
    named = f"(?:[{FILES[0]}-{FILES[7]}]{square})"
    for file in range(7, -1, -1):
        yield f"(?<![{FILES[0]}-{FILES[7]}])(?={square}{named}{{{7 - file}}}(?:{end_above}|{BOARD_END}))", FILES[file]
    for rank in range(8):
        end = RANK_ENDS[rank] if rank else BOARD_END
        yield f"(?=[{FILES[0]}-{FILES[7]}])(?={named}{{1,8}}{end})", RANKS[rank]
    yield end_above, "/"


def characters() -> Tokenizer:
    """One token per printable ASCII character."""
    words = [END_OF_TEXT, UNKNOWN, *(chr(code) for code in range(32, 127))]
    backend = tokenizers.Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return Tokenizer(backend, "characters")


def _refuse_variant(vocab: Path) -> None:
    """Raises: DataError where files beside vocab.json say that it and merges.txt are not the whole tokenizer."""
    config, added = (
        json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        for path in (vocab.with_name(CONFIG), vocab.with_name("added_tokens.json"))
    )
    said = [f"{CONFIG}: {key}={config[key]}" for key in ("add_prefix_space", "add_bos_token") if config.get(key)]
    if foreign := added.items() - json.loads(vocab.read_text(encoding="utf-8")).items():
        said.append(f"added_tokens.json: {min(foreign)[0]!r}")
    if said:
        raise DataError(
            f"{vocab.parent}: {said[0]} is not read beside vocab.json; write tokenizer.json with `transformers`: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )


def _byte_level(bpe: models.BPE) -> tokenizers.Tokenizer:
    """GPT-2's pipeline around a byte-level BPE: split by GPT-2's pattern, no space put before the first word."""
    backend = tokenizers.Tokenizer(bpe)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    return backend
