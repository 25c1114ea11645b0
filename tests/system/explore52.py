import json, sys, time, tempfile
from pathlib import Path
from support.routed_machine import *
CFG = json.dumps(CONFIG)
PLAIN = json.dumps({"routeOverlap": CONFIG["routeOverlap"]})
RESTORE = f"""
exec 2>/dev/null
for dev in docker0 wg0 tailscale0; do ip link del $dev; done
for dev in eth0 eth1 ib0; do ip address flush dev $dev; ip link set $dev down; done
ip rule flush; ip rule del pref 0; ip rule add pref 0 lookup local; ip rule add pref 32766 lookup main; ip rule add pref 32767 lookup default
ip route flush table 52; ip route flush table 51820; ip route flush table 100
ip route flush table main
{ADDRESSES}
echo '{CFG}' > /root/config.json
echo '{PLAIN}' > /root/plain.json
hostrouting apply /root/config.json
"""
ETH1 = "ip link set eth1 up; ip address add 10.225.0.4/24 dev eth1\n"
SAME = "ip link set eth1 up; ip address add 10.224.0.5/24 dev eth1\n"
LOST = f"ip route del {CIDR} proto 142\n"
def virtual(n): return f"ip link add {n} type veth peer name p{n}; ip link set p{n} up; ip link set {n} up\n"
T = {
"fabric": "hostrouting reset; hostrouting apply /root/plain.json",
"lower": ETH1+"ip route add default via 10.225.0.1 dev eth1 metric 50",
"lower, plain": "hostrouting reset; ip route add 172.16.8.0/22 via 10.224.0.1 dev eth0 proto static; hostrouting apply /root/plain.json\n" + ETH1+"ip route add default via 10.225.0.1 dev eth1 metric 50",
"lower, lost": ETH1+"ip route add default via 10.225.0.1 dev eth1 metric 50\n" + LOST,
"lower, by ib0": "ip route add default via 172.16.0.1 dev ib0 metric 50",
"lower, by ib0, lost": "ip route add default via 172.16.0.1 dev ib0 metric 50\n"+LOST,
"same subnet": SAME+"ip route add default via 10.224.0.1 dev eth1 metric 50",
"same subnet, lost": SAME+"ip route add default via 10.224.0.1 dev eth1 metric 50\n"+LOST,
"equal": ETH1+"ip route append default via 10.225.0.1 dev eth1 metric 100\n"+LOST,
"ecmp": ETH1+"ip route replace default metric 100 nexthop via 10.224.0.1 dev eth0 nexthop via 10.225.0.1 dev eth1\n"+LOST,
"docker0": "ip link add docker0 type bridge; ip link set docker0 up; ip address add 172.16.9.1/24 dev docker0",
"docker0 22": "ip link add docker0 type bridge; ip link set docker0 up; ip address add 172.16.8.1/22 dev docker0",
"lookup": "ip route add default dev ib0 table 100; ip rule add pref 1000 to 172.16.8.0/22 lookup 100",
"tailscale": virtual("tailscale0")+"ip route add 172.16.8.0/22 dev tailscale0 table 52; ip rule add pref 5210 fwmark 0x80000/0xff0000 lookup main; ip rule add pref 5270 lookup 52",
"wg": virtual("wg0")+"ip route add 172.16.8.0/22 dev wg0 table 51820; ip rule add pref 32764 not fwmark 0xca6c lookup 51820",
"blackhole": "ip route add blackhole 172.16.8.0/24",
"blackhole22": "ip route add blackhole 172.16.8.0/22 metric 10; "+LOST,
"unreachable": "ip rule add pref 900 to 172.16.8.0/22 unreachable",
"main rule": "ip rule del pref 32766",
"flap": "ip link set eth0 down; ip link set eth0 up; "+DEFAULT_ROUTE,
"flap, no default": "ip link set eth0 down; ip link set eth0 up; ",
"address": "ip address del 10.224.0.4/24 dev eth0",
"address, given again": "ip address del 10.224.0.4/24 dev eth0; ip address add 10.224.0.4/24 dev eth0;"+DEFAULT_ROUTE,
"copy": f"ip route prepend {CIDR} via 10.224.0.1 dev eth0 proto static",
"copy, other way": f"ip route prepend {CIDR} dev ib0 proto static",
"wrong metric": LOST+f"ip route add {CIDR} via 10.224.0.1 dev eth0 proto 142 metric 50",
"lost": LOST,
"more specific": f"ip route add 172.16.8.0/24 dev ib0 proto static",
}
sel = sys.argv[1:]
with RoutedMachine(Path(tempfile.mkdtemp())) as m:
    print("READY", m.way(), m.answer(), m.status()["next"])
    for name, cmds in T.items():
        if sel and name not in sel: continue
        m.shell(RESTORE)
        s = m.status()
        print(f"\n=== {name}   (restored: ok={s['ok']} {m.way()})", flush=True)
        if not s["ok"] or s["next"]: print(json.dumps(s, indent=1))
        m.shell(cmds)
        print("  broken:", m.way(), "|", m.answer())
        t=time.time()
        for i in range(3):
            s = m.status()
            print(f"  verdict: {s['verdict']}\n  next: {s['next']}", "" if (n:=m.check()['next'])==s['next'] else f"CHECK {n}")
            if not s["next"] or s["next"]=="hostrouting check": break
            r = m.run("bash","-c",f"PATH={m._command.parent}:$PATH\n{s['next']} 2>&1",check=False)
            if r.returncode: print("  rc", r.returncode, r.stdout[-600:])
        print("  after:", m.way(), "|", m.answer(), "%.1f s" % (time.time()-t), flush=True)
        if s["next"] == "hostrouting check": print(s)
