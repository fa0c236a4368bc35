"""Text -> ids: the two ways a target's tokenizer is used, and what every encoder must offer."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Protocol, Self, TypeVar

import tiktoken
from tokenizers import Regex, Tokenizer, pre_tokenizers

from pipeline.config import PromptEncoding

MAX_SPACE_RUN = 5_000_000
"""Longest run of whitespace that is encoded. `\\s*[\\r\\n]+` backtracks through a run once, and the regex
engine of `tokenizers` gives up after 10 million steps (12 million spaces: it panics)."""

_TIKTOKEN_SPACE_RUN = 500_000
"""Runs from here on go round tiktoken's own regex engine: `\\s+(?!\\S)` keeps one stack entry a character,
and 999,999 spaces overflow its stack (a panic, seen with tiktoken 0.14; 999,990 pass)."""

_RUN = re.compile(r"\s+|\S+")  # re's \s and str.isspace agree on all 1,114,112 code points
_SPACES = re.compile(r"\s+")

Given = TypeVar("Given")
Result = TypeVar("Result")


class UnencodableText(ValueError):
    """This text has no ids: it is no Unicode text, or it defeats the tokenizer. The row becomes a reject."""


class Encoder(Protocol):
    """A loaded tokenizer. Ids are ints below `vocab_size`; `special` maps every special token to its id."""

    special: Mapping[str, int]
    special_strings: frozenset[str]
    """Keys of `special`, made once: each prompt asks for them."""
    vocab_size: int

    def with_prompt(self, prompt: PromptEncoding) -> Self:
        """The same tokenizer for a target that encodes prompts in another way."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of ordinary text: a special string inside it is spelled out, never its special id."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text."""
        ...

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a rendered prompt as the vendor's tokenizer encodes it (special strings parsed)."""
        ...

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """The bytes behind the ids; special ids give their own string."""
        ...


def cut_prompt(text: str, encoding: PromptEncoding) -> Iterator[str]:
    """The slices that the vendor's tokenizer encodes alone (no cut is asked for: the text itself).

    First every `max_chars` characters; then, inside such a piece, where a run of whitespace or of
    non-whitespace grows longer than `max_run`: there a slice starts and the run counts from 1 again.
    A special string that a cut divides is ordinary text, as it is in the vendor's tokenizer.
    """
    step = encoding.max_chars or max(len(text), 1)
    for start in range(0, len(text), step):
        piece = text[start : start + step]
        if encoding.max_run is None or len(piece) <= encoding.max_run:
            yield piece
        else:
            yield from _cut_runs(piece, encoding.max_run)


def _cut_runs(piece: str, max_run: int) -> Iterator[str]:
    start = 0
    for run in _RUN.finditer(piece):
        for cut in range(run.start() + max_run, run.end(), max_run):
            yield piece[start:cut]
            start = cut
    yield piece[start:]


class TiktokenEncoder:
    """Ranks + split pattern + special table, as the vendor's own tokenizer uses them."""

    def __init__(
        self,
        ranks: Mapping[bytes, int],
        pattern: str,
        special: Mapping[str, int],
        prompt: PromptEncoding,
    ) -> None:
        self.special: Mapping[str, int] = MappingProxyType(dict(special))
        self.special_strings = frozenset(special)
        self._ranks = dict(ranks)
        self._pattern = pattern
        self._prompt = prompt
        self._encoding = tiktoken.Encoding(
            "target", pat_str=pattern, mergeable_ranks=self._ranks, special_tokens=dict(special)
        )
        self.vocab_size: int = self._encoding.n_vocab

    def with_prompt(self, prompt: PromptEncoding) -> Self:
        """The same tokenizer for a target that encodes prompts in another way."""
        other = copy.copy(self)
        other._prompt = prompt
        return other

    def encode(self, text: str) -> list[int]:
        """Ids of ordinary text."""
        longest = check_text(text)
        if longest >= _TIKTOKEN_SPACE_RUN:
            return self._encode_split(text)
        return _guarded(self._encoding.encode_ordinary, text)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text. A plain loop: tiktoken's thread pool took the same time with two
        threads (0.5 s for 5 MB) and twice the CPU, and four times as long on short texts."""
        return [self.encode(text) for text in texts]

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a rendered prompt, cut as the vendor's tokenizer cuts it."""
        check_text(text)
        ids: list[int] = []
        for piece in cut_prompt(text, self._prompt):
            ids += self._encode_special(piece) if self._prompt.parse_special else self.encode(piece)
        return ids

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """The bytes behind the ids; ValueError for an id that no token has."""
        try:
            return self._encoding.decode_bytes(ids)
        except (KeyError, OverflowError) as unknown:
            raise ValueError(f"no token has this id: {unknown}") from None

    def _encode_special(self, piece: str) -> list[int]:
        if _longest_space_run(piece) < _TIKTOKEN_SPACE_RUN:
            return _guarded(
                lambda text: self._encoding.encode(text, allowed_special="all", disallowed_special=()), piece
            )
        ids: list[int] = []
        for part in self._special_pattern.split(piece):
            ids += [self.special[part]] if part in self.special else self.encode(part)
        return ids

    @cached_property
    def _special_pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self.special, key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, longest_first))})" if longest_first else r"(?!)")

    def _encode_split(self, text: str) -> list[int]:
        """The same ids by another way: split by the other regex engine, merge every piece as a whole."""
        splitter, whole = self._split_encoding
        pieces = _guarded(splitter.pre_tokenize_str, text)
        return [token_id for piece, _ in pieces for token_id in whole.encode_ordinary(piece)]

    @cached_property
    def _split_encoding(self) -> tuple[pre_tokenizers.Split, tiktoken.Encoding]:
        splitter = pre_tokenizers.Split(Regex(self._pattern), behavior="isolated", invert=False)
        # This pattern needs no backtracking, so it takes a piece of any length.
        whole = tiktoken.Encoding(
            "pieces", pat_str=r"(?s:.+)", mergeable_ranks=self._ranks, special_tokens={}
        )
        return splitter, whole


