"""Convert between JSON and frozen values: strict reading, every error with its path, and writing.

A `WireValue` is a frozen attrs class whose fields each have a *rule*: a function that returns the
normalised value or raises ValueError. A field names its rule, unless it holds a boolean or a
section. The same rules run whether a value is built in Python or read from JSON, so an invalid
value cannot exist. This is all that a config of six sections needs; a library for it would add 14
ms to each start.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from operator import attrgetter
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

import attrs

from hostrouting.base.errors import ConfigMistake, InvalidConfigError
from phases.exceptions import most_similar

Rule = Callable[[object], Any]
R = TypeVar("R", bound="Rule")
V = TypeVar("V", bound="WireValue")

_LONGEST_SHOWN = 80
#: Patterns of common mistakes in JSON, in the order to try, with reason and correction.
_TYPED = (
    (r"\0", "there is a zero byte here, as in UTF-16; save the config as UTF-8"),
    (r"//|#|/\*", "JSON does not allow comments; remove this one"),
    (r",\s*(?![^]}])", "there is a trailing comma; remove it"),
    ("'", 'JSON does not allow single quotes; write "'),
    ("[\u2018-\u201f\u00ab\u00bb]", 'this quotation mark is not a plain one; write "'),
    (r"(?i)(true|false|null)\b", "JSON uses lower-case letters for this word"),
    (r"(None|nil|undefined)\b", "JSON does not have this word; write null"),
    (r"[^\W\d][\w.-]*\s*:", 'a key needs quotes: write "key"'),
    (
        ":",
        "unexpected colon; if this is a key of the config, put { before it and } at the end",
    ),
    (r"\Z", "the text ends too early; close each object, list and string"),
)
_REPEATED = "is given more than once, and JSON parsers differ on which one counts; keep only one"
#: A longer key is not a misspelling, and comparing it with the known ones takes time.
_LONGEST_GUESSED = 40
#: What ip, route, netplan and other tools call the keys of a route.
_OF_OTHER_TOOLS: Final = {
    **dict.fromkeys(("to", "dst", "dest", "network"), "destination"),
    **dict.fromkeys(("via", "gw", "nexthop"), "gateway"),
    **dict.fromkeys(("interface", "iface", "oif"), "dev"),
}


class _JSONObject(dict[str, object]):
    """A JSON object with repeated keys, which `repeated` lists; the last value counts."""

    repeated: Collection[str] = ()


def _to_wire(value: object) -> object:
    if isinstance(value, WireValue):
        return value.to_mapping()
    if isinstance(value, tuple):
        return [_to_wire(item) for item in value]
    return value


def accepting(schema: Mapping[str, object]) -> Callable[[R], R]:
    """Return a decorator that attaches to a rule the JSON Schema of the values that it accepts.

    The schema may be less strict than the rule, because it cannot interpret routes, but never
    stricter. A subclass of `WireValue` stands for its own schema.

    >>> @accepting({"type": "string"})
    ... def name(value: object) -> str:
    ...     return str(value)
    >>> schema_of(name)
    {'type': 'string'}
    """

    def decorate(rule: R) -> R:
        rule.schema = schema  # type: ignore[attr-defined]
        return rule

    return decorate


def schema_of(rule: Rule | None) -> Mapping[str, object]:
    """Return the JSON Schema of the values that a rule accepts; {} (any value) if it has none."""
    schema: Mapping[str, object] = getattr(rule, "schema", {})
    return schema


def wire(
    text: str, rule: Rule, *, read: Rule | None = None, write: Callable[[Any], object] = _to_wire
) -> dict[str, Any]:
    """Return the metadata of a field: its description in the manual and schema, and its rule.

    If its JSON form differs from the Python one, `read` and `write` convert it.
    """
    return {"text": text, "rule": rule, "read": read, "write": write}


class WireField(NamedTuple):
    """A field of a `WireValue`: its name in Python, its default, and its metadata from `wire`."""

    name: str
    default: Any
    text: str
    rule: Rule
    read: Rule | None
    write: Rule


class WireValue:
    """A frozen attrs class with a JSON form: camelCase names, no defaults, null means missing.

    Constructing it checks every field and raises one `InvalidConfigError` with all errors. A field
    that holds another `WireValue` also accepts its mapping.

    >>> @attrs.frozen(kw_only=True)
    ... class Door(WireValue):
    ...     opens_at: int = setting("The hour at which it opens.", int, default=8)
    >>> Door.from_mapping({"opensAt": "9"})
    Door(opens_at=9)
    >>> Door(opens_at=9).to_mapping()
    {'opensAt': 9}
    >>> Door.from_mapping({"opnsAt": 9})
    Traceback (most recent call last):
    hostrouting.base.errors.InvalidConfigError: opnsAt: is not a known key; did you mean 'opensAt'?
    """

    __slots__ = ()

    #: The path of the outermost value in the document; nested values get theirs from the field.
    _path: ClassVar[str] = ""

    def __attrs_post_init__(self) -> None:
        errors: list[ConfigMistake] = []
        for path, field in wire_fields(type(self)).items():
            given = getattr(self, field.name)
            if given is field.default:
                continue
            try:
                value = field.rule(given)
            except ValueError as error:
                errors += errors_under(path, error)
            else:
                if value is not given:
                    object.__setattr__(self, field.name, value)
        broken = frozenset(error.path for error in errors) if errors else frozenset()
        errors += self._cross_field_errors(broken)
        if errors:
            raise InvalidConfigError(errors_under(self._path, InvalidConfigError(errors)))

    def _cross_field_errors(self, broken: frozenset[str]) -> Iterable[ConfigMistake]:  # noqa: ARG002 (for overriding methods)
        """Return the errors between fields; `broken` contains the JSON names of invalid fields."""
        return ()

    @classmethod
    def from_mapping(cls: type[V], mapping: Mapping[str, Any]) -> V:
        """Read the JSON form; raise `InvalidConfigError` with all errors in it."""
        return structured(cls, mapping)

    def to_mapping(self) -> dict[str, Any]:
        """Return the canonical JSON form: without defaults, in a fixed order."""
        mapping = {}
        for path, (name, default, _, _, _, write) in wire_fields(type(self)).items():
            value = getattr(self, name)
            if value != default:
                mapping[path] = write(value)
        return mapping


@accepting({"type": "boolean"})
def boolean(value: object) -> bool:
    """Return a boolean; refuse every other type."""
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, found {describe(value)}")  # noqa: TRY004 (a rule raises ValueError)
    return value


def setting(text: str, rule: Rule = boolean, *, default: object = False, **forms: Any) -> Any:
    """Return a field with a default; by default a boolean that is false.

    `text` is its description in the manual; for `rule` and `forms` see `wire`. A field with a
    default is keyword-only.
    """
    is_optional = default is not attrs.NOTHING
    return attrs.field(default=default, kw_only=is_optional, metadata=wire(text, rule, **forms))


def section(cls: type[V]) -> Callable[[object], V]:
    """Return the rule of a field that holds another value; it also accepts its mapping."""

    @accepting({"$ref": cls})
    def rule(value: object) -> V:
        return value if isinstance(value, cls) else structured(cls, value)

    return rule


def structured(
    cls: type[V],
    mapping: object,
    *,
    also_known: Iterable[str] = (),
    ignored: Iterable[str] = (),
    more_errors: Iterable[ConfigMistake] = (),
) -> V:
    """Build a value from its mapping.

    Keys in `also_known` are suggested for misspelled ones; keys in `ignored` are allowed.
    `more_errors` were found outside the mapping and are raised together with those in it.
    """
    if not isinstance(mapping, (dict, Mapping)):  # dict first, because it is faster
        reason = f"expected an object, found {describe(mapping)}"
        raise InvalidConfigError([ConfigMistake(cls._path, reason)])
    fields = wire_fields(cls)
    values: dict[str, object] = _defaults(cls).copy()
    errors = [ConfigMistake(_key(name), _REPEATED) for name in repeated_keys(mapping)]
    for name, value in mapping.items():
        field = fields.get(name)
        if field is None:
            if name not in ignored:
                errors.append(_unknown_key(name, [*fields, *also_known]))
        elif value is not None:
            try:
                values[field.name] = field.read(value) if field.read else value
            except ValueError as error:
                errors += errors_under(name, error)
    errors = [*more_errors, *errors_under(cls._path, InvalidConfigError(errors))]
    # Faster than calling the class; the fields are known to exist.
    result = object.__new__(cls)
    try:
        cls.__init__(result, **values)
    except InvalidConfigError as error:
        raise InvalidConfigError(errors + error.errors) from None
    if errors:
        raise InvalidConfigError(errors)
    return result


def repeated_keys(mapping: Mapping[Any, Any]) -> Collection[str]:
    """Return the keys that occurred more than once in this object in the JSON text."""
    return mapping.repeated if isinstance(mapping, _JSONObject) else ()


def _read_defaults(cls: type[Any]) -> dict[str, Any]:
    """Return the default of each field by its name in Python; None for a required one."""
    return {
        field.name: None if field.default is attrs.NOTHING else field.default
        for field in wire_fields(cls).values()
    }


def _read_fields(cls: type[Any]) -> dict[str, WireField]:
    """Return the fields of a class by their names in JSON; one without metadata is a section."""
    fields = {}
    for field in filter(attrgetter("init"), attrs.fields(cls)):
        kind = type(field.default)
        metadata = field.metadata or wire(sentence_of(kind), section(kind))
        # `opens_at` becomes `opensAt`.
        name = field.name[0] + field.name.title().replace("_", "")[1:]
        fields[name] = WireField(field.name, field.default, **metadata)
    return fields


def sentence_of(cls: type[Any]) -> str:
    """Return the description of a section in the manual: the first line of its docstring."""
    return (cls.__doc__ or "").partition("\n")[0]


#: Computed once for each class.
wire_fields: Callable[[type[Any]], dict[str, WireField]] = functools.cache(_read_fields)  # type: ignore[assignment] # classes do hash
_defaults: Callable[[type[Any]], dict[str, Any]] = functools.cache(_read_defaults)  # type: ignore[assignment] # likewise


def errors_under(path: str, error: ValueError) -> list[ConfigMistake]:
    """Return the errors of a rule, with `path` prepended to their own paths.

    >>> errors_under("routes", InvalidConfigError([ConfigMistake("[0].dev", "is wrong")]))
    [ConfigMistake(path='routes[0].dev', message='is wrong')]
    >>> errors_under("metric", ValueError("is wrong"))
    [ConfigMistake(path='metric', message='is wrong')]
    """
    if not isinstance(error, InvalidConfigError):
        return [ConfigMistake(path, str(error))]
    if not path:
        return error.errors
    return [
        ConfigMistake(
            f"{path}.{inner}" if inner and not inner.startswith("[") else f"{path}{inner}", message
        )
        for inner, message in error.errors
    ]


def _unknown_key(name: object, known: list[str]) -> ConfigMistake:
    if not isinstance(name, str):
        return ConfigMistake("", f"expected strings as keys, found {describe(name)}")
    guess = _OF_OTHER_TOOLS.get(name.lower())
    guess = guess if guess in known else closest(name, known)
    step = f"did you mean {guess!r}?" if guess else f"known here are {', '.join(sorted(known))}"
    return ConfigMistake(_key(name), f"is not a known key; {step}")


def closest(name: str, known: Iterable[str], *, similarity: float = 0.6) -> str | None:
    """Return the known key that `name` probably means; at similarity 1.0 only case may differ.

    >>> keys = ["staticRoutes", "routeOverlap"]
    >>> closest("staticroute", keys), closest("nodeName", keys)
    ('staticRoutes', None)
    """
    if len(name) > _LONGEST_GUESSED:
        return None
    by_lower_case = {key.lower(): key for key in known}
    match: str | None = name.lower()
    # Searching for a similar one loads difflib.
    if match not in by_lower_case:
        match = most_similar(name.lower(), by_lower_case, similarity=similarity)
    return None if match is None else by_lower_case[match]


def _key(name: str) -> str:
    """Return a key as it appears in a path: `name`, or `['odd name']`."""
    if name.isascii() and name.isidentifier() and len(name) <= _LONGEST_SHOWN:
        return name
    return f"[{_shortened(name)}]"


def _shortened(text: str) -> str:
    return repr(text) if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]!r}..."


def describe(value: object) -> str:
    """Describe any value for a message: short, printable, in JSON's terms.

    >>> describe(True), describe("24"), describe([1, 2]), describe(None)
    ('the boolean true', "the string '24'", 'a list', 'null')
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"the boolean {'true' if value else 'false'}"
    if isinstance(value, str):
        return f"the string {_shortened(value)}"
    if isinstance(value, int):
        # Python refuses to convert very long integers to text.
        is_short = value.bit_length() <= 128
        return f"the number {value:d}" if is_short else "a number of more than 128 bits"
    if isinstance(value, float):
        return f"the number {value!r}"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    return f"a Python {type(value).__name__}"


