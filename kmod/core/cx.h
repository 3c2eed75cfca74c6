/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Cx-TCP, with RTT-deviation scaling and with a shadow window.
 *
 * Sources: Budzisz, Stanojevic, Shorten, Baker, "A strategy for fair coexistence of loss and delay-based
 * congestion control algorithms", IEEE Comm. Letters 13(7), 2009, in the study's form (parameter names are the
 * study's); the shadow window from Hayes and Armitage, "Improved coexistence and loss tolerance for delay
 * based TCP congestion control", IEEE LCN 2010 (CHD).
 *
 * Differences: one random draw per round, as in the study and CHD (the paper draws per ACK); queueing delay and the scaled probability
 * saturate; the base RTT is the kernel's minimum by default. The source of the study's shadow version is not available. This is CHD's
 * shadow window with the study's probability, without CHD's tolerance of losses at short queues.
 *
 *   probability of a delay back-off per round, by queueing delay q = srtt - base:
 *
 *     p_max |          /\__
 *           |         /    \___   falls like ((del_max - q) / (del_max - del_th))^power:
 *           |        /         \____  where loss-based flows keep the queue full, Cx behaves like Reno
 *     p_min |_______/               \______________
 *                betao  del_th        del_max      q
 *
 *   [grow: + increase per round] -- any ACK beyond base + betao, draw < p --> [cut: half, or alpha/2]
 *                                -- loss: Reno; with shadow, from the shadow window
 *
 * Units: us, pkts; p in 1/1000; alpha in 1/256.
 */
#ifndef CC_CX_H
#define CC_CX_H

#include "round.h"

#define CC_CX_WANTS CC_WANTS_RANDOM
#define CC_CX_POWER_MAX 8

/* name, unit, default, min, max, meaning */
#define CC_CX_PARAMS(X)                                                                            \
	X(betao, "us", 2000, 0, 1000000, "queueing delay below which there is no back-off")        \
	X(del_th, "us", 4000, 1, 10000000, "queueing delay of the highest back-off probability")   \
	X(del_max, "us", 15000, 2, 100000000, "queueing delay from which the probability is p_min") \
	X(p_max, "1/1000", 1000, 0, 1000, "highest back-off probability per round")                \
	X(p_min, "1/1000", 0, 0, 1000, "probability at del_max and beyond")                        \
	X(power, "exponent", 4, 1, 8, "of the falling part")                                       \
	X(fractional, "flag", 0, 0, 1, "cut by alpha/2 instead of a half")                         \
	X(gradual_mark, "flag", 0, 0, 1, "below del_th, weigh marks by p in alpha")                \
	X(mdev_scaling, "flag", 0, 0, 1, "scale p by minimum over present RTT deviation")          \
	X(g, "shift", 4, 1, 8, "weight of a round in alpha is 1/2^g")                              \
	X(gamma, "-", 4, 0, 64, "gain of rtt_fairness 2")                                          \
	X(rtt_fairness, "mode", 0, 0, 2, "increase: 0 one, 1 by base RTT, 2 by base over srtt")    \
	X(hardcoding, "mode", 1, 0, 3, "base RTT: 0 basedelay_hc, 1 kernel's, 2 own, 3 larger of both") \
	X(basedelay_hc, "us", 2000, 1, 1000000, "base RTT of hardcoding 0")                        \
	X(shadow, "flag", 0, 0, 1, "keep a shadow window and restore it on loss")                  \
	X(shadow_cap, "windows", 0, 0, 64, "shadow window at most this many windows; 0: no limit")

#define CC_CX_STATS(X)                                                                             \
	X(probability, "1/1000")                                                                   \
	X(queue_us, "us")                                                                          \
	X(base_us, "us")                                                                           \
	X(alpha, "1/256")                                                                          \
	X(mdev_min_us, "us")                                                                       \
	X(shadow_pkts, "pkts")                                                                     \
	X(competing, "flag")                                                                       \
	X(samples, "acks")                                                                         \
	X(marked, "acks")                                                                          \
	X(backoffs, "count")

CC_SHAPE(cx, CC_CX_PARAMS, CC_CX_STATS);

struct cc_cx_state {
	struct cc_round round;
	u32 betao_us, del_th_us, del_max_us; /* parameters at init */
	u32 own_base_us;
	u32 mdev_min_us;
	u32 shadow_pkts;
	u32 last_cut_queue_us;
	u32 queue_us;
	u32 last_samples, last_marked;
	u32 backoffs;
	u16 alpha;
	u16 probability;
	u32 competing;
};
CC_STATE_FITS(cx);

/* invalid parameter, condition, rule, message */
#define CC_CX_RULES(X)                                                                          \
	X(del_th, 1, p->del_th > p->betao, "must exceed betao")                                    \
	X(del_max, 1, p->del_max > p->del_th, "must exceed del_th")                                \
	X(p_min, 1, p->p_min <= p->p_max, "must not exceed p_max")                                 \
	X(shadow_cap, p->shadow_cap, p->shadow >= 1, "needs shadow = 1")

