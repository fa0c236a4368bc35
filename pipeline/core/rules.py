"""A shard of samples, as columns -> for each rule, which rows break it.

Every rule would have caught a fault that a public pipeline shipped (research/eagle_anchors 7): masks
that are all 0 or all 1, a header that is supervised, an end token after a cut answer, special ids
out of text. A rule is a function of the columns that returns a bool array, True where it is broken;
the rules are found by the `RULES` order below, which is also the order of blame.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.core.encoding import Encoder
from pipeline.core.grammar import CompiledGrammar
from pipeline.records import Ending

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Columns:
    """Samples as flat arrays.

    `ids` int64 [tokens] and `starts` int64 [rows + 1] give row r as ids[starts[r]:starts[r + 1]];
    `span_*` [spans] likewise with `span_starts` [rows + 1]; span borders count from the completion's start.
    """

    row_ids: Sequence[str]
    ids: Ints
    starts: Ints
    prompt_length: Ints
    endings: Sequence[str]
    flags: Sequence[Sequence[str]]
    texts: Sequence[str]
    span_kinds: Sequence[str]
    span_begin: Ints
    span_end: Ints
    span_starts: Ints

    @property
    def rows(self) -> int:
        """Number of samples."""
        return len(self.row_ids)

    def completion(self, row: int) -> Ints:
        """Generated ids of one row."""
        return self.ids[self.starts[row] + self.prompt_length[row] : self.starts[row + 1]]

    def row_of_token(self) -> Ints:
        """Row number of every id. Shape [tokens]."""
        return np.repeat(np.arange(self.rows), np.diff(self.starts))

    def row_of_span(self) -> Ints:
        """Row number of every span. Shape [spans]."""
        return np.repeat(np.arange(self.rows), np.diff(self.span_starts))


@dataclass(frozen=True)
class Facts:
    """What the rules know of the target."""

    encoder: Encoder
    grammar: CompiledGrammar
    max_length: int | None = None


Rule = Callable[[Columns, Facts], Bools]


def ids_in_vocabulary(columns: Columns, facts: Facts) -> Bools:
    """Every id is a token of the model."""
    outside = (columns.ids < 0) | (columns.ids >= facts.encoder.vocab_size)
    return _any_by_row(columns.row_of_token()[outside], columns.rows)


def mask_has_both(columns: Columns, facts: Facts) -> Bools:
    """The loss mask is neither all 0 nor all 1."""
    broken: Bools = (columns.prompt_length <= 0) | (columns.prompt_length >= np.diff(columns.starts))
    return broken


def mask_starts_at_generation(columns: Columns, facts: Facts) -> Bools:
    """The first supervised id is the first generated one: spans cover the completion without a gap."""
    broken = np.zeros(columns.rows, dtype=np.bool_)
    rows = columns.row_of_span()
    first = np.r_[True, rows[1:] != rows[:-1]] if len(rows) else np.zeros(0, dtype=np.bool_)
    expected_begin = np.where(first, 0, np.r_[0, columns.span_end[:-1]] if len(rows) else 0)
    broken |= _any_by_row(rows[columns.span_begin != expected_begin], columns.rows)
    last_end = np.zeros(columns.rows, dtype=np.int64)
    np.maximum.at(last_end, rows, columns.span_end)
    broken |= last_end != np.diff(columns.starts) - columns.prompt_length
    return broken


def prompt_opens_turn(columns: Columns, facts: Facts) -> Bools:
    """The prompt ends where generation begins: for a thinking target with the token that opens reasoning."""
    opener = facts.grammar.settings.reasoning_open
    if not (facts.grammar.settings.prompt_opens_reasoning and opener and columns.rows):
        return np.zeros(columns.rows, dtype=np.bool_)
    expected = facts.grammar.special[opener if facts.grammar.thinking else facts.grammar.think_end or opener]
    position = np.clip(columns.starts[:-1] + columns.prompt_length - 1, 0, max(len(columns.ids) - 1, 0))
    broken: Bools = (columns.prompt_length <= 0) | (columns.ids[position] != expected)
    return broken


def one_end_token_and_last(columns: Columns, facts: Facts) -> Bools:
    """Exactly one end token, at the very end; none at all in a completion that was cut."""
    ends = np.isin(columns.ids, list(facts.grammar.end_ids.values())) & _in_completion(columns)
    counts = np.bincount(columns.row_of_token()[ends], minlength=columns.rows)
    last = (
        ends[np.maximum(columns.starts[1:] - 1, 0)] if len(ends) else np.zeros(columns.rows, dtype=np.bool_)
    )
    cut = np.array([ending == Ending.LENGTH for ending in columns.endings], dtype=np.bool_)
    broken: Bools = np.where(cut, counts != 0, (counts != 1) | ~last)
    return broken


def no_special_in_text(columns: Columns, facts: Facts) -> Bools:
    """Text spans hold ordinary ids only: text is never parsed for special tokens."""
    special = np.isin(columns.ids, list(facts.encoder.special.values()))
    position = columns.starts[:-1][columns.row_of_span()] + columns.prompt_length[columns.row_of_span()]
    running = np.r_[0, np.cumsum(special)]
    length = len(columns.ids)
    begin = np.clip(position + columns.span_begin, 0, length)
    end = np.clip(position + columns.span_end, 0, length)
    text = np.array([kind not in ("marker", "end") for kind in columns.span_kinds], dtype=np.bool_)
    return _any_by_row(columns.row_of_span()[text & (running[end] != running[begin])], columns.rows)


def marks_nested(columns: Columns, facts: Facts) -> Bools:
    """Tool marks stand in the order of the grammar: begin, whole calls, end; a cut one may stop anywhere."""
    broken = np.zeros(columns.rows, dtype=np.bool_)
    grammar = facts.grammar
    if grammar.section is None:
        return broken
    letter = {grammar.special[mark]: chr(ord("a") + n) for n, mark in enumerate(grammar.marks)}
    begin, *call, end = [chr(ord("a") + n) for n in range(len(grammar.marks))]
    whole = re.compile(f"(?:{begin}(?:{''.join(call)})+{end})*")
    hits = np.isin(columns.ids, list(letter)) & _in_completion(columns)
    for row in map(int, np.unique(columns.row_of_token()[hits])):
        ids = columns.completion(row)
        marks = "".join(letter[int(token_id)] for token_id in ids if int(token_id) in letter)
        cut = columns.endings[row] == Ending.LENGTH
        broken[row] = not (whole.fullmatch(marks) or (cut and _is_prefix(marks, begin, "".join(call), end)))
    return broken


def _is_prefix(marks: str, begin: str, call: str, end: str) -> bool:
    """The marks are the start of a well-formed run of sections."""
    calls = marks.count(call[0]) if call else 0
    longest = (begin + call * max(calls, 1) + end) if marks.count(begin) == 1 else ""
    return bool(longest) and longest.startswith(marks)


def decodes_to_text(columns: Columns, facts: Facts) -> Bools:
    """The ids decode to the text of the row's reading, which was written from the fields."""
    broken = np.zeros(columns.rows, dtype=np.bool_)
    undecodable = ids_in_vocabulary(columns, facts)  # already blamed, and has no text
    for row in map(int, np.flatnonzero(~undecodable)):
        data = facts.encoder.decode_bytes(columns.completion(row).tolist())
        broken[row] = data.decode("utf-8", "replace") != columns.texts[row]
    return broken


