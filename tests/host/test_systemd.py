"""The service manager: its contract on real systemd and on an image's files, and its errors."""

import math
import os
from collections.abc import Generator
from functools import partial
from pathlib import Path

import pytest
from host.contracts.services import LiveServiceManagerContract, ServiceManagerContract, Units
from support.needs import needs, require
from support.patience import wait_until
from support.systemd_box import SystemdBox

from hostrouting.exceptions import NoSystemdError, UnitError
from hostrouting.host import FileStore, ServiceManager
from hostrouting.host.files.store import RootedFiles
from hostrouting.host.systemd.systemctl import (
    CachedUnits,
    OfflineUnits,
    Systemctl,
)
from hostrouting.host.units import assignments, reach, seconds, settings, template_of
from phases import CommandFailedError, Context, DeadlineExceededError

UNITS = "/etc/systemd/system"
#: systemctl in another root, with /proc and /run of this one.
CHROOT = """
mount --types tmpfs none /mnt && cd /mnt && mkdir etc proc run usr &&
for folder in etc proc run usr; do mount --rbind /$folder $folder; done &&
for folder in bin lib lib64; do ln --symbolic usr/$folder $folder; done &&
exec chroot . systemctl "$@"
"""


@pytest.fixture(scope="module")
def box() -> Generator[SystemdBox]:
    """One machine for all tests here: each test has its units."""
    require("box")
    with SystemdBox() as box:
        yield box


