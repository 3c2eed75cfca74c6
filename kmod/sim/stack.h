/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The parts of the stack that the kernel's own congestion controls share (Linux 6.18, net/ipv4/tcp_cong.c), for their models in cubic.h,
 * reno.h and bbr.h. A jiffy is 1 ms (HZ = 1000).
 */
#ifndef CC_STACK_H
#define CC_STACK_H

#include "../core/cc.h"

#define CC_STACK_INIT_CWND 10u	 /* TCP_INIT_CWND */
#define CC_STACK_GSO_BYTES 65215u /* 64 KiB minus MAX_TCP_HEADER, here 320, and 1 */
#define CC_STACK_PACING_SHIFT 10u /* sk_pacing_shift */

/* tcp_jiffies32 */
CC_FN u32 cc_stack_jiffies(const struct cc_ack *a)
{
	return (u32)cc_div64(a->now_us, 1000);
}

/* The rate set by tcp_update_pacing_rate(): 200 % of cwnd per RTT in the first half of slow start, then 120 %. */
CC_FN u64 cc_stack_pacing_rate(const struct cc_ack *a)
{
	u64 bytes = (u64)cc_max(a->cwnd_pkts, a->inflight_pkts) * a->mss_bytes;
	u32 percent = a->cwnd_pkts < a->ssthresh_pkts / 2 ? 200 : 120;

	return a->srtt_us ? cc_div64(bytes * percent * 10000, a->srtt_us) : 0;
}

/* tcp_slow_start(). Returns the acked packets beyond ssthresh. */
CC_FN u32 cc_stack_slow_start(const struct cc_ack *a, struct cc_out *out)
{
	u32 used = cc_min(a->acked_pkts, cc_saturating_sub(out->ssthresh_pkts, out->cwnd_pkts));

	out->cwnd_pkts = cc_min(out->cwnd_pkts + used, a->cwnd_clamp_pkts);
	return a->acked_pkts - used;
}

/* tcp_cong_avoid_ai(): one more packet per `every` packets acked. Credits from a higher `every` give at most one packet. */
CC_FN void cc_stack_cong_avoid(u32 *count, u32 every, u32 acked, const struct cc_ack *a, struct cc_out *out)
{
	u64 cwnd = out->cwnd_pkts, sum, steps;

	every = cc_max(every, 1);
	if (*count >= every) {
		*count = 0;
		cwnd++;
	}
	sum = (u64)*count + acked;
	steps = cc_div64(sum, every);
	*count = (u32)(sum - steps * every);
	cwnd += steps;
	out->cwnd_pkts = cc_min(cc_u32(cwnd), a->cwnd_clamp_pkts);
}

#endif