CC_FN int cc_cx_check(const struct cc_cx_params *p, struct cc_fault *fault)
{
	if (cc_check_ranges(cc_cx_table, (const u32 *)p, CC_PARAM_COUNT(cx), fault))
		return -1;
	CC_CX_RULES(CC_RULE)
	return 0;
}

CC_FN void cc_cx_init(struct cc_cx_state *st, const struct cc_cx_params *p, const struct cc_ack *a,
		      struct cc_out *out)
{
	st->betao_us = p->betao;
	st->del_th_us = p->del_th;
	st->del_max_us = p->del_max;
	st->own_base_us = CC_NO_RTT;
	st->mdev_min_us = CC_NO_RTT;
	st->shadow_pkts = a->cwnd_pkts;
	st->last_cut_queue_us = 0;
	st->queue_us = 0;
	st->last_samples = 0;
	st->last_marked = 0;
	st->backoffs = 0;
	st->alpha = CC_ALPHA_ONE;
	st->probability = 0;
	st->competing = 0;
	st->round.count = 0;
	cc_round_start(&st->round, a);
	cc_keep(a, out);
}

CC_FN u32 cc_cx_base(const struct cc_cx_state *st, const struct cc_cx_params *p,
		     const struct cc_ack *a)
{
	return cc_round_base(p->hardcoding, p->basedelay_hc, st->own_base_us, a);
}

CC_FN u32 cc_cx_on_sample(struct cc_cx_state *st, const struct cc_cx_params *p,
			     const struct cc_ack *a)
{
	if (a->rtt_us)
		st->mdev_min_us = cc_min(st->mdev_min_us, cc_max(a->mdev_us, 1));
	cc_round_delay_sample(&st->round, &st->own_base_us, p->hardcoding, p->basedelay_hc, st->betao_us, a);
	return 0;
}

/* The value of the back-off curve at queueing delay q, in 1/1000. */
CC_FN u32 cc_cx_curve(const struct cc_cx_state *st, const struct cc_cx_params *p, u32 q_us)
{
	u32 p_max = cc_min(p->p_max, 1000), p_min = cc_min(p->p_min, p_max), share = 1000, fraction, i;

	if (q_us <= st->betao_us)
		return 0;
	if (q_us < st->del_th_us)
		return cc_scale(p_max, q_us - st->betao_us, st->del_th_us - st->betao_us);
	if (q_us >= st->del_max_us)
		return p_min;
	fraction = cc_scale(1000, st->del_max_us - q_us, st->del_max_us - st->del_th_us);
	fraction = cc_min(fraction, 1000);
	for (i = 0; i < CC_CX_POWER_MAX; i++)
		if (i < p->power)
			share = cc_scale(share, fraction, 1000);
	return p_min + cc_scale(p_max - p_min, share, 1000);
}

/* cc_cx_curve(), scaled by the minimum divided by the current RTT deviation if mdev_scaling is set. */
CC_FN u32 cc_cx_probability(const struct cc_cx_state *st, const struct cc_cx_params *p, u32 q_us,
			    u32 mdev_us)
{
	u32 probability = cc_cx_curve(st, p, q_us);

	if (!p->mdev_scaling)
		return probability;
	probability = cc_scale(probability, cc_max(st->mdev_min_us, 1), cc_max(mdev_us, 1));
	return cc_min(probability, cc_min(p->p_max, 1000));
}

/* Saves cwnd before a delay back-off if other flows keep the queue full or the queue is still growing. */
CC_FN void cc_cx_save_shadow(struct cc_cx_state *st, u32 cwnd_pkts, u32 max_queue_us)
{
	if (max_queue_us > st->del_th_us)
		st->competing = 1;
	if (st->competing || max_queue_us > st->last_cut_queue_us)
		st->shadow_pkts = cc_max(st->shadow_pkts, cwnd_pkts);
	else
		st->shadow_pkts = 0;
	st->last_cut_queue_us = max_queue_us;
}

CC_FN void cc_cx_avoid(struct cc_cx_state *st, const struct cc_cx_params *p, u32 base_us,
		       const struct cc_ack *a, struct cc_out *out)
{
	const struct cc_round *r = &st->round;
	u32 draw = (u32)(((u64)a->random * 1000) >> 32);
	u32 step;

	if (!r->marked || draw >= st->probability) {
		step = cc_round_increase(p->rtt_fairness, p->gamma, base_us, a->srtt_us);
		out->cwnd_pkts = cc_bound_cwnd(a, (u64)out->cwnd_pkts + step);
		return;
	}
	st->backoffs++;
	if (p->shadow)
		cc_cx_save_shadow(st, out->cwnd_pkts, cc_saturating_sub(r->max_rtt_us, base_us));
	if (p->fractional)
		out->cwnd_pkts = cc_round_cut(out->cwnd_pkts, st->alpha);
	else
		out->cwnd_pkts >>= 1;
	out->cwnd_pkts = cc_bound_cwnd(a, out->cwnd_pkts);
	out->ssthresh_pkts = cc_min(out->ssthresh_pkts, out->cwnd_pkts);
}

