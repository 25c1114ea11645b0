"""What programmers write by mistake: each error names the argument, its value and the correct form."""

import logging
import re

import pytest

import hostrouting
import hostrouting.exceptions
import hostrouting.fleet
import hostrouting.host
import hostrouting.host.netlink
import hostrouting.host.pyroute
import hostrouting.testing
import phases
import phases.testing
from hostrouting import HostRoutingConfig
from hostrouting.testing import MemoryBackend
from phases import Context, Task, task

#: A call, and below it what its error must name: the argument, the value and the correct form.
TABLE = r"""
task(None)
    needs a name ~ None ~ @task\("name"\)
task(1)
    needs a name ~ not 1 ~ @task\("name"\)
task("a", undo="x")
    undo of task 'a' ~ got 'x' ~ must be a function
task("a", plan=[])
    plan of task 'a' ~ got \[\] ~ must be a function
task("a")("b")
    do of task 'a' ~ got 'b' ~ must be a function
task("a b/c")
    a task cannot be named ~ 'a b/c' ~ use a b-c
Serial([t])
    is not a task ~ a list ~ Serial\(\*tasks\)
Serial(t, t)
    two tasks named ~ 'a' ~ rename one
Serial(t, name=1)
    a Serial cannot be named ~ 1 ~ give a text, or leave the name out
Parallel([t])
    is not a task ~ a list ~ \(\*tasks\)
Parallel(t, grace=-1)
    grace ~ got -1 ~ at least 0 seconds
run([t])
    is not a task ~ a list ~ \(\*tasks\)
run(t, 30)
    the second argument ~ got 30 ~ must be a Context, or left out
run(t, timeout=-1)
    timeout ~ got -1 ~ at least 0 seconds
run(t, skip=["b"])
    no task is named ~ 'b' ~ the tasks are: a
run(t, only=["b"])
    no task is named ~ 'b' ~ the tasks are: a
run(t, observer=[])
    the observer ~ got \[\] ~ must be a function
run(Context(), t)
    is not a task ~ a Context ~ execute\(task, ctx\)
execute(t, 5)
    the second argument ~ got 5 ~ must be a Context, or left out
execute([t, t])
    is not a task ~ a list ~ \(\*tasks\)
undo(t, 3)
    the second argument ~ got 3 ~ must be a Context, or left out
t(Context())
    is not called ~ <task a> ~ execute\(task, ctx\), or run\(task\)
with_timeout(t, 5, share=50)
    share ~ got 50 ~ more than 0 and at most 1
with_retry(t, attempts=0)
    attempts ~ got 0 ~ a whole number of at least 1
with_retry(t, attempts=3, retry_on=OSError)
    retry_on ~ class 'OSError' ~ a tuple of exception
with_retry(t, attempts=3, retry_on=(OSError, "x"))
    retry_on ~ 'x' ~ a tuple of exception classes
with_retry(t, attempts=3, jitter=2)
    jitter ~ got 2 ~ at least 0 and at most 1
tolerate(t, on_failure="x")
    on_failure of task 'a' ~ got 'x' ~ must be a function
Context(timeout=-1)
    timeout ~ got -1 ~ at least 0 seconds
Context().record("x")
    is not a Change ~ 'x' ~ ctx\.record\(Change
Context().record(Change("+", "a"), undo=3)
    undo of '\+ a' ~ got 3 ~ a function of the context
Change("add", "x")
    the action of a change ~ got 'add' ~ must be '\+', '-' or '~'
run_command(Context(), "echo a")
    argv ~ got 'echo a' ~ a list of a program and its arguments
run_command(Context(), [])
    argv ~ got \[\] ~ a list of a program and its arguments
run_command(Context(), ["echo", 1])
    argv\[1\] ~ got 1 ~ write '1'
run_command(Context(), ["true"], env={"A": 1})
    env ~ got 'A': 1 ~ write 'A': '1'
HostRoutingConfig.from_json({})
    document ~ got \{\} ~ a mapping is for from_mapping
HostRoutingConfig.from_file("/absent")
    config ~ '/absent' ~ check the path
StaticRoute(destination=None)
    destination ~ is required ~ such as '172\.16\.0\.0/16'
Host.offline("image")
    cannot prepare the image ~ 'image' ~ one such as /mnt/image
Host.offline(None)
    cannot prepare the image ~ None ~ one such as /mnt/image
prove_egress(node(), ["10.0.0.0"])
    prefix length ~ '10\.0\.0\.0' ~ write '10\.0\.0\.0/32'
node().fail_at(0)
    the next operation ~ not 0 ~ is number 1
Route.parse("10.0.0.0", dev="eth0")
    prefix length ~ '10\.0\.0\.0' ~ write '10\.0\.0\.0/32'
Route.parse("10.0.0.0/8", dev="eth0", metric=-1)
    metric ~ -1 ~ from 0 to 4294967295
Route.parse("10.0.0.0/8", dev="eth0", kind="blackhol")
    kind ~ 'blackhol' ~ unicast, .*blackhole
OverlapMode("strict")
    mode ~ got 'strict' ~ write OverlapMode\.STRICT
task("a", retry=3)
    task has no retry ~ =3 ~ it has .*plan=
task("a", undos=print)
    task has no undos ~ =<built-in function print> ~ did you mean undo=
Serial(t, names="x")
    Serial has no names ~ ='x' ~ did you mean name=
Serial(tasks=[t])
    Serial has no tasks ~ =\[<task a>\] ~ it has .*name=
Parallel(t, timeout=3)
    Parallel has no timeout ~ =3 ~ it has .*grace=
Parallel(t, workers=3)
    Parallel has no workers ~ =3 ~ it has .*grace=
run(t, timeout="30")
    timeout must be ~ got '30' ~ write timeout=30
run(t, time_out=30)
    run has no time_out ~ =30 ~ did you mean timeout=
run(t, skip="a")
    skip must be ~ got 'a' ~ write skip=\['a'\]
run(t, skip="b")
    skip must be ~ got 'b' ~ write skip=\['b'\]
run(t, only="a")
    only must be ~ got 'a' ~ write only=\['a'\]
run(t, skip=None)
    skip must be ~ got None ~ write skip=\[\.\.\.\]
run(t, only=None)
    only must be ~ got None ~ write only=\[\.\.\.\]
run(t, logger=logging)
    logger must be ~ got <module 'logging' from ~ write logger=logging\.getLogger\('\.\.\.'\)
run(t, on_event=print)
    run has no on_event ~ =<built-in function print> ~ it has .*timeout=
run(t, undo=True)
    run has no undo ~ =True ~ it has .*timeout=
run(t, handle_signal=True)
    run has no handle_signal ~ =True ~ did you mean handle_signals=
run(t, context=Context())
    run has no context ~ =<Context: without an end> ~ did you mean ctx=
execute(t, timeout=5)
    execute has no timeout ~ =5 ~ it has .*logger=
execute(t, logger="x")
    logger must be ~ got 'x' ~ write logger=logging\.getLogger\('\.\.\.'\)
plan(t, timeout=3)
    plan has no timeout ~ =3 ~ it has .*task=
undo(t, logger=print)
    logger must be ~ got <built-in function print> ~ write logger=logging\.getLogger\('\.\.\.'\)
with_timeout(t, "5")
    seconds must be ~ got '5' ~ write seconds=30
with_timeout(5, t)
    seconds must be ~ got <task a> ~ write seconds=30
with_timeout(t, timeout=5)
    with_timeout has no timeout ~ =5 ~ it has .*seconds=
with_timeout(t, 5, 0.5)
    ^with_timeout ~ no place for 0\.5 ~ write with_timeout\(task, seconds, share=
with_retry(t, 3)
    ^with_retry ~ no place for 3 ~ write with_retry\(task, attempts=
with_retry(t, attempts=3, delay=1)
    with_retry has no delay ~ =1 ~ it has .*attempts=
with_retry(t, retries=3)
    with_retry has no retries ~ =3 ~ it has .*attempts=
with_retry(t, attempts=3, backoff="1")
    backoff must be ~ got '1' ~ write backoff=30
tolerate(t, print)
    ^tolerate ~ no place for <built-in function print> ~ write tolerate\(task, on_failure=
tolerate(t, on_error=print)
    tolerate has no on_error ~ =<built-in function print> ~ it has .*on_failure=
Context(30)
    ^Context ~ no place for 30 ~ write Context\(timeout=
Context(timeout="30")
    timeout must be ~ got '30' ~ write timeout=30
Context(deadline=30)
    Context has no deadline ~ =30 ~ it has .*timeout=
Context(clock=3)
    clock must be ~ got 3 ~ write clock=ManualClock\(\)
Context(clock=ManualClock)
    clock must be ~ got <class 'phases\.testing\.ManualClock'> ~ write clock=ManualClock\(\)
Context().sleep("1")
    seconds must be ~ got '1' ~ write seconds=30
Context().sleep(None)
    seconds must be ~ got None ~ write seconds=30
Context().wait(3)
    done must be ~ got 3 ~ write done=print
Context().child("3")
    timeout must be ~ got '3' ~ write timeout=30
Context().child(timeout="3")
    timeout must be ~ got '3' ~ write timeout=30
Context().result(1, True)
    ^Context\.result ~ no place for True ~ write Context\.result\(value\)
Context().result(1, degraded=True)
    Context\.result has no degraded ~ =True ~ it has value=
Change("+", None)
    subject must be ~ got None ~ write subject='\.\.\.'
Change("+", 3)
    subject must be ~ got 3 ~ write subject='\.\.\.'
run_command(["echo"], Context())
    ctx must be ~ got \['echo'\] ~ write ctx=Context\(\)
run_command(Context(), ["echo"], timeout=3)
    run_command has no timeout ~ =3 ~ it has .*input=
run_command(Context(), ["true"], env=["A=1"])
    env must be ~ got \['A=1'\] ~ write env=\{'NAME': 'value'\}
run_command(Context(), ["true"], input=3)
    input must be ~ got 3 ~ write input='\.\.\.'
run_command(Context(), ["true"], cwd="/")
    run_command has no cwd ~ ='/' ~ it has .*input=
run_command(Context(), ["true"], shell=True)
    run_command has no shell ~ =True ~ it has .*input=
run_command(Context(), ["true"], grace="x")
    grace must be ~ got 'x' ~ write grace=30
run_command(["true"])
    ctx must be ~ got \['true'\] ~ write ctx=Context\(\)
run_command(None, ["true"])
    ctx must be ~ got None ~ write ctx=Context\(\)
cancel_on_signals(t).__enter__()
    ctx must be ~ got <task a> ~ write ctx=Context\(\)
Transaction(None)
    ctx must be ~ got None ~ write ctx=Context\(\)
Transaction(t)
    ctx must be ~ got <task a> ~ write ctx=Context\(\)
ManualClock(True)
    ^ManualClock ~ no place for True ~ write ManualClock\(auto=
ManualClock(start=3)
    ManualClock has no start ~ =3 ~ it has .*auto=
ManualClock().at("3", print)
    seconds must be ~ got '3' ~ write seconds=30
ManualClock().at(3, 4)
    event must be ~ got 4 ~ write event=print
ManualClock().advance("3")
    seconds must be ~ got '3' ~ write seconds=30
Configure(None)
    config must be ~ got None ~ write config=HostRoutingConfig\.from_mapping\(
Configure({})
    config must be ~ got \{\} ~ write config=HostRoutingConfig\.from_mapping\(
Configure("/etc/x.json")
    config must be ~ got '/etc/x\.json' ~ write config=HostRoutingConfig\.from_mapping\(
Configure(config, FakeHost())
    ^Configure ~ no place for <FakeHost: live, MemoryBackend> ~ write Configure\(config, host=
Configure(config, hosts=FakeHost())
    Configure has no hosts ~ =<FakeHost: live, MemoryBackend> ~ did you mean host=
Configure(config, host=node())
    host must be ~ got MemoryBackend\(lo, eth0\) ~ write host=Host\.live\(\), or FakeHost\(routes\)
Configure(config, host="localhost")
    host must be ~ got 'localhost' ~ write host=Host\.live\(\), or FakeHost\(routes\)
Configure(config, host=FakeHost(), logger="x")
    logger must be ~ got 'x' ~ write logger=logging\.getLogger\('\.\.\.'\)
Configure(config, host=FakeHost(), dry_run=True)
    Configure has no dry_run ~ =True ~ it has .*host=
Configure(config.to_mapping(), host=FakeHost())
    config must be ~ got \{\} ~ write config=HostRoutingConfig\.from_mapping\(
CheckRouteOverlap(["10.0.0.0/8"])
    config must be ~ got \['10\.0\.0\.0/8'\] ~ write config=HostRoutingConfig\.from_mapping\(
CleanStaleCNI(config, force=True)
    CleanStaleCNI has no force ~ =True ~ it has .*host=
Watch(config, interval=3)
    Watch has no interval ~ =3 ~ it has .*host=
Reset(None, host=FakeHost())
    config must be ~ got None ~ write config=HostRoutingConfig\.from_mapping\(
Reset(config, force=True)
    Reset has no force ~ =True ~ it has .*host=
HostRoutingConfig({})
    ^HostRoutingConfig ~ no place for \{\} ~ write HostRoutingConfig\(static_routes=
HostRoutingConfig(static_route=1)
    HostRoutingConfig has no static_route ~ =1 ~ did you mean static_routes=
HostRoutingConfig(staticRoutes={})
    HostRoutingConfig has no staticRoutes ~ =\{\} ~ did you mean static_routes=
HostRoutingConfig(static_routes=[])
    ^hostRouting\.staticRoutes: ~ found a list ~ expected an object
HostRoutingConfig(static_routes=[StaticRoute(destination="10.0.0.0/8")])
    ^hostRouting\.staticRoutes: ~ found a list ~ expected an object
HostRoutingConfig(static_routes=StaticRoute(destination="10.0.0.0/8"))
    ^hostRouting\.staticRoutes: ~ found a Python StaticRoute ~ expected an object
HostRoutingConfig(static_routes=None)
    ^hostRouting\.staticRoutes: ~ found null ~ expected an object
HostRoutingConfig(gates="kubelet.service")
    ^hostRouting\.gates: ~ found the string 'kubelet\.service' ~ expected a list
HostRoutingConfig(gates=None)
    ^hostRouting\.gates: ~ found null ~ expected a list
HostRoutingConfig(gates=["kubelet"])
    ^hostRouting\.gates\[0\]: ~ 'kubelet' ~ is not the name of a \.service unit that can be a
HostRoutingConfig(watch=True)
    ^hostRouting\.watch: ~ found the boolean true ~ expected an object
HostRoutingConfig(watch={"interval": 3})
    ^hostRouting\.watch\.interval: ~ found the number 3 ~ expected a duration from '1s' to '86400s'
HostRoutingConfig.from_file(None)
    path must be ~ got None ~ write path='/etc/config\.json', or path=0
HostRoutingConfig.from_file({"a": 1})
    path must be ~ got \{'a': 1\} ~ write path='/etc/config\.json', or path=0
HostRoutingConfig.from_mapping("{}")
    ^hostRouting: ~ found the string '\{\}' ~ expected an object
HostRoutingConfig.from_mapping(None)
    ^hostRouting: ~ found null ~ expected an object
HostRoutingConfig.from_mapping([1])
    ^hostRouting: ~ found a list ~ expected an object
StaticRoute("10.0.0.0/8", "10.224.0.1")
    ^StaticRoute ~ no place for '10\.224\.0\.1' ~ write StaticRoute\(destination, gateway=
StaticRoute("10.0.0.0/8", "10.224.0.1", "eth0")
    ^StaticRoute ~ no place for '10\.224\.0\.1' ~ write StaticRoute\(destination, gateway=
StaticRoute(dst="10.0.0.0/8")
    StaticRoute has no dst ~ ='10\.0\.0\.0/8' ~ it has .*destination=
StaticRoute(destination="10.0.0.0/8", via="10.224.0.1")
    StaticRoute has no via ~ ='10\.224\.0\.1' ~ it has .*destination=
StaticRoute(destination="10.0.0.0/8", device="eth0")
    StaticRoute has no device ~ ='eth0' ~ did you mean dev=
StaticRoute(destination="10.0.0.0")
    ^destination: ~ '10\.0\.0\.0' ~ write '10\.0\.0\.0/32' for one address
StaticRoute(destination="10.0.0.1/8")
    ^destination: ~ '10\.0\.0\.1/8' ~ the network is '10\.0\.0\.0/8'
StaticRoute(destination="default")
    ^destination: ~ 'default' ~ is not an IPv4 CIDR such as '172\.16\.0\.0/16'
StaticRoute(destination=3)
    ^destination: ~ found the number 3 ~ expected a network such as '172\.16\.0\.0/16' or
StaticRoute(destination="10.0.0.0/8", metric="3")
    ^metric: ~ found the string '3' ~ expected a whole number from 0 to 4294967295
StaticRoute(destination="10.0.0.0/8", metric=-1)
    ^metric: ~ found the number -1 ~ expected a whole number from 0 to 4294967295
StaticRoute(destination="10.0.0.0/8", gateway="10.0.0.0/8")
    ^gateway: ~ '10\.0\.0\.0/8' ~ give the address alone: 10\.0\.0\.0
StaticRoute(destination="10.0.0.0/8", dev="eth0; x")
    ^dev: ~ 'eth0; x' ~ see: ip link
StaticRoute(destination="10.0.0.0/8", dev=3)
    ^dev: ~ found the number 3 ~ expected a device name such as 'eth0'
StaticRoutesConfig([])
    ^StaticRoutesConfig ~ no place for \[\] ~ write StaticRoutesConfig\(enabled=
StaticRoutesConfig(enabled=True, routes=["10.0.0.0/8"])
    ^routes\[0\]: ~ found the string '10\.0\.0\.0/8' ~ expected an object
StaticRoutesConfig(enabled=True, routes="10.0.0.0/8")
    ^routes: ~ found the string '10\.0\.0\.0/8' ~ expected a list
StaticRoutesConfig(enabled="yes")
    ^enabled: ~ found the string 'yes' ~ expected true or false
StaticRoutesConfig(enable=True)
    StaticRoutesConfig has no enable ~ =True ~ did you mean enabled=
RouteOverlapConfig(cidrs=["10.0.0.0/8"])
    RouteOverlapConfig has no cidrs ~ =\['10\.0\.0\.0/8'\] ~ it has .*expected_cidrs=
RouteOverlapConfig(expected_cidrs="10.0.0.0/8")
    ^expectedCidrs: ~ found the string '10\.0\.0\.0/8' ~ expected a list
RouteOverlapConfig(expected_cidrs=["10.0.0.0"])
    ^expectedCidrs\[0\]: ~ '10\.0\.0\.0' ~ write '10\.0\.0\.0/32' for one address
RouteOverlapConfig(expected="azure")
    ^expected: ~ found the string 'azure' ~ expected a list
RouteOverlapConfig(expected=["azur"])
    ^expected\[0\]: ~ found the string 'azur' ~ expected 'azure', 'aws', 'aws-ipv6' or 'gcp'
RouteOverlapConfig(mode=True)
    ^mode: ~ found the boolean true ~ expected 'WARN' or 'STRICT'
RouteOverlapConfig(allowed_devs="eth0")
    ^allowedDevs: ~ found the string 'eth0' ~ expected a list
RouteOverlapConfig(expected_devs=3)
    ^expectedDevs: ~ found the number 3 ~ expected a list
RouteOverlapConfig(fabric=True)
    ^fabric: ~ found the boolean true ~ expected 'auto', 'off' or a list of IPv4 CIDRs
ProbeSNATConfig(enabled=1)
    ^enabled: ~ found the number 1 ~ expected true or false
ProbeSNATConfig(device="eth0")
    ProbeSNATConfig has no device ~ ='eth0' ~ did you mean dev=
ProbeSNATConfig(detect="auto")
    ^detect: ~ found the string 'auto' ~ expected 'imds', 'address' or 'always'
StaleCNIConfig(sweep="yes")
    ^sweep: ~ found the string 'yes' ~ expected 'report' or 'clean'
StaleCNIConfig(pod_cidrs="10.240.0.0/16")
    ^podCidrs: ~ found the string '10\.240\.0\.0/16' ~ expected a list
StaleCNIConfig(force=True)
    ^force: ~ found the boolean true ~ expected an object
StaleCNIForce(True)
    ^StaleCNIForce ~ no place for True ~ write StaleCNIForce\(conflist=
StaleCNIForce(all=True)
    StaleCNIForce has no all ~ =True ~ it has .*conflist=
WatchConfig(interval="60s")
    ^interval: ~ found the string '60s' ~ expected a number of seconds from 1 to 86400
WatchConfig(interval=0)
    ^interval: ~ found the number 0 ~ expected a number of seconds from 1 to 86400
WatchConfig(mode="daemon")
    ^mode: ~ found the string 'daemon' ~ expected 'timer' or 'service'
WatchConfig(readings="2")
    ^readings: ~ found the string '2' ~ expected a whole number from 1 to 10
WatchConfig(True)
    ^WatchConfig ~ no place for True ~ write WatchConfig\(enabled=
Host(node())
    ^Host ~ no place for MemoryBackend\(lo, eth0\) ~ write Host\(routes=
Host(route=node())
    Host has no route ~ =MemoryBackend\(lo, eth0\) ~ did you mean routes=
Host.offline(3)
    root must be ~ got 3 ~ write root='/mnt/image'
check_node(config, FakeHost())
    ctx must be ~ got HostRoutingConfig\(static_routes=Static ~ write ctx=Context\(\)
check_node(Context(), config, node())
    host must be ~ got MemoryBackend\(lo, eth0\) ~ write host=Host\.live\(\), or FakeHost\(routes\)
check_node(Context(), {}, FakeHost())
    config must be ~ got \{\} ~ write config=HostRoutingConfig\.from_mapping\(
check_node(Context(), config, FakeHost(), seconds="3")
    seconds must be ~ got '3' ~ write seconds=30
check_node(Context(), config, FakeHost(), timeout=3)
    check_node has no timeout ~ =3 ~ it has .*host=
check_node(None, config, FakeHost())
    ctx must be ~ got None ~ write ctx=Context\(\)
node_status(FakeHost())
    ctx must be ~ got <FakeHost: live, MemoryBackend> ~ write ctx=Context\(\)
node_status(FakeHost(), Context())
    ctx must be ~ got <FakeHost: live, MemoryBackend> ~ write ctx=Context\(\)
node_status(Context(), node())
    host must be ~ got MemoryBackend\(lo, eth0\) ~ write host=Host\.live\(\), or FakeHost\(routes\)
node_status(Context(), FakeHost(), config={})
    config must be ~ got \{\} ~ write config=HostRoutingConfig\.from_mapping\(
prove_egress(["10.0.0.0/8"], node())
    cidrs must be ~ got MemoryBackend\(lo, eth0\) ~ write cidrs=\[\.\.\.\]
prove_egress(node(), "10.0.0.0/8")
    cidrs must be ~ got '10\.0\.0\.0/8' ~ write cidrs=\['10\.0\.0\.0/8'\]
prove_egress(node(), None)
    cidrs must be ~ got None ~ write cidrs=\[\.\.\.\]
prove_egress(None, ["10.0.0.0/8"])
    node must be ~ got None ~ write node=Host\.live\(\), or MemoryBackend\(\)
prove_egress(node(), ["10.0.0.0/8"], "eth0")
    ^prove_egress ~ no place for 'eth0' ~ write prove_egress\(node, cidrs, allowed_devs=
prove_egress(node(), ["10.0.0.0/8"], allowed_devs="eth0")
    allowed_devs must be ~ got 'eth0' ~ write allowed_devs=\['eth0'\]
prove_egress(node(), ["10.0.0.0/8"], expected_devs="eth0")
    expected_devs must be ~ got 'eth0' ~ write expected_devs=\['eth0'\]
prove_egress(node(), ["10.0.0.0/8"], expected_dev=["eth0"])
    prove_egress has no expected_dev ~ =\['eth0'\] ~ did you mean expected_devs=
prove_egress(node(), ["10.0.0.0/8"], expected_devs=[3])
    expected_devs must be ~ got \[3\] ~ write expected_devs=\[\.\.\.\]
prove_egress(node(), ["10.0.0.0/8"], fabric="auto")
    fabric must be ~ got 'auto' ~ write fabric=Fabric\(\)
prove_egress(node(), ["10.0.0.0/8"], pinned="eth0")
    pinned must be ~ got 'eth0' ~ write pinned=\{IPV4: 'eth0'\}
prove_egress(node(), cidrs=RouteOverlapConfig())
    cidrs must be ~ got RouteOverlapConfig\(expected_cidrs=\(\), ~ write cidrs=\[\.\.\.\]
explain_routing(node(), "10.0.0.1")
    ranges must be ~ got '10\.0\.0\.1' ~ write ranges=\['10\.0\.0\.1'\]
explain_routing(node(), [3])
    ranges must be ~ got \[3\] ~ write ranges=\[\.\.\.\]
explain_routing(None, ["10.0.0.1"])
    node must be ~ got None ~ write node=Host\.live\(\), or MemoryBackend\(\)
explain_routing(node(), ["10.0.0.1"], overlap=["x"])
    overlap must be ~ got \['x'\] ~ write overlap=config\.route_overlap
explain_routing(node(), None)
    ranges must be ~ got None ~ write ranges=\[\.\.\.\]
render_files({})
    config must be ~ got \{\} ~ write config=HostRoutingConfig\.from_mapping\(
render_files(config, host="x")
    host must be ~ got 'x' ~ write host=Host\.live\(\), or FakeHost\(routes\)
render_files(config, out="/tmp")
    render_files has no out ~ ='/tmp' ~ it has .*host=
FakeHost(backend=node())
    FakeHost has no backend ~ =MemoryBackend\(lo, eth0\) ~ it has .*routes=
FakeHost(live=False)
    FakeHost has no live ~ =False ~ did you mean is_live=
FakeHost(node(), False)
    ^FakeHost ~ no place for False ~ write FakeHost\(routes, is_live=
node().lookup("10.0.0.1")
    destinations must be ~ got '10\.0\.0\.1' ~ write destinations=\[Address\.parse\('10\.0\.0\.1'
node().lookup(167772161)
    destinations must be ~ got 167772161 ~ write destinations=\[Address\.parse\('10\.0\.0\.1'
node().lookup([1], sources=["10.0.0.1"])
    sources must be ~ got \['10\.0\.0\.1'\] ~ write sources=\[Address\.parse\('10\.0\.0\.1'\)\.num
node().lookup([1], family=4)
    family must be ~ got 4 ~ write family=IPV6
node().lookup([1], source=3)
    MemoryBackend\.lookup has no source ~ =3 ~ did you mean sources=
node().routes(6)
    family must be ~ got 6 ~ write family=IPV6
node().routes("IPv6")
    family must be ~ got 'IPv6' ~ write family=IPV6
node().routes(family="6")
    family must be ~ got '6' ~ write family=IPV6
node().rules(4)
    family must be ~ got 4 ~ write family=IPV6
node().routes_of("142")
    protocol must be ~ got '142' ~ write protocol=1
node().apply(["10.0.0.0/8"])
    changes must be ~ got \['10\.0\.0\.0/8'\] ~ write changes=\[RouteChange\.add\(route\)\]
node().apply([RouteChange.add(route)], dry_run=True)
    MemoryBackend\.apply has no dry_run ~ =True ~ it has .*changes=
node().add_link(3)
    name must be ~ got 3 ~ write name='\.\.\.'
node().add_link("eth1", state="up")
    MemoryBackend\.add_link has no state ~ ='up' ~ it has .*up=
node().add_link("eth1", mac=3)
    mac must be ~ got 3 ~ write mac='\.\.\.'
node().add_address("eth0", ["10.0.0.1/8"])
    address must be ~ got \['10\.0\.0\.1/8'\] ~ write address='\.\.\.'
node().set_up("eth0", False)
    ^MemoryBackend\.set_up ~ no place for False ~ write MemoryBackend\.set_up\(name, up=
node().insert_route("10.0.0.0/8 dev eth0")
    route must be ~ got '10\.0\.0\.0/8 dev eth0' ~ write route=Route\.parse\('10\.0\.0\.0/8',
node().add_route(route)
    destination must be ~ got <Route 10\.0\.0\.0/8 dev eth0 proto 142 ~ write destination='\.\.\.'
node().delete_route("10.0.0.0/8")
    route must be ~ got '10\.0\.0\.0/8' ~ write route=Route\.parse\('10\.0\.0\.0/8',
node().add_rule("from all lookup main")
    rule must be ~ got 'from all lookup main' ~ write rule=Rule\(100, table=254\)
node().add_rule(100)
    rule must be ~ got 100 ~ write rule=Rule\(100, table=254\)
node().fail_at("1")
    number must be ~ got '1' ~ write number=1
MemoryBackend(link={"eth0": []})
    MemoryBackend has no link ~ =\{'eth0': \[\]\}; ~ did you mean links=
MemoryBackend(routes="default via 10.224.0.1 dev eth0")
    routes must be ~ got 'default via ~ write routes=\['default via
node().fail_at(1, number="EPERM")
    number must be ~ got 'EPERM' ~ write number=1
FakeHost().files.write("/a", "text", mode=0o644)
    content must be ~ got 'text' ~ write content=b'\.\.\.'
FakeHost().files.write("/a", b"x", mode="0644")
    mode must be ~ got '0644' ~ write mode=0o644
FakeHost().files.write("/a", b"x", 0o644)
    ^MemoryFiles\.write ~ no place for 420 ~ write MemoryFiles\.write\(path, content, mode=
FakeHost().files.write(3, b"x", mode=0o644)
    path must be ~ got 3 ~ write path='\.\.\.'
FakeHost().files.read(3)
    path must be ~ got 3 ~ write path='\.\.\.'
FakeHost().files.fail_at(1, "full")
    error must be ~ got 'full' ~ write error=OSError\('\.\.\.'\)
FakeHost().files.fail_at(1, error="x")
    error must be ~ got 'x' ~ write error=OSError\('\.\.\.'\)
Route.parse("10.0.0.0/8", "10.224.0.1")
    ^Route\.parse ~ no place for '10\.224\.0\.1' ~ write Route\.parse\(destination, gateway=
Route.parse("10.0.0.0/8", via="10.224.0.1", dev="eth0")
    Route\.parse has no via ~ ='10\.224\.0\.1' ~ it has .*network=
Route.parse("10.0.0.0/8", device="eth0")
    Route\.parse has no device ~ ='eth0' ~ did you mean dev=
Route.parse("10.0.0.0/8", dev="eth0", metric="3")
    metric must be ~ got '3' ~ write metric=1
Route.parse("10.0.0.0/8", dev="eth0", table="main")
    table must be ~ got 'main' ~ write table=1
Route.parse(None, dev="eth0")
    destination must be ~ got None ~ write destination='\.\.\.'
Route.parse(3, dev="eth0")
    destination must be ~ got 3 ~ write destination='\.\.\.'
RouteChange.add("10.0.0.0/8")
    after must be ~ got '10\.0\.0\.0/8' ~ write after=Route\.parse\('10\.0\.0\.0/8',
RouteChange.remove("10.0.0.0/8")
    before must be ~ got '10\.0\.0\.0/8' ~ write before=backend\.routes\(\)\[0\]
Address.parse(3)
    text must be ~ got 3 ~ write text='10\.224\.0\.1'
Prefix.parse(3)
    text must be ~ got 3 ~ write text='172\.16\.0\.0/16'
DeviceAddress.parse(3)
    text must be ~ got 3 ~ write text='172\.16\.0\.0/16'
NetlinkBackend("ns")
    ^NetlinkBackend ~ no place for 'ns' ~ write NetlinkBackend\(netns=
NetlinkBackend(netns=3).links()
    netns must be ~ got 3 ~ write netns='\.\.\.'
NetlinkBackend(ns="x")
    NetlinkBackend has no ns ~ ='x' ~ it has .*netns=
Pyroute2Backend("x")
    ipr must be ~ got 'x' ~ write ipr=IPRoute\(\)
Pyroute2Backend(None)
    ipr must be ~ got None ~ write ipr=IPRoute\(\)
NodeRecord.parse("x")
    line must be ~ got 'x' ~ write line=b'\.\.\.'
NodeRecord.parse({})
    line must be ~ got \{\} ~ write line=b'\.\.\.'
NodeRecord(host="a")
    NodeRecord has no host ~ ='a' ~ did you mean hostname=
take_record(FakeHost(), Context())
    ctx must be ~ got <FakeHost: live, MemoryBackend> ~ write ctx=Context\(\)
take_record(Context(), node())
    host must be ~ got MemoryBackend\(lo, eth0\) ~ write host=Host\.live\(\), or FakeHost\(routes\)
prove_record(b"{}")
    record must be ~ got b'\{\}' ~ write record=NodeRecord\.parse\(line\)
prove_record({}, config)
    record must be ~ got \{\} ~ write record=NodeRecord\.parse\(line\)
prove_record(NodeRecord(), {})
    config must be ~ got \{\} ~ write config=HostRoutingConfig\.from_mapping\(
prove_record(NodeRecord(), config, True)
    ^prove_record ~ no place for True ~ write prove_record\(record, config, planned=
node().lookup(["10.0.0.1"])
    destinations must be ~ got \['10\.0\.0\.1'\] ~ Address\.parse\('10\.0\.0\.1'\)\.number
node().lookup([Address.parse("10.0.0.1")])
    destinations must be ~ got \[Address\( ~ Address\.parse\('10\.0\.0\.1'\)\.number
node().apply(route)
    changes must be ~ got <Route 10\.0\.0\.0/8 ~ write changes=\[RouteChange\.add\(route\)\]
node().apply(RouteChange.add(route))
    changes must be ~ got RouteChange\( ~ write changes=\[RouteChange\.add\(route\)\]
RouteChange.add(StaticRoute("10.0.0.0/8"))
    after must be ~ got StaticRoute\( ~ write after=Route\.parse\('10\.0\.0\.0/8', dev='eth0'\)
node().lookup([Address.parse("fd00::1").number])
    destination fd00::1 ~ not an IPv4 address ~ write lookup\(\.\.\., family=IPV6\)
MemoryBackend(routes=None)
    routes must be ~ got None ~ write routes=
node().refuse_at("1")
    step must be ~ got '1' ~ write step=1
run(t).find(None)
    path must be ~ got None ~ write path='
run(t).result_of("x")
    kind must be ~ got 'x' ~ write kind=OverlapReport
Context(timeout=3).report_wait("a lease", seconds="30")
    seconds must be ~ got '30' ~ write seconds=30
run_command(Context(), 5)
    argv must be ~ got 5 ~ a list of a program and its arguments
run(t, logger=logging.Logger)
    logger must be ~ got <class 'logging.Logger'> ~ write logger=logging.getLogger
cancel_on_signals(Context(), signals=2).__enter__()
    signals must be ~ got 2 ~ write signals=
RouteChange.remove(route)
    before must be ~ got <Route 10\.0\.0\.0/8 ~ write before=backend\.routes\(\)\[0\]
"""


