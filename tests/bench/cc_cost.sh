#!/usr/bin/env bash
# Cost of a congestion control in BPF: nanoseconds per ACK (all its programs, with the overhead of bpf_stats) and goodput
# on an unshaped veth compared with the kernel's reno, interleaved: medians. reno_kfunc is the lower bound of the cost in
# BPF. As root; prints a table, and fails if vegas does not reach 95 % of reno. Usage: cc_cost.sh [SECONDS [ROUNDS]]
set -euo pipefail
least=95
here=$(cd "$(dirname "$0")" && pwd)
seconds=${1:-3} rounds=${2:-3}
d=$(mktemp -d)
stats=$(sysctl -n kernel.bpf_stats_enabled)
loader='' server=''
cleanup() {
	[ -z "$loader" ] || kill "$loader" 2>/dev/null || true
	[ -z "$server" ] || kill "$server" 2>/dev/null || true
	sysctl -qw kernel.bpf_stats_enabled="$stats"
	ip netns del ccb_cost_s 2>/dev/null || true
	ip netns del ccb_cost_d 2>/dev/null || true
	rm -rf "$d"
}
trap cleanup EXIT
make -s -C "$here/../../kmod" bpf
"$here/../vm/loader.sh" "$d/load"
clang=$(command -v clang-19 || command -v clang)
"$clang" -target bpf -mcpu=v3 -O2 -g -fno-strict-aliasing -c -o "$d/ccb_reno_kfunc.bpf.o" "$here/reno_kfunc.bpf.c"
cp "$here"/../../kmod/build/bpf/ccb_*.bpf.o "$d/"

ip netns add ccb_cost_s
ip netns add ccb_cost_d
ip link add v0 netns ccb_cost_s type veth peer name v0 netns ccb_cost_d
ip -n ccb_cost_s addr add 10.98.0.1/24 dev v0
ip -n ccb_cost_d addr add 10.98.0.2/24 dev v0
ip -n ccb_cost_s link set v0 up
ip -n ccb_cost_d link set v0 up
# A default of bbr would leave every socket paced: iperf3 sets its congestion control after connect.
for ns in ccb_cost_s ccb_cost_d; do ip netns exec $ns sysctl -qw net.ipv4.tcp_congestion_control=reno; done
ip netns exec ccb_cost_d iperf3 -s >/dev/null &
server=$!
disown
sleep 0.5

# flow CC: goodput in Mbit/s
flow() {
	ip netns exec ccb_cost_s iperf3 -c 10.98.0.2 -t "$seconds" -C "$1" -J |
		python3 -c 'import json,sys; print(int(json.load(sys.stdin)["end"]["sum_received"]["bits_per_second"] / 1e6))'
}
median() { sort -n | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }

printf '%-12s %9s %9s %12s %12s\n' algorithm Mbit/s /reno 'ns per ACK' 'ACKs'
for object in reno_kfunc vegas ta cx dctcp prague bbr2 bbr3; do
	"$d/load" "$d/ccb_$object.bpf.o" "cost_$object" 1 >"$d/out" 2>"$d/err" &
	loader=$!
	for _ in $(seq 50); do grep -q attached "$d/out" && break; sleep 0.1; done
	grep -q attached "$d/out" || { cat "$d/err"; exit 1; }
	: >"$d/ours"; : >"$d/reno"
	for _ in $(seq "$rounds"); do
		flow reno >>"$d/reno"
		flow "cost_$object" >>"$d/ours"
	done
	sysctl -qw kernel.bpf_stats_enabled=1
	flow "cost_$object" >/dev/null
	sysctl -qw kernel.bpf_stats_enabled=0
	# What runs most often runs at every ACK.
	cat /proc/"$loader"/fdinfo/* | awk '
		$1 == "run_time_ns:" { ns += $2 }
		$1 == "run_cnt:" && $2 > acks { acks = $2 }
		END { print int(ns / (acks ? acks : 1)), acks + 0 }' >"$d/cost"
	kill "$loader"; wait "$loader" || true
	loader=''
	read -r ns acks <"$d/cost"
	ours=$(median <"$d/ours") reno=$(median <"$d/reno")
	share=$((ours * 100 / reno))
	[ "$object" != vegas ] || judged=$share
	printf '%-12s %9d %8d%% %12d %12d\n' "$object" "$ours" "$share" "$ns" "$acks"
done
echo "load $(cut -d' ' -f1-3 /proc/loadavg), $rounds rounds of $seconds s; vegas reaches $judged % of reno, at least $least % wanted"
[ "$judged" -ge "$least" ]
