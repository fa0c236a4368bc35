"""What crosses the border between stages: frozen records and the enums of every outcome."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Action(StrEnum):
    """What to make of one HTTP exchange (cases/README: the seven decisions)."""

    OK = "ok"
    REPAIR = "repair"
    AMBIGUOUS = "ambiguous"
    RETRY = "retry"
    REROUTE = "reroute"
    FATAL_ROW = "fatal_row"
    FATAL_RUN = "fatal_run"

    @property
    def usable(self) -> bool:
        """Its ids are known and it may become a row."""
        return self in (Action.OK, Action.REPAIR)


class Ending(StrEnum):
    """How a completion ends: with an end token (stop, tool_calls) or cut by a limit (length)."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"


class Fidelity(StrEnum):
    """How the ids are known, best first."""

    NATIVE = "native"
    LOGPROBS = "logprobs"
    COUNTED = "counted"
    UNVERIFIED = "unverified"

    @property
    def rank(self) -> int:
        """0 is best."""
        return list(Fidelity).index(self)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call as the API returned it. `arguments` is the text verbatim.

    `arguments_rewritten`: the field was an object and not text, so its bytes are lost.
    """

    id: str | None
    name: str
    arguments: str
    arguments_rewritten: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of an answer; None where the provider did not say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The fields of one choice, text verbatim, copies of reasoning already merged.

    Null, missing and empty text are all "". `reasoning_variants` holds the distinct texts when
    the copies disagree (then `reasoning` is the first).
    """

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    native_finish_reason: str | None = None
    usage: Usage = field(default_factory=Usage)
    reasoning_variants: tuple[str, ...] = ()
    has_reasoning_field: bool = False
    encrypted: bool = False
    native_ids: tuple[int, ...] | None = None
    native_prompt_ids: tuple[int, ...] | None = None
    served_provider: str | None = None
    served_model: str | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Span:
    """Ids `[start, end)` of the completion and what they are: reasoning, content, marker, call, end."""

    kind: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Reconstruction:
    """What one answer says about the ids that the model produced.

    `completion_ids` is None unless `action.usable`; `text` is what they must decode to, written from the
    fields and not from the ids. `candidates` are the readings that could not be
    told apart (or that were tried), each a tuple of ids with a short name.
    """

    action: Action
    reason: str
    completion_ids: tuple[int, ...] | None = None
    text: str = ""
    spans: tuple[Span, ...] = ()
    ending: Ending | None = None
    fidelity: Fidelity | None = None
    flags: tuple[str, ...] = ()
    candidates: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """One source row: the first request's messages and the user turns that follow (turns: each).

    `prompt_id` is a hash of the content; `position` its place in the source.
    """

    prompt_id: str
    position: int
    messages: tuple[dict[str, Any], ...]
    following_turns: tuple[dict[str, Any], ...] = ()
    tools: tuple[dict[str, Any], ...] | None = None
    source_id: str | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One generation as exact ids: a row of build/samples and of every export.

    `input_ids` = prompt + completion; the loss mask is 0 over the first `prompt_length` ids and 1 over
    the rest (every generated id, `</think>` and the end token included). `spans` count from the start
    of the completion. `text` is the completion under the row's reading, special tokens spelled out.
    """

    row_id: str
    prompt_id: str
    turn: int
    input_ids: tuple[int, ...]
    prompt_length: int
    ending: Ending
    fidelity: Fidelity
    flags: tuple[str, ...]
    spans: tuple[Span, ...]
    text: str
    provider: str
    model: str
    prompt_delta: int | None

    @property
    def loss_mask_runs(self) -> list[list[int]]:
        """`[value, length]` runs over `input_ids`."""
        return [[0, self.prompt_length], [1, len(self.input_ids) - self.prompt_length]]


@dataclass(frozen=True, slots=True)
class ExportRow:
    """A sample that passed, as plain lists: what an export format turns into its own row."""

    row_id: str
    prompt_id: str
    turn: int
    input_ids: list[int]
    loss_mask: list[int]
    ending: str
    fidelity: str
    flags: list[str]
    text: str
    provider: str
    model: str


@dataclass(frozen=True, slots=True)
class Reject:
    """A row that gives no sample: why, where it was seen, and the raw fields, kept."""

    row_id: str
    stage: str
    reason: str
    detail: str
    raw: str
    candidates: tuple[tuple[str, tuple[int, ...]], ...] = ()
