"""Command lines and configs as people type them: each answer has the next step."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from support.config_errors import is_beyond_a_schema, is_valid
from support.in_process import run_here
from support.printed import WITHOUT_CONFIG

from hostrouting.host import Host
from hostrouting.testing import FakeHost

#: By status and key phrase, the words, which may have C (a right config), R (a record), X (no file).
LINES = {
    0: {
        "usage: hostrouting": ", -h",
        "only read: status show in one sentence": "help",
        "change the node: apply correct this node": "--help",
        "usage: hostrouting apply": "help apply",
        "usage: hostrouting check": "help check",
        "usage: hostrouting reset": "help reset",
        "--fail-on": "check --help",
        "hostrouting ": "--version",
    },
    2: {
        "for its words: hostrouting --help": "help frob, rest, uninstall, frobnicate, repair, start, C",
        "did you mean 'check'?": "chek, chk",
        "did you mean 'apply'?": "aply C",
        "did you mean 'status'?": "Status",
        "did you mean '--dry-run'?": "apply C --dry",
        "did you mean '--fail-on'?": "check C --fail warning",
        "did you mean '--json'?": "check C --jso, --jsn status",
        "did you mean 'warning'?": "check C --fail-on warnings",
        "choose from": "check C --format json",
        "must be more than 0 seconds, such as 60 (got 0)": "check C --timeout 0",
        "must be more than 0 seconds, such as 60 (got soon)": "check C --timeout soon",
        "argument --root: expected one argument": "check C --root",
        "the path of a folder must not be empty": "check C --root=, plan C --root=, apply C --root=, reset C --root=",
        "unrecognized arguments: D; for its words: hostrouting check --help": "check C D",
        "give a JSON file, or - for stdin": "apply, apply --dry-run, apply --force, render, apply --live, apply --root C",
        "this config has no file 'nothing.sh'; apply would install: ": "render C nothing.sh",
        "required: ADDRESS|CIDR": "explain",
        "nor an IPv4 CIDR such as '172.16.0.0/16'": "explain 10.0.0, explain eth0",
        "fd00::/129": "explain fd00::/129",
        WITHOUT_CONFIG: "status, status -vv, check, plan, sweep",
        "apply it first": "watch, watch C, watch --allow-empty C",
        'hostRouting.staleCni.enabled: is not true; write {"staleCni"': "sweep C",
        "--live excludes --root and --dry-run; for the changes, run: hostrouting plan CONFIG": "apply --live --root /srv C, apply --live --dry-run C",
        "--live; for its words: hostrouting plan --help": "plan --live C",
        "--force; for its words: hostrouting plan --help": "plan --force C",
        "--dry-run; for its words: hostrouting check --help": "check --dry-run C",
        "--force; for its words: hostrouting reset --help": "reset C --force",
        "for its words: hostrouting status --help": "status --root /srv, status C",
        "for its words: hostrouting apply --help": "apply --version C, apply C C, apply -f C, apply -y C",
        "such as 60 (got -1)": "apply --timeout=-1 C",
        "such as 60 (got nan)": "apply --timeout nan C",
        "'10.0.0.1/33' must end in a prefix length from 0 to 32": "explain 10.0.0.1/33",
        "'example.org' is not an IPv4 address such as '10.224.0.1', nor": "explain example.org",
        "'fe80::1%eth0' is not an IPv6 address such as 'fd00::1', nor": "explain fe80::1%eth0",
        "--fix means nothing with --from": "check C --from R --fix",
        "--timeout means nothing with --from": "check C --from R --timeout 5",
        "a plan needs a CONFIG, which stands before --from": "plan --from R C, plan --from R, check - --from -",
        "--root means nothing with --from": "check --from R --root /srv",
        "--format prometheus excludes": "check --format prometheus --json C, check --format prometheus --root / C, check --format prometheus --fix C",
        "--out needs it": "check --out x C",
        "--diff means nothing with --from": "plan C --diff --from R",
    },
    3: {
        "No such file or directory; check the path": "check X, apply --dry-run X",
        "hostrouting: ": "plan --root X C",
        "a CONFIG stands before --from": "check --from R C",
        "No such file": "check --from X",
    },
}


@pytest.mark.parametrize(
    ("status", "phrase", "line"),
    [
        (status, phrase, line)
        for status, answers in LINES.items()
        for phrase, lines in answers.items()
        for line in lines.split(", ")
    ],
)
def test_a_command_line_as_typed(
    status: int, phrase: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its exit status, and what to do next, in few lines; a guess only of a similar word.

    No line reaches this machine: where a config is installed, `watch` would keep its routes.
    """
    fake = FakeHost()
    # Under no service manager, as a person types it.
    host = Host(routes=fake.routes, services=fake.services, files=fake.files, lock=fake.lock)
    monkeypatch.setattr(Host, "live", lambda: host)
    config = tmp_path / "c.json"
    config.write_text('{"hostRouting":{"routeOverlap":{"expectedCidrs":["10.96.0.0/12"]}}}')
    (record := tmp_path / "n.jsonl").write_text("")
    files = {"C": config, "R": record, "X": tmp_path / "absent"}
    answered = run_here(*(str(files.get(word, word)) for word in line.split()))
    output = answered.stdout + answered.stderr
    assert answered.returncode == status, output
    assert phrase in " ".join(output.split()), output
    assert ("did you mean" in output) == ("did you mean" in phrase)
    # -vv shows a traceback; --json has its answer on stdout, and R its verdict on each node.
    if status and not {"-vv", "--json", "R"} & {*line.split()}:
        assert answered.stdout == ""
        assert "Traceback" not in output
        assert len(answered.stderr.splitlines()) <= 6


