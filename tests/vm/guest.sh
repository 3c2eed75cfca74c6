# Runs in the guest: tests modules, then BPF objects, over 100 Mbit/s HTB with a bfifo of 187500 bytes and netem's 10 ms. Lines "ok ..." and
# "FAIL ..." are the verdict; the rest is for people to read.
failed=0
ok() { echo "ok $*"; }
fail() { echo "FAIL $*"; failed=1; }
check() { # TEXT TEST-ARGUMENTS...
	text=$1; shift
	if [ "$@" ]; then ok "$text"; else fail "$text (not: $*)"; fi
}
available() { grep -qw "$1" /proc/sys/net/ipv4/tcp_available_congestion_control; }

path() {
	for n in s r d; do ip netns add $n; ip -n $n link set lo up; done
	ip link add s0 netns s type veth peer name rs netns r
	ip link add d0 netns d type veth peer name rd netns r
	ip -n s addr add 10.1.0.2/24 dev s0; ip -n r addr add 10.1.0.1/24 dev rs
	ip -n d addr add 10.2.0.2/24 dev d0; ip -n r addr add 10.2.0.1/24 dev rd
	for x in "s s0" "r rs" "r rd" "d d0"; do
		set -- $x
		ip -n $1 link set $2 up
		ip netns exec $1 ethtool -K $2 tso off gso off gro off 2>/dev/null
	done
	ip -n s route add default via 10.1.0.1; ip -n d route add default via 10.2.0.1
	ip netns exec r sysctl -qw net.ipv4.ip_forward=1
	tc -n r qdisc add dev rs root netem delay 10ms limit 10000
	tc -n r qdisc add dev rd root handle 1: htb default 1
	tc -n r class add dev rd parent 1: classid 1:1 htb rate 100mbit ceil 100mbit burst 3k
	queue bfifo limit 187500
	servers
}
queue() {
	tc -n r qdisc del dev rd parent 1:1 2>/dev/null
	tc -n r qdisc add dev rd parent 1:1 "$@"
}
# A listener keeps the congestion control that was the namespace's default when the listener was created.
servers() {
	[ -z "$servers" ] || kill $servers
	servers=
	for port in 5201 5202; do
		ip netns exec d iperf3 -s -p $port >/dev/null 2>&1 &
		servers="$servers $!"
	done
	sleep 0.5
}
servers=

# flow CC SECONDS PORT: measures mean goodput in Mbit/s after the first 2 s and mean srtt in ms; writes "rate rtt" to /tmp/CC.
flow() {
	ip netns exec s iperf3 -c 10.2.0.2 -p $3 -t $2 -i 1 -C $1 -f m >/tmp/$1.iperf 2>&1 &
	pid=$!
	i=0; : >/tmp/$1.rtt
	while kill -0 $pid 2>/dev/null; do
		i=$((i + 1))
		[ $i -gt 8 ] && ip netns exec s ss -tinH "dport = :$3" | grep "$1 " | grep -oE ' rtt:[0-9.]+' | sort -t: -k2 -n | tail -1 >>/tmp/$1.rtt
		sleep 0.25
	done
	awk -v s=$2 '/sec/ && !/sender|receiver/ {split($3, t, "-"); if (t[1] >= 2 && t[2] <= s) {for (j = 1; j <= NF; j++) if ($j == "Mbits/sec") {sum += $(j - 1); n++}}} END {printf "%d ", n ? sum / n : 0}' /tmp/$1.iperf >/tmp/$1
	awk -F: '{sum += $2; n++} END {printf "%d\n", n ? sum / n : 0}' /tmp/$1.rtt >>/tmp/$1
}

