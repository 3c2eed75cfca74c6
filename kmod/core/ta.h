/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Threshold adaptation with delay gradient and with periodic backoff.
 *
 * Source: the study "Coexistence of Delay-based TCP Congestion Control" (NYU). The window decreases as in DCTCP, by the fraction of ACKs
 * above a delay threshold over the base RTT. The threshold rises when every ACK is above it. Parameters have the names of the study.
 *
 * Differences from the source: the base RTT is the kernel's minimum by default (hardcoding = 1), because the study's own minimum starts
 * from an unset value. A round without samples only restarts. grad_pct generalises the study's "half of the threshold RTT". The source of
 * the study's module with P1, P2 and drop is not available, so periodic backoff follows its description: a trial succeeds if the queueing
 * delay falls below dip_pct of its earlier value, and the gradient rule is off between trials. The minimum RTT of a round decides. The
 * maximum dates from before the round's own reduction, and with it a single flow missed its dip in 5 of 8 simulated runs.
 *
 *              inc_thresh starved rounds, compete: threshold += m % of (srtt - threshold RTT)
 *            +---+
 *            v   |
 *   [threshold]--+---- P1 rounds above betao ----> [trial of P2 rounds at the dropped threshold]
 *     ^    ^  gradient (comeback, P1 = 0):            |              |
 *     |    |  max RTT < grad_pct of threshold RTT     | no dip:      | dip: back to betao
 *     |    +--------- back to betao                   | restore      |
 *     +-----------------------------------------------+--------------+
 *
 * cwnd, once per round: if no ACK is marked, + increase; if any is, - alpha/2 of it. Loss, ECN, RTO: Reno.
 *
 * Units: us, pkts, rounds; alpha in 1/256.
 */
#ifndef CC_TA_H
#define CC_TA_H

#include "round.h"

#define CC_TA_WANTS 0u

/* name, unit, default, min, max, meaning */
#define CC_TA_PARAMS(X)                                                                            \
	X(compete, "flag", 1, 0, 1, "let the threshold rise when starved")                         \
	X(comeback, "flag", 1, 0, 1, "return to betao when the delay collapses")                   \
	X(betao, "us", 2000, 100, 1000000, "initial and lowest threshold above the base RTT")      \
	X(delta, "%", 100, 1, 100, "share of marked ACKs that makes a round starved")              \
	X(inc_thresh, "rounds", 5, 1, 1000, "starved rounds in a row before the threshold rises")  \
	X(starve_rst, "rounds", 5, 0, 1000, "the count of starved rounds after a rise")            \
	X(m, "%", 50, 1, 100, "share of the excess delay added to the threshold")                  \
	X(g, "shift", 4, 1, 8, "weight of a round in alpha is 1/2^g")                              \
	X(gamma, "-", 4, 0, 64, "gain of rtt_fairness 2")                                          \
	X(rtt_fairness, "mode", 2, 0, 2, "increase: 0 one, 1 by base RTT, 2 by base over threshold RTT") \
	X(hardcoding, "mode", 1, 0, 3, "base RTT: 0 basedelay_hc, 1 kernel's, 2 own, 3 larger of both") \
	X(basedelay_hc, "us", 2000, 1, 1000000, "base RTT of hardcoding 0")                        \
	X(grad_pct, "%", 50, 1, 95, "gradient: collapse below this share of the threshold RTT")    \
	X(P1, "rounds", 0, 0, 10000, "rounds between two trials; 0: no periodic backoff, else from 10") \
	X(P2, "rounds", 5, 1, 100, "length of a trial")                                            \
	X(drop, "%", 95, 1, 99, "share of the threshold taken away during a trial")                \
	X(hold_floor, "flag", 1, 0, 1, "the threshold of a trial is not below betao")              \
	X(dip_pct, "%", 60, 1, 99, "a trial succeeds below this share of its earlier queueing delay") \
	X(dip_min_rtt, "flag", 1, 0, 1, "a trial succeeds by the minimum RTT of its round; 0: by the maximum")

#define CC_TA_STATS(X)                                                                             \
	X(threshold_us, "us")                                                                      \
	X(base_us, "us")                                                                           \
	X(alpha, "1/256")                                                                          \
	X(max_rtt_us, "us")                                                                        \
	X(samples, "acks")                                                                         \
	X(marked, "acks")                                                                          \
	X(starved, "rounds")                                                                       \
	X(trial, "rounds")                                                                         \
	X(raises, "count")                                                                         \
	X(resets, "count")                                                                         \
	X(trials, "count")

CC_SHAPE(ta, CC_TA_PARAMS, CC_TA_STATS);

