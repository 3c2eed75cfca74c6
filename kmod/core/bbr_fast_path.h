/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The fast path of BBRv2 and BBRv3. Most ACKs of a connection arrive in CRUISE and bring nothing new but a sample. For them, the general
 * path, cc_bbr_on_slow_ack(), gives the same result with twice the instructions: it tests for every step whether it is due, and keeps the
 * sample in memory for the BPF verifier. The fast path has few enough values to keep them in registers.
 *
 * Units: as in bbr_model.h.
 */
#ifndef CC_BBR_FAST_PATH_H
#define CC_BBR_FAST_PATH_H

#include "bbr_common.h"

/* Whether ACKs may take the fast path: in CRUISE, without losses, reactions to ECN or packets of probes in flight. */
CC_FN int cc_bbr_may_take_fast_path(const struct cc_bbr_state *st, const struct cc_bbr_params *p, u32 version)
{
	u32 full = cc_bbr_full_flags(version);
	u32 none = CC_BBR_LOSS_IN_ROUND | CC_BBR_ECN_IN_ROUND | CC_BBR_ECN_ELIGIBLE | CC_BBR_LOW_RATE | CC_BBR_CA_STATE_CHANGED;
	struct cc_bbr_state cruise = {.mode = CC_BBR_PROBE_BW_CRUISE, .last_mode = CC_BBR_PROBE_BW_CRUISE, .ack_phase = CC_BBR_ACKS_INIT};

	return st->phase == cruise.phase && (st->flags & (full | none)) == full && p->extra_acked_gain &&
	       (version != 2 || st->bw_hi == CC_BBR_INFINITY);
}

/*
 * Whether this ACK then takes it: it has a rate and an RTT sample, no ECN, and nothing new for the steps that the fast path omits. These
 * are losses, upper bounds, PROBE_RTT, a change of rate or MSS, and the next probe for bandwidth.
 */
CC_FN int cc_bbr_takes_fast_path(const struct cc_bbr_state *st, const struct cc_bbr_params *p, const struct cc_ack *a)
{
	return !(a->flags & CC_ECN) && a->total_lost_pkts == st->last_total_lost && !a->lost_pkts &&
	       a->delivered_ce_pkts == st->last_delivered_ce && !a->rate_delivered_ce_pkts && a->acked_pkts && a->rtt_us &&
	       a->rate_delivered_pkts && a->rate_interval_us && a->rate_delivered_pkts <= st->inflight_hi &&
	       cc_bbr_has_tso_segs_goal(st, a->mss_bytes, a->pacing_bytes_per_sec) && !cc_bbr_is_probe_rtt_due(st, p, a) &&
	       !cc_bbr_is_time_to_probe_bw(st, p, a, st->rounds_since_bw_probe + 1u);
}

/* In the fast path, the pacing rate is the one from the bandwidth. Returns inflight_cap. */
CC_STEP u32 cc_bbr_take_fast_inputs(struct cc_bbr_state *st, const struct cc_bbr_params *p, u32 version, u32 bw, u32 mss_bytes)
{
	u32 cap = cc_bbr_take_inputs(st, p, bw, mss_bytes);

	cc_bbr_set_tso_segs_goal(st, mss_bytes, st->rate, version, 1);
	return cap;
}

/* The steps of cc_bbr_on_slow_ack() that remain for such an ACK. */
CC_FN void cc_bbr_on_fast_ack(struct cc_bbr_state *st, const struct cc_bbr_params *p, u32 version, const struct cc_ack *a,
			      struct cc_out *out)
{
	struct cc_bbr_rs rs = {
		.delivered = a->rate_delivered_pkts, .bw = cc_bbr_sample_bw(a), .app_limited = (a->flags & CC_APP_LIMITED) != 0,
	};
	u32 bw;

	cc_keep(a, out);
	st->flags &= ~CC_BBR_IDLE_RESTART; /* only where PROBE_RTT is due, it changes more */
	st->last_prior_delivered = a->rate_prior_delivered_pkts;
	if (!cc_bbr_before(a->rate_prior_delivered_pkts, st->next_round_delivered)) {
		cc_bbr_start_round(st, a);
		cc_bbr_advance_extra_acked(st, CC_BBR_FULL_BW_REACHED);
		out->flags = CC_OUT_ROUND;
	}
	cc_bbr_update_latest_delivery_signals(st, a, &rs);
	if (rs.loss_round_start)
		cc_bbr_advance_latest_delivery_signals(st, &rs);
	cc_bbr_update_max_bw(st, &rs);
	bw = cc_bbr_bw_of(st, version);
	cc_bbr_update_ack_aggregation(st, bw, a);
	cc_bbr_filter_min_rtt(st, p, a, version, 0);
	if (cc_bbr_inputs_changed(st, p, bw, CC_BBR_PROBE_BW_CRUISE, a))
		st->inflight_cap = cc_bbr_take_fast_inputs(st, p, version, bw, a->mss_bytes);
	out->cwnd_pkts = cc_bbr_set_cwnd(st, p, CC_BBR_PROBE_BW_CRUISE, CC_BBR_FULL_BW_REACHED, a, a->cwnd_pkts);
	if (st->rate != a->pacing_bytes_per_sec)
		out->pacing_bytes_per_sec = st->rate;
}

CC_STEP u32 cc_bbr_fast_step(struct cc_bbr_state *st, const struct cc_bbr_params *p, u32 version, const struct cc_ack *restrict a,
			     struct cc_out *out)
{
	cc_bbr_on_fast_ack(st, p, version, a, out);
	return out->flags;
}

/* Handles an ACK on the path that it takes. */
CC_FN void cc_bbr_on_ack(struct cc_bbr_state *st, const struct cc_bbr_params *p, u32 version, const struct cc_ack *a, struct cc_out *out)
{
	if (cc_bbr_may_take_fast_path(st, p, version) && cc_bbr_takes_fast_path(st, p, a))
		out->flags = cc_bbr_fast_step(st, p, version, a, out);
	else
		cc_bbr_on_slow_ack(st, p, version, a, out);
}

#endif
