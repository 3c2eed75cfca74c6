/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * BBR (version 1) as in Linux 6.18, net/ipv4/tcp_bbr.c, with the same integers at every step. Only for simulators: nodes run the kernel's.
 * The core's name is "bbr"; in C it is bbr1, because cc_bbr_* are the shared parts of versions 2 and 3.
 *
 *   [STARTUP] -- pipe full --> [DRAIN] -- in flight <= BDP --> [PROBE_BW]
 *   any -- no lower RTT for 10 s --> [PROBE_RTT] -- 200 ms and a round --> [PROBE_BW], or [STARTUP] if the pipe is not full
 *
 * Differences, because a core has no socket:
 * - Samples of packets sent in PROBE_RTT are marked application-limited here, not in tp->app_limited.
 * - tp->delivered_mstamp is the time of the last ACK of data, or of the first packet after everything was acknowledged.
 * - A call has only one random number: if PROBE_BW begins twice in one call, it begins at the same phase.
 * - cwnd is at least 2 after an ACK and an undo, which every core guarantees.
 *
 * Units: bandwidth in pkts/us << 24, gains in 1/256, jiffies of 1 ms for min_rtt_stamp and probe_rtt_done_stamp.
 */
#ifndef CC_BBR_H
#define CC_BBR_H

#include "bbr1_model.h"

#define CC_BBR1_WANTS (CC_OWNS_CWND | CC_WANTS_PACING | CC_WANTS_BURSTS | CC_WANTS_STORAGE)

CC_FN int cc_bbr1_check(const struct cc_bbr1_params *p, struct cc_fault *fault)
{
	return cc_check_ranges(cc_bbr1_table, (const u32 *)p, CC_PARAM_COUNT(bbr1), fault);
}

/* Whether the acknowledged packet was sent while the application, or PROBE_RTT, limited the rate. */
CC_FN u8 cc_bbr1_is_app_limited(const struct cc_bbr1_state *st, const struct cc_ack *a)
{
	u32 sent = a->rate_prior_delivered_pkts;

	if (a->flags & CC_APP_LIMITED)
		return 1;
	return st->low_rate && !cc_after(st->low_rate_from, sent) && !cc_after(sent, st->low_rate_to);
}

CC_FN struct cc_bbr1_run cc_bbr1_begin(const struct cc_bbr1_state *st, const struct cc_ack *a)
{
	return (struct cc_bbr1_run){
		.a = a,
		.pacing = a->pacing_bytes_per_sec,
		.cwnd = a->cwnd_pkts,
		.ssthresh = a->ssthresh_pkts,
		.losses = a->lost_pkts,
		.valid = a->rate_delivered_pkts && a->rate_interval_us,
		.app_limited = cc_bbr1_is_app_limited(st, a),
	};
}

CC_FN void cc_bbr1_finish(const struct cc_bbr1_run *r, struct cc_out *out)
{
	const struct cc_ack *a = r->a;

	cc_keep(a, out);
	if (r->pacing != a->pacing_bytes_per_sec)
		out->pacing_bytes_per_sec = r->pacing;
	if (r->ssthresh != a->ssthresh_pkts)
		out->ssthresh_pkts = cc_min(cc_max(r->ssthresh, CC_MIN_CWND), CC_INFINITE);
	if (r->cwnd != a->cwnd_pkts)
		out->cwnd_pkts = cc_bound_cwnd(a, r->cwnd);
}

CC_FN void cc_bbr1_init(struct cc_bbr1_state *st, const struct cc_bbr1_params *p, const struct cc_ack *a,
			struct cc_out *out)
{
	struct cc_bbr1_run r;

	(void)p;
	*st = (struct cc_bbr1_state){
		.mode = CC_BBR1_STARTUP,
		.next_rtt_delivered = a->delivered_pkts,
		.min_rtt_us = a->rtt_min_us ? a->rtt_min_us : CC_NO_RTT,
		.min_rtt_stamp = cc_stack_jiffies(a),
		.delivered_mstamp = a->now_us,
		.ack_epoch_mstamp = a->now_us,
	};
	cc_bbr1_lt_reset(st, a);
	r = cc_bbr1_begin(st, a);
	r.ssthresh = CC_INFINITE;
	cc_bbr1_pace_from_rtt(st, &r);
	cc_bbr1_finish(&r, out);
}

/* The kernel's BBR has no pkts_acked. */
CC_FN u32 cc_bbr1_on_sample(struct cc_bbr1_state *st, const struct cc_bbr1_params *p, const struct cc_ack *a)
{
	(void)st;
	(void)p;
	(void)a;
	return 0;
}

/* bbr_main() */
CC_FN void cc_bbr1_on_ack(struct cc_bbr1_state *st, const struct cc_bbr1_params *p, const struct cc_ack *a,
			  struct cc_out *out)
{
	struct cc_bbr1_run r = cc_bbr1_begin(st, a);

