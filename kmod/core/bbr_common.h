/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The parts that BBRv2 and BBRv3 (not BBRv1) share: the steps at an ACK, PROBE_RTT, pacing rate and cwnd. They build on bbr_model.h (the
 * path) and bbr_probe_bw.h (probes for bandwidth). bbr2.h and bbr3.h list the differences between the versions.
 *
 * Sources, followed step by step: google/bbr, net/ipv4/tcp_bbr2.c of branch v2alpha (0487ade5) and net/ipv4/tcp_bbr.c of branch v3
 * (001a430b); draft-ietf-ccwg-bbr. What a congestion control outside that kernel lacks, and what this code does instead:
 * - A packet carries neither tx.in_flight nor tx.lost. In flight with a packet was what has been delivered and lost since it was sent: the
 *   rate sample gives the former, loss_marks of bbr_model.h the latter. This is exact unless packets were reordered, or losses within a
 *   sixteenth of a window were merged. A lost packet is assumed to have been sent just after the packet of the previous sample.
 * - The stack reports losses with the ACK, not packet by packet. The losses of one ACK count as one packet of a TSO burst does in the
 *   source. inflight_hi and the other bounds are saved before, so undo restores them as the draft demands; the source saves them after the
 *   first loss.
 * - The stack does not report that a tail loss probe has repaired a loss, so such a loss has no effect.
 * - Samples of packets sent in PROBE_RTT are marked application-limited here, not in tp->app_limited.
 * - Kernels before 5.18 do not report how many packets of a sample had CE. There, CE ends STARTUP and cuts inflight_lo, but does not end a
 *   probe.
 * - There is no fast ACK mode and no PLB. The source's fast path, which saves CPU time while the application limits, is replaced by that of
 *   bbr_fast_path.h.
 *
 *   [STARTUP] -- pipe full, or loss or CE too high --> [DRAIN] -- in flight <= BDP --+
 *                                                                                    v
 *      +----> [UP] -- too high, or risky, or v2: long enough, v3: no more bandwidth -> [DOWN]
 *      |                                                                             | in flight <= BDP and headroom
 *   [REFILL] <--- time to probe, or after a risky probe without loss --- [CRUISE] <--+
 *
 *   any -- no lower RTT for probe_rtt_interval --> [PROBE_RTT] -- probe_rtt_ms and a round --> [CRUISE] or [STARTUP]
 *
 * Units: as in bbr_model.h.
 */
#ifndef CC_BBR_COMMON_H
#define CC_BBR_COMMON_H

#include "bbr_probe_bw.h"

/* Saves the window from before loss recovery or PROBE_RTT reduced it. */
CC_FN void cc_bbr_save_cwnd(struct cc_bbr_state *st, u32 cwnd)
{
	if (st->prev_ca_state < CC_RECOVERY && st->mode != CC_BBR_PROBE_RTT)
		st->prior_cwnd = cwnd;
	else
		st->prior_cwnd = cc_max(st->prior_cwnd, cwnd);
}

CC_FN u32 cc_bbr_probe_rtt_cwnd(const struct cc_bbr_state *st, const struct cc_bbr_params *p)
{
	return cc_max(cc_bbr_bdp(st, cc_bbr_bw(st), cc_bbr_pct(p->probe_rtt_cwnd_pct)), CC_BBR_MIN_CWND);
}

CC_FN u32 cc_bbr_probe_rtt_us(const struct cc_bbr_params *p)
{
	return cc_min(p->probe_rtt_ms, 5000) * 1000;
}

/*
 * Whether the end of PROBE_RTT has passed. It is ahead by at most the length of PROBE_RTT and the 1 us that keeps it from being 0. If it
 * seems further ahead, more than 2^31 us have passed in an idle connection.
 */
CC_FN int cc_bbr_probe_rtt_ended(const struct cc_bbr_state *st, const struct cc_bbr_params *p, const struct cc_ack *a)
{
	return st->probe_rtt_done_stamp_us - (u32)a->now_us > cc_bbr_probe_rtt_us(p) + 1;
}

