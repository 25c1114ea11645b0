"""Files and JSON text: read strictly, and refused with nothing but our own errors."""

import json
import os
from pathlib import Path
from typing import Any, Final

import pytest

from hostrouting.config import HostRoutingConfig, WatchConfig
from hostrouting.exceptions import HostFileError, InvalidConfigError, UnreadableConfigError

CONFIG = HostRoutingConfig(watch=WatchConfig(enabled=True))
TEXT = '{"hostRouting": {"watch": {"enabled": true}}}'


def _refusal(document: str | bytes) -> str:
    with pytest.raises(InvalidConfigError) as caught:
        HostRoutingConfig.from_json(document)
    return str(caught.value)


@pytest.mark.parametrize("document", [TEXT, TEXT.encode(), f"\r\n\t {TEXT} \n"])
def test_text_and_utf8_bytes_are_read(document: str | bytes) -> None:
    """JSON comes as text or as bytes, with white space around it."""
    assert HostRoutingConfig.from_json(document) == CONFIG


def test_escapes_are_part_of_json() -> None:
    r"""A key or value written with \u escapes is the same key or value."""
    assert (
        HostRoutingConfig.from_json(r'{"\u0077atch": {"enabled": true, "interval": "6\u0030s"}}')
        == CONFIG
    )


#: Text that is not JSON, and the words of its message.
NOT_JSON: Final[list[tuple[str | bytes, str]]] = [
    ("", "it is empty; write an object"),
    ("# routes of this node\n{}", "line 1, column 1: JSON does not allow comments; remove"),
    ('{"gates": [] // all\n}', "line 1, column 14: JSON does not allow comments; remove"),
    ('{"gates":\n  /* all */ []}', "line 2, column 3: JSON does not allow comments; remove"),
    ('{"gates": [],}', "line 1, column 13: a comma stands before the end; remove"),
    ('{"gates": ["a.service",]}', "line 1, column 23: a comma stands before the end; remove"),
    (
        "hostRouting:\n  gates: []\n",
        "line 1, column 1: this is YAML, and a config is JSON; write keys",
    ),
    ("---\nhostRouting: {}\n", "line 1, column 1: this is YAML, and a config is JSON; write keys"),
    ("- gates\n- watch\n", "line 1, column 1: this is YAML, and a config is JSON; write keys"),
    ("{'gates': []}", "line 1, column 2: JSON does not allow single quotes; write"),
    ("{\u201cgates\u201d: []}", "line 1, column 2: this quotation mark is not a plain one; write"),
    ("{gates: []}", "line 1, column 2: a key needs quotes; write them"),
    ('"gates": []', "line 1, column 8: no colon stands here; if its key is of the config, put {"),
    ('{"watch": {"enabled": True}}', "line 1, column 23: JSON has only small letters here; write"),
    ('{"watch": None}', "line 1, column 11: JSON does not have this word; write null"),
    ('{"gates": []', "line 1, column 13: the text ends before it is complete; close"),
    ('{"gates": ["a.service', "line 1, column 12: Unterminated string"),
    ('{"gates": []}{}', "line 1, column 14: Extra data; correct"),
    ('{"gates" []}', "line 1, column 10: Expecting ':' delimiter; correct"),
    ('{"gates": []\n "watch": {}}', "line 2, column 2: Expecting ',' delimiter; correct"),
    ('{"watch": {"readings": 01}}', "line 1, column 25: Expecting ',' delimiter; correct"),
    ('{"watch": {"readings": NaN}}', "NaN is not a JSON number; write a number"),
    ('{"gates": ["a\nb"]}', "line 1, column 14: Invalid control character"),
    (r'{"gates": ["\d"]}', "line 1, column 13: Invalid \\escape"),
    ("[" * 100_000, "it is nested too deeply; a config is an object of a few levels"),
    (
        '{"x": ' + "9" * 5000 + "}",
        "a number in it has thousands of digits; no field takes more than ten",
    ),
    (b"\xef\xbb\xbf{}", "it begins with a byte order mark; save it as UTF-8 without one"),
    (
        "{}".encode("utf-16"),
        "line 1, column 1: the byte 0xff is not UTF-8; save the config as UTF-8",
    ),
    (
        "{}".encode("utf-16-le"),
        "line 1, column 2: a zero byte stands here, as in UTF-16; save the config as UTF-8",
    ),
    (
        "{}".encode("utf-16-be"),
        "line 1, column 1: a zero byte stands here, as in UTF-16; save the config as UTF-8",
    ),
    (
        '{"gates": ["\u00fc"]}'.encode("latin-1"),
        "line 1, column 13: the byte 0xfc is not UTF-8; save the config as UTF-8",
    ),
    ('{\n "é": "'.encode() + b'\xff"}', "line 2, column 8: the byte 0xff is not UTF-8"),
    (b'{"x": "\xed\xa0\x80"}', "line 1, column 8: the byte 0xed is not UTF-8"),
]


