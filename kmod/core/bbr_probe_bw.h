/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * BBR's STARTUP, DRAIN and PROBE_BW: gains, targets, what ends a probe, and the upper bounds that probes find. For names, sources and units
 * see bbr_model.h and bbr_common.h.
 */
#ifndef CC_BBR_PROBE_BW_H
#define CC_BBR_PROBE_BW_H

#include "bbr_model.h"

#define CC_BBR_GSO_BYTES 65536u
#define CC_BBR_TSO_MAX_BYTES (CC_BBR_GSO_BYTES - 1 - 320) /* minus headers, as in the kernel */
#define CC_BBR_V2_MIN_TSO_RATE 150000u			  /* bytes/s: 1.2 Mbit/s */

CC_FN u32 cc_bbr_pacing_gain(u32 mode, const struct cc_bbr_params *p)
{
	if (mode == CC_BBR_STARTUP)
		return cc_bbr_permille(p->startup_pacing_gain);
	if (mode == CC_BBR_DRAIN)
		return cc_bbr_permille(p->drain_gain);
	if (mode == CC_BBR_PROBE_BW_DOWN)
		return cc_bbr_permille(p->down_gain);
	return mode == CC_BBR_PROBE_BW_UP ? cc_bbr_permille(p->up_gain) : CC_BBR_UNIT;
}

CC_FN u32 cc_bbr_cwnd_gain_permille(u32 mode, const struct cc_bbr_params *p)
{
	if (mode == CC_BBR_STARTUP || mode == CC_BBR_DRAIN)
		return p->startup_cwnd_gain;
	if (mode == CC_BBR_PROBE_RTT)
		return 1000;
	return mode == CC_BBR_PROBE_BW_UP ? p->up_cwnd_gain : p->cwnd_gain;
}

CC_FN u32 cc_bbr_cwnd_gain(u32 mode, const struct cc_bbr_params *p)
{
	return cc_bbr_permille(cc_bbr_cwnd_gain_permille(mode, p));
}

/* Segments of a TSO burst: a millisecond at the pacing rate, plus 64 KiB halved for every 512 us of min RTT. */
CC_FN u32 cc_bbr_tso_segs_goal(const struct cc_bbr_state *st, u32 mss_bytes, u64 pacing, u32 version)
{
	u32 min_segs = version == 2 && pacing < CC_BBR_V2_MIN_TSO_RATE ? 1 : 2, halved = st->min_rtt_us >> 9;
	u64 bytes = pacing >> 10;

	if (halved < 32)
		bytes += CC_BBR_GSO_BYTES >> halved;
	if (bytes > CC_BBR_TSO_MAX_BYTES)
		bytes = CC_BBR_TSO_MAX_BYTES;
	return cc_max(cc_u32(cc_div64(bytes, mss_bytes ? mss_bytes : 1)), min_segs);
}

CC_FN int cc_bbr_has_tso_segs_goal(const struct cc_bbr_state *st, u32 mss_bytes, u64 pacing)
{
	return st->goal_pacing == pacing && st->goal_mss_bytes == mss_bytes;
}

/*
 * The inputs seldom change between ACKs; if they have not, the division is skipped. min_rtt_us changes only in an ACK, which ends with a
 * goal for it.
 */
CC_FN void cc_bbr_set_tso_segs_goal(struct cc_bbr_state *st, u32 mss_bytes, u64 pacing, u32 version, int changed)
{
	if (!changed && cc_bbr_has_tso_segs_goal(st, mss_bytes, pacing))
		return;
	st->goal_pacing = pacing;
	st->goal_mss_bytes = mss_bytes;
	st->tso_segs_goal = cc_bbr_tso_segs_goal(st, mss_bytes, pacing, version);
}

