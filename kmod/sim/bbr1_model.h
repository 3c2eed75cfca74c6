/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The model of the path and the window of BBR version 1. Its hooks and the differences from the kernel are in bbr.h. */
#ifndef CC_BBR1_MODEL_H
#define CC_BBR1_MODEL_H

#include "stack.h"

#define CC_BBR1_BW 24
#define CC_BBR1_BW_UNIT ((u64)1 << CC_BBR1_BW)
#define CC_BBR1_GAIN 8
#define CC_BBR1_UNIT 256u
#define CC_BBR1_HIGH_GAIN 739u /* 2885/1000, rounded down, plus 1: 2 / ln 2 */
#define CC_BBR1_DRAIN_GAIN 88u /* 1000/2885 */
#define CC_BBR1_CWND_GAIN 512u
#define CC_BBR1_CYCLE 8u	/* phases of PROBE_BW: 5/4, 3/4, then 1 */
#define CC_BBR1_CYCLE_RANDOM 7u /* it begins with any phase but 3/4 */
#define CC_BBR1_BW_ROUNDS 10u
#define CC_BBR1_MIN_RTT_JIFFIES 10000u
#define CC_BBR1_PROBE_RTT_JIFFIES 200u
#define CC_BBR1_MIN_CWND 4u
#define CC_BBR1_MARGIN_RATE 990000u /* us per s, minus the pacing margin of 1 % */
#define CC_BBR1_MIN_TSO_RATE 150000u /* bytes/s: 1.2 Mbit/s */
#define CC_BBR1_TSO_SEGS_MAX 127u
#define CC_BBR1_FULL_BW_GROWTH 320u /* 5/4 */
#define CC_BBR1_FULL_BW_ROUNDS 3u
#define CC_BBR1_LT_MIN_ROUNDS 4u
#define CC_BBR1_LT_LOSS 50u	/* lost / delivered, 1/256 */
#define CC_BBR1_LT_BW_RATIO 32u /* 1/8 */
#define CC_BBR1_LT_BW_DIFF 500u /* bytes/s */
#define CC_BBR1_LT_BW_ROUNDS 48u
#define CC_BBR1_EXTRA_ACKED_ROUNDS 5u
#define CC_BBR1_EXTRA_ACKED_MAX_US 100000u
#define CC_BBR1_EPOCH_ACKED_RESET ((u32)1 << 20)

enum cc_bbr1_mode { CC_BBR1_STARTUP, CC_BBR1_DRAIN, CC_BBR1_PROBE_BW, CC_BBR1_PROBE_RTT };

#define CC_BBR1_PARAMS(X) X(unused, "-", 0, 0, 0, "BBR has no parameter")
#define CC_BBR1_STATS(X)                                                                           \
	X(mode, "state")                                                                           \
	X(bw_kbps, "kbit/s")                                                                       \
	X(min_rtt_us, "us")                                                                        \
	X(pacing_gain, "1/256")                                                                    \
	X(cwnd_gain, "1/256")                                                                      \
	X(bdp_pkts, "pkts")                                                                        \
	X(extra_acked_pkts, "pkts")                                                                \
	X(full_pipe, "flag")                                                                       \
	X(policed, "flag")
CC_SHAPE(bbr1, CC_BBR1_PARAMS, CC_BBR1_STATS);

struct cc_bbr1_sample {
	u32 round, bw;
};

struct cc_bbr1_state {
	u64 cycle_mstamp, ack_epoch_mstamp, delivered_mstamp; /* us */
	struct cc_bbr1_sample bw[3]; /* the maximum in the window, and the maximum after each of them */
	u32 min_rtt_us, min_rtt_stamp, probe_rtt_done_stamp;
	u32 rtt_cnt, next_rtt_delivered;
	u32 lt_bw, lt_last_delivered, lt_last_stamp_ms, lt_last_lost, lt_rtt_cnt;
	u32 pacing_gain, cwnd_gain, prior_cwnd;
	u32 full_bw, full_bw_cnt, cycle_idx;
	u32 ack_epoch_acked, extra_acked_win_rtts, extra_acked_win_idx;
	u32 low_rate_from, low_rate_to; /* delivered_pkts between which PROBE_RTT was the limit */
	u16 extra_acked[2];
	u8 mode, prev_ca_state, packet_conservation, round_start, idle_restart, probe_rtt_round_done;
	u8 lt_is_sampling, lt_use_bw, full_bw_reached, has_seen_rtt, low_rate;
};
CC_STORAGE_FITS(bbr1);

