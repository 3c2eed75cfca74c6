/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * TCP Prague.
 *
 * Sources: RFC 9330, RFC 9331 (Prague requirements), RFC 8257 (alpha),
 * draft-briscoe-iccrg-prague-congestion-control-04; L4STeam's tcp_prague.c, module version 0.7.
 *
 * Differences: the window is always fractional (there is no rate mode, which needs 128-bit products). snd_cwnd follows the fractional
 * window, up and down, by at most one packet per packet acked. After a timeout, the fractional window restarts from one packet, and slow
 * start runs while the stack is in Loss. Pacing is not dithered. The MTU does not shrink. Without ECN feedback it is Reno (fallback 1).
 * fallback 2 also halves the window after ten consecutive marked rounds with more than 10 ms of queueing delay, the sign of a classic AQM.
 *
 * Below two packets (RFC 9331, section 4.3), snd_cwnd stays at two, and pacing limits the flow to the fractional window, down to 100
 * kbit/s. The pacing rate then uses the minimum of srtt since the window became that small: packets that far apart are acknowledged late
 * and in pairs, so a rate based on the current srtt would reduce itself. Prague's rate mode solves the same problem.
 *
 *                  first CE: halve (alpha_init 0)
 *   [slow start] ----------------------------------> [avoidance: + inc per window of unmarked ACKs]
 *        ^                                               | CWR: - alpha/2, once per RTT and rtt_target
 *        |  RTO: one packet                              | loss: half, no increase until Open
 *        +------------------------------------------------
 *
 * A burst lasts 2^-burst_shift s at the pacing rate. A module sets this as sk_pacing_shift; with BPF, the stack's own value stays, 2^-10 s.
 * In both cases the stack adds 64 KiB halved for every 512 us of min RTT (sysctl tcp_tso_rtt_log).
 *
 * inc = 1 packet per RTT. For an RTT below rtt_target it is (srtt / rtt_target)^2 once rtt_transition rounds have passed since slow start:
 * the rate then grows like that of a flow with RTT rtt_target.
 *
 * Units: us, pkts; alpha in 1/2^24, scaled by 2^alpha_shift; fractional windows in 1/2^20 pkts.
 */
#ifndef CC_PRAGUE_H
#define CC_PRAGUE_H

#include "cc.h"

#define CC_PRAGUE_WANTS (CC_OWNS_CWND | CC_WANTS_ECN | CC_WANTS_ECT1 | CC_WANTS_PACING | CC_WANTS_BURSTS)
#define CC_PRAGUE_ALPHA_BITS 24		/* bits of alpha's fraction */
#define CC_PRAGUE_CWND_FRAC_BITS 20		/* bits of the window's fraction */
#define CC_PRAGUE_MAX_CWND (1u << 22)	/* pkts; keeps all products below 2^64 */
#define CC_PRAGUE_MIN_RATE 12500u	/* bytes/s: 100 kbit/s */
#define CC_PRAGUE_MIN_RATE_US 13107u /* the same in 1/2^20 bytes/us */
#define CC_PRAGUE_MIN_CWND ((u64)CC_MIN_CWND << CC_PRAGUE_CWND_FRAC_BITS)
#define CC_PRAGUE_MAX_SCALED_RTT_US 100000u
#define CC_PRAGUE_CLASSIC_US 10000u
#define CC_PRAGUE_CLASSIC_ROUNDS 10u

/* name, unit, default, min, max, meaning */
#define CC_PRAGUE_PARAMS(X)                                                                        \
	X(rtt_target_us, "us", 25000, 0, 100000, "RTT whose rate shorter paths imitate; 0: off")   \
	X(rtt_transition, "rounds", 4, 0, 1000, "rounds after slow start before they do")          \
	X(alpha_shift, "shift", 4, 1, 8, "weight of a round in alpha is 1/2^alpha_shift")          \
	X(alpha_init, "mode", 0, 0, 1, "alpha starts at 0 and the first mark halves, or at 1")     \
	X(burst_shift, "2^-n s", 12, 8, 16, "length of a TSO burst at the paced rate (module; BPF: at least)") \
	X(fallback, "mode", 1, 0, 2, "0 none, 1 Reno without ECN, 2 also behind a classic AQM")