_DESTINATION = {"destination": "172.16.8.0/22"}


@pytest.mark.parametrize(
    "document",
    [
        {"$schema": "x", "staticRoutes": {"enabled": True, "routes": [_DESTINATION]}},
        {
            "$schema": "x",
            "hostRouting": {"staticRoutes": {"enabled": True, "routes": [_DESTINATION]}},
        },
    ],
)
def test_the_schema_of_a_file_is_allowed_at_its_top(document: object, tmp_path: Path) -> None:
    """An editor needs it, and it changes nothing; inside of a section it is refused."""
    path = tmp_path / "c.json"
    path.write_text(json.dumps(document))
    assert run_here("render", path).returncode == 0
    path.write_text(json.dumps(document).replace('"enabled"', '"$schema": "x", "enabled"'))
    answered = run_here("render", path)
    assert answered.returncode == 2
    assert "staticRoutes['$schema']: is not a" in answered.stderr


def test_a_schema_alone_is_not_a_config(tmp_path: Path) -> None:
    """It configures nothing, so it is refused as an empty file would be."""
    path = tmp_path / "c.json"
    path.write_text('{"$schema": "x"}')
    answered = run_here("render", path)
    assert answered.returncode == 2
    assert "is missing or null" in answered.stderr


#: A route, or what stands in hostRouting, or a whole file as bytes: the field, and the rest of the answer.
CONFIGS: dict[str | bytes, str] = {
    # a route
    '{"destination": "default"}': "staticRoutes.routes[0].destination: 'default' is not an IPv4 CIDR such as '172.16.0.0/16'",
    '{"destination": "10.0.0.0"}': "staticRoutes.routes[0].destination: '10.0.0.0' lacks a prefix length; write '10.0.0.0/32' for one address",
    '{"destination": "10.0.0.0/8", "gateway": "10.0.0.1/24"}': "staticRoutes.routes[0].gateway: '10.0.0.1/24' has a prefix length; give the address alone: 10.0.0.1",
    '{"destination": "1\\u0668.0.0.0/8"}': "staticRoutes.routes[0].destination: '1٨.0.0.0/8' is not an IPv4 CIDR such as '172.16.0.0/16'",
    '{"destination": "2001:db8::%eth0/32"}': "staticRoutes.routes[0].destination: '2001:db8::%eth0/32' is not an IPv6 CIDR such as 'fd00::/64'",
    '{"destination": "2001:db8::/129"}': "staticRoutes.routes[0].destination: '2001:db8::/129' must end in a prefix length from 0 to 128",
    '{"destination": "::/0"}': "staticRoutes.routes[0].destination: '::/0' is the default route, which cannot be set; name the networks that need a route",
    '{"destination": "0.0.0.0/0"}': "staticRoutes.routes[0].destination: '0.0.0.0/0' is the default route, which cannot be set; name the networks that need a route",
    '{"destination": "::1/128"}': "staticRoutes.routes[0].destination: '::1/128' lies in ::/80, the node's own loopback and the IPv4 addresses written as IPv6; no route leads there; remove it",
    '{"destination": "::ffff:10.0.0.1/128"}': "staticRoutes.routes[0].destination: '::ffff:10.0.0.1/128' lies in ::/80, the node's own loopback and the IPv4 addresses written as IPv6; no route leads there; remove it",
    '{"destination": "FE80::/64"}': "staticRoutes.routes[0].destination: 'FE80::/64' lies in fe80::/10, the link-local addresses; no route leads there; remove it",
    '{"destination": "10.0.0.0/33"}': "staticRoutes.routes[0].destination: '10.0.0.0/33' must end in a prefix length from 0 to 32",
    '{"destination": "10.0.0.0/\\u0668"}': "staticRoutes.routes[0].destination: '10.0.0.0/٨' must end in a prefix length from 0 to 32",
    '{"destination": "172.16.1.5/24"}': "staticRoutes.routes[0].destination: '172.16.1.5/24' has host bits; the network is '172.16.1.0/24'",
    '{"destination": "127.0.0.0/8"}': "staticRoutes.routes[0].destination: '127.0.0.0/8' lies in 127.0.0.0/8, the node's own loopback; no route leads there; remove it",
    '{"destination": "255.255.255.255/32"}': "staticRoutes.routes[0].destination: '255.255.255.255/32' is the broadcast address; no route leads there; remove it",
    '{"destination": null}': "staticRoutes.routes[0].destination: is required: the network that the route leads to, such as '172.16.0.0/16'",
    '{"destination": 8}': "staticRoutes.routes[0].destination: expected a network such as '172.16.0.0/16' or 'fd00::/64', found the number 8",
    '{"destination": "172.16.0.0/16", "gateway": "not-an-ip"}': "staticRoutes.routes[0].gateway: 'not-an-ip' is not an IPv4 address such as '10.224.0.1'",
    '{"destination": "172.16.0.0/16", "gateway": "fd00::1/64"}': "staticRoutes.routes[0].gateway: 'fd00::1/64' has a prefix length; give the address alone: fd00::1",
    '{"destination": "172.16.0.0/16", "gateway": "fe80::1%eth0"}': "staticRoutes.routes[0].gateway: 'fe80::1%eth0' has a zone; name the device in 'dev' instead",
    '{"destination": "172.16.0.0/16", "gateway": "::1"}': "staticRoutes.routes[0].gateway: '::1' lies in ::/80, the node's own loopback and the IPv4 addresses written as IPv6; a gateway is one host's own address; name that of the router",
    '{"destination": "172.16.0.0/16", "gateway": "127.0.0.1"}': "staticRoutes.routes[0].gateway: '127.0.0.1' lies in 127.0.0.0/8, the node's own loopback; a gateway is one host's own address; name that of the router",
    '{"destination": "172.16.0.0/16", "gateway": false}': "staticRoutes.routes[0].gateway: expected an address such as '10.224.0.1' or 'fd00::1', found the boolean false",
    '{"destination": "172.16.0.0/16", "dev": "eth0; rm -rf /"}': "staticRoutes.routes[0].dev: 'eth0; rm -rf /' is not a device name: ';' is not allowed in it; see: ip link",
    '{"destination": "172.16.0.0/16", "dev": 0}': "staticRoutes.routes[0].dev: expected a device name such as 'eth0', found the number 0",
    '{"destination": "172.16.0.0/16", "metric": -1}': "staticRoutes.routes[0].metric: expected a whole number from 0 to 4294967295, found the number -1",
    '{"destination": "172.16.0.0/16", "metric": 4294967296}': "staticRoutes.routes[0].metric: expected a whole number from 0 to 4294967295, found the number 4294967296",
    '{"destination": "172.16.0.0/16", "metric": true}': "staticRoutes.routes[0].metric: expected a whole number from 0 to 4294967295, found the boolean true",
    '{"destination": "172.16.0.0/16", "metric": 1.0}': "staticRoutes.routes[0].metric: expected a whole number from 0 to 4294967295, found the number 1.0",
    "null": "staticRoutes.routes[0]: expected an object, found null",
    '{"destination": "FD00::/8", "gateway": "10.224.0.1"}': "staticRoutes.routes[0].gateway: '10.224.0.1' is IPv4, and 'fd00::/8' is IPv6; name the IPv6 address of that router",
    '{"destination": "fd00:0::/64", "metric": 1}, {"destination": "FD00::/64"}': "staticRoutes.routes[1]: 'fd00::/64 metric 1' repeats routes[0]; remove one of them",
    '{"destination": "10.0.0.0/8", "gateway": "10.224.0.1"}, {"destination": "10.1.0.0/16"}, {"destination": "10.0.0.0/8", "gateway": "10.224.0.1", "metric": 0, "dev": ""}': "staticRoutes.routes[2]: '10.0.0.0/8 via 10.224.0.1' repeats routes[0]; remove one of them",
    '{"destination": "10.0.0.0/8", "gateway": "10.224.0.1"}, {"destination": "10.0.0.0/8", "gateway": "10.224.0.2"}': "staticRoutes.routes[1]: '10.0.0.0/8 via 10.224.0.2' contradicts routes[0] '10.0.0.0/8 via 10.224.0.1': one destination and metric can go one way only; remove one of them or give it another metric",
    '{"destination": "10.0.0.0/8", "gateway": "10.224.0.1"}, {"destination": "10.0.0.0/8"}': "staticRoutes.routes[1]: '10.0.0.0/8' contradicts routes[0] '10.0.0.0/8 via 10.224.0.1': one destination and metric can go one way only; remove one of them or give it another metric",
    '{"dev": "a", "dev": "a", "destination": "1.0.0.0/8"}': "staticRoutes.routes[0].dev: is given more than once, and readers of JSON differ on which one counts; keep one",
    # static routes
    '"staticRoutes": {"routes": [{"destination": "10.0.0.0/8"}]}': "staticRoutes.enabled: is not true, but 1 route is given; set it to true to install them, or remove them",
    '"staticRoutes": {"enabled": "true"}': "staticRoutes.enabled: expected true or false, found the string 'true'",
    '"staticRoutes": {"enabled": true, "routes": {}}': "staticRoutes.routes: expected a list, found an object",
    '"staticRoutes": {"enabled": true, "routes": ["10.0.0.0/8"]}': "staticRoutes.routes[0]: expected an object, found the string '10.0.0.0/8'",
    '"staticRoutes": {"enabled": null, "routes": [{"destination": "10.0.0.0/8"}, {"destination": "10.1.0.0/16"}]}': "staticRoutes.enabled: is not true, but 2 routes are given; set it to true to install them, or remove them",
    # the overlap
    '"routeOverlap": {"expectedCidrs": "10.96.0.0/12"}': "routeOverlap.expectedCidrs: expected a list, found the string '10.96.0.0/12'",
    '"routeOverlap": {"expectedCIDRs": []}': "routeOverlap.expectedCIDRs: is not a known key; did you mean 'expectedCidrs'?",
    '"routeOverlap": {"cidrs": []}': "routeOverlap.cidrs: is not a known key; known here are allowedDevs, expected, expectedCidrs, expectedDevs, fabric, mode",
    '"routeOverlap": {"expectedCidrs": ["kubernetes.default"]}': "routeOverlap.expectedCidrs[0]: 'kubernetes.default' is not an IPv4 CIDR such as '172.16.0.0/16'",
    '"routeOverlap": {"mode": "ENFORCE"}': "routeOverlap.mode: expected 'WARN' or 'STRICT', found the string 'ENFORCE'",
    '"routeOverlap": {"mode": "\\u017ftrict"}': "routeOverlap.mode: expected 'WARN' or 'STRICT', found the string '\u017ftrict'",
    '"routeOverlap": {"expectedCidrs": ["ff00::/8"]}': "routeOverlap.expectedCidrs[0]: 'ff00::/8' lies in ff00::/8, which is multicast; no route decides alone by which device packets leave for it; remove it",
    '"routeOverlap": {"expectedCidrs": ["10.0.0.0/8", "10.0.0.1"]}': "routeOverlap.expectedCidrs[1]: '10.0.0.1' lacks a prefix length; write '10.0.0.1/32' for one address",
    '"routeOverlap": {"expectedCidrs": ["fd00::/8", "fe80::1/64"]}': "routeOverlap.expectedCidrs[1]: 'fe80::1/64' lies in fe80::/10, the link-local addresses; no route decides alone by which device packets leave for it; remove it",
    '"routeOverlap": {"expectedCidrs": ["10.96.0.0/12", "127.0.0.1/8"]}': "routeOverlap.expectedCidrs: '127.0.0.0/8' lies in 127.0.0.0/8, the node's own loopback; no packet for it leaves the node; remove it",
    '"routeOverlap": {"expectedCidrs": ["::1/128"]}': "routeOverlap.expectedCidrs[0]: '::1/128' lies in ::/80, the node's own loopback and the IPv4 addresses written as IPv6; no route decides alone by which device packets leave for it; remove it",
    '"routeOverlap": {"fabric": ["127.9.0.0/16"]}': "routeOverlap.fabric: '127.9.0.0/16' lies in 127.0.0.0/8, the node's own loopback; no packet for it leaves the node; remove it",
    '"routeOverlap": {"expectedCidrs": ["172.16.0.0/16", "Azure"]}': "routeOverlap.expectedCidrs[1]: 'Azure' is a cloud, not a CIDR; name it in expected as 'azure'",
    '"routeOverlap": {"expected": ["aws", "Azur"]}': "routeOverlap.expected[1]: expected 'azure', 'aws', 'aws-ipv6' or 'gcp', found the string 'Azur'",
    '"routeOverlap": {"expected": ["azure", "172.16.0.0/16"]}': "routeOverlap.expected[1]: expected 'azure', 'aws', 'aws-ipv6' or 'gcp', found the string '172.16.0.0/16'; name addresses in expectedCidrs",
    '"routeOverlap": {"expectedDevs": ["eth0", ""]}': "routeOverlap.expectedDevs[1]: '' is not a device name: it is empty; see: ip link",
    '"routeOverlap": {"expectedDevs": ["10.224.0.0"]}': "routeOverlap.expectedDevs[0]: '10.224.0.0' lacks a prefix length; write '10.224.0.0/32' for one address",
    '"routeOverlap": {"expectedDevs": ["0.0.0.0/0"]}': "routeOverlap.expectedDevs[0]: '0.0.0.0/0' covers every address; name a smaller range",
    '"routeOverlap": {"expectedDevs": ["224.0.0.0/4"]}': "routeOverlap.expectedDevs[0]: '224.0.0.0/4' lies in 224.0.0.0/4, which is multicast; no route leads there; remove it",
    '"routeOverlap": {"fabric": "on"}': "routeOverlap.fabric: expected 'auto', 'off' or a list of IPv4 CIDRs, found the string 'on'",
    '"routeOverlap": {"fabric": ["fd00::/8"]}': "routeOverlap.fabric[0]: 'fd00::/8' is not an IPv4 CIDR such as '172.16.0.0/16'",
    '"routeOverlap": {"allowedDevs": [""]}': "routeOverlap.allowedDevs[0]: '' is not a pattern of device names: it is empty",
    '"routeOverlap": {"allowedDevs": ["xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"]}': "routeOverlap.allowedDevs[0]: 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' is not a pattern of device names: it has 65 characters, the limit is 64",
    '"routeOverlap": {"allowedDevs": ["-x*"]}': "routeOverlap.allowedDevs[0]: '-x*' is not a pattern of device names: a leading '-' reads as an option",
    '"routeOverlap": {"allowedDevs": ["$x"]}': "routeOverlap.allowedDevs[0]: '$x' is not a pattern of device names: '$' is not allowed in it",
    '"routeOverlap": {"allowedDevs": ["a\\\\*"]}': "routeOverlap.allowedDevs[0]: 'a\\\\*' is not a pattern of device names: '\\\\' is not allowed in it",
    '"routeOverlap": {"allowedDevs": ["[^a]"]}': "routeOverlap.allowedDevs[0]: '[^a]' is not a pattern of device names: '^' is not allowed in it",
    '"routeOverlap": {"allowedDevs": ["a\\n"]}': "routeOverlap.allowedDevs[0]: 'a\\n' is not a pattern of device names: '\\n' is not allowed in it",
    '"routeOverlap": {"allowedDevs": ["ib[0"]}': "routeOverlap.allowedDevs[0]: 'ib[0' is not a pattern of device names: after a '[' it needs characters or rising ranges, and a ']', as in '[0-9a-f]'",
    '"routeOverlap": {"allowedDevs": ["ib[9-0]"]}': "routeOverlap.allowedDevs[0]: 'ib[9-0]' is not a pattern of device names: after a '[' it needs characters or rising ranges, and a ']', as in '[0-9a-f]'",
    '"routeOverlap": {"allowedDevs": ["ib[[0]]"]}': "routeOverlap.allowedDevs[0]: 'ib[[0]]' is not a pattern of device names: after a '[' it needs characters or rising ranges, and a ']', as in '[0-9a-f]'",
    # watch
    '"watch": {"interval": 60}': "watch.interval: expected a duration from '1s' to '86400s', found the number 60",
    '"watch": {"interval": "1 minute"}': "watch.interval: '1 minute' is not a duration such as '60s' or '1m30s'",
    '"watch": {"interval": "60"}': "watch.interval: '60' is not a duration such as '60s' or '1m30s'",
    '"watch": {"interval": "\\u0668s"}': "watch.interval: '٨s' is not a duration such as '60s' or '1m30s'",
    '"watch": {"interval": "60s\\n"}': "watch.interval: '60s\\n' is not a duration such as '60s' or '1m30s'",
    '"watch": {"interval": "0.999s"}': "watch.interval: expected a duration from '1s' to '86400s', found the string '0.999s'",
    '"watch": {"interval": "24h1s"}': "watch.interval: expected a duration from '1s' to '86400s', found the string '24h1s'",
    '"watch": {"interval": "1500ms"}': "watch.interval: '1500ms' is not a duration such as '60s' or '1m30s'",
    '"watch": {"readings": 0}': "watch.readings: expected a whole number from 1 to 10, found the number 0",
    '"watch": {"readings": 11}': "watch.readings: expected a whole number from 1 to 10, found the number 11",
    '"watch": {"keepForeignRoutes": true}': "watch.keepForeignRoutes: true counts only if watch.enabled is true, too; set that to true, or take this one out",
    '"watch": {"a b\\n": 1}': "watch['a b\\n']: is not a known key; known here are enabled, interval, keepForeignRoutes, mode, readings",
    '"watch": {"\\ud800": 1}': "watch['\\ud800']: is not a known key; known here are enabled, interval, keepForeignRoutes, mode, readings",
    '"watch": {}, "watch": {}': "watch: is given more than once, and readers of JSON differ on which one counts; keep one",
    # the probes
    '"probeSnat": {"enabled": true, "device": "eth0"}': "probeSnat.device: is not a known key; did you mean 'dev'?",
    '"probeSnat": {"source": "2001:db8::1"}': "probeSnat.source: '2001:db8::1' is not a link-local IPv6 address such as 'fe80::1234:5678:9abc'",
    '"probeSnat": {"source": "fe80::1%eth0"}': "probeSnat.source: 'fe80::1%eth0' has a zone; name the device in 'dev' instead",
    '"probeSnat": {"source": "169.254.1.1"}': "probeSnat.source: '169.254.1.1' is not a link-local IPv6 address such as 'fe80::1234:5678:9abc'",
    '"probeSnat": {"address": "fd00::1"}': "probeSnat.address: 'fd00::1' is not a global unicast IPv6 address such as '2001:db8::1'",
    # the sweep
    '"staleCni": {"enabled": true}': "staleCni.podCidrs: is required when enabled: the range that the removed CNI gave to pods",
    '"staleCni": {"podCidrs": ["0.0.0.0/0"]}': "staleCni.podCidrs[0]: '0.0.0.0/0' covers every address; name a smaller range",
    '"staleCni": {"podCidrs": ["fd00::1/0"]}': "staleCni.podCidrs[0]: 'fd00::1/0' covers every address; name a smaller range",
    '"staleCni": {"confirmations": 0}': "staleCni.confirmations: expected a whole number from 1 to 10, found the number 0",
    '"staleCni": {"confirmations": 11}': "staleCni.confirmations: expected a whole number from 1 to 10, found the number 11",
    '"staleCni": {"backupDir": "backup"}': "staleCni.backupDir: 'backup' is not an absolute path; begin it with '/'",
    '"staleCni": {"backupDir": "/var/../etc"}': "staleCni.backupDir: '/var/../etc' has a '..' in it; write out the folder that is meant",
    '"staleCni": {"backupDir": "/\\ud800"}': "staleCni.backupDir: '/\\ud800' has a character that cannot be printed; name a plain folder",
    '"staleCni": {"force": 0}': "staleCni.force: expected an object, found the number 0",
    '"staleCni": {"force": {"conflits": {}}}': "staleCni.force.conflits: is not a known key; did you mean 'conflist'?",
    # gates
    '"gates": [1]': "gates[0]: expected the name of a .service unit such as 'kubelet.service', found the number 1",
    '"gates": ["a.service\\n"]': "gates[0]: 'a.service\\n' is not the name of a .service unit that can be a gate: it does not end in '.service'",
    '"gates": ["../a.service"]': "gates[0]: '../a.service' is not the name of a .service unit that can be a gate: nothing stands before '@' or '.'",
    '"gates": ["xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx.service"]': "gates[0]: 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx.service' is not the name of a .service unit that can be a gate: it has 254 characters, the limit is 230",
    '"gates": ["@a.service"]': "gates[0]: '@a.service' is not the name of a .service unit that can be a gate: nothing stands before '@' or '.'",
    '"gates": ["-a.service"]': "gates[0]: '-a.service' is not the name of a .service unit that can be a gate: a leading '-' reads as an option",
    '"gates": ["check-.service"]': "gates[0]: 'check-.service' is not the name of a .service unit that can be a gate: systemd reads a name that ends in '-' as all units that begin so; name each of them",
    # units to wait for
    '"after": ["/a.service"]': "after[0]: '/a.service' is not a unit that routing can wait for: '/' is not allowed in it",
    '"after": ["a@.service"]': "after[0]: 'a@.service' is not a unit that routing can wait for: it is a template; name an instance of it, such as 'ib@1.service'",
    '"after": ["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"]': "after[0]: 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' is not a unit that routing can wait for: it has 262 characters, the limit is 230",
    '"after": ["hostrouting-watch"]': "after[0]: 'hostrouting-watch' is not a unit that routing can wait for: it is installed by hostrouting and cannot wait for itself; name another unit",
    '"after": ["hostrouting-held@x.service"]': "after[0]: 'hostrouting-held@x.service' is not a unit that routing can wait for: it is installed by hostrouting and cannot wait for itself; name another unit",
    '"after": [7]': "after[0]: expected the name of a unit such as 'ib_rdma_configure.service', found the number 7",
    '"after": "network-online.target"': "after: expected a list, found the string 'network-online.target'",
    '"after": ["a.service", "kubelet.service"]': "after[1]: 'kubelet.service' is one of hostRouting.gates, and would wait for itself; remove it from one of them",
    '"after": ["a.service", "systemd-nspawn@a.service"]': "after[1]: 'systemd-nspawn@a.service' is one of hostRouting.gates, and would wait for itself; remove it from one of them",
    # hostRouting itself
    '"routes": []': "routes: is not a known key; did you mean 'staticRoutes'?",
    '"hostRouting": {}': "hostRouting: is not a known key; known here are after, gates, probeSnat, routeOverlap, staleCni, staticRoutes, watch",
    # the whole file
    b"": "it is empty; write an object with the key 'hostRouting' into it",
    b"# routes of this node\n{}": "line 1, column 1: JSON does not allow comments; remove this one",
    b'{"gates": [] // all\n}': "line 1, column 14: JSON does not allow comments; remove this one",
    b'{"gates":\n  /* all */ []}': "line 2, column 3: JSON does not allow comments; remove this one",
    b'{"gates": [],}': "line 1, column 13: a comma stands before the end; remove it",
    b"hostRouting:\n  gates: []\n": "line 1, column 1: this is YAML, and a config is JSON; write keys and text in double quotes, objects in {} and lists in []",
    b"---\nhostRouting: {}\n": "line 1, column 1: this is YAML, and a config is JSON; write keys and text in double quotes, objects in {} and lists in []",
    b"{'gates': []}": 'line 1, column 2: JSON does not allow single quotes; write "',
    b"{\xe2\x80\x9cgates\xe2\x80\x9d: []}": 'line 1, column 2: this quotation mark is not a plain one; write "',
    b"{gates: []}": 'line 1, column 2: a key needs quotes; write them: "key"',
    b'"gates": []': "line 1, column 8: no colon stands here; if its key is of the config, put { before it, and } at the end",
    b'{"watch": {"enabled": True}}': "line 1, column 23: JSON has only small letters here; write them",
    b'{"gates": []': "line 1, column 13: the text ends before it is complete; close each object, list and string",
    b'{"gates": ["a.service': "line 1, column 12: Unterminated string starting at '\"a.service'; correct it there",
    b'{"gates": []}{}': "line 1, column 14: Extra data at '{}'; correct it there",
    b'{"gates" []}': "line 1, column 10: Expecting ':' delimiter at '[]}'; correct it there",
    b'{"gates": []\n "watch": {}}': "line 2, column 2: Expecting ',' delimiter at '\"watch\": {}}'; correct it there",
    b'{"watch": {"readings": NaN}}': "NaN is not a JSON number; write a number, or remove the key",
    b'{"gates": ["a\nb"]}': "line 1, column 14: Invalid control character at '\\nb\"]}'; correct it there",
    b'{"gates": ["\\d"]}': "line 1, column 13: Invalid \\escape at '\\\\d\"]}'; correct it there",
    b"[" * 100_000: "it is nested too deeply; a config is an object of a few levels",
    b'{"x": '
    + b"9" * 5000
    + b"}": "a number in it has thousands of digits; no field takes more than ten",
    b"\xef\xbb\xbf{}": "it begins with a byte order mark; save it as UTF-8 without one",
    b"\xff\xfe{\x00}\x00": "line 1, column 1: the byte 0xff is not UTF-8; save the config as UTF-8",
    b"{\x00}\x00": "line 1, column 2: a zero byte stands here, as in UTF-16; save the config as UTF-8",
    b'{"gates": ["\xfc"]}': "line 1, column 13: the byte 0xfc is not UTF-8; save the config as UTF-8",
    b'{\n "\xc3\xa9": "\xff"}': "line 2, column 8: the byte 0xff is not UTF-8; save the config as UTF-8",
    b'{"x": "\xed\xa0\x80"}': "line 1, column 8: the byte 0xed is not UTF-8; save the config as UTF-8",
    b" \n": "it is empty; write an object with the key 'hostRouting' into it",
    b"[]": "hostRouting: expected an object, found a list",
    b"{}": 'hostRouting: is missing or null: is this the right config? to remove all that hostrouting installed, write {"hostRouting": {}} or use --allow-empty',
    b'{"HostRouting": {}}': "HostRouting: is not a known key; did you mean 'hostRouting'?",
    b'{"hostRouting": null}': 'hostRouting: is missing or null: is this the right config? to remove all that hostrouting installed, write {"hostRouting": {}} or use --allow-empty',
    b'{"hostRouting": {}, "staticRoutes": {"enabled": true}}': "staticRoutes: must be inside hostRouting; move it to hostRouting.staticRoutes",
    b'{"hostRouting": {}, "hostRouting": {}}': "hostRouting: is given more than once; keep one",
    b'{"hostRouting": {"gates": []}},': "line 1, column 31: a comma stands before the end; remove it",
    b"ip route add 10.0.0.0/8 via 10.224.0.1": "line 1, column 1: Expecting value at 'ip route add 10.0.0.'; correct it there",
    b'{"hostRouting": {"staticRoutes": {"enabled": yes}}}': "line 1, column 46: Expecting value at 'yes}}}'; correct it there",
    b'{"hostRouting": ${GATES}}': "line 1, column 17: Expecting value at '${GATES}}'; correct it there",
    b'{"hostRouting": {{ .Values.routing }}}': "line 1, column 18: Expecting property name enclosed in double quotes at '{ .Values.routing }}'; correct it there",
    b'{"hostRouting": undefined}': "line 1, column 17: JSON does not have this word; write null",
    b"'{\"hostRouting\": {}}'": 'line 1, column 1: JSON does not allow single quotes; write "',
    b'"{\\"hostRouting\\": {}}"': "hostRouting: expected an object, found the string '{\"hostRouting\": {}}'",
    b'{"cluster": null, "gates": []}': "cluster: is not a known key; known here are after, gates, hostRouting, probeSnat, routeOverlap, staleCni, staticRoutes, watch",
    b"1e999": "hostRouting: expected an object, found the number inf",
}


@pytest.mark.parametrize(("typed", "answer"), CONFIGS.items())
def test_a_config_as_typed(typed: str | bytes, answer: str, tmp_path: Path) -> None:
    """Status 2, and one line: the field or the place, its rule, the value and what to write.

    The JSON Schema refuses it, too, as far as that can express the rule.
    """
    path = tmp_path / "c.json"
    path.write_bytes(whole := typed if isinstance(typed, bytes) else _whole(typed))
    answered = run_here("render", path)
    output = answered.stderr.replace(f"the config '{path}' is not JSON: ", "")
    output = output.removeprefix("hostrouting: ").removeprefix("hostRouting.")
    assert answered.returncode == 2
    assert output == f"{answer}\n"
    with suppress(ValueError, RecursionError):
        document = json.loads(whole.decode())
        assert is_beyond_a_schema(answer.partition(": ")[2]) or not is_valid(document)


def _whole(typed: str) -> bytes:
    if typed[0] in "{n":
        typed = f'"staticRoutes": {{"enabled": true, "routes": [{typed}]}}'
    return f'{{"hostRouting": {{{typed}}}}}'.encode()