def read_json(document: str | bytes, *, name: str = "the config") -> Any:
    """Parse JSON text; raise `InvalidConfigError` with the position if it is invalid.

    An object becomes a dict that knows its repeated keys, so that its reader can report them.

    >>> read_json('{"metric": 1}')
    {'metric': 1}
    >>> read_json('{"metric": 1} x')
    Traceback (most recent call last):
    hostrouting.base.errors.InvalidConfigError: the config is not JSON: line 1, column 15: \
Extra data at 'x'; correct it there
    """
    try:
        text = document if isinstance(document, str) else document.decode("utf-8")
        if text.startswith("\ufeff"):
            raise _NotJSONError("it begins with a byte order mark; save it as UTF-8 without one")
        if not text.strip():
            raise _NotJSONError("it is empty; write an object with the key 'hostRouting' into it")
        return json.loads(text, object_pairs_hook=_json_object, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        mistake = ConfigMistake("", f"{name} is not JSON: {_why_not_json(error)}")
        raise InvalidConfigError([mistake]) from error


class _NotJSONError(ValueError):
    """Text that Python's parser accepts although it is not JSON, or refuses without a reason."""


def _why_not_json(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        place, reason = _mistake_at(error.doc, error.pos, error.msg)
        located = json.JSONDecodeError("", error.doc, place)
        return f"line {located.lineno}, column {located.colno}: {reason}"
    if isinstance(error, UnicodeDecodeError):
        *lines, last = error.object[: error.start].split(b"\n")
        byte = f"the byte 0x{error.object[error.start]:02x} is not UTF-8; save the config as UTF-8"
        return f"line {len(lines) + 1}, column {len(last.decode()) + 1}: {byte}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply; a config has only a few levels"
    if isinstance(error, _NotJSONError):
        return str(error)
    # What remains is Python's limit on the digits of an integer.
    return "it contains a number with thousands of digits; no field accepts more than ten"


def _mistake_at(text: str, place: int, usual: str) -> tuple[int, str]:
    """Return the actual position of an error, and its reason with the next step."""
    start = re.compile(r"(?:\s|#.*\n)*").match(text).end()  # type: ignore[union-attr]  # it matches everywhere
    if place <= start and re.compile(r"(?:---|-|[^\W\d][\w.-]*:)(?:\s|$)").match(text, start):
        step = "write keys and text in double quotes, objects in {} and lists in []"
        return start, f"this is YAML, but a config must be JSON; {step}"
    # Report the comma, not the bracket after it.
    is_closed = text[place:].lstrip().startswith(("]", "}"))
    if (before := text[:place].rstrip()).endswith(",") and is_closed:
        place = len(before) - 1
    for pattern, reason in _TYPED:
        if re.compile(pattern).match(text, place):
            return place, reason
    return place, f"{usual.removesuffix(' at')} at {text[place : place + 20]!r}; correct it there"


def _refuse_constant(name: str) -> object:
    raise _NotJSONError(f"{name} is not a JSON number; write a number, or remove the key")


def _json_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    mapping = dict(pairs)
    if len(mapping) == len(pairs):
        return mapping
    result = _JSONObject(mapping)
    counts = Counter(name for name, _ in pairs)
    result.repeated = [name for name, count in counts.items() if count > 1]
    return result
