#!/usr/bin/env python3
"""Measures what a flood of connections and unfinished requests costs an agent, and whether it degrades trials.

    flood.py DIRECTORY-OF-BINARIES [SECONDS] [PAIRS] [REOPEN_MS]

Makes three nodes with agents (mutual TLS) in network namespaces, and runs trials of SECONDS (8) with two flows through a userspace link of 50 Mbit/s.
A process in another namespace floods the link's agent from before the controller connects until after the trial. PAIRS (3) times, runs in turn:
without a flood; with 1100 connections without a certificate (silent, with garbage, with half a ClientHello), each reopened REOPEN_MS (0) after the
agent has closed it; and with 8 connections of the controller's certificate, each of which has sent all of a Prepare but its last byte. Then runs once
with all connections and requests that a certificate may have. Its agents have just started, because memory that an agent has freed could hold them.

Prints the agent's CPU time (user and system), the fate of the connections, the verdicts, and the agent's resident memory. Exits with 1 if the
flood costs more than 5 % of a CPU (median difference between a flooded trial and the one before it), if a flooded trial did not begin or has a reason
that no trial without a flood has (except timing reasons, if other processes use the CPUs), or if unfinished requests cost 64 MB (those of a whole
certificate: 64 MB more than the first trial, which has no flood and whose agents have just started, too).

The agent's CPU time includes the kernel's work on packets only where its own system calls cause it: `softirq` is the rest for the whole machine,
including the flows and other processes. Does not measure the signature that a complete ClientHello costs. Needs root and iperf3.
"""

import collections
import contextlib
import json
import os
import pathlib
import resource
import select
import signal
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import time

CONNECTIONS, MESSAGES = 1100, 8
# MAX_PER_CLIENT of crates/agent/src/accept/per_client.rs, minus the controller's own connection.
MOST_CONNECTIONS = 15
CPU_GOAL_PCT, MEMORY_GOAL_MB = 5.0, 64.0
# TIMING_REASONS of tests/src/cpu.rs: reasons that missing CPU time can explain.
TIMING_REASONS = {"base_rtt", "clock_uncertain", "cpu_bound", "flow_early", "flow_late", "flow_overrun", "flow_stalled", "link_late"}
TIMING_REASONS |= {"link_rate_low", "rows_dropped", "samples_late", "samples_missing", "start_late", "trace_late"}
# Reasons for rows that are missing by chance where the kernel is locked down (docs/benchmarks.md, "Segments without a BPF program").
NO_BPF = "the kernel ran no BPF program for"
# MAX_REMOTE_MESSAGE_BYTES of proto/src/wire.rs.
MESSAGE_BYTES = 1 << 20
PORT = 7700
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
CONTROL = {"controller": "10.87.0.1", "flood": "10.87.0.2", "src": "10.87.0.11", "router": "10.87.0.12", "dst": "10.87.0.13"}
NODES = {"src": "10.88.1.2", "router": "10.88.1.1", "dst": "10.88.2.2"}
PLAN = """name = "flood"
[links.bottleneck]
node = "router"
toward = "dst"
rate = "50mbit"
queue = { kind = "bfifo", limit = "93750B" }
backend = "userspace"
[flows.first]
from = "src"
to = "dst"
cc = "cubic"
[flows.second]
from = "src"
to = "dst"
cc = "reno"
"""


# The flooders. Each is a process in its own namespace, and ends when its standard input does.


def client_hello(host):
    """The first message of a TLS client."""
    context, to_server = ssl.create_default_context(), ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), to_server, server_hostname=host)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return to_server.read()


