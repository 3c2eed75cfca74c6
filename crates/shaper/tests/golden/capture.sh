#!/bin/bash
# Recreates the *.hex files in this directory: the netlink message that `tc` sends for each command
# below, captured with strace in a network namespace. Needs root, strace and iproute2 6.1 or later.
# dualpi2.hex is derived from the kernel's headers by hand and is not touched. Usage: ./capture.sh
set -eu
cd "$(dirname "$0")"
if [ "${1:-}" != inside ]; then
	exec unshare -n "$0" inside
fi
ip link add v0 type veth peer name v1
tc qdisc add dev v0 root handle 1: htb default 0x10
tc class add dev v0 parent 1: classid 1:1 htb rate 100mbit
log=$(mktemp)
trap 'rm -f "$log"' EXIT

capture() { # name, arguments of tc
	local name=$1
	shift
	# tc sends the message even if the kernel then refuses it, so every kind can be captured on
	# any kernel.
	strace -qq -e trace=sendmsg -e write=all -o "$log" tc "$@" >/dev/null 2>&1 || true
	{
		echo "# tc $*"
		awk '/^sendmsg/ { hex = "" }
		     /^ \| / { hex = hex substr($0, 11, 49) }
		     END { gsub(/ /, "", hex); print hex }' "$log" | fold -w 64
	} >"$name.hex"
	echo "$name: $(tail -n +2 "$name.hex" | tr -d '\n' | wc -c) digits"
}

# The message contains the kind that it adds. Where the queue hangs does not matter for these files.
leaf="qdisc add dev v0 parent 1:10 handle 10:"
capture htb_qdisc qdisc add dev v0 root handle 1: htb default 0x10
capture htb_class class add dev v0 parent 1: classid 1:10 htb rate 100mbit ceil 100mbit burst 3200 cburst 3200 quantum 1514
capture htb_class_ceil class add dev v0 parent 1:1 classid 1:11 htb rate 20mbit ceil 100mbit burst 1600 cburst 3200 quantum 1514
capture htb_class_fast class add dev v0 parent 1: classid 1:10 htb rate 40gbit ceil 40gbit burst 1250000 cburst 1250000 quantum 60000
capture htb_class_change class change dev v0 parent 1: classid 1:1 htb rate 50mbit ceil 50mbit burst 1600 cburst 1600 quantum 1514
capture htb_class_prio class add dev v0 parent 1:1 classid 1:11 htb rate 20mbit ceil 100mbit burst 1600 cburst 3200 quantum 1514 prio 3 overhead 24
capture tbf_overhead qdisc add dev v0 root handle 1: tbf rate 100mbit burst 3200 limit 187500 overhead 24
capture tbf qdisc add dev v0 root handle 1: tbf rate 100mbit burst 3200 limit 187500
capture tbf_fast qdisc add dev v0 root handle 1: tbf rate 40gbit burst 1250000 limit 187500
capture pfifo $leaf pfifo limit 100
capture bfifo $leaf bfifo limit 187500
capture netem_delay $leaf netem delay 15ms limit 1000
capture netem_loss $leaf netem delay 0ms loss 0.1% limit 1000
capture netem_both $leaf netem delay 5000ms loss 50% limit 100000
capture netem_jitter $leaf netem delay 20ms 5ms 25% limit 1000
capture netem_ordered $leaf netem delay 20ms 5ms limit 1000 rate 8tbit
capture netem_gemodel $leaf netem delay 20ms loss gemodel 1% 25% 50% 0.1% limit 1000
capture netem_damage $leaf netem delay 20ms reorder 2% duplicate 1% corrupt 0.5% limit 1000
capture netem_slot $leaf netem delay 0ms limit 40 slot 5ms 10ms packets 32 bytes 12500
capture pfifo_head_drop $leaf pfifo_head_drop limit 100
capture pie $leaf pie limit 500 target 20ms tupdate 30ms alpha 4 beta 25 ecn bytemode
capture pie_plain $leaf pie
capture red $leaf red limit 400000 min 30000 max 90000 avpkt 1000 burst 55 probability 0.05 bandwidth 100mbit ecn harddrop adaptive
capture red_plain $leaf red limit 400000 min 30000 max 90000 avpkt 1000 bandwidth 10mbit
capture fq $leaf fq limit 1000 flow_limit 200 buckets 2 ce_threshold 1ms orphan_mask 1023
capture fq_plain $leaf fq
capture codel $leaf codel limit 500 target 5ms interval 100ms ecn ce_threshold 1ms
capture codel_noecn $leaf codel noecn
capture fq_codel $leaf fq_codel limit 500 flows 64 target 5ms interval 100ms quantum 1514 ecn ce_threshold 1ms memory_limit 4194304
capture fq_codel_plain $leaf fq_codel
capture cake $leaf cake rtt 50ms memlimit 4194304
capture cake_plain $leaf cake
capture cake_ack_filter $leaf cake rtt 50ms ack-filter-aggressive
capture u32_police filter add dev v0 parent 1: protocol all prio 1 u32 match u32 0 0 at 0 flowid 1:1 action police rate 10mbit burst 100000 overhead 24 drop
capture u32_dst filter add dev v0 parent 1: protocol ip prio 1 u32 match ip dst 10.0.1.2/32 match ip dsfield 0xb8 0xfc flowid 1:11
capture u32_ports filter add dev v0 parent 1: protocol ip prio 1 u32 match ip src 10.0.1.2/32 match ip ihl 5 0x0f match u16 0 0x1fff at 6 match ip protocol 6 0xff match ip sport 5201 0xffff match ip dport 40000 0xffff flowid 1:11
capture u32_v6 filter add dev v0 parent 1: protocol ipv6 prio 2 u32 match ip6 dst fd00::1/128 match ip6 protocol 17 0xff match ip6 dport 5201 0xffff flowid 1:11
capture u32_ecn filter add dev v0 parent 1: protocol ip prio 1 u32 match ip dst 10.0.1.2/32 match ip dsfield 0xb9 0xff flowid 1:11
capture u32_v6_ecn filter add dev v0 parent 1: protocol ipv6 prio 2 u32 match ip6 dst fd00::1/128 match u32 0x00100000 0x00300000 at 0 flowid 1:11