def empty_reasoning_is_stated(columns: Columns, facts: Facts) -> Bools:
    """`<think></think>` only where the answer's reasoning was empty (templates drop it in finished chats)."""
    think_end = facts.grammar.think_end
    if think_end is None or not columns.rows:
        return np.zeros(columns.rows, dtype=np.bool_)
    first = columns.ids[np.clip(columns.starts[:-1] + columns.prompt_length, 0, max(len(columns.ids) - 1, 0))]
    stated = [bool({"empty_reasoning", "native_ids", "split_by_us"} & set(flags)) for flags in columns.flags]
    broken: Bools = (first == facts.grammar.special[think_end]) & ~np.array(stated, dtype=np.bool_)
    return broken


def row_ids_unique(columns: Columns, facts: Facts) -> Bools:
    """A row id stands once in a shard; across shards the stage counts them."""
    broken = np.ones(columns.rows, dtype=np.bool_)
    _, first = np.unique(np.asarray(columns.row_ids, dtype=np.str_), return_index=True)
    broken[first] = False
    return broken


def within_max_length(columns: Columns, facts: Facts) -> Bools:
    """Prompt and completion together, only where rules.max_length is set."""
    if facts.max_length is None:
        return np.zeros(columns.rows, dtype=np.bool_)
    too_long: Bools = np.diff(columns.starts) > facts.max_length
    return too_long


RULES: tuple[Rule, ...] = (
    row_ids_unique,
    ids_in_vocabulary,
    mask_has_both,
    mask_starts_at_generation,
    prompt_opens_turn,
    one_end_token_and_last,
    no_special_in_text,
    marks_nested,
    decodes_to_text,
    empty_reasoning_is_stated,
    within_max_length,
)


def check(columns: Columns, facts: Facts) -> dict[str, Bools]:
    """Rows broken, by rule name, in the order of blame."""
    return {rule.__name__: rule(columns, facts) for rule in RULES}


def unparsable_arguments(columns: Columns, facts: Facts) -> Bools:
    """Tool arguments that are no JSON. A note, not a rule: it is what the model wrote."""
    noted = np.zeros(columns.rows, dtype=np.bool_)
    rows = columns.row_of_span()
    for span, kind in enumerate(columns.span_kinds):
        row = int(rows[span])
        if kind != "call_arguments" or columns.endings[row] == Ending.LENGTH:
            continue
        ids = columns.completion(row)[columns.span_begin[span] : columns.span_end[span]]
        try:
            json.loads(facts.encoder.decode_bytes(ids.tolist()))
        except ValueError:
            noted[row] = True
    return noted


def _in_completion(columns: Columns) -> Bools:
    position = np.arange(len(columns.ids)) - np.repeat(columns.starts[:-1], np.diff(columns.starts))
    inside: Bools = position >= np.repeat(columns.prompt_length, np.diff(columns.starts))
    return inside


def _any_by_row(rows: Ints, count: int) -> Bools:
    hit = np.zeros(count, dtype=np.bool_)
    hit[rows] = True
    return hit
