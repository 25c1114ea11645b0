#!/usr/bin/python
"""An Ansible module that applies a config of hostrouting to a node or an image."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCUMENTATION = r"""
module: hostrouting
short_description: Make the host routing of a node right
description:
  - Runs C(hostrouting apply) with a config, or C(hostrouting plan) in check mode.
  - Fails if the command does, with its sentence; in check mode if an apply would be refused.
options:
  config:
    description: The C(hostRouting) object. An empty one removes everything of hostrouting.
    type: dict
    required: true
  root:
    description: A folder with an image, in place of the live node.
    type: path
  command:
    description: The program and its first words.
    type: list
    elements: str
    default: [hostrouting]
attributes:
  check_mode: {support: full}
  diff_mode: {support: full}
"""
EXAMPLES = r"""
- name: Keep the cluster's addresses off the fabric
  hostrouting:
    config:
      staticRoutes: {enabled: true, routes: [{destination: 172.16.8.0/22}]}
      routeOverlap: {expectedCidrs: [172.16.8.0/22], mode: STRICT}
"""
RETURN = r"""
verdict: {description: The sentence on the node at the end, type: str, returned: not in check mode}
changes: {description: The changes made or planned, type: list, elements: str, returned: always}
"""

#: The exit statuses of a success: fine, and with --exit-code something to change.
_FINE = (0, 4)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "config": {"type": "dict", "required": True},
            "root": {"type": "path"},
            "command": {"type": "list", "elements": "str", "default": ["hostrouting"]},
        },
        supports_check_mode=True,
    )
    root = [] if module.params["root"] is None else ["--root", module.params["root"]]
    text = json.dumps({"hostRouting": module.params["config"]})

    def run(*words: str) -> tuple[int, str, str]:
        command = [*module.params["command"], *words, *root, "-"]
        result: tuple[int, str, str] = module.run_command(command, data=text)
        return result

    answer: dict[str, object] = {}
    if module._diff:  # noqa: SLF001 - Ansible lacks a public name for it
        answer["diff"] = {"prepared": run("plan", "--diff")[1]}
    status, out, log = run(*(["plan", "--exit-code"] if module.check_mode else ["apply"]), "--json")
    try:
        report = json.loads(out)
    except ValueError:
        # It is another program, or an error of Python itself.
        report, status = {"error": log.strip() or f"no answer in JSON, but: {out}"}, status or 3
    changes = list(_changes(report))
    answer.update(changed=bool(changes), changes=changes)
    answer.update({key: report[key] for key in ("verdict", "notices") if report.get(key)})
    if status not in _FINE:
        # A plan that would be refused has its reasons in the text.
        module.fail_json(msg=report.get("error") or run("plan")[1], rc=status, **answer)
    module.exit_json(**answer)


def _changes(report: dict[str, Any]) -> Iterator[str]:
    """Yield each change of a plan, or of the tree of tasks of an apply, as one line."""
    for change in report.get("changes", ()):
        yield f"{change['action']} {change['subject']}"
    for child in report.get("children", ()):
        yield from _changes(child)


if __name__ == "__main__":
    main()