@pytest.mark.parametrize(("document", "words"), NOT_JSON, ids=lambda value: repr(value)[:40])
def test_a_document_that_is_not_json_is_refused(document: str | bytes, words: str) -> None:
    """The message has the place, the reason and the step."""
    assert _refusal(document).startswith(f"the config is not JSON: {words}")


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ("null", "null"),
        ("[]", "a list"),
        ('"hostRouting"', "the string 'hostRouting'"),
        ("1e999", "the number inf"),
    ],
)
def test_json_that_is_no_object_is_refused(document: str, found: str) -> None:
    """A config is an object."""
    assert _refusal(document) == f"hostRouting: expected an object, found {found}"


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ('{"watch": {}, "watch": {}}', "hostRouting.watch"),
        ('{"hostRouting": {"gates": [], "gates": []}}', "hostRouting.gates"),
        ('{"watch": {"enabled": true, "enabled": true}}', "hostRouting.watch.enabled"),
        (
            '{"staticRoutes": {"enabled": true, "routes": [{"dev": "a", "dev": "a", "destination": "1.0.0.0/8"}]}}',
            "hostRouting.staticRoutes.routes[0].dev",
        ),
    ],
)
def test_repeated_keys_are_refused_where_they_stand(document: str, path: str) -> None:
    """Readers differ on which of two equal keys counts, so a repeated one is an error, even with
    equal values.
    """
    assert _refusal(document) == (
        f"{path}: is given more than once, and readers of JSON differ on which one counts; keep one"
    )


def test_two_host_routing_objects_are_refused() -> None:
    """Which of the two counts is nothing to guess about."""
    assert (
        _refusal('{"hostRouting": {}, "hostRouting": {}}')
        == "hostRouting: is given more than once; keep one"
    )


@pytest.mark.parametrize(
    "mapping",
    [
        {"cluster": {"name": "a"}},
        {"gateway": "10.0.0.1", "watchdog": True, "version": 1},
        {"": None},
    ],
)
def test_an_agents_config_without_our_key_wants_nothing_of_us(mapping: dict[str, Any]) -> None:
    """A node whose config has no `hostRouting` needs no routes; the agent need not look for the key
    first.
    """
    assert HostRoutingConfig.from_mapping(mapping) == HostRoutingConfig()
    assert HostRoutingConfig.from_json(json.dumps(mapping)) == HostRoutingConfig()


@pytest.mark.parametrize(
    "key", ["staticRoute", "routeoverlap", "stale_cni", "hostrouting", "gate", "hostRoutng"]
)
def test_a_mistyped_section_is_no_agents_config(key: str) -> None:
    """A typing error must not turn 'these routes' into 'no routes'."""
    with pytest.raises(InvalidConfigError, match="did you mean"):
        HostRoutingConfig.from_mapping({"cluster": {}, key: {}})


@pytest.mark.parametrize("beside", ["staticRoutes", "routeOverlap", "probeSnat", "staleCni"])
def test_a_section_beside_ours_is_refused_with_its_place(beside: str) -> None:
    """It would have no effect; null there is nothing, and `watch` and `gates` may be an agent's own
    keys.
    """
    document = {"hostRouting": {"typo": 1}, beside: {"enabled": True}, "watch": {}, "gates": 7}
    with pytest.raises(InvalidConfigError) as caught:
        HostRoutingConfig.from_mapping(document)
    first, (path, _) = caught.value.errors
    assert (*first, path) == (
        beside,
        f"must be inside hostRouting; move it to hostRouting.{beside}",
        "hostRouting.typo",
    )
    assert (
        HostRoutingConfig.from_mapping({"hostRouting": {}, beside: None, "watch": {}})
        == HostRoutingConfig()
    )


def test_repeated_keys_elsewhere_are_not_ours() -> None:
    """In a whole agent config, the keys of other programs are theirs to judge."""
    assert HostRoutingConfig.from_json('{"a": 1, "a": {"b": 1, "b": 2}, ' + TEXT[1:]) == CONFIG


def test_a_lone_surrogate_is_refused_like_any_odd_value() -> None:
    """Text that JSON can escape but no codec can encode ends in a printable message."""
    assert _refusal(r'{"gates": ["\ud800.service"]}') == (
        r"hostRouting.gates[0]: '\ud800.service' is not the name of a .service unit that can be a gate: "
        r"'\ud800' is not allowed in it"
    )


@pytest.mark.parametrize("as_text", [True, False])
def test_a_file_is_read_by_path(tmp_path: Path, as_text: bool) -> None:
    """from_file takes text and path-like paths."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"hostRouting": CONFIG.to_mapping()}))
    assert HostRoutingConfig.from_file(str(path) if as_text else path) == CONFIG


def test_a_bad_file_is_an_invalid_config(tmp_path: Path) -> None:
    """from_file gives the same refusals as from_json."""
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff")
    with pytest.raises(InvalidConfigError) as caught:
        HostRoutingConfig.from_file(path)
    assert str(caught.value) == (
        f"the config {str(path)!r} is not JSON: line 1, column 1: the byte 0xff is not UTF-8; save the config as UTF-8"
    )


def _refusal_of_null() -> str:
    with pytest.raises(ValueError, match="embedded null") as caught:
        os.stat("\0")  # noqa: PTH116 (as the program does)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent.json", "No such file or directory; check the path"),
        (".", "Is a directory; give the path of the JSON file in it"),
        # Pythons differ in its words.
        ("a\x00b", f"{_refusal_of_null()}; give the path of another file"),
    ],
)
def test_a_file_that_cannot_be_read_names_path_reason_and_step(
    tmp_path: Path, name: str, reason: str
) -> None:
    """The system's refusal becomes a HostFileError, with the cause chained."""
    path = os.path.join(tmp_path, name)  # noqa: PTH118 (pathlib would drop the '.')
    with pytest.raises(HostFileError) as caught:
        HostRoutingConfig.from_file(path)
    assert str(caught.value) == f"cannot read the config {path!r}: {reason}"
    assert isinstance(caught.value.__cause__, OSError | ValueError)


def test_a_pipe_without_a_writer_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`from_file` has a time limit of its own."""
    monkeypatch.setattr("hostrouting.config.sections._LONGEST_WAIT", 0.01)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnreadableConfigError, match=r"within 0\.01 s; write the config into it"):
        HostRoutingConfig.from_file(tmp_path / "pipe")
