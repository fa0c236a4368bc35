"""Name of a style -> the function that writes tools as the text of a prompt in that style.

A style is a module of this package with `declare(tools) -> str | None`; None says that the style
has no words for these tools and the template must print them itself (as JSON).
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol, cast

from pipeline.errors import ConfigError


class Declare(Protocol):
    """Tools in OpenAI form -> their declaration, or None."""

    def __call__(self, tools: Sequence[Mapping[str, Any]]) -> str | None: ...


def find_style(name: str) -> Declare:
    """The `declare` of module `name`."""
    path = f"{__name__}.{name}"
    try:
        module = import_module(path)
    except ModuleNotFoundError as missing:
        if missing.name != path:
            raise
        styles = ", ".join(sorted(found.name for found in pkgutil.iter_modules(__path__)))
        raise ConfigError(f"conf/target: render.tool_declarations is {name!r}; there is: {styles}") from None
    return cast(Declare, module.declare)