/* At least three bursts: in the sender's queue, in its NIC, and at the receiver. cwnd is below 2^31, as a BDP is. */
CC_FN u32 cc_bbr_quantization_budget(const struct cc_bbr_state *st, u32 mode, u32 cwnd)
{
	cwnd = cc_max(cc_max(cwnd, 3 * st->tso_segs_goal), CC_BBR_MIN_CWND);
	return mode == CC_BBR_PROBE_BW_UP ? cwnd + 2 : cwnd;
}

CC_FN u32 cc_bbr_inflight(const struct cc_bbr_state *st, u32 bw, u32 gain)
{
	return cc_bbr_quantization_budget(st, st->mode, cc_bbr_bdp(st, bw, gain));
}

CC_FN u32 cc_bbr_target_inflight(const struct cc_bbr_state *st, u32 cwnd)
{
	return cc_min(cc_bbr_inflight(st, cc_bbr_bw(st), CC_BBR_UNIT), cwnd);
}

/* Whether target_inflight exceeds count. Needs the BDP only if the bursts of its quantization do not exceed count. */
CC_FN int cc_bbr_targets_more_than(const struct cc_bbr_state *st, u32 cwnd, u32 count)
{
	return count < cwnd && (count < 3 * st->tso_segs_goal || count < cc_bbr_target_inflight(st, cwnd));
}

/* The packets in the network when the next packet departs. Packets in the pacing queue are not in the network. */
CC_FN u32 cc_bbr_packets_in_net_at_edt(const struct cc_bbr_state *st, const struct cc_ack *a, u32 inflight)
{
	u32 delivered = cc_u32(((u64)cc_min(cc_bbr_bw(st), CC_BBR_BW_MAX) * a->edt_delay_us) >> CC_BBR_BW);

	if (st->inputs.pacing_gain > CC_BBR_UNIT)
		inflight = cc_u32((u64)inflight + st->tso_segs_goal);
	return cc_saturating_sub(inflight, delivered);
}

CC_FN u32 cc_bbr_inflight_with_headroom(const struct cc_bbr_state *st, const struct cc_bbr_params *p)
{
	u32 headroom;

	if (st->inflight_hi == CC_BBR_INFINITY)
		return CC_BBR_INFINITY;
	headroom = cc_max(cc_bbr_of(st->inflight_hi, cc_bbr_pct(p->headroom_pct)), 1);
	return cc_max(cc_saturating_sub(st->inflight_hi, headroom), CC_BBR_MIN_CWND);
}

CC_FN void cc_bbr_start_probe_bw_down(struct cc_bbr_state *st, const struct cc_bbr_params *p, const struct cc_ack *a)
{
	u64 extra_us = ((u64)cc_min(p->wait_random_ms, 60000) * 1000 * (a->random >> 1)) >> 31;

	cc_bbr_reset_congestion_signals(st);
	st->bw_probe_up_cnt = CC_BBR_INFINITY;
	st->rounds_since_bw_probe = a->random & 1;
	st->bw_probe_wait_us = cc_min(p->wait_ms, 60000) * 1000 + (u32)extra_us;
	st->cycle_stamp_us = (u32)a->now_us;
	st->ack_phase = CC_BBR_ACKS_PROBE_STOPPING;
	st->next_round_delivered = a->delivered_pkts;
	st->mode = CC_BBR_PROBE_BW_DOWN;
}

CC_FN void cc_bbr_start_probe_bw_cruise(struct cc_bbr_state *st)
{
	if (st->inflight_lo != CC_BBR_INFINITY)
		st->inflight_lo = cc_min(st->inflight_lo, st->inflight_hi);
	st->mode = CC_BBR_PROBE_BW_CRUISE;
}

CC_FN void cc_bbr_start_probe_bw_refill(struct cc_bbr_state *st, const struct cc_ack *a, u32 up_rounds)
{
	cc_bbr_reset_lower_bounds(st);
	st->bw_probe_up_rounds = (u8)up_rounds;
	st->bw_probe_up_acks = 0;
	st->flags &= ~(CC_BBR_STOPPED_RISKY_PROBE | CC_BBR_OK_PROBE_SAMPLE);
	st->ack_phase = CC_BBR_ACKS_REFILLING;
	st->next_round_delivered = a->delivered_pkts;
	st->mode = CC_BBR_PROBE_BW_REFILL;
}

