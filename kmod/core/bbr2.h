/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * BBRv2.
 *
 * Source: google/bbr, net/ipv4/tcp_bbr2.c of branch v2alpha (0487ade5), step by step; bbr_common.h lists what differs
 * and why.
 * Differences from BBRv3: STARTUP gains of 2.89, DOWN at 0.75, a window of 2 BDP in UP; STARTUP ends after eight ACKs
 * with loss, and by max_bw, at inflight_hi = BDP; UP ends after a min RTT with 1.25 BDP in flight; CE also cuts bw_lo
 * and, in a probe, bw_hi; an RTT equal to the lowest postpones PROBE_RTT.
 *
 * ecn_enable is off by default, as in the source; it needs marks of a shallow queue and per-packet feedback.
 * State diagram and units: bbr_common.h.
 */
#ifndef CC_BBR2_H
#define CC_BBR2_H

#include "bbr_common.h"

#define CC_BBR2_WANTS (CC_BBR_WANTS | CC_WANTS_BURSTS)
#define CC_BBR2_PARAMS(X) CC_BBR_LIST(X, 2887, 2887, 2000, 750, 8, 0)

CC_SHAPE(bbr2, CC_BBR2_PARAMS, CC_BBR_STATS);
CC_ASSERT(sizeof(struct cc_bbr2_params) == sizeof(struct cc_bbr_params), "bbr2 parameters");

struct cc_bbr2_state {
	struct cc_bbr_state bbr;
};
CC_STORAGE_FITS(bbr2);

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
	cc_bbr_init(&st->bbr, cc_bbr2_of(p), 2, a, out);
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

CC_FN int cc_bbr2_draws(const struct cc_bbr2_state *st, const struct cc_ack *a)
{
	(void)a;
	return cc_bbr_draws(&st->bbr);
}

CC_FN int cc_bbr2_reads_probe(const struct cc_bbr2_state *st)
{
	return cc_bbr_reads_probe(&st->bbr);
}

CC_FN int cc_bbr2_reacts_to(const struct cc_bbr2_state *st, u32 event, u32 app_limited)
{
	return cc_bbr_reacts_to(&st->bbr, event, app_limited);
}

CC_FN void cc_bbr2_on_event(struct cc_bbr2_state *st, const struct cc_bbr2_params *p, u32 event,
			    const struct cc_ack *a, struct cc_out *out)
{
	cc_bbr_on_event(&st->bbr, cc_bbr2_of(p), 2, event, a, out);
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
	cc_bbr_read(&st->bbr, cc_bbr2_of(p), a, (struct cc_bbr_stats *)s);
}

/* The stack's own: a burst is a millisecond at the paced rate. */
CC_FN u32 cc_bbr2_burst_shift(const struct cc_bbr2_params *p)
{
	(void)p;
	return 10;
}

/* Least segments of a TSO burst (min_tso_segs). */
CC_FN u32 cc_bbr2_burst_segs(const struct cc_bbr2_params *p, u64 pacing_bytes_per_sec, u32 mtu_bytes)
{
	(void)p;
	(void)mtu_bytes;
	return pacing_bytes_per_sec < CC_BBR_V2_MIN_TSO_RATE ? 1 : 2;
}

#endif
