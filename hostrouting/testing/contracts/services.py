"""The promises of `ServiceManager`, as tests. See `hostrouting.testing.contracts`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from hostrouting.exceptions import UnitError
from hostrouting.host.units import seconds
from phases import CancelledError, Context

if TYPE_CHECKING:
    from hostrouting.host import FileStore, ServiceManager, UnitState

__all__ = ["LiveServiceManagerContract", "ServiceManagerContract"]

_UNITS: Final = "/etc/systemd/system"


class ServiceManagerContract:
    """The promises of `ServiceManager` for a machine and for an image.

    `files` are those of the machine or image whose units `services` manages; each test uses units that no other uses.
    """

    @pytest.fixture
    def files(self) -> FileStore:
        """The files of the same machine or image."""
        raise NotImplementedError

    @pytest.fixture
    def services(self, files: FileStore) -> ServiceManager:
        """The units under test."""
        raise NotImplementedError

    @pytest.fixture
    def ctx(self) -> Context:
        """Long enough for every start here."""
        return Context(timeout=60)

    def install(self, files: FileStore, name: str, *, unit: str = "", program: str = "/bin/true") -> None:
        """Write a unit file: a oneshot that runs `program`."""
        text = f"[Unit]\n{unit}\n[Service]\nType=oneshot\nExecStart={program}\n"
        files.write(f"{_UNITS}/{name}", text.encode(), mode=0o644)

    def require(self, files: FileStore, unit: str, requirement: str) -> None:
        """Let a unit require another one by a link."""
        files.link(f"{_UNITS}/{unit}.requires/{requirement}", f"{_UNITS}/{requirement}")

    def test_a_link_to_dev_null_is_a_mask(self, services: ServiceManager, files: FileStore, ctx: Context) -> None:
        """A masked unit exists, and says so."""
        files.link(f"{_UNITS}/ct-masked.service", "/dev/null")
        services.daemon_reload(ctx)
        assert services.state(ctx, "ct-masked.service").load_state == "masked"
        assert services.state(ctx, "ct-masked.service").exists

    def test_what_exists_is_known(self, services: ServiceManager, files: FileStore, ctx: Context) -> None:
        """A unit file makes a unit, a template makes instances; a mere name makes nothing."""
        self.install(files, "ct-there.service")
        self.install(files, "ct-many@.service")
        for name in ("ct-there.service", "ct-many@.service", "ct-many@one.service"):
            state = services.state(ctx, name)
            assert (state.name, state.exists, state.load_state) == (name, True, "loaded")
            assert (state.active_state, state.main_pid, state.is_running) == ("inactive", 0, False)
        for name in ("ct-absent.service", "ct-none@.service"):
            state = services.state(ctx, name)
            assert (state.name, state.exists) == (name, False)

    def test_order_is_followed_through_other_units(
        self, services: ServiceManager, files: FileStore, ctx: Context
    ) -> None:
        """If a is before b and b before c, a is before c."""
        self.install(files, "ct-first@.service", unit="Before=ct-second.service")
        self.install(files, "ct-second.service", unit="Before=ct-third.service")
        self.install(files, "ct-third.service")
        ours = {"ct-second.service", "ct-third.service"}
        assert services.ordered_before(ctx, "ct-first@.service") >= ours
        assert services.ordered_before(ctx, "ct-first@x.service") >= ours
        assert ours & services.ordered_before(ctx, "ct-second.service") == {"ct-third.service"}
        assert not ours & services.ordered_before(ctx, "ct-third.service")

    def test_order_may_come_from_a_drop_in(self, services: ServiceManager, files: FileStore, ctx: Context) -> None:
        """A drop-in adds to the unit file, a template's for every instance, and can remove nothing."""
        self.install(files, "ct-dropped@.service", unit="Before=ct-fourth.service")
        text = "# [Other]\n[Unit]\nBefore=\nBefore = ct-fifth.service \\\n  ct-sixth.service\n;Before=ct-no.service\n"
        files.write(f"{_UNITS}/ct-dropped@.service.d/10-x.conf", text.encode(), mode=0o644)
        waiting = services.ordered_before(ctx, "ct-dropped@.service")
        assert waiting >= {"ct-fourth.service", "ct-fifth.service", "ct-sixth.service"}
        assert "ct-no.service" not in waiting

    def test_of_two_drop_ins_the_nearer_counts(self, services: ServiceManager, files: FileStore, ctx: Context) -> None:
        """An instance's drop-in replaces the template's of the same name, and /etc goes before /run."""
        self.install(files, "ct-near@.service")
        for folder, name in (
            ("/etc/systemd/system/ct-near@.service.d", "ct-template.service"),
            ("/etc/systemd/system/ct-near@one.service.d", "ct-instance.service"),
            ("/run/systemd/system/ct-near@.service.d", "ct-run.service"),
        ):
            files.write(f"{folder}/10-x.conf", f"[Unit]\nBefore={name}\n".encode(), mode=0o644)
        candidates = {"ct-template.service", "ct-instance.service", "ct-run.service"}
        assert candidates & services.ordered_before(ctx, "ct-near@one.service") == {"ct-instance.service"}
        assert candidates & services.ordered_before(ctx, "ct-near@two.service") == {"ct-template.service"}

    def test_settings_end_up_as_the_drop_ins_say(
        self, services: ServiceManager, files: FileStore, ctx: Context
    ) -> None:
        """The last assignment counts; commands are one a line, and an empty assignment starts afresh."""
        text = b"[Service]\nType=oneshot\nExecStart=/bin/true\nExecStartPre=/bin/true one\nTimeoutStartSec=20\n"
        files.write(f"{_UNITS}/ct-set@.service", text, mode=0o644)
        names = ("ExecStartPre", "TimeoutStartSec", "RootDirectory")
        before = services.settings(ctx, "ct-set@.service", *names)
        assert "/bin/true one" in before["ExecStartPre"]
        assert (seconds(before["TimeoutStartSec"]), before["RootDirectory"]) == (20, "")
        drop_in = (
            b"[Service]\nExecStartPre=\nExecStartPre=+/bin/true two\nExecStartPre=/bin/true three\nTimeoutSec=1min 5s\n"
        )
        files.write(f"{_UNITS}/ct-set@.service.d/10-x.conf", drop_in, mode=0o644)
        services.daemon_reload(ctx)
        after = services.settings(ctx, "ct-set@one.service", *names)
        commands = after["ExecStartPre"].splitlines()
        assert [word in line for word, line in zip(("two", "three"), commands, strict=True)] == [True, True]
        assert seconds(after["TimeoutStartSec"]) == 65

    def test_settings_of_what_does_not_exist(self, services: ServiceManager, ctx: Context) -> None:
        """Nothing changed, which is no error."""
        assert services.settings(ctx, "ct-absent.service", "ExecStartPre") == {"ExecStartPre": ""}

    def test_nothing_is_done_for_one_who_gave_up(self, services: ServiceManager, files: FileStore) -> None:
        """A cancelled context ends every method before it does anything."""
        self.install(files, "ct-late.service")
        ctx = Context()
        ctx.cancel("enough")
        for call in (
            lambda: services.daemon_reload(ctx),
            lambda: services.start(ctx, "ct-late.service"),
            lambda: services.stop(ctx, "ct-late.service"),
            lambda: services.state(ctx, "ct-late.service"),
            lambda: services.running(ctx, "ct-late.service"),
            lambda: services.ordered_before(ctx, "ct-late.service"),
            lambda: services.settings(ctx, "ct-late.service", "ExecStart"),
        ):
            with pytest.raises(CancelledError, match="enough"):
                call()


