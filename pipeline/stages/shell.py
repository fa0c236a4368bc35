"""A stage's subtree of build/config.yaml -> its typed settings; what every stage shell needs."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import ValidationError

from pipeline.config import Settings
from pipeline.errors import ConfigError

Model = TypeVar("Model", bound=Settings)


def parse_settings(model: type[Model], subtree: dict[str, Any], where: str) -> Model:
    """Settings of the stage, without `libraries` (checked by the command line before the stage runs).

    Raises ConfigError naming the first key that does not fit.
    """
    values = {key: value for key, value in subtree.items() if key != "libraries"}
    try:
        return model.model_validate_json(json.dumps(values))  # strict, yet lists may fill tuples
    except ValidationError as broken:
        first = broken.errors()[0]
        key = ".".join(map(str, (where, *first["loc"])))
        raise ConfigError(
            f"build/config.yaml: {key}: {first['msg']}; run `python -m pipeline compose`"
        ) from None