/* Returns cwnd: unchanged, or restored at the end of PROBE_RTT. */
CC_FN u32 cc_bbr_check_probe_rtt_done(struct cc_bbr_state *st, const struct cc_bbr_params *p,
				      const struct cc_ack *a, u32 cwnd)
{
	if (!st->probe_rtt_done_stamp_us || !cc_bbr_probe_rtt_ended(st, p, a))
		return cwnd;
	st->probe_rtt_min_stamp_us = (u32)a->now_us;
	cc_bbr_reset_lower_bounds(st);
	if (st->flags & CC_BBR_FULL_BW_REACHED) {
		cc_bbr_start_probe_bw_down(st, p, a);
		cc_bbr_start_probe_bw_cruise(st);
	} else {
		st->mode = CC_BBR_STARTUP;
	}
	return cc_max(cwnd, st->prior_cwnd);
}

CC_FN u32 cc_bbr_handle_probe_rtt(struct cc_bbr_state *st, const struct cc_bbr_params *p, const struct cc_ack *a,
				  const struct cc_bbr_rs *rs)
{
	st->low_rate_to = a->delivered_pkts + a->inflight_pkts;
	if (!(st->flags & CC_BBR_LOW_RATE))
		st->low_rate_from = a->delivered_pkts;
	st->flags |= CC_BBR_LOW_RATE;
	if (!st->probe_rtt_done_stamp_us) {
		if (a->inflight_pkts > cc_bbr_probe_rtt_cwnd(st, p))
			return rs->cwnd;
		st->probe_rtt_done_stamp_us = ((u32)a->now_us + cc_bbr_probe_rtt_us(p)) | 1;
		st->flags &= ~CC_BBR_PROBE_RTT_ROUND_DONE;
		st->next_round_delivered = a->delivered_pkts;
		return rs->cwnd;
	}
	if (rs->round_start)
		st->flags |= CC_BBR_PROBE_RTT_ROUND_DONE;
	if (!(st->flags & CC_BBR_PROBE_RTT_ROUND_DONE))
		return rs->cwnd;
	return cc_bbr_check_probe_rtt_done(st, p, a, rs->cwnd);
}

/* Whether no RTT has been as low as the minimum for probe_rtt_interval. */
CC_FN int cc_bbr_is_probe_rtt_due(const struct cc_bbr_state *st, const struct cc_bbr_params *p, const struct cc_ack *a)
{
	return (u32)a->now_us - st->probe_rtt_min_stamp_us > p->probe_rtt_interval_ms * 1000;
}

CC_FN void cc_bbr_filter_min_rtt(struct cc_bbr_state *st, const struct cc_bbr_params *p, const struct cc_ack *a, u32 version, int expired)
{
	u32 now_us = (u32)a->now_us;
	int lower = a->rtt_us < st->probe_rtt_min_us || (a->rtt_us == st->probe_rtt_min_us && version == 2);

	if (a->rtt_us && (lower || (expired && !(a->flags & CC_ACK_DELAYED)))) {
		st->probe_rtt_min_us = a->rtt_us;
		st->probe_rtt_min_stamp_us = now_us;
	}
	if (st->probe_rtt_min_us <= st->min_rtt_us || now_us - st->min_rtt_stamp_us > p->min_rtt_window_ms * 1000) {
		st->min_rtt_us = st->probe_rtt_min_us;
		st->min_rtt_stamp_us = st->probe_rtt_min_stamp_us;
	}
}

/* Updates min_rtt, and enters or handles PROBE_RTT. Returns cwnd. */
CC_FN u32 cc_bbr_update_min_rtt(struct cc_bbr_state *st, const struct cc_bbr_params *p, const struct cc_ack *a,
				const struct cc_bbr_rs *rs)
{
	u32 cwnd = rs->cwnd;
	int expired = cc_bbr_is_probe_rtt_due(st, p, a);

	cc_bbr_filter_min_rtt(st, p, a, rs->version, expired);
	if (expired && !(st->flags & CC_BBR_IDLE_RESTART) && st->mode != CC_BBR_PROBE_RTT) {
		st->mode = CC_BBR_PROBE_RTT;
		cc_bbr_save_cwnd(st, cwnd);
		st->probe_rtt_done_stamp_us = 0;
		st->ack_phase = CC_BBR_ACKS_PROBE_STOPPING;
		st->next_round_delivered = a->delivered_pkts;
	}
	if (st->mode == CC_BBR_PROBE_RTT)
		cwnd = cc_bbr_handle_probe_rtt(st, p, a, rs);
	if ((st->flags & CC_BBR_IDLE_RESTART) && (rs->delivered || a->acked_pkts))
		st->flags &= ~CC_BBR_IDLE_RESTART;
	return cwnd;
}

