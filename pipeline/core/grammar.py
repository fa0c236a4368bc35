"""Fields of an answer -> the pieces of a completion, as the target's grammar orders them.

A piece is either one special id or a text; texts that stand side by side are encoded together,
texts with a special id between them alone (BPE does not merge across a special token; 20,000
random seams, research/token_anchors 4).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pipeline.config import CallField, Grammar, TextSegment, TokenSegment, ToolCallSegment, ToolCallsSegment
from pipeline.errors import ConfigError
from pipeline.records import Ending, Span


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of the completion: `text`, or the special id of `token`."""

    kind: str
    text: str = ""
    token: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call ready to be written."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Fields:
    """What goes into the segments. A field may hold ready pieces (raw markup) instead of text."""

    reasoning: tuple[Piece, ...] = ()
    content: tuple[Piece, ...] = ()
    calls: tuple[Call, ...] = ()

    @property
    def text_fields(self) -> dict[str, tuple[Piece, ...]]:
        """By the name that a TextSegment uses."""
        return {"reasoning": self.reasoning, "content": self.content}


@dataclass(frozen=True, slots=True)
class Form:
    """How the pieces are closed.

    `think_end`: the token that closes reasoning is written. `call_marks`: how many of the marks that
    close the last call and the section were sampled (None: all; -1: not even the one before its empty
    arguments).
    """

    ending: Ending
    think_end: bool = True
    end_token: bool = True
    call_marks: int | None = None


def text_piece(kind: str, text: str) -> tuple[Piece, ...]:
    """A text field as pieces; empty text is no piece."""
    return (Piece(kind, text),) if text else ()


