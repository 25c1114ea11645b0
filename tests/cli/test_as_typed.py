"""Command lines and configs as people type them: each answer has the next step."""

import json
from pathlib import Path

import pytest
from support.in_process import run_here

_CHECK, _APPLY = "run: hostrouting check CONFIG", "run: hostrouting apply CONFIG"
_RESET = "`hostrouting reset` removes everything that hostrouting installed"
_WORD = "CONFIG is a word of its own"
_MODE = "hostRouting.routeOverlap.mode, WARN or STRICT"
_JSON = "give a JSON file, or - for stdin"
_LIVE = "--live excludes --root and --dry-run; for the changes, run: hostrouting plan"
_ABSENT = "no config is installed: there is no /etc/aks-flex-node/hostrouting.json"
_OR_APPLY = f"{_ABSENT}; give the path of a config, or apply one"
_HISTORY = "run: journalctl MESSAGE_ID="
_ASKS = "no command asks for a confirmation"

#: The words, which may have C (a right config), R (a record), X (no file): status and key phrase.
LINES = {
    # help and version
    "": (0, "usage: hostrouting"),
    "help": (0, "the first seven only read; apply, reset, sweep and watch change the node"),
    "--help": (0, "usage: hostrouting"),
    "-h": (0, "usage: hostrouting"),
    "help apply": (0, "usage: hostrouting apply"),
    "help check": (0, "usage: hostrouting check"),
    "help reset": (0, "usage: hostrouting reset"),
    "check --help": (0, "--fail-on"),
    "help frob": (2, "for its words: hostrouting --help"),
    "--version": (0, "hostrouting "),
    "version": (2, "run: hostrouting --version"),
    "-V": (2, "run: hostrouting --version"),
    # near verbs
    "chek": (2, "did you mean 'check'?"),
    "aply C": (2, "did you mean 'apply'?"),
    "plna C": (2, "did you mean 'plan'?"),
    "Status": (2, "did you mean 'status'?"),
    "stat": (2, "did you mean 'status'?"),
    "explian 10.0.0.1": (2, "did you mean 'explain'?"),
    "renderr C": (2, "did you mean 'render'?"),
    "validate C": (2, _CHECK),
    "verify C": (2, _CHECK),
    "lint C": (2, _CHECK),
    "test": (2, _CHECK),
    "test C": (2, _CHECK),
    "diff C": (2, "run: hostrouting plan --diff"),
    "install C": (2, _APPLY),
    "run C": (2, _APPLY),
    "start": (2, _APPLY),
    "uninstall": (2, _RESET),
    "remove": (2, _RESET),
    "delete": (2, _RESET),
    "clean": (2, _RESET),
    "undo": (2, "apply the earlier CONFIG again"),
    "rollback": (2, "apply the earlier CONFIG again"),
    "history": (2, _HISTORY),
    "logs": (2, _HISTORY),
    "list": (2, "run: hostrouting status"),
    "show": (2, "hostrouting explain ADDRESS"),
    "rest": (2, "for its words: hostrouting --help"),
    "frobnicate": (2, "for its words: hostrouting --help"),
    "C": (2, "for its words: hostrouting --help"),
    # options of other programs
    "apply -f C": (2, _WORD),
    "apply -c C": (2, _WORD),
    "check --file C": (2, _WORD),
    "check --file=C": (2, _WORD),
    "plan --config C": (2, _WORD),
    "apply --mode WARN C": (2, _MODE),
    "apply --mode=STRICT C": (2, _MODE),
    "apply C --mode WARN": (2, _MODE),
    "apply -y C": (2, _ASKS),
    "reset --yes": (2, _ASKS),
    "check -o json C": (2, "for JSON: --json"),
    "check C --output json": (2, "for JSON: --json"),
    "check C --debug": (2, "for more on stderr: --verbose"),
    "check C -d": (2, "for more on stderr: --verbose"),
    "check C -n x": (2, "nsenter --net=/run/netns/NAME"),
    "check C --netns x": (2, "nsenter --net=/run/netns/NAME"),
    "check C --device ib0": (2, "hostRouting.routeOverlap.expectedDevs"),
    # options, cut short or wrong
    "apply C --dry": (2, "did you mean '--dry-run'?"),
    "apply C --forc": (2, "did you mean '--force'?"),
    "check C --fail warning": (2, "did you mean '--fail-on'?"),
    "check C --jso": (2, "did you mean '--json'?"),
    "plan C --exitcode": (2, "did you mean '--exit-code'?"),
    "plan C --dif": (2, "did you mean '--diff'?"),
    "check C --time 5": (2, "did you mean '--timeout'?"),
    "--jsn status": (2, "did you mean '--json'?"),
    "check C --fail-on warnings": (2, "did you mean 'warning'?"),
    "check C --format json": (2, "choose from"),
    "check C --timeout 0": (2, "must be more than 0 seconds, such as 60 (got 0)"),
    "check C --timeout soon": (2, "must be more than 0 seconds, such as 60 (got soon)"),
    "check C --root": (2, "argument --root: expected one argument"),
    "check C --root=": (2, "the path of a folder must not be empty"),
    "check C D": (2, "unrecognized arguments: D; for its words: hostrouting check --help"),
    # CONFIG
    "apply": (2, _JSON),
    "apply --dry-run": (2, _JSON),
    "apply --force": (2, _JSON),
    "render": (2, _JSON),
    "check X": (3, "No such file or directory; check the path"),
    "apply --dry-run X": (3, "No such file or directory; check the path"),
    "render C nothing.sh": (2, "this config has no file 'nothing.sh'; apply would install: "),
    "explain": (2, "required: ADDRESS|CIDR"),
    "explain 10.0.0": (2, "nor an IPv4 CIDR such as '172.16.0.0/16'"),
    "explain 10.0.0.0/33": (2, "10.0.0.0/33"),
    "explain eth0": (2, "nor an IPv4 CIDR such as '172.16.0.0/16'"),
    "explain fd00::/129": (2, "fd00::/129"),
    # on a node without an installed config
    "status": (2, _ABSENT),
    "status -vv": (2, _ABSENT),
    "check": (2, _OR_APPLY),
    "plan": (2, _OR_APPLY),
    "sweep": (2, _OR_APPLY),
    "watch": (2, "apply it first"),
    "watch C": (2, "apply it first"),
    "watch --allow-empty C": (2, "apply it first"),
    "sweep C": (2, 'hostRouting.staleCni.enabled: is not true; write {"staleCni"'),
    # options of other commands
    "apply --live": (2, _JSON),
    "apply --live --root /srv C": (2, _LIVE),
    "apply --live --dry-run C": (2, _LIVE),
    "plan --live C": (2, "--live; for its words: hostrouting plan --help"),
    "plan --force C": (2, "--force; for its words: hostrouting plan --help"),
    "check --dry-run C": (2, "--dry-run; for its words: hostrouting check --help"),
    "reset C --force": (2, "--force; for its words: hostrouting reset --help"),
    "sweep --force C": (2, "--force; for its words: hostrouting sweep --help"),
    "status --root /srv": (2, "for its words: hostrouting status --help"),
    "record --from R": (2, "for its words: hostrouting record --help"),
    "explain 10.0.0.1 --from R": (2, "for its words: hostrouting explain --help"),
    "apply --version C": (2, "for its words: hostrouting apply --help"),
    "status C": (2, "for its words: hostrouting status --help"),
    "schema C": (2, "for its words: hostrouting schema --help"),
    "apply C C": (2, "for its words: hostrouting apply --help"),
    "apply --root C": (2, _JSON),
    "apply --timeout C": (2, "must be more than 0 seconds, such as 60"),
    "apply --timeout=-1 C": (2, "such as 60 (got -1)"),
    "apply --timeout nan C": (2, "such as 60 (got nan)"),
    "-f C apply": (2, _WORD),
    "configure C": (2, _APPLY),
    "explain 10.0.0.1/33": (2, "'10.0.0.1/33' must end in a prefix length from 0 to 32"),
    "explain 999.1.1.1": (2, "'999.1.1.1' is not an IPv4 address, nor an IPv4 CIDR such as"),
    "check C --from R --fix": (2, "--fix means nothing with --from"),
    "check C --from R --timeout 5": (2, "--timeout means nothing with --from"),
    # records
    "check --from R C": (3, "a CONFIG stands before --from"),
    "plan --from R C": (2, "a plan needs a CONFIG, which stands before --from"),
    "plan --from R": (2, "a plan needs a CONFIG, which stands before --from"),
    "check --from X": (3, "No such file"),
    "check --from R --root /srv": (2, "--root means nothing with --from"),
    "check --from R --jobs 0 C": (2, "argument --jobs: invalid choice"),
    "check --format prometheus --json C": (2, "--format prometheus excludes"),
    "check --out x C": (2, "--out needs it"),
}