/* The pacing rate, given the rate from the bandwidth: it does not decrease in STARTUP. */
CC_FN u64 cc_bbr_pacing_rate(struct cc_bbr_state *st, const struct cc_bbr_params *p, const struct cc_ack *a, u64 rate)
{
	u64 now = a->pacing_bytes_per_sec;

	if (st->flags & CC_BBR_FULL_BW_REACHED)
		return rate;
	if (!(st->flags & CC_BBR_HAS_SEEN_RTT) && a->srtt_us)
		now = cc_bbr_initial_rate(st, p, a);
	return rate > now ? rate : now;
}

/* Whether the pacing rate and the target window may differ from what the last inputs gave. */
CC_FN int cc_bbr_inputs_changed(const struct cc_bbr_state *st, const struct cc_bbr_params *p, u32 bw, u32 mode,
				const struct cc_ack *a)
{
	const struct cc_bbr_inputs *last = &st->inputs;

	return last->bw != bw || last->min_rtt_us != st->min_rtt_us ||
	       last->extra_acked != cc_bbr_extra_acked(st) || last->mss_bytes != a->mss_bytes ||
	       last->pacing_gain != cc_bbr_pacing_gain(mode, p) || last->cwnd_gain != cc_bbr_cwnd_gain_permille(mode, p) ||
	       (!CC_CONSTANT_PARAMS && (last->extra_acked_gain != p->extra_acked_gain || last->margin_pct != p->margin_pct));
}

/* extra_acked is at most CC_BBR_EPOCH_MAX_PKTS. */
CC_FN u32 cc_bbr_inflight_cap(const struct cc_bbr_state *st, const struct cc_bbr_inputs *in)
{
	u32 extra = (in->extra_acked * cc_bbr_permille(in->extra_acked_gain)) >> 8;
	u32 max_aggr_cwnd = (u32)(((u64)in->bw * CC_BBR_EXTRA_ACKED_MAX_US) >> CC_BBR_BW);

	return cc_bbr_bdp(st, in->bw, cc_bbr_permille(in->cwnd_gain)) + cc_min(extra, max_aggr_cwnd);
}

/* The window from `before`; `full` if the pipe was full once. */
CC_FN u32 cc_bbr_set_cwnd(const struct cc_bbr_state *st, const struct cc_bbr_params *p, u32 mode, u32 full, const struct cc_ack *a,
			  u32 before)
{
	u64 cwnd = before;
	u32 cap = CC_BBR_INFINITY, target;

	if (a->acked_pkts) {
		target = cc_bbr_quantization_budget(st, mode, st->inflight_cap);
		if (full)
			cwnd = cwnd + a->acked_pkts < target ? cwnd + a->acked_pkts : target;
		else if (cwnd < target || cwnd < 2u * st->init_cwnd)
			cwnd += a->acked_pkts;
		cwnd = cwnd > CC_BBR_MIN_CWND ? cwnd : CC_BBR_MIN_CWND;
	}
	cwnd = cc_min_u64(cwnd, a->cwnd_clamp_pkts);
	if (mode == CC_BBR_PROBE_RTT)
		cwnd = cc_min((u32)cwnd, cc_bbr_probe_rtt_cwnd(st, p));
	if (mode == CC_BBR_PROBE_BW_CRUISE || mode == CC_BBR_PROBE_RTT)
		cap = cc_bbr_inflight_with_headroom(st, p);
	else if (mode != CC_BBR_STARTUP && mode != CC_BBR_DRAIN)
		cap = st->inflight_hi;
	cap = cc_max(cc_min(cap, st->inflight_lo), CC_BBR_MIN_CWND);
	return cc_max(cc_min(cc_min((u32)cwnd, cap), CC_INFINITE), CC_MIN_CWND);
}