#define CC_PRAGUE_STATS(X)                                                                         \
	X(alpha, "1/1048576")                                                                      \
	X(frac_cwnd_milli, "pkts/1000")                                                            \
	X(increase_ppm, "pkts/1000000")                                                            \
	X(acked_pkts, "pkts")                                                                      \
	X(ce_pkts, "pkts")                                                                         \
	X(rounds_since_slow_start, "rounds")                                                       \
	X(reductions, "count")                                                                     \
	X(classic_rounds, "rounds")

CC_SHAPE(prague, CC_PRAGUE_PARAMS, CC_PRAGUE_STATS);

struct cc_prague_state {
	u64 alpha;   /* 1/2^24, scaled by 2^alpha_shift */
	u64 frac_cwnd;    /* window, 1/2^20 pkts */
	u64 alpha_stamp_us, cwr_stamp_us;
	u32 ai_increase; /* per window, 1/2^20 pkts */
	u32 next_seq;
	u32 old_delivered, old_delivered_ce; /* delivered and delivered_ce at the last update of alpha */
	u32 last_delivered_ce;	     /* delivered_ce at the last ACK */
	u32 acked_pkts, ce_pkts;     /* in the last round */
	u32 rounds; /* since slow start */
	u32 loss_cwnd_pkts;
	u32 reductions;
	u32 classic_rounds;
	u32 small_cwnd_rtt_us; /* minimum of srtt while the window is below two packets; otherwise 0 */
	u8 saw_ce, in_loss, after_timeout;
	u8 cwr_stamp_valid; /* whether cwr_stamp_us holds the time of a reduction */
};
CC_STATE_FITS(prague);

#define CC_PRAGUE_RULES(X) /* none between parameters */

CC_FN int cc_prague_check(const struct cc_prague_params *p, struct cc_fault *fault)
{
	return cc_check_ranges(cc_prague_table, (const u32 *)p, CC_PARAM_COUNT(prague), fault);
}

CC_FN u64 cc_prague_to_frac_cwnd(u32 pkts)
{
	return (u64)cc_min(cc_max(pkts, CC_MIN_CWND), CC_PRAGUE_MAX_CWND) << CC_PRAGUE_CWND_FRAC_BITS;
}

CC_FN u32 cc_prague_from_frac_cwnd(u64 frac)
{
	return cc_u32((frac + (1u << CC_PRAGUE_CWND_FRAC_BITS) - 1) >> CC_PRAGUE_CWND_FRAC_BITS);
}

/* Whether the flow runs Reno, for lack of ECN feedback. */
CC_FN int cc_prague_is_reno(const struct cc_prague_params *p, const struct cc_ack *a)
{
	return p->fallback && !(a->flags & CC_ECN);
}

CC_FN u32 cc_prague_rtt_us(const struct cc_prague_state *st, const struct cc_ack *a)
{
	return st->small_cwnd_rtt_us ? cc_min(st->small_cwnd_rtt_us, a->srtt_us) : a->srtt_us;
}

/* Lower bound of the fractional window: that of the minimum rate, or two packets with Reno. */
CC_FN u64 cc_prague_min_frac_cwnd(const struct cc_prague_state *st, const struct cc_prague_params *p,
			  const struct cc_ack *a)
{
	u64 min_cwnd;

	if (cc_prague_is_reno(p, a))
		return CC_PRAGUE_MIN_CWND;
	min_cwnd = cc_div64((u64)cc_prague_rtt_us(st, a) * CC_PRAGUE_MIN_RATE_US,
			 a->mtu_bytes ? a->mtu_bytes : 1);
	return min_cwnd < CC_PRAGUE_MIN_CWND ? min_cwnd + 1 : CC_PRAGUE_MIN_CWND;
}