class CompiledGrammar:
    """A target's grammar with its tokens resolved to ids.

    Raises ConfigError when a token of the grammar is not a special token of the tokenizer.
    """

    def __init__(self, grammar: Grammar, special: Mapping[str, int], *, thinking: bool = True) -> None:
        self.settings = grammar
        self.thinking = thinking
        self.section = next((s.tool_calls for s in grammar.segments if isinstance(s, ToolCallsSegment)), None)
        self.think_end = next(
            (s.token for s in grammar.segments if isinstance(s, TokenSegment) and s.closes), None
        )
        self.special = special
        self._end_tokens = {Ending(ending): token for ending, token in grammar.end_tokens.items()}
        self.end_ids = {ending: self._id(token) for ending, token in self._end_tokens.items()}
        self.tokens = tuple(dict.fromkeys(self._named_tokens()))
        for token in self.tokens:
            self._id(token)
        self.marks = tuple(self._section_marks())
        self._marker = re.compile("|".join(map(re.escape, self.tokens)))
        self._mark = re.compile("|".join(map(re.escape, self.marks)) or r"(?!)")
        self._raw = None if self.section is None else _section_pattern(self.section)
        self._field_after = {} if self.section is None else _fields_after(self.section)
        self._native_id = None if self.section is None else _id_pattern(self.section.id_format)

    def _id(self, token: str) -> int:
        if token not in self.special:
            raise ConfigError(f"conf/target grammar: {token!r} is no special token of this tokenizer")
        return self.special[token]

    def _named_tokens(self) -> Iterable[str]:
        for segment in self.settings.segments:
            if isinstance(segment, TokenSegment):
                yield segment.token
        yield from self._section_marks()
        yield from self.settings.end_tokens.values()
        if self.settings.reasoning_open:
            yield self.settings.reasoning_open

    def _section_marks(self) -> Iterable[str]:
        if self.section is not None:
            yield from (
                self.section.begin,
                *(part for part in self.section.call if isinstance(part, str)),
                self.section.end,
            )

    # --- writing ---------------------------------------------------------------------------------

    def write(self, fields: Fields, form: Form) -> tuple[Piece, ...]:
        """Pieces of the whole completion, in order."""
        pieces: list[Piece] = []
        last = self._last_segment(fields) if form.ending is Ending.LENGTH else len(self.settings.segments)
        for position, segment in enumerate(self.settings.segments[: last + 1]):
            if isinstance(segment, TextSegment):
                pieces += fields.text_fields[segment.text]
            elif isinstance(segment, TokenSegment):
                if form.think_end and (self.thinking or not segment.closes):
                    pieces.append(Piece("marker", token=segment.token))
            elif isinstance(segment, ToolCallsSegment):
                if fields.calls:
                    pieces += self._write_calls(segment.tool_calls, fields.calls, form)
            elif position < last or form.ending is not Ending.LENGTH:
                pieces.append(Piece("literal", segment.literal))
        if form.end_token and form.ending is not Ending.LENGTH:
            pieces.append(Piece("end", token=self._end_tokens[form.ending]))
        return tuple(pieces)

    def _last_segment(self, fields: Fields) -> int:
        """Where a cut completion stops: the last segment that holds something."""
        last = -1
        for position, segment in enumerate(self.settings.segments):
            filled = (isinstance(segment, TextSegment) and fields.text_fields[segment.text]) or (
                isinstance(segment, ToolCallsSegment) and fields.calls
            )
            if filled:
                last = position
        return last

    def _write_calls(self, section: ToolCallSegment, calls: Sequence[Call], form: Form) -> list[Piece]:
        pieces = [Piece("marker", token=section.begin)]
        for call in calls:
            for part in section.call:
                if isinstance(part, CallField):
                    pieces += text_piece(f"call_{part.field}", getattr(call, part.field))
                else:
                    pieces.append(Piece("marker", token=part))
        pieces.append(Piece("marker", token=section.end))
        if form.call_marks is not None:
            pieces = pieces[: len(pieces) - self.closing_marks + form.call_marks]
        return pieces

    @property
    def closing_marks(self) -> int:
        """Marks after the last field of the last call: those of the call and the section's end."""
        if self.section is None:
            return 0
        fields = [index for index, part in enumerate(self.section.call) if isinstance(part, CallField)]
        return len(self.section.call) - fields[-1]

    # --- reading marks in text ---------------------------------------------------------------------

    def has_marker(self, text: str) -> bool:
        """A token of this grammar stands in the text, letter by letter."""
        return self._marker.search(text) is not None

    def split_markers(self, kind: str, text: str) -> tuple[Piece, ...]:
        """Every literal marker becomes its token; the texts between stay."""
        return self._split(self._marker, kind, text)

    @staticmethod
    def _split(marker: re.Pattern[str], kind: str, text: str) -> tuple[Piece, ...]:
        pieces: list[Piece] = []
        start = 0
        for found in marker.finditer(text):
            pieces += (*text_piece(kind, text[start : found.start()]), Piece("marker", token=found.group()))
            start = found.end()
        return (*pieces, *text_piece(kind, text[start:]))

    def split_raw_sections(self, kind: str, text: str, *, cut: bool = False) -> tuple[Piece, ...] | None:
        """Text with whole, well-formed tool sections: their marks become tokens. None: there is none.

        Providers return calls so when `tools` was not sent, or when no parser ran. With `cut`, a last
        section that stops inside a call counts too.
        """
        if self._raw is None or self.section is None or self.section.begin not in text:
            return None
        whole, cut_end = self._raw
        pieces: list[Piece] = []
        start = 0
        for found in whole.finditer(text):
            pieces += text_piece(kind, text[start : found.start()])
            pieces += self._raw_pieces(found.group())
            start = found.end()
        if cut and (tail := cut_end.search(text, start)) is not None:
            pieces += text_piece(kind, text[start : tail.start()])
            pieces += self._raw_pieces(tail.group())
            start = len(text)
        if not pieces or start == 0:
            return None
        return (*pieces, *text_piece(kind, text[start:]))

    def _raw_pieces(self, section: str) -> tuple[Piece, ...]:
        """A text between marks is named after the field that follows the mark before it."""
        pieces: list[Piece] = []
        last: str | None = None
        for piece in self._split(self._mark, "content", section):  # other tokens are text in a call
            field = self._field_after.get(last or "")
            pieces.append(Piece(f"call_{field}", piece.text) if piece.token is None and field else piece)
            last = piece.token
        return tuple(pieces)

    def kind_after(self, token: str, kind: str) -> str:
        """What text right after this token is, when `kind` stood before it."""
        if token in self._field_after:
            return f"call_{self._field_after[token]}"
        if token == self.settings.reasoning_open:
            return "reasoning"
        return "content" if token == self.think_end or token in self.marks else kind

    def is_well_formed(self, ids: Sequence[int], *, cut: bool) -> bool:
        """Special ids in the grammar's order: one end of reasoning, then whole sections.

        A `cut` one may stop anywhere. Tokens that this grammar does not name may not stand there at all.
        """
        letters = {self.special[mark]: chr(ord("a") + number) for number, mark in enumerate(self.marks)}
        if self.think_end is not None:
            letters[self.special[self.think_end]] = "T"
        letters |= dict.fromkeys(self.end_ids.values(), "E")
        special = set(self.special.values())
        shape = "".join(letters.get(token_id, "X") for token_id in ids if token_id in special)
        begin, *call, end = [chr(ord("a") + number) for number in range(len(self.marks))] or ["", ""]
        section = f"(?:{begin}(?:{''.join(call)})+{end})*" if begin else ""
        if re.fullmatch(f"T?{section}E?", shape):
            return True
        if not cut or not begin:
            return False
        head = re.match(f"T?{section}", shape)
        rest = shape[head.end() :] if head else shape
        return f"{begin}{''.join(call) * (len(rest) + 1)}".startswith(rest)

    def tools_called(self, pieces: Sequence[Piece]) -> list[str]:
        """Names of the tools that the pieces call, where an id has the model's own form."""
        found = [self._native_id.fullmatch(p.text) for p in pieces if self._native_id and p.kind == "call_id"]
        return [match.group("name") for match in found if match is not None]

    def names_another_tool(self, call: Call) -> bool:
        """The id has the model's own form and names a tool other than the call's."""
        found = self._native_id.fullmatch(call.id) if self._native_id else None
        return found is not None and found.group("name") != call.name

    def is_native_id(self, call: Call) -> bool:
        """The id has the form that the model itself writes (for any index)."""
        if self._native_id is None:
            return True
        found = self._native_id.fullmatch(call.id)
        return found is not None and found.group("name") == call.name

    def native_id(self, name: str, index: int) -> str:
        """The id the model writes for the call number `index` of the conversation."""
        assert self.section is not None
        return self.section.id_format.format(name=name, index=index)


