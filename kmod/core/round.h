/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Rounds of one RTT with one decision each, shared by Vegas, threshold adaptation and Cx-TCP.
 *
 * A round starts at snd_nxt and ends with the first ACK beyond it. It collects RTT samples. An ACK is "marked" if its RTT exceeds the
 * threshold. Decisions are made only in state Open:
 *
 *        Open, restart after idle             any other state
 *   [active] <----------------- [passive: Reno] <----------------- [active]
 *
 * Units: us, pkts; alpha in 1/256.
 */
#ifndef CC_ROUND_H
#define CC_ROUND_H

#include "cc.h"

#define CC_ALPHA_ONE 256u

struct cc_round {
	u32 end_seq;	/* the round ends when una passes this */
	u32 min_rtt_us; /* CC_NO_RTT before the first sample */
	u32 max_rtt_us;
	u32 samples;
	u32 marked;
	u32 count;	/* of cc_reno_increase; zero after every reduction, as the stack's snd_cwnd_cnt */
	u32 active;
};

CC_FN void cc_round_clear(struct cc_round *r)
{
	r->min_rtt_us = CC_NO_RTT;
	r->max_rtt_us = 0;
	r->samples = 0;
	r->marked = 0;
}

CC_FN void cc_round_start(struct cc_round *r, const struct cc_ack *a)
{
	cc_round_clear(r);
	r->end_seq = a->nxt_seq;
	r->active = 1;
}

CC_FN int cc_round_over(const struct cc_round *r, const struct cc_ack *a)
{
	return cc_after(a->una_seq, r->end_seq);
}

CC_FN void cc_round_sample(struct cc_round *r, u32 rtt_us, u64 threshold_us)
{
	r->min_rtt_us = cc_min(r->min_rtt_us, rtt_us);
	r->max_rtt_us = cc_max(r->max_rtt_us, rtt_us);
	if (r->samples == 0xffffffffu)
		return;
	r->samples++;
	if (rtt_us > threshold_us)
		r->marked++;
}

/*
 * Handles an ACK that does not end a round: slow start within a round, Reno while no round is active. Returns whether the ACK ends a round.
 * The caller then decides and calls cc_round_next().
 */
CC_FN int cc_round_ends(struct cc_round *r, const struct cc_ack *a, struct cc_out *out)
{
	cc_keep(a, out);
	if (!r->active) {
		cc_reno_increase(&r->count, a, out);
		return 0;
	}
	if (cc_round_over(r, a))
		return 1;
	if (cc_in_slow_start(out->cwnd_pkts, out->ssthresh_pkts))
		cc_slow_start(a, out);
	out->cwnd_pkts = cc_bound_cwnd(a, out->cwnd_pkts);
	return 0;
}

CC_FN void cc_round_next(struct cc_round *r, const struct cc_ack *a, struct cc_out *out)
{
	cc_round_start(r, a);
	out->flags |= CC_OUT_ROUND;
}

/* Entering Open starts a new round; in any other state Reno controls the window. */
CC_FN void cc_round_event(struct cc_round *r, u32 event, const struct cc_ack *a)
{
	if (event == CC_EVENT_OPEN || event == CC_EVENT_RESTART || event == CC_EVENT_TX_START)
		cc_round_start(r, a);
	else if (event < CC_EVENT_RESTART)
		r->active = 0;
	if (event == CC_EVENT_LOSS)
		r->count = 0;
}

/* Bounds cwnd, and keeps ssthresh at no less than 3/4 of it (tcp_current_ssthresh). */
CC_FN void cc_round_bound(const struct cc_ack *a, struct cc_out *out)
{
	out->cwnd_pkts = cc_bound_cwnd(a, out->cwnd_pkts);
	if (a->ca_state != CC_CWR && a->ca_state != CC_RECOVERY)
		out->ssthresh_pkts = cc_max(out->ssthresh_pkts,
					    (out->cwnd_pkts >> 1) + (out->cwnd_pkts >> 2));
}

/* Leaves slow start with the window that causes no queue, cwnd * base / min RTT, plus one packet. */
CC_FN void cc_round_leave_slow_start(u32 base_us, u32 min_rtt_us, struct cc_out *out)
{
	u32 target = cc_scale(out->cwnd_pkts, base_us, min_rtt_us);

	if (target != 0xffffffffu)
		target++;
	out->cwnd_pkts = cc_max(cc_min(out->cwnd_pkts, target), CC_MIN_CWND);
	out->ssthresh_pkts = cc_min(out->ssthresh_pkts, out->cwnd_pkts);
}

/* EWMA step of alpha towards marked/samples by 1/2^shift; samples is not zero, shift at most 8. */
CC_FN u32 cc_round_alpha(u32 alpha, u32 marked, u32 samples, u32 shift)
{
	u64 now = cc_div64((u64)marked << 8, samples);

	shift &= 15;
	return (u32)((((((u64)1 << shift) - 1) * alpha) + now) >> shift);
}

/* cwnd * (1 - alpha/2), rounded down, so that any alpha > 0 removes at least one packet. */
CC_FN u32 cc_round_cut(u32 cwnd_pkts, u32 alpha)
{
	u64 keep = ((u64)cwnd_pkts << 8) - (((u64)cwnd_pkts * cc_min(alpha, CC_ALPHA_ONE)) >> 1);

	return (u32)(keep >> 8);
}

enum cc_base_mode { CC_BASE_FIXED, CC_BASE_KERNEL, CC_BASE_OWN, CC_BASE_LARGER };

/* Base RTT by mode (the study's "hardcoding"). If the mode's source has no sample, uses the other one. */
CC_FN u32 cc_round_base(u32 mode, u32 fixed_us, u32 own_us, const struct cc_ack *a)
{
	u32 kernel = a->rtt_min_us ? a->rtt_min_us : CC_NO_RTT;

	if (mode == CC_BASE_FIXED)
		return fixed_us;
	if (own_us == CC_NO_RTT)
		return kernel;
	if (kernel == CC_NO_RTT || mode == CC_BASE_OWN)
		return own_us;
	return mode == CC_BASE_LARGER ? cc_max(kernel, own_us) : kernel;
}

/* Updates the flow's own minimum RTT. An ACK is marked if its RTT exceeds the base RTT by more than queue_us. */
CC_FN void cc_round_delay_sample(struct cc_round *r, u32 *own_us, u32 mode, u32 fixed_us, u32 queue_us,
				 const struct cc_ack *a)
{
	if (!a->rtt_us)
		return;
	*own_us = cc_min(*own_us, a->rtt_us);
	cc_round_sample(r, a->rtt_us, (u64)cc_round_base(mode, fixed_us, *own_us, a) + queue_us);
}

/* Packets added per round, by mode: 1; 1 + base / 5 ms; 1 + gamma * base / reference. */
CC_FN u32 cc_round_increase(u32 mode, u32 gamma, u32 base_us, u64 reference_us)
{
	if (base_us == CC_NO_RTT || mode == 0)
		return 1;
	if (mode == 1)
		return 1 + (u32)cc_div64(base_us, 5000);
	return 1 + cc_min(cc_u32(cc_div64((u64)gamma * base_us, reference_us ? reference_us : 1)), 0xffff);
}

#endif