CC_FN void cc_prague_set_frac_cwnd(struct cc_prague_state *st, const struct cc_prague_params *p,
			 const struct cc_ack *a, u64 frac)
{
	u64 max_cwnd = (u64)CC_PRAGUE_MAX_CWND << CC_PRAGUE_CWND_FRAC_BITS, min_cwnd;

	/* The lower bound is at most this, and computing it takes a division. */
	if (frac < CC_PRAGUE_MIN_CWND) {
		min_cwnd = cc_prague_min_frac_cwnd(st, p, a);
		if (frac < min_cwnd)
			frac = min_cwnd;
	}
	st->frac_cwnd = frac > max_cwnd ? max_cwnd : frac;
	if (st->frac_cwnd >= CC_PRAGUE_MIN_CWND)
		st->small_cwnd_rtt_us = 0;
	else if (a->srtt_us)
		st->small_cwnd_rtt_us = cc_prague_rtt_us(st, a);
}

CC_FN u32 cc_prague_shift(const struct cc_prague_params *p)
{
	return cc_min(p->alpha_shift, 8);
}

CC_FN void cc_prague_init(struct cc_prague_state *st, const struct cc_prague_params *p,
			  const struct cc_ack *a, struct cc_out *out)
{
	st->alpha = p->alpha_init ? (u64)1 << (CC_PRAGUE_ALPHA_BITS + cc_prague_shift(p)) : 0;
	st->frac_cwnd = cc_prague_to_frac_cwnd(a->cwnd_pkts);
	st->alpha_stamp_us = a->now_us;
	st->cwr_stamp_us = 0;
	st->ai_increase = 1u << CC_PRAGUE_CWND_FRAC_BITS;
	st->next_seq = a->nxt_seq;
	st->old_delivered = a->delivered_pkts;
	st->old_delivered_ce = a->delivered_ce_pkts;
	st->last_delivered_ce = a->delivered_ce_pkts;
	st->acked_pkts = 0;
	st->ce_pkts = 0;
	st->rounds = 0;
	st->loss_cwnd_pkts = 0;
	st->reductions = 0;
	st->classic_rounds = 0;
	st->small_cwnd_rtt_us = 0;
	st->saw_ce = 0;
	st->in_loss = 0;
	st->after_timeout = 0;
	st->cwr_stamp_valid = 0;
	cc_keep(a, out);
}

CC_FN u32 cc_prague_on_sample(struct cc_prague_state *st, const struct cc_prague_params *p,
			    const struct cc_ack *a)
{
	(void)st;
	(void)p;
	(void)a;
	return 0;
}

/* Whether the flow emulates the RTT rtt_target, if its own RTT is shorter. */
CC_FN int cc_prague_rtt_independent(const struct cc_prague_state *st,
				    const struct cc_prague_params *p, const struct cc_ack *a)
{
	return p->rtt_target_us && st->rounds >= p->rtt_transition &&
	       !cc_in_slow_start(a->cwnd_pkts, a->ssthresh_pkts) && !cc_prague_is_reno(p, a);
}

/* (srtt / target)^2 packets, in 1/2^20; srtt < target */
CC_FN u32 cc_prague_ai_increase(u32 srtt_us, u32 target_us)
{
	u64 ratio = cc_div64((u64)srtt_us << CC_PRAGUE_CWND_FRAC_BITS, target_us ? target_us : 1);

	return cc_max((u32)((ratio * ratio) >> CC_PRAGUE_CWND_FRAC_BITS), 1);
}

/* Increase per window, according to rtt_target once rtt_transition rounds have passed. */
CC_STEP u32 cc_prague_scaled_increase(const struct cc_prague_state *st, const struct cc_prague_params *p,
				      const struct cc_ack *a)
{
	u32 rtt_us = cc_prague_rtt_us(st, a);

	if (st->rounds < p->rtt_transition || !rtt_us || rtt_us > CC_PRAGUE_MAX_SCALED_RTT_US ||
	    rtt_us >= p->rtt_target_us || cc_prague_is_reno(p, a))
		return 1u << CC_PRAGUE_CWND_FRAC_BITS;
	return cc_prague_ai_increase(rtt_us, p->rtt_target_us);
}

