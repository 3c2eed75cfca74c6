/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * BBR's model of the path: parameters, state, and how ACKs and rounds update bandwidth, delay, loss, CE and ACK aggregation. bbr_common.h
 * has the state machine and names the sources. State variables and functions have the names of draft-ietf-ccwg-bbr, or of Google's source
 * where the draft has none.
 *
 * Units: us; pkts; bandwidth in pkts per us, times 2^24, at most CC_BBR_BW_MAX; gains (at most 4) and shares in 1/256, as in the source,
 * because its rounding matters at windows of tens of packets. Stamps are the low 32 bits of now_us: an idle time of more than 71 minutes
 * may delay a probe by one interval.
 */
#ifndef CC_BBR_MODEL_H
#define CC_BBR_MODEL_H

#include "cc.h"

#define CC_BBR_WANTS (CC_OWNS_CWND | CC_WANTS_PACING | CC_WANTS_STORAGE | CC_MAY_WANT_ECN | CC_SKIPS_EVENTS | CC_SKIPS_FIELDS | \
		      CC_WANTS_RANDOM | CC_SKIPS_PROBE | CC_FAST_PATH)
#define CC_BBR_UNIT 256u
#define CC_BBR_BW 24			/* bits of a bandwidth's fraction */
#define CC_BBR_BW_MAX (1u << 28)	/* 16 pkts/us, 190 Gbit/s */
#define CC_BBR_INFINITY 0xffffffffu	/* no bound */
#define CC_BBR_MIN_CWND 4u
#define CC_BBR_EXTRA_ACKED_ROUNDS 5u	/* rounds per half of the extra_acked filter */
#define CC_BBR_EXTRA_ACKED_MAX_US 100000u
#define CC_BBR_EPOCH_MAX_PKTS 0xfffffu	/* maximum packets acknowledged in an ACK epoch */
#define CC_BBR_FULL_ECN_ROUNDS 2u	/* rounds with CE above ecn_thresh that end STARTUP */
#define CC_BBR_LOSS_MARKS 16

/* X(name, unit, default, min, max, meaning). Arguments in capitals are the defaults that differ between versions. */
#define CC_BBR_LIST(X, STARTUP_PACING, STARTUP_CWND, UP_CWND, DOWN, EVENTS, REPROBE)               \
	X(startup_pacing_gain, "1/1000", STARTUP_PACING, 1000, 4000, "pacing gain in STARTUP")     \
	X(startup_cwnd_gain, "1/1000", STARTUP_CWND, 1000, 4000, "window gain in STARTUP and DRAIN") \
	X(drain_gain, "1/1000", 347, 100, 1000, "pacing gain in DRAIN")                            \
	X(cwnd_gain, "1/1000", 2000, 1000, 4000, "window gain otherwise")                          \
	X(up_cwnd_gain, "1/1000", UP_CWND, 1000, 4000, "window gain in UP")                        \
	X(down_gain, "1/1000", DOWN, 100, 1000, "pacing gain in DOWN")                             \
	X(up_gain, "1/1000", 1250, 1000, 2000, "pacing gain in UP")                                \
	X(extra_acked_gain, "1/1000", 1000, 0, 4000, "share of the measured ACK aggregation that is added to the window") \
	X(full_growth_pct, "%", 25, 1, 100, "bandwidth growth that says the pipe is not full")     \
	X(full_rounds, "rounds", 3, 1, 20, "rounds without it that say it is")                     \
	X(startup_loss_events, "acks", EVENTS, 1, 100, "ACKs with loss in a round that end STARTUP") \
	X(loss_permille, "1/1000", 20, 1, 500, "share of loss in a flight that is too high")       \
	X(cut_pct, "%", 30, 1, 90, "taken from bounds after loss")                                 \
	X(headroom_pct, "%", 15, 0, 50, "left free below inflight_hi in CRUISE")                   \
	X(wait_ms, "ms", 2000, 10, 60000, "minimum time between probes for bandwidth")             \
	X(wait_random_ms, "ms", 1000, 0, 60000, "random addition to it")                           \
	X(wait_rounds, "rounds", 63, 1, 1000, "maximum rounds between probes")                     \
	X(probe_rtt_interval_ms, "ms", 5000, 100, 60000, "time without a lower RTT before PROBE_RTT") \
	X(probe_rtt_ms, "ms", 200, 1, 5000, "length of PROBE_RTT")                                 \
	X(probe_rtt_cwnd_pct, "%", 50, 10, 100, "of the BDP in flight during PROBE_RTT")           \
	X(min_rtt_window_ms, "ms", 10000, 100, 60000, "age at which min RTT is replaced")          \
	X(margin_pct, "%", 1, 0, 20, "pacing below the bandwidth by this")                         \
	X(ecn_enable, "flag", 0, 0, 1, "negotiate ECN and react to CE: only where marks mean a shallow queue (L4S, step)") \
	X(ecn_max_rtt_us, "us", 5000, 0, 1000000, "only once min RTT was at most this; 0: always") \
	X(ecn_alpha_shift, "shift", 4, 1, 8, "weight of a round in ecn_alpha is 1/2^shift")        \
	X(ecn_factor_permille, "1/1000", 333, 0, 1000, "cut of inflight_lo per round at ecn_alpha 1") \
	X(ecn_thresh_pct, "%", 50, 1, 100, "share of CE in a flight that is too high")             \
	X(ecn_reprobe_pct, "%", REPROBE, 0, 100, "of inflight_hi that the first round of a probe adds once CE ceased; 0: none")

