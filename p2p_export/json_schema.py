"""Checking a JSON document against a schema, in the few words of JSON Schema that ours use.

Opening a bundle may need nothing but NumPy, so the `jsonschema` package is not at hand there. What
is understood: type, const, enum, required, properties, additionalProperties, propertyNames with a
pattern, items, minItems, minLength, pattern, minimum, exclusiveMinimum, maximum. A schema that says
more is refused, so nothing is silently left unchecked. Stricter than JSON Schema in one point: an
integer is written as one, 8 and not 8.0, since what reads it may count with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from p2p_export.json_reading import shortened

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_KNOWN = {
    "type", "const", "enum", "required", "properties", "additionalProperties", "propertyNames",
    "items", "minItems", "minLength", "pattern", "minimum", "exclusiveMinimum",
    "maximum", "title", "$schema",
}  # fmt: skip


def first_error(document: Any, schema: Mapping[str, Any]) -> str | None:
    """What is wrong with `document`, as "`path.to.field` is ...", or None when nothing is."""
    return next(_errors(document, schema, ""), None)


def _errors(value: Any, schema: Mapping[str, Any], at: str) -> Iterator[str]:
    unknown = set(schema) - _KNOWN
    if unknown:
        raise NotImplementedError(f"schema keywords {sorted(unknown)} at {at or 'the top'}")
    name = f"`{at}`" if at else "the document"
    if "type" in schema and not _has_type(value, schema["type"]):
        wanted = schema["type"]
        names = wanted if isinstance(wanted, str) else " or ".join(wanted)
        yield f"{name} is {_shown(value)} and must be of type {names}"
        return
    if "const" in schema and value != schema["const"]:
        yield f"{name} is {_shown(value)} and must be {schema['const']!r}"
    if "enum" in schema and not any(
        type(value) is type(one) and value == one for one in schema["enum"]
    ):
        yield f"{name} is {_shown(value)} and must be one of {schema['enum']}"
    if isinstance(value, str):
        yield from _string_errors(value, schema, name)
    elif isinstance(value, dict):
        yield from _object_errors(value, schema, at)
    elif isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            yield f"{name} has {len(value)} entries and needs {schema['minItems']}"
        for i, item in enumerate(value):
            yield from _errors(item, schema.get("items", {}), f"{at}.{i}" if at else str(i))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        if "minimum" in schema and not value >= schema["minimum"]:
            yield f"{name} is {_shown(value)} and must be at least {schema['minimum']}"
        if "maximum" in schema and not value <= schema["maximum"]:
            yield f"{name} is {_shown(value)} and must be at most {schema['maximum']}"
        if "exclusiveMinimum" in schema and not value > schema["exclusiveMinimum"]:
            yield f"{name} is {_shown(value)} and must be above {schema['exclusiveMinimum']}"


def _string_errors(value: str, schema: Mapping[str, Any], name: str) -> Iterator[str]:
    if len(value) < schema.get("minLength", 0):
        yield f"{name} must not be empty"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{name} is {_shown(value)} and does not match {schema['pattern']}"


def _object_errors(value: dict[str, Any], schema: Mapping[str, Any], at: str) -> Iterator[str]:
    prefix = f"{at}." if at else ""
    for key in schema.get("required", ()):
        if key not in value:
            yield f"`{prefix}{key}` is missing"
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties", {})
    for key, entry in value.items():
        if "propertyNames" in schema and not re.search(schema["propertyNames"]["pattern"], key):
            yield f"`{prefix}{shortened(key)}` is no name that is allowed there"
        if key in properties:
            yield from _errors(entry, properties[key], prefix + key)
        elif others is False:
            yield f"`{prefix}{shortened(key)}` is unknown"
        else:
            yield from _errors(entry, others, prefix + key)


def _has_type(value: Any, wanted: str | list[str]) -> bool:
    for name in [wanted] if isinstance(wanted, str) else wanted:
        if isinstance(value, bool) and name != "boolean":
            continue
        if isinstance(value, _TYPES[name]):
            return True
    return False


def _shown(value: Any) -> str:
    return shortened(repr(value), 60)