/* Stores the inputs and the resulting rate. Returns inflight_cap. */
CC_STEP u32 cc_bbr_take_inputs(struct cc_bbr_state *st, const struct cc_bbr_params *p, u32 bw, u32 mss_bytes)
{
	struct cc_bbr_inputs in = {
		.bw = bw,
		.min_rtt_us = st->min_rtt_us,
		.mss_bytes = mss_bytes,
		.extra_acked = cc_bbr_extra_acked(st),
		.pacing_gain = cc_bbr_pacing_gain(st->mode, p),
		.cwnd_gain = cc_bbr_cwnd_gain_permille(st->mode, p),
		.extra_acked_gain = p->extra_acked_gain,
		.margin_pct = p->margin_pct,
	};

	st->inputs = in;
	st->rate = cc_bbr_rate(in.bw, in.mss_bytes, in.pacing_gain, in.margin_pct);
	return cc_bbr_inflight_cap(st, &in);
}

/*
 * Computes pacing rate, burst size and cwnd from the model. Their inputs seldom change between ACKs; if they have not, the stored results
 * are used. Returns cwnd.
 */
CC_STEP u32 cc_bbr_update_control_parameters(struct cc_bbr_state *st, const struct cc_bbr_params *p, u32 version,
					     const struct cc_ack *restrict a)
{
	u32 bw = cc_bbr_bw_of(st, version);
	int changed = cc_bbr_inputs_changed(st, p, bw, st->mode, a);

	if (changed)
		st->inflight_cap = cc_bbr_take_inputs(st, p, bw, a->mss_bytes);
	cc_bbr_set_tso_segs_goal(st, a->mss_bytes, cc_bbr_pacing_rate(st, p, a, st->rate), version, changed);
	return cc_bbr_set_cwnd(st, p, st->mode, st->flags & CC_BBR_FULL_BW_REACHED, a, st->rs.cwnd);
}

/* Whether the acknowledged packet was sent while the application, or PROBE_RTT, limited the rate. */
CC_FN u8 cc_bbr_is_app_limited(struct cc_bbr_state *st, const struct cc_ack *a)
{
	u32 sent = a->rate_prior_delivered_pkts;

	if (a->flags & CC_APP_LIMITED)
		return 1;
	if (!(st->flags & CC_BBR_LOW_RATE))
		return 0;
	if (cc_after(sent, st->low_rate_to))
		st->flags &= ~CC_BBR_LOW_RATE;
	return !cc_after(st->low_rate_from, sent) && !cc_after(sent, st->low_rate_to);
}

/* The delivery rate; rate_interval_us is not 0. */
CC_FN u32 cc_bbr_sample_bw(const struct cc_ack *a)
{
	return cc_min_u64(cc_div64(((u64)a->rate_delivered_pkts << CC_BBR_BW) + a->rate_interval_us - 1, a->rate_interval_us),
			  CC_BBR_BW_MAX);
}

CC_FN void cc_bbr_fill(struct cc_bbr_state *st, u32 version, const struct cc_ack *a, struct cc_bbr_rs *rs)
{
	rs->cwnd = a->cwnd_pkts;
	rs->round_start = 0;
	rs->loss_round_start = 0;
	cc_bbr_set_tso_segs_goal(st, a->mss_bytes, a->pacing_bytes_per_sec, version, 0);
	if (!a->rate_delivered_pkts || !a->rate_interval_us) {
		rs->valid = 0;
		rs->app_limited = (a->flags & CC_APP_LIMITED) != 0;
		rs->delivered = 0;
		rs->delivered_ce = 0;
		rs->bw = 0;
		return;
	}
	rs->valid = 1;
	rs->app_limited = cc_bbr_is_app_limited(st, a);
	rs->delivered = a->rate_delivered_pkts;
	rs->delivered_ce = a->rate_delivered_ce_pkts;
	rs->bw = cc_bbr_sample_bw(a);
}

