/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * BBR's model of the path: parameters, state, and the updates of bandwidth, delay, loss and CE by ACKs and rounds.
 * bbr.h has the state machine. State variables and functions have the names of draft-ietf-ccwg-bbr, or of Google's
 * BBRv2 source where the draft has none.
 *
 * Units: us, pkts; bandwidth in pkts per us, times 2^24; gains in 1/1000. Stamps are the low 32 bits of now_us: an
 * idle time of more than 71 minutes may delay a probe by one interval.
 */
#ifndef CC_BBR_MODEL_H
#define CC_BBR_MODEL_H

#include "cc.h"

#define CC_BBR_WANTS (CC_OWNS_CWND | CC_WANTS_PACING)
#define CC_BBR_BW 24			/* bits of a bandwidth's fraction */
#define CC_BBR_BW_MAX (1u << 28)	/* 16 pkts/us, 190 Gbit/s */
#define CC_BBR_INFINITY 0xffffffffu		/* no bound */
#define CC_BBR_MIN_CWND 4u

/*
 * X(name, unit, default, min, max, meaning); the arguments in capitals are the defaults that differ by version.
 */
#define CC_BBR_LIST(X, STARTUP_PACING, STARTUP_CWND, UP_CWND, DOWN, EVENTS)                        \
	X(startup_pacing_gain, "1/1000", STARTUP_PACING, 1000, 4000, "pacing gain in STARTUP")     \
	X(startup_cwnd_gain, "1/1000", STARTUP_CWND, 1000, 4000, "window gain in STARTUP and DRAIN") \
	X(drain_gain, "1/1000", 347, 100, 1000, "pacing gain in DRAIN")                            \
	X(cwnd_gain, "1/1000", 2000, 1000, 4000, "window gain otherwise")                          \
	X(up_cwnd_gain, "1/1000", UP_CWND, 1000, 4000, "window gain in UP")                        \
	X(down_gain, "1/1000", DOWN, 100, 1000, "pacing gain in DOWN")                             \
	X(up_gain, "1/1000", 1250, 1000, 2000, "pacing gain in UP")                                \
	X(full_growth_pct, "%", 25, 1, 100, "bandwidth growth that says the pipe is not full")     \
	X(full_rounds, "rounds", 3, 1, 20, "rounds without it that say it is")                     \
	X(startup_loss_events, "acks", EVENTS, 1, 100, "ACKs with loss in a round that end STARTUP") \
	X(loss_permille, "1/1000", 20, 1, 500, "share of loss in a round that is too high")        \
	X(cut_pct, "%", 30, 1, 90, "taken from bounds after loss")                                 \
	X(headroom_pct, "%", 15, 0, 50, "left free below inflight_hi in CRUISE")                   \
	X(wait_ms, "ms", 2000, 10, 60000, "least time between probes for bandwidth")               \
	X(wait_random_ms, "ms", 1000, 0, 60000, "random addition to it")                           \
	X(wait_rounds, "rounds", 63, 1, 1000, "most rounds between probes")                        \
	X(probe_rtt_interval_ms, "ms", 5000, 100, 60000, "time without a lower RTT before PROBE_RTT") \
	X(probe_rtt_ms, "ms", 200, 1, 5000, "length of PROBE_RTT")                                 \
	X(probe_rtt_cwnd_pct, "%", 50, 10, 100, "of the BDP in flight during PROBE_RTT")           \
	X(min_rtt_window_ms, "ms", 10000, 100, 60000, "age at which min RTT is replaced")          \
	X(margin_pct, "%", 1, 0, 20, "pacing below the bandwidth by this")                         \
	X(ecn_enable, "flag", 0, 0, 1, "react to CE (step marking with DCTCP-style echo)")         \
	X(ecn_max_rtt_us, "us", 5000, 0, 1000000, "only on paths with a min RTT up to this; 0: all") \
	X(ecn_alpha_shift, "shift", 4, 1, 8, "weight of a round in ecn_alpha is 1/2^shift")        \
	X(ecn_factor_permille, "1/1000", 333, 0, 1000, "cut of inflight_lo per round at ecn_alpha 1") \
	X(ecn_thresh_pct, "%", 50, 1, 100, "share of CE in a round that is too high")

#define CC_BBR_STATS(X)                                                                            \
	X(mode, "0 STARTUP 1 DRAIN 2 DOWN 3 CRUISE 4 REFILL 5 UP 6 PROBE_RTT")                     \
	X(bw_kbps, "kbit/s")                                                                       \
	X(max_bw_kbps, "kbit/s")                                                                   \
	X(min_rtt_us, "us")                                                                        \
	X(bdp_pkts, "pkts")                                                                        \
	X(inflight_hi_pkts, "pkts, 4294967295 none")                                               \
	X(inflight_lo_pkts, "pkts, 4294967295 none")                                               \
	X(ecn_alpha, "1/1024")                                                                     \
	X(full_pipe, "flag")