struct cc_ta_state {
	struct cc_round round;
	u32 beta_us;	  /* threshold above the base RTT */
	u32 beta_initial_us; /* betao at init */
	u32 beta_saved_us; /* during a trial */
	u32 queue_before_us;
	u32 own_base_us;
	u32 last_max_us;
	u32 last_samples, last_marked;
	u32 raises, resets, trials;
	u16 alpha;
	u16 starved;
	u16 period;
	u16 trial; /* remaining rounds of the trial */
};
CC_STATE_FITS(ta);

/* invalid parameter, condition, rule, message */
#define CC_TA_RULES(X)                                                                          \
	X(starve_rst, 1, p->starve_rst <= p->inc_thresh, "must not exceed inc_thresh")             \
	X(P1, p->P1, p->P1 >= 10, "must be 0 (off) or at least 10 rounds")                         \
	X(P2, p->P1, p->P2 < p->P1, "must be shorter than P1")                                     \
	X(P1, p->P1, p->comeback >= 1, "periodic backoff needs comeback = 1")

CC_FN int cc_ta_check(const struct cc_ta_params *p, struct cc_fault *fault)
{
	if (cc_check_ranges(cc_ta_table, (const u32 *)p, CC_PARAM_COUNT(ta), fault))
		return -1;
	CC_TA_RULES(CC_RULE)
	return 0;
}

CC_FN void cc_ta_init(struct cc_ta_state *st, const struct cc_ta_params *p, const struct cc_ack *a,
		      struct cc_out *out)
{
	st->beta_us = p->betao;
	st->beta_initial_us = p->betao;
	st->beta_saved_us = p->betao;
	st->queue_before_us = 0;
	st->own_base_us = CC_NO_RTT;
	st->last_max_us = 0;
	st->last_samples = 0;
	st->last_marked = 0;
	st->raises = 0;
	st->resets = 0;
	st->trials = 0;
	st->alpha = CC_ALPHA_ONE;
	st->starved = 0;
	st->period = 0;
	st->trial = 0;
	st->round.count = 0;
	cc_round_start(&st->round, a);
	cc_keep(a, out);
}

CC_FN u32 cc_ta_base(const struct cc_ta_state *st, const struct cc_ta_params *p,
		     const struct cc_ack *a)
{
	return cc_round_base(p->hardcoding, p->basedelay_hc, st->own_base_us, a);
}

CC_FN u32 cc_ta_on_sample(struct cc_ta_state *st, const struct cc_ta_params *p,
			     const struct cc_ack *a)
{
	cc_round_delay_sample(&st->round, &st->own_base_us, p->hardcoding, p->basedelay_hc, st->beta_us, a);
	return 0;
}

/* Raises the threshold if every ACK has been above it for inc_thresh rounds, because other flows then fill the queue. */
CC_FN void cc_ta_raise_threshold(struct cc_ta_state *st, const struct cc_ta_params *p, u64 base_us, u32 srtt_us)
{
	const struct cc_round *r = &st->round;
	u64 threshold_us = base_us + st->beta_us;

	if ((u64)r->marked * 100 < (u64)p->delta * r->samples) {
		st->starved = 0;
		return;
	}
	if (st->starved < 0xffff)
		st->starved++;
	if (st->starved < p->inc_thresh)
		return;
	st->starved = (u16)p->starve_rst;
	if (!p->compete || srtt_us <= threshold_us)
		return;
	st->beta_us = cc_u32(st->beta_us + cc_div64((srtt_us - threshold_us) * p->m, 100));
	st->raises++;
}

CC_FN void cc_ta_reset_threshold(struct cc_ta_state *st)
{
	st->beta_us = st->beta_initial_us;
	st->starved = 0;
	st->period = 0;
	st->trial = 0;
	st->resets++;
}

CC_FN void cc_ta_check_gradient(struct cc_ta_state *st, const struct cc_ta_params *p, u64 base_us)
{
	if (p->comeback && st->beta_us > st->beta_initial_us &&
	    (u64)st->round.max_rtt_us * 100 < p->grad_pct * (base_us + st->beta_us))
		cc_ta_reset_threshold(st);
}

/* Handles one round of a trial, which succeeds if the queue drained after this flow's reduction. */
CC_FN void cc_ta_check_trial(struct cc_ta_state *st, const struct cc_ta_params *p, u32 base_us)
{
	u32 rtt_us = p->dip_min_rtt ? st->round.min_rtt_us : st->round.max_rtt_us;
	u64 queue_us = cc_saturating_sub(rtt_us, base_us);

	if (queue_us * 100 < (u64)p->dip_pct * st->queue_before_us) {
		cc_ta_reset_threshold(st);
		return;
	}
	st->trial--;
	if (st->trial)
		return;
	st->beta_us = st->beta_saved_us;
	st->starved = 0;
}

