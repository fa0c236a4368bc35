"""An error answer (status, error object, choice error) -> the class of the fault.

OpenRouter puts errors in three places: an HTTP status, `error` in the body of a 200, `error` in a
choice of a 200. `error.code` counts as the status then. An empty error object is no error
(litellm#18407).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipeline.records import Action

_RETRY_STATUS = frozenset({408, 409, 425, 429, 499})
_TIMEOUTS = frozenset({408, 499, 504, 524})
_BUSY_STATUS = frozenset({429, 503, 529})
_ROW_TYPES = frozenset(
    {"context_length_exceeded", "max_tokens_exceeded", "token_limit_exceeded", "string_too_long"}
    | {"payload_too_large", "invalid_prompt", "content_policy_violation", "refusal"}
    | {"unprocessable", "precondition_failed"}
)
_RUN_TYPES = frozenset(
    {"authentication", "permission_denied", "invalid_api_key", "model_not_found"}
    | {"insufficient_quota", "payment_required"}
)
_STATUS_OF_TYPE = {
    "rate_limit_exceeded": 429, "provider_unavailable": 502, "provider_overloaded": 503, "timeout": 504,
    "server": 500, "server_error": 500, "unmapped": 500, "not_found": 404, "invalid_request": 400,
    "invalid_request_error": 400,
}  # fmt: skip
_NO_SUCH_MODEL = re.compile(
    r"not a valid model|model .{0,80}(not found|does not exist)|no endpoints? (found|match)", re.I
)
_AFFORD = re.compile(r"can only afford", re.I)


@dataclass(frozen=True, slots=True)
class Fault:
    """What an error answer means.

    `maybe_billed`: the generation may have run, so its cost is unknown. `pushback`: the endpoint has too
    much to do; one that only says so (429) has not tried, so that counts as no attempt.
    """

    action: Action
    reason: str
    provider: str | None = None
    flags: tuple[str, ...] = ()
    retry_after_s: float | None = None
    maybe_billed: bool = False
    counts_as_attempt: bool = True
    pushback: bool = False


def read_fault(status: int, body: Any, text: str) -> Fault | None:
    """The fault of an exchange, or None if it holds an answer (or nothing that says what is wrong)."""
    error, choice_fault = _error_object(body)
    if error is not None:
        code = _code(error, status)
        fault = _classify(code, error, choice_fault)
        # A status of its own comes before anything was generated (OpenRouter, errors), unless time ran out.
        billed = fault.maybe_billed and (status < 300 or code in _TIMEOUTS)
        return replace(fault, maybe_billed=billed)
    if not 200 <= status < 300:
        return _of_bare_status(status, text)
    choices = body.get("choices") if isinstance(body, dict) else None
    if isinstance(body, dict) and not (isinstance(choices, list) and choices):
        return Fault(Action.RETRY, "the answer has no choices; nothing was generated", maybe_billed=True)
    if body is not None and not isinstance(body, dict):
        return Fault(Action.RETRY, "the body is JSON but no object", maybe_billed=True)
    return None


def _error_object(body: Any) -> tuple[Mapping[str, Any] | None, bool]:
    """The error with content, wherever it stands; True: in a choice, after text may have been made."""
    if not isinstance(body, dict):
        return None, False
    found = stated_error(body.get("error"))
    if found is not None:
        return found, False
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    found = stated_error(choice.get("error"))
    if found is None and choice.get("finish_reason") == "error":
        found = {"message": "the provider broke off", "code": 502}
    return found, True


def stated_error(error: Any) -> Mapping[str, Any] | None:
    """An `error` field that says something; an empty one beside a good answer is None."""
    if isinstance(error, str) and error.strip():
        return {"message": error}
    return error if isinstance(error, dict) and _says_something(error) else None


def _says_something(value: Any) -> bool:
    """Some text, number or flag, at any depth. A code of success says nothing."""
    if isinstance(value, dict):
        code = value.get("code")
        if isinstance(code, int) and 200 <= code < 300:
            return False
        return any(_says_something(item) for item in value.values())
    if isinstance(value, list):
        return any(map(_says_something, value))
    return bool(value.strip()) if isinstance(value, str) else bool(value)


def _code(error: Mapping[str, Any], status: int) -> int:
    """The status that counts: the error's own code; 502 for an error in a 200 that names none."""
    code = error.get("code")
    if isinstance(code, str) and code.isascii() and code.isdecimal():
        code = int(code[:4])
    if isinstance(code, (int, float)) and not isinstance(code, bool) and 100 <= code < 600:
        return int(code)
    for kind in _types(error):
        if kind in _STATUS_OF_TYPE:
            return _STATUS_OF_TYPE[kind]
    return status if status >= 300 else 502