def _node() -> MemoryBackend:
    node = MemoryBackend()
    node.add_link("eth0")
    node.add_address("eth0", "10.224.0.4/16")
    return node


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
    own = {"t": program, "config": HostRoutingConfig(), "node": _node, "route": route}
    return names | own | {"logging": logging}


LINES = TABLE.strip().splitlines()
ROWS = list(zip(LINES[::2], LINES[1::2], strict=True))


@pytest.mark.parametrize(("call", "named"), ROWS, ids=LINES[::2])
def test_a_mistake_has_the_argument_the_value_and_the_correct_form(call: str, named: str) -> None:
    """As in a program without a type checker; the error is raised where the mistake is written."""
    with pytest.raises(
        (TypeError, ValueError, hostrouting.HostRoutingError, phases.PhaseError)
    ) as caught:
        eval(call, _names())  # noqa: S307 - the calls above
    for pattern in named.strip().split(" ~ "):
        assert re.search(pattern, str(caught.value)), (pattern, str(caught.value))


def test_the_table_has_the_public_functions() -> None:
    """Each function that is public, and more than 160 mistakes."""
    assert len(ROWS) > 160
    functions = {
        name
        for module in (hostrouting, hostrouting.fleet, phases)
        for name in module.__all__
        if name.islower()
    }
    assert {name for name in functions if not re.search(rf"(?m)^{name}\b", TABLE)} == set()