class TestSystemctl(LiveServiceManagerContract):
    """The contract on real systemd."""

    @pytest.fixture
    def files(self, box: SystemdBox) -> FileStore:
        """The files of the contract."""
        return RootedFiles(box.root)

    @pytest.fixture
    def services(self, box: SystemdBox) -> ServiceManager:
        """The units of the contract."""
        return Systemctl((*box.enter, "systemctl"))

    @pytest.mark.parametrize(("kind", "state"), [("exec", "active"), ("oneshot", "activating")])
    def test_a_stop_that_systemd_refuses_is_an_error(
        self, units: Units, kind: str, state: str
    ) -> None:
        """A stop that systemd refuses raises an error with systemd's words, and the unit stays
        active or goes on to start.
        """
        name = f"ct-refuses-{kind}.service"
        service = f"[Service]\nType={kind}\nExecStart=/bin/sleep infinity\n"
        units.write(name, f"[Unit]\nRefuseManualStop=yes\n{service}")
        units.start_soon(name)
        wait_until(lambda: units.state(name).active_state == state, "the start")
        with pytest.raises(UnitError, match=rf"Operation refused, unit {name} may be"):
            units.stop(name)
        assert units.state(name).active_state == state

    def test_a_unit_that_reloads_runs(self, box: SystemdBox, units: Units) -> None:
        """A unit that reloads counts as running, as its programs go on meanwhile."""
        name = "ct-reloads.service"
        unit = "[Service]\nExecStart=/bin/sleep infinity\nExecReload=/bin/sleep infinity\n"
        units.write(name, unit)
        units.start(name)
        box.run("systemctl", "reload", "--no-block", name)
        wait_until(lambda: units.state(name).active_state == "reloading", "the reload")
        assert units.state(name).is_running

    def test_a_unit_at_its_limit_of_starts(self, units: Units) -> None:
        """A start without waiting resets the unit's limit of starts, so that systemd does not
        refuse it later.
        """
        name, wanted = "ct-often.service", "/run/ct-often"
        units.install(
            name, unit="StartLimitBurst=1", program=f"/bin/test -e {wanted}\nRemainAfterExit=yes"
        )
        with pytest.raises(UnitError, match="failed"):
            units.start(name)
        units.files.write(wanted, b"", mode=0o644)
        units.start_soon(name)
        wait_until(lambda: units.state(name).active_state == "active", "the second start")

    def test_a_start_that_takes_too_long_is_left_to_itself(
        self, box: SystemdBox, services: ServiceManager, units: Units
    ) -> None:
        """A start that takes too long ends at its deadline, and systemd continues the job until a
        stop.
        """
        units.install("ct-slow.service", program="/bin/sleep infinity")
        # The job exists already: on a slow machine the time might end before systemctl has sent it
        # for it.
        box.run("systemctl", "start", "--no-block", "ct-slow.service")
        with pytest.raises(DeadlineExceededError):
            services.start(Context(timeout=0.5), "ct-slow.service")
        assert units.state("ct-slow.service").active_state == "activating"
        assert units.running("ct-slow.service") == []
        units.stop("ct-slow.service")
        assert units.state("ct-slow.service").active_state == "inactive"

    def test_a_reading_answers_as_systemd_does(
        self, box: SystemdBox, units: Units, ctx: Context
    ) -> None:
        """A reading of units returns what systemd returns for the units, templates, loaded
        instances and aliases that it read, whatever changes later.

        Other units and settings are queried from systemd. Marks are read first, since a unit that
        has passed its gate has no mark any more.
        """
        for instance in "one", r"two\x2dthree":
            units.install_daemon("ct-read@.service")
            units.start(f"ct-read@{instance}.service")
        units.install("ct-lasts.service", unit="Before=ct-read@one.service shutdown.target")
        units.files.link(f"{UNITS}/ct-alias.service", "ct-lasts.service")
        units.reload()
        live = Systemctl((*box.enter, "systemctl"))
        names = ["ct-read@.service", "ct-lasts.service", "ct-lacks.service", "ct-alias.service"]
        counted = Systemctl(
            (*box.enter, "sh", "-c", 'echo "$*" >> /run/calls; systemctl "$@"', "sh")
        )
        settings = ["Before", "TimeoutStartSec"]
        queried = [*names, "shutdown.target"]
        read = CachedUnits.of(ctx, counted, queried, settings, marks="ct-mark@.service")
        for services in read, live:
            assert services.states(ctx, *names) == live.states(ctx, *names)
            for name in (*names, r"ct-read@two\x2dthree.service"):
                assert services.loaded(ctx, name) == live.loaded(ctx, name)
                assert services.state(ctx, name) == live.state(ctx, name)
                [setting] = services.settings(ctx, name, "TimeoutStartSec").values()
                assert {"TimeoutStartSec": setting} == live.settings(ctx, name, "TimeoutStartSec")
            assert services.ordered_before(ctx, names[0]) == live.ordered_before(ctx, names[0])
        assert read.loaded(ctx, "ct-mark@.service") == []
        calls = (units.files.read("/run/calls") or b"").decode().splitlines()
        assert [call.rpartition(" ")[2] for call in calls] == [
            "ct-mark@*.service",
            "ct-read@*.service",
        ]
        units.stop("ct-read@one.service")
        assert [state.is_running for state in read.loaded(ctx, names[0])] == [True, True]
        assert not live.state(ctx, "ct-read@one.service").is_running
        assert read.settings(ctx, names[1], "Type") == {"Type": "oneshot"}
        assert not read.state(ctx, "ct-other.service").exists
        assert len((units.files.read("/run/calls") or b"").splitlines()) == 4

    @pytest.mark.parametrize(
        "command",
        [
            ("env", "SYSTEMD_OFFLINE=1", "systemctl"),
            ("unshare", "--mount", "sh", "-c", CHROOT, "systemctl"),
        ],
    )
    def test_a_systemctl_that_does_nothing(self, box: SystemdBox, command: tuple[str, ...]) -> None:
        """A systemctl that ends with 0 and does nothing, as in a chroot or under SYSTEMD_OFFLINE,
        is an error that names --root.
        """
        services = Systemctl((*box.enter, *command))
        ctx = Context(timeout=60)
        for call in (
            services.daemon_reload,
            partial(services.start, unit="a.service"),
            partial(services.stop, unit="a.service"),
            partial(services.state, unit="a.service"),
            partial(services.loaded, unit="a@.service"),
            partial(services.ordered_before, unit="a.service"),
        ):
            with pytest.raises(NoSystemdError, match="in a chroot"):
                call(ctx)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The root folder of an image."""
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    return tmp_path


class TestOfflineUnits(ServiceManagerContract):
    """The contract on the files of an image."""

    @pytest.fixture
    def files(self, image: Path) -> FileStore:
        """The files of the contract."""
        return RootedFiles(str(image))

    @pytest.fixture
    def services(self, image: Path) -> ServiceManager:
        """The units of the contract."""
        return OfflineUnits(str(image))

    def test_nothing_is_started(self, image: Path, files: FileStore, ctx: Context) -> None:
        """Reload, start and stop do nothing in an image."""
        services = OfflineUnits(str(image))
        Units(services, files, ctx).install(
            "ct-offline.service", program=f"/bin/touch {image}/started"
        )
        services.daemon_reload(ctx)
        services.start(ctx, "ct-offline.service")
        services.stop(ctx, "ct-offline.service")
        assert not (image / "started").exists()
        assert services.loaded(ctx, "ct-offline.service") == []

    def test_units_of_the_distribution_are_found(
        self, files: FileStore, image: Path, ctx: Context
    ) -> None:
        """A unit of the distribution is found in any folder that systemd reads, also over a link; a
        link in a folder of the distribution does not enable it.
        """
        files.write(
            "/usr/lib/systemd/system/ct-vendor@.service",
            b"[Unit]\nBefore=network.target\n",
            mode=0o644,
        )
        (image / "lib").symlink_to("usr/lib")
        (image / "lib/systemd/system/a.target.wants").mkdir()
        (image / "lib/systemd/system/a.target.wants/ct-vendor@.service").symlink_to(
            "../ct-vendor@.service"
        )
        services = OfflineUnits(str(image))
        assert services.state(ctx, "ct-vendor@.service").exists
        assert not services.state(ctx, "ct-vendor@.service").is_enabled
        assert "network.target" in services.ordered_before(ctx, "ct-vendor@.service")


class TestErrors:
    @pytest.fixture
    def unbooted(self) -> Systemctl:
        """Return systemctl on a machine whose PID 1 is not systemd."""
        if not Path("/run/systemd/system").exists():
            return Systemctl()
        require("root")  # to hide the systemd that runs here
        script = 'umount --lazy /run; exec systemctl "$@"'
        return Systemctl(("unshare", "--mount", "sh", "-c", script, "systemctl"))

    @needs("systemctl")
    def test_where_systemd_does_not_run(self, unbooted: Systemctl) -> None:
        """The error on a machine without systemd as PID 1 has this cause alone, and a code."""
        with pytest.raises(UnitError) as caught:
            unbooted.daemon_reload(Context(timeout=60))
        assert str(caught.value) == "this machine was not booted with systemd"
        assert caught.value.code == "no-systemd"
        assert isinstance(caught.value.__cause__, CommandFailedError)

    def test_where_systemd_is_not_installed(self) -> None:
        """The error on a machine without systemctl has this cause alone, and a code."""
        with pytest.raises(NoSystemdError) as caught:
            Systemctl(("no-such-systemctl",)).daemon_reload(Context(timeout=60))
        assert str(caught.value) == "there is no systemctl on PATH, as in a container"
        assert caught.value.code == "no-systemd"


@pytest.mark.parametrize(("user", "question"), [(0, ""), (1000, "\nare you root?")])
def test_a_refusal_has_the_next_step(
    monkeypatch: pytest.MonkeyPatch, user: int, question: str
) -> None:
    """A refused start has the journal as its next step, and a hint at root for any other user."""
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(UnitError) as caught:
        Systemctl(("false",)).start(Context(), "a.service")
    assert str(caught.value) == (
        f"`false start -- a.service` ended with status 1\nsee: journalctl -b -u a.service{question}"
    )


@pytest.mark.parametrize(
    "printed",
    ["", "nonsense", "Id=a.service", 'LoadState=loaded\nDropInPaths="', "Id=a.service\nMainPID=x"],
)
def test_properties_that_cannot_be_read_are_a_refusal_with_a_next_step(printed: str) -> None:
    """Output of systemctl that is malformed or cut off is an error with a next step."""
    services = Systemctl(("sh", "-c", 'printf "%s" "$0"', printed))
    with pytest.raises(UnitError, match=r"cannot read the output of .*systemctl status"):
        services.state(Context(), "a.service")


@pytest.mark.parametrize("printed", ["", "Id=a.service\nLoadState=loaded\n"])
def test_an_answer_for_fewer_units_names_them(printed: str) -> None:
    """Output of systemctl for fewer units than queried is an error that names the units; a template
    without output has no loaded instances.
    """
    services = Systemctl(("sh", "-c", 'printf "%s" "$0"', printed))
    with pytest.raises(UnitError, match=r"show -- a\.service b\.service`.* of 2 units"):
        services.states(Context(), "a.service", "b.service")
    # Those of the marks are queried, too.
    with pytest.raises(UnitError, match="of 3 units"):
        CachedUnits.of(Context(), services, ["a.service", "b@.service"], [], marks="c@.service")
    if not printed:
        assert services.loaded(Context(), "a@.service") == []


def test_units_are_read_with_all_that_is_loaded() -> None:
    """Units are queried with `--all`, so that an inactive unit is loaded; a unit that is enabled
    until the next boot is enabled.
    """
    shown = "Id=a.service LoadState=loaded ActiveState=inactive SubState=dead NeedDaemonReload=no "
    shown += "DropInPaths= Requires= UnitFileState=enabled-runtime"
    program = f"case $* in *--all*) printf '%s\\n' {shown};; esac"
    services = Systemctl(("sh", "-c", program, "sh"))
    [state] = services.loaded(Context(), "a@.service")
    assert state.is_enabled


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[Service]\nUser=a\n[\x01]\nUser=b", "a"),
        ("[Service]\nUser=a \\\n; a comment\n  b", "a  b"),
        ("[Service]\nUser=a\\\\\nUser=b", "b"),
        ("[Service]\nUser=\N{NO-BREAK SPACE}a", "\N{NO-BREAK SPACE}a"),
    ],
)
def test_a_text_is_read_as_systemd_reads_it(text: str, value: str) -> None:
    """A unit file is read as by systemd.syntax(7): a broken header ends the reading, a comment does
    not end a continued line, two backslashes do not continue a line, and only ASCII has white
    space.
    """
    assert settings([text], "User") == {"User": value}


def test_a_broken_header_ends_the_reading_of_later_files() -> None:
    """A broken header ends the reading of its file and of later ones, as in systemd-networkd."""
    texts = {"/a": "[A]\nx=1\n[\x01]\nx=2", "/b": "[B]\nx=3"}
    assert [*assignments(texts)] == [("/a", "A", "x", "1")]


def test_names_and_durations_of_units() -> None:
    """A template is not an instance of itself, a unit in a circle of orders is not before itself,
    and a malformed duration is infinite.
    """
    assert template_of("a@.service") is None
    circle = {"a": ["b"], "b": ["a"]}
    assert reach("a", lambda ring: [name for unit in ring for name in circle[unit]]) == {"b"}
    assert seconds("5 fortnights") == math.inf