/* State of one call that the kernel would have in its socket. */
struct cc_bbr1_run {
	const struct cc_ack *a;
	u64 pacing;
	u32 cwnd, ssthresh;
	u32 losses;
	u8 valid, app_limited;
};

/* tcp_stamp_us_delta() */
CC_FN u32 cc_bbr1_since(u64 later_us, u64 earlier_us)
{
	return later_us > earlier_us ? (u32)(later_us - earlier_us) : 0;
}

/* lib/win_minmax.c, minmax_running_max(): the maximum of the last ten rounds. */
CC_FN void cc_bbr1_filter_bw(struct cc_bbr1_state *st, u32 bw)
{
	struct cc_bbr1_sample now = {st->rtt_cnt, bw}, *best = st->bw;
	u32 age;

	if (bw >= best[0].bw || now.round - best[2].round > CC_BBR1_BW_ROUNDS) {
		best[0] = best[1] = best[2] = now;
		return;
	}
	if (bw >= best[1].bw)
		best[1] = best[2] = now;
	else if (bw >= best[2].bw)
		best[2] = now;
	age = now.round - best[0].round;
	if (age > CC_BBR1_BW_ROUNDS) {
		best[0] = best[1];
		best[1] = best[2];
		best[2] = now;
		if (now.round - best[0].round > CC_BBR1_BW_ROUNDS) {
			best[0] = best[1];
			best[1] = best[2];
			best[2] = now;
		}
	} else if (best[1].round == best[0].round && age > CC_BBR1_BW_ROUNDS / 4) {
		best[1] = best[2] = now;
	} else if (best[2].round == best[1].round && age > CC_BBR1_BW_ROUNDS / 2) {
		best[2] = now;
	}
}

CC_FN u32 cc_bbr1_max_bw(const struct cc_bbr1_state *st)
{
	return st->bw[0].bw;
}

CC_FN u32 cc_bbr1_bw(const struct cc_bbr1_state *st)
{
	return st->lt_use_bw ? st->lt_bw : cc_bbr1_max_bw(st);
}

CC_FN u32 cc_bbr1_extra_acked(const struct cc_bbr1_state *st)
{
	return cc_max(st->extra_acked[0], st->extra_acked[1]);
}

/* In this order, there is no overflow up to 2.9 Tbit/s. */
CC_FN u64 cc_bbr1_rate(const struct cc_ack *a, u32 bw, u32 gain)
{
	return (((u64)bw * a->mss_bytes * gain) >> CC_BBR1_GAIN) * CC_BBR1_MARGIN_RATE >> CC_BBR1_BW;
}

/* cwnd per RTT (per 1 ms before the first sample), at STARTUP's gain. */
CC_FN void cc_bbr1_pace_from_rtt(struct cc_bbr1_state *st, struct cc_bbr1_run *r)
{
	u32 rtt_us = r->a->srtt_us ? r->a->srtt_us : 1000;

	if (r->a->srtt_us)
		st->has_seen_rtt = 1;
	r->pacing = cc_bbr1_rate(r->a, (u32)cc_div64((u64)r->cwnd << CC_BBR1_BW, rtt_us), CC_BBR1_HIGH_GAIN);
}

/* The rate never falls before the pipe is full. */
CC_FN void cc_bbr1_set_pacing_rate(struct cc_bbr1_state *st, struct cc_bbr1_run *r, u32 bw, u32 gain)
{
	u64 rate = cc_bbr1_rate(r->a, bw, gain);

	if (!st->has_seen_rtt && r->a->srtt_us)
		cc_bbr1_pace_from_rtt(st, r);
	if (st->full_bw_reached || rate > r->pacing)
		r->pacing = rate;
}

CC_FN u32 cc_bbr1_min_tso_segs(u64 pacing_bytes_per_sec)
{
	return pacing_bytes_per_sec < CC_BBR1_MIN_TSO_RATE ? 1 : 2;
}

CC_FN u32 cc_bbr1_tso_segs_goal(const struct cc_bbr1_run *r)
{
	u32 bytes = cc_min(cc_u32(r->pacing >> CC_STACK_PACING_SHIFT), CC_STACK_GSO_BYTES);
	u32 segs = cc_max((u32)cc_div64(bytes, cc_max(r->a->mss_bytes, 1)), cc_bbr1_min_tso_segs(r->pacing));

	return cc_min(segs, CC_BBR1_TSO_SEGS_MAX);
}