/* Packets acknowledged per increment of inflight_hi: the growth doubles each round. */
CC_FN void cc_bbr_raise_inflight_hi_slope(struct cc_bbr_state *st, const struct cc_bbr_rs *rs)
{
	u32 rounds = cc_min(st->bw_probe_up_rounds, 31);

	st->bw_probe_up_cnt = cc_max(rs->cwnd >> rounds, 1);
	st->bw_probe_up_rounds = (u8)cc_min(rounds + 1, 30);
}

CC_FN void cc_bbr_start_probe_bw_up(struct cc_bbr_state *st, const struct cc_ack *a, const struct cc_bbr_rs *rs)
{
	st->ack_phase = CC_BBR_ACKS_PROBE_STARTING;
	st->next_round_delivered = a->delivered_pkts;
	st->cycle_stamp_us = (u32)a->now_us;
	if (rs->version != 2) {
		cc_bbr_reset_full_bw(st);
		st->full_bw = rs->bw;
	}
	st->mode = CC_BBR_PROBE_BW_UP;
	cc_bbr_raise_inflight_hi_slope(st, rs);
}

/* Loss or CE is too high in a probe: cuts inflight_hi, once per probe, and ends UP. */
CC_FN void cc_bbr_handle_inflight_too_high(struct cc_bbr_state *st, const struct cc_bbr_params *p,
					   const struct cc_ack *a, const struct cc_bbr_rs *rs, u32 tx_in_flight)
{
	u32 keep = cc_saturating_sub(CC_BBR_UNIT, cc_bbr_pct(p->cut_pct));

	st->flags |= CC_BBR_PREV_PROBE_TOO_HIGH;
	st->flags &= ~CC_BBR_PROBE_SAMPLES;
	if (!rs->app_limited) {
		st->inflight_hi = cc_max(tx_in_flight, cc_bbr_of(cc_bbr_target_inflight(st, rs->cwnd), keep));
		if (rs->version == 2 && (st->flags & CC_BBR_ECN_ELIGIBLE) && !(st->flags & CC_BBR_OK_PROBE_SAMPLE))
			st->bw_hi = cc_bbr_of(st->bw_hi == CC_BBR_INFINITY ? cc_bbr_max_bw(st) : st->bw_hi,
					  cc_bbr_ecn_cut(st, p));
	}
	if (st->mode == CC_BBR_PROBE_BW_UP)
		cc_bbr_start_probe_bw_down(st, p, a);
}

/* Packets in flight when the share of losses became too high, somewhere within the last `pkts` packets, which were lost together. */
CC_FN u32 cc_bbr_inflight_at_loss(const struct cc_bbr_params *p, const struct cc_bbr_rs *rs, u32 pkts)
{
	u32 inflight_prev = cc_saturating_sub(rs->tx_in_flight, pkts), lost_prev = cc_saturating_sub(rs->lost, pkts);
	u32 share = cc_min(cc_bbr_permille(p->loss_permille), CC_BBR_UNIT - 1);
	u32 budget = cc_u32(((u64)inflight_prev * share + CC_BBR_UNIT - 1) >> 8), prefix = 0;

	if (lost_prev < budget)
		prefix = cc_u32(cc_div64((u64)(budget - lost_prev) << 8, CC_BBR_UNIT - share));
	return cc_u32((u64)inflight_prev + prefix);
}

/*
 * Processes packets newly marked lost, by this ACK or a timeout. They were sent just after the packet of the previous sample: in flight
 * with them was what has been delivered and lost since then, without this ACK. Fills in the sample's tx_in_flight and returns how many
 * packets were lost since the sample's packet was sent.
 */