#define CC_BBR_STATS(X)                                                                            \
	X(mode, "0 STARTUP 1 DRAIN 2 DOWN 3 CRUISE 4 REFILL 5 UP 6 PROBE_RTT")                     \
	X(bw_kbps, "kbit/s")                                                                       \
	X(max_bw_kbps, "kbit/s")                                                                   \
	X(min_rtt_us, "us")                                                                        \
	X(bdp_pkts, "pkts")                                                                        \
	X(inflight_hi_pkts, "pkts, 4294967295 none")                                               \
	X(inflight_lo_pkts, "pkts, 4294967295 none")                                               \
	X(extra_acked_pkts, "pkts")                                                                \
	X(ecn_alpha, "1/256")                                                                      \
	X(full_pipe, "flag")                                                                       \
	X(pacing_gain, "1/256")                                                                    \
	X(cwnd_gain, "1/256")                                                                      \
	X(bw_lo_kbps, "kbit/s, 4294967295 none")                                                   \
	X(cwnd_pkts, "pkts")                                                                       \
	X(inflight_pkts, "pkts")

struct cc_bbr_params {
	CC_BBR_LIST(CC_PARAM_FIELD, 0, 0, 0, 0, 0, 0)
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

/* What the ACKs of this round show of the last probe. */
enum cc_bbr_ack_phase {
	CC_BBR_ACKS_INIT,
	CC_BBR_ACKS_REFILLING,
	CC_BBR_ACKS_PROBE_STARTING,
	CC_BBR_ACKS_PROBE_FEEDBACK,
	CC_BBR_ACKS_PROBE_STOPPING
};

/* cc_bbr_state.flags */
#define CC_BBR_FULL_BW_REACHED (1u << 0)     /* the pipe was full once (STARTUP) */
#define CC_BBR_FULL_BW_NOW (1u << 1)	     /* bandwidth stopped growing; v3 */
#define CC_BBR_PROBE_SAMPLES (1u << 2)	     /* ACKs are for packets sent by a probe */
#define CC_BBR_PREV_PROBE_TOO_HIGH (1u << 3) /* the last probe ended by loss or CE */
#define CC_BBR_STOPPED_RISKY_PROBE (1u << 4) /* the last probe ended at the inflight_hi of a probe that was too high */
#define CC_BBR_PROBE_RTT_ROUND_DONE (1u << 5)
#define CC_BBR_IDLE_RESTART (1u << 6)	     /* restarting from idle: do not enter PROBE_RTT */
#define CC_BBR_HAS_SEEN_RTT (1u << 7)	     /* the initial pacing rate is from an RTT */
#define CC_BBR_LOSS_IN_ROUND (1u << 8)
#define CC_BBR_ECN_IN_ROUND (1u << 9)
#define CC_BBR_LOSS_IN_CYCLE (1u << 10)
#define CC_BBR_ECN_IN_CYCLE (1u << 11)
#define CC_BBR_ECN_ELIGIBLE (1u << 12)
#define CC_BBR_EXTRA_ACKED_SECOND (1u << 13) /* extra_acked_b is the current half of the filter */
#define CC_BBR_OK_PROBE_SAMPLE (1u << 14)    /* v2: a sample of this probe was not too high */
#define CC_BBR_LOW_RATE (1u << 15)	     /* packets of PROBE_RTT are in flight: their samples are application-limited */
#define CC_BBR_CA_STATE_CHANGED (1u << 16)   /* since the last ACK */

/* Losses noticed while `first` to `last` packets had been delivered, and how many packets had been marked lost before. */
struct cc_bbr_loss_mark {
	u32 first, last, lost;
};

/*
 * The rate sample of this ACK, and what changes while the ACK is processed. It is in the state, not on the stack, because the BPF verifier
 * follows every combination of values that it knows on the stack. Nothing reads it after the call.
 */
struct cc_bbr_rs {
	u32 version; /* 2 or 3 */
	u32 cwnd;
	u32 bw;
	u32 delivered, delivered_ce;
	u32 lost, tx_in_flight; /* since the acknowledged packet was sent, and when it was sent */
	u8 valid, app_limited, round_start, loss_round_start;
};

/*
 * What pacing rate and window depend on, except for the bursts and the ACK. The last three are parameters. An MSS of infinity: not known.
 */
struct cc_bbr_inputs {
	u32 bw, min_rtt_us, mss_bytes, extra_acked;
	u32 pacing_gain, cwnd_gain; /* 1/256, 1/1000 */
	u32 extra_acked_gain, margin_pct;
};

/* The fields that the fast path needs come first, for few cache lines and short offsets. */
struct cc_bbr_state {
	u64 goal_pacing; /* with MSS and min_rtt_us, the input of tso_segs_goal; after an ACK, the pacing rate */
	u32 goal_mss_bytes, tso_segs_goal;
	u32 flags;
	union {
		struct {
			u8 mode;
			u8 last_mode; /* mode in the last row: another row is due when the mode differs */
			u8 ack_phase, loss_marks_used;
		};
		u32 phase; /* all four, for one comparison */
	};
	u8 prev_ca_state, full_bw_count, extra_acked_rounds, init_cwnd;
	u16 rounds_since_bw_probe;
	u16 ecn_alpha; /* 1/256 */
	u32 min_rtt_us, min_rtt_stamp_us;
	u32 probe_rtt_min_us, probe_rtt_min_stamp_us; /* minimum RTT since the last PROBE_RTT */
	u32 next_round_delivered, loss_round_delivered; /* delivered counts that end the rounds */
	u32 max_bw_prev_cycle, max_bw_this_cycle;     /* the max_bw filter: two probe cycles */
	u32 bw_latest, bw_lo, bw_hi;		      /* bw_hi: v2 */
	u32 inflight_latest, inflight_lo, inflight_hi;
	u32 last_total_lost, last_delivered_ce, last_prior_delivered; /* as of the previous ACK */
	u32 ack_epoch_stamp_us, ack_epoch_acked;
	u32 extra_acked_a, extra_acked_b; /* the extra_acked filter: twice five rounds */
	struct cc_bbr_inputs inputs; /* of the last call; their results: */
	u64 rate;		     /* bytes per second */
	u32 inflight_cap;	     /* cwnd_gain * BDP + extra_acked */
	struct cc_bbr_loss_mark expired_loss_mark; /* stands for the unused marks: counts no loss */
	u32 cycle_stamp_us, bw_probe_wait_us;
	struct cc_bbr_rs rs;
	u32 full_bw;
	u32 bw_probe_up_cnt, bw_probe_up_acks;
	u32 probe_rtt_done_stamp_us;		      /* 0: still too much in flight */
	u32 low_rate_from, low_rate_to;		      /* delivered counts of packets sent in PROBE_RTT */
	u32 undo_bw_lo, undo_inflight_lo, undo_inflight_hi;
	u32 prior_cwnd;
	u32 alpha_last_delivered, alpha_last_delivered_ce;
	u8 loss_events_in_round, startup_ecn_rounds, bw_probe_up_rounds;
	struct cc_bbr_loss_mark loss_marks[CC_BBR_LOSS_MARKS]; /* newest first; loss_marks_used of them are valid */
};
CC_STORAGE_FITS(bbr);

/* 1/1000 converted to 1/256, rounded down like the source's constants; 274877907 is 2^30 * 256 / 1000 */
CC_FN u32 cc_bbr_permille(u32 permille)
{
	return (u32)(((u64)permille * 274877907) >> 30);
}

CC_FN u32 cc_bbr_pct(u32 pct)
{
	return cc_bbr_permille(cc_min(pct, 1000) * 10);
}

/* value * share / 256 */
CC_FN u32 cc_bbr_of(u32 value, u32 share)
{
	return cc_u32(((u64)value * share) >> 8);
}

CC_FN int cc_bbr_before(u32 a, u32 b)
{
	return (a - b) >> 31;
}

CC_FN u32 cc_bbr_max_bw(const struct cc_bbr_state *st)
{
	return cc_max(st->max_bw_prev_cycle, st->max_bw_this_cycle);
}

/* Only v2 has bw_hi. */
CC_FN u32 cc_bbr_bw_of(const struct cc_bbr_state *st, u32 version)
{
	u32 bw = cc_min(cc_bbr_max_bw(st), st->bw_lo);

	return version == 2 ? cc_min(bw, st->bw_hi) : bw;
}

CC_FN u32 cc_bbr_bw(const struct cc_bbr_state *st)
{
	return cc_bbr_bw_of(st, 2); /* in v3, bw_hi is infinite */
}

/* gain * bw * min_rtt, rounded up, below 2^31; the initial window while there is no RTT */
CC_FN u32 cc_bbr_bdp(const struct cc_bbr_state *st, u32 bw, u32 gain)
{
	u64 product = (u64)bw * cc_min(st->min_rtt_us, 1u << 24);

	if (st->min_rtt_us == CC_NO_RTT)
		return st->init_cwnd;
	product = (product * gain) >> 8;
	return (u32)((product + (1u << CC_BBR_BW) - 1) >> CC_BBR_BW);
}

/* gain * bw in bytes per us, times 2^24; at most 2^43 */
CC_FN u64 cc_bbr_bytes_per_us(u32 bw, u32 mss_bytes, u32 gain)
{
	u64 product = (u64)cc_min(bw, CC_BBR_BW_MAX) * cc_min(mss_bytes, 0xffff);

	product = (product * cc_min(gain, 1024)) >> 8;
	return product > (u64)1 << 43 ? (u64)1 << 43 : product;
}

/* Bytes per second, margin percent below the rate. */
CC_FN u64 cc_bbr_rate(u32 bw, u32 mss_bytes, u32 gain, u32 margin_pct)
{
	u64 rate = (cc_bbr_bytes_per_us(bw, mss_bytes, gain) * 10000 * cc_saturating_sub(100, margin_pct)) >> CC_BBR_BW;

	return rate ? rate : 1;
}

CC_FN u32 cc_bbr_extra_acked(const struct cc_bbr_state *st)
{
	return cc_max(st->extra_acked_a, st->extra_acked_b);
}

CC_FN int cc_bbr_is_probing_bw(const struct cc_bbr_state *st)
{
	return st->mode == CC_BBR_STARTUP || st->mode == CC_BBR_PROBE_BW_REFILL || st->mode == CC_BBR_PROBE_BW_UP;
}

CC_FN void cc_bbr_reset_lower_bounds(struct cc_bbr_state *st)
{
	st->bw_lo = CC_BBR_INFINITY;
	st->inflight_lo = CC_BBR_INFINITY;
}

CC_FN void cc_bbr_reset_full_bw(struct cc_bbr_state *st)
{
	st->full_bw = 0;
	st->full_bw_count = 0;
	st->flags &= ~CC_BBR_FULL_BW_NOW;
}

CC_FN void cc_bbr_reset_congestion_signals(struct cc_bbr_state *st)
{
	st->flags &= ~(CC_BBR_LOSS_IN_ROUND | CC_BBR_ECN_IN_ROUND | CC_BBR_LOSS_IN_CYCLE | CC_BBR_ECN_IN_CYCLE);
	st->bw_latest = 0;
	st->inflight_latest = 0;
}

/* startup_pacing_gain * cwnd / RTT; 1 ms while there is no RTT */
CC_FN u64 cc_bbr_initial_rate(struct cc_bbr_state *st, const struct cc_bbr_params *p, const struct cc_ack *a)
{
	u64 bw = cc_div64((u64)a->cwnd_pkts << CC_BBR_BW, a->srtt_us ? a->srtt_us : 1000);

	if (a->srtt_us)
		st->flags |= CC_BBR_HAS_SEEN_RTT;
	return cc_bbr_rate(cc_u32(bw), a->mss_bytes, cc_bbr_permille(p->startup_pacing_gain), p->margin_pct);
}

/* Marks older than what is in flight count no loss, because their counters must not wrap. Each mark is older than the one before it. */
CC_FN void cc_bbr_expire_loss_marks(struct cc_bbr_state *st, u32 prior_delivered)
{
	u32 i;

	if (cc_after(st->expired_loss_mark.last, prior_delivered))
		return;
	if (st->loss_marks_used) {
		for (i = 0; i < CC_BBR_LOSS_MARKS; i++)
			if (i == st->loss_marks_used || !cc_after(st->loss_marks[i].last, prior_delivered))
				break;
		st->loss_marks_used = (u8)i;
	}
	st->expired_loss_mark = (struct cc_bbr_loss_mark){prior_delivered, prior_delivered, st->last_total_lost};
}

CC_FN void cc_bbr_init(struct cc_bbr_state *st, const struct cc_bbr_params *p, u32 version,
		       const struct cc_ack *a, struct cc_out *out)
{
	u32 now_us = (u32)a->now_us, rtt_us = a->rtt_min_us ? a->rtt_min_us : CC_NO_RTT;

	*st = (struct cc_bbr_state){
		.rs.version = version,
		.goal_mss_bytes = CC_BBR_INFINITY,
		.inputs = {.mss_bytes = CC_BBR_INFINITY, .pacing_gain = cc_bbr_permille(p->startup_pacing_gain)},
		.min_rtt_us = rtt_us,
		.min_rtt_stamp_us = now_us,
		.probe_rtt_min_us = rtt_us,
		.probe_rtt_min_stamp_us = now_us,
		.next_round_delivered = version == 2 ? 0 : a->delivered_pkts,
		.loss_round_delivered = a->delivered_pkts + 1,
		.bw_hi = CC_BBR_INFINITY,
		.inflight_hi = CC_BBR_INFINITY,
		.prior_cwnd = a->prior_cwnd_pkts,
		.cycle_stamp_us = now_us,
		.bw_probe_up_cnt = CC_BBR_INFINITY,
		.ack_epoch_stamp_us = now_us,
		.last_total_lost = a->total_lost_pkts,
		.last_delivered_ce = a->delivered_ce_pkts,
		.last_prior_delivered = a->delivered_pkts,
		.alpha_last_delivered = a->delivered_pkts,
		.alpha_last_delivered_ce = a->delivered_ce_pkts,
		.ecn_alpha = CC_BBR_UNIT,
		.mode = CC_BBR_STARTUP,
		.init_cwnd = (u8)cc_min(a->cwnd_pkts, 127),
	};
	cc_bbr_reset_lower_bounds(st);
	cc_bbr_expire_loss_marks(st, a->delivered_pkts);
	cc_keep(a, out);
	out->ssthresh_pkts = CC_INFINITE;
	out->pacing_bytes_per_sec = cc_bbr_initial_rate(st, p, a);
}

/*
 * Packets marked lost since a packet was sent, at which time prior_delivered packets had been delivered. If a mark's losses began before
 * that, a proportional part of them counts.
 */
CC_FN u32 cc_bbr_lost_since(const struct cc_bbr_state *st, u32 prior_delivered, u32 total_lost)
{
	u32 lost = total_lost, i;

	for (i = 0; i < CC_BBR_LOSS_MARKS; i++) {
		const struct cc_bbr_loss_mark *mark = i < st->loss_marks_used ? &st->loss_marks[i] : &st->expired_loss_mark;

		if (!cc_after(mark->last, prior_delivered))
			break;
		if (!cc_after(mark->first, prior_delivered)) {
			lost -= cc_scale(lost - mark->lost, mark->last - prior_delivered, mark->last - mark->first + 1);
			break;
		}
		lost = mark->lost;
	}
	return total_lost - lost;
}

/* Losses noticed less than min_gap after those of the newest mark get no mark of their own. */
CC_FN void cc_bbr_add_loss_mark(struct cc_bbr_state *st, u32 delivered, u32 lost, u32 min_gap)
{
	struct cc_bbr_loss_mark *newest = &st->loss_marks[0];
	struct cc_bbr_loss_mark mark = {delivered, delivered, lost}, older;
	u32 i;

	if (st->loss_marks_used && newest->lost != lost && delivered - newest->first < min_gap) {
		newest->last = delivered;
		return;
	}
	/* From the newest on: with a falling index, Linux 7.3's verifier cannot bound the offset in a global. */
	for (i = 0; i < CC_BBR_LOSS_MARKS; i++) {
		older = st->loss_marks[i];
		st->loss_marks[i] = mark;
		mark = older;
		CC_IN_ORDER();
	}
	st->loss_marks_used = (u8)cc_min(st->loss_marks_used + 1u, CC_BBR_LOSS_MARKS);
}

/* v3: above ecn_thresh; v2: at or above it. */
CC_FN int cc_bbr_is_inflight_too_high(const struct cc_bbr_state *st, const struct cc_bbr_params *p,
				      const struct cc_bbr_rs *rs)
{
	u32 limit;

	if (rs->lost && rs->tx_in_flight && rs->lost > cc_bbr_of(rs->tx_in_flight, cc_bbr_permille(p->loss_permille)))
		return 1;
	if (!rs->delivered_ce || !rs->delivered || !(st->flags & CC_BBR_ECN_ELIGIBLE))
		return 0;
	limit = cc_bbr_of(rs->delivered, cc_bbr_pct(p->ecn_thresh_pct));
	return rs->delivered_ce > limit || (rs->version == 2 && rs->delivered_ce == limit);
}

CC_FN u32 cc_bbr_ecn_cut(const struct cc_bbr_state *st, const struct cc_bbr_params *p)
{
	return cc_saturating_sub(CC_BBR_UNIT, cc_bbr_of(st->ecn_alpha, cc_bbr_permille(p->ecn_factor_permille)));
}

/* After loss or CE in the last round, outside of probes: bounds bw and inflight by what was delivered. */
CC_FN void cc_bbr_adapt_lower_bounds(struct cc_bbr_state *st, const struct cc_bbr_params *p,
				     const struct cc_bbr_rs *rs)
{
	u32 ecn_inflight_lo = CC_BBR_INFINITY, ecn_bw_lo = CC_BBR_INFINITY, keep, cut;

	if (cc_bbr_is_probing_bw(st))
		return;
	if ((st->flags & CC_BBR_ECN_IN_ROUND) && (st->flags & CC_BBR_ECN_ELIGIBLE) && p->ecn_factor_permille) {
		cut = cc_bbr_ecn_cut(st, p);
		if (st->inflight_lo == CC_BBR_INFINITY)
			st->inflight_lo = rs->cwnd;
		ecn_inflight_lo = cc_bbr_of(st->inflight_lo, cut);
		if (rs->version == 2) {
			if (st->bw_lo == CC_BBR_INFINITY)
				st->bw_lo = cc_bbr_max_bw(st);
			ecn_bw_lo = cc_bbr_of(st->bw_lo, cut);
		}
	}
	if (st->flags & CC_BBR_LOSS_IN_ROUND) {
		keep = cc_saturating_sub(CC_BBR_UNIT, cc_bbr_pct(p->cut_pct));
		if (st->bw_lo == CC_BBR_INFINITY)
			st->bw_lo = cc_bbr_max_bw(st);
		if (st->inflight_lo == CC_BBR_INFINITY)
			st->inflight_lo = rs->cwnd;
		st->bw_lo = cc_max(st->bw_latest, cc_bbr_of(st->bw_lo, keep));
		st->inflight_lo = cc_max(st->inflight_latest, cc_bbr_of(st->inflight_lo, keep));
	}
	st->inflight_lo = cc_min(st->inflight_lo, ecn_inflight_lo);
	st->bw_lo = cc_max(cc_min(st->bw_lo, ecn_bw_lo), 1);
}

/* The maximum rate and volume delivered in this round, and the end of the round. Like the next steps, only for an ACK with a sample. */
CC_FN void cc_bbr_update_latest_delivery_signals(struct cc_bbr_state *st, const struct cc_ack *a,
						 struct cc_bbr_rs *rs)
{
	if (rs->bw > st->bw_latest)
		st->bw_latest = rs->bw;
	if (rs->delivered > st->inflight_latest)
		st->inflight_latest = rs->delivered;
	if (cc_bbr_before(a->rate_prior_delivered_pkts, st->loss_round_delivered))
		return;
	st->loss_round_delivered = a->delivered_pkts;
	rs->loss_round_start = 1;
}

CC_FN void cc_bbr_advance_latest_delivery_signals(struct cc_bbr_state *st, const struct cc_bbr_rs *rs)
{
	st->bw_latest = rs->bw;
	st->inflight_latest = rs->delivered;
}

CC_FN void cc_bbr_update_max_bw(struct cc_bbr_state *st, const struct cc_bbr_rs *rs)
{
	if (rs->bw > st->max_bw_this_cycle && (!rs->app_limited || rs->bw >= cc_bbr_max_bw(st)))
		st->max_bw_this_cycle = rs->bw;
}

CC_FN void cc_bbr_update_congestion_signals(struct cc_bbr_state *st, const struct cc_bbr_params *p, u32 version,
					    const struct cc_ack *a, const struct cc_bbr_rs *rs)
{
	if (a->lost_pkts)
		st->flags |= CC_BBR_LOSS_IN_ROUND;
	if (!rs->loss_round_start)
		return;
	if (st->flags & (CC_BBR_LOSS_IN_ROUND | CC_BBR_ECN_IN_ROUND)) {
		cc_bbr_adapt_lower_bounds(st, p, rs);
		st->flags &= ~(CC_BBR_LOSS_IN_ROUND | CC_BBR_ECN_IN_ROUND);
	}
	if (version == 2)
		cc_bbr_advance_latest_delivery_signals(st, rs);
}

/* A round starts: the extra_acked filter forgets what is older than five to ten rounds. `full` if the pipe was full once. */
CC_FN void cc_bbr_advance_extra_acked(struct cc_bbr_state *st, u32 full)
{
	st->extra_acked_rounds = (u8)cc_min(st->extra_acked_rounds + 1u, 31);
	if (st->extra_acked_rounds < (full ? CC_BBR_EXTRA_ACKED_ROUNDS : 1))
		return;
	st->extra_acked_rounds = 0;
	st->flags ^= CC_BBR_EXTRA_ACKED_SECOND;
	if (st->flags & CC_BBR_EXTRA_ACKED_SECOND)
		st->extra_acked_b = 0;
	else
		st->extra_acked_a = 0;
}

/* The filter of how many more packets were acknowledged than the bandwidth explains. */
CC_FN void cc_bbr_update_ack_aggregation(struct cc_bbr_state *st, u32 bw, const struct cc_ack *a)
{
	u64 expected, acked;
	u32 extra;

	expected = ((u64)bw * ((u32)a->now_us - st->ack_epoch_stamp_us)) >> CC_BBR_BW;
	acked = (u64)st->ack_epoch_acked + a->acked_pkts;
	if (st->ack_epoch_acked <= expected || acked > CC_BBR_EPOCH_MAX_PKTS) {
		st->ack_epoch_stamp_us = (u32)a->now_us;
		expected = 0;
		acked = cc_min(a->acked_pkts, CC_BBR_EPOCH_MAX_PKTS);
	}
	st->ack_epoch_acked = (u32)acked;
	extra = cc_min((u32)(acked - expected), a->cwnd_pkts);
	if (st->flags & CC_BBR_EXTRA_ACKED_SECOND) {
		if (extra > st->extra_acked_b)
			st->extra_acked_b = extra;
	} else if (extra > st->extra_acked_a) {
		st->extra_acked_a = extra;
	}
}

/* Detects a full pipe: v3 in every state and from the samples, v2 in STARTUP and from max_bw. */
CC_FN void cc_bbr_check_full_bw_reached(struct cc_bbr_state *st, const struct cc_bbr_params *p,
					const struct cc_bbr_rs *rs)
{
	u32 bw = rs->version == 2 ? cc_bbr_max_bw(st) : rs->bw;
	u32 thresh = CC_BBR_UNIT + cc_bbr_pct(p->full_growth_pct);

	if (rs->app_limited || (st->flags & CC_BBR_FULL_BW_NOW))
		return;
	if (rs->version == 2 && ((st->flags & CC_BBR_FULL_BW_REACHED) || !rs->round_start))
		return;
	if (bw >= cc_bbr_of(st->full_bw, thresh)) {
		st->full_bw = bw;
		st->full_bw_count = 0;
		return;
	}
	if (!rs->round_start)
		return;
	if (st->full_bw_count < 255)
		st->full_bw_count++;
	if (st->full_bw_count >= p->full_rounds)
		st->flags |= CC_BBR_FULL_BW_REACHED | (rs->version == 2 ? 0 : CC_BBR_FULL_BW_NOW);
}

/* kbit/s: 8000 times bytes per us */
CC_FN u32 cc_bbr_kbps(u32 bw, u32 mss_bytes)
{
	return (u32)((cc_bbr_bytes_per_us(bw, mss_bytes, CC_BBR_UNIT) * 8000) >> CC_BBR_BW);
}

#endif
