/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * DCTCP.
 *
 * Source: RFC 8257, sections 3.3 and 3.4.
 *
 * Differences: the fraction of marks counts packets, not bytes. alpha has 24 bits, so it reaches 1 and almost 0. Without ECN feedback it is
 * Reno.
 *
 *                        end of window: alpha += (marked/acked - alpha) / 2^shift
 *   [grow as Reno] ----------------------------------------------------------------> [grow as Reno]
 *        | an ACK echoes CE (at most once per window, the stack enters CWR): ssthresh = cwnd (1 - alpha/2)
 *        | loss, RTO: ssthresh = cwnd / 2
 *
 * Units: pkts; alpha in 1/1024, stored in 1/2^24.
 */
#ifndef CC_DCTCP_H
#define CC_DCTCP_H

#include "cc.h"

#define CC_DCTCP_WANTS CC_WANTS_ECN
#define CC_DCTCP_ONE (1u << 24)

/* name, unit, default, min, max, meaning */
#define CC_DCTCP_PARAMS(X)                                                                         \
	X(shift, "shift", 4, 1, 10, "weight of a window in alpha is 1/2^shift")                    \
	X(alpha_on_init, "1/1024", 1024, 0, 1024, "alpha of a new connection")

#define CC_DCTCP_STATS(X)                                                                          \
	X(alpha, "1/1024")                                                                         \
	X(acked_pkts, "pkts")                                                                      \
	X(ce_pkts, "pkts")

CC_SHAPE(dctcp, CC_DCTCP_PARAMS, CC_DCTCP_STATS);

struct cc_dctcp_state {
	u64 alpha; /* 1/2^24 */
	u32 next_seq;
	u32 old_delivered, old_delivered_ce; /* delivered and delivered_ce at the start of this window */
	u32 acked_pkts, ce_pkts;     /* in the last window */
	u32 loss_cwnd_pkts;
	u32 count; /* of cc_reno_increase */
};
CC_STATE_FITS(dctcp);

#define CC_DCTCP_RULES(X) /* none between parameters */

CC_FN int cc_dctcp_check(const struct cc_dctcp_params *p, struct cc_fault *fault)
{
	return cc_check_ranges(cc_dctcp_table, (const u32 *)p, CC_PARAM_COUNT(dctcp), fault);
}

CC_FN void cc_dctcp_init(struct cc_dctcp_state *st, const struct cc_dctcp_params *p,
			 const struct cc_ack *a, struct cc_out *out)
{
	st->alpha = (u64)cc_min(p->alpha_on_init, 1024) << 14;
	st->next_seq = a->nxt_seq;
	st->old_delivered = a->delivered_pkts;
	st->old_delivered_ce = a->delivered_ce_pkts;
	st->acked_pkts = 0;
	st->ce_pkts = 0;
	st->loss_cwnd_pkts = 0;
	st->count = 0;
	cc_keep(a, out);
}

/* alpha = alpha (1 - g) + g F (RFC 8257, 3.3), with g = 1/2^shift, F = marked / acked in 1/2^24 */
CC_FN u64 cc_dctcp_update_alpha(u64 alpha, u32 marked, u32 acked, u32 shift)
{
	u64 share;

	shift &= 15;
	share = cc_div64((u64)cc_min(marked, acked) << 24, acked ? acked : 1);
	return alpha - (alpha >> shift) + (share >> shift);
}

/* Runs in every state, because a flow with marks in every window is in CWR most of the time. */
CC_FN u32 cc_dctcp_on_sample(struct cc_dctcp_state *st, const struct cc_dctcp_params *p,
			     const struct cc_ack *a)
{
	u32 acked = a->delivered_pkts - st->old_delivered, marked = a->delivered_ce_pkts - st->old_delivered_ce;

	if (!cc_after(a->una_seq, st->next_seq))
		return 0;
	if (acked && (a->flags & CC_ECN))
		st->alpha = cc_dctcp_update_alpha(st->alpha, marked, acked, p->shift);
	st->acked_pkts = acked;
	st->ce_pkts = marked;
	st->old_delivered = a->delivered_pkts;
	st->old_delivered_ce = a->delivered_ce_pkts;
	st->next_seq = a->nxt_seq;
	return CC_OUT_ROUND;
}

CC_FN void cc_dctcp_on_ack(struct cc_dctcp_state *st, const struct cc_dctcp_params *p,
			   const struct cc_ack *a, struct cc_out *out)
{
	(void)p;
	cc_keep(a, out);
	cc_reno_increase(&st->count, a, out);
}

/* The stack calls ssthresh before the cause is known. After a loss, CC_EVENT_RECOVERY or CC_EVENT_RTO follows. */
CC_FN u32 cc_dctcp_on_loss(struct cc_dctcp_state *st, const struct cc_dctcp_params *p,
			   const struct cc_ack *a)
{
	u64 cut = ((u64)a->cwnd_pkts * st->alpha) >> 25;

	(void)p;
	st->loss_cwnd_pkts = a->cwnd_pkts;
	st->count = 0; /* as the stack's snd_cwnd_cnt at every reduction */
	if (!(a->flags & CC_ECN))
		return cc_half(a->cwnd_pkts);
	return cc_min(cc_max(cc_saturating_sub(a->cwnd_pkts, cc_u32(cut)), CC_MIN_CWND), CC_INFINITE);
}

CC_FN void cc_dctcp_on_event(struct cc_dctcp_state *st, const struct cc_dctcp_params *p, u32 event,
			     const struct cc_ack *a, struct cc_out *out)
{
	(void)p;
	cc_keep(a, out);
	if ((event == CC_EVENT_RECOVERY && a->ca_state != CC_RECOVERY) || event == CC_EVENT_RTO) {
		st->loss_cwnd_pkts = a->cwnd_pkts;
		out->ssthresh_pkts = cc_half(a->cwnd_pkts);
	}
	if (event == CC_EVENT_LOSS)
		st->count = 0;
}

CC_FN u32 cc_dctcp_undo(struct cc_dctcp_state *st, const struct cc_dctcp_params *p,
			const struct cc_ack *a)
{
	(void)p;
	return cc_max(cc_max(a->cwnd_pkts, st->loss_cwnd_pkts), CC_MIN_CWND);
}

CC_FN void cc_dctcp_read(const struct cc_dctcp_state *st, const struct cc_dctcp_params *p,
			 const struct cc_ack *a, struct cc_dctcp_stats *s)
{
	(void)p;
	(void)a;
	s->alpha = (u32)(st->alpha >> 14);
	s->acked_pkts = st->acked_pkts;
	s->ce_pkts = st->ce_pkts;
}

#endif