	(void)p;
	if (a->acked_pkts)
		st->delivered_mstamp = a->now_us;
	cc_bbr1_update_bw(st, &r);
	cc_bbr1_update_ack_aggregation(st, &r);
	if (st->mode == CC_BBR1_PROBE_BW && cc_bbr1_phase_is_over(st, &r))
		cc_bbr1_advance_cycle(st);
	cc_bbr1_check_full_bw(st, &r);
	cc_bbr1_check_drain(st, &r);
	cc_bbr1_update_min_rtt(st, &r);
	cc_bbr1_update_gains(st);
	cc_bbr1_set_pacing_rate(st, &r, cc_bbr1_bw(st), st->pacing_gain);
	cc_bbr1_set_cwnd(st, &r);
	cc_bbr1_finish(&r, out);
	out->cwnd_pkts = cc_bound_cwnd(a, r.cwnd);
	if (st->round_start)
		out->flags |= CC_OUT_ROUND;
}

/* BBR does not use ssthresh, so it does not change. */
CC_FN u32 cc_bbr1_on_loss(struct cc_bbr1_state *st, const struct cc_bbr1_params *p, const struct cc_ack *a)
{
	(void)p;
	cc_bbr1_save_cwnd(st, a->cwnd_pkts);
	return cc_min(cc_max(a->ssthresh_pkts, CC_MIN_CWND), CC_INFINITE);
}

/* After idle time: no faster than the path, if the application or PROBE_RTT was the limit before. */
CC_FN void cc_bbr1_tx_start(struct cc_bbr1_state *st, struct cc_bbr1_run *r)
{
	const struct cc_ack *a = r->a;

	if (!(a->flags & CC_APP_LIMITED) && !(st->low_rate && !cc_after(a->delivered_pkts, st->low_rate_to)))
		return;
	st->idle_restart = 1;
	st->ack_epoch_mstamp = a->now_us;
	st->ack_epoch_acked = 0;
	if (st->mode == CC_BBR1_PROBE_BW)
		cc_bbr1_set_pacing_rate(st, r, cc_bbr1_bw(st), CC_BBR1_UNIT);
	else if (st->mode == CC_BBR1_PROBE_RTT)
		cc_bbr1_check_probe_rtt_done(st, r);
}

CC_FN void cc_bbr1_on_event(struct cc_bbr1_state *st, const struct cc_bbr1_params *p, u32 event,
			    const struct cc_ack *a, struct cc_out *out)
{
	struct cc_bbr1_run r = cc_bbr1_begin(st, a);

	(void)p;
	if (event == CC_EVENT_TX_START) {
		cc_bbr1_tx_start(st, &r);
		/* Lost packets are outstanding, although they are not in flight. */
		if (a->ca_state < CC_RECOVERY)
			st->delivered_mstamp = a->now_us;
	} else if (event == CC_EVENT_LOSS) {
		st->prev_ca_state = CC_LOSS;
		st->full_bw = 0;
		st->round_start = 1;
		cc_bbr1_lt_sample(st, a, 1, 0);
	}
	cc_bbr1_finish(&r, out);
}

CC_FN u32 cc_bbr1_undo(struct cc_bbr1_state *st, const struct cc_bbr1_params *p, const struct cc_ack *a)
{
	(void)p;
	st->full_bw = 0;
	st->full_bw_cnt = 0;
	cc_bbr1_lt_reset(st, a);
	return cc_max(a->cwnd_pkts, CC_MIN_CWND);
}

CC_FN void cc_bbr1_read(const struct cc_bbr1_state *st, const struct cc_bbr1_params *p, const struct cc_ack *a,
			struct cc_bbr1_stats *s)
{
	(void)p;
	s->mode = st->mode;
	s->bw_kbps = cc_u32(((u64)cc_bbr1_bw(st) * a->mss_bytes * 8000) >> CC_BBR1_BW);
	s->min_rtt_us = st->min_rtt_us;
	s->pacing_gain = st->pacing_gain;
	s->cwnd_gain = st->cwnd_gain;
	s->bdp_pkts = cc_bbr1_bdp(st, cc_bbr1_bw(st), CC_BBR1_UNIT);
	s->extra_acked_pkts = cc_bbr1_extra_acked(st);
	s->full_pipe = st->full_bw_reached;
	s->policed = st->lt_use_bw;
}

/* The stack's default: a burst is a millisecond at the pacing rate. */
CC_FN u32 cc_bbr1_burst_shift(const struct cc_bbr1_params *p)
{
	(void)p;
	return CC_STACK_PACING_SHIFT;
}

/* Minimum segments of a TSO burst (min_tso_segs). */
CC_FN u32 cc_bbr1_burst_segs(const struct cc_bbr1_params *p, u64 pacing_bytes_per_sec, u32 mtu_bytes)
{
	(void)p;
	(void)mtu_bytes;
	return cc_bbr1_min_tso_segs(pacing_bytes_per_sec);
}

#endif
