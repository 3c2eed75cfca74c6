/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A model of CUBIC (RFC 9438) with HyStart's delay test, as the loss-based competitor in the simulator. Only
 * for the simulator: real nodes run the kernel's.
 * C = 0.4, beta = 717/1024, fast convergence, Reno-friendly region. Units: ms for K, pkts << 10 for the
 * Reno-friendly estimate.
 */
#ifndef CC_CUBIC_H
#define CC_CUBIC_H

#include "../core/cc.h"

#define CC_CUBIC_PARAMS(X) X(hystart, "flag", 1, 0, 1, "leave slow start when the delay rises")
#define CC_CUBIC_STATS(X) X(wmax_pkts, "pkts") X(k_ms, "ms")
CC_SHAPE(cubic, CC_CUBIC_PARAMS, CC_CUBIC_STATS);

struct cc_cubic_state {
	u64 epoch_us; /* 0: none */
	u32 wmax, last_wmax, origin, k_ms;
	u32 estimate_1024; /* the Reno-friendly window */
	u32 count;
	u32 base_us, round_end, round_min_us, round_samples;
};
CC_STATE_FITS(cubic);

CC_FN int cc_cubic_check(const struct cc_cubic_params *p, struct cc_fault *fault)
{
	return cc_check_ranges(cc_cubic_table, (const u32 *)p, CC_PARAM_COUNT(cubic), fault);
}

CC_FN void cc_cubic_init(struct cc_cubic_state *st, const struct cc_cubic_params *p,
			 const struct cc_ack *a, struct cc_out *out)
{
	(void)p;
	*st = (struct cc_cubic_state){.base_us = CC_NO_RTT, .round_min_us = CC_NO_RTT};
	st->round_end = a->nxt_seq;
	cc_keep(a, out);
}

CC_FN u32 cc_cubic_on_sample(struct cc_cubic_state *st, const struct cc_cubic_params *p,
			   const struct cc_ack *a)
{
	(void)p;
	if (!a->rtt_us)
		return 0;
	st->base_us = cc_min(st->base_us, a->rtt_us);
	if (st->round_samples < 8) {
		st->round_samples++;
		st->round_min_us = cc_min(st->round_min_us, a->rtt_us);
	}
	return 0;
}

/* Largest r with r^3 <= x. */
CC_FN u64 cc_cubic_root(u64 x)
{
	u64 root = 0;
	int bit;

	for (bit = 20; bit >= 0; bit--) {
		u64 guess = root | ((u64)1 << bit);

		if (guess * guess * guess <= x)
			root = guess;
	}
	return root;
}

/* 0.4 * (d ms)^3 in pkts */
CC_FN u64 cc_cubic_rise(u64 d_ms)
{
	if (d_ms > 1000000)
		d_ms = 1000000;
	return cc_div64(cc_div64(d_ms * d_ms * d_ms, 1000) * 4, 10000000);
}

CC_FN u32 cc_cubic_target(struct cc_cubic_state *st, const struct cc_ack *a)
{
	u64 t_ms;

	if (!st->epoch_us) {
		u32 gap = cc_minus(st->wmax, a->cwnd_pkts);

		st->epoch_us = a->now_us;
		st->origin = cc_max(st->wmax, a->cwnd_pkts);
		st->k_ms = (u32)cc_cubic_root((u64)cc_min(gap, 1u << 30) * 2500000000ull);
		st->estimate_1024 = cc_min(a->cwnd_pkts, 1u << 20) << 10;
	}
	t_ms = cc_div64(a->now_us - st->epoch_us + a->srtt_us, 1000);
	if (t_ms >= st->k_ms)
		return cc_u32(st->origin + cc_cubic_rise(t_ms - st->k_ms));
	return cc_minus(st->origin, cc_u32(cc_cubic_rise(st->k_ms - t_ms)));
}

CC_FN void cc_cubic_hystart(struct cc_cubic_state *st, const struct cc_ack *a, struct cc_out *out)
{
	u32 slack_us = cc_min(cc_max(st->base_us >> 3, 4000), 16000);

	if (cc_after(a->una_seq, st->round_end)) {
		st->round_end = a->nxt_seq;
		st->round_samples = 0;
		st->round_min_us = CC_NO_RTT;
		return;
	}
	if (out->cwnd_pkts >= 16 && st->round_samples >= 8 &&
	    st->round_min_us > (u64)st->base_us + slack_us)
		out->ssthresh_pkts = out->cwnd_pkts;
}

CC_FN void cc_cubic_on_ack(struct cc_cubic_state *st, const struct cc_cubic_params *p,
			   const struct cc_ack *a, struct cc_out *out)
{
	u32 target, cwnd;

	cc_keep(a, out);
	out->cwnd_pkts = cwnd = cc_bound_cwnd(a, a->cwnd_pkts);
	if (!(a->flags & CC_CWND_LIMITED))
		return;
	if (cc_in_slow_start(cwnd, a->ssthresh_pkts)) {
		if (p->hystart)
			cc_cubic_hystart(st, a, out);
		cc_slow_start(a, out);
		return;
	}
	target = cc_cubic_target(st, a);
	st->estimate_1024 += (u32)cc_div64((u64)cc_min(a->acked_pkts, 1000) * 542, cwnd);
	target = cc_max(target, st->estimate_1024 >> 10);
	target = cc_min(target, cwnd + (cwnd >> 1));
	if (target <= cwnd)
		return;
	/* (target - cwnd) packets per window of acks */
	st->count += cc_min(a->acked_pkts, 1000) * (target - cwnd);
	if (st->count >= cwnd) {
		u32 steps = (u32)cc_div64(st->count, cwnd);

		st->count -= steps * cwnd;
		out->cwnd_pkts = cc_bound_cwnd(a, (u64)cwnd + steps);
	}
}

CC_FN u32 cc_cubic_on_loss(struct cc_cubic_state *st, const struct cc_cubic_params *p,
			   const struct cc_ack *a)
{
	u32 cwnd = a->cwnd_pkts;

	(void)p;
	st->epoch_us = 0;
	st->count = 0;
	st->wmax = cwnd < st->last_wmax ? cc_scale(cwnd, 1024 + 717, 2048) : cwnd;
	st->last_wmax = cwnd;
	return cc_max(cc_scale(cc_min(cwnd, CC_INFINITE), 717, 1024), CC_MIN_CWND);
}

CC_FN void cc_cubic_on_event(struct cc_cubic_state *st, const struct cc_cubic_params *p, u32 event,
			     const struct cc_ack *a, struct cc_out *out)
{
	(void)p;
	cc_keep(a, out);
	if (event == CC_EVENT_RTO || event == CC_EVENT_RESTART)
		st->epoch_us = 0;
}

CC_FN u32 cc_cubic_undo(struct cc_cubic_state *st, const struct cc_cubic_params *p,
			const struct cc_ack *a)
{
	(void)st;
	(void)p;
	return cc_plain_undo(a);
}

CC_FN void cc_cubic_read(const struct cc_cubic_state *st, const struct cc_cubic_params *p,
			 const struct cc_ack *a, struct cc_cubic_stats *s)
{
	(void)p;
	(void)a;
	s->wmax_pkts = st->wmax;
	s->k_ms = st->k_ms;
}

#endif
