"""The entries of the list of capabilities describe their packages, which few other files name."""

import re
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import Phase, find, settings
from support.config_json import FULL
from support.run_nodes import gpu_node

import hostrouting
from hostrouting.apply.capability import PAIR
from hostrouting.boot.capability import Capability
from hostrouting.boot.layout import SCRIPT_DIRECTORY, UnitRemoval, unit_path, units_in
from hostrouting.config.sections import SECTIONS, HostRoutingConfig
from hostrouting.node.boot_files import render_files
from hostrouting.node.capabilities import CAPABILITIES, OPTIONAL_SECTIONS
from hostrouting.node.configure import Configure, Reset
from hostrouting.testing.strategies import configs
from hostrouting.watch.capability import WATCH

PACKAGE = Path(hostrouting.__file__).parent
#: The files that name an optional feature of another package, each with the reason.
NAMED_IN = {
    "__init__.py": "the public names",
    "boot/assets/10-hostrouting.conf": "what is stopped before its files are removed by hand",
    "boot/assets/hostrouting-ask.sh": "optional rules are loaded with each start of a gate",
    "boot/program.py": "the modules that no boot needs",
    "boot/reconciler.py": "the config in force, and how often the watch reads it",
    "cli/commands/sweep.py": "a command of one capability",
    "config/sections.py": "the fields of the config",
    "config/optional.py": "the sections",
    "node/capabilities.py": "the list",
    "node/configure.py": "an example",
    "node/watch.py": "the loop of the watch, which has the reconcilers of the optional features",
    "testing/strategies.py": "configs at random",
}


def names(capability: Capability) -> set[str]:
    section = capability.in_config(HostRoutingConfig())
    task = capability.task().__name__
    units = {unit.rpartition(".")[0] for unit in section.units}
    package = capability.task.__module__.removesuffix(".capability")
    own = {type(section).__name__, capability.name, task, package, f"config.{capability.section}"}
    return own.union(units)


def test_few_files_name_an_optional_feature_of_another_package() -> None:
    """Only the files of NAMED_IN name an optional feature of another package, so that a change of
    the feature touches few other files.
    """
    words = "|".join(map(re.escape, set(chain.from_iterable(map(names, OPTIONAL_SECTIONS)))))
    sources = [path for path in PACKAGE.rglob("*") if path.suffix in {".py", ".sh", ".conf"}]
    named = {
        path.relative_to(PACKAGE).as_posix()
        for path in sources
        if re.search(rf"\b(?:{words})\b", path.read_text("utf-8"))
    }
    own = "azure/", "watch/"
    assert {path for path in named if not path.startswith(own)} == NAMED_IN.keys()


def test_each_section_has_its_capability() -> None:
    """The sections of the capabilities are exactly those of the config, and SECTIONS lists the
    class of each section.
    """
    sections = HostRoutingConfig().sections
    assert sorted(capability.section for capability in CAPABILITIES) == sorted(sections)
    assert {*SECTIONS} == {type(section) for section in sections.values()}


def test_agents_can_import_each_section_and_its_task() -> None:
    """The section and the task of each capability are public names of `hostrouting`, except for the
    task of the watch.
    """
    public = {*hostrouting.__all__}
    assert {section.__name__ for section in SECTIONS} <= public
    assert {each.task().__name__ for each in CAPABILITIES if each is not WATCH} <= public


@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda each: each.section)
def test_the_strategies_draw_each_section(capability: Capability) -> None:
    """A random config of the strategies may have any section with other values than the default."""
    default = capability.in_config(HostRoutingConfig())
    once = settings(phases=[Phase.generate], database=None)
    find(configs(), lambda config: capability.in_config(config) != default, settings=once)


def test_each_package_is_in_the_layers() -> None:
    """The import contract in pyproject.toml names each package, and so checks its imports."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")
    contract = text.partition('name = "imports go one way"')[2].partition("]")[0]
    packages = {f"hostrouting.{path.parent.name}" for path in PACKAGE.glob("*/__init__.py")}
    assert packages <= {*re.findall(r"[\w.]+", contract)}


@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda each: each.section)
def test_an_entry_describes_its_task(capability: Capability) -> None:
    """A capability has the name of its task, by which a run skips the task, and the section that
    the task obeys.
    """
    task = capability.task()
    assert task.name == capability.name
    assert getattr(task, "section", capability.section) == capability.section


@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda each: each.section)
def test_a_section_declares_what_its_capability_installs(
    capability: Capability,
) -> None:
    """A section declares every unit and file that its capability installs or removes, so that a
    reset leaves none of them.
    """
    config = HostRoutingConfig.from_mapping(FULL)
    host = gpu_node()
    section = capability.in_config(config)
    installed: set[str] = set()
    for part in capability.parts(config, host):
        installed |= {*part.paths} if isinstance(part, UnitRemoval) else set()
    for unit in units_in(capability.parts(config, host)):
        installed |= {*unit.paths}
    assert installed <= {*map(unit_path, section.units), *section.files}


@pytest.mark.parametrize("capability", PAIR, ids=lambda each: each.section)
def test_the_pair_declares_its_removal(capability: Capability) -> None:
    """An empty config removes exactly the units and files that the section of the routes, or of
    their check, declares.
    """
    [part] = capability.parts(HostRoutingConfig(), None)
    section = capability.in_config(HostRoutingConfig())
    assert isinstance(part, UnitRemoval)
    assert {*part.paths} == {*map(unit_path, section.units), *section.files}


def test_an_apply_proves_before_the_optional_capabilities() -> None:
    """An apply checks the routes before it attends to the optional capabilities, whose programs may
    hang.
    """
    apply = Configure(HostRoutingConfig.from_mapping(FULL), host=gpu_node())
    assert [task.name for task in apply.subtasks] == [
        "install-boot-files",
        "configure-static-routes",
        "check-route-overlap",
        "clean-stale-cni",
        "configure-probe-snat",
        "configure-watch",
    ]


def test_a_reset_takes_the_watch_first_then_the_pair() -> None:
    """A reset removes the watch first, since a watch would restore routes, then the routes and
    their check, and at last the rules for probes. The cleanup has nothing to remove.
    """
    reset = Reset(HostRoutingConfig.from_mapping(FULL), host=gpu_node())
    assert [task.name for task in reset.subtasks] == [
        "install-boot-files",
        "configure-watch",
        "configure-static-routes",
        "check-route-overlap",
        "configure-probe-snat",
    ]


def test_render_has_the_files_of_each_capability() -> None:
    """Rendered files include the unit of each section, with the scripts that the section declares,
    and the files of a section without units.
    """
    config = HostRoutingConfig.from_mapping(FULL)
    host = gpu_node()
    paths = {*render_files(config, host=host).paths}
    for section in config.sections.values():
        if section.units:
            assert unit_path(section.unit) in paths
        elif section.files:
            assert {*section.files} <= paths
        own = {path for path in section.files if path.startswith(f"{SCRIPT_DIRECTORY}/")}
        assert own <= paths