CC_STEP u32 cc_bbr_note_losses(struct cc_bbr_state *st, const struct cc_bbr_params *p, const struct cc_ack *restrict a)
{
	struct cc_bbr_rs *rs = &st->rs;
	u32 pkts = a->total_lost_pkts - st->last_total_lost, delivered = st->inflight_latest, lost;

	if (pkts) {
		cc_bbr_add_loss_mark(st, a->delivered_pkts, st->last_total_lost, rs->cwnd >> 4);
		st->last_total_lost = a->total_lost_pkts;
		if (!(st->flags & CC_BBR_LOSS_IN_ROUND))
			st->loss_round_delivered = a->delivered_pkts;
		st->flags |= CC_BBR_LOSS_IN_ROUND | CC_BBR_LOSS_IN_CYCLE;
	}
	if (pkts && (st->flags & CC_BBR_PROBE_SAMPLES)) {
		rs->lost = pkts;
		if (rs->valid) {
			rs->lost = cc_bbr_lost_since(st, st->last_prior_delivered, a->total_lost_pkts);
			delivered = a->delivered_pkts - a->acked_pkts - st->last_prior_delivered;
		}
		rs->tx_in_flight = cc_u32((u64)delivered + rs->lost);
		if (rs->lost > cc_bbr_of(rs->tx_in_flight, cc_bbr_permille(p->loss_permille)))
			cc_bbr_handle_inflight_too_high(st, p, a, rs, cc_bbr_inflight_at_loss(p, rs, pkts));
	}
	rs->tx_in_flight = 0;
	if (!rs->valid)
		return 0;
	st->last_prior_delivered = a->rate_prior_delivered_pkts;
	lost = cc_bbr_lost_since(st, a->rate_prior_delivered_pkts, a->total_lost_pkts);
	rs->tx_in_flight = cc_u32((u64)rs->delivered + lost);
	return lost;
}

/* The same for an ACK. Without a mark or a new loss, there is nothing to count. */
CC_FN u32 cc_bbr_note_losses_of_ack(struct cc_bbr_state *st, const struct cc_bbr_params *p, const struct cc_ack *a)
{
	struct cc_bbr_rs *rs = &st->rs;

	if (st->loss_marks_used || a->total_lost_pkts != st->last_total_lost)
		return cc_bbr_note_losses(st, p, a);
	if (rs->valid)
		st->last_prior_delivered = a->rate_prior_delivered_pkts;
	rs->tx_in_flight = rs->delivered; /* 0 without a sample */
	return 0;
}

CC_FN void cc_bbr_handle_queue_too_high_in_startup(struct cc_bbr_state *st, const struct cc_bbr_rs *rs)
{
	st->flags |= CC_BBR_FULL_BW_REACHED;
	st->inflight_hi = cc_bbr_inflight(st, cc_bbr_max_bw(st), CC_BBR_UNIT);
	if (rs->version != 2)
		st->inflight_hi = cc_max(st->inflight_hi, st->inflight_latest);
}

