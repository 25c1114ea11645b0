"""The promises of `ServiceManager`, as tests."""

from functools import partial

import pytest
from support.patience import wait_until

from hostrouting.exceptions import UnitError
from hostrouting.host import FileStore, ServiceManager, UnitState
from hostrouting.host.units import seconds
from phases import CancelledError, Context

_UNITS = "/etc/systemd/system"


class Units:
    """The units of a machine or an image, to arrange and to read."""

    def __init__(self, services: ServiceManager, files: FileStore, ctx: Context) -> None:
        self.files = files
        self.reload = partial(services.daemon_reload, ctx)
        self.start = partial(services.start, ctx)
        self.start_soon = partial(services.start, ctx, wait=False)
        self.stop = partial(services.stop, ctx)
        self.state = partial(services.state, ctx)
        self.states = partial(services.states, ctx)
        self.loaded = partial(services.loaded, ctx)
        self.ordered_before = partial(services.ordered_before, ctx)
        self.settings = partial(services.settings, ctx)

    def running(self, name: str) -> list[UnitState]:
        """Return those that are loaded and run."""
        return [state for state in self.loaded(name) if state.is_running]

    def write(self, name: str, text: str) -> None:
        """Write a unit file."""
        self.files.write(f"{_UNITS}/{name}", text.encode(), mode=0o644)

    def drop_in(self, name: str, text: str, *, folder: str = _UNITS) -> str:
        """Write a drop-in, and return its path."""
        path = f"{folder}/{name}.d/10-x.conf"
        self.files.write(path, text.encode(), mode=0o644)
        return path

    def install(self, name: str, *, unit: str = "", program: str = "/bin/true") -> None:
        """Write a unit file: a oneshot that runs `program`."""
        self.write(name, f"[Unit]\n{unit}\n[Service]\nType=oneshot\nExecStart={program}\n")

    def install_daemon(self, name: str) -> None:
        """Write a unit file: a service that runs until it is stopped."""
        self.write(name, "[Service]\nExecStart=/bin/sleep infinity\n")

    def start_daemon(self, name: str) -> UnitState:
        """Run a service."""
        self.install_daemon(name)
        self.start(name)
        return self.state(name)

    def require(self, unit: str, requirement: str) -> None:
        """Let a unit require another one by a link."""
        self.files.link(f"{_UNITS}/{unit}.requires/{requirement}", f"{_UNITS}/{requirement}")