struct cc_bbr_params {
	CC_BBR_LIST(CC_PARAM_FIELD, 0, 0, 0, 0, 0)
};
struct cc_bbr_stats {
	CC_BBR_STATS(CC_STAT_FIELD)
};

enum cc_bbr_mode {
	CC_BBR_STARTUP,
	CC_BBR_DRAIN,
	CC_BBR_PROBE_BW_DOWN,
	CC_BBR_PROBE_BW_CRUISE,
	CC_BBR_PROBE_BW_REFILL,
	CC_BBR_PROBE_BW_UP,
	CC_BBR_PROBE_RTT
};

/* cc_bbr_state.flags */
#define CC_BBR_FULL_BW_REACHED 1u		/* the pipe is full (STARTUP) */
#define CC_BBR_FULL_BW_NOW 2u	/* bandwidth stopped growing (PROBE_BW_UP) */
#define CC_BBR_PROBE_SAMPLES 4u	/* ACKs are for packets sent by a probe */
#define CC_BBR_PREV_PROBE_TOO_HIGH 8u	/* the last probe ended by loss or CE */
#define CC_BBR_PROBE_STOPPING 16u	/* round after a probe; the max_bw filter advances at its end */
#define CC_BBR_PROBE_RTT_ROUND_DONE 32u	/* a round has passed in PROBE_RTT */
#define CC_BBR_IDLE_RESTART 64u		/* restarting from idle: do not enter PROBE_RTT */
#define CC_BBR_PRIOR_CWND_SAVED 128u	/* prior_cwnd is valid */

struct cc_bbr_state {
	u32 min_rtt_us, min_rtt_stamp_us;
	u32 probe_rtt_min_us, probe_rtt_min_stamp_us; /* minimum RTT since the last PROBE_RTT */
	u32 probe_rtt_done_stamp_us;	       /* 0: in flight is still too high */
	u32 next_round_delivered;	       /* delivered count that ends the round */
	u32 max_bw_prev_cycle, max_bw_this_cycle;	       /* the max_bw filter: two probe cycles */
	u32 bw_lo, bw_latest, full_bw;
	u32 inflight_hi, inflight_lo, inflight_latest;
	u32 prior_cwnd;
	u32 cycle_stamp_us, bw_probe_wait_us;
	u32 bw_probe_up_acks;
	u32 lost_in_round, max_inflight_in_round; /* packets lost and maximum in flight in this round */
	u32 round_start_delivered, round_start_delivered_ce;
	u16 ecn_alpha; /* 1/1024 */
	u16 rounds_since_bw_probe;
	u8 mode, full_bw_count, loss_events_in_round, startup_ecn_rounds, bw_probe_up_rounds;
	u8 flags;
};
CC_STATE_FITS(bbr);

CC_FN u32 cc_bbr_max_bw(const struct cc_bbr_state *st)
{
	return cc_max(st->max_bw_prev_cycle, st->max_bw_this_cycle);
}

CC_FN u32 cc_bbr_bw(const struct cc_bbr_state *st)
{
	return cc_min(cc_bbr_max_bw(st), st->bw_lo);
}

/* gain * bw * min_rtt, rounded up; the initial window while either is unknown */
CC_FN u32 cc_bbr_bdp(const struct cc_bbr_state *st, u32 bw, u32 gain)
{
	u64 product;

	if (!bw || bw == CC_BBR_INFINITY || st->min_rtt_us == CC_NO_RTT)
		return 10;
	product = (u64)bw * cc_min(st->min_rtt_us, 1u << 24);
	product = cc_div64((product >> 4) * cc_min(gain, 8192), 1000);
	return cc_u32((product + (1u << (CC_BBR_BW - 4)) - 1) >> (CC_BBR_BW - 4));
}

CC_FN u64 cc_bbr_bytes_per_sec(u32 bw, u32 mss_bytes, u32 gain)
{
	u64 product = (u64)cc_min(bw, CC_BBR_BW_MAX) * cc_min(mss_bytes, 0xffff);

	product = ((product >> 4) * 1000000) >> (CC_BBR_BW - 4);
	return cc_div64(product * cc_min(gain, 8192), 1000);
}

CC_FN void cc_bbr_reset_lower_bounds(struct cc_bbr_state *st)
{
	st->bw_lo = CC_BBR_INFINITY;
	st->inflight_lo = CC_BBR_INFINITY;
}

