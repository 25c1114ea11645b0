"""Wrong configs as people write them: each is refused with the place, what was found, and the next step."""

import json
import os
from pathlib import Path
from typing import Final

import pytest
from support.in_process import run_here

#: Text that is no JSON, and the words of its message.
TEXTS: Final[list[tuple[str | bytes, str]]] = [
    ("", "it is empty; write an object"),
    (" \n\t\n", "it is empty; write an object"),
    ("# routes of this node\n{}", "line 1, column 1: JSON has no comments; remove"),
    ("// routes of this node\n{}", "line 1, column 1: JSON has no comments; remove"),
    ("/* routes */ {}", "line 1, column 1: JSON has no comments; remove"),
    ('{"gates": [] // all\n}', "line 1, column 14: JSON has no comments; remove"),
    ('{"gates": [], # all\n}', "line 1, column 15: JSON has no comments; remove"),
    ('{"gates":\n  /* all */ []}', "line 2, column 3: JSON has no comments; remove"),
    ("{} // end", "line 1, column 4: JSON has no comments; remove"),
    ('{"gates": [],}', "line 1, column 13: a comma stands before the end; remove"),
    ('{"gates": [],\n}', "line 1, column 13: a comma stands before the end; remove"),
    ('{"gates": ["a.service",]}', "line 1, column 23: a comma stands before the end; remove"),
    ('{"gates": ["a.service" , \n ]}', "line 1, column 24: a comma stands before the end; remove"),
    ('{"gates": []},', "line 1, column 14: a comma stands before the end; remove"),
    ("hostRouting:\n  gates: []\n", "line 1, column 1: this is YAML, and a config is JSON; write keys"),
    ("# the node\n\nhostRouting:\n  gates: []\n", "line 3, column 1: this is YAML, and a config is JSON; write keys"),
    ("---\nhostRouting: {}\n", "line 1, column 1: this is YAML, and a config is JSON; write keys"),
    ("- gates\n- watch\n", "line 1, column 1: this is YAML, and a config is JSON; write keys"),
    ("{'gates': []}", "line 1, column 2: JSON has no single quotes; write"),
    ("{\"gates\": ['a.service']}", "line 1, column 12: JSON has no single quotes; write"),
    ("{\u201cgates\u201d: []}", "line 1, column 2: this quotation mark is not a plain one; write"),
    ("{gates: []}", "line 1, column 2: a key has no quotes; write them"),
    ('{"watch": {enabled: true}}', "line 1, column 12: a key has no quotes; write them"),
    ('"gates": []', "line 1, column 8: no colon stands here; if its key belongs to the config, put {"),
    ('{"watch": {"enabled": True}}', "line 1, column 23: JSON has only small letters here; write"),
    ('{"watch": {"enabled": FALSE}}', "line 1, column 23: JSON has only small letters here; write"),
    ('{"watch": None}', "line 1, column 11: JSON has no such word; write null"),
    ('{"watch": undefined}', "line 1, column 11: JSON has no such word; write null"),
    ('{"gates": []', "line 1, column 13: the text ends before it is complete; close"),
    ('{"gates": [', "line 1, column 12: the text ends before it is complete; close"),
    ('{"gates": ["a.service', "line 1, column 12: Unterminated string"),
    ('{"gates": []}}', "line 1, column 14: Extra data; correct"),
    ('{"gates": []}{}', "line 1, column 14: Extra data; correct"),
    ('{"gates" []}', "line 1, column 10: Expecting ':' delimiter; correct"),
    ('{"gates" = []}', "line 1, column 10: Expecting ':' delimiter; correct"),
    ('{"gates": []\n "watch": {}}', "line 2, column 2: Expecting ',' delimiter; correct"),
    ('{"gates": []; "watch": {}}', "line 1, column 13: Expecting ',' delimiter; correct"),
    ('{"watch": {"readings": 01}}', "line 1, column 25: Expecting ',' delimiter; correct"),
    ('{"watch": {"readings": +1}}', "line 1, column 24: Expecting value; correct"),
    ('{"watch": {"readings": NaN}}', "NaN is not a JSON number; write a number"),
    ('{"watch": {"readings": Infinity}}', "Infinity is not a JSON number; write a number"),
    ('{"watch": {"enabled": yes}}', "line 1, column 23: Expecting value; correct"),
    ('{"gates": ["a\nb"]}', "line 1, column 14: Invalid control character"),
    (r'{"gates": ["\d"]}', "line 1, column 13: Invalid \\escape"),
    ("hostrouting apply", "line 1, column 1: Expecting value; correct"),
    ("<config/>", "line 1, column 1: Expecting value; correct"),
    ("[" * 100_000, "it is nested too deeply; a config is an object of a few levels"),
    ('{"x": ' + "9" * 5000 + "}", "a number in it has thousands of digits; no field takes more than ten"),
    (b"\xef\xbb\xbf{}", "it begins with a byte order mark; save the config as UTF-8 without one"),
    ("{}".encode("utf-16"), "line 1, column 1: the byte 0xff is not UTF-8; save the config as UTF-8"),
    ("{}".encode("utf-16-le"), "line 1, column 2: a zero byte stands here, as in UTF-16; save the config as UTF-8"),
    ("{}".encode("utf-16-be"), "line 1, column 1: a zero byte stands here, as in UTF-16; save the config as UTF-8"),
    ("{}".encode("utf-32"), "line 1, column 1: the byte 0xff is not UTF-8; save the config as UTF-8"),
    (
        '{"gates": ["\u00fc"]}'.encode("latin-1"),
        "line 1, column 13: the byte 0xfc is not UTF-8; save the config as UTF-8",
    ),
    (b"\x1f\x8b\x08\x01", "line 1, column 2: the byte 0x8b is not UTF-8; save the config as UTF-8"),
]
_NO_KEY, _GUESS, _OBJECT, _LIST, _BOOLEAN = "is not a known key", "did you mean", "an object", "a list", "true or false"
#: The path of a value below hostRouting, the value, and the words of its message; a number is an index.
VALUES: Final[list[tuple[str, object, str]]] = [
    ("staticRoute", {}, f"{_NO_KEY}; {_GUESS} 'staticRoutes'"),
    ("static_routes", {}, f"{_NO_KEY}; {_GUESS} 'staticRoutes'"),
    ("StaticRoutes", {}, f"{_NO_KEY}; {_GUESS} 'staticRoutes'"),
    ("routesOverlap", {}, f"{_NO_KEY}; {_GUESS} 'routeOverlap'"),
    ("probeSNAT", {}, f"{_NO_KEY}; {_GUESS} 'probeSnat'"),
    ("staleCNI", {}, f"{_NO_KEY}; {_GUESS} 'staleCni'"),
    ("wach", {}, f"{_NO_KEY}; {_GUESS} 'watch'"),
    ("gate", [], f"{_NO_KEY}; {_GUESS} 'gates'"),
    ("version", 1, f"{_NO_KEY}; known here are gates, probeSnat"),
    ("staticRoutes.enable", True, f"{_NO_KEY}; {_GUESS} 'enabled'"),
    ("staticRoutes.route", [], f"{_NO_KEY}; {_GUESS} 'routes'"),
    ("routeOverlap.expectedCidr", [], f"{_NO_KEY}; {_GUESS} 'expectedCidrs'"),
    ("routeOverlap.expected_devs", [], f"{_NO_KEY}; {_GUESS} 'expectedDevs'"),
    ("routeOverlap.allowedDevices", [], f"{_NO_KEY}; {_GUESS} 'allowedDevs'"),
    ("routeOverlap.fabrik", "auto", f"{_NO_KEY}; {_GUESS} 'fabric'"),
    ("probeSnat.adress", "2001:db8::1", f"{_NO_KEY}; {_GUESS} 'address'"),
    ("probeSnat.device", "eth0", f"{_NO_KEY}; {_GUESS} 'dev'"),
    ("staleCni.podCIDRs", [], f"{_NO_KEY}; {_GUESS} 'podCidrs'"),
    ("staleCni.backup_dir", "/a", f"{_NO_KEY}; {_GUESS} 'backupDir'"),
    ("watch.intervall", "60s", f"{_NO_KEY}; {_GUESS} 'interval'"),
    ("staticRoutes", [], f"expected {_OBJECT}, found a list"),
    ("staticRoutes", True, f"expected {_OBJECT}, found the boolean true"),
    ("staticRoutes.routes", {}, f"expected {_LIST}, found an object"),
    ("staticRoutes.routes", "10.0.0.0/8", f"expected {_LIST}, found the string '10.0.0.0/8'"),
    ("staticRoutes.routes.0", "10.0.0.0/8", f"expected {_OBJECT}, found the string '10.0.0.0/8'"),
    ("staticRoutes.routes.0", ["10.0.0.0/8"], f"expected {_OBJECT}, found a list"),
    ("staticRoutes.enabled", "true", f"expected {_BOOLEAN}, found the string 'true'"),
    ("staticRoutes.enabled", 1, f"expected {_BOOLEAN}, found the number 1"),
    ("staticRoutes.routes.0.destination", 10, "such as"),
    ("staticRoutes.routes.0.destination", "10.0.0.1", "'10.0.0.1' has no prefix length; write it as '10.0.0.1/32'"),
    ("staticRoutes.routes.0.destination", "10.0.0.0/33", "'10.0.0.0/33' has no prefix length from 0 to 32"),
    ("staticRoutes.routes.0.destination", "10.0.0.0/255.0.0.0", "has no prefix length from 0 to 32"),
    ("staticRoutes.routes.0.destination", "10.0.0/8", "'10.0.0/8' is not an IPv4 CIDR such as"),
    ("staticRoutes.routes.0.destination", "10.0.0.0 /8", "'10.0.0.0 /8' is not an IPv4 CIDR such as"),
    ("staticRoutes.routes.0.destination", "10.0.0.300/8", "'10.0.0.300/8' is not an IPv4 CIDR such as"),
    ("staticRoutes.routes.0.destination", "", "'' is not an IPv4 CIDR such as"),
    ("staticRoutes.routes.0.destination", "eth0", "'eth0' is not an IPv4 CIDR such as"),
    ("staticRoutes.routes.0.destination", "fd00::/129", "'fd00::/129' has no prefix length from 0 to 128"),
    ("staticRoutes.routes.0.gateway", "10.224.0", "'10.224.0' is not an IPv4 address"),
    ("staticRoutes.routes.0.gateway", "10.224.0.1/16", "'10.224.0.1/16' is not an IPv4 address"),
    ("staticRoutes.routes.0.gateway", "gateway.local", "'gateway.local' is not an IPv4 address"),
    ("staticRoutes.routes.0.gateway", 1, "found the number 1"),
    ("staticRoutes.routes.0.dev", "eth 0", "'eth 0' is not a device name: white space is not allowed"),
    ("staticRoutes.routes.0.dev", "a/b", "'a/b' is not a device name: '/' is not allowed"),
    ("staticRoutes.routes.0.dev", "abcdefghijklmnop", "it has 16 bytes, the kernel allows 15"),
    ("staticRoutes.routes.0.dev", 0, "expected a device name such as 'eth0', found the number 0"),
    ("staticRoutes.routes.0.metric", "100", "found the string '100'"),
    ("staticRoutes.routes.0.metric", -1, "found the number -1"),
    ("staticRoutes.routes.0.metric", 4294967296, "found the number 4294967296"),
    ("staticRoutes.routes.0.metric", 1.5, "found the number 1.5"),
    ("routeOverlap.expectedCidrs", "10.0.0.0/8", f"expected {_LIST}, found the string '10.0.0.0/8'"),
    ("routeOverlap.expectedCidrs.0", None, "expected a CIDR such as '172.16.0.0/16' or 'fd00::/64', found null"),
    ("routeOverlap.expectedCidrs.0", "10.0.0.1", "has no prefix length; write it as '10.0.0.1/32'"),
    ("routeOverlap.expectedCidrs.0", "10.0.0.0-10.0.0.255", "is not an IPv4 CIDR such as '172.16.0.0/16'"),
    ("routeOverlap.expectedCidrs.0", "azure", "'azure' is a cloud, and no CIDR; name it in expected"),
    ("routeOverlap.expected", "azure", f"expected {_LIST}, found the string 'azure'"),
    ("routeOverlap.expected.0", "azur", "expected 'azure', 'aws', 'aws-ipv6' or 'gcp', found the string 'azur'"),
    ("routeOverlap.mode", "FAIL", "expected 'WARN' or 'STRICT', found the string 'FAIL'"),
    ("routeOverlap.mode", True, "expected 'WARN' or 'STRICT', found the boolean true"),
    ("routeOverlap.expectedDevs", "eth0", f"expected {_LIST}, found the string 'eth0'"),
    ("routeOverlap.expectedDevs.0", "eth*", "'eth*' is not a device name: '*' is not allowed"),
    ("routeOverlap.allowedDevs.0", "ib[0", "'ib[0' is not a pattern of device names: after a '[' it needs"),
    ("routeOverlap.fabric", "on", "expected 'auto', 'off' or a list of IPv4 CIDRs, found the string 'on'"),
    ("probeSnat.source", "10.0.0.1", "is not a link-local IPv6 address such as"),
    ("probeSnat.address", "fe80::1", "'fe80::1' is not a global unicast IPv6 address"),
    ("probeSnat.detect", "auto", "expected 'imds', 'address' or 'always', found the string 'auto'"),
    ("staleCni.podCidrs.0", "10.0.0.1", "has no prefix length; write it as '10.0.0.1/32'"),
    ("staleCni.podCidrs.0", "0.0.0.0/0", "covers every address; name the range that the pods have"),
    ("staleCni.backupDir", "backup", "'backup' is not an absolute path; begin it with '/'"),
    ("staleCni.sweep", "remove", "expected 'report' or 'clean', found the string 'remove'"),
    ("watch.interval", 60, "expected a duration from '1s' to '86400s', found the number 60"),
    ("watch.interval", "60", "'60' is not a duration such as '60s' or '1m30s'"),
    ("watch.interval", "1 minute", "'1 minute' is not a duration such as '60s' or '1m30s'"),
    ("watch.mode", "daemon", "expected 'timer' or 'service', found the string 'daemon'"),
    ("watch.readings", 0, "expected a whole number from 1 to 10, found the number 0"),
    ("gates", "kubelet.service", f"expected {_LIST}, found the string 'kubelet.service'"),
    ("gates.0", "kubelet", "'kubelet' is not the name of a .service unit that can be a gate: it does not end in"),
    ("gates.0", "/etc/kubelet.service", "'/' is not allowed in it"),
    ("gates.0", 1, "expected the name of a .service unit such as 'kubelet.service', found the number 1"),
]
#: What stands at the path of a config, and the words of the message after that path.
PATHS: Final = [
    ("absent", "No such file or directory; check the path"),
    ("folder", "Is a directory; give the path of the JSON file in it"),
    ("below a file", "Not a directory; give the path of another file"),
    ("loop", "Too many levels of symbolic links; give the path of another file"),
    ("device", "it is a device, and a config is a file or a pipe; give the path of another file"),
    ("large", "it has more than 1 MiB, and a config has less; give the path of another file"),
    ("pipe", "its writer has not closed it within 0.01 s; write the config into it and close it, or allow more time"),
]


