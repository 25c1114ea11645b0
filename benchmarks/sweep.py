"""Leftovers of a removed CNI: deleting their ebtables rules, against the tool alone."""

import shutil
from pathlib import Path

from benchmarks.cases import OURS, Group, Result, Setting
from benchmarks.measure import (
    BenchmarkError,
    Contender,
    Contest,
    Sample,
    contest,
    in_process,
    process,
)
from hostrouting.host.packets.ebtables import EbtablesCommand
from hostrouting.host.packets.ebtables_rules import parse_save
from phases import Context

SWEEP = "ebtables rules"
NAMES = (SWEEP,)
TOOL = "tool"

LEGEND = """\
ebtables rules: microseconds a rule of the kind that azure-vnet leaves, deleted by their full description.
  ours      the library: batches of deletions, and the reading that proves that exactly these went
  tool      one `ebtables-nft-restore --noflush` with all the deletions, and nothing read back"""

_MOST = 10_000
_SOME_ROUNDS = 5
_RESTORE = ("ebtables-nft-restore", "--noflush")


def sweep(setting: Setting) -> list[Result]:
    """Delete all the rules there are."""
    if shutil.which(_RESTORE[0]) is None:
        return [Result(SWEEP, [], [], f"left out: there is no {_RESTORE[0]}")]
    contests = [_sweep(setting, count) for count in setting.sizes if count <= _MOST]
    return [Result(SWEEP, contests, [(OURS, TOOL)])]


def _sweep(setting: Setting, count: int) -> Contest:
    lines = [line for number in range(count // 2) for line in _rules_of(number)]
    filled = _file(setting.folder / "fill", lines)
    emptied = _file(setting.folder / "empty", [line.replace("-A ", "-D ", 1) for line in lines])
    rules = parse_save(filled.read_text(), backend="nft")
    contenders = [
        Contender(OURS, in_process(lambda: EbtablesCommand().delete(Context(), rules))),
        Contender(TOOL, lambda: _restore(emptied)),
    ]

    def check() -> None:
        left = EbtablesCommand().read(Context()).rules
        if left:
            raise BenchmarkError(f"{len(left)} of {count} rules are left")

    def before() -> None:
        _restore(filled)

    return contest(
        contenders,
        len(lines),
        rounds=min(_SOME_ROUNDS, setting.rounds(count)),
        before=before,
        check=check,
    )


def _rules_of(number: int) -> tuple[str, str]:
    address = f"10.{240 + number // 62_500}.{number // 250 % 250}.{number % 250 + 1}"
    mac = "12:34:56:78:9a:bc"
    return (
        f"-A PREROUTING -p ARP --arp-op Request --arp-ip-dst {address} -j arpreply --arpreply-mac {mac}",
        f"-A PREROUTING -p IPv4 -i eth0 --ip-dst {address} -j dnat --to-dst {mac} --dnat-target ACCEPT",
    )


def _file(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(["*nat", *lines, "COMMIT", ""]))
    return path


def _restore(path: Path) -> Sample:
    return process(["sh", "-c", f'exec {" ".join(_RESTORE)} < "$1"', "sh", str(path)])


GROUP = Group(NAMES, sweep, LEGEND)