def _fields_after(section: ToolCallSegment) -> dict[str, str]:
    parts = section.call
    return {
        before: part.field
        for before, part in pairwise(parts)
        if isinstance(before, str) and isinstance(part, CallField)
    }


def _section_pattern(section: ToolCallSegment) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """(a whole section, a section cut at the end of the text). Blanks may stand between marks."""
    marks = [section.begin, section.end, *(part for part in section.call if isinstance(part, str))]
    no_mark = f"(?:(?!{'|'.join(map(re.escape, marks))}).)*"
    parts = [no_mark if isinstance(part, CallField) else re.escape(part) for part in section.call]
    call = "".join(parts)
    blank = r"\s*"
    head = re.escape(section.begin) + f"(?:{blank}{call})*"
    whole = re.escape(section.begin) + f"(?:{blank}{call})+{blank}" + re.escape(section.end)
    prefix = ""
    for part in reversed(parts):
        prefix = f"(?:{part}{prefix})?"
    return re.compile(whole, re.S), re.compile(f"{head}{blank}{prefix}{blank}\\Z", re.S)


def _id_pattern(id_format: str) -> re.Pattern[str]:
    escaped = re.escape(id_format)
    escaped = escaped.replace(re.escape("{name}"), "(?P<name>.+)").replace(re.escape("{index}"), r"\d+")
    return re.compile(escaped, re.S)


def ids_of(
    pieces: Sequence[Piece], encode: Callable[[str], Sequence[int]], special: Mapping[str, int]
) -> tuple[tuple[int, ...], tuple[Span, ...]]:
    """Ids and spans. `encode` gives the ids of ordinary text."""
    ids: list[int] = []
    spans: list[Span] = []
    for kind, text, token in _runs(pieces):
        start = len(ids)
        ids += [special[token]] if token is not None else encode(text)
        spans.append(Span(kind, start, len(ids)))
    return tuple(ids), tuple(spans)


def text_of(pieces: Sequence[Piece]) -> str:
    """The completion as text, special tokens spelled out: what the ids must decode to."""
    return "".join(piece.token or piece.text for piece in pieces)


def texts_of(pieces: Sequence[Piece]) -> list[str]:
    """The texts that `ids_of` will ask for, so that they can be encoded in one batch."""
    return [text for _, text, token in _runs(pieces) if token is None]


def _runs(pieces: Sequence[Piece]) -> Iterable[tuple[str, str, str | None]]:
    """Pieces with neighbouring texts joined; a joined run is named after its first field, not a literal."""
    kind, text = "", ""
    for piece in pieces:
        if piece.token is None:
            kind = piece.kind if not kind or kind == "literal" else kind
            text += piece.text
            continue
        if text:
            yield kind, text, None
        kind, text = "", ""
        yield piece.kind, "", piece.token
    if text:
        yield kind, text, None