/* Saves the window from before loss recovery or PROBE_RTT reduced it. */
CC_FN void cc_bbr1_save_cwnd(struct cc_bbr1_state *st, u32 cwnd)
{
	if (st->prev_ca_state < CC_RECOVERY && st->mode != CC_BBR1_PROBE_RTT)
		st->prior_cwnd = cwnd;
	else
		st->prior_cwnd = cc_max(st->prior_cwnd, cwnd);
}

CC_FN u32 cc_bbr1_bdp(const struct cc_bbr1_state *st, u32 bw, u32 gain)
{
	u64 product = (u64)bw * st->min_rtt_us;

	if (st->min_rtt_us == CC_NO_RTT)
		return CC_STACK_INIT_CWND;
	return (u32)((((product * gain) >> CC_BBR1_GAIN) + CC_BBR1_BW_UNIT - 1) >> CC_BBR1_BW);
}

/* Leaves room for three TSO bursts at the ends, even with delayed ACKs, and with small BDPs enough to probe. */
CC_FN u32 cc_bbr1_quantize(const struct cc_bbr1_state *st, const struct cc_bbr1_run *r, u32 cwnd)
{
	cwnd += 3 * cc_bbr1_tso_segs_goal(r);
	cwnd = (cwnd + 1) & ~(u32)1;
	return st->mode == CC_BBR1_PROBE_BW && !st->cycle_idx ? cwnd + 2 : cwnd;
}

CC_FN u32 cc_bbr1_inflight(const struct cc_bbr1_state *st, const struct cc_bbr1_run *r, u32 gain)
{
	return cc_bbr1_quantize(st, r, cc_bbr1_bdp(st, cc_bbr1_max_bw(st), gain));
}

/* The packets in the network when the next packet departs: without those delivered until then. */
CC_FN u32 cc_bbr1_in_net_at_edt(const struct cc_bbr1_state *st, const struct cc_bbr1_run *r, u32 inflight)
{
	u32 delivered = (u32)(((u64)cc_bbr1_bw(st) * r->a->edt_delay_us) >> CC_BBR1_BW);

	if (st->pacing_gain > CC_BBR1_UNIT)
		inflight += cc_bbr1_tso_segs_goal(r);
	return cc_saturating_sub(inflight, delivered);
}

CC_FN void cc_bbr1_advance_cycle(struct cc_bbr1_state *st)
{
	st->cycle_idx = (st->cycle_idx + 1) & (CC_BBR1_CYCLE - 1);
	st->cycle_mstamp = st->delivered_mstamp;
}

CC_FN void cc_bbr1_start_probe_bw(struct cc_bbr1_state *st, const struct cc_ack *a)
{
	st->mode = CC_BBR1_PROBE_BW;
	st->cycle_idx = CC_BBR1_CYCLE - 1 - (u32)(((u64)a->random * CC_BBR1_CYCLE_RANDOM) >> 32);
	cc_bbr1_advance_cycle(st);
}

/* Long-term bandwidth: the rate of a policer, if two intervals with 20 % loss had the same rate. */
CC_FN void cc_bbr1_lt_begin_interval(struct cc_bbr1_state *st, const struct cc_ack *a)
{
	st->lt_last_stamp_ms = (u32)cc_div64(st->delivered_mstamp, 1000);
	st->lt_last_delivered = a->delivered_pkts;
	st->lt_last_lost = a->total_lost_pkts;
	st->lt_rtt_cnt = 0;
}

CC_FN void cc_bbr1_lt_reset(struct cc_bbr1_state *st, const struct cc_ack *a)
{
	st->lt_bw = 0;
	st->lt_use_bw = 0;
	st->lt_is_sampling = 0;
	cc_bbr1_lt_begin_interval(st, a);
}

CC_FN void cc_bbr1_lt_end_interval(struct cc_bbr1_state *st, const struct cc_ack *a, u32 bw)
{
	u32 apart = bw > st->lt_bw ? bw - st->lt_bw : st->lt_bw - bw;

	if (st->lt_bw && (apart * CC_BBR1_UNIT <= CC_BBR1_LT_BW_RATIO * st->lt_bw ||
			  cc_bbr1_rate(a, apart, CC_BBR1_UNIT) <= CC_BBR1_LT_BW_DIFF)) {
		st->lt_bw = (u32)(bw + st->lt_bw) >> 1;
		st->lt_use_bw = 1;
		st->pacing_gain = CC_BBR1_UNIT;
		st->lt_rtt_cnt = 0;
		return;
	}
	st->lt_bw = bw;
	cc_bbr1_lt_begin_interval(st, a);
}