# Alone: the link is used, and the delay is what the algorithm promises.
alone() { # KIND CC MIN_RATE MIN_RTT MAX_RTT
	flow $2 7 5201
	read -r rate rtt </tmp/$2
	echo "$1 $2 alone: $rate Mbit/s, $rtt ms"
	check "$1 $2 alone: rate $rate" "$rate" -ge $3
	check "$1 $2 alone: srtt $rtt" "$rtt" -ge $4 -a "$rtt" -le $5
}
shape() { # KIND ALGORITHM CC
	case $2 in
	vegas | ta) alone $1 $3 80 10 15 ;;
	cx) alone $1 $3 65 10 14 ;;
	dctcp | prague) alone $1 $3 80 14 27 ;;
	*) alone $1 $3 75 10 22 ;;
	esac
}
# Beside CUBIC: Vegas starves, threshold adaptation does not.
beside_cubic() { # KIND CC MIN MAX
	flow cubic 12 5202 & other=$!
	flow $2 12 5201
	wait $other
	read -r rate rtt </tmp/$2; read -r cubic _ </tmp/cubic
	echo "$1 $2 beside cubic: $rate and $cubic Mbit/s, $rtt ms"
	check "$1 $2 beside cubic: rate $rate" "$rate" -ge $3 -a "$rate" -le $4
}
# Behind a step at 3 ms: the delay stays there, and every mark is counted.
marks() { # KIND CC
	for n in s d; do
		ip netns exec $n sysctl -qw net.ipv4.tcp_ecn=1
		ip netns exec $n sysctl -qw net.ipv4.tcp_congestion_control=$2 || fail "$1 $2 as a namespace's default"
	done
	servers
	queue fq_codel flows 1 limit 1000 target 900ms interval 1s ce_threshold 3ms
	before=$(ip netns exec s nstat -azs TcpExtTCPDeliveredCE | awk '/DeliveredCE/ {print $2}')
	flow $2 7 5201
	sleep 1 # the last packets are still under way
	after=$(ip netns exec s nstat -azs TcpExtTCPDeliveredCE | awk '/DeliveredCE/ {print $2}')
	marked=$(tc -n r -s qdisc show dev rd | grep -oE 'ce_mark [0-9]+' | awk '{sum += $2} END {print sum + 0}')
	counted=$((after - before))
	read -r rate rtt </tmp/$2
	echo "$1 $2 at a step of 3 ms: $rate Mbit/s, $rtt ms, marked $marked, counted $counted"
	check "$1 $2 at a step: rate $rate" "$rate" -ge 70
	check "$1 $2 at a step: srtt $rtt" "$rtt" -ge 10 -a "$rtt" -le 15
	check "$1 $2 at a step: marked $marked, counted $counted" "$marked" -gt 10 -a $((counted * 100)) -ge $((marked * 97)) -a $((counted * 100)) -le $((marked * 103))
	for n in s d; do
		ip netns exec $n sysctl -qw net.ipv4.tcp_ecn=2
		ip netns exec $n sysctl -qw net.ipv4.tcp_congestion_control=cubic
	done
	servers
	queue bfifo limit 187500
}
unload() { # MODULE: sockets in TIME_WAIT hold nothing, but one may still be closing
	for _ in 1 2 3 4 5 6 7 8 9 10; do
		rmmod $1 2>/tmp/e && return 0
		sleep 1
	done
	return 1
}

one_module() { # ALGORITHM
	m=ccb_$1
	insmod /mods/$m.ko || { fail "module $m does not load: $(dmesg | tail -1)"; return; }
	available $m && ok "module $m is registered" || fail "module $m is not registered"
	ip netns exec s cat /dev/$m >/tmp/none 2>&1 # EAGAIN, at once
	shape module $1 $m
	case $1 in
	vegas) beside_cubic module $m 0 25 ;;
	ta) # without coming back, which costs share at random in so short a time
		echo 0 >/sys/module/$m/parameters/comeback
		beside_cubic module $m 14 75 # Vegas gets 8 to 11 in these 10 s, this 18 to 55
		;;
	dctcp | prague) marks module $m ;;
	esac
	if unload $m; then ok "module $m unloads"; else fail "module $m does not unload: $(cat /tmp/e)"; fi
	available $m && fail "module $m is still registered"
}
# Wrong parameters are rejected by name; instances have their own parameters; rows come out.
parameters() {
	dmesg -c >/dev/null
	insmod /mods/ccb_ta.ko betao=5 2>/dev/null && fail "betao=5 is accepted"
	dmesg | grep -q 'betao = 5: allowed are 100 to 1000000' && ok "a wrong parameter is refused by name" || fail "the log does not say why: $(dmesg | tail -2)"
	insmod /mods/ccb_ta.ko starve_rst=3 inc_thresh=2 2>/dev/null && fail "starve_rst > inc_thresh is accepted"
	insmod /mods/ccb_ta.ko betao=3000 || fail "betao=3000 is refused"
	p=/sys/module/ccb_ta/parameters
	check "a parameter is in force" "$(cat $p/betao)" = 3000
	echo 5 2>/dev/null >$p/betao && fail "a live betao=5 is accepted"
	echo "ta_slow betao=7000 comeback=0" >$p/add || fail "no second instance"
	echo "ta_bad betao=7" 2>/dev/null >$p/add && fail "a bad instance is accepted"
	echo "cubic betao=7000" 2>/dev/null >$p/add && fail "a name that is taken is accepted"
	echo "sixteen_letters_" 2>/dev/null >$p/add && fail "a name of 16 letters is accepted"
	grep -q '^ta_slow .*comeback=0 betao=7000 ' $p/instances && ok "a second instance has its own parameters" || fail "instances: $(cat $p/instances)"
	available ta_slow || fail "the second instance is not registered"
	ip netns exec s dash -c 'exec 8</dev/ccb_ta; iperf3 -c 10.2.0.2 -t 3 -C ta_slow >/tmp/slow; cat <&8 >/tmp/rows 2>/dev/null; cat /proc/$$/fdinfo/8 >/tmp/fdinfo'
	size=$(wc -c </tmp/rows)
	check "rows of inner state: $((size / 80))" $((size / 80)) -gt 50 -a $((size % 80)) = 0
	check "rows that were lost" "$(awk '/^rows_lost:/ { print $2 }' /tmp/fdinfo)" = 0
	echo ta_slow >$p/remove || fail "an instance cannot be removed"
	available ta_slow && fail "a removed instance is still there"
	unload ccb_ta || fail "ccb_ta with instances does not unload"
}
one_bpf() { # ALGORITHM
	name=b_$1; flags=1
	case $1 in dctcp | prague) flags=3 ;; esac
	ROWS=/tmp/rows.$1 /load /bpf/ccb_$1.bpf.o $name $flags >/tmp/load.$1 2>&1 &
	loader=$!
	for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do grep -q attached /tmp/load.$1 2>/dev/null && break; sleep 0.2; done
	available $name || { fail "bpf $1 does not load: $(tail -3 /tmp/load.$1)"; kill $loader 2>/dev/null; return; }
	ok "bpf $1 loads"
	case $1 in
	ta | bbr3) shape bpf $1 $name ;;
	prague) marks bpf $name ;;
	*) flow $name 3 5201; echo "bpf $name: $(cat /tmp/$name) (3 s)" ;;
	esac
	kill $loader; wait $loader
	rows=$(sed -n 's/rows //p' /tmp/load.$1)
	check "bpf $1: rows $rows" "${rows:-0}" -gt 10
	available $name && fail "bpf $1 is still registered"
	[ $failed = 0 ] || awk 'NR % 25 == 1' /tmp/rows.$1 | cut -c1-110
}