/* Once per round: updates the EWMA of the share of packets with CE, and ends STARTUP because of it. */
CC_FN void cc_bbr_update_ecn_alpha(struct cc_bbr_state *st, const struct cc_bbr_params *p, const struct cc_ack *a,
				  const struct cc_bbr_rs *rs)
{
	u32 delivered = a->delivered_pkts - st->alpha_last_delivered;
	u32 delivered_ce = a->delivered_ce_pkts - st->alpha_last_delivered_ce;
	u32 gain, ratio;

	if (!p->ecn_enable || !(a->flags & CC_ECN) || !p->ecn_factor_permille)
		return;
	if (!p->ecn_max_rtt_us || st->min_rtt_us <= p->ecn_max_rtt_us)
		st->flags |= CC_BBR_ECN_ELIGIBLE;
	if (!delivered || (rs->version != 2 && !(st->flags & CC_BBR_ECN_ELIGIBLE)))
		return;
	gain = CC_BBR_UNIT >> cc_min(p->ecn_alpha_shift, 8);
	ratio = (u32)cc_div64((u64)cc_min(delivered_ce, delivered) << 8, delivered);
	st->ecn_alpha = (u16)cc_min(cc_bbr_of(st->ecn_alpha, CC_BBR_UNIT - gain) + cc_bbr_of(ratio, gain), CC_BBR_UNIT);
	st->alpha_last_delivered = a->delivered_pkts;
	st->alpha_last_delivered_ce = a->delivered_ce_pkts;
	if ((st->flags & CC_BBR_FULL_BW_REACHED) || !(st->flags & CC_BBR_ECN_ELIGIBLE))
		return;
	if (ratio >= cc_bbr_pct(p->ecn_thresh_pct))
		st->startup_ecn_rounds = (u8)cc_min(st->startup_ecn_rounds + 1u, 255);
	else
		st->startup_ecn_rounds = 0;
	if (st->startup_ecn_rounds >= CC_BBR_FULL_ECN_ROUNDS)
		cc_bbr_handle_queue_too_high_in_startup(st, rs);
}

CC_FN void cc_bbr_check_loss_too_high_in_startup(struct cc_bbr_state *st, const struct cc_bbr_params *p,
						 const struct cc_ack *a, const struct cc_bbr_rs *rs)
{
	if (st->flags & CC_BBR_FULL_BW_REACHED)
		return;
	if (a->lost_pkts && st->loss_events_in_round < 255)
		st->loss_events_in_round++;
	if (!rs->loss_round_start)
		return;
	if (a->ca_state == CC_RECOVERY && st->loss_events_in_round >= p->startup_loss_events &&
	    cc_bbr_is_inflight_too_high(st, p, rs))
		cc_bbr_handle_queue_too_high_in_startup(st, rs);
	else
		st->loss_events_in_round = 0;
}

/* Returns ssthresh. In DRAIN, it is finite, which observers can see. */
CC_FN u32 cc_bbr_check_drain(struct cc_bbr_state *st, const struct cc_bbr_params *p, const struct cc_ack *a)
{
	u32 ssthresh = a->ssthresh_pkts, target;

	if (st->mode != CC_BBR_DRAIN && (st->mode != CC_BBR_STARTUP || !(st->flags & CC_BBR_FULL_BW_REACHED)))
		return ssthresh;
	target = cc_bbr_inflight(st, cc_bbr_max_bw(st), CC_BBR_UNIT);
	if (st->mode == CC_BBR_STARTUP) {
		st->mode = CC_BBR_DRAIN;
		ssthresh = cc_min(target, CC_INFINITE);
		cc_bbr_reset_congestion_signals(st);
	}
	if (cc_bbr_packets_in_net_at_edt(st, a, a->inflight_pkts) <= target)
		cc_bbr_start_probe_bw_down(st, p, a);
	return ssthresh;
}

/* In UP without too much loss or CE: raises inflight_hi while it limits. */
CC_FN void cc_bbr_probe_inflight_hi_upward(struct cc_bbr_state *st, const struct cc_ack *a, const struct cc_bbr_rs *rs)
{
	u32 count = cc_max(st->bw_probe_up_cnt, 1), steps;

	if (!(a->flags & CC_CWND_FULL) || rs->cwnd < st->inflight_hi) {
		if (rs->version == 2)
			st->bw_probe_up_acks = 0;
		return;
	}
	st->bw_probe_up_acks = cc_u32((u64)st->bw_probe_up_acks + a->acked_pkts);
	if (st->bw_probe_up_acks >= count) {
		steps = (u32)cc_div64(st->bw_probe_up_acks, count);
		st->bw_probe_up_acks -= steps * count;
		st->inflight_hi = cc_min(cc_u32((u64)st->inflight_hi + steps), CC_INFINITE);
	}
	if (rs->round_start)
		cc_bbr_raise_inflight_hi_slope(st, rs);
}

