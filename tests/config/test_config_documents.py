"""Files and JSON text: read strictly, and refused with nothing but our own errors."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.printed import ANOTHER_FILE, TOO_LARGE

from hostrouting import HostRoutingConfig, WatchConfig
from hostrouting.exceptions import HostFileError, InvalidConfigError, UnreadableConfigError

CONFIG = HostRoutingConfig(watch=WatchConfig(enabled=True))
TEXT = '{"hostRouting": {"watch": {"enabled": true}}}'


@pytest.mark.parametrize("document", [TEXT, TEXT.encode(), f"\r\n\t {TEXT} \n"])
def test_text_and_utf8_bytes_are_read(document: str | bytes) -> None:
    """JSON is read from text or bytes, with white space around it."""
    assert HostRoutingConfig.from_json(document) == CONFIG


def _agents(services: object, **sections: object) -> dict[str, Any]:
    overlap = {"expectedCidrs": ["172.16.0.0/16"]}
    bootstrap = {"additionalRequiredServices": services, "token": "x"}
    return {"bootstrap": bootstrap, "hostRouting": {"routeOverlap": overlap, **sections}}


@pytest.mark.parametrize(
    ("mapping", "after", "inherits"),
    [
        (_agents(["ib", "a.target"]), ("ib.service", "a.target"), True),
        (_agents(["ib"], after=None), ("ib.service",), True),
        (_agents(["ib"], after=["b.service"]), ("b.service",), False),
        (_agents(["ib"], after=[]), (), False),
        # Nothing is checked, so nothing waits.
        (_agents(["ib"], routeOverlap={}), (), False),
        ({**_agents(["ib"]), "hostRouting": None}, (), False),
        (_agents(None), (), False),
        ({**_agents(None), "bootstrap": "x"}, (), False),
    ],
)
def test_the_agents_list_stands_for_after(
    mapping: dict[str, Any], after: tuple[str, ...], inherits: bool
) -> None:
    """An agent's whole config that does not have `after` takes it from its bootstrap section's
    additionalRequiredServices; the config that is installed has it as its own.
    """
    config = HostRoutingConfig.from_mapping(mapping)
    assert config.after == after
    assert config.inherits_after == inherits
    again = HostRoutingConfig.from_mapping({"hostRouting": config.to_mapping()})
    assert again == config
    assert not again.inherits_after


@pytest.mark.parametrize(
    ("services", "place"), [("ib", ""), (["-"], "[0]"), (["a", "kubelet.service"], "[1]")]
)
def test_a_wrong_list_of_the_agent_is_refused(services: object, place: str) -> None:
    """A wrong list of an agent is refused at its own path, with the key that precedes the list."""
    with pytest.raises(InvalidConfigError) as caught:
        HostRoutingConfig.from_mapping(_agents(services))
    text = str(caught.value)
    assert text.startswith(f"bootstrap.additionalRequiredServices{place}: ")
    assert text.endswith("; or name the units in hostRouting.after, which overrides this list")


@pytest.mark.parametrize(
    "mapping",
    [
        {"cluster": {"name": "a"}},
        {"gateway": "10.0.0.1", "watchdog": True, "version": 1},
        {"": None},
    ],
)
def test_an_agents_config_without_our_key_wants_nothing_of_us(mapping: dict[str, Any]) -> None:
    """An agent's config without the key `hostRouting` is read as an empty config."""
    assert HostRoutingConfig.from_mapping(mapping) == HostRoutingConfig()
    assert HostRoutingConfig.from_json(json.dumps(mapping)) == HostRoutingConfig()


@pytest.mark.parametrize(
    "key", ["staticRoute", "routeoverlap", "stale_cni", "hostrouting", "gate", "hostRoutng"]
)
def test_a_mistyped_section_is_not_an_agents_config(key: str) -> None:
    """A mistyped section is refused with the word that was meant, since 'these routes' must not
    become 'no routes'.
    """
    with pytest.raises(InvalidConfigError, match="did you mean"):
        HostRoutingConfig.from_mapping({"cluster": {}, key: {}})


@pytest.mark.parametrize("beside", ["staticRoutes", "routeOverlap", "probeSnat", "staleCni"])
def test_a_section_beside_hostrouting_is_refused_with_its_place(beside: str) -> None:
    """A section next to hostRouting, where it would have no effect, is refused with its place; null
    is accepted there, and `watch` and `gates` may be an agent's own keys.
    """
    document = {"hostRouting": {"typo": 1}, beside: {"enabled": True}, "watch": {}, "gates": 7}
    with pytest.raises(InvalidConfigError) as caught:
        HostRoutingConfig.from_mapping(document)
    misplaced, (path, _) = caught.value.errors
    assert misplaced == (beside, f"must be inside hostRouting; move it to hostRouting.{beside}")
    assert path == "hostRouting.typo"
    assert (
        HostRoutingConfig.from_mapping({"hostRouting": {}, beside: None, "watch": {}})
        == HostRoutingConfig()
    )


def test_repeated_keys_elsewhere_are_ignored() -> None:
    """Repeated keys of other programs in an agent's whole config are ignored."""
    assert HostRoutingConfig.from_json('{"a": 1, "a": {"b": 1, "b": 2}, ' + TEXT[1:]) == CONFIG


def test_a_file_of_just_1_mib_is_read(tmp_path: Path) -> None:
    """A file of 1 MiB is read, by a path as text, too; a file with one more byte is refused with
    the reason.
    """
    path = tmp_path / "config.json"
    path.write_text(TEXT.ljust(1 << 20))
    assert HostRoutingConfig.from_file(path) == HostRoutingConfig.from_file(str(path)) == CONFIG
    path.write_text(TEXT.ljust((1 << 20) + 1))
    with pytest.raises(UnreadableConfigError) as caught:
        HostRoutingConfig.from_file(path)
    assert str(caught.value) == (f"cannot read the config '{path}': {TOO_LARGE}; {ANOTHER_FILE}")


def test_a_file_that_cannot_be_read_names_path_reason_and_step() -> None:
    """The error about a file that cannot be read has the path, the reason and the step, and the
    cause chained; tests/cli/test_cli.py has more paths.
    """
    with pytest.raises(HostFileError, match=r"^cannot read the config 'a.x00b': .*null") as caught:
        HostRoutingConfig.from_file("a\0b")
    assert str(caught.value).endswith(f"; {ANOTHER_FILE}")
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(UnreadableConfigError, match=r"^cannot read the config on descriptor 999: "):
        HostRoutingConfig.from_file(999)
    with (
        Path(os.devnull).open() as empty,
        pytest.raises(InvalidConfigError, match=r"is empty; see the message of the command before"),
    ):
        HostRoutingConfig.from_file(empty.fileno())


def test_a_pipe_without_a_writer_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`from_file` gives up a pipe without a writer after a time limit of its own."""
    monkeypatch.setattr("hostrouting.config.sections._LONGEST_WAIT", 0.01)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnreadableConfigError, match=r"within 0\.01 s; "):
        HostRoutingConfig.from_file(tmp_path / "pipe")