CC_FN void cc_bbr_init(struct cc_bbr_state *st, const struct cc_bbr_params *p,
		       const struct cc_ack *a, struct cc_out *out)
{
	u32 now_us = (u32)a->now_us, rtt_us = a->srtt_us ? a->srtt_us : 1000;
	u64 rate = cc_div64((u64)cc_min(a->cwnd_pkts, 1u << 20) * cc_min(a->mss_bytes, 0xffff) * 1000000, rtt_us);

	*st = (struct cc_bbr_state){
		.min_rtt_us = a->srtt_us ? a->srtt_us : CC_NO_RTT,
		.min_rtt_stamp_us = now_us,
		.probe_rtt_min_us = a->srtt_us ? a->srtt_us : CC_NO_RTT,
		.probe_rtt_min_stamp_us = now_us,
		.next_round_delivered = a->delivered_pkts,
		.inflight_hi = CC_BBR_INFINITY,
		.cycle_stamp_us = now_us,
		.round_start_delivered = a->delivered_pkts,
		.round_start_delivered_ce = a->delivered_ce_pkts,
		.ecn_alpha = 1024,
		.mode = CC_BBR_STARTUP,
	};
	cc_bbr_reset_lower_bounds(st);
	cc_keep(a, out);
	if (rate > (u64)1 << 48)
		rate = (u64)1 << 48;
	out->pacing_bytes_per_sec = cc_div64(rate * cc_min(p->startup_pacing_gain, 8192), 1000);
}

CC_FN int cc_bbr_ecn(const struct cc_bbr_state *st, const struct cc_bbr_params *p,
		     const struct cc_ack *a)
{
	return p->ecn_enable && (a->flags & CC_ECN) &&
	       (!p->ecn_max_rtt_us || st->min_rtt_us <= p->ecn_max_rtt_us);
}

/* Fraction of delivered packets with CE in this round, in 1/1024. */
CC_FN u32 cc_bbr_ce_ratio(const struct cc_bbr_state *st, const struct cc_ack *a)
{
	u32 delivered = a->delivered_pkts - st->round_start_delivered;
	u32 ce = a->delivered_ce_pkts - st->round_start_delivered_ce;

	return delivered ? cc_scale(1024, cc_min(ce, delivered), delivered) : 0;
}

/* Whether bandwidth has grown by less than full_growth_pct in each of the last full_rounds rounds. */
CC_FN int cc_bbr_check_full_bw(struct cc_bbr_state *st, const struct cc_bbr_params *p,
			   const struct cc_ack *a)
{
	u32 bw = cc_bbr_max_bw(st);

	if (a->flags & CC_APP_LIMITED)
		return 0;
	if ((u64)bw * 100 >= (u64)st->full_bw * (100 + cc_min(p->full_growth_pct, 100))) {
		st->full_bw = bw;
		st->full_bw_count = 0;
		return 0;
	}
	if (st->full_bw_count < 255)
		st->full_bw_count++;
	return st->full_bw_count >= p->full_rounds;
}

/* After loss or CE in the last round, outside probes: bounds bw and inflight by what was delivered. */
CC_FN void cc_bbr_adapt_lower_bounds(struct cc_bbr_state *st, const struct cc_bbr_params *p,
			       const struct cc_ack *a)
{
	u32 keep = cc_minus(100, p->cut_pct), cut;

	if (st->mode == CC_BBR_STARTUP || st->mode == CC_BBR_PROBE_BW_REFILL || st->mode == CC_BBR_PROBE_BW_UP)
		return;
	if (cc_bbr_ecn(st, p, a) && a->delivered_ce_pkts != st->round_start_delivered_ce) {
		if (st->inflight_lo == CC_BBR_INFINITY)
			st->inflight_lo = a->cwnd_pkts;
		cut = cc_scale(st->inflight_lo, st->ecn_alpha * cc_min(p->ecn_factor_permille, 1000),
			       1024000);
		st->inflight_lo = cc_minus(st->inflight_lo, cut);
	}
	if (!st->lost_in_round)
		return;
	if (st->bw_lo == CC_BBR_INFINITY)
		st->bw_lo = cc_bbr_max_bw(st);
	if (st->inflight_lo == CC_BBR_INFINITY)
		st->inflight_lo = a->cwnd_pkts;
	st->bw_lo = cc_max(st->bw_latest, cc_scale(st->bw_lo, keep, 100));
	st->inflight_lo = cc_max(st->inflight_latest, cc_scale(st->inflight_lo, keep, 100));
}

