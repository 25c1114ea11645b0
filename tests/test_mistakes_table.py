"""The error of what programmers write by mistake names the argument, its value and the correct
form.
"""

import re
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest
from attrs import evolve

import hostrouting
import hostrouting.exceptions
import hostrouting.fleet
import hostrouting.host
import hostrouting.host.netlink
import hostrouting.host.pyroute
import hostrouting.testing
import phases
import phases.hosting
import phases.testing
from hostrouting import HostRoutingConfig
from hostrouting.testing import MemoryBackend
from phases import Context, Task, task

#: A call, and below it what its error must name: the argument, the value and the correct form.
TABLE = r"""
task(None)
    a task cannot be named ~ None ~ give a text
task("a", undo="x")
    undo of task 'a' ~ got 'x' ~ must be a function
task("a", plan=[])
    plan of task 'a' ~ got \[\] ~ must be a function
task("a")("b")
    do of task 'a' ~ got 'b' ~ must be a function
task("a b/c")
    a task cannot be named ~ 'a b/c' ~ use a b-c
task("")
    a task cannot be named ~ '' ~ give a text
Serial(name="certs/ca")
    a Serial cannot be named ~ 'certs/ca': the slash parts the names of a path ~ use certs-ca
task(print)
    needs a name ~ @task ~ write @task\("print"\)
task("a")(lambda self, ctx: None)
    do of task 'a' ~ the context alone ~ write task\("a"\)\(self\.<lambda>\)
Serial([t])
    is a list, not a task ~ \[<task a>\] ~ write Serial\(\*tasks\)
Serial(t, t)
    two tasks named ~ 'a' ~ rename one
Serial(t, name=1)
    a Serial cannot be named ~ 1 ~ give a text
Parallel(name="")
    a Parallel cannot be named ~ '' ~ give a text
Parallel([t])
    is a list, not a task ~ \[<task a>.*\] ~ write Serial\(\*tasks\)
run([t])
    is a list, not a task ~ \[<task a>.*\] ~ write Serial\(\*tasks\)
run(t, 30)
    ctx must be a Context ~ got 30 ~ write ctx=
run(t, timeout=-1)
    timeout ~ got -1 ~ at least 0 seconds
run(t, skip=["b"])
    no task is named ~ 'b' ~ the tasks are: a
run(t, skip=[3])
    no task is named ~ 3 ~ the tasks are: a
run(t, only=["b"])
    no task is named ~ 'b' ~ the tasks are: a
run(t, observer=[])
    the observer ~ got \[\] ~ must be a function
execute(t, 5)
    ctx must be a Context ~ got 5 ~ write ctx=
execute([t, t])
    is a list, not a task ~ \[<task a>.*\] ~ write Serial\(\*tasks\)
plan(t, 30)
    ctx must be a Context ~ got 30 ~ write ctx=
undo(t, 3)
    ctx must be a Context ~ got 3 ~ write ctx=
with_timeout(t, -1)
    seconds ~ got -1 ~ at least 0 seconds
with_timeout(t, 5, share=0)
    share ~ got 0 ~ more than 0 and at most 1
with_timeout(t, 5, share=float("nan"))
    share ~ got nan ~ more than 0 and at most 1
with_timeout(t, 5, share="1")
    share ~ got '1' ~ more than 0 and at most 1
with_timeout(t, 5, share=1.5)
    share ~ got 1.5 ~ more than 0 and at most 1
with_retry(t, attempts=0)
    attempts ~ got 0 ~ a whole number of at least 1
with_retry(t, attempts="3")
    attempts ~ got '3' ~ a whole number of at least 1
with_retry(t, attempts=2, backoff=-1)
    backoff ~ got -1 ~ at least 0 seconds
with_retry(t, attempts=2, retry_on=OSError)
    retry_on ~ got <class 'OSError'> ~ a tuple of exception classes ~ write retry_on=\(OSError,\)
tolerate(t, on_failure="x")
    on_failure of task 'a' ~ got 'x' ~ must be a function
Context(timeout=-1)
    timeout ~ got -1 ~ at least 0 seconds
Context(timeout=float("nan"))
    timeout ~ got nan ~ at least 0 seconds
Context().sleep(-1)
    seconds ~ got -1 ~ at least 0 seconds
Context().child(timeout=-1)
    timeout ~ got -1 ~ at least 0 seconds
Context().record(("+", "a"))
    is not a Change ~ \('\+', 'a'\) ~ ctx\.record\(Change
Context().record("x")
    is not a Change ~ 'x' ~ ctx\.record\(Change
Context().record(Change("+", "a"), undo=3)
    undo of '\+ a' ~ got 3 ~ a function of the context
run_command(Context(), "echo a")
    argv ~ got 'echo a' ~ a list of a program and its arguments
run_command(Context(), [])
    argv ~ got \[\] ~ a list of a program and its arguments
HostRoutingConfig.from_json({})
    document ~ got \{\} ~ a mapping is for from_mapping
HostRoutingConfig.from_mapping("{}")
    mapping ~ got '\{\}' ~ JSON text is for from_json
Route.parse("10.0.0.0/8", dev="eth0", metric=-1)
    metric ~ -1 ~ from 0 to 4294967295
Route.parse("10.0.0.0/8", dev="eth0", kind="blackhol")
    kind ~ 'blackhol' ~ unicast, .*blackhole
run(t, timeout="30")
    timeout must be ~ got '30' ~ write timeout=30
run(t, skip="a")
    skip must be ~ got 'a' ~ write skip=\['a'\]
run(t, skip="b")
    skip must be ~ got 'b' ~ write skip=\['b'\]
run(t, only="a")
    only must be ~ got 'a' ~ write only=\['a'\]
with_timeout(t, "5")
    seconds must be ~ got '5' ~ write seconds=30
with_timeout(t, None)
    seconds must be ~ got None ~ write seconds=30
with_timeout(5, t)
    seconds must be ~ got <task a> ~ write seconds=30
with_retry(t, attempts=3, backoff="1")
    backoff must be ~ got '1' ~ write backoff=30
Context(timeout="30")
    timeout must be ~ got '30' ~ write timeout=30
Context().sleep("1")
    seconds must be ~ got '1' ~ write seconds=30
Context().sleep(None)
    seconds must be ~ got None ~ write seconds=30
Context().child("3")
    timeout must be ~ got '3' ~ write timeout=30
Context().child(timeout="3")
    timeout must be ~ got '3' ~ write timeout=30
cancel_on_signals(t).__enter__()
    ctx must be ~ got <task a> ~ write ctx=Context\(\)
Configure(None)
    config must be ~ got None ~ write config=HostRoutingConfig\.from_mapping\(
Configure({})
    config must be ~ got \{\} ~ write config=HostRoutingConfig\.from_mapping\(
ConfigureStaticRoutes({})
    config must be ~ got \{\} ~ write config=HostRoutingConfig\.from_mapping\(
ConfigureProbeSNAT({})
    config must be ~ got \{\} ~ write config=HostRoutingConfig\.from_mapping\(
Configure("/etc/x.json")
    config must be ~ got '/etc/x\.json' ~ write config=HostRoutingConfig\.from_mapping\(
Configure(config, host=node())
    host must be ~ got MemoryBackend\(lo, eth0\) ~ write host=Host\.live\(\), or FakeHost\(routes\)
Configure(config, host=FakeHost)
    host must be ~ got <class .*FakeHost'> ~ write host=Host\.live\(\), or FakeHost\(routes\)
Configure(config, host="")
    host must be ~ got '' ~ write host=Host\.live\(\), or FakeHost\(routes\)
Configure(config, host="localhost")
    host must be ~ got 'localhost' ~ write host=Host\.live\(\), or FakeHost\(routes\)
Configure(config.to_mapping(), host=FakeHost())
    config must be ~ got \{\} ~ write config=HostRoutingConfig\.from_mapping\(
CheckRouteOverlap(["10.0.0.0/8"])
    config must be ~ got \['10\.0\.0\.0/8'\] ~ write config=HostRoutingConfig\.from_mapping\(
Reset(None, host=FakeHost())
    config must be ~ got None ~ write config=HostRoutingConfig\.from_mapping\(
HostRoutingConfig.from_file(None)
    path must be ~ got None ~ write path='/etc/config\.json', or path=0
HostRoutingConfig.from_file({"a": 1})
    path must be ~ got \{'a': 1\} ~ write path='/etc/config\.json', or path=0
check_node(Context(), config, node())
    host must be ~ got MemoryBackend\(lo, eth0\) ~ write host=Host\.live\(\), or FakeHost\(routes\)
check_node(Context(), {}, FakeHost())
    config must be ~ got \{\} ~ write config=HostRoutingConfig\.from_mapping\(
prove_egress(None, ["10.0.0.0/8"])
    node must be ~ got None ~ write node=Host\.live\(\), or MemoryBackend\(\)
prove_egress(node(), ["10.0.0.0/8"], allowed_devs="eth0")
    allowed_devs must be ~ got 'eth0' ~ write allowed_devs=\['eth0'\]
prove_egress(node(), ["10.0.0.0/8"], expected_devs="eth0")
    expected_devs must be ~ got 'eth0' ~ write expected_devs=\['eth0'\]
explain_routing("eth0", ["10.0.0.1"])
    node must be ~ got 'eth0' ~ write node=Host\.live\(\), or MemoryBackend\(\)
explain_routing(None, ["10.0.0.1"])
    node must be ~ got None ~ write node=Host\.live\(\), or MemoryBackend\(\)
node().routes(6)
    family must be ~ got 6 ~ write family=IPV6
node().routes("IPv6")
    family must be ~ got 'IPv6' ~ write family=IPV6
node().routes(family="6")
    family must be ~ got '6' ~ write family=IPV6
node().routes_of("142")
    protocol must be ~ got '142' ~ write protocol=1
node().add_link(3)
    name must be ~ got 3 ~ write name='\.\.\.'
FakeHost().files.write("/a", "text", mode=0o644)
    content must be ~ got 'text' ~ write content=b'\.\.\.'
FakeHost().files.write("/a", b"x", mode="0644")
    mode must be ~ got '0644' ~ write mode=0o644
FakeHost().files.fail_at(1, "full")
    error must be ~ got 'full' ~ write error=OSError\('\.\.\.'\)
FakeHost().files.fail_at(1, error="x")
    error must be ~ got 'x' ~ write error=OSError\('\.\.\.'\)
Route.parse("10.0.0.0/8", dev="eth0", metric="3")
    metric must be ~ got '3' ~ write metric=1
Route.parse("10.0.0.0/8", dev="eth0", table="main")
    table must be ~ got 'main' ~ write table=1
RouteChange.add("10.0.0.0/8")
    after must be ~ got '10\.0\.0\.0/8' ~ write after=Route\.parse\('10\.0\.0\.0/8',
RouteChange.remove("10.0.0.0/8")
    before must be ~ got '10\.0\.0\.0/8' ~ write before=backend\.routes\(\)\[0\]
Pyroute2Backend("x")
    ipr must be ~ got 'x' ~ write ipr=IPRoute\(\)
Pyroute2Backend(None)
    ipr must be ~ got None ~ write ipr=IPRoute\(\)
NodeRecord.parse(3)
    line must be ~ got 3 ~ the text of a record
check_record(NodeRecord(), {})
    config must be ~ got \{\} ~ write config=HostRoutingConfig\.from_mapping\(
RouteChange.add(StaticRoute("10.0.0.0/8"))
    after must be ~ got StaticRoute\( ~ write after=Route\.parse\('10\.0\.0\.0/8', dev='eth0'\)
RouteChange.remove(route)
    before must be ~ got <Route 10\.0\.0\.0/8 ~ write before=backend\.routes\(\)\[0\]
t(Context())
    task 'a' is not called ~ write run\(it\), or execute\(it, ctx\)
Serial()
    a Serial without tasks does nothing ~ give at least one task
Context().record(Change("add", "x"))
    action must be ~ got 'add' ~ write action='\+'
Context().progress("copying", "3")
    done must be ~ got '3' ~ write done=3
run(t, logger="agent")
    logger must be ~ got 'agent' ~ write logger=logging\.getLogger\('agent'\)
run(t, skip=["a"]).result_of("OverlapReport")
    kind must be ~ got 'OverlapReport' ~ write kind=OverlapReport
run_command(Context(), ["ping", "-c", 3])
    argv must be ~ got \['ping', '-c', 3\] ~ write argv=\['ping', '-c', '3'\]
execute(task("b")(lambda ctx: False))
    do\(ctx\) returned False ~ a task that fails raises an error
execute(task("b")(lambda ctx: run_command(ctx, ["false"], check=False)))
    b: `false` ended with status 1
execute(task("b")(lambda ctx: Future()))
    do\(ctx\) returned <Future ~ write return future\.result\(\)
plan(task("b", plan=lambda ctx: [Change("add", "x")])(print))
    action must be ~ got 'add' ~ write action='\+'
evolve(FakeHost(), routes=node())
    FakeHost ~ write FakeHost\(routes\)
prove_egress(node(), "172.16.8.0/22")
    cidrs must be ~ got '172\.16\.8\.0/22' ~ write cidrs=\['172\.16\.8\.0/22'\]
explain_routing(node(), "172.16.8.0/22")
    ranges must be ~ got '172\.16\.8\.0/22' ~ write ranges=\['172\.16\.8\.0/22'\]
render_files(FakeHost())
    config must be ~ got <FakeHost ~ write config=HostRoutingConfig
Host.live(boot="no")
    boot must be ~ got 'no' ~ write boot=False
Host.live(root="/host")
    root is for boot=False ~ got root='/host' ~ write Host\.live\(boot=False, root=
Host.live(boot=False, root=b"/host")
    root must be ~ got b'/host' ~ write root='/host'
prove_egress(["172.16.8.0/22"], node())
    node must be ~ got \['172\.16\.8\.0/22'\] ~ write node=Host\.live\(\)
check_node(config, FakeHost())
    ctx must be ~ got HostRoutingConfig ~ write ctx=Context\(\)
HostRoutingConfig.from_mapping("/etc/config.json")
    mapping ~ got '/etc/config\.json' ~ a path is for from_file
HostRoutingConfig.from_mapping(Path("/etc/config.json"))
    mapping ~ got PosixPath\('/etc/config\.json'\) ~ a path is for from_file
"""


