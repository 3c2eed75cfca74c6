/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * BBRv2.
 *
 * Source: google/bbr, net/ipv4/tcp_bbr2.c of branch v2alpha (0487ade5), step by step. bbr_common.h lists the differences and their reasons.
 * Differences from BBRv3: STARTUP gains of 2.89, DOWN at 0.75, a window of 2 BDP in UP. STARTUP ends after eight ACKs with loss, and because
 * of max_bw, at inflight_hi = BDP. UP ends after a min RTT with 1.25 BDP in flight. CE also cuts bw_lo and, in a probe, bw_hi. An RTT equal
 * to the minimum postpones PROBE_RTT.
 *
 * ecn_enable is off by default, as in the source. It needs marks from a shallow queue and per-packet feedback.
 * State diagram and units: bbr_common.h.
 */
#ifndef CC_BBR2_H
#define CC_BBR2_H

#include "bbr_fast_path.h"

#define CC_BBR2_WANTS (CC_BBR_WANTS | CC_WANTS_BURSTS)
#define CC_BBR2_PARAMS(X) CC_BBR_LIST(X, 2887, 2887, 2000, 750, 8, 0)

CC_SHAPE(bbr2, CC_BBR2_PARAMS, CC_BBR_STATS);
CC_ASSERT(sizeof(struct cc_bbr2_params) == sizeof(struct cc_bbr_params), "bbr2 parameters");

struct cc_bbr2_state {
	struct cc_bbr_state bbr;
};
CC_STORAGE_FITS(bbr2);

#define CC_BBR2_RULES(X) /* none between parameters */

CC_BBR_CORE(bbr2, 2)

/* The stack's default: a burst is a millisecond at the pacing rate. */
CC_FN u32 cc_bbr2_burst_shift(const struct cc_bbr2_params *p)
{
	(void)p;
	return 10;
}

/* Minimum segments of a TSO burst (min_tso_segs). */
CC_FN u32 cc_bbr2_burst_segs(const struct cc_bbr2_params *p, u64 pacing_bytes_per_sec, u32 mtu_bytes)
{
	(void)p;
	(void)mtu_bytes;
	return pacing_bytes_per_sec < CC_BBR_V2_MIN_TSO_RATE ? 1 : 2;
}

#endif
