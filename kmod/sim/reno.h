/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Reno (RFC 5681) as in Linux 6.18, net/ipv4/tcp_cong.c. Only for simulators: nodes run the kernel's. Unlike there, cwnd is at least 2
 * after an ACK, which every core guarantees.
 */
#ifndef CC_RENO_H
#define CC_RENO_H

#include "stack.h"

#define CC_RENO_PARAMS(X) X(unused, "-", 0, 0, 0, "Reno has no parameter")
#define CC_RENO_STATS(X) X(count_pkts, "pkts")
CC_SHAPE(reno, CC_RENO_PARAMS, CC_RENO_STATS);

struct cc_reno_state {
	u32 count; /* snd_cwnd_cnt */
};
CC_STATE_FITS(reno);

CC_FN int cc_reno_check(const struct cc_reno_params *p, struct cc_fault *fault)
{
	return cc_check_ranges(cc_reno_table, (const u32 *)p, CC_PARAM_COUNT(reno), fault);
}

CC_FN void cc_reno_init(struct cc_reno_state *st, const struct cc_reno_params *p,
			const struct cc_ack *a, struct cc_out *out)
{
	(void)p;
	st->count = 0;
	cc_keep(a, out);
}

CC_FN u32 cc_reno_on_sample(struct cc_reno_state *st, const struct cc_reno_params *p,
			  const struct cc_ack *a)
{
	(void)st;
	(void)p;
	(void)a;
	return 0;
}

CC_FN void cc_reno_on_ack(struct cc_reno_state *st, const struct cc_reno_params *p,
			  const struct cc_ack *a, struct cc_out *out)
{
	u32 acked = a->acked_pkts;

	(void)p;
	cc_keep(a, out);
	if (a->flags & CC_CWND_LIMITED) {
		if (cc_in_slow_start(out->cwnd_pkts, out->ssthresh_pkts))
			acked = cc_stack_slow_start(a, out);
		if (acked)
			cc_stack_cong_avoid(&st->count, out->cwnd_pkts, acked, a, out);
	}
	out->cwnd_pkts = cc_bound_cwnd(a, out->cwnd_pkts);
}

/* The stack clears snd_cwnd_cnt at every reduction. */
CC_FN u32 cc_reno_on_loss(struct cc_reno_state *st, const struct cc_reno_params *p,
			  const struct cc_ack *a)
{
	(void)p;
	st->count = 0;
	return cc_half(a->cwnd_pkts);
}

CC_FN void cc_reno_on_event(struct cc_reno_state *st, const struct cc_reno_params *p, u32 event,
			    const struct cc_ack *a, struct cc_out *out)
{
	(void)p;
	cc_keep(a, out);
	if (event == CC_EVENT_LOSS)
		st->count = 0;
}

CC_FN u32 cc_reno_undo(struct cc_reno_state *st, const struct cc_reno_params *p,
		       const struct cc_ack *a)
{
	(void)st;
	(void)p;
	return cc_plain_undo(a);
}

CC_FN void cc_reno_read(const struct cc_reno_state *st, const struct cc_reno_params *p,
			const struct cc_ack *a, struct cc_reno_stats *s)
{
	(void)p;
	(void)a;
	s->count_pkts = st->count;
}

#endif