/* One EWMA step of alpha towards the fraction of marked packets. Keeps the remainder. */
CC_FN u64 cc_prague_update_alpha(u64 alpha, u32 marked, u32 acked, u32 shift)
{
	u64 share = cc_div64((u64)cc_min(marked, acked) << CC_PRAGUE_ALPHA_BITS, acked ? acked : 1);

	return alpha - (alpha >> shift) + share;
}

CC_FN void cc_prague_end_round(struct cc_prague_state *st, const struct cc_prague_params *p,
			   const struct cc_ack *a)
{
	int deep = a->rtt_min_us && cc_saturating_sub(a->srtt_us, a->rtt_min_us) > CC_PRAGUE_CLASSIC_US;

	st->acked_pkts = a->delivered_pkts - st->old_delivered;
	st->ce_pkts = a->delivered_ce_pkts - st->old_delivered_ce;
	st->old_delivered = a->delivered_pkts;
	st->old_delivered_ce = a->delivered_ce_pkts;
	if (st->saw_ce && st->acked_pkts) {
		st->alpha = cc_prague_update_alpha(st->alpha, st->ce_pkts, st->acked_pkts,
					      cc_prague_shift(p));
		st->alpha_stamp_us = a->now_us;
	}
	if (st->ce_pkts)
		st->classic_rounds = deep ? cc_min(st->classic_rounds + 1, 1000) : 0;
	st->next_seq = a->nxt_seq;
	if (!cc_in_slow_start(a->cwnd_pkts, a->ssthresh_pkts) && st->rounds < 0xffff)
		st->rounds++;
}

CC_FN int cc_prague_round_over(const struct cc_prague_state *st, const struct cc_prague_params *p,
			       const struct cc_ack *a)
{
	if (cc_after(st->next_seq, a->una_seq))
		return 0;
	return !cc_prague_rtt_independent(st, p, a) ||
	       a->now_us - st->alpha_stamp_us >= p->rtt_target_us;
}

/* Whether the sender is limited by the window or, below two packets, by pacing. */
CC_FN int cc_prague_is_limited(const struct cc_prague_state *st, const struct cc_ack *a)
{
	return a->flags & CC_CWND_LIMITED || (st->small_cwnd_rtt_us && !(a->flags & CC_APP_LIMITED));
}

CC_FN void cc_prague_increase_cwnd(struct cc_prague_state *st, const struct cc_prague_params *p,
			  const struct cc_ack *a, u32 ce_pkts)
{
	u32 unmarked = cc_min(cc_saturating_sub(a->acked_pkts, ce_pkts), 1u << 20), room, slow;
	u64 increase, max_increase;

	if (!unmarked || st->in_loss || !cc_prague_is_limited(st, a))
		return;
	room = cc_saturating_sub(a->ssthresh_pkts, cc_max(cc_prague_from_frac_cwnd(st->frac_cwnd), CC_MIN_CWND));
	slow = cc_min(unmarked, room);
	if (slow)
		cc_prague_set_frac_cwnd(st, p, a, st->frac_cwnd + ((u64)slow << CC_PRAGUE_CWND_FRAC_BITS));
	unmarked -= slow;
	if (!unmarked)
		return;
	/* Below one packet, an ACK covers several RTTs: do not grow faster than slow start. */
	increase = cc_div64(((u64)unmarked * st->ai_increase) << CC_PRAGUE_CWND_FRAC_BITS, st->frac_cwnd);
	max_increase = (u64)unmarked << CC_PRAGUE_CWND_FRAC_BITS;
	cc_prague_set_frac_cwnd(st, p, a, st->frac_cwnd + (increase < max_increase ? increase : max_increase));
}

