"""A stage's subtree of build/config.yaml -> its typed settings; what every stage shell needs."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import ValidationError

from pipeline.config import Settings
from pipeline.errors import ConfigError

Model = TypeVar("Model", bound=Settings)


def parse_settings(model: type[Model], subtree: dict[str, Any], where: str) -> Model:
    """Settings of the stage. Raises ConfigError naming the first key that does not fit."""
    try:
        return model.model_validate_json(json.dumps(subtree))  # strict, yet lists may fill tuples
    except ValidationError as broken:
        first = broken.errors()[0]
        key = ".".join(map(str, (where, *first["loc"])))
        raise ConfigError(
            f"build/config.yaml: {key}: {first['msg']}; run `python -m pipeline compose`"
        ) from None
