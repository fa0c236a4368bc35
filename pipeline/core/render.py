"""Request + the target's chat template -> the prompt text and ids that the server saw.

The REQUEST is rendered (history, tools, generation prompt), never the finished conversation:
templates drop the reasoning of a finished answer. The environment is the one in which Hugging Face
renders chat templates, because servers do: sandboxed, `trim_blocks`, `lstrip_blocks`, loop controls,
`raise_exception`, and a `tojson` that keeps non-ASCII text and escapes nothing for HTML. There is no
`strftime_now`: a prompt that holds today's date can't be rendered again tomorrow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pipeline.config import RenderSettings
from pipeline.core.chat import UnrenderableRequest, change_texts, change_values, read_messages, read_tools
from pipeline.core.encoding import Encoder, UnencodableText
from pipeline.core.tool_declarations import find_style
from pipeline.errors import ConfigError

__all__ = ["RenderedPrompt", "UnrenderableRequest", "render_ids", "render_text"]

# Characters that mean nothing (private use, plane 15): one that the prompt does not hold marks texts.
_PRIVATE_USE = range(0xF0000, 0xFFFFE)


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """Ids of the prompt.

    `plain_ids`: the same prompt from a server that keeps special strings in message text as ordinary
    text; None where that makes no difference, or where the template takes the texts apart itself.
    """

    ids: tuple[int, ...]
    plain_ids: tuple[int, ...] | None


def render_text(request: Mapping[str, Any], settings: RenderSettings) -> str:
    """The prompt as text, special tokens spelled out."""
    return _fill(_variables(request, settings), settings)


def render_ids(request: Mapping[str, Any], settings: RenderSettings, encoder: Encoder) -> RenderedPrompt:
    """The prompt as ids, as the target's own tokenizer encodes it."""
    variables = _variables(request, settings)
    text = _fill(variables, settings)
    specials = _Specials.of(encoder.special_strings)
    marker = next(chr(code) for code in _PRIVATE_USE if chr(code) not in text)
    marked = text
    if not _is_plain(variables, lambda part: specials.broken(part, marker) == part):
        marked = _fill(variables, settings, lambda part: specials.broken(part, marker))
    told_apart = marked.replace(marker, "") == text
    try:
        if settings.encoding.parse_special:
            ids = tuple(encoder.encode_prompt(text))
            if marker not in marked or not told_apart:
                return RenderedPrompt(ids, None)
            plain = _ids_around(specials, marked, marker, encoder)
            return RenderedPrompt(ids, plain if plain != ids else None)
        if not told_apart:
            raise UnrenderableRequest("messages: the template takes a special string in them for its own")
        return RenderedPrompt(_ids_around(specials, marked, marker, encoder), None)
    except UnencodableText as error:
        raise UnrenderableRequest(str(error)) from error


def _ids_around(specials: _Specials, marked: str, marker: str, encoder: Encoder) -> tuple[int, ...]:
    """Special strings that are still whole come from the template; all between them is ordinary text."""
    pieces = specials.whole.split(marked)
    texts = encoder.encode_batch([text.replace(marker, "") for text in pieces[::2]])
    ids = list(texts[0])
    for special, text in zip(pieces[1::2], texts[1:], strict=True):
        ids += [encoder.special[special], *text]
    return tuple(ids)


@dataclass(frozen=True, slots=True)
class _Specials:
    """The special strings of a vocabulary: a pattern that captures one, and all their proper beginnings."""

    whole: re.Pattern[str]
    beginnings: frozenset[str]
    firsts: frozenset[str]
    longest: int

    @staticmethod
    @lru_cache(maxsize=8)
    def of(strings: frozenset[str]) -> _Specials:
        by_length = sorted(strings, key=lambda one: (-len(one), one))
        return _Specials(
            re.compile(f"({'|'.join(map(re.escape, by_length))})"),
            frozenset(one[:end] for one in strings for end in range(1, len(one))),
            frozenset(one[0] for one in strings),
            len(by_length[0]),
        )

    def broken(self, text: str, marker: str) -> str:
        """The text with the marker inside every special string, and behind an end that begins one.

        The latter because two neighbouring texts (parts of one content) may make one together.
        """
        if not any(first in text for first in self.firsts):  # most texts: no regex needed
            return text
        text = self.whole.sub(lambda found: found[0][0] + marker + found[0][1:], text)
        ends = (text[-length:] for length in range(1, min(self.longest, len(text) + 1)))
        return text + marker if any(end in self.beginnings for end in ends) else text


def _variables(request: Mapping[str, Any], settings: RenderSettings) -> dict[str, Any]:
    tools = read_tools(request)
    style = settings.tool_declarations
    return {
        "messages": read_messages(request),
        "tools": tools,
        "tools_text": find_style(style)(tools) if style and tools else None,
        "add_generation_prompt": True,
        "thinking": settings.thinking,
    }


def _is_plain(variables: Mapping[str, Any], unchanged: Callable[[str], bool]) -> bool:
    """Marking would change nothing: most prompts are messages of plain text, and filling twice is dear."""
    return variables["tools"] is None and all(
        isinstance(value, str) and unchanged(value)
        for message in variables["messages"]
        for value in message.values()
        if value is not None
    )


def _fill(
    variables: Mapping[str, Any], settings: RenderSettings, mark: Callable[[str], str] | None = None
) -> str:
    """The filled template; `mark` is applied to every text that comes from the request."""
    if mark is not None:
        texts = ("tools", "tools_text")
        variables = {
            **variables,
            **{name: change_values(variables[name], mark) for name in texts},
            "messages": change_texts(variables["messages"], mark),
            _MARK: mark,
        }
    try:
        return _compiled(settings.template).render(variables)
    except (jinja2.TemplateError, TypeError) as error:
        raise UnrenderableRequest(f"the chat template refuses the request: {error}") from error


# Name under which `tojson` finds `mark`: keys of an object are texts of the request too, but only as written.
_MARK = "_mark"


@jinja2.pass_context
def _tojson(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    written = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    mark = context.get(_MARK)
    return mark(written) if mark else written


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with a short way to what templates do most: `message.role`."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """A key of a dict, unless dicts have a method of that name."""
        if type(obj) is dict and attribute not in _OF_DICTS:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)


_OF_DICTS = frozenset(dir(dict))


@lru_cache(maxsize=16)
def _compiled(template: str) -> jinja2.Template:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    try:
        return environment.from_string(template)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"conf/target: render.template, line {error.lineno}: {error.message}") from error