@task("a")
def _task(_: Context) -> None:
    raise AssertionError("it runs")


def _names() -> dict[str, object]:
    """Return the public names, and those of a program: a task, a config, a node."""
    names: dict[str, object] = {}
    for module in (
        hostrouting,
        hostrouting.exceptions,
        hostrouting.fleet,
        hostrouting.host,
        hostrouting.host.netlink,
        hostrouting.host.pyroute,
        hostrouting.testing,
        phases,
        phases.testing,
    ):
        names |= {name: getattr(module, name) for name in module.__all__}
    program: Task = _task
    route = hostrouting.host.Route.parse("10.0.0.0/8", dev="eth0")
    node = partial(MemoryBackend, links={"eth0": ["10.224.0.4/16"]})
    own = {
        "t": program,
        "cancel_on_signals": phases.hosting.cancel_on_signals,
        "config": HostRoutingConfig(),
        "node": node,
        "route": route,
    }
    own |= {"evolve": evolve, "Future": Future, "Path": Path}
    return names | own


LINES = TABLE.strip().splitlines()
ROWS = list(zip(LINES[::2], LINES[1::2], strict=True))


@pytest.mark.parametrize(("call", "named"), ROWS, ids=LINES[::2])
def test_a_mistake_has_the_argument_the_value_and_the_correct_form(call: str, named: str) -> None:
    """A call with a wrong argument raises an error with the argument, the value and the correct
    form, as for a program without a type checker.
    """
    with pytest.raises(
        (TypeError, ValueError, hostrouting.exceptions.HostRoutingError, phases.PhaseError)
    ) as caught:
        eval(call, _names())  # noqa: S307 - the calls above
    for pattern in named.strip().split(" ~ "):
        assert re.search(pattern, str(caught.value)), (pattern, str(caught.value))