/* Starts a round with this ACK. */
CC_FN void cc_bbr_start_round(struct cc_bbr_state *st, const struct cc_ack *a)
{
	st->next_round_delivered = a->delivered_pkts;
	cc_bbr_expire_loss_marks(st, a->rate_prior_delivered_pkts);
	if (st->rounds_since_bw_probe < 0xffff)
		st->rounds_since_bw_probe++;
}

/* Processes the rate sample, losses, rounds and congestion signals. Returns whether a round starts. */
CC_STEP int cc_bbr_update_signals(struct cc_bbr_state *st, const struct cc_bbr_params *p, u32 version,
				  const struct cc_ack *restrict a)
{
	struct cc_bbr_rs *rs = &st->rs;

	cc_bbr_fill(st, version, a, rs);
	rs->lost = cc_bbr_note_losses_of_ack(st, p, a);
	if (rs->valid && !cc_bbr_before(a->rate_prior_delivered_pkts, st->next_round_delivered)) {
		rs->round_start = 1;
		cc_bbr_start_round(st, a);
		cc_bbr_update_ecn_alpha(st, p, a, rs);
	}
	if (a->delivered_ce_pkts != st->last_delivered_ce) {
		if (st->flags & CC_BBR_ECN_ELIGIBLE)
			st->flags |= CC_BBR_ECN_IN_ROUND;
		st->last_delivered_ce = a->delivered_ce_pkts;
	}
	if (rs->valid && a->acked_pkts) {
		cc_bbr_update_latest_delivery_signals(st, a, rs);
		cc_bbr_update_max_bw(st, rs);
		cc_bbr_update_congestion_signals(st, p, version, a, rs);
		if (p->extra_acked_gain) {
			if (rs->round_start)
				cc_bbr_advance_extra_acked(st, st->flags & CC_BBR_FULL_BW_REACHED);
			cc_bbr_update_ack_aggregation(st, cc_bbr_bw_of(st, version), a);
		}
	}
	return rs->round_start;
}

/* Checks whether the pipe is full. Returns ssthresh. */
CC_STEP u32 cc_bbr_check_full_pipe(struct cc_bbr_state *st, const struct cc_bbr_params *p, const struct cc_ack *restrict a)
{
	const struct cc_bbr_rs *rs = &st->rs;

	cc_bbr_check_loss_too_high_in_startup(st, p, a, rs);
	cc_bbr_check_full_bw_reached(st, p, rs);
	return cc_bbr_check_drain(st, p, a);
}

/* Returns cwnd, which the end of PROBE_RTT restores. */
CC_STEP u32 cc_bbr_update_state(struct cc_bbr_state *st, const struct cc_bbr_params *p, u32 version,
				const struct cc_ack *restrict a)
{
	const struct cc_bbr_rs *rs = &st->rs;

	cc_bbr_update_cycle_phase(st, p, version, a, rs);
	return cc_bbr_update_min_rtt(st, p, a, rs);
}

/* Whether a call may start PROBE_BW_DOWN, which draws the time of the next probe. */
CC_FN int cc_bbr_draws(const struct cc_bbr_state *st)
{
	return st->mode != CC_BBR_PROBE_BW_DOWN && st->mode != CC_BBR_PROBE_BW_CRUISE && st->mode != CC_BBR_PROBE_BW_REFILL;
}

/* Whether an ACK may read what CC_SKIPS_PROBE omits. Until the next probe for bandwidth, nothing does. */
CC_FN int cc_bbr_reads_probe(const struct cc_bbr_state *st)
{
	return st->mode != CC_BBR_PROBE_BW_CRUISE && st->mode != CC_BBR_PROBE_BW_REFILL;
}

/* Returns CC_OUT_STATE if the mode has changed since the last row. */
CC_FN u32 cc_bbr_state_began(struct cc_bbr_state *st)
{
	if (st->mode == st->last_mode)
		return 0;
	st->last_mode = st->mode;
	return CC_OUT_STATE;
}