/* Moves snd_cwnd towards the fractional window by at most one packet per packet acked. */
CC_FN u32 cc_prague_cwnd(const struct cc_prague_state *st, const struct cc_ack *a)
{
	u32 target = cc_prague_from_frac_cwnd(st->frac_cwnd), step = cc_max(a->acked_pkts, 1);

	if (a->cwnd_pkts < target)
		return cc_bound_cwnd(a, cc_min(target, cc_u32((u64)a->cwnd_pkts + step)));
	return cc_bound_cwnd(a, cc_max(target, cc_saturating_sub(a->cwnd_pkts, step)));
}

/* Per MTU, not per segment, because pacing counts headers, too. */
CC_FN u64 cc_prague_pacing_rate(const struct cc_prague_state *st, const struct cc_ack *a, u32 cwnd_pkts,
			   u32 ssthresh_pkts)
{
	u64 mtu_bytes = cc_min(a->mtu_bytes, 1u << 16);
	u64 bytes = cc_max((u32)(st->frac_cwnd >> CC_PRAGUE_CWND_FRAC_BITS), a->inflight_pkts) * mtu_bytes;
	u64 rate;

	if (!a->srtt_us)
		return 0;
	if (st->small_cwnd_rtt_us) {
		rate = cc_div64((st->frac_cwnd * mtu_bytes * 15625) >> 14, st->small_cwnd_rtt_us);
	} else {
		if (bytes > (u64)1 << 42)
			bytes = (u64)1 << 42;
		rate = cc_div64(bytes * 1000000, a->srtt_us);
		if (cwnd_pkts < ssthresh_pkts >> 1)
			rate <<= 1;
	}
	return rate > CC_PRAGUE_MIN_RATE ? rate : CC_PRAGUE_MIN_RATE;
}

CC_FN void cc_prague_reduce(struct cc_prague_state *st, const struct cc_prague_params *p,
			 const struct cc_ack *a, u64 frac, struct cc_out *out)
{
	cc_prague_set_frac_cwnd(st, p, a, frac);
	out->ssthresh_pkts = cc_max(cc_prague_from_frac_cwnd(st->frac_cwnd), CC_MIN_CWND);
	st->reductions++;
}

CC_FN void cc_prague_on_ack(struct cc_prague_state *st, const struct cc_prague_params *p,
			    const struct cc_ack *a, struct cc_out *out)
{
	u32 ce_pkts = a->delivered_ce_pkts - st->last_delivered_ce;

	cc_keep(a, out);
	st->last_delivered_ce = a->delivered_ce_pkts;
	if (st->after_timeout) {
		cc_prague_set_frac_cwnd(st, p, a, cc_prague_to_frac_cwnd(a->cwnd_pkts));
		st->after_timeout = 0;
	}
	if (ce_pkts && !st->saw_ce) {
		st->saw_ce = 1;
		if (!p->alpha_init) {
			cc_prague_reduce(st, p, a, st->frac_cwnd >> 1, out);
		}
	}
	cc_prague_increase_cwnd(st, p, a, ce_pkts);
	if (cc_prague_round_over(st, p, a)) {
		cc_prague_end_round(st, p, a);
		out->flags |= CC_OUT_ROUND;
	}
	out->cwnd_pkts = cc_prague_cwnd(st, a);
	if (out->cwnd_pkts != a->cwnd_pkts || out->flags)
		st->ai_increase = cc_prague_scaled_increase(st, p, a);
	out->pacing_bytes_per_sec = cc_prague_pacing_rate(st, a, out->cwnd_pkts, out->ssthresh_pkts);
}

/* on_event reduces the window, so ssthresh does not change. */
CC_FN u32 cc_prague_on_loss(struct cc_prague_state *st, const struct cc_prague_params *p,
			    const struct cc_ack *a)
{
	(void)st;
	(void)p;
	return cc_min(cc_max(a->ssthresh_pkts, CC_MIN_CWND), CC_INFINITE);
}

