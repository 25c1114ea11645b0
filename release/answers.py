"""The answers of the commands for programs: a JSON Schema for each, in docs/schemas.

Where JSON has the fields of a value, its keys come from the class; of other answers they are here.
The tests compare both with what the commands print.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import attrs
from config_schema import config_schema

from hostrouting.azure.stale_cni.leftovers import Kind as Sort
from hostrouting.base.findings import Severity
from hostrouting.config.sections import HostRoutingConfig, OverlapMode
from hostrouting.fleet import NodeRecord, NodeVerdict
from hostrouting.net.addresses import Address, Prefix
from hostrouting.net.mappings import FORMS, OWN
from hostrouting.node.report import Verdict
from hostrouting.route_overlap.explain import ExplainedPart
from hostrouting.route_overlap.report import CidrReport, Finding, SuggestedRoute
from phases.report import Status

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
#: Of the JSON of all commands.
_VERSION: Final = {"const": 1, "description": "of this form"}
_PLAIN: Final[dict[Any, dict[str, Any]]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    NoneType: {"type": "null"},
    bytes: {"type": "string", "pattern": "^([0-9a-f]{2})*$"},
    Address: {"type": "string"},
    Prefix: {"type": "string"},
    OverlapMode: {"enum": [str(mode) for mode in OverlapMode]},
    HostRoutingConfig: {"$ref": "#/$defs/HostRoutingConfig"},
    object: {},
}


class Key(NamedTuple):
    """A key of an object: the type of its values, and their meaning; a rare one may be absent."""

    kind: Any
    text: str = ""
    rare: bool = False


class Form(NamedTuple):
    """An object of JSON: its name, a sentence about it, and its keys."""

    name: str
    text: str
    keys: Mapping[str, Key]


def _rare(kind: Any, text: str = "") -> Key:
    return Key(kind, text, rare=True)


def _all_rare(keys: Mapping[str, Key]) -> dict[str, Key]:
    return {name: key._replace(rare=True) for name, key in keys.items()}


def _keys_of(cls: type[Any], texts: Mapping[str, str]) -> dict[str, Key]:
    """Return the keys of a value with their meaning: the fields that its repr has."""
    hints = get_type_hints(cls)
    shown = [field for field in attrs.fields(cls) if field.repr]
    keys = {}
    for field in shown:
        if field.name != "report":
            # Where JSON has a rare one, it has a value.
            kinds = [kind for kind in get_args(hints[field.name]) if kind is not NoneType]
            kind = kinds[0] if field.metadata and len(kinds) == 1 else hints[field.name]
            keys[field.name] = Key(kind, texts[field.name], bool(field.metadata))
    return keys


def _recorded(cls: type[Any]) -> Form:
    """Return the form of a value in a record, which leaves out defaults."""
    names = {"Address": Address, "Prefix": Prefix, "Extra": tuple[tuple[int, bytes], ...]}
    keys = {}
    for name, hint in get_type_hints(cls, localns=names).items():
        # Addresses and networks are numbers in memory.
        keys[name] = _rare(str if name in OWN else hint)
    return Form(cls.__name__, "", keys)


_CHANGE: Final = Form(
    "Change",
    "A change of the node.",
    {
        "action": Key(Literal["+", "-", "~"], "added, removed or changed"),
        "subject": Key(str, "a route, a path, a unit"),
        "detail": Key(str | None, "for people"),
        "kind": Key(
            str,
            "for programs, or empty: `refused`, `left` of an optional part, `awaited`, or "
            "`unproven` of addresses that the installed config expects",
        ),
    },
)
_PART: Final = Form(
    "Finding",
    "Addresses of an expected CIDR that one route or rule decides wrongly.",
    _keys_of(
        Finding,
        {
            "kind": "see [the table](#findings)",
            "first": "the first address",
            "last": "the last address",
            "devs": "the devices through which they leave",
            "dev": "the first of them that is not allowed",
            "route": "the route or rule that decides",
            "network": "of `announced`: the network that will be connected",
            "source": "what announces it",
            "own": "the node's own addresses, which no route takes",
            "rule": "the rule that leads to another table",
            "program": "what has probably added the rule, or the blackhole",
            "command": "the `ip rule del` of that rule, or the `ip address del` of a `local` one",
            "cause": "`changing` while routes do, `by-flow` if a rule suppresses the device of "
            "some flows",
        },
    ),
)
_SUGGESTED: Final = Form(
    "SuggestedRoute",
    "A route for the config that helps.",
    _keys_of(
        SuggestedRoute,
        {
            "destination": "",
            "gateway": "",
            "dev": "",
            "takes_from": "the devices that lose the addresses",
            "warning": "the connections that the route would break",
        },
    ),
)
_CIDR: Final = Form(
    "CidrReport",
    "An expected CIDR.",
    {
        "ok": Key(bool, "without findings"),
        **_keys_of(
            CidrReport,
            {
                "cidr": "",
                "findings": "by address",
                "suggested_routes": "those that would resolve them",
                "name": "of a preset that expects it",
                "configured_routes": "those of the config that help, and are not in force",
            },
        ),
    },
)
_NODE_FINDING: Final = Form(
    "NodeFinding",
    "What is wrong or odd on the node. One of addresses has the keys of `Finding`, too.",
    {
        "kind": Key(str, "see [the table](#findings)"),
        "subject": Key(str, "the route, path, unit or CIDR"),
        "reason": Key(str, "for people, with the step"),
        "severity": Key(Severity),
        "command": _rare(str, "what resolves it"),
        "since": _rare(str, "the time, in UTC"),
        **_all_rare(
            {name: key for name, key in _PART.keys.items() if name not in {"kind", "command"}}
        ),
    },
)
_PROOF: Final[dict[str, Key]] = {
    "ok": Key(bool, "all expected addresses leave right"),
    "mode": Key(OverlapMode),
    "expected_devs": Key(list[str], "the devices through which they should leave"),
    "cidrs": Key([_CIDR], "each expected CIDR"),
}
_RUN_PROOF: Final = Form(
    "Proof", "The check of a run.", {name: key for name, key in _PROOF.items() if name != "mode"}
)
_PLANNED_PROOF: Final = Form("PlannedProof", "The check of the planned node.", _PROOF)
#: Of the values that are fields of others.
_FORMS: Final = {Finding: _PART, SuggestedRoute: _SUGGESTED}
_SPARED: Final = Form(
    "SparedObject",
    "An entry that a cleanup leaves alone.",
    {
        "object": Key(str),
        "kind": Key(Sort),
        "address": Key(str | None, "of the pod that it was made for"),
        "reason": Key(str),
    },
)
_VERDICT: Final = Key(str, "the node in a sentence")
_NEXT: Final[dict[str, Key]] = {
    "next": Key(str | None, "the command that repairs it"),
    "step": Key(
        (
            Form(
                "NextStep",
                "What to do next.",
                {
                    "type": Key(Literal["fix", "look", "owner"], "`owner`: a person has to act"),
                    "command": Key(str | None, "as `next`"),
                    "owner": Key(str | None, "what a person has to do"),
                },
            ),
            None,
        ),
        "null if nothing is to do",
    ),
}
_CHECKED: Final[dict[str, Key]] = {
    **_PROOF,
    "ok": Key(bool, "no finding is an error, and all was read"),
    "verdict": _VERDICT,
    **_NEXT,
    "findings": _rare([_NODE_FINDING], "all but those of `cidrs`"),
    "not_asked": _rare(list[str], "what could not be looked at"),
    "unread": _rare(list[str], "parts that the deadline cut off"),
    "spared": _rare([_SPARED], "what a cleanup would leave alone"),
}
_UNIT_STATE: Final = Form("UnitState", "A unit.", {"unit": Key(str), "active_state": Key(str)})
_GATE: Final = Form(
    "Gate",
    "A unit with a gate.",
    {
        "state": Key(str, "`open`, `shut` if a start would be held now, or as its finding"),
        "reason": Key(str, "of its finding"),
        "active_state": Key(str, "of systemd, `unknown` or `no such unit`"),
    },
)
_REPORTED: Final = Form(
    "Task",
    "A task of a run.",
    {
        "name": Key(str),
        "path": Key(str, "with the groups around it"),
        "status": Key(Status),
        "degraded": Key(bool, "ok, but for `reasons` of it or of a task inside"),
        "reasons": Key(list[str]),
        "attempts": Key(int),
        "start": Key(str | None, "UTC"),
        "duration": Key(float | None, "seconds"),
        "error": Key(str | None),
        "failures": Key(
            [
                Form(
                    "Failure",
                    "A cause.",
                    {
                        "path": Key(str, "of the task"),
                        "type": Key(str, "the class of the error"),
                        "retryable": Key(bool),
                        "cause": Key(str),
                        "where": Key(str | None, "file and line"),
                    },
                )
            ]
        ),
        "result": Key(object, "what the task returned"),
        "repr": _rare(bool, "true if `result` has a part by its text"),
        "undo": _rare(
            Literal["complete", "partial"], "what became of the undo, of all steps inside, too"
        ),
        "changes": Key(
            [
                _CHANGE._replace(
                    name="MadeChange",
                    keys={**_CHANGE.keys, "undone": _rare(bool, "true if it was reversed")},
                )
            ]
        ),
        "children": Key(["Task"]),
    },
)
_STALE: Final = Form("Stale", "A stale entry.", {"object": Key(str), "reason": Key(str)})
_REMOVED: Final = Form(
    "Removed",
    "A removed entry.",
    {**_STALE.keys, "restore": Key(str, "the command that adds it again")},
)

#: By the names of files. Each has a `version`, too.
ANSWERS: Final[dict[str, Form]] = {
    "check": Form("check", "`check`", _CHECKED),
    "status": Form(
        "status",
        "`status`",
        {
            "ok": _CHECKED["ok"],
            "state": Key(Verdict),
            "verdict": _VERDICT,
            **_NEXT,
            "config": Key(str | None, "the path of the installed config"),
            "mode": Key(OverlapMode),
            "last_change": Key(str | None, "of the config, its units and gates; UTC"),
            "cidrs": Key(
                Form("Cidrs", "Expected CIDRs.", {"expected": Key(int), "right": Key(int)})
            ),
            "break_glass": Key(str | None, "why every gate is open"),
            "checksum": Key(str, "of the installed config, as in the journal"),
            "edited": Key(bool, "the installed config was edited by hand"),
            "routes": Key(
                Form(
                    "Routes",
                    "Static routes.",
                    {"wanted": Key(int), "in_force": Key(int | None, "null if that was not read")},
                )
            ),
            "boot_files": Key(
                Form("BootFiles", "Files of a boot.", {"differ": Key(int | None, "likewise")})
            ),
            "probeSnat": _rare((_UNIT_STATE, None), "null if not enabled"),
            "watch": _rare((_UNIT_STATE, None), "likewise"),
            "gates": Key(({"*": _GATE}, None), "by unit; null if that was not read"),
            "findings": Key([_NODE_FINDING], "all"),
            "not_asked": _CHECKED["not_asked"]._replace(rare=False),
        },
    ),
    "plan": Form(
        "plan",
        "`plan`, `apply --dry-run`",
        {
            "verdict": _VERDICT,
            "changes": Key([_CHANGE]),
            "proof": _rare(_PLANNED_PROOF, "of the node as planned"),
            "worse": _rare(list[str], "addresses that would become wrong"),
            "holds": _rare(list[str], "the gates that STRICT will hold"),
            "late": _rare(list[str], "the units of `after` that hold them"),
            "undecided": _rare(str, "why nothing is checked"),
            "findings": _rare([_NODE_FINDING]),
            "notices": _rare(list[str], "about gates, programs and the config"),
        },
    ),
    "apply": Form(
        "apply",
        "`apply`, `reset`",
        {
            "verdict": _VERDICT,
            **_NEXT,
            **_REPORTED.keys,
            "children": Key([_REPORTED]),
            "ok": Key(bool, "the run succeeded, and the node is right"),
            "overlap": Key((_RUN_PROOF, None), "null if nothing was checked"),
            "held": _rare(list[str], "the units that gates hold"),
            "released": _rare(list[str], "those that were started"),
            "spared": _rare([_SPARED]),
            "findings": _rare([_NODE_FINDING]),
        },
    ),
    "sweep": Form(
        "sweep",
        "`sweep`",
        {
            "ok": Key(bool, "nothing stale is left that could not be removed"),
            "verdict": Key(str),
            "dry_run": Key(bool),
            "removed": _rare([_REMOVED]),
            "would_remove": _rare([_STALE], "with --dry-run"),
            "spared": Key([_SPARED], "of live pods and of the node"),
            "unknown": Key([_SPARED], "what is not understood"),
            "backup": _rare(str | None, "the file with the state before, and with these commands"),
            "obstacle": _rare(str, "why nothing can be removed"),
            "error": _rare(str),
        },
    ),
    "explain": Form(
        "explain",
        "`explain`",
        {
            "verdict": Key(str),
            "explanations": Key(
                [
                    Form(
                        "Explanation",
                        "An address or CIDR that was given.",
                        {
                            "asked": Key(str),
                            "parts": Key(
                                [
                                    Form(
                                        "Part",
                                        "Addresses with one answer.",
                                        _keys_of(
                                            ExplainedPart,
                                            {
                                                "first": "the first address",
                                                "last": "the last address",
                                                "devs": "the devices through which they leave",
                                                "route": "the route that decides",
                                                "rule": "the rule that leads to it",
                                                "reason": "why they have no device",
                                                "is_expected": "null without a config",
                                            },
                                        ),
                                    )
                                ]
                            ),
                        },
                    )
                ]
            ),
        },
    ),
    "render": Form(
        "render",
        "`render`",
        {
            "verdict": Key(str),
            "files": _rare(
                [
                    Form(
                        "File",
                        "A file of a boot.",
                        {
                            "path": Key(str),
                            "mode": Key(str, "octal"),
                            "content": Key(str | None, "null of the program"),
                            "size": _rare(int, "bytes of the program"),
                        },
                    )
                ]
            ),
            "written": _rare(list[str], "with --out: the paths"),
        },
    ),
    "verdict": Form(
        "verdict",
        "`check --from`, `plan --from`: a line for each node",
        {
            **_keys_of(
                NodeVerdict,
                {
                    "hostname": "or the place of a line that is not a record",
                    "is_record": "",
                    "undecided": "why nothing is checked",
                    "changes": "of a plan: the number of changed routes",
                    "overlaps_now": "of a plan: the check fails without them",
                },
            ),
            **_all_rare(_CHECKED),
            "ok": Key(bool, "the node was checked, and no finding is an error"),
        },
    ),
    "summary": Form(
        "summary",
        "`check --from`, `plan --from`: the last line",
        {
            "summary": Key(
                Form(
                    "Summary",
                    "The numbers of nodes.",
                    {
                        **_all_rare({name: Key(int) for name in ("nodes", "right", "bad")}),
                        "unknown": _rare(int, "nodes without a check"),
                        "refused": _rare(int, "lines that are not records"),
                        "overlap": _rare(int, "nodes with wrong addresses; of a plan, afterwards"),
                        "overlap_now": _rare(int, "of a plan: those with wrong ones today"),
                        "groups": Key(
                            [
                                Form(
                                    "Group",
                                    "Nodes with one reason.",
                                    {
                                        "reason": Key(str),
                                        "nodes": Key(int),
                                        "examples": Key(list[str]),
                                    },
                                )
                            ]
                        ),
                        "more_groups": Key(int, "the number of groups that are left out"),
                    },
                )
            )
        },
    ),
    "watch": Form(
        "watch",
        "`watch`: each line but the last",
        {
            "time": Key(str, "UTC"),
            "severity": Key(Literal["info", "warning", "error"]),
            "kind": Key(
                str,
                "`keeps`, `repair`, `alarm`, `stale`, `trouble`, `over` (the end of one of these "
                "three) or `note`",
            ),
            "subject": Key(str | None, "the route, CIDR, object or failure; null for several"),
            "text": Key(str),
            "finding": _rare((_PART, _NODE_FINDING), "of an alarm"),
            "command": _rare(str, "against what is stale"),
            "lost": _rare(int, "lines left out while the reader stood still"),
        },
    ),
    "end": Form(
        "end",
        "the last line of `watch`, and any refusal",
        {
            "ok": Key(bool),
            "error": _rare(str),
            "errors": _rare(
                [
                    Form(
                        "Mistake", "A mistake in a config.", {"path": Key(str), "message": Key(str)}
                    )
                ],
                "of an invalid config",
            ),
        },
    ),
    "record": Form("record", "`record`", _recorded(NodeRecord).keys),
}


def schema(form: Form) -> dict[str, Any]:
    """Return the JSON Schema of an answer."""
    parts: dict[str, Any] = {}
    keys = {"version": Key(object), **form.keys}
    top = _object(form._replace(keys=keys), parts)
    top["properties"]["version"] = _VERSION
    if "HostRoutingConfig" in json.dumps(top):
        parts |= config_schema()["$defs"]
    head = {"$schema": _DIALECT, "title": form.text}
    return {**head, **top, **({"$defs": parts} if parts else {})}


def _object(form: Form, parts: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object, and add those of its parts to `parts`."""
    properties = {}
    for name, key in form.keys.items():
        properties[name] = _schema(key.kind, parts)
        if key.text:
            properties[name] = {**properties[name], "description": key.text}
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name, key in form.keys.items() if not key.rare],
    }