# loaded NAME [KEY=VALUE | OPTION]...: the agent holds a congestion control and is killed; whoever starts next removes what is left.
loaded() {
	name=$1; shift
	/agent cc load ta --as $name "$@" >/tmp/agent.$name 2>&1 &
	agent=$!
	for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do available $name && break; sleep 0.5; done
}
by_agent() {
	release=$(uname -r)
	loaded ag_bpf --via bpf betao=5000
	if available ag_bpf; then ok "agent: bpf"; else fail "agent: bpf: $(cat /tmp/agent.ag_bpf)"; fi
	flow ag_bpf 4 5201
	read -r rate _ </tmp/ag_bpf
	check "agent: bpf carries a flow: $rate" "$rate" -ge 50
	kill -9 $agent; wait $agent 2>/dev/null
	sleep 1
	left=$(available ag_bpf && echo left || echo gone)
	# Before 6.4, struct_ops has no links: the congestion control outlives its agent, and the next one unregisters it.
	case $release in
	6.[0-3].*) check "agent: bpf without a link after its kill: $left" $left = left ;;
	*) check "agent: bpf after its kill: $left" $left = gone ;;
	esac
	/agent clean >/tmp/undo 2>&1
	if available ag_bpf; then fail "agent: bpf is still there: $(cat /tmp/undo)"; else ok "agent: bpf is gone after clean"; fi

	mkdir -p /lib/modules/$release/extra; : >/lib/modules/$release/modules.builtin
	cp /other/ccb_ta.ko /lib/modules/$release/extra/
	echo "extra/ccb_ta.ko:" >/lib/modules/$release/modules.dep
	timeout 20 /agent cc load ta --as ag_mod --via module >/tmp/refused 2>&1 && fail "agent: another kernel's module is taken"
	grep -q 'built for a kernel other than .*make -C kmod module-install' /tmp/refused &&
		ok "agent: another kernel's module is refused in words" || fail "agent: another kernel's module: $(cat /tmp/refused)"
	[ -e /sys/module/ccb_ta ] && fail "agent: another kernel's module is half there"
	cp /mods/ccb_ta.ko /lib/modules/$release/extra/
	loaded ag_mod --via module betao=7000
	if available ag_mod; then ok "agent: module"; else fail "agent: module: $(cat /tmp/agent.ag_mod)"; fi
	grep -q '^ag_mod .*betao=7000 ' /sys/module/ccb_ta/parameters/instances && ok "agent: the module's instance has its parameters" ||
		fail "agent: instances: $(cat /sys/module/ccb_ta/parameters/instances)"
	flow ag_mod 4 5201
	read -r rate _ </tmp/ag_mod
	check "agent: module carries a flow: $rate" "$rate" -ge 50
	kill -9 $agent; wait $agent 2>/dev/null
	sleep 3 # sockets that close still use it
	available ag_mod && ok "agent: an instance of a module outlives its agent" || fail "agent: the instance is gone by itself"
	/agent clean >/tmp/undo 2>&1
	if available ag_mod || [ -e /sys/module/ccb_ta ]; then fail "agent: the module is still there: $(cat /tmp/undo)"; else ok "agent: instance and module are gone after clean"; fi
}

path
if insmod /mods/ccb_agree.ko; then
	cat /rows.bin >/dev/ccb_agree
	p=/sys/module/ccb_agree/parameters
	check "cores in the kernel: $(cat $p/calls) calls answered as the golden files say" "$(cat $p/mismatches)" = 0 -a "$(cat $p/calls)" -gt 10000
	rmmod ccb_agree
fi
all=$(cat /only)
case " $all " in *" ta "*) parameters; by_agent ;; esac
for a in $all; do one_module $a; done
for a in $all; do one_bpf $a; done
dmesg | grep -E 'BUG|WARNING|Oops|Call Trace' && fail "the kernel complains"
exit $failed