/* An interval has 4 to 16 rounds, begins and ends with a loss, and is never application-limited. */
CC_FN void cc_bbr1_lt_sample(struct cc_bbr1_state *st, const struct cc_ack *a, u32 losses, int app_limited)
{
	u32 lost, delivered, elapsed_ms;

	if (st->lt_use_bw) {
		if (st->mode == CC_BBR1_PROBE_BW && st->round_start && ++st->lt_rtt_cnt >= CC_BBR1_LT_BW_ROUNDS) {
			cc_bbr1_lt_reset(st, a);
			cc_bbr1_start_probe_bw(st, a);
		}
		return;
	}
	if (!st->lt_is_sampling) {
		if (!losses)
			return;
		cc_bbr1_lt_begin_interval(st, a);
		st->lt_is_sampling = 1;
	}
	if (app_limited) {
		cc_bbr1_lt_reset(st, a);
		return;
	}
	st->lt_rtt_cnt += st->round_start;
	if (st->lt_rtt_cnt < CC_BBR1_LT_MIN_ROUNDS)
		return;
	if (st->lt_rtt_cnt > 4 * CC_BBR1_LT_MIN_ROUNDS) {
		cc_bbr1_lt_reset(st, a);
		return;
	}
	if (!losses)
		return;
	lost = a->total_lost_pkts - st->lt_last_lost;
	delivered = a->delivered_pkts - st->lt_last_delivered;
	if (!delivered || (lost << CC_BBR1_GAIN) < CC_BBR1_LT_LOSS * delivered)
		return;
	elapsed_ms = (u32)cc_div64(st->delivered_mstamp, 1000) - st->lt_last_stamp_ms;
	if ((s32)elapsed_ms < 1)
		return;
	if (elapsed_ms >= 0xffffffffu / 1000) {
		cc_bbr1_lt_reset(st, a);
		return;
	}
	cc_bbr1_lt_end_interval(st, a, (u32)cc_div64((u64)delivered << CC_BBR1_BW, elapsed_ms * 1000));
}

CC_FN void cc_bbr1_update_bw(struct cc_bbr1_state *st, const struct cc_bbr1_run *r)
{
	const struct cc_ack *a = r->a;
	u64 bw;

	st->round_start = 0;
	if (!r->valid)
		return;
	if ((s32)(a->rate_prior_delivered_pkts - st->next_rtt_delivered) >= 0) {
		st->next_rtt_delivered = a->delivered_pkts;
		st->rtt_cnt++;
		st->round_start = 1;
		st->packet_conservation = 0;
	}
	cc_bbr1_lt_sample(st, a, r->losses, r->app_limited);
	bw = cc_div64((u64)a->rate_delivered_pkts << CC_BBR1_BW, a->rate_interval_us);
	if (!r->app_limited || bw >= cc_bbr1_max_bw(st))
		cc_bbr1_filter_bw(st, (u32)bw);
}

/* The maximum excess of packets acked over bw * time, in the last 5 to 10 rounds. */
CC_FN void cc_bbr1_update_ack_aggregation(struct cc_bbr1_state *st, const struct cc_bbr1_run *r)
{
	u32 expected, extra, acked = r->a->acked_pkts;

	if (!acked || !r->valid)
		return;
	if (st->round_start) {
		st->extra_acked_win_rtts = cc_min(31, st->extra_acked_win_rtts + 1);
		if (st->extra_acked_win_rtts >= CC_BBR1_EXTRA_ACKED_ROUNDS) {
			st->extra_acked_win_rtts = 0;
			st->extra_acked_win_idx ^= 1;
			st->extra_acked[st->extra_acked_win_idx & 1] = 0;
		}
	}
	expected = (u32)(((u64)cc_bbr1_bw(st) * cc_bbr1_since(st->delivered_mstamp, st->ack_epoch_mstamp)) >> CC_BBR1_BW);
	if (st->ack_epoch_acked <= expected || st->ack_epoch_acked + acked >= CC_BBR1_EPOCH_ACKED_RESET) {
		st->ack_epoch_acked = 0;
		st->ack_epoch_mstamp = st->delivered_mstamp;
		expected = 0;
	}
	st->ack_epoch_acked = cc_min(0xfffff, st->ack_epoch_acked + acked);
	extra = cc_min(st->ack_epoch_acked - expected, r->cwnd);
	if (extra > st->extra_acked[st->extra_acked_win_idx & 1])
		st->extra_acked[st->extra_acked_win_idx & 1] = (u16)extra;
}