class HfEncoder:
    """A byte-level `tokenizer.json`."""

    def __init__(self, tokenizer: Tokenizer, prompt: PromptEncoding) -> None:
        self.special: Mapping[str, int] = MappingProxyType(
            {token.content: token_id for token_id, token in tokenizer.get_added_tokens_decoder().items()}
        )
        self.special_strings = frozenset(self.special)
        self._prompt = prompt
        self._full = tokenizer
        # Ordinary text needs an object that knows no added token: `encode_special_tokens` still
        # parses those with special: false, which for Kimi are </think> and the tool markers.
        self._plain = Tokenizer(tokenizer.model)
        if tokenizer.normalizer is not None:
            self._plain.normalizer = tokenizer.normalizer
        if tokenizer.pre_tokenizer is not None:
            self._plain.pre_tokenizer = tokenizer.pre_tokenizer
        self._bytes = _token_bytes(tokenizer.get_vocab(with_added_tokens=True), self.special)
        self.vocab_size: int = max(self._bytes) + 1

    def with_prompt(self, prompt: PromptEncoding) -> Self:
        """The same tokenizer for a target that encodes prompts in another way."""
        other = copy.copy(self)
        other._prompt = prompt
        return other

    def encode(self, text: str) -> list[int]:
        """Ids of ordinary text."""
        check_text(text)
        return _guarded(lambda item: _ids(self._plain, item), text)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text."""
        for text in texts:
            check_text(text)
        return [
            encoded.ids
            for encoded in _guarded(
                lambda batch: self._plain.encode_batch_fast(batch, add_special_tokens=False), list(texts)
            )
        ]

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a rendered prompt; no token is added around it, the template has written them all."""
        check_text(text)
        tokenizer = self._full if self._prompt.parse_special else self._plain
        return [
            token_id
            for piece in cut_prompt(text, self._prompt)
            for token_id in _guarded(lambda item: _ids(tokenizer, item), piece)
        ]

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """The bytes behind the ids; ValueError for an id that no token has."""
        try:
            return b"".join([self._bytes[token_id] for token_id in ids])
        except KeyError as unknown:
            raise ValueError(f"no token has this id: {unknown}") from None


def _token_bytes(vocabulary: Mapping[str, int], special: Mapping[str, int]) -> dict[int, bytes]:
    """Bytes by id. Tokens are stored as text in which every byte is one visible character."""
    alphabet = _byte_alphabet()
    table = {token_id: token.encode() for token, token_id in special.items()}
    for token, token_id in vocabulary.items():
        if token_id not in table:
            try:
                table[token_id] = bytes([alphabet[char] for char in token])
            except KeyError:
                raise ValueError(
                    f"token {token_id} {token!r} is not byte-level, so its text can't be kept exactly"
                ) from None
    return table


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: visible Latin-1 bytes stand for themselves, the others follow from U+0100 on."""
    visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + n): byte for n, byte in enumerate(hidden)}


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def check_text(text: str) -> int:
    """Length of the longest run of whitespace, if it matters.

    A lone surrogate has no UTF-8; tiktoken would quietly encode U+FFFD in its place.
    """
    try:
        text.encode()
    except UnicodeEncodeError as broken:
        code = ord(text[broken.start])
        raise UnencodableText(f"a lone surrogate U+{code:04X} at character {broken.start}") from None
    longest = _longest_space_run(text)
    if longest > MAX_SPACE_RUN:
        raise UnencodableText(f"a run of {longest} whitespace characters, more than {MAX_SPACE_RUN}")
    return longest


def _longest_space_run(text: str) -> int:
    """0 for texts that are too short to hold a run that matters."""
    if len(text) < _TIKTOKEN_SPACE_RUN:
        return 0
    return max((run.end() - run.start() for run in _SPACES.finditer(text)), default=0)


def _guarded(encode: Callable[[Given], Result], text: Given) -> Result:
    """Both libraries panic when a regex runs out of stack or steps; the panic is no `Exception`."""
    try:
        return encode(text)
    except BaseException as panic:
        if type(panic).__name__ != "PanicException":
            raise
        raise UnencodableText(f"the tokenizer gave up: {panic}") from None
