"""JSON Schema tools -> TypeScript: golden texts, each as the vendor's encoder writes it."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.core.tool_declarations import find_style
from pipeline.core.tool_declarations.typescript import declare
from pipeline.errors import ConfigError

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}


def tool(parameters: Any = None, **more: Any) -> Schema:
    return {"type": "function", "function": {"name": "f", "parameters": parameters, **more}}


def inside(tools: list[Schema]) -> str:
    """What stands inside the namespace."""
    text = declare(tools)
    assert text is not None
    head, tail = "# Tools\n\n## functions\nnamespace functions {\n", "\n}\n"
    assert text.startswith(head)
    assert text.endswith(tail)
    return text.removeprefix(head).removesuffix(tail)


def of(*lines: str) -> str:
    return "\n".join(lines)


def one(name: str, schema: Any) -> Schema:
    return {"type": "object", "properties": {name: schema}}


NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}, "at": TEXT}, "required": ["next"]}

PARAMETERS: dict[str, tuple[Any, str]] = {
    "none": (None, "type f = (_: {}) => any;"),
    "empty": ({}, "type f = (_: {}) => any;"),
    "no properties": ({"type": "object", "properties": {}}, "type f = (_: {}) => any;"),
    "the root needs no type": (
        {"properties": {"a": TEXT}},
        of("type f = (_: {", "  a?: string", "}) => any;"),
    ),
    "required first, each half sorted": (
        {"type": "object", "properties": dict.fromkeys("zbya", TEXT), "required": ["z", "b", "unknown"]},
        of("type f = (_: {", "  b: string,", "  z: string,", "  a?: string,", "  y?: string", "}) => any;"),
    ),
    "descriptions: a comment a line, empty lines bare": (
        one("a", {"type": "integer", "description": "First.\n\nThird, 三\n"}),
        of("type f = (_: {", "  // First.", "", "  // Third, 三", "", "  a?: number", "}) => any;"),
    ),
    "the root's own description is not written": (
        {"description": "Root.", "properties": {"a": {"type": "null", "description": ""}}},
        of("type f = (_: {", "  a?: null", "}) => any;"),
    ),
    "limits that fit the type, in key order": (
        {
            "properties": {
                "n": {"type": "number", "minimum": 0, "maximum": 1.50, "exclusiveMinimum": 0, "pattern": "x"},
                "s": {
                    "type": "string",
                    "pattern": "^\\d+$",
                    "minLength": 1,
                    "maxLength": None,
                    "format": "date",
                },
                "b": {"type": "boolean", "minimum": 0},
            }
        },
        of(
            "type f = (_: {",
            "  b?: boolean,",
            "  // maximum: 1.5, minimum: 0",
            "  n?: number,",
            "  // maxLength: None, minLength: 1, pattern: ^\\d+$",
            "  s?: string",
            "}) => any;",
        ),
    ),
    "defaults of every JSON type": (
        {
            "properties": {
                "a": {**TEXT, "default": 'é "q"\n'},
                "b": {"type": "integer", "default": 0},
                "c": {"type": "number", "default": 1e16},
                "d": {"type": "boolean", "default": False},
                "e": {"type": "boolean", "default": True, "description": "Yes?"},
                "f": {**TEXT, "default": None},
                "g": {"type": "array", "default": [1, {"z": None, "a": False}]},
                "h": {"type": "object", "default": {"z": {"y": 1, "x": 2}, "a": "ü"}},
                "i": {**TEXT, "default": ""},
                "j": {"anyOf": [TEXT], "default": []},
            }
        },
        of(
            "type f = (_: {",
            '  // Default: "é \\"q\\"\\n"',
            "  a?: string,",
            "  // Default: 0",
            "  b?: number,",
            "  // Default: 1e+16",
            "  c?: number,",
            "  // Default: False",
            "  d?: boolean,",
            "  // Yes?",
            "  // Default: True",
            "  e?: boolean,",
            "  f?: string,",
            '  // Default: [1, {"a": false, "z": null}]',
            "  g?: Array<any>,",
            '  // Default: {"a": "ü", "z": {"x": 2, "y": 1}}',
            "  h?: {},",
            '  // Default: ""',
            "  i?: string,",
            "  // Default: []",
            "  j?: string",
            "}) => any;",
        ),
    ),
    "nested objects": (
        one(
            "a",
            {
                "type": "object",
                "description": "Outer",
                "properties": {"b": one("c", {**TEXT, "description": "Deep"})},
                "required": ["b"],
            },
        ),
        of(
            "type f = (_: {",
            "  // Outer",
            "  a?: {",
            "    b: {",
            "      // Deep",
            "      c?: string",
            "    }",
            "  }",
            "}) => any;",
        ),
    ),
    "other keys": (
        {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "any": {"type": "object", "additionalProperties": True},
                "text": {"type": "object", "additionalProperties": {**TEXT, "description": "lost"}},
                "whatever": {"type": "object", "additionalProperties": {}},
                "objects": {"type": "object", "additionalProperties": one("x", TEXT)},
                "unsaid": {"type": "object", "additionalProperties": None},
            },
        },
        of(
            "type f = (_: {",
            "  any?: {",
            "    [k: string]: any",
            "  },",
            "  objects?: {",
            "    [k: string]: {",
            "      x?: string",
            "    }",
            "  },",
            "  text?: {",
            "    [k: string]: string",
            "  },",
            "  unsaid?: {},",
            "  whatever?: {",
            "    [k: string]: any",
            "  },",
            "  [k: string]: never",
            "}) => any;",
        ),
    ),
    "arrays, with and without a comment on their items": (
        {
            "properties": {
                "bare": {"type": "array"},
                "texts": {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 3},
                "anything": {"type": "array", "items": True},
                "empty": {"type": "array", "items": {}},
                "noted": {"type": "array", "items": {**TEXT, "description": "A\npath", "minLength": 2}},
                "rows": {
                    "type": "array",
                    "items": {"type": "array", "items": {"type": "number", "maximum": 9}},
                },
                "records": {"type": "array", "items": {**one("x", TEXT), "description": "R"}},
            }
        },
        of(
            "type f = (_: {",
            "  anything?: Array<any>,",
            "  bare?: Array<any>,",
            "  empty?: Array<any>,",
            "  noted?: Array<",
            "    // A",
            "    // path",
            "    // minLength: 2",
            "    string",
            "  >,",
            "  records?: Array<",
            "    // R",
            "    {",
            "      x?: string",
            "    }",
            "  >,",
            "  rows?: Array<Array<",
            "    // maximum: 9",
            "    number",
            "  >>,",
            "  // maxItems: 3, minItems: 1",
            "  texts?: Array<string>",
            "}) => any;",
        ),
    ),
    "enums: texts without escapes, the rest as Python shows it": (
        {
            "properties": {
                "a": {**TEXT, "enum": ["x", 'q"q', ""], "description": "Pick"},
                "b": {"enum": [1, 2.5, None, True, "1", [1], {"k": None}]},
                "c": {"type": ["null", "integer"], "enum": [1, None]},
                "d": {"type": ["string"], "enum": []},
                "e": {"type": "integer", "enum": [True]},
            }
        },
        of(
            "type f = (_: {",
            "  // Pick",
            '  a?: "x" | "q"q" | "",',
            "  b?: 1 | 2.5 | None | True | \"1\" | [1] | {'k': None},",
            "  c?: 1 | None,",
            "  d?: ,",
            "  e?: True",
            "}) => any;",
        ),
    ),
    "unions of types and of schemas": (
        {
            "properties": {
                "a": {"type": ["string", "integer", "null"], "minLength": 1, "description": "Mixed"},
                "b": {"type": ["object", "array", "boolean", "number"]},
                "c": {"anyOf": [{**TEXT, "description": "lost"}, {"type": "array", "items": TEXT}, False]},
                "d": {"anyOf": [one("x", TEXT), {"enum": ["y"]}], "type": "string", "enum": ["z"]},
            }
        },
        of(
            "type f = (_: {",
            "  // Mixed",
            "  a?: string | number | null,",
            "  b?: {} | Array<any> | boolean | number,",
            "  c?: string | Array<string> | null,",
            "  d?: {",
            "    x?: string",
            '  } | "y"',
            "}) => any;",
        ),
    ),
    "booleans and unknown types": (
        {"properties": {"a": True, "b": False, "c": {"type": "uuid"}, "d": {}, "e": {"type": None}}},
        of(
            "type f = (_: {",
            "  a?: any,",
            "  b?: null,",
            "  c?: uuid,",
            "  d?: any,",
            "  e?: None",
            "}) => any;",
        ),
    ),
    "definitions are interfaces, sorted, and may name each other": (
        {
            "properties": {
                "start": {"$ref": "#/$defs/Node", "description": "Head"},
                "all": {"type": "array", "items": {"$ref": "#/$defs/Kind"}},
            },
            "$defs": {"Node": {**NODE, "description": "A node.\nLinked."}, "Kind": {"enum": ["a", "b"]}},
        },
        of(
            'interface Kind "a" | "b"',
            "// A node.",
            "// Linked.",
            "interface Node {",
            "  next: Node,",
            "  at?: string",
            "}",
            "type f = (_: {",
            "  all?: Array<Kind>,",
            "  // Head",
            "  start?: Node",
            "}) => any;",
        ),
    ),
    "definitions of an inner object count from there on": (
        {
            "properties": {
                "a": {"type": "object", "$defs": {"D": TEXT}, "properties": {"x": {"$ref": "#/$defs/D"}}},
                "b": {"$ref": "#/$defs/D"},
            }
        },
        of(
            "interface D string",
            "type f = (_: {",
            "  a?: {",
            "    x?: D",
            "  },",
            "  b?: D",
            "}) => any;",
        ),
    ),
    "a schema that refers to itself: required ones are not moved up, other keys are lost": (
        {
            "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}, "id": TEXT, "a": TEXT},
            "required": ["kids"],
            "additionalProperties": False,
        },
        of(
            "interface parameters {",
            "  a?: string,",
            "  id?: string,",
            "  kids: Array<parameters>",
            "}",
            "type f = (_: parameters) => any;",
        ),
    ),
    "a definition alone refers to the root: no interface of that name": (
        {"$defs": {"D": one("up", {"$ref": "#"})}, "properties": {"d": {"$ref": "#/$defs/D"}}},
        of(
            "interface D {",
            "  up?: parameters",
            "}",
            "type f = (_: {",
            "  d?: D",
            "}) => any;",
        ),
    ),
    "a description of the wrong type does no harm where it is not written": (
        {"description": 5, "properties": {"a": {"anyOf": [{"type": "string", "description": ["x"]}]}}},
        of("type f = (_: {", "  a?: string", "}) => any;"),
    ),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_golden_declaration(name: str) -> None:
    parameters, expected = PARAMETERS[name]
    assert inside([tool(parameters)]) == expected


def test_functions_stand_in_the_order_of_the_request() -> None:
    tools = [
        {"type": "function", "function": {"name": "zeta", "description": "Does z.\n\nSlowly."}},
        {"type": "_plugin", "function": {"name": "hidden"}},
        {"type": "function", "function": {}},
        {"type": "function", "function": {"description": "", "parameters": {"properties": {"a": TEXT}}}},
    ]
    assert inside(tools) == of(
        "// Does z.",
        "",
        "// Slowly.",
        "type zeta = (_: {}) => any;",
        "type function = (_: {",
        "  a?: string",
        "}) => any;",
    )


FAILS: dict[str, Any] = {
    "oneOf": one("a", {"oneOf": [TEXT]}),
    "allOf": one("a", {"allOf": [TEXT]}),
    "const": one("a", {"const": 1}),
    "a bare description": one("a", {"description": "anything"}),
    "oneOf deep inside": one("a", {"type": "array", "items": one("b", {"anyOf": [TEXT, {"oneOf": []}]})}),
    "unknown reference": one("a", {"$ref": "#/$defs/A"}),
    "foreign reference": {**one("a", {"$ref": "#/definitions/A"}), "definitions": {"A": TEXT}},
    "a reference before its definition": {
        "properties": {"a": {"$ref": "#/$defs/D"}, "b": {"type": "object", "$defs": {"D": TEXT}}}
    },
    "a definition that is no object": {**one("a", {"$ref": "#/$defs/D"}), "$defs": {"D": True}},
    "required is null": {**one("a", TEXT), "required": None},
    "properties are null": {"properties": None},
    "a property is null": one("a", None),
    "a property is a text": one("a", "string"),
    "parameters are a list": [TEXT],
    "unknown type in a union": one("a", {"type": ["string", "uuid"]}),
    "a null type joined with another": one("a", {"anyOf": [{"type": None}, TEXT]}),
    "a null type as a described item": one(
        "a", {"type": "array", "items": {"type": None, "description": "x"}}
    ),
    "an enum value against its type": one("a", {"type": "string", "enum": ["1", 2]}),
    "an enum value against its only type": one("a", {"type": ["boolean", "null"], "enum": [1]}),
    "an enum of two types": one("a", {"type": ["string", "integer"], "enum": ["1"]}),
    "a list as item": one("a", {"type": "array", "items": [TEXT]}),
    "additionalProperties is a list": {"additionalProperties": []},
    "a description that is a list": one("a", {"type": "string", "description": ["x"]}),
}


@pytest.mark.parametrize("name", FAILS)
def test_what_the_vendor_cannot_declare_leaves_all_tools_to_json(name: str) -> None:
    assert declare([tool({}), tool(FAILS[name])]) is None


@pytest.mark.parametrize(
    "tools",
    [
        [],
        [{"type": "_plugin"}],
        [{"name": "flat", "parameters": {}}],
        [{"type": "function", "name": "flat"}],
        [{"type": "function", "function": "f"}],
    ],
)
def test_tools_without_a_function_are_left_to_json(tools: list[Schema]) -> None:
    assert declare(tools) is None


def test_the_tools_themselves_are_not_changed() -> None:
    tools = [tool({"$defs": {"B": TEXT, "A": TEXT}, "properties": {"b": TEXT, "a": {"$ref": "#/$defs/A"}}})]
    before = repr(tools)
    declare(tools)
    assert repr(tools) == before


def test_a_style_is_found_by_name() -> None:
    assert find_style("typescript") is declare


def test_an_unknown_style_lists_what_exists() -> None:
    with pytest.raises(
        ConfigError, match=r"^conf/target: render\.tool_declarations is 'xml'; there is: typescript$"
    ):
        find_style("xml")
