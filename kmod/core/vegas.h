/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * TCP Vegas.
 *
 * Source: Brakmo and Peterson, "TCP Vegas: End to End Congestion Avoidance on a Global Internet", IEEE JSAC
 * 13(8), 1995, as implemented in Linux (net/ipv4/tcp_vegas.c).
 *
 * Differences from the paper (as in Linux): the stack does loss recovery; slow start doubles in every round, not in every other one; the
 * round's minimum RTT estimates the queue; the base RTT is reset after idle time.
 *
 *              queue > gamma                      queue < alpha: +1 per round
 *   [slow start] -----------> [avoidance] --------- queue > beta:  -1 per round
 *        ^                        | loss, ECN       otherwise:     hold
 *        +------- RTO ---- [Reno until Open]
 *
 * Units: RTT us; queue and windows pkts. queue = cwnd * (min RTT of the round - base) / base, rounded down.
 */
#ifndef CC_VEGAS_H
#define CC_VEGAS_H

#include "round.h"

#define CC_VEGAS_WANTS 0u

/* name, unit, default, min, max, meaning */
#define CC_VEGAS_PARAMS(X)                                                                         \
	X(alpha, "pkts", 2, 0, 1000, "queued packets below which the window grows")                \
	X(beta, "pkts", 4, 0, 1000, "queued packets above which the window shrinks")               \
	X(gamma, "pkts", 1, 0, 1000, "queued packets that end slow start")

#define CC_VEGAS_STATS(X)                                                                          \
	X(base_us, "us")                                                                           \
	X(min_rtt_us, "us")                                                                        \
	X(queue_pkts, "pkts")                                                                      \
	X(samples, "acks")

CC_SHAPE(vegas, CC_VEGAS_PARAMS, CC_VEGAS_STATS);

struct cc_vegas_state {
	struct cc_round round;
	u32 base_us;
	u32 queue_pkts; /* at the last decision */
	u32 last_min_us;
	u32 last_samples;
};
CC_STATE_FITS(vegas);

/* invalid parameter, condition, rule, message */
#define CC_VEGAS_RULES(X)                                                                          \
	X(alpha, 1, p->alpha <= p->beta, "must not exceed beta")                                   \
	X(gamma, 1, p->gamma <= p->beta, "must not exceed beta")

CC_FN int cc_vegas_check(const struct cc_vegas_params *p, struct cc_fault *fault)
{
	if (cc_check_ranges(cc_vegas_table, (const u32 *)p, CC_PARAM_COUNT(vegas), fault))
		return -1;
	CC_VEGAS_RULES(CC_RULE)
	return 0;
}

CC_FN void cc_vegas_init(struct cc_vegas_state *st, const struct cc_vegas_params *p,
			 const struct cc_ack *a, struct cc_out *out)
{
	(void)p;
	st->base_us = CC_NO_RTT;
	st->queue_pkts = 0;
	st->last_min_us = 0;
	st->last_samples = 0;
	st->round.count = 0;
	cc_round_start(&st->round, a);
	cc_keep(a, out);
}

CC_FN u32 cc_vegas_on_sample(struct cc_vegas_state *st, const struct cc_vegas_params *p,
			     const struct cc_ack *a)
{
	u32 rtt_us = cc_min(a->rtt_us, CC_NO_RTT - 2) + 1; /* never zero */

	(void)p;
	if (!a->rtt_us)
		return 0;
	st->base_us = cc_min(st->base_us, rtt_us);
	cc_round_sample(&st->round, rtt_us, CC_NO_RTT);
	return 0;
}

CC_FN void cc_vegas_decide(struct cc_vegas_state *st, const struct cc_vegas_params *p,
			   const struct cc_ack *a, struct cc_out *out)
{
	struct cc_round *r = &st->round;

	st->queue_pkts = cc_scale(out->cwnd_pkts, r->min_rtt_us - st->base_us, st->base_us);
	if (cc_in_slow_start(out->cwnd_pkts, out->ssthresh_pkts)) {
		if (st->queue_pkts > p->gamma)
			cc_round_leave_slow_start(st->base_us, r->min_rtt_us, out);
		else
			cc_slow_start(a, out);
	} else if (st->queue_pkts > p->beta) {
		out->cwnd_pkts = cc_bound_cwnd(a, cc_saturating_sub(out->cwnd_pkts, 1));
		out->ssthresh_pkts = cc_min(out->ssthresh_pkts, out->cwnd_pkts);
	} else if (st->queue_pkts < p->alpha) {
		out->cwnd_pkts = cc_bound_cwnd(a, (u64)out->cwnd_pkts + 1);
	}
	cc_round_bound(a, out);
}

CC_FN void cc_vegas_on_ack(struct cc_vegas_state *st, const struct cc_vegas_params *p,
			   const struct cc_ack *a, struct cc_out *out)
{
	struct cc_round *r = &st->round;

	if (!cc_round_ends(r, a, out))
		return;
	if (r->samples > 2)
		cc_vegas_decide(st, p, a, out);
	else
		cc_reno_increase(&r->count, a, out);
	st->last_min_us = r->samples ? r->min_rtt_us : 0;
	st->last_samples = r->samples;
	cc_round_next(r, a, out);
}

CC_FN u32 cc_vegas_on_loss(struct cc_vegas_state *st, const struct cc_vegas_params *p,
			   const struct cc_ack *a)
{
	(void)p;
	st->round.count = 0;
	return cc_half(a->cwnd_pkts);
}

CC_FN void cc_vegas_on_event(struct cc_vegas_state *st, const struct cc_vegas_params *p, u32 event,
			     const struct cc_ack *a, struct cc_out *out)
{
	(void)p;
	cc_keep(a, out);
	cc_round_event(&st->round, event, a);
	if (event == CC_EVENT_RESTART || event == CC_EVENT_TX_START)
		st->base_us = CC_NO_RTT;
}

CC_FN u32 cc_vegas_undo(struct cc_vegas_state *st, const struct cc_vegas_params *p,
			const struct cc_ack *a)
{
	(void)st;
	(void)p;
	return cc_plain_undo(a);
}

CC_FN void cc_vegas_read(const struct cc_vegas_state *st, const struct cc_vegas_params *p,
			 const struct cc_ack *a, struct cc_vegas_stats *s)
{
	(void)p;
	(void)a;
	s->base_us = st->base_us;
	s->min_rtt_us = st->last_min_us;
	s->queue_pkts = st->queue_pkts;
	s->samples = st->last_samples;
}

#endif