def flood(host, count, reopen_s):
    """Keeps `count` connections without a certificate open; prints how they ended."""
    began = time.monotonic()
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100, count + 100))
    hello = client_hello(host)
    payloads = [b"", os.urandom(512), hello[: len(hello) // 2]]
    sockets, later, counts = {}, collections.deque(), collections.Counter()
    epoll, most_open = select.epoll(), 0
    is_open = set()

    def connect(nth):
        stream = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        counts["tried"] += 1
        stream.connect_ex((host, PORT))
        sockets[stream.fileno()] = (stream, nth)
        epoll.register(stream, select.EPOLLIN | select.EPOLLOUT)

    def end(fd, what):
        counts[what] += 1
        stream, nth = sockets.pop(fd)
        is_open.discard(fd)
        epoll.unregister(fd)
        stream.close()
        later.append((time.monotonic() + reopen_s, nth))

    for nth in range(count):
        connect(nth)
    epoll.register(sys.stdin, select.EPOLLIN | select.EPOLLHUP)
    while True:
        wait_s = max(0, later[0][0] - time.monotonic()) if later else -1
        for fd, event in epoll.poll(wait_s):
            if fd == sys.stdin.fileno():
                counts["at_most_open"] = most_open
                print(json.dumps({**counts, "elapsed_s": time.monotonic() - began, "cpu_s": time.process_time()}))
                return
            stream, nth = sockets[fd]
            if fd not in is_open:
                if stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    end(fd, "refused")
                    continue
                is_open.add(fd)
                most_open = max(most_open, len(is_open))
                counts["accepted"] += 1
                epoll.modify(fd, select.EPOLLIN)
                with contextlib.suppress(OSError):
                    stream.send(payloads[nth % len(payloads)])
            if event & ~select.EPOLLOUT:
                try:
                    if not stream.recv(4096):
                        end(fd, "closed")
                except BlockingIOError:
                    pass
                except OSError:
                    end(fd, "closed")
        while later and later[0][0] <= time.monotonic():
            counts["reopened"] += 1
            connect(later.popleft()[1])


class Http2:
    """A client that begins gRPC requests and never finishes them (RFC 9113)."""

    DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8

    def __init__(self, context, host, requests):
        self.stream = context.wrap_socket(socket.create_connection((host, PORT), 10), server_hostname=host)
        self.host, self.requests = host, requests
        self.window, self.stream_window, self.received = 65535, 65535, b""
        # Bytes left to send, and the window of each stream.
        self.left, self.windows, self.refused = {}, {}, 0
        self.stream.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + self.frame(self.SETTINGS, 0, 0, b""))
        self.stream.setblocking(False)

    @staticmethod
    def frame(kind, flags, stream, payload):
        return struct.pack(">IBBI", len(payload), kind, flags, stream)[1:] + payload

    def send(self, data):
        """Blocks until all of `data` is sent, which is at most a frame."""
        self.stream.settimeout(10)
        self.stream.sendall(data)
        self.stream.setblocking(False)

    def begin(self, stream):
        fields = [(":method", "POST"), (":scheme", "https"), (":path", "/ccbench.v1.Agent/Prepare"), (":authority", self.host)]
        fields += [("content-type", "application/grpc"), ("te", "trailers")]
        # Literals without indexing (RFC 7541, section 6.2.2).
        block = b"".join(b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in field) for field in fields)
        self.send(self.frame(self.HEADERS, 4, stream, block))
        self.left[stream], self.windows[stream] = MESSAGE_BYTES + 5 - 1, self.stream_window

    def fill(self):
        """Sends as much as both windows permit."""
        for stream in list(self.left):
            while (size := min(self.left[stream], self.windows[stream], self.window, 16384)) > 0:
                begins = self.left[stream] == MESSAGE_BYTES + 4
                head = struct.pack(">BI", 0, MESSAGE_BYTES) if begins else b""
                self.send(self.frame(self.DATA, 0, stream, head + b"#" * (size - len(head))))
                self.left[stream] -= size
                self.windows[stream] -= size
                self.window -= size

    def read(self):
        """Answers the frames that have arrived. Returns False at the end of the connection."""
        while True:
            try:
                data = self.stream.recv(65536)
            except (ssl.SSLWantReadError, BlockingIOError):
                break
            if not data:
                return False
            self.received += data
        while len(self.received) >= 9 and len(self.received) >= 9 + (length := int.from_bytes(self.received[:3])):
            kind, flags, stream = struct.unpack(">BBI", self.received[3:9])
            payload, self.received = self.received[9 : 9 + length], self.received[9 + length :]
            if kind == self.SETTINGS and not flags & 1:
                settings = dict(struct.iter_unpack(">HI", payload))
                self.stream_window = settings.get(4, self.stream_window)
                self.send(self.frame(self.SETTINGS, 1, 0, b""))
                requests = min(self.requests, settings.get(3, self.requests))
                for nth in range(requests):
                    self.begin(2 * nth + 1)
            elif kind == self.PING and not flags & 1:
                self.send(self.frame(self.PING, 1, 0, payload))
            elif kind == self.WINDOW_UPDATE:
                size = int.from_bytes(payload)
                if stream == 0:
                    self.window += size
                elif stream in self.windows:
                    self.windows[stream] += size
            elif kind in (self.HEADERS, self.RST_STREAM) and self.left.pop(stream, None) is not None:
                self.refused += 1
            elif kind == self.GOAWAY:
                return False
        self.fill()
        return True


