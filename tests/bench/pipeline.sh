#!/usr/bin/env bash
# Compares the coexistence study's processing of a trial's files (awk, sed, grep, paste) with `ccbench summarize` on the same files,
# imported: seconds per trial, and the six columns of both. The files are generated: delay-based flows for 180 s, CUBIC flows between 60 and
# 120 s, a sample and an interval every 0.1 s, five trials.
# Usage: pipeline.sh DIRECTORY-OF-BINARIES [DELAY-BASED FLOWS] [CUBIC FLOWS] [TRIALS]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=$1 delay=${2:-1} cubic=${3:-1} trials=${4:-5}
command -v bc > /dev/null || { echo "pipeline: install bc" >&2; exit 1; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
now() { date +%s.%N; }

# Two lines per socket as `ss -eipn | ts` writes them, and iperf3's text with a timestamp.
generate() {
    local trial=$1
    awk -v trial="$trial" -v delay="$delay" -v cubic="$cubic" -v ss="ss-$trial.txt" -v iperf="iperf-$trial.txt" '
    function socket(t, port, server, fd, cc, rtt, cwnd, sent) {
        printf "%.6f tcp ESTAB 0      0      10.0.1.1:%d 10.0.3.1:%d users:((\"iperf3\",pid=%d,fd=%d)) uid:1000 ino:%d sk:%d cgroup:/user.slice <->\n",
            t, port, server, 1000 + server, fd, port, port > ss
        printf "%.6f \t ts sack %s wscale:7,7 rto:220 rtt:%.3f/%.3f ato:40 mss:1448 pmtu:1500 rcvmss:536 advmss:1448 cwnd:%d bytes_sent:%.0f bytes_acked:%.0f segs_out:%d segs_in:%d data_segs_out:%d send %dbps lastsnd:4 lastrcv:4 lastack:4 pacing_rate %dbps delivery_rate %dbps delivered:%d busy:%.0fms unacked:%d rcv_space:14480 rcv_ssthresh:64088 notsent:90468 minrtt:10.1\n",
            t + 0.004, cc, rtt, rtt / 20, cwnd, sent, sent, sent / 1448, sent / 2896, sent / 1448, cwnd * 11584000 / rtt, cwnd * 13900800 / rtt, cwnd * 11584000 / rtt, sent / 1448, (t - t0) * 1000, cwnd > ss
    }
    BEGIN {
        srand(trial); t0 = 1700000000 + trial * 1000
        print t0 " Connecting to host dstn, port 5201" > iperf
        for (i = 0; i < delay; i++)
            printf "%.6f [%3d] local 10.0.1.1 port %d connected to 10.0.3.1 port 5201\n", t0, 5 + i, 40001 + i > iperf
        print t0 " [ ID] Interval           Transfer     Bitrate         Retr  Cwnd" > iperf
        for (step = 0; step < 1800; step++) {
            t = t0 + step / 10
            middle = step >= 600 && step < 1200
            rtt = (middle ? 24 : 11) + rand()
            rate = (middle ? 12 : 95) / delay
            socket(t, 40000, 5201, 3, "cubic", 10.2, 10, 200)
            for (i = 0; i < delay; i++) {
                socket(t + i / 1000, 40001 + i, 5201, 5 + i, "vegas", rtt, 20 + int(60 * rand()), sent[i])
                mbit = rate * (0.9 + 0.2 * rand())
                sent[i] += mbit * 12500
                printf "%.6f [%3d] %6.2f-%-6.2f sec  %.2f MBytes  %.1f Mbits/sec    0    %d KBytes\n",
                    t + 0.1, 5 + i, step / 10, (step + 1) / 10, mbit / 83.886, mbit, 100 * rand() > iperf
            }
            if (middle) {
                socket(t, 41000, 5202, 3, "cubic", 10.2, 10, 200)
                for (i = 0; i < cubic; i++)
                    socket(t + i / 1000, 41001 + i, 5202, 5 + i, "cubic", rtt, 150, 100000 * (step - 599))
            }
        }
    }'
}

# The study's way: it cuts intervals by their number, finds the control connection by its descriptor and the second server by its port,
# greps each field, and finds phases by the first sample.
study() {
    local trial=$1 lines=$((599 * delay)) phase
    printf '%s' "$trial" > row
    grep '\[ ' "iperf-$trial.txt" | grep sec | grep -v '0.00-1' | awk '{ print $3","$4","$8","$10 }' | tr -d ']' \
        | sed 's/-/,/g; s/,/ /g' > iperf.csv
    for phase in 0 1 2; do
        sed "1,$((phase * lines))d" iperf.csv | head -n "$lines" > part.csv || true
        awk '{ total += $4; n++ } END { printf ",%.2f", n ? total / n : 0 }' part.csv >> row
    done
    cp "ss-$trial.txt" ss.txt
    sed -i '/fd=3/d' ss.txt
    sed -i '/10.0.3.1:5202/d' ss.txt
    sed -e ':a; /<->$/ { N; s/<->\n//; ba; }' ss.txt | grep iperf3 > one.txt
    awk '{ print $1 }' one.txt > ts.txt
    grep -oP '\bcwnd:.*?(\s|$)' one.txt | awk -F '[:,]' '{ print $2 }' | tr -d ' ' > cwnd.txt
    grep -oP '\brtt:.*?(\s|$)' one.txt | awk -F '[:,]' '{ print $2 }' | tr -d ' ' | cut -d/ -f1 > srtt.txt
    grep -oP '\bfd=.*?(\s|$)' one.txt | awk -F '[=,]' '{ print $2 }' | tr -d ')' | tr -d ' ' > fd.txt
    paste -d, ts.txt fd.txt cwnd.txt srtt.txt > ss.csv
    local first second third
    first=$(head -n 1 ss.csv | cut -d, -f1)
    second=$(echo "$first + 60" | bc)
    third=$(echo "$first + 120" | bc)
    awk -v b="$second" -F, '$1 < b' ss.csv > part0.csv
    awk -v b="$second" -v c="$third" -F, '$1 >= b && $1 < c' ss.csv > part1.csv
    awk -v c="$third" -F, '$1 >= c' ss.csv > part2.csv
    for phase in 0 1 2; do
        awk -F, '{ total += $4; n++ } END { printf ",%.2f", n ? total / n : 0 }' "part$phase.csv" >> row
    done
    cat row; echo
}

for trial in $(seq "$trials"); do generate "$trial"; done
echo "$trials trials of $delay v $cubic flows: $(cat ss-*.txt iperf-*.txt | wc -l) lines, $(du -ch ss-*.txt iperf-*.txt | tail -n 1 | cut -f1)"

begin=$(now)
for trial in $(seq "$trials"); do study "$trial"; done > study.csv
by_study=$(echo "scale=6; ($(now) - $begin) / $trials" | bc)

begin=$(now)
"$bin/ccbench" import ss-*.txt iperf-*.txt --trials --node src --group 5201=delay --group 5202=cubic \
    --phase start=60s --phase compete=60s --phase resume=60s -o run > import.out 2>&1 || { cat import.out; exit 1; }
by_import=$(echo "scale=6; ($(now) - $begin) / $trials" | bc)
"$bin/ccbench" summarize run > /dev/null
# The median of 21 rounds.
for _ in $(seq 21); do
    begin=$(now)
    "$bin/ccbench" summarize run > table.txt
    echo "$(now) - $begin" | bc
done | sort -n > rounds.txt
whole=$(sed -n 11p rounds.txt)
by_summary=$(echo "scale=6; $whole / $trials" | bc)
begin=$(now)
for _ in $(seq 21); do "$bin/ccbench" --version > version.txt; done
start=$(echo "scale=6; ($(now) - $begin) / 21" | bc)

echo "the study's six columns (Mbit/s per flow and ms in three phases), then ccbench's:"
cat study.csv
cut -d, -f 2,7-12 run/six_columns-delay.csv | head -n 1
tail -n +2 run/six_columns-delay.csv | awk -F, '{ printf "%s,%s,%s,%s,%s,%s,%s\n", $2, $7, $8, $9, $10, $11, $12 }' || true
# Where both count the same, every number must be within 2 %.
paste -d, study.csv <(tail -n +2 run/six_columns-delay.csv) | awk -F, '
    { for (i = 0; i < 6; i++) { a = $(2 + i); b = $(14 + i); d = a > 0 ? (b - a) / a : 1; if (d < 0) d = -d; if (d > worst) worst = d } }
    END { printf "largest difference: %.2f %%\n", worst * 100; exit (worst > 0.02) }'
echo "ccbench summarize takes 0$whole s for all trials; 0$start s of this is the start-up time of any ccbench command"
echo "per trial: the study's shell $by_study s; ccbench summarize $by_summary s, $(echo "scale=1; $by_study / $by_summary" | bc) times faster; its import, needed once, $by_import s"
# The time that libraries take to read the same columns, if the tests' Python is installed.
python=${XDG_CACHE_HOME:-$HOME/.cache}/ccbench/python/bin/python
[ ! -x "$python" ] || "$python" "$here/pipeline_floor.py" run