class LiveServiceManagerContract(ServiceManagerContract):
    """The promises of `ServiceManager` for a machine on which systemd runs."""

    def install_daemon(self, files: FileStore, name: str) -> None:
        """Write a unit file: a service that runs until it is stopped."""
        files.write(f"{_UNITS}/{name}", b"[Service]\nExecStart=/bin/sleep infinity\n", mode=0o644)

    def start_daemon(self, services: ServiceManager, files: FileStore, ctx: Context, name: str) -> UnitState:
        """Run a service."""
        self.install_daemon(files, name)
        services.start(ctx, name)
        return services.state(ctx, name)

    @pytest.mark.parametrize(
        ("setting", "expected"), [("", ("inactive", "dead")), ("RemainAfterExit=yes", ("active", "exited"))]
    )
    def test_a_oneshot_runs_to_its_end(
        self, services: ServiceManager, files: FileStore, ctx: Context, setting: str, expected: tuple[str, str]
    ) -> None:
        """After its start a oneshot has ended with success, and is active only if it says so."""
        self.install(files, "ct-oneshot.service", program=f"/bin/true\n{setting}")
        services.start(ctx, "ct-oneshot.service")
        state = services.state(ctx, "ct-oneshot.service")
        assert ((state.active_state, state.sub_state), state.result, state.main_pid) == (expected, "success", 0)
        services.stop(ctx, "ct-oneshot.service")

    def test_a_oneshot_that_fails_is_an_error(self, services: ServiceManager, files: FileStore, ctx: Context) -> None:
        """The error has the command, the status, systemd's words and the next step; the state has the failure."""
        self.install(files, "ct-fails.service", program="/bin/false")
        with pytest.raises(
            UnitError, match=r"(?s)systemctl .*start .*ended with status 1: .*Job for .* failed"
        ) as caught:
            services.start(ctx, "ct-fails.service")
        assert "see: journalctl -b -u ct-fails.service" in str(caught.value).splitlines()
        state = services.state(ctx, "ct-fails.service")
        assert (state.active_state, state.result) == ("failed", "exit-code")

    def test_what_does_not_exist_cannot_start(self, services: ServiceManager, ctx: Context) -> None:
        """The error has the unit's name in systemd's words."""
        with pytest.raises(UnitError, match=r"ended with status 5: .*Unit ct-absent\.service not found"):
            services.start(ctx, "ct-absent.service")

    def test_stopping_forgets_a_failure(self, services: ServiceManager, files: FileStore, ctx: Context) -> None:
        """After stop systemd has forgotten a failed unit, even if its file is gone meanwhile."""
        self.install(files, "ct-forgotten.service", program="/bin/false")
        with pytest.raises(UnitError):
            services.start(ctx, "ct-forgotten.service")
        files.remove(f"{_UNITS}/ct-forgotten.service")
        services.daemon_reload(ctx)
        assert services.state(ctx, "ct-forgotten.service").active_state == "failed"
        services.stop(ctx, "ct-forgotten.service")
        state = services.state(ctx, "ct-forgotten.service")
        assert (state.active_state, state.exists) == ("inactive", False)

    def test_stopping_what_does_not_run_is_fine(self, services: ServiceManager, files: FileStore, ctx: Context) -> None:
        """Neither an inactive unit nor an absent one is an error."""
        self.install(files, "ct-rests.service")
        services.stop(ctx, "ct-rests.service")
        services.stop(ctx, "ct-absent.service")

    def test_a_service_runs_until_it_is_stopped(self, services: ServiceManager, files: FileStore, ctx: Context) -> None:
        """It has a process; a second start leaves it alone, a stop ends it."""
        state = self.start_daemon(services, files, ctx, "ct-daemon.service")
        assert (state.active_state, state.sub_state, state.is_running) == ("active", "running", True)
        assert state.main_pid > 0
        services.start(ctx, "ct-daemon.service")
        assert services.state(ctx, "ct-daemon.service").main_pid == state.main_pid
        services.stop(ctx, "ct-daemon.service")
        stopped = services.state(ctx, "ct-daemon.service")
        assert (stopped.active_state, stopped.main_pid) == ("inactive", 0)

    def test_running_instances_are_found_by_their_template(
        self, services: ServiceManager, files: FileStore, ctx: Context
    ) -> None:
        """Exactly the running instances, in order; a unit's full name finds the unit."""
        self.install_daemon(files, r"ct-x\x2dy@.service")
        self.install_daemon(files, "ct-x@.service")
        for instance in ("two", "one", "over"):
            services.start(ctx, rf"ct-x\x2dy@{instance}.service")
        services.start(ctx, "ct-x@other.service")
        services.stop(ctx, r"ct-x\x2dy@over.service")
        found = services.running(ctx, r"ct-x\x2dy@.service")
        assert [state.name for state in found] == [r"ct-x\x2dy@one.service", r"ct-x\x2dy@two.service"]
        assert all(state.main_pid > 0 for state in found)
        assert services.running(ctx, r"ct-x\x2dy@one.service") == found[:1]
        assert services.running(ctx, r"ct-x\x2dy@over.service") == []
        assert services.running(ctx, "ct-none@.service") == []

    def test_what_is_required_runs_first(self, services: ServiceManager, files: FileStore, ctx: Context) -> None:
        """A unit is refused while one that is RequiredBy= it fails, and starts again when that succeeds."""
        self.install(files, "ct-gate.service")
        self.install(files, "ct-check.service", unit="Before=ct-gate.service", program="/bin/false")
        self.require(files, "ct-gate.service", "ct-check.service")
        services.daemon_reload(ctx)
        assert "ct-check.service" in services.state(ctx, "ct-gate.service").requires
        with pytest.raises(UnitError, match=r"ended with status 1: A dependency job for ct-gate\.service failed"):
            services.start(ctx, "ct-gate.service")
        self.install(files, "ct-check.service", unit="Before=ct-gate.service")
        services.daemon_reload(ctx)
        services.start(ctx, "ct-gate.service")

    def test_a_missing_requirement_refuses_the_start(
        self, services: ServiceManager, files: FileStore, ctx: Context
    ) -> None:
        """The gate holds if a unit file was removed by hand, and systemd names it."""
        self.install(files, "ct-needs.service", unit="Requires=ct-absent.service\nAfter=ct-absent.service")
        with pytest.raises(UnitError, match=r"Unit ct-absent\.service not found"):
            services.start(ctx, "ct-needs.service")

    def test_files_and_links_count_once_they_are_read(
        self, services: ServiceManager, files: FileStore, ctx: Context
    ) -> None:
        """A running unit follows what systemd read: a newer file shows, a new drop-in and link after a reload."""
        before = self.start_daemon(services, files, ctx, "ct-changed.service")
        assert not before.needs_reload
        self.install(files, "ct-extension.service")
        drop_in = f"{_UNITS}/ct-changed.service.d/10-x.conf"
        files.write(drop_in, b"[Unit]\nDescription=new\n", mode=0o644)
        self.require(files, "ct-changed.service", "ct-extension.service")
        stale = services.state(ctx, "ct-changed.service")
        assert (stale.drop_ins, "ct-extension.service" in stale.requires) == (frozenset(), False)
        files.write(f"{_UNITS}/ct-changed.service", b"[Service]\nExecStart=/bin/sleep 1000000\n", mode=0o644)
        assert services.state(ctx, "ct-changed.service").needs_reload
        services.daemon_reload(ctx)
        after = services.state(ctx, "ct-changed.service")
        assert (after.drop_ins, "ct-extension.service" in after.requires) == (frozenset({drop_in}), True)
        assert (after.needs_reload, after.main_pid) == (False, before.main_pid)

    def test_a_template_shows_what_its_next_instance_gets(
        self, services: ServiceManager, files: FileStore, ctx: Context
    ) -> None:
        """Drop-ins of a template are those of an instance that is not loaded yet."""
        self.install_daemon(files, "ct-gated@.service")
        drop_in = f"{_UNITS}/ct-gated@.service.d/10-x.conf"
        files.write(drop_in, b"[Unit]\nDescription=new\n", mode=0o644)
        services.daemon_reload(ctx)
        assert services.state(ctx, "ct-gated@.service").drop_ins == {drop_in}
        assert services.state(ctx, "ct-gated@one.service").drop_ins == {drop_in}

    def test_names_with_a_backslash(self, services: ServiceManager, files: FileStore, ctx: Context) -> None:
        """Names with the escape for a dash are right in requirements, in paths of drop-ins, and in orders."""
        name = r"ct-dash@foo\x2dbar.service"
        self.install_daemon(files, "ct-dash@.service")
        files.write(
            f"{_UNITS}/{name}.d/10-x.conf", f"[Unit]\nBefore={name.replace('foo', 'new')}\n".encode(), mode=0o644
        )
        self.install(files, "ct-dash-needs.service", unit=rf"Requires={name}")
        services.daemon_reload(ctx)
        assert services.state(ctx, name).drop_ins == {f"{_UNITS}/{name}.d/10-x.conf"}
        assert name in services.state(ctx, "ct-dash-needs.service").requires
        assert name.replace("foo", "new") in services.ordered_before(ctx, name)