/* The flags of a pipe that is full and that the samples still show as full. */
CC_FN u32 cc_bbr_full_flags(u32 version)
{
	return CC_BBR_FULL_BW_REACHED | (version == 2 ? 0 : CC_BBR_FULL_BW_NOW);
}

/* Handles any ACK. */
CC_FN void cc_bbr_on_slow_ack(struct cc_bbr_state *st, const struct cc_bbr_params *p, u32 version, const struct cc_ack *a,
			      struct cc_out *out)
{
	const struct cc_bbr_rs *rs = &st->rs;
	u32 full = cc_bbr_full_flags(version);

	cc_keep(a, out);
	if (cc_bbr_update_signals(st, p, version, a))
		out->flags |= CC_OUT_ROUND;
	if (st->mode <= CC_BBR_DRAIN || (st->flags & full) != full)
		out->ssthresh_pkts = cc_bbr_check_full_pipe(st, p, a);
	st->rs.cwnd = cc_bbr_update_state(st, p, version, a);
	out->cwnd_pkts = cc_bbr_update_control_parameters(st, p, version, a);
	out->pacing_bytes_per_sec = st->goal_pacing != a->pacing_bytes_per_sec ? st->goal_pacing : 0;
	if (version != 2 && rs->loss_round_start)
		cc_bbr_advance_latest_delivery_signals(st, rs);
	st->prev_ca_state = (u8)a->ca_state;
	st->flags &= ~CC_BBR_CA_STATE_CHANGED;
	if (rs->lost)
		st->flags |= CC_BBR_LOSS_IN_CYCLE;
	if (rs->delivered_ce)
		st->flags |= CC_BBR_ECN_IN_CYCLE;
	out->flags |= cc_bbr_state_began(st);
}

/* BBR does not use ssthresh, so it does not change. Saves what a spurious recovery restores. */
CC_FN u32 cc_bbr_on_loss(struct cc_bbr_state *st, const struct cc_ack *a)
{
	cc_bbr_save_cwnd(st, a->cwnd_pkts);
	st->undo_bw_lo = st->bw_lo;
	st->undo_inflight_lo = st->inflight_lo;
	st->undo_inflight_hi = st->inflight_hi;
	return cc_min(cc_max(a->ssthresh_pkts, CC_MIN_CWND), CC_INFINITE);
}

/* Every packet in flight is lost: there is no rate sample, and cwnd already has the value after the timeout. */
CC_FN void cc_bbr_enter_loss(struct cc_bbr_state *st, const struct cc_bbr_params *p, u32 version,
			     const struct cc_ack *a)
{
	struct cc_bbr_rs *rs = &st->rs;

	cc_bbr_fill(st, version, a, rs);
	rs->valid = 0;
	rs->cwnd = cc_max(a->cwnd_pkts, st->prior_cwnd);
	rs->lost = cc_bbr_note_losses(st, p, a);
	st->prev_ca_state = CC_LOSS;
	cc_bbr_reset_full_bw(st);
	if (!cc_bbr_is_probing_bw(st) && st->inflight_lo == CC_BBR_INFINITY)
		st->inflight_lo = version == 2 ? st->prior_cwnd : rs->cwnd;
}

/* Whether an event changes anything. If bursts are further apart than the RTT, each begins with TX_START. */
CC_FN int cc_bbr_reacts_to(const struct cc_bbr_state *st, u32 event, u32 app_limited)
{
	if (event == CC_EVENT_TX_START)
		return app_limited || (st->flags & CC_BBR_LOW_RATE);
	return event <= CC_EVENT_LOSS;
}