CC_FN int cc_bbr1_phase_is_over(const struct cc_bbr1_state *st, const struct cc_bbr1_run *r)
{
	int full_length = cc_bbr1_since(st->delivered_mstamp, st->cycle_mstamp) > st->min_rtt_us;
	u32 inflight = cc_bbr1_in_net_at_edt(st, r, r->a->prior_inflight_pkts);

	if (st->pacing_gain == CC_BBR1_UNIT)
		return full_length;
	if (st->pacing_gain > CC_BBR1_UNIT)
		return full_length && (r->losses || inflight >= cc_bbr1_inflight(st, r, st->pacing_gain));
	return full_length || inflight <= cc_bbr1_inflight(st, r, CC_BBR1_UNIT);
}

/* Three rounds in which the bandwidth did not grow by a quarter. */
CC_FN void cc_bbr1_check_full_bw(struct cc_bbr1_state *st, const struct cc_bbr1_run *r)
{
	if (st->full_bw_reached || !st->round_start || r->app_limited)
		return;
	if (cc_bbr1_max_bw(st) >= (u32)(((u64)st->full_bw * CC_BBR1_FULL_BW_GROWTH) >> CC_BBR1_GAIN)) {
		st->full_bw = cc_bbr1_max_bw(st);
		st->full_bw_cnt = 0;
		return;
	}
	st->full_bw_cnt++;
	st->full_bw_reached = st->full_bw_cnt >= CC_BBR1_FULL_BW_ROUNDS;
}

CC_FN void cc_bbr1_check_drain(struct cc_bbr1_state *st, struct cc_bbr1_run *r)
{
	if (st->mode == CC_BBR1_STARTUP && st->full_bw_reached) {
		st->mode = CC_BBR1_DRAIN;
		r->ssthresh = cc_bbr1_inflight(st, r, CC_BBR1_UNIT);
	}
	if (st->mode == CC_BBR1_DRAIN &&
	    cc_bbr1_in_net_at_edt(st, r, r->a->inflight_pkts) <= cc_bbr1_inflight(st, r, CC_BBR1_UNIT))
		cc_bbr1_start_probe_bw(st, r->a);
}

CC_FN void cc_bbr1_check_probe_rtt_done(struct cc_bbr1_state *st, struct cc_bbr1_run *r)
{
	u32 now = cc_stack_jiffies(r->a);

	if (!st->probe_rtt_done_stamp || !cc_after(now, st->probe_rtt_done_stamp))
		return;
	st->min_rtt_stamp = now;
	r->cwnd = cc_max(r->cwnd, st->prior_cwnd);
	if (st->full_bw_reached)
		cc_bbr1_start_probe_bw(st, r->a);
	else
		st->mode = CC_BBR1_STARTUP;
}

CC_FN void cc_bbr1_handle_probe_rtt(struct cc_bbr1_state *st, struct cc_bbr1_run *r)
{
	const struct cc_ack *a = r->a;

	if (!st->low_rate || cc_after(a->delivered_pkts, st->low_rate_to))
		st->low_rate_from = a->delivered_pkts;
	st->low_rate = 1;
	st->low_rate_to = a->delivered_pkts + a->inflight_pkts;
	if (!st->probe_rtt_done_stamp && a->inflight_pkts <= CC_BBR1_MIN_CWND) {
		st->probe_rtt_done_stamp = cc_stack_jiffies(a) + CC_BBR1_PROBE_RTT_JIFFIES;
		st->probe_rtt_round_done = 0;
		st->next_rtt_delivered = a->delivered_pkts;
	} else if (st->probe_rtt_done_stamp) {
		if (st->round_start)
			st->probe_rtt_round_done = 1;
		if (st->probe_rtt_round_done)
			cc_bbr1_check_probe_rtt_done(st, r);
	}
}