/* Returns 1 if it decided the next state. */
CC_STEP int cc_bbr_adapt_upper_bounds(struct cc_bbr_state *st, const struct cc_bbr_params *p, const struct cc_ack *restrict a)
{
	const struct cc_bbr_rs *rs = &st->rs;
	int in_probe_bw = st->mode != CC_BBR_DRAIN && st->mode != CC_BBR_PROBE_RTT;

	if (st->ack_phase == CC_BBR_ACKS_PROBE_STARTING && rs->round_start)
		st->ack_phase = CC_BBR_ACKS_PROBE_FEEDBACK;
	if (st->ack_phase == CC_BBR_ACKS_PROBE_STOPPING && rs->round_start) {
		st->flags &= ~CC_BBR_PROBE_SAMPLES;
		st->ack_phase = CC_BBR_ACKS_INIT;
		if (in_probe_bw && !rs->app_limited && st->max_bw_this_cycle) {
			st->max_bw_prev_cycle = st->max_bw_this_cycle;
			st->max_bw_this_cycle = 0;
		}
		/* Without loss, a probe has reached the inflight_hi of one that was too high: probe again, more carefully. */
		if (in_probe_bw && (st->flags & CC_BBR_STOPPED_RISKY_PROBE) &&
		    !(st->flags & CC_BBR_PREV_PROBE_TOO_HIGH)) {
			cc_bbr_start_probe_bw_refill(st, a, 0);
			return 1;
		}
	}
	if (cc_bbr_is_inflight_too_high(st, p, rs)) {
		if (st->flags & CC_BBR_PROBE_SAMPLES)
			cc_bbr_handle_inflight_too_high(st, p, a, rs, rs->tx_in_flight);
		return 0;
	}
	if (st->flags & CC_BBR_PROBE_SAMPLES)
		st->flags |= CC_BBR_OK_PROBE_SAMPLE;
	if (st->inflight_hi == CC_BBR_INFINITY && st->bw_hi == CC_BBR_INFINITY)
		return 0;
	/* In any state: a higher level was safe. */
	if (rs->valid)
		st->inflight_hi = cc_max(st->inflight_hi, rs->tx_in_flight);
	if (rs->version == 2)
		st->bw_hi = cc_max(st->bw_hi, rs->bw);
	if (st->mode == CC_BBR_PROBE_BW_UP)
		cc_bbr_probe_inflight_hi_upward(st, a, rs);
	return 0;
}

/* Whether cc_bbr_adapt_upper_bounds() changes anything. The phase is not INIT in UP and while its samples arrive. */
CC_FN int cc_bbr_may_adapt_upper_bounds(const struct cc_bbr_state *st, u32 version)
{
	const struct cc_bbr_rs *rs = &st->rs;

	return st->ack_phase != CC_BBR_ACKS_INIT || rs->lost || rs->delivered_ce || rs->tx_in_flight > st->inflight_hi ||
	       (version == 2 && rs->bw > st->bw_hi);
}

/* log2, rounded down; 0 of 0 */
CC_FN u32 cc_bbr_log2(u32 value)
{
	u32 bits = value >> 16 ? 16 : 0;

	bits += value >> bits >> 8 ? 8 : 0;
	bits += value >> bits >> 4 ? 4 : 0;
	bits += value >> bits >> 2 ? 2 : 0;
	return bits + (value >> bits >> 1 ? 1 : 0);
}

/* Whether it is time for a probe after this many rounds since the last one. More bandwidth does not make it so. */
CC_FN int cc_bbr_is_time_to_probe_bw(const struct cc_bbr_state *st, const struct cc_bbr_params *p, const struct cc_ack *a, u32 rounds)
{
	return (u32)a->now_us - st->cycle_stamp_us > st->bw_probe_wait_us || rounds >= p->wait_rounds ||
	       !cc_bbr_targets_more_than(st, a->cwnd_pkts, rounds);
}