CC_FN void cc_bbr_on_event(struct cc_bbr_state *st, const struct cc_bbr_params *p, u32 version, u32 event,
			   const struct cc_ack *a, struct cc_out *out)
{
	u32 cwnd = a->cwnd_pkts;

	cc_keep(a, out);
	if (event <= CC_EVENT_LOSS)
		st->flags |= CC_BBR_CA_STATE_CHANGED;
	if (event == CC_EVENT_LOSS) {
		cc_bbr_enter_loss(st, p, version, a);
	} else if (event < CC_EVENT_LOSS) {
		if (st->prev_ca_state == CC_LOSS)
			cwnd = cc_max(cwnd, st->prior_cwnd);
	} else if (event == CC_EVENT_TX_START && cc_bbr_reacts_to(st, event, a->flags & CC_APP_LIMITED)) {
		st->flags |= CC_BBR_IDLE_RESTART;
		st->ack_epoch_stamp_us = (u32)a->now_us;
		st->ack_epoch_acked = 0;
		if (st->mode == CC_BBR_PROBE_RTT)
			cwnd = cc_bbr_check_probe_rtt_done(st, p, a, cwnd);
		else if (st->mode != CC_BBR_STARTUP && st->mode != CC_BBR_DRAIN)
			out->pacing_bytes_per_sec = cc_bbr_pacing_rate(st, p, a, cc_bbr_rate(cc_bbr_bw(st), a->mss_bytes, CC_BBR_UNIT, p->margin_pct));
	}
	if (cwnd != a->cwnd_pkts)
		out->cwnd_pkts = cc_bound_cwnd(a, cwnd);
	out->flags |= cc_bbr_state_began(st);
	if (out->flags & CC_OUT_STATE) {
		st->inputs.pacing_gain = cc_bbr_pacing_gain(st->mode, p);
		st->inputs.mss_bytes = CC_BBR_INFINITY; /* they gave the rate for another gain */
	}
}

CC_FN u32 cc_bbr_undo(struct cc_bbr_state *st, const struct cc_ack *a)
{
	(void)a;
	cc_bbr_reset_full_bw(st);
	st->flags &= ~CC_BBR_LOSS_IN_ROUND;
	st->bw_lo = cc_max(st->bw_lo, st->undo_bw_lo);
	st->inflight_lo = cc_max(st->inflight_lo, st->undo_inflight_lo);
	st->inflight_hi = cc_max(st->inflight_hi, st->undo_inflight_hi);
	return cc_max(st->prior_cwnd, CC_MIN_CWND);
}

CC_FN void cc_bbr_read(const struct cc_bbr_state *st, const struct cc_bbr_params *p, const struct cc_ack *a,
		       struct cc_bbr_stats *s)
{
	s->mode = st->mode;
	s->bw_kbps = cc_bbr_kbps(cc_bbr_bw(st), a->mss_bytes);
	s->max_bw_kbps = cc_bbr_kbps(cc_bbr_max_bw(st), a->mss_bytes);
	s->min_rtt_us = st->min_rtt_us;
	s->bdp_pkts = cc_bbr_bdp(st, cc_bbr_bw(st), CC_BBR_UNIT);
	s->inflight_hi_pkts = st->inflight_hi;
	s->inflight_lo_pkts = st->inflight_lo;
	s->extra_acked_pkts = cc_bbr_extra_acked(st);
	s->ecn_alpha = st->ecn_alpha;
	s->full_pipe = (st->flags & CC_BBR_FULL_BW_REACHED) != 0;
	s->pacing_gain = cc_bbr_pacing_gain(st->mode, p);
	s->cwnd_gain = cc_bbr_cwnd_gain(st->mode, p);
	s->bw_lo_kbps = st->bw_lo == CC_BBR_INFINITY ? CC_BBR_INFINITY : cc_bbr_kbps(st->bw_lo, a->mss_bytes);
	s->cwnd_pkts = a->cwnd_pkts;
	s->inflight_pkts = a->inflight_pkts;
}

