from collections.abc import Generator
from pathlib import Path

import pytest
from support.contracts.services import LiveServiceManagerContract, ServiceManagerContract, Units
from support.needs import needs, require
from support.systemd_box import SystemdBox

from hostrouting import UnitError
from hostrouting.host import FileStore, ServiceManager
from hostrouting.host.files.store import RootedFiles
from hostrouting.host.systemd.systemctl import OfflineUnits, Systemctl
from phases import CommandFailedError, Context, DeadlineExceededError

UNITS = "/etc/systemd/system"


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

    def test_a_stop_that_systemd_refuses_is_an_error(self, units: Units) -> None:
        """The unit runs on, and the error has the words of systemd."""
        unit = "[Unit]\nRefuseManualStop=yes\n[Service]\nExecStart=/bin/sleep infinity\n"
        units.write("ct-refuses.service", unit)
        units.start("ct-refuses.service")
        with pytest.raises(UnitError, match=r"Operation refused, unit ct-refuses\.service may be"):
            units.stop("ct-refuses.service")
        assert units.state("ct-refuses.service").is_running

    def test_a_start_that_takes_too_long_is_left_to_itself(
        self, box: SystemdBox, services: ServiceManager, units: Units
    ) -> None:
        """The call ends at its deadline; systemd continues the job until a stop."""
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
        """A gate may lie in any folder that systemd reads, over a link or not."""
        files.write(
            "/usr/lib/systemd/system/ct-vendor@.service",
            b"[Unit]\nBefore=network.target\n",
            mode=0o644,
        )
        (image / "lib").symlink_to("usr/lib")
        services = OfflineUnits(str(image))
        assert services.state(ctx, "ct-vendor@.service").exists
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
        """Without systemd as PID 1 the error has only that, and names the offline mode."""
        with pytest.raises(UnitError) as caught:
            unbooted.daemon_reload(Context(timeout=60))
        assert str(caught.value) == (
            "this machine was not booted with systemd; for its files alone, use --root and its folder "
            "(Host.offline); for its routes until the next boot, run: hostrouting apply --live CONFIG"
        )
        assert isinstance(caught.value.__cause__, CommandFailedError)

    def test_where_systemd_is_not_installed(self) -> None:
        """Without systemctl the error names the program, once."""
        with pytest.raises(UnitError) as caught:
            Systemctl(("no-such-systemctl",)).daemon_reload(Context(timeout=60))
        assert (
            str(caught.value)
            == "`no-such-systemctl daemon-reload` was not found: is it installed, and on PATH?"
        )


@pytest.mark.parametrize(
    "printed",
    ["", "nonsense", "Id=a.service", 'LoadState=loaded\nDropInPaths="', "Id=a.service\nMainPID=x"],
)
def test_properties_that_cannot_be_read_are_a_refusal_with_a_next_step(printed: str) -> None:
    """A systemctl that is another program, or one that was cut off, was an IndexError, KeyError or
    ValueError.
    """
    services = Systemctl(("sh", "-c", 'printf "%s" "$0"', printed))
    with pytest.raises(UnitError, match=r"cannot read the output of .*systemctl status"):
        services.state(Context(), "a.service")