/* frac - frac * alpha / 2, rounded to nearest */
CC_FN u64 cc_prague_reduced(u64 frac, u64 alpha, u32 shift)
{
	u64 one = (u64)1 << CC_PRAGUE_ALPHA_BITS, share = alpha >> shift;
	u64 half;

	if (share > one)
		share = one;
	/* 42 bits of frac times 20 of alpha: 62 bits */
	half = (frac * (share >> 4) + ((u64)1 << 20)) >> 21;
	return frac - half;
}

CC_FN void cc_prague_on_ce(struct cc_prague_state *st, const struct cc_prague_params *p,
			   const struct cc_ack *a, struct cc_out *out)
{
	u64 alpha = st->alpha;

	if (st->cwr_stamp_valid && cc_prague_rtt_independent(st, p, a) &&
	    a->now_us - st->cwr_stamp_us < p->rtt_target_us)
		return;
	st->cwr_stamp_us = a->now_us;
	st->cwr_stamp_valid = 1;
	if (p->fallback == 2 && st->classic_rounds >= CC_PRAGUE_CLASSIC_ROUNDS)
		alpha = (u64)1 << (CC_PRAGUE_ALPHA_BITS + cc_prague_shift(p));
	if (st->saw_ce || p->alpha_init)
		cc_prague_reduce(st, p, a, cc_prague_reduced(st->frac_cwnd, alpha, cc_prague_shift(p)), out);
}

CC_FN void cc_prague_on_event(struct cc_prague_state *st, const struct cc_prague_params *p,
			      u32 event, const struct cc_ack *a, struct cc_out *out)
{
	cc_keep(a, out);
	if (event == CC_EVENT_CWR) {
		cc_prague_on_ce(st, p, a, out);
	} else if (event == CC_EVENT_RECOVERY && a->ca_state != CC_RECOVERY) {
		st->loss_cwnd_pkts = a->cwnd_pkts;
		st->in_loss = 1;
		cc_prague_reduce(st, p, a, st->frac_cwnd >> 1, out);
	} else if (event == CC_EVENT_RTO) {
		st->loss_cwnd_pkts = a->cwnd_pkts;
		cc_prague_reduce(st, p, a, st->frac_cwnd >> 1, out);
		st->after_timeout = 1;
		st->in_loss = 0;
	} else if (event == CC_EVENT_OPEN) {
		st->in_loss = 0;
	}
}

CC_FN u32 cc_prague_undo(struct cc_prague_state *st, const struct cc_prague_params *p,
			 const struct cc_ack *a)
{
	u32 cwnd = cc_max(cc_max(a->cwnd_pkts, st->loss_cwnd_pkts), CC_MIN_CWND);

	cc_prague_set_frac_cwnd(st, p, a, cc_prague_to_frac_cwnd(cwnd));
	return cwnd;
}

CC_FN u32 cc_prague_burst_shift(const struct cc_prague_params *p)
{
	return p->burst_shift;
}

/* Segments per burst at this pacing rate, at least one (min_tso_segs). */
CC_FN u32 cc_prague_burst_segs(const struct cc_prague_params *p, u64 pacing_bytes_per_sec,
			       u32 mtu_bytes)
{
	u64 packets = cc_div64(pacing_bytes_per_sec, mtu_bytes ? mtu_bytes : 1);

	return cc_max(cc_u32(packets >> (p->burst_shift & 31)), 1);
}

CC_FN void cc_prague_read(const struct cc_prague_state *st, const struct cc_prague_params *p,
			  const struct cc_ack *a, struct cc_prague_stats *s)
{
	(void)a;
	s->alpha = (u32)(st->alpha >> (cc_prague_shift(p) + 4));
	s->frac_cwnd_milli = cc_u32((st->frac_cwnd * 1000) >> CC_PRAGUE_CWND_FRAC_BITS);
	s->increase_ppm = (u32)(((u64)st->ai_increase * 1000000) >> CC_PRAGUE_CWND_FRAC_BITS);
	s->acked_pkts = st->acked_pkts;
	s->ce_pkts = st->ce_pkts;
	s->rounds_since_slow_start = st->rounds;
	s->reductions = st->reductions;
	s->classic_rounds = st->classic_rounds;
}

#endif