/* Defines the functions of core NAME with the parameters, statistics and state of this file. */
#define CC_BBR_CORE(NAME, VERSION)										\
CC_FN int cc_##NAME##_check(const struct cc_##NAME##_params *p, struct cc_fault *fault)				\
{														\
	return cc_check_ranges(cc_##NAME##_table, (const u32 *)p, CC_PARAM_COUNT(NAME), fault);			\
}														\
CC_FN const struct cc_bbr_params *cc_##NAME##_of(const struct cc_##NAME##_params *p)				\
{														\
	return (const struct cc_bbr_params *)p;									\
}														\
CC_FN void cc_##NAME##_init(struct cc_##NAME##_state *st, const struct cc_##NAME##_params *p,			\
			const struct cc_ack *a, struct cc_out *out)						\
{														\
	cc_bbr_init(&st->bbr, cc_##NAME##_of(p), VERSION, a, out);						\
}														\
CC_FN u32 cc_##NAME##_on_sample(struct cc_##NAME##_state *st, const struct cc_##NAME##_params *p,		\
			    const struct cc_ack *a)								\
{														\
	(void)st;												\
	(void)p;												\
	(void)a;												\
	return 0;												\
}														\
CC_FN int cc_##NAME##_may_take_fast_path(const struct cc_##NAME##_state *st, const struct cc_##NAME##_params *p)	\
{														\
	return cc_bbr_may_take_fast_path(&st->bbr, cc_##NAME##_of(p), VERSION);					\
}														\
CC_FN int cc_##NAME##_takes_fast_path(const struct cc_##NAME##_state *st, const struct cc_##NAME##_params *p,	\
				      const struct cc_ack *a)							\
{														\
	return cc_bbr_takes_fast_path(&st->bbr, cc_##NAME##_of(p), a);						\
}														\
CC_FN void cc_##NAME##_on_fast_ack(struct cc_##NAME##_state *st, const struct cc_##NAME##_params *p,		\
			       const struct cc_ack *a, struct cc_out *out)					\
{														\
	cc_bbr_on_fast_ack(&st->bbr, cc_##NAME##_of(p), VERSION, a, out);					\
}														\
CC_FN void cc_##NAME##_on_slow_ack(struct cc_##NAME##_state *st, const struct cc_##NAME##_params *p,		\
			       const struct cc_ack *a, struct cc_out *out)					\
{														\
	cc_bbr_on_slow_ack(&st->bbr, cc_##NAME##_of(p), VERSION, a, out);					\
}														\
CC_FN void cc_##NAME##_on_ack(struct cc_##NAME##_state *st, const struct cc_##NAME##_params *p,			\
			  const struct cc_ack *a, struct cc_out *out)						\
{														\
	cc_bbr_on_ack(&st->bbr, cc_##NAME##_of(p), VERSION, a, out);						\
}														\
CC_FN u32 cc_##NAME##_on_loss(struct cc_##NAME##_state *st, const struct cc_##NAME##_params *p,			\
			  const struct cc_ack *a)								\
{														\
	(void)p;												\
	return cc_bbr_on_loss(&st->bbr, a);									\
}														\
CC_FN int cc_##NAME##_draws(const struct cc_##NAME##_state *st, const struct cc_ack *a)				\
{														\
	(void)a;												\
	return cc_bbr_draws(&st->bbr);										\
}														\
CC_FN int cc_##NAME##_reads_probe(const struct cc_##NAME##_state *st)						\
{														\
	return cc_bbr_reads_probe(&st->bbr);									\
}														\
CC_FN int cc_##NAME##_reacts_to(const struct cc_##NAME##_state *st, u32 event, u32 app_limited)			\
{														\
	return cc_bbr_reacts_to(&st->bbr, event, app_limited);							\
}														\
CC_FN void cc_##NAME##_on_event(struct cc_##NAME##_state *st, const struct cc_##NAME##_params *p, u32 event,	\
			    const struct cc_ack *a, struct cc_out *out)						\
{														\
	cc_bbr_on_event(&st->bbr, cc_##NAME##_of(p), VERSION, event, a, out);					\
}														\
CC_FN u32 cc_##NAME##_undo(struct cc_##NAME##_state *st, const struct cc_##NAME##_params *p,			\
		       const struct cc_ack *a)									\
{														\
	(void)p;												\
	return cc_bbr_undo(&st->bbr, a);									\
}														\
CC_FN void cc_##NAME##_read(const struct cc_##NAME##_state *st, const struct cc_##NAME##_params *p,		\
			const struct cc_ack *a, struct cc_##NAME##_stats *s)					\
{														\
	cc_bbr_read(&st->bbr, cc_##NAME##_of(p), a, (struct cc_bbr_stats *)s);					\
}

#endif