def _types(error: Mapping[str, Any]) -> list[str]:
    metadata = error.get("metadata")
    meta = metadata if isinstance(metadata, dict) else {}
    return [str(value) for value in (meta.get("error_type"), error.get("code"), error.get("type")) if value]


def _classify(code: int, error: Mapping[str, Any], in_choice: bool) -> Fault:
    metadata = error.get("metadata")
    meta: Mapping[str, Any] = metadata if isinstance(metadata, dict) else {}
    provider = meta.get("provider_name") or None
    message = _message(error, meta)
    availability = error.get("availability")
    if isinstance(availability, dict) and isinstance(availability.get("retryable"), bool):
        wait = availability.get("retry_after")
        if availability["retryable"]:
            wait_s = wait if isinstance(wait, (int, float)) else None
            return replace(_again(code, message, provider), retry_after_s=wait_s)
        excluded = availability.get("excluded_by")
        why = ", ".join(map(str, excluded)) if isinstance(excluded, list) else ""
        why = why or str(availability.get("code") or "")
        return Fault(Action.FATAL_RUN, f"no endpoint can serve this run ({why}): {message}")
    kinds = set(_types(error))
    if kinds & _RUN_TYPES and code != 402 and not provider:
        return Fault(Action.FATAL_RUN, message)
    if kinds & _ROW_TYPES:
        return Fault(Action.FATAL_ROW, message, provider)
    if code == 402:
        return _of_402(message, meta)
    if code == 403:
        return _of_403(message, meta, provider)
    if provider and (code in (401, 404) or kinds & _RUN_TYPES):  # one upstream's trouble, not ours
        return Fault(Action.REROUTE, f"{provider} can't serve the request: {message}", provider)
    if code == 401 or _NO_SUCH_MODEL.search(message):
        return Fault(Action.FATAL_RUN, message)
    if code in _RETRY_STATUS:
        if "free-models-per-day" in message:
            return Fault(Action.FATAL_RUN, message)
        return _again(code, message, provider)
    if code >= 500 and code != 501:
        return _again(code, message, provider)
    if code in (400, 413, 422, 412) or in_choice:
        if provider:
            return Fault(Action.REROUTE, f"{provider} refuses the request: {message}", provider)
        return Fault(Action.FATAL_ROW, message)
    return Fault(Action.FATAL_RUN, f"status {code}: {message}")


def _again(code: int, message: str, provider: str | None = None) -> Fault:
    """The same request may pass later."""
    return Fault(
        Action.RETRY,
        message,
        provider,
        maybe_billed=code in _TIMEOUTS or code >= 500,
        counts_as_attempt=code != 429,
        pushback=code in _BUSY_STATUS,
    )


def _of_402(message: str, meta: Mapping[str, Any]) -> Fault:
    """Three different things share this status (OpenRouter, limits)."""
    source, why = meta.get("limit_source"), meta.get("reason")
    if source == "openrouter_in_flight_budget" or why == "in_flight_budget_exhausted":
        flags = ("shrink_window", "not_an_attempt")
        return Fault(Action.RETRY, message, flags=flags, counts_as_attempt=False, pushback=True)
    if why == "weight_exceeds_budget" or _AFFORD.search(message):
        return Fault(Action.FATAL_ROW, f"{message}; lower sampling.max_tokens or add credit")
    return Fault(Action.FATAL_RUN, f"no credit or key limit reached: {message}")


def _of_403(message: str, meta: Mapping[str, Any], provider: str | None) -> Fault:
    if meta.get("reasons") or meta.get("flagged_input") or meta.get("patterns"):
        return Fault(Action.FATAL_ROW, f"moderation: {message}")
    if provider and not meta.get("limit_source"):
        return Fault(Action.REROUTE, f"{provider} refuses the request: {message}", provider)
    return Fault(Action.FATAL_RUN, message)


def _of_bare_status(status: int, text: str) -> Fault:
    """A status without an error object: edge pages, proxies, wrong addresses."""
    what = f"status {status} with {text.strip()[:60]!r}"
    if status in _RETRY_STATUS or (status >= 500 and status != 501):
        return _again(status, what)
    if status == 403 and text.lstrip().startswith("<"):
        return Fault(Action.RETRY, f"{what}: the edge blocks for a while")
    if status in (400, 413, 422):
        return Fault(Action.FATAL_ROW, what)
    return Fault(Action.FATAL_RUN, f"{what}: check the provider's base_url, path and key")


def _message(error: Mapping[str, Any], meta: Mapping[str, Any]) -> str:
    """The error's own words and, where a provider's raw body came with it, that too, bounded."""
    raw = meta.get("raw")
    words = [str(error.get("message") or "unnamed error"), str(raw)[:300] if raw else ""]
    return ": ".join(" ".join(word.split()) for word in words if word)