class ServiceManagerContract:
    """The promises of `ServiceManager` for a machine and for an image.

    The fixtures `files` and `services` of a subclass are those of one machine or image; each test
    uses units that no other uses.
    """

    @pytest.fixture
    def ctx(self) -> Context:
        """Long enough for every start here."""
        return Context(timeout=60)

    @pytest.fixture
    def units(self, services: ServiceManager, files: FileStore, ctx: Context) -> Units:
        """The same units, as the tests arrange and read them."""
        return Units(services, files, ctx)

    def test_a_link_to_dev_null_is_a_mask(self, units: Units) -> None:
        """A masked unit exists, and its state is masked."""
        units.files.link(f"{_UNITS}/ct-masked.service", "/dev/null")
        units.reload()
        assert units.state("ct-masked.service").load_state == "masked"
        assert units.state("ct-masked.service").exists

    def test_existing_units_are_found(self, units: Units) -> None:
        """A unit exists if it has a file, and an instance if its template has one; a mere name does
        not exist.
        """
        units.install("ct-there.service")
        units.install("ct-many@.service")
        for name in ("ct-there.service", "ct-many@.service", "ct-many@one.service"):
            state = units.state(name)
            assert (state.name, state.exists, state.load_state) == (name, True, "loaded")
            assert (state.active_state, state.main_pid, state.is_running) == ("inactive", 0, False)
        for name in ("ct-absent.service", "ct-none@.service"):
            state = units.state(name)
            assert (state.name, state.exists) == (name, False)

    def test_states_of_several_units_are_in_their_order(self, units: Units) -> None:
        """The states of several units are returned in the order of the names, also of templates and
        of absent units.
        """
        units.install("ct-one.service")
        units.install("ct-more@.service")
        names = ("ct-one.service", "ct-lacks.service", "ct-more@.service")
        assert units.states(*names) == [units.state(name) for name in names]
        assert [state.exists for state in units.states(*names)] == [True, False, True]
        assert units.states() == []

    def test_a_link_enables_a_unit(self, units: Units) -> None:
        """A unit is enabled by a link in a `.wants` or `.requires` folder; a masked unit, an absent
        one, or a mere unit file is not enabled.
        """
        units.install("ct-idle.service")
        for name in ("ct-enabled.service", "ct-needed.service", "ct-enabled-masked.service"):
            units.install(name)
        for folder, name in (
            ("ct-any.target.wants", "ct-enabled.service"),
            ("ct-any.target.requires", "ct-needed.service"),
            ("ct-any.target.wants", "ct-enabled-masked.service"),
            ("ct-any.target.wants", "ct-enabled-absent.service"),
        ):
            units.files.link(f"{_UNITS}/{folder}/{name}", f"{_UNITS}/{name}")
        units.files.remove(f"{_UNITS}/ct-enabled-masked.service")
        units.files.link(f"{_UNITS}/ct-enabled-masked.service", "/dev/null")
        units.reload()
        enabled = {
            name: units.state(f"ct-{name}.service").is_enabled
            for name in ("enabled", "needed", "idle", "enabled-masked", "enabled-absent")
        }
        assert enabled == {
            "enabled": True,
            "needed": True,
            "idle": False,
            "enabled-masked": False,
            "enabled-absent": False,
        }

    def test_order_is_followed_through_other_units(self, units: Units) -> None:
        """A unit that is before a second one is also before a third that the second is before."""
        units.install("ct-first@.service", unit="Before=ct-second.service")
        units.install("ct-second.service", unit="Before=ct-third.service")
        units.install("ct-third.service")
        own = {"ct-second.service", "ct-third.service"}
        assert units.ordered_before("ct-first@.service") >= own
        assert units.ordered_before("ct-first@x.service") >= own
        assert own & units.ordered_before("ct-second.service") == {"ct-third.service"}
        assert not own & units.ordered_before("ct-third.service")

    @pytest.mark.parametrize("word", ["no", "false", "0", "off"])
    def test_a_target_waits_for_what_it_starts(self, units: Units, word: str) -> None:
        """A target waits for the units that it starts, except one with DefaultDependencies=no, in
        each of systemd's words.
        """
        goal = f"ct-goal-{word}.target"
        names = {f"ct-usual-{word}.service": "yes", f"ct-early-{word}.service": word}
        units.write(goal, f"[Unit]\nWants={' '.join(names)}\n")
        for name, value in names.items():
            units.install(name, unit=f"Wants={goal}\nDefaultDependencies={value}")
        assert [goal in units.ordered_before(name) for name in names] == [True, False]

    def test_order_may_come_from_a_drop_in(self, units: Units) -> None:
        """A drop-in of a template adds to the order of the unit file, and cannot remove from it."""
        units.install("ct-dropped@.service", unit="Before=ct-fourth.service")
        text = "# [Other]\n[Unit]\nBefore=\nBefore = ct-fifth.service \\\n  ct-sixth.service\n;Before=ct-no.service\n"
        units.drop_in("ct-dropped@.service", text)
        waiting = units.ordered_before("ct-dropped@.service")
        assert waiting >= {"ct-fourth.service", "ct-fifth.service", "ct-sixth.service"}
        assert "ct-no.service" not in waiting

    def test_of_two_drop_ins_the_nearer_counts(self, units: Units) -> None:
        """An instance's drop-in replaces the template's of the same name, and /etc goes before
        /run.
        """
        units.install("ct-near@.service")
        for folder, unit, name in (
            (_UNITS, "ct-near@.service", "ct-template.service"),
            (_UNITS, "ct-near@one.service", "ct-instance.service"),
            ("/run/systemd/system", "ct-near@.service", "ct-run.service"),
        ):
            units.drop_in(unit, f"[Unit]\nBefore={name}\n", folder=folder)
        candidates = {"ct-template.service", "ct-instance.service", "ct-run.service"}
        assert candidates & units.ordered_before("ct-near@one.service") == {"ct-instance.service"}
        assert candidates & units.ordered_before("ct-near@two.service") == {"ct-template.service"}

    def test_the_file_of_an_instance_goes_before_its_template(self, units: Units) -> None:
        """The file of an instance replaces its template, even if the template is in a folder of a
        higher precedence.
        """
        units.install("ct-own@.service", unit="Before=ct-template.service")
        text = b"[Unit]\nBefore=ct-instance.service\n[Service]\nExecStart=/bin/true\n"
        units.files.write("/run/systemd/system/ct-own@one.service", text, mode=0o644)
        candidates = {"ct-template.service", "ct-instance.service"}
        assert candidates & units.ordered_before("ct-own@one.service") == {"ct-instance.service"}

    def test_drop_ins_decide_the_settings(self, units: Units) -> None:
        """The last assignment of a setting decides; commands are returned one a line, and an empty
        assignment clears those before it.
        """
        text = "[Service]\nType=oneshot\nExecStart=/bin/true\nExecStartPre=/bin/true one\nTimeoutStartSec=20\n"
        units.write("ct-set@.service", text)
        names = ("ExecStartPre", "TimeoutStartSec", "RootDirectory")
        before = units.settings("ct-set@.service", *names)
        assert "/bin/true one" in before["ExecStartPre"]
        assert (seconds(before["TimeoutStartSec"]), before["RootDirectory"]) == (20, "")
        commands = "ExecStartPre=\nExecStartPre=+/bin/true two\nExecStartPre=/bin/true three\n"
        units.drop_in("ct-set@.service", f"[Service]\n{commands}TimeoutSec=1min 5s\n")
        units.reload()
        after = units.settings("ct-set@one.service", *names)
        second, third = after["ExecStartPre"].splitlines()
        assert "two" in second
        assert "three" in third
        assert seconds(after["TimeoutStartSec"]) == 65

    def test_nothing_is_done_for_one_who_gave_up(
        self, services: ServiceManager, files: FileStore
    ) -> None:
        """A cancelled context ends every method before it does anything."""
        ctx = Context()
        ctx.cancel("enough")
        late = Units(services, files, ctx)
        late.install("ct-late.service")
        with pytest.raises(CancelledError, match="enough"):
            late.reload()
        for call in (
            late.start,
            late.stop,
            late.state,
            late.states,
            late.loaded,
            late.ordered_before,
            late.settings,
        ):
            with pytest.raises(CancelledError, match="enough"):
                call("ct-late.service")