CC_FN void cc_bbr_check_startup_done(struct cc_bbr_state *st, const struct cc_bbr_params *p,
				const struct cc_ack *a)
{
	u32 delivered = a->delivered_pkts - st->round_start_delivered;
	int lossy = a->ca_state == CC_RECOVERY && st->loss_events_in_round >= p->startup_loss_events &&
		    (u64)st->lost_in_round * 1000 > (u64)p->loss_permille * ((u64)delivered + st->lost_in_round);
	int marked = cc_bbr_ecn(st, p, a) &&
		     (u64)cc_bbr_ce_ratio(st, a) * 100 > (u64)p->ecn_thresh_pct * 1024;

	if (st->flags & CC_BBR_FULL_BW_REACHED)
		return;
	st->startup_ecn_rounds = marked ? (u8)cc_min(st->startup_ecn_rounds + 1u, 255) : 0;
	if (lossy || st->startup_ecn_rounds >= 2) {
		st->flags |= CC_BBR_FULL_BW_REACHED;
		st->inflight_hi = cc_max(cc_bbr_bdp(st, cc_bbr_max_bw(st), 1000), st->inflight_latest);
	} else if (cc_bbr_check_full_bw(st, p, a)) {
		st->flags |= CC_BBR_FULL_BW_REACHED;
	}
}

CC_FN void cc_bbr_round_start(struct cc_bbr_state *st, const struct cc_bbr_params *p,
			      const struct cc_ack *a)
{
	u32 share = cc_bbr_ce_ratio(st, a), shift = p->ecn_alpha_shift & 15;

	st->next_round_delivered = a->delivered_pkts;
	if (st->rounds_since_bw_probe < 0xffff)
		st->rounds_since_bw_probe++;
	if (cc_bbr_ecn(st, p, a))
		st->ecn_alpha = (u16)(st->ecn_alpha - (st->ecn_alpha >> shift) + (share >> shift));
	cc_bbr_check_startup_done(st, p, a);
	cc_bbr_adapt_lower_bounds(st, p, a);
	if (st->mode == CC_BBR_PROBE_BW_UP && cc_bbr_check_full_bw(st, p, a))
		st->flags |= CC_BBR_FULL_BW_NOW;
	if (st->flags & CC_BBR_PROBE_STOPPING) {
		st->flags &= (u8)~(CC_BBR_PROBE_STOPPING | CC_BBR_PROBE_SAMPLES);
		if (st->max_bw_this_cycle && !(a->flags & CC_APP_LIMITED)) {
			st->max_bw_prev_cycle = st->max_bw_this_cycle;
			st->max_bw_this_cycle = 0;
		}
	}
	st->bw_latest = 0;
	st->inflight_latest = 0;
	st->lost_in_round = 0;
	st->loss_events_in_round = 0;
	st->max_inflight_in_round = 0;
	st->round_start_delivered = a->delivered_pkts;
	st->round_start_delivered_ce = a->delivered_ce_pkts;
}

/* Updates the model by the ACK's rate sample. Returns whether a new round starts. */
CC_STEP int cc_bbr_update_model(struct cc_bbr_state *st, const struct cc_bbr_params *p,
			const struct cc_ack *a)
{
	int valid = a->rate_delivered_pkts && a->rate_interval_us &&
		    (a->rtt_min_us == CC_NO_RTT || a->rate_interval_us >= a->rtt_min_us);
	u32 bw = valid ? cc_u32(cc_div64((u64)a->rate_delivered_pkts << CC_BBR_BW, a->rate_interval_us)) : 0;
	int start = a->rate_delivered_pkts &&
		    !cc_after(st->next_round_delivered, a->rate_prior_delivered_pkts);

	bw = cc_min(bw, CC_BBR_BW_MAX);
	if (bw && (!(a->flags & CC_APP_LIMITED) || bw >= cc_bbr_max_bw(st)))
		st->max_bw_this_cycle = cc_max(st->max_bw_this_cycle, bw);
	st->lost_in_round = cc_u32((u64)st->lost_in_round + a->lost_pkts);
	if (a->lost_pkts && st->loss_events_in_round < 255)
		st->loss_events_in_round++;
	st->max_inflight_in_round = cc_max(st->max_inflight_in_round, a->prior_inflight_pkts);
	st->bw_latest = cc_max(st->bw_latest, bw);
	st->inflight_latest = cc_max(st->inflight_latest, valid ? a->rate_delivered_pkts : 0);
	if (start)
		cc_bbr_round_start(st, p, a);
	return start;
}

CC_FN u32 cc_bbr_kbps(u32 bw, u32 mss_bytes)
{
	return cc_u32(cc_div64(cc_bbr_bytes_per_sec(bw, mss_bytes, 1000), 125));
}

#endif
