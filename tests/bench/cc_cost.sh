#!/usr/bin/env bash
# Measures the cost of a congestion control in BPF on an unshaped veth: nanoseconds per ACK of all its programs (bpf_stats), medians of
# rounds. Needs root; prints two tables. Usage: cc_cost.sh [SECONDS [ROUNDS]]
# Our congestion controls record rows as the agent makes bbr3 do: one per 7.5 ms. With ROW_GAP_US=0 in the environment, they record one per
# round trip, which on this path may be one per ACK; with RECORD=0, none.
# - Beside the kernel's reno, interleaved: the time with the overhead of counting, and goodput. reno_kfunc is the lower bound of the cost in
#   BPF. Fails if vegas does not reach 95 % of reno's goodput.
# - bbr3 and bbr2 beside the kernel's bbr, which bbr_kfunc calls from BPF. Needs Linux 6.10 with bbr built in. The cost of counting, which
#   the object `empty` measures, is subtracted for every run of a program. The way into a program, which bpf_stats does not see, is not
#   included. Fails if bbr3 takes more than 1.3 times as long as bbr.
set -euo pipefail
export LC_ALL=C
least=95 most=1.30
export ROW_GAP_US=${ROW_GAP_US:-7501}
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
for object in empty reno_kfunc bbr_kfunc; do
	"$clang" -target bpf -mcpu=v3 -O2 -g -fno-strict-aliasing -c -o "$d/ccb_$object.bpf.o" "$here/$object.bpf.c"
done
cp "$here"/../../kmod/build/bpf/ccb_*.bpf.o "$d/"

ip netns add ccb_cost_s
ip netns add ccb_cost_d
ip link add v0 netns ccb_cost_s type veth peer name v0 netns ccb_cost_d
ip -n ccb_cost_s addr add 10.98.0.1/24 dev v0
ip -n ccb_cost_d addr add 10.98.0.2/24 dev v0
ip -n ccb_cost_s link set v0 up
ip -n ccb_cost_d link set v0 up
# With bbr as the default, every socket would stay paced: iperf3 sets its congestion control after connect.
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

# start OBJECT: registers it as cost_OBJECT
start() {
	"$d/load" "$d/ccb_$1.bpf.o" "cost_$1" 1 >"$d/out" 2>"$d/err" &
	loader=$!
	for _ in $(seq 50); do
		grep -q attached "$d/out" && return
		sleep 0.1
	done
	cat "$d/err"
	exit 1
}
# counted OBJECT: one flow with it, which is counted, and its end: "NS RUNS ACKS" of all programs
counted() {
	sysctl -qw kernel.bpf_stats_enabled=1
	flow "cost_$1" >/dev/null
	sysctl -qw kernel.bpf_stats_enabled=0
	kill "$loader"
	wait "$loader" || true
	loader=''
	awk '$1 == "program" {
			ns += $3; runs += $4
			if ($2 ~ /cong_control|pkts_acked/ && $4 > acks) acks = $4
		}
		END { printf "%.0f %.0f %.0f\n", ns, runs, acks }' "$d/out"
}

printf '%-12s %9s %9s %12s %12s\n' algorithm Mbit/s /reno 'ns per ACK' 'ACKs'
for object in reno_kfunc vegas ta cx dctcp prague bbr2 bbr3; do
	start "$object"
	: >"$d/ours"; : >"$d/reno"
	for _ in $(seq "$rounds"); do
		flow reno >>"$d/reno"
		flow "cost_$object" >>"$d/ours"
	done
	counted "$object" >"$d/cost"
	read -r ns _ acks <"$d/cost"
	ours=$(median <"$d/ours") reno=$(median <"$d/reno")
	share=$((ours * 100 / reno))
	[ "$object" != vegas ] || judged=$share
	printf '%-12s %9d %8d%% %12d %12d\n' "$object" "$ours" "$share" $((ns / acks)) "$acks"
done

for _ in $(seq "$rounds"); do
	for object in empty bbr_kfunc bbr3 bbr2; do
		start "$object"
		counted "$object" >>"$d/cost.$object"
	done
done
counting=$(awk '{ printf "%.2f\n", $1 / $2 }' "$d/cost.empty" | median)
# net OBJECT: nanoseconds per ACK without counting
net() { awk -v counting="$counting" '{ printf "%.1f\n", ($1 - counting * $2) / $3 }' "$d/cost.$1" | median; }
bbr=$(net bbr_kfunc)
printf '\n%-12s %12s %9s\n' algorithm 'ns per ACK' /bbr
printf '%-12s %12s %9s\n' "kernel's bbr" "$bbr" ''
for object in bbr3 bbr2; do
	ours=$(net "$object")
	ratio=$(awk -v ours="$ours" -v bbr="$bbr" 'BEGIN { printf "%.2f", ours / bbr }')
	[ "$object" != bbr3 ] || of_bbr3=$ratio
	printf '%-12s %12s %9s\n' "$object" "$ours" "$ratio"
done
echo "load $(cut -d' ' -f1-3 /proc/loadavg), $rounds rounds of $seconds s, counting takes $counting ns; vegas reaches $judged % of reno" \
	"(required: at least $least %); bbr3 takes $of_bbr3 times as long as bbr (required: at most $most)"
[ "$judged" -ge "$least" ] && awk -v ratio="$of_bbr3" -v most="$most" 'BEGIN { exit !(ratio + 0 <= most + 0) }'