@pytest.mark.parametrize("line", LINES)
def test_a_command_line_as_typed(line: str, tmp_path: Path) -> None:
    """Its exit status, and what to do next; `reset` is never a guess."""
    config = tmp_path / "c.json"
    config.write_text('{"hostRouting":{"routeOverlap":{"expectedCidrs":["10.96.0.0/12"]}}}')
    (record := tmp_path / "n.jsonl").write_text("")
    files = {"C": config, "--file=C": f"--file={config}", "R": record, "X": tmp_path / "absent"}
    answered = run_here(*(str(files.get(word, word)) for word in line.split()))
    status, phrase = LINES[line]
    said = answered.stdout + answered.stderr
    assert (answered.returncode, phrase in " ".join(said.split())) == (status, True), said
    assert "did you mean 'reset'" not in said


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
    assert (answered.returncode, "staticRoutes['$schema']: is not a" in answered.stderr) == (
        2,
        True,
    )


def test_a_schema_alone_is_no_config(tmp_path: Path) -> None:
    """It asks for nothing, so it is refused as an empty file would be."""
    path = tmp_path / "c.json"
    path.write_text('{"$schema": "x"}')
    answered = run_here("render", path)
    assert (answered.returncode, "is missing or null" in answered.stderr) == (2, True)


_ROUTES = "staticRoutes.routes[0]"
#: What stands in hostRouting: a phrase of the answer; an object there is a route.
CONFIGS = {
    # static routes
    '{"destination": "default"}': f"{_ROUTES}.destination: 'default' is not an IPv4 CIDR such as '172.16.0.0/16'",
    '{"destination": "10.0.0.0/255.0.0.0"}': f"{_ROUTES}.destination: '10.0.0.0/255.0.0.0' must end in a prefix length from 0 to 32",
    '{"destination": "10.0.0.0"}': f"{_ROUTES}.destination: '10.0.0.0' lacks a prefix length; write '10.0.0.0/32'",
    '{"destination": "10.0.0.1/8"}': f"{_ROUTES}.destination: '10.0.0.1/8' has host bits; the network is '10.0.0.0/8'",
    '{"destination": ["10.0.0.0/8"]}': f"{_ROUTES}.destination: expected a network such as '172.16.0.0/16'",
    '{"dst": "10.0.0.0/8"}': f"{_ROUTES}.dst: is not a known key; known here are destination, dev, gateway, metric",
    '{"destination": "10.0.0.0/8", "via": "10.224.0.1"}': f"{_ROUTES}.via: is not a known key; known here are destination, dev, gateway, metric",
    '{"destination": "10.0.0.0/8", "device": "eth0"}': f"{_ROUTES}.device: is not a known key; did you mean 'dev'?",
    '{"destination": "10.0.0.0/8", "table": 100}': f"{_ROUTES}.table: is not a known key; known here are destination, dev, gateway, metric",
    '{"destination": "10.0.0.0/8", "gateway": "10.0.0.1/24"}': f"{_ROUTES}.gateway: '10.0.0.1/24' has a prefix length; give the address alone: 10.0.0.1",
    '{"destination": "10.0.0.0/8", "metric": "100"}': f"{_ROUTES}.metric: expected a whole number from 0 to 4294967295, found the string '100'",
    '{"destination": "10.0.0.0/8", "metric": -1}': f"{_ROUTES}.metric: expected a whole number from 0 to 4294967295, found the number -1",
    '"staticRoutes": {"routes": [{"destination": "10.0.0.0/8"}]}': "staticRoutes.enabled: is not true, but 1 route is given; set it to true",
    '"staticRoutes": {"enabled": "true"}': "staticRoutes.enabled: expected true or false, found the string 'true'",
    '"staticRoutes": {"enabled": true, "routes": {}}': "staticRoutes.routes: expected a list, found an object",
    '"staticRoutes": []': "staticRoutes: expected an object, found a list",
    '"routes": []': "routes: is not a known key; did you mean 'staticRoutes'?",
    # the overlap
    '"routeoverlap": {}': "routeoverlap: is not a known key; did you mean 'routeOverlap'?",
    '"routeOverlap": {"expectedCidrs": "10.96.0.0/12"}': "routeOverlap.expectedCidrs: expected a list, found the string '10.96.0.0/12'",
    '"routeOverlap": {"expectedCIDRs": []}': "routeOverlap.expectedCIDRs: is not a known key; did you mean 'expectedCidrs'?",
    '"routeOverlap": {"expected_cidrs": []}': "routeOverlap.expected_cidrs: is not a known key; did you mean 'expectedCidrs'?",
    '"routeOverlap": {"cidrs": []}': "routeOverlap.cidrs: is not a known key; known here are allowedDevs, expected, ",
    '"routeOverlap": {"expectedCidrs": ["10.96.0.0"]}': "routeOverlap.expectedCidrs[0]: '10.96.0.0' lacks a prefix length",
    '"routeOverlap": {"expectedCidrs": ["kubernetes.default"]}': "routeOverlap.expectedCidrs[0]: 'kubernetes.default' is not an IPv4 CIDR such as",
    '"routeOverlap": {"mode": "ENFORCE"}': "routeOverlap.mode: expected 'WARN' or 'STRICT', found the string 'ENFORCE'",
    '"routeOverlap": {"expectedDevs": "eth0"}': "routeOverlap.expectedDevs: expected a list, found the string 'eth0'",
    '"routeOverlap": {"allowedDevs": ["eth0/1"]}': "routeOverlap.allowedDevs[0]: 'eth0/1' is not a pattern of device names: '/'",
    '"routeOverlap": {"expected": ["google"]}': "routeOverlap.expected[0]: expected 'azure', 'aws', 'aws-ipv6' or 'gcp', found the",
    # the rest
    '"watch": true': "watch: expected an object, found the boolean true",
    '"watch": {"interval": 60}': "watch.interval: expected a duration from '1s' to '86400s', found the number 60",
    '"watch": {"interval": "1 minute"}': "watch.interval: '1 minute' is not a duration such as '60s' or '1m30s'",
    '"gates": "kubelet"': "gates: expected a list, found the string 'kubelet'",
    '"gates": ["kubelet"]': "gates[0]: 'kubelet' is not the name of a .service unit that can be a gate: it does not end in '.service'",
    '"gates": ["kubelet.timer"]': "gates[0]: 'kubelet.timer' is not the name of a .service unit that can be a gate",
    '"probeSnat": {"enabled": true, "device": "eth0"}': "probeSnat.device: is not a known key; did you mean 'dev'?",
    '"staleCni": {"enabled": true}': "staleCni.podCidrs: is required when enabled: the range that the removed CNI gave to pods",
    '"staleCni": {"enabled": true, "podCIDR": "10.240.0.0/16"}': "staleCni.podCIDR: is not a known key; did you mean 'podCidrs'?",
    '"hostRouting": {}': "hostRouting: is not a known key",
    # not JSON
    '"gates": [],': "a comma stands before the end; remove it",
    "'gates': []": 'JSON does not allow single quotes; write "',
    '"gates": [], "gates": []': "gates: is given more than once, and readers of JSON differ on which one counts; keep one",
    '// "gates": []': "JSON does not allow comments; remove this one",
    '"gates": NaN': "NaN is not a JSON number; write a number, or remove the key",
    '"gates": [': "line 1, column 28: Expecting value; correct it there",
}


@pytest.mark.parametrize(("inside", "phrase"), CONFIGS.items())
def test_a_config_as_typed(inside: str, phrase: str, tmp_path: Path) -> None:
    """Status 2, and the field, its rule, the value and what to write; `tests/config` has more."""
    path = tmp_path / "c.json"
    if inside.startswith("{"):
        inside = f'"staticRoutes": {{"enabled": true, "routes": [{inside}]}}'
    path.write_text(f'{{"hostRouting": {{{inside}}}}}')
    answered = run_here("render", path)
    assert (answered.returncode, phrase in answered.stderr) == (2, True), answered.stderr