CC_FN void cc_cx_decide(struct cc_cx_state *st, const struct cc_cx_params *p, u32 base_us,
			const struct cc_ack *a, struct cc_out *out)
{
	const struct cc_round *r = &st->round;

	if (!cc_in_slow_start(out->cwnd_pkts, out->ssthresh_pkts))
		cc_cx_avoid(st, p, base_us, a, out);
	else if (r->marked)
		cc_round_leave_slow_start(base_us, r->min_rtt_us, out);
	else
		cc_slow_start(a, out);
	cc_round_bound(a, out);
}

/* Updates probability, alpha and `competing` at the end of a round. */
CC_FN void cc_cx_observe(struct cc_cx_state *st, const struct cc_cx_params *p, u32 base_us,
			 const struct cc_ack *a)
{
	const struct cc_round *r = &st->round;
	u32 marked = r->marked;

	st->last_samples = r->samples;
	st->last_marked = r->marked;
	if (!r->samples)
		return;
	st->queue_us = cc_saturating_sub(a->srtt_us, base_us);
	st->probability = (u16)cc_cx_probability(st, p, st->queue_us, a->mdev_us);
	if (p->gradual_mark && st->queue_us < st->del_th_us)
		marked = cc_scale(marked, st->probability, 1000);
	st->alpha = (u16)cc_round_alpha(st->alpha, marked, r->samples, p->g);
	if (cc_saturating_sub(r->max_rtt_us, base_us) <= st->del_th_us)
		st->competing = 0;
}

CC_FN void cc_cx_update_shadow(struct cc_cx_state *st, const struct cc_cx_params *p,
			const struct cc_ack *a, const struct cc_out *out)
{
	if (!p->shadow || !st->shadow_pkts)
		return;
	st->shadow_pkts = cc_u32((u64)st->shadow_pkts + cc_saturating_sub(out->cwnd_pkts, a->cwnd_pkts));
	if (p->shadow_cap)
		st->shadow_pkts = cc_min(st->shadow_pkts, cc_u32((u64)p->shadow_cap * out->cwnd_pkts));
}

/* A random number is drawn at the end of a round. */
CC_FN int cc_cx_draws(const struct cc_cx_state *st, const struct cc_ack *a)
{
	return st->round.active && cc_round_over(&st->round, a);
}

CC_FN void cc_cx_on_ack(struct cc_cx_state *st, const struct cc_cx_params *p,
			const struct cc_ack *a, struct cc_out *out)
{
	struct cc_round *r = &st->round;
	u32 base_us = cc_cx_base(st, p, a);

	if (cc_round_ends(r, a, out)) {
		cc_cx_observe(st, p, base_us, a);
		if (r->samples > 2)
			cc_cx_decide(st, p, base_us, a, out);
		else
			cc_reno_increase(&r->count, a, out);
		cc_round_next(r, a, out);
	}
	cc_cx_update_shadow(st, p, a, out);
}

CC_FN u32 cc_cx_on_loss(struct cc_cx_state *st, const struct cc_cx_params *p,
			const struct cc_ack *a)
{
	u32 base_us = cc_cx_base(st, p, a), window = a->cwnd_pkts;

	st->round.count = 0;
	if (p->shadow) {
		if (st->competing && cc_saturating_sub(a->srtt_us, base_us) > st->del_th_us)
			window = cc_max(window, st->shadow_pkts);
		if (st->shadow_pkts)
			st->shadow_pkts = cc_half(st->shadow_pkts);
	}
	return cc_half(window);
}

CC_FN void cc_cx_on_event(struct cc_cx_state *st, const struct cc_cx_params *p, u32 event,
			  const struct cc_ack *a, struct cc_out *out)
{
	(void)p;
	cc_keep(a, out);
	cc_round_event(&st->round, event, a);
	if (event == CC_EVENT_RTO) {
		st->shadow_pkts = 0;
		st->competing = 0;
	}
}

CC_FN u32 cc_cx_undo(struct cc_cx_state *st, const struct cc_cx_params *p, const struct cc_ack *a)
{
	(void)st;
	(void)p;
	return cc_plain_undo(a);
}

CC_FN void cc_cx_read(const struct cc_cx_state *st, const struct cc_cx_params *p,
		      const struct cc_ack *a, struct cc_cx_stats *s)
{
	s->probability = st->probability;
	s->queue_us = st->queue_us;
	s->base_us = cc_cx_base(st, p, a);
	s->alpha = st->alpha;
	s->mdev_min_us = st->mdev_min_us;
	s->shadow_pkts = p->shadow ? st->shadow_pkts : 0;
	s->competing = st->competing;
	s->samples = st->last_samples;
	s->marked = st->last_marked;
	s->backoffs = st->backoffs;
}

#endif