class LiveServiceManagerContract(ServiceManagerContract):
    """The promises of `ServiceManager` for a machine on which systemd runs."""

    @pytest.mark.parametrize(
        ("setting", "expected"),
        [("", ("inactive", "dead")), ("RemainAfterExit=yes", ("active", "exited"))],
    )
    def test_a_oneshot_runs_to_its_end(
        self, units: Units, setting: str, expected: tuple[str, str]
    ) -> None:
        """A oneshot that was started has ended with success, and stays active only with
        RemainAfterExit=.
        """
        units.install("ct-oneshot.service", program=f"/bin/true\n{setting}")
        units.start("ct-oneshot.service")
        state = units.state("ct-oneshot.service")
        assert ((state.active_state, state.sub_state), state.result, state.main_pid) == (
            expected,
            "success",
            0,
        )
        units.stop("ct-oneshot.service")

    def test_a_oneshot_that_fails_is_an_error(self, units: Units) -> None:
        """The start of a oneshot that fails raises an error with the command, systemd's words and
        the next step; the state has the failure.
        """
        units.install("ct-fails.service", program="/bin/false")
        with pytest.raises(UnitError, match=r"(?s)systemctl .*start .*Job for .* failed") as caught:
            units.start("ct-fails.service")
        assert "see: journalctl -b -u ct-fails.service" in str(caught.value).splitlines()
        state = units.state("ct-fails.service")
        assert (state.active_state, state.result) == ("failed", "exit-code")

    def test_a_service_that_fails_is_no_error_of_its_start(self, units: Units) -> None:
        """The start of a service succeeds once its process has begun, even if the process fails at
        once.
        """
        units.write("ct-fails-later.service", "[Service]\nExecStart=/bin/false\n")
        units.start("ct-fails-later.service")
        wait_until(
            lambda: units.state("ct-fails-later.service").active_state == "failed", "the failure"
        )
        assert units.state("ct-fails-later.service").result == "exit-code"

    def test_a_start_that_is_not_waited_for(self, units: Units) -> None:
        """A start without waiting raises no error if the unit or one that it requires fails, and
        raises one if the unit is absent, or one that it requires is absent or masked.
        """
        units.install("ct-soon.service", program="/bin/false")
        units.start_soon("ct-soon.service")
        units.install("ct-late.service", unit="Requires=ct-soon.service\nAfter=ct-soon.service")
        units.start_soon("ct-late.service")
        units.install(
            "ct-soon-needs.service", unit="Requires=ct-never.service\nAfter=ct-never.service"
        )
        for name in ("ct-never.service", "ct-soon-needs.service"):
            with pytest.raises(UnitError, match=r"Unit ct-never\.service not found"):
                units.start_soon(name)
        units.files.link(f"{_UNITS}/ct-soon-masked.service", "/dev/null")
        units.install("ct-soon-barred.service", unit="Requires=ct-soon-masked.service")
        with pytest.raises(UnitError, match=r"Unit ct-soon-masked\.service is masked"):
            units.start_soon("ct-soon-barred.service")
        units.install_daemon("ct-soon-up.service")
        units.start_soon("ct-soon-up.service")
        # Both starts have the same job.
        units.start("ct-soon-up.service")
        assert units.state("ct-soon-up.service").is_running

    def test_stopping_forgets_a_failure(self, units: Units) -> None:
        """A stop makes systemd forget a failed unit, even if its file was removed meanwhile."""
        units.install("ct-forgotten.service", program="/bin/false")
        with pytest.raises(UnitError):
            units.start("ct-forgotten.service")
        units.files.remove(f"{_UNITS}/ct-forgotten.service")
        units.reload()
        assert units.state("ct-forgotten.service").active_state == "failed"
        units.stop("ct-forgotten.service")
        state = units.state("ct-forgotten.service")
        assert (state.active_state, state.exists) == ("inactive", False)

    def test_a_stop_stops_what_requires_the_unit(self, units: Units) -> None:
        """A stop of a unit stops the units that require it, even if the unit itself has ended
        already.
        """
        units.install("ct-ended.service")
        ordered = "Requires=ct-ended.service\nAfter=ct-ended.service"
        units.install("ct-on.service", unit=ordered, program="/bin/true\nRemainAfterExit=yes")
        units.start("ct-on.service")
        units.stop("ct-ended.service")
        assert units.state("ct-on.service").active_state == "inactive"

    def test_a_service_runs_until_it_is_stopped(self, units: Units) -> None:
        """A started service has a process, which a second start leaves alone and a stop ends."""
        state = units.start_daemon("ct-daemon.service")
        assert (state.active_state, state.sub_state, state.is_running) == (
            "active",
            "running",
            True,
        )
        assert state.main_pid > 0
        units.start("ct-daemon.service")
        assert units.state("ct-daemon.service").main_pid == state.main_pid
        units.stop("ct-daemon.service")
        stopped = units.state("ct-daemon.service")
        assert (stopped.active_state, stopped.main_pid) == ("inactive", 0)

    def test_running_instances_are_found_by_their_template(self, units: Units) -> None:
        """The running instances of a template are returned in order, and no others; a unit's full
        name returns that unit.
        """
        units.install_daemon(r"ct-x\x2dy@.service")
        units.install_daemon("ct-x@.service")
        for instance in ("two", "one", "over"):
            units.start(rf"ct-x\x2dy@{instance}.service")
        units.start("ct-x@other.service")
        units.stop(r"ct-x\x2dy@over.service")
        found = units.running(r"ct-x\x2dy@.service")
        assert [state.name for state in found] == [
            r"ct-x\x2dy@one.service",
            r"ct-x\x2dy@two.service",
        ]
        assert all(state.main_pid > 0 for state in found)
        assert units.running(r"ct-x\x2dy@one.service") == found[:1]
        assert units.running(r"ct-x\x2dy@over.service") == []
        assert units.running("ct-none@.service") == []

    def test_a_unit_that_failed_is_loaded_and_does_not_run(self, units: Units) -> None:
        """A failed instance is returned for its template as loaded and not as running, until a stop
        resets the failure.
        """
        units.install("ct-broken@.service", program="/bin/false")
        with pytest.raises(UnitError):
            units.start("ct-broken@one.service")
        [state] = units.loaded("ct-broken@.service")
        assert (state.name, state.active_state) == ("ct-broken@one.service", "failed")
        assert units.running("ct-broken@.service") == []
        units.stop("ct-broken@one.service")
        assert units.loaded("ct-broken@.service") == []

    def test_what_is_required_runs_first(self, units: Units) -> None:
        """A unit does not start while a unit that it requires fails, and starts again once that one
        succeeds.
        """
        units.install("ct-gate.service")
        units.install("ct-check.service", unit="Before=ct-gate.service", program="/bin/false")
        units.require("ct-gate.service", "ct-check.service")
        units.reload()
        assert "ct-check.service" in units.state("ct-gate.service").requires
        with pytest.raises(UnitError, match=r"A dependency job for ct-gate\.service failed"):
            units.start("ct-gate.service")
        units.install("ct-check.service", unit="Before=ct-gate.service")
        units.reload()
        units.start("ct-gate.service")

    def test_files_and_links_count_once_they_are_read(self, units: Units) -> None:
        """A newer file of a running unit shows at once; a new drop-in or link shows after a
        reload.
        """
        before = units.start_daemon("ct-changed.service")
        assert not before.needs_reload
        units.install("ct-extension.service")
        drop_in = units.drop_in("ct-changed.service", "[Unit]\nDescription=new\n")
        units.require("ct-changed.service", "ct-extension.service")
        stale = units.state("ct-changed.service")
        assert (stale.drop_ins, "ct-extension.service" in stale.requires) == (frozenset(), False)
        units.write("ct-changed.service", "[Service]\nExecStart=/bin/sleep 1000000\n")
        assert units.state("ct-changed.service").needs_reload
        units.reload()
        after = units.state("ct-changed.service")
        assert (after.drop_ins, "ct-extension.service" in after.requires) == (
            frozenset({drop_in}),
            True,
        )
        assert (after.needs_reload, after.main_pid) == (False, before.main_pid)

    def test_a_template_shows_what_its_next_instance_gets(self, units: Units) -> None:
        """An instance that is not loaded yet has the drop-ins of its template."""
        units.install_daemon("ct-gated@.service")
        drop_in = units.drop_in("ct-gated@.service", "[Unit]\nDescription=new\n")
        units.reload()
        assert units.state("ct-gated@.service").drop_ins == {drop_in}
        assert units.state("ct-gated@one.service").drop_ins == {drop_in}

    def test_names_with_a_backslash(self, units: Units) -> None:
        """Unit names with an escaped dash are right in requirements, in paths of drop-ins, and in
        orders.
        """
        name = r"ct-dash@foo\x2dbar.service"
        units.install_daemon("ct-dash@.service")
        drop_in = units.drop_in(name, f"[Unit]\nBefore={name.replace('foo', 'new')}\n")
        units.install("ct-dash-needs.service", unit=rf"Requires={name}")
        units.reload()
        assert units.state(name).drop_ins == {drop_in}
        assert name in units.state("ct-dash-needs.service").requires
        assert name.replace("foo", "new") in units.ordered_before(name)
