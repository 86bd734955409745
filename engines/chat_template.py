"""Chat templates: Jinja as checkpoints write it, in a sandbox, compiled once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from p2p_export.errors import InputError


class ChatTemplate:
    """Turns messages into a prompt, with transformers' settings and extra functions.

    Raises `InputError` when the template cannot be compiled or `jinja2` is not installed.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        try:
            import jinja2
            from jinja2.ext import loopcontrols
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ModuleNotFoundError:
            raise InputError(
                "chat templates need the package `jinja2`; `pip install jinja2`"
            ) from None
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _now
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise InputError(f"the bundle's chat template cannot be read ({error})") from None

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt up to where the answer begins; `InputError` when the template refuses."""
        from jinja2 import TemplateError

        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=True, **self._special_tokens
            )
        except TemplateError as error:
            raise InputError(
                f"the bundle's chat template does not take this prompt ({error})"
            ) from None


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """Templates want plain JSON; jinja's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise_exception(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
