/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * BBRv3.
 *
 * Sources: google/bbr, net/ipv4/tcp_bbr.c of branch v3 (001a430b), step by step, and draft-ietf-ccwg-bbr;
 * bbr_common.h lists what differs and why. Differences from BBRv2: bbr2.h.
 *
 * ecn_enable takes the place of the source's route attribute: it is off by default, and needs marks of a shallow queue
 * and per-packet feedback. State diagram and units: bbr_common.h.
 */
#ifndef CC_BBR3_H
#define CC_BBR3_H

#include "bbr_common.h"

#define CC_BBR3_WANTS CC_BBR_WANTS
#define CC_BBR3_PARAMS(X) CC_BBR_LIST(X, 2774, 2000, 2250, 910, 6, 50)

CC_SHAPE(bbr3, CC_BBR3_PARAMS, CC_BBR_STATS);
CC_ASSERT(sizeof(struct cc_bbr3_params) == sizeof(struct cc_bbr_params), "bbr3 parameters");

struct cc_bbr3_state {
	struct cc_bbr_state bbr;
};
CC_STORAGE_FITS(bbr3);

#define CC_BBR3_RULES(X) /* none between parameters */

CC_FN int cc_bbr3_check(const struct cc_bbr3_params *p, struct cc_fault *fault)
{
	return cc_check_ranges(cc_bbr3_table, (const u32 *)p, CC_PARAM_COUNT(bbr3), fault);
}

CC_FN const struct cc_bbr_params *cc_bbr3_of(const struct cc_bbr3_params *p)
{
	return (const struct cc_bbr_params *)p;
}

CC_FN void cc_bbr3_init(struct cc_bbr3_state *st, const struct cc_bbr3_params *p,
			const struct cc_ack *a, struct cc_out *out)
{
	cc_bbr_init(&st->bbr, cc_bbr3_of(p), 3, a, out);
}

CC_FN u32 cc_bbr3_on_sample(struct cc_bbr3_state *st, const struct cc_bbr3_params *p,
			    const struct cc_ack *a)
{
	(void)st;
	(void)p;
	(void)a;
	return 0;
}

CC_FN void cc_bbr3_on_ack(struct cc_bbr3_state *st, const struct cc_bbr3_params *p,
			  const struct cc_ack *a, struct cc_out *out)
{
	cc_bbr_on_ack(&st->bbr, cc_bbr3_of(p), 3, a, out);
}

CC_FN u32 cc_bbr3_on_loss(struct cc_bbr3_state *st, const struct cc_bbr3_params *p,
			  const struct cc_ack *a)
{
	(void)p;
	return cc_bbr_on_loss(&st->bbr, a);
}

CC_FN int cc_bbr3_draws(const struct cc_bbr3_state *st, const struct cc_ack *a)
{
	(void)a;
	return cc_bbr_draws(&st->bbr);
}

CC_FN int cc_bbr3_reads_probe(const struct cc_bbr3_state *st)
{
	return cc_bbr_reads_probe(&st->bbr);
}

CC_FN int cc_bbr3_reacts_to(const struct cc_bbr3_state *st, u32 event, u32 app_limited)
{
	return cc_bbr_reacts_to(&st->bbr, event, app_limited);
}

CC_FN void cc_bbr3_on_event(struct cc_bbr3_state *st, const struct cc_bbr3_params *p, u32 event,
			    const struct cc_ack *a, struct cc_out *out)
{
	cc_bbr_on_event(&st->bbr, cc_bbr3_of(p), 3, event, a, out);
}

CC_FN u32 cc_bbr3_undo(struct cc_bbr3_state *st, const struct cc_bbr3_params *p,
		       const struct cc_ack *a)
{
	(void)p;
	return cc_bbr_undo(&st->bbr, a);
}

CC_FN void cc_bbr3_read(const struct cc_bbr3_state *st, const struct cc_bbr3_params *p,
			const struct cc_ack *a, struct cc_bbr3_stats *s)
{
	cc_bbr_read(&st->bbr, cc_bbr3_of(p), a, (struct cc_bbr_stats *)s);
}

#endif