def send_messages(host, pki, count, requests):
    """Sends unfinished messages in each of `count` connections, and answers keepalives; prints how they ended."""
    context = ssl.create_default_context(cafile=f"{pki}/ca.pem")
    context.load_cert_chain(f"{pki}/controller.pem", f"{pki}/controller.key")
    context.set_alpn_protocols(["h2"])
    all_connections = [Http2(context, host, requests) for _ in range(count)]
    connections, lost = {connection.stream.fileno(): connection for connection in all_connections}, 0
    poll = select.poll()
    for fd in [sys.stdin.fileno(), *connections]:
        poll.register(fd, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == sys.stdin.fileno():
                begun = sum(len(connection.left) for connection in all_connections)
                waiting = sum(sum(connection.left.values()) for connection in all_connections)
                sent_mb = (begun * (MESSAGE_BYTES + 4) - waiting) / 1e6
                print(json.dumps({"unfinished": begun, "sent_mb": sent_mb, "lost": lost, "refused": sum(c.refused for c in all_connections)}))
                return
            try:
                if connections[fd].read():
                    continue
            except OSError:
                pass
            lost += 1
            poll.unregister(fd)


# The testbed and the trials.


def command(*arguments):
    done = subprocess.run([str(argument) for argument in arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(str(argument) for argument in arguments)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")


def namespace(name):
    return f"ccb-flood-{os.getpid()}-{name}"


def inside(name, *arguments):
    """Returns a command line that runs in a namespace; the `ip` process becomes the command."""
    return ["ip", "netns", "exec", namespace(name), *[str(argument) for argument in arguments]]


def make_network(cleanup):
    for name in CONTROL:
        command("ip", "netns", "add", namespace(name))
        cleanup.callback(subprocess.run, ["ip", "netns", "del", namespace(name)], check=False)
        command(*inside(name, "ip", "link", "set", "lo", "up"))
    command(*inside("controller", "ip", "link", "add", "control", "type", "bridge"))
    for name, address in CONTROL.items():
        to = namespace("controller")
        command("ip", "-n", namespace(name), "link", "add", "eth0", "type", "veth", "peer", "name", f"to-{name}", "netns", to)
        command("ip", "-n", to, "link", "set", f"to-{name}", "master", "control", "up")
        command("ip", "-n", namespace(name), "address", "add", f"{address}/24", "dev", "eth0")
        command("ip", "-n", namespace(name), "link", "set", "eth0", "up")
    command("ip", "-n", namespace("controller"), "link", "set", "control", "up")
    for name in NODES:
        # A default without pacing: where there are no control groups version 2, sockets start with it.
        command(*inside(name, "sysctl", "-q", "-w", "net.ipv4.tcp_congestion_control=reno"))
    for end, net in [("src", "10.88.1"), ("dst", "10.88.2")]:
        command("ip", "-n", namespace(end), "link", "add", "path", "type", "veth", "peer", "name", end, "netns", namespace("router"))
        for name, dev, host in [(end, "path", 2), ("router", end, 1)]:
            command("ip", "-n", namespace(name), "address", "add", f"{net}.{host}/24", "dev", dev)
            command("ip", "-n", namespace(name), "link", "set", dev, "up")
        command("ip", "-n", namespace(end), "route", "add", "10.88.0.0/16", "via", f"{net}.1")
    command(*inside("router", "sysctl", "-q", "-w", "net.ipv4.ip_forward=1"))


def start_agents(cleanup, root, binaries):
    """Starts the agents. Returns their pids by node."""
    pids = {}
    for name in NODES:
        pki = {"cert": f"{CONTROL[name]}.pem", "key": f"{CONTROL[name]}.key", "ca": "ca.pem"}
        tls = [text for what, file in pki.items() for text in (f"--tls-{what}", root / "pki" / file)]
        serve = ["serve", "--node", name, "--listen", f"tcp:{CONTROL[name]}:{PORT}", "--state-dir", root / f"agent-{name}"]
        log = open(root / f"{name}.log", "w", encoding="utf-8")
        agent = subprocess.Popen(inside(name, binaries / "ccbench-agent", *serve, *tls), stdin=subprocess.DEVNULL, stderr=log)
        cleanup.callback(stop, agent)
        pids[name] = agent.pid
        deadline = time.monotonic() + 20
        while "listening" not in pathlib.Path(log.name).read_text(encoding="utf-8"):
            if agent.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the agent of {name} does not listen:\n{pathlib.Path(log.name).read_text(encoding='utf-8')}")
            time.sleep(0.05)
    return pids


def stop(process):
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def cpu_s(pid):
    """Returns the user and system time of a process."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def softirq_s():
    return int(pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[7]) / TICKS_PER_S


def rss_mb(pid):
    line = next(line for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024 / 1e6


def refused(state):
    """Returns how many connections an agent has refused so far, according to its audit log."""
    lines = [json.loads(line) for line in (state / "audit.ndjson").read_text(encoding="utf-8").splitlines() if '"refused"' in line]
    return sum(line.get("connections", 1) for line in lines if line["event"].startswith("connection"))


class Bench:
    def __init__(self, binaries, seconds, root, agents):
        self.binaries, self.seconds, self.root, self.agents = binaries, seconds, root, agents
        self.trials = 0
        agent = lambda name: f'{name} = {{ agent = "{CONTROL[name]}:{PORT}", address = "{NODES[name]}" }}\n'
        phase = f'[[phases]]\nname = "only"\nlength = "{seconds}s"\nflows = ["first", "second"]\n'
        self.plan = root / "plan.toml"
        self.plan.write_text(PLAN + "[nodes]\n" + "".join(agent(name) for name in NODES) + phase)

    def trial(self, what, *attack):
        """Runs a trial, together with a process with these arguments if there are any. Prints and returns the measurements."""
        with contextlib.ExitStack() as cleanup:
            measured = self.measure(cleanup, what, attack)
        memory = "before {rss_before:.1f}, at most {rss_most:.1f}, after {rss_after:.1f} MB".format(**measured)
        print(f"{what}: agent {measured['cpu_pct']:.1f} % of a CPU, softirq {measured['softirq_pct']:.1f} %; memory {memory}; {measured['verdict']}")
        if flooded := measured["attack"]:
            print(f"    {', '.join(f'{name} {value:.4g}' if isinstance(value, float) else f'{name} {value}' for name, value in flooded.items())}")
        for reason in measured["reasons"].values():
            print(f"    {reason}")
        sys.stdout.flush()
        return measured

    def measure(self, cleanup, what, attack):
        pid, state = self.agents["router"], self.root / "agent-router"
        before, refused_before = rss_mb(pid), refused(state)
        highest = before
        if attack:
            arguments = inside("flood", sys.executable, pathlib.Path(__file__).resolve(), *attack)
            attacker = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            cleanup.callback(stop, attacker)
            # The flood is under way when the controller connects.
            time.sleep(1)
        self.trials += 1
        out, log = self.root / f"out-{self.trials}", self.root / f"out-{self.trials}.log"
        run = [self.binaries / "ccbench", "run", self.plan, "--out", out, "--pki", self.root / "pki"]
        with open(log, "w", encoding="utf-8") as output:
            environment = {**os.environ, "CCBENCH_STATE": str(self.root / "state")}
            pipes = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
            controller = subprocess.Popen(inside("controller", *run), env=environment, **pipes)
        cleanup.callback(stop, controller)
        begin, end = None, None
        while controller.poll() is None:
            time.sleep(0.05)
            highest = max(highest, rss_mb(pid))
            now = time.monotonic(), cpu_s(pid), softirq_s()
            if begin is None:
                if any("trial_begin" in journal.read_text() for journal in out.glob("*/journal.ndjson")):
                    begin = now
            elif now[0] <= begin[0] + self.seconds:
                end = now
        if begin is None or end is None:
            sys.exit(f"{what}: no trial began:\n{log.read_text()}")
        attacked = {}
        if attack:
            attacked = json.loads(attacker.communicate()[0])
            if "unfinished" in attacked and (attacked["lost"] or attacked["refused"]):
                sys.exit(f"{what}: the agent did not accept the unfinished requests: {attacked}")
        # The agent counts the refused connections of a second when the second is over.
        time.sleep(2)
        if "accepted" in attacked:
            attacked["refused_by_agent"] = refused(state) - refused_before
        elapsed, cpu, softirq = (b - a for a, b in zip(begin, end))
        journal = next(out.glob("*/journal.ndjson")).read_text().splitlines()
        attempts = [line for line in map(json.loads, journal) if line["event"] == "trial_end"]
        reasons = [reason for attempt in attempts for reason in attempt["reasons"]]
        return {
            "cpu_pct": 100 * cpu / elapsed,
            "softirq_pct": 100 * softirq / elapsed,
            "rss_before": before,
            "rss_most": highest,
            "rss_after": rss_mb(pid),
            "attack": attacked,
            "verdict": ", repeated: ".join(attempt["status"] for attempt in attempts),
            "reasons": {reason["code"]: reason["message"] for reason in reasons},
        }


def main():
    if os.geteuid() != 0:
        sys.exit("flood.py makes network namespaces; run it as root")
    binaries = pathlib.Path(sys.argv[1]).resolve()
    seconds, pairs, reopen_ms = (int(sys.argv[nth]) if len(sys.argv) > nth else other for nth, other in [(2, 8), (3, 3), (4, 0)])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with contextlib.ExitStack() as cleanup:
        root = pathlib.Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
        make_network(cleanup)
        command(binaries / "ccbench", "pki", "init", root / "pki")
        for name in NODES:
            command(binaries / "ccbench", "pki", "node", root / "pki", CONTROL[name])
        agents = cleanup.enter_context(contextlib.ExitStack())
        bench = Bench(binaries, seconds, root, start_agents(agents, root, binaries))
        host, pki = CONTROL["router"], root / "pki"
        flooding = f"{CONNECTIONS} connections, reopened after {reopen_ms} ms"
        without, connections, messages = [], [], []
        for _ in range(pairs):
            without.append(bench.trial("without a flood"))
            connections.append(bench.trial(flooding, "--connections", host, CONNECTIONS, reopen_ms / 1e3))
            messages.append(bench.trial(f"{MESSAGES} unfinished requests", "--messages", host, pki, MESSAGES, 1))
        agents.close()
        bench.agents = start_agents(cleanup, root, binaries)
        most = bench.trial("all that a certificate may have", "--messages", host, pki, MOST_CONNECTIONS, sys.maxsize)

    def added_pct(flooded):
        return statistics.median(trial["cpu_pct"] - other["cpu_pct"] for trial, other in zip(flooded, without))

    cpu_pct = added_pct(connections)
    per_s = statistics.median(trial["attack"]["accepted"] / trial["attack"]["elapsed_s"] for trial in connections)
    print(f"{flooding}: {cpu_pct:+.1f} % of a CPU with {per_s:.0f} accepted connections per second (medians)")
    message_mb = max(trial["rss_most"] - trial["rss_before"] for trial in messages)
    # Both with agents that have just started.
    most_mb = (most["rss_most"] - most["rss_before"]) - (without[0]["rss_most"] - without[0]["rss_before"])
    print(f"{MESSAGES} unfinished requests: {added_pct(messages):+.1f} % of a CPU (median), {message_mb:.1f} MB (largest)")
    print(f"all requests that a certificate may have, {most['attack']['unfinished']} unfinished requests: {most_mb:.1f} MB more than the first trial")
    missed = [f"CPU {cpu_pct:.1f} % > {CPU_GOAL_PCT} %"] * (cpu_pct > CPU_GOAL_PCT)
    missed += [f"memory {mb:.0f} MB > {MEMORY_GOAL_MB:.0f} MB" for mb in (message_mb, most_mb) if mb >= MEMORY_GOAL_MB]
    usual = {code for trial in without for code in trial["reasons"]}
    caused = {code for trial in [*connections, *messages, most] for code in trial["reasons"]} - usual
    if "cpu_bound" in usual:
        print(f"other processes use the CPUs even without a flood, so these reasons are not judged: {', '.join(sorted(TIMING_REASONS & (caused | usual)))}")
        caused -= TIMING_REASONS
    by_process_1 = [code for code in caused if all(NO_BPF in trial["reasons"].get(code, NO_BPF) for trial in [*connections, *messages, most])]
    if by_process_1:
        print(f"not judged, because the kernel runs no BPF program for segments that process 1 handles: {', '.join(sorted(by_process_1))}")
        caused -= set(by_process_1)
    missed += [f"trials with reasons that none without a flood has: {', '.join(sorted(caused))}"] * bool(caused)
    if missed:
        sys.exit(f"missed: {'; '.join(missed)}")


if __name__ == "__main__":
    if sys.argv[1] == "--connections":
        flood(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
    elif sys.argv[1] == "--messages":
        send_messages(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        main()