@pytest.mark.parametrize(("text", "words"), TEXTS, ids=lambda value: repr(value)[:40])
def test_text_that_is_no_json(text: str | bytes, words: str, tmp_path: Path) -> None:
    """Exit 2, one line: the file, the place in it, the reason and the step."""
    path = tmp_path / "config.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    refused = run_here("check", path)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert refused.stderr.startswith(f"hostrouting: the config {str(path)!r} is not JSON: {words}")


@pytest.mark.parametrize(("place", "value", "words"), VALUES, ids=repr)
def test_wrong_keys_types_and_values(place: str, value: object, words: str, tmp_path: Path) -> None:
    """Exit 2, and a line with the path of the key, and what is expected there."""
    document, shown = value, place
    for key in reversed(place.split(".")):
        document = [document] if key.isdigit() else {key: document}
        shown = shown.replace(f".{key}", f"[{key}]") if key.isdigit() else shown
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"hostRouting": document}))
    refused = run_here("check", path)
    assert (refused.returncode, refused.stdout) == (2, "")
    [line] = [line for line in refused.stderr.splitlines() if f"hostRouting.{shown}: " in line]
    assert words in line
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(("kind", "words"), PATHS)
def test_paths_that_lead_to_no_config(kind: str, words: str, tmp_path: Path) -> None:
    """Exit 3, one line with the path, the reason and the step; nothing waits for longer than the limit."""
    path = tmp_path / "config.json"
    if kind == "folder":
        path.mkdir()
    elif kind == "below a file":
        path.touch()
        path /= "config.json"
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "large":
        path.write_bytes(b" " * ((1 << 20) + 1))
    elif kind == "pipe":
        os.mkfifo(path)
    refused = run_here("check", "--timeout", "0.01", path)
    message = f"hostrouting: cannot read the config {str(path)!r}: {words}\n"
    assert (refused.returncode, refused.stdout, refused.stderr) == (3, "", message)


def test_the_list_is_long_enough() -> None:
    """A message that gets worse is noticed, for each of these kinds."""
    documents = {repr(entry[:-1]) for entry in (*TEXTS, *VALUES, *PATHS)}
    assert len(documents) == len(TEXTS) + len(VALUES) + len(PATHS) >= 121