CC_FN void cc_bbr1_update_min_rtt(struct cc_bbr1_state *st, struct cc_bbr1_run *r)
{
	const struct cc_ack *a = r->a;
	u32 now = cc_stack_jiffies(a);
	int expired = cc_after(now, st->min_rtt_stamp + CC_BBR1_MIN_RTT_JIFFIES);

	if (a->rtt_us && (a->rtt_us < st->min_rtt_us || (expired && !(a->flags & CC_ACK_DELAYED)))) {
		st->min_rtt_us = a->rtt_us;
		st->min_rtt_stamp = now;
	}
	if (expired && !st->idle_restart && st->mode != CC_BBR1_PROBE_RTT) {
		st->mode = CC_BBR1_PROBE_RTT;
		cc_bbr1_save_cwnd(st, r->cwnd);
		st->probe_rtt_done_stamp = 0;
	}
	if (st->mode == CC_BBR1_PROBE_RTT)
		cc_bbr1_handle_probe_rtt(st, r);
	if (a->acked_pkts)
		st->idle_restart = 0;
}

CC_FN void cc_bbr1_update_gains(struct cc_bbr1_state *st)
{
	static const u32 cycle[CC_BBR1_CYCLE] = {320, 192, 256, 256, 256, 256, 256, 256};

	st->cwnd_gain = CC_BBR1_HIGH_GAIN;
	if (st->mode == CC_BBR1_STARTUP) {
		st->pacing_gain = CC_BBR1_HIGH_GAIN;
	} else if (st->mode == CC_BBR1_DRAIN) {
		st->pacing_gain = CC_BBR1_DRAIN_GAIN;
	} else if (st->mode == CC_BBR1_PROBE_BW) {
		st->pacing_gain = st->lt_use_bw ? CC_BBR1_UNIT : cycle[st->cycle_idx & (CC_BBR1_CYCLE - 1)];
		st->cwnd_gain = CC_BBR1_CWND_GAIN;
	} else {
		st->pacing_gain = CC_BBR1_UNIT;
		st->cwnd_gain = CC_BBR1_UNIT;
	}
}

/* Whether packets are conserved: in the first round of recovery, as many are sent as are delivered. */
CC_FN int cc_bbr1_recover_or_restore(struct cc_bbr1_state *st, struct cc_bbr1_run *r)
{
	u32 now = r->a->ca_state, before = st->prev_ca_state;
	u32 conserved = r->a->inflight_pkts + r->a->acked_pkts;

	if (r->losses)
		r->cwnd = cc_max(cc_saturating_sub(r->cwnd, r->losses), 1);
	if (now == CC_RECOVERY && before != CC_RECOVERY) {
		st->packet_conservation = 1;
		st->next_rtt_delivered = r->a->delivered_pkts;
		r->cwnd = conserved;
	} else if (before >= CC_RECOVERY && now < CC_RECOVERY) {
		r->cwnd = cc_max(r->cwnd, st->prior_cwnd);
		st->packet_conservation = 0;
	}
	st->prev_ca_state = (u8)now;
	if (st->packet_conservation)
		r->cwnd = cc_max(r->cwnd, conserved);
	return st->packet_conservation;
}

/* The BDP times its gain, plus the aggregation of ACKs within 100 ms and TSO bursts. */
CC_FN u32 cc_bbr1_target_cwnd(const struct cc_bbr1_state *st, const struct cc_bbr1_run *r)
{
	u32 bw = cc_bbr1_bw(st), target = cc_bbr1_bdp(st, bw, st->cwnd_gain), limit;

	if (st->full_bw_reached) {
		limit = (u32)(((u64)bw * CC_BBR1_EXTRA_ACKED_MAX_US) >> CC_BBR1_BW);
		target += cc_min(cc_bbr1_extra_acked(st), limit);
	}
	return cc_bbr1_quantize(st, r, target);
}

CC_FN void cc_bbr1_set_cwnd(struct cc_bbr1_state *st, struct cc_bbr1_run *r)
{
	u32 target;

	if (r->a->acked_pkts && !cc_bbr1_recover_or_restore(st, r)) {
		target = cc_bbr1_target_cwnd(st, r);
		if (st->full_bw_reached)
			r->cwnd = cc_min(r->cwnd + r->a->acked_pkts, target);
		else if (r->cwnd < target || r->a->delivered_pkts < CC_STACK_INIT_CWND)
			r->cwnd += r->a->acked_pkts;
		r->cwnd = cc_max(r->cwnd, CC_BBR1_MIN_CWND);
	}
	if (st->mode == CC_BBR1_PROBE_RTT)
		r->cwnd = cc_min(r->cwnd, CC_BBR1_MIN_CWND);
}

#endif