def _schema(kind: Any, parts: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type, of a form or of its name, or of a list or tuple of such."""
    if isinstance(kind, type):
        kind = _recorded(kind) if kind in FORMS else _FORMS.get(kind, kind)
    if isinstance(kind, Form):
        if kind.name not in parts:
            # First, for a form that names itself.
            parts[kind.name] = {}
            described = {"description": kind.text} if kind.text else {}
            parts[kind.name] = {**described, **_object(kind, parts)}
        kind = kind.name
    if isinstance(kind, str):
        return {"$ref": f"#/$defs/{kind}"}
    if isinstance(kind, list):
        return {"type": "array", "items": _schema(kind[0], parts)}
    if isinstance(kind, dict):
        return {"type": "object", "additionalProperties": _schema(kind["*"], parts)}
    if isinstance(kind, tuple):
        return {"anyOf": [_schema(each, parts) for each in kind]}
    return _schema_of_hint(kind, parts)


def _schema_of_hint(kind: Any, parts: dict[str, Any]) -> dict[str, Any]:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in {Union, UnionType}:
        return _schema(inner, parts)
    if origin is Literal:
        return {"enum": [*inner]}
    if origin is tuple and inner[1:] != (...,):
        return {"type": "array", "prefixItems": [_schema(each, parts) for each in inner]}
    if origin in {list, tuple}:
        return {"type": "array", "items": _schema(inner[0], parts)}
    return _PLAIN[NoneType if kind is None else kind]