/* Starts REFILL if it is time. Returns whether it did. */
CC_FN int cc_bbr_check_time_to_probe_bw(struct cc_bbr_state *st, const struct cc_bbr_params *p, const struct cc_ack *a)
{
	u32 ceased = CC_BBR_ECN_ELIGIBLE | CC_BBR_ECN_IN_CYCLE;

	if ((st->flags & (ceased | CC_BBR_LOSS_IN_CYCLE)) == ceased && p->ecn_reprobe_pct && a->ca_state == CC_OPEN) {
		cc_bbr_start_probe_bw_refill(st, a, cc_bbr_log2(cc_bbr_of(st->inflight_hi, cc_bbr_pct(p->ecn_reprobe_pct))));
		return 1;
	}
	if (!cc_bbr_is_time_to_probe_bw(st, p, a, st->rounds_since_bw_probe))
		return 0;
	cc_bbr_start_probe_bw_refill(st, a, 0);
	return 1;
}

/* Whether UP ends. v2: after a min RTT and with a queue of a quarter of a BDP. v3: when the bandwidth has stopped growing. */
CC_FN int cc_bbr_is_time_to_go_down(struct cc_bbr_state *st, const struct cc_bbr_params *p, const struct cc_ack *a,
				    const struct cc_bbr_rs *rs, u32 inflight)
{
	if ((st->flags & CC_BBR_PREV_PROBE_TOO_HIGH) && inflight >= st->inflight_hi) {
		st->flags |= CC_BBR_STOPPED_RISKY_PROBE;
		return 1;
	}
	if (rs->version == 2)
		return (u32)a->now_us - st->cycle_stamp_us > st->min_rtt_us &&
		       inflight >= cc_bbr_inflight(st, cc_bbr_max_bw(st), cc_bbr_permille(p->up_gain));
	if ((a->flags & CC_CWND_FULL) && rs->cwnd >= st->inflight_hi) {
		cc_bbr_reset_full_bw(st);
		st->full_bw = rs->bw;
		return 0;
	}
	return (st->flags & CC_BBR_FULL_BW_NOW) != 0;
}

CC_FN void cc_bbr_update_cycle_phase(struct cc_bbr_state *st, const struct cc_bbr_params *p, u32 version,
				     const struct cc_ack *a, const struct cc_bbr_rs *rs)
{
	u32 inflight;

	if (!(st->flags & CC_BBR_FULL_BW_REACHED))
		return;
	if (cc_bbr_may_adapt_upper_bounds(st, version) && cc_bbr_adapt_upper_bounds(st, p, a))
		return;
	if (st->mode == CC_BBR_PROBE_BW_CRUISE) {
		cc_bbr_check_time_to_probe_bw(st, p, a);
	} else if (st->mode == CC_BBR_PROBE_BW_REFILL) {
		if (!rs->round_start)
			return;
		st->flags |= CC_BBR_PROBE_SAMPLES;
		cc_bbr_start_probe_bw_up(st, a, rs);
	} else if (st->mode == CC_BBR_PROBE_BW_UP) {
		inflight = cc_bbr_packets_in_net_at_edt(st, a, a->prior_inflight_pkts);
		if (!cc_bbr_is_time_to_go_down(st, p, a, rs, inflight))
			return;
		st->flags &= ~CC_BBR_PREV_PROBE_TOO_HIGH;
		cc_bbr_start_probe_bw_down(st, p, a);
	} else if (st->mode == CC_BBR_PROBE_BW_DOWN) {
		inflight = cc_bbr_packets_in_net_at_edt(st, a, a->prior_inflight_pkts);
		if (!cc_bbr_check_time_to_probe_bw(st, p, a) &&
		    inflight <= cc_bbr_inflight_with_headroom(st, p) &&
		    inflight <= cc_bbr_inflight(st, cc_bbr_max_bw(st), CC_BBR_UNIT))
			cc_bbr_start_probe_bw_cruise(st);
	}
}

#endif