CC_FN void cc_ta_schedule_trial(struct cc_ta_state *st, const struct cc_ta_params *p, u32 base_us,
				u32 srtt_us)
{
	u32 low_us;

	if (st->beta_us <= st->beta_initial_us) {
		st->period = 0;
		return;
	}
	if (st->period < 0xffff)
		st->period++;
	if (st->period < p->P1)
		return;
	low_us = cc_scale(st->beta_us, cc_saturating_sub(100, p->drop), 100);
	st->period = 0;
	st->beta_saved_us = st->beta_us;
	st->queue_before_us = cc_saturating_sub(srtt_us, base_us);
	st->beta_us = p->hold_floor ? cc_max(low_us, st->beta_initial_us) : low_us;
	st->trial = (u16)p->P2;
	st->trials++;
}

/* Updates the threshold at the end of a round, before the window. */
CC_FN void cc_ta_adapt(struct cc_ta_state *st, const struct cc_ta_params *p, u32 base_us, u32 srtt_us)
{
	if (!p->P1) {
		cc_ta_raise_threshold(st, p, base_us, srtt_us);
		cc_ta_check_gradient(st, p, base_us);
		return;
	}
	if (st->trial)
		cc_ta_check_trial(st, p, base_us);
	else
		cc_ta_raise_threshold(st, p, base_us, srtt_us);
	if (!st->trial)
		cc_ta_schedule_trial(st, p, base_us, srtt_us);
}

CC_FN void cc_ta_decide(struct cc_ta_state *st, const struct cc_ta_params *p, u32 base_us,
			const struct cc_ack *a, struct cc_out *out)
{
	const struct cc_round *r = &st->round;
	u32 step;

	if (cc_in_slow_start(out->cwnd_pkts, out->ssthresh_pkts)) {
		if (r->marked)
			cc_round_leave_slow_start(base_us, r->min_rtt_us, out);
		else
			cc_slow_start(a, out);
	} else if (r->marked) {
		out->cwnd_pkts = cc_bound_cwnd(a, cc_round_cut(out->cwnd_pkts, st->alpha));
		out->ssthresh_pkts = cc_min(out->ssthresh_pkts, out->cwnd_pkts);
	} else {
		step = cc_round_increase(p->rtt_fairness, p->gamma, base_us,
					 (u64)base_us + st->beta_us);
		out->cwnd_pkts = cc_bound_cwnd(a, (u64)out->cwnd_pkts + step);
	}
	cc_round_bound(a, out);
}

CC_FN void cc_ta_on_ack(struct cc_ta_state *st, const struct cc_ta_params *p,
			const struct cc_ack *a, struct cc_out *out)
{
	struct cc_round *r = &st->round;
	u32 base_us = cc_ta_base(st, p, a);

	if (!cc_round_ends(r, a, out))
		return;
	st->last_samples = r->samples;
	st->last_marked = r->marked;
	st->last_max_us = r->max_rtt_us;
	if (r->samples) {
		cc_ta_adapt(st, p, base_us, a->srtt_us);
		st->alpha = (u16)cc_round_alpha(st->alpha, r->marked, r->samples, p->g);
	}
	if (r->samples > 2)
		cc_ta_decide(st, p, base_us, a, out);
	else
		cc_reno_increase(&r->count, a, out);
	cc_round_next(r, a, out);
}

CC_FN u32 cc_ta_on_loss(struct cc_ta_state *st, const struct cc_ta_params *p,
			const struct cc_ack *a)
{
	(void)p;
	st->round.count = 0;
	return cc_half(a->cwnd_pkts);
}

/* Loss, timeout and idle time do not change the threshold. */
CC_FN void cc_ta_on_event(struct cc_ta_state *st, const struct cc_ta_params *p, u32 event,
			  const struct cc_ack *a, struct cc_out *out)
{
	(void)p;
	cc_keep(a, out);
	cc_round_event(&st->round, event, a);
}

CC_FN u32 cc_ta_undo(struct cc_ta_state *st, const struct cc_ta_params *p, const struct cc_ack *a)
{
	(void)st;
	(void)p;
	return cc_plain_undo(a);
}

CC_FN void cc_ta_read(const struct cc_ta_state *st, const struct cc_ta_params *p,
		      const struct cc_ack *a, struct cc_ta_stats *s)
{
	s->threshold_us = st->beta_us;
	s->base_us = cc_ta_base(st, p, a);
	s->alpha = st->alpha;
	s->max_rtt_us = st->last_max_us;
	s->samples = st->last_samples;
	s->marked = st->last_marked;
	s->starved = st->starved;
	s->trial = st->trial;
	s->raises = st->raises;
	s->resets = st->resets;
	s->trials = st->trials;
}

#endif
