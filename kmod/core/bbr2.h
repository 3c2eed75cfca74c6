/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * BBRv2-like.
 *
 * Sources: Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 14(5), 2016;
 * draft-cardwell-iccrg-bbr-congestion-control; values as published for BBRv2.
 *
 * Named "-like" because a congestion control outside the kernel tree lacks some inputs of BBRv2:
 * - tx.in_flight of a packet: the maximum in flight during the round is used instead;
 * - loss per packet: the fraction lost in the current round is used, whichever phase sent the packets;
 * - no extra_acked beyond three bursts; no TSO sizing; no fast-ACK mode;
 * - bw_hi never bounds (no published text sets it); loss and CE take effect in the round in which they are detected.
 * ECN (ecn_enable) is off by default, as published; the host negotiates ECN only if it is on.
 *
 * State diagram and units: bbr.h. UP ends after a min RTT with 1.25 BDP in flight.
 */
#ifndef CC_BBR2_H
#define CC_BBR2_H

#include "bbr.h"

#define CC_BBR2_WANTS CC_BBR_WANTS
#define CC_BBR2_PARAMS(X) CC_BBR_LIST(X, 2885, 2885, 2000, 750, 8)

CC_SHAPE(bbr2, CC_BBR2_PARAMS, CC_BBR_STATS);
CC_ASSERT(sizeof(struct cc_bbr2_params) == sizeof(struct cc_bbr_params), "bbr2 parameters");

struct cc_bbr2_state {
	struct cc_bbr_state bbr;
};
CC_STATE_FITS(bbr2);

#define CC_BBR2_RULES(X) /* none between parameters */

CC_FN int cc_bbr2_check(const struct cc_bbr2_params *p, struct cc_fault *fault)
{
	return cc_check_ranges(cc_bbr2_table, (const u32 *)p, CC_PARAM_COUNT(bbr2), fault);
}

CC_FN const struct cc_bbr_params *cc_bbr2_of(const struct cc_bbr2_params *p)
{
	return (const struct cc_bbr_params *)p;
}

CC_FN void cc_bbr2_init(struct cc_bbr2_state *st, const struct cc_bbr2_params *p,
			const struct cc_ack *a, struct cc_out *out)
{
	cc_bbr_init(&st->bbr, cc_bbr2_of(p), a, out);
}

CC_FN u32 cc_bbr2_on_sample(struct cc_bbr2_state *st, const struct cc_bbr2_params *p,
			    const struct cc_ack *a)
{
	(void)st;
	(void)p;
	(void)a;
	return 0;
}

CC_FN void cc_bbr2_on_ack(struct cc_bbr2_state *st, const struct cc_bbr2_params *p,
			  const struct cc_ack *a, struct cc_out *out)
{
	cc_bbr_on_ack(&st->bbr, cc_bbr2_of(p), 2, a, out);
}

CC_FN u32 cc_bbr2_on_loss(struct cc_bbr2_state *st, const struct cc_bbr2_params *p,
			  const struct cc_ack *a)
{
	(void)p;
	return cc_bbr_on_loss(&st->bbr, a);
}

CC_FN void cc_bbr2_on_event(struct cc_bbr2_state *st, const struct cc_bbr2_params *p, u32 event,
			    const struct cc_ack *a, struct cc_out *out)
{
	(void)p;
	cc_bbr_on_event(&st->bbr, event, a, out);
}

CC_FN u32 cc_bbr2_undo(struct cc_bbr2_state *st, const struct cc_bbr2_params *p,
		       const struct cc_ack *a)
{
	(void)p;
	return cc_bbr_undo(&st->bbr, a);
}

CC_FN void cc_bbr2_read(const struct cc_bbr2_state *st, const struct cc_bbr2_params *p,
			const struct cc_ack *a, struct cc_bbr2_stats *s)
{
	(void)p;
	cc_bbr_read(&st->bbr, a, (struct cc_bbr_stats *)s);
}

#endif
