/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Common to BBRv2-like and BBRv3-like: state machine, pacing rate and cwnd, on bbr_model.h. bbr2.h and bbr3.h list
 * the sources and the differences from them.
 *
 *   [STARTUP] -- pipe full, or loss or CE too high --> [DRAIN] -- in flight <= BDP --+
 *                                                                                    v
 *      +----> [UP] -- too high, or long enough, or no more bandwidth ------------> [DOWN]
 *      |                                                                             | in flight <= BDP and headroom
 *   [REFILL] <--- time to probe (also from DOWN) --- [CRUISE] <----------------------+
 *
 *   any -- no lower RTT for probe_rtt_interval --> [PROBE_RTT] -- probe_rtt_ms and a round --> [CRUISE] or [STARTUP]
 *
 * Units: as in bbr_model.h.
 */
#ifndef CC_BBR_H
#define CC_BBR_H

#include "bbr_model.h"

CC_FN u32 cc_bbr_pacing_gain(const struct cc_bbr_state *st, const struct cc_bbr_params *p)
{
	if (st->mode == CC_BBR_STARTUP)
		return p->startup_pacing_gain;
	if (st->mode == CC_BBR_DRAIN)
		return p->drain_gain;
	if (st->mode == CC_BBR_PROBE_BW_DOWN)
		return p->down_gain;
	return st->mode == CC_BBR_PROBE_BW_UP ? p->up_gain : 1000;
}

CC_FN u32 cc_bbr_cwnd_gain(const struct cc_bbr_state *st, const struct cc_bbr_params *p)
{
	if (st->mode == CC_BBR_STARTUP || st->mode == CC_BBR_DRAIN)
		return p->startup_cwnd_gain;
	if (st->mode == CC_BBR_PROBE_RTT)
		return 1000;
	return st->mode == CC_BBR_PROBE_BW_UP ? p->up_cwnd_gain : p->cwnd_gain;
}

CC_FN u64 cc_bbr_pacing_rate(const struct cc_bbr_state *st, const struct cc_bbr_params *p,
			const struct cc_ack *a)
{
	u64 rate = cc_bbr_bytes_per_sec(cc_bbr_bw(st), a->mss_bytes, cc_bbr_pacing_gain(st, p));

	rate = cc_div64(rate * cc_minus(100, p->margin_pct), 100);
	if (!(st->flags & CC_BBR_FULL_BW_REACHED) && rate <= a->pacing_bytes_per_sec)
		return 0; /* the pacing rate does not decrease in STARTUP */
	return rate;
}

CC_FN void cc_bbr_start_probe_bw_down(struct cc_bbr_state *st, const struct cc_bbr_params *p,
			     const struct cc_ack *a)
{
	u64 extra_us = ((u64)cc_min(p->wait_random_ms, 60000) * 1000 * (a->random >> 1)) >> 31;

	st->mode = CC_BBR_PROBE_BW_DOWN;
	st->cycle_stamp_us = (u32)a->now_us;
	st->bw_probe_wait_us = cc_min(p->wait_ms, 60000) * 1000 + (u32)extra_us;
	st->rounds_since_bw_probe = a->random & 1;
	st->next_round_delivered = a->delivered_pkts;
	st->flags |= CC_BBR_PROBE_STOPPING;
}

CC_FN void cc_bbr_start_probe_bw_refill(struct cc_bbr_state *st, const struct cc_ack *a)
{
	cc_bbr_reset_lower_bounds(st);
	st->mode = CC_BBR_PROBE_BW_REFILL;
	st->bw_probe_up_rounds = 0;
	st->bw_probe_up_acks = 0;
	st->next_round_delivered = a->delivered_pkts;
}

CC_FN void cc_bbr_start_probe_bw_up(struct cc_bbr_state *st, const struct cc_ack *a)
{
	st->mode = CC_BBR_PROBE_BW_UP;
	st->flags &= (u8)~CC_BBR_FULL_BW_NOW;
	st->flags |= CC_BBR_PROBE_SAMPLES;
	st->full_bw = cc_bbr_bw(st);
	st->full_bw_count = 0;
	st->cycle_stamp_us = (u32)a->now_us;
	st->next_round_delivered = a->delivered_pkts;
}

CC_FN u32 cc_bbr_inflight_with_headroom(const struct cc_bbr_state *st, const struct cc_bbr_params *p)
{
	u32 free;

	if (st->inflight_hi == CC_BBR_INFINITY)
		return CC_BBR_INFINITY;
	free = cc_max(cc_scale(st->inflight_hi, p->headroom_pct, 100), 1);
	return cc_max(cc_minus(st->inflight_hi, free), CC_BBR_MIN_CWND);
}

/*
 * While packets of a probe are acknowledged: returns 1, once per probe, if inflight is too high; otherwise raises
 * inflight_hi.
 */
CC_STEP int cc_bbr_adapt_upper_bounds(struct cc_bbr_state *st, const struct cc_bbr_params *p,
			       const struct cc_ack *a, int round_start)
{
	int too_high = (u64)st->lost_in_round * 1000 > (u64)p->loss_permille * st->max_inflight_in_round;
	u32 target, volume;

	if (cc_bbr_ecn(st, p, a) && (u64)cc_bbr_ce_ratio(st, a) * 100 > (u64)p->ecn_thresh_pct * 1024)
		too_high = 1;
	if (too_high && st->lost_in_round + st->max_inflight_in_round) {
		if (!(st->flags & CC_BBR_PROBE_SAMPLES))
			return 0;
		st->flags &= (u8)~CC_BBR_PROBE_SAMPLES;
		st->flags |= CC_BBR_PREV_PROBE_TOO_HIGH;
		target = cc_min(cc_bbr_bdp(st, cc_bbr_bw(st), 1000), a->cwnd_pkts);
		target = cc_scale(target, cc_minus(100, p->cut_pct), 100);
		st->inflight_hi = cc_max(st->max_inflight_in_round, cc_max(target, CC_BBR_MIN_CWND));
		return 1;
	}
	if (st->inflight_hi == CC_BBR_INFINITY)
		return 0;
	if ((st->flags & CC_BBR_PROBE_SAMPLES) && a->prior_inflight_pkts > st->inflight_hi)
		st->inflight_hi = a->prior_inflight_pkts;
	if (st->mode != CC_BBR_PROBE_BW_UP)
		return 0;
	if (round_start && st->bw_probe_up_rounds < 30)
		st->bw_probe_up_rounds++;
	if (!(a->flags & CC_CWND_LIMITED) || a->cwnd_pkts < st->inflight_hi)
		return 0;
	/* Add one packet per `volume` packets acked; the volume halves every round. */
	volume = cc_max(a->cwnd_pkts >> cc_min(st->bw_probe_up_rounds, 30), 1);
	st->bw_probe_up_acks = cc_u32((u64)st->bw_probe_up_acks + a->acked_pkts);
	if (st->bw_probe_up_acks < volume)
		return 0;
	target = (u32)cc_div64(st->bw_probe_up_acks, volume);
	st->bw_probe_up_acks -= target * volume;
	st->inflight_hi = cc_min(cc_u32((u64)st->inflight_hi + target), CC_INFINITE);
	return 0;
}

CC_FN int cc_bbr_is_time_to_probe_bw(const struct cc_bbr_state *st, const struct cc_bbr_params *p,
			       const struct cc_ack *a)
{
	u32 rounds = cc_min(p->wait_rounds, cc_bbr_bdp(st, cc_bbr_bw(st), 1000));

	return (u32)a->now_us - st->cycle_stamp_us >= st->bw_probe_wait_us || st->rounds_since_bw_probe >= rounds;
}

/* Whether PROBE_BW_UP ends. v2: after a min_rtt and with a queue of a quarter BDP. v3: bandwidth stopped growing. */
CC_FN int cc_bbr_is_time_to_go_down(struct cc_bbr_state *st, const struct cc_bbr_params *p, u32 version,
			 const struct cc_ack *a)
{
	int at_bound = st->inflight_hi != CC_BBR_INFINITY && a->inflight_pkts >= st->inflight_hi;

	if ((st->flags & CC_BBR_PREV_PROBE_TOO_HIGH) && at_bound)
		return 1;
	if (version == 2)
		return (u32)a->now_us - st->cycle_stamp_us > st->min_rtt_us &&
		       a->inflight_pkts >= cc_bbr_bdp(st, cc_bbr_bw(st), p->up_gain);
	if ((a->flags & CC_CWND_LIMITED) && a->cwnd_pkts >= st->inflight_hi) {
		st->full_bw_count = 0;
		st->full_bw = cc_bbr_bw(st);
		return 0;
	}
	return (st->flags & CC_BBR_FULL_BW_NOW) != 0;
}

CC_FN void cc_bbr_update_state(struct cc_bbr_state *st, const struct cc_bbr_params *p, u32 version,
			const struct cc_ack *a, int round_start)
{
	u32 bdp = cc_bbr_bdp(st, cc_bbr_bw(st), 1000);

	if (st->mode == CC_BBR_STARTUP && (st->flags & CC_BBR_FULL_BW_REACHED))
		st->mode = CC_BBR_DRAIN;
	if (st->mode == CC_BBR_DRAIN && a->inflight_pkts <= bdp)
		cc_bbr_start_probe_bw_down(st, p, a);
	if (st->mode == CC_BBR_STARTUP || st->mode == CC_BBR_DRAIN || st->mode == CC_BBR_PROBE_RTT)
		return;
	if (cc_bbr_adapt_upper_bounds(st, p, a, round_start) && st->mode == CC_BBR_PROBE_BW_UP)
		cc_bbr_start_probe_bw_down(st, p, a);
	if (st->mode == CC_BBR_PROBE_BW_DOWN || st->mode == CC_BBR_PROBE_BW_CRUISE) {
		if (cc_bbr_is_time_to_probe_bw(st, p, a))
			cc_bbr_start_probe_bw_refill(st, a);
		else if (a->inflight_pkts <= cc_min(bdp, cc_bbr_inflight_with_headroom(st, p)))
			st->mode = CC_BBR_PROBE_BW_CRUISE;
	} else if (st->mode == CC_BBR_PROBE_BW_REFILL) {
		if (round_start)
			cc_bbr_start_probe_bw_up(st, a);
	} else if (cc_bbr_is_time_to_go_down(st, p, version, a)) {
		st->flags &= (u8)~CC_BBR_PREV_PROBE_TOO_HIGH;
		cc_bbr_start_probe_bw_down(st, p, a);
	}
}

CC_FN void cc_bbr_save_cwnd(struct cc_bbr_state *st, const struct cc_ack *a)
{
	st->prior_cwnd = (st->flags & CC_BBR_PRIOR_CWND_SAVED) ? cc_max(st->prior_cwnd, a->cwnd_pkts) : a->cwnd_pkts;
	st->flags |= CC_BBR_PRIOR_CWND_SAVED;
}

CC_FN u32 cc_bbr_restore_cwnd(struct cc_bbr_state *st, const struct cc_ack *a)
{
	u32 cwnd = a->cwnd_pkts;

	if (st->flags & CC_BBR_PRIOR_CWND_SAVED)
		cwnd = cc_max(cwnd, st->prior_cwnd);
	st->flags &= (u8)~CC_BBR_PRIOR_CWND_SAVED;
	return cc_bound_cwnd(a, cwnd);
}

CC_FN u32 cc_bbr_probe_rtt_cwnd(const struct cc_bbr_state *st, const struct cc_bbr_params *p)
{
	return cc_max(cc_bbr_bdp(st, cc_bbr_bw(st), p->probe_rtt_cwnd_pct * 10), CC_BBR_MIN_CWND);
}

/* Returns cwnd: unchanged, or restored at the end of PROBE_RTT. */
CC_FN u32 cc_bbr_handle_probe_rtt(struct cc_bbr_state *st, const struct cc_bbr_params *p,
			   const struct cc_ack *a, int round_start)
{
	u32 now_us = (u32)a->now_us, cwnd;

	if (!st->probe_rtt_done_stamp_us) {
		if (a->inflight_pkts > cc_bbr_probe_rtt_cwnd(st, p))
			return a->cwnd_pkts;
		st->probe_rtt_done_stamp_us = (now_us + cc_min(p->probe_rtt_ms, 5000) * 1000) | 1;
		st->flags &= (u8)~CC_BBR_PROBE_RTT_ROUND_DONE;
		st->next_round_delivered = a->delivered_pkts;
		return a->cwnd_pkts;
	}
	if (round_start)
		st->flags |= CC_BBR_PROBE_RTT_ROUND_DONE;
	if (!(st->flags & CC_BBR_PROBE_RTT_ROUND_DONE) || !cc_after(now_us, st->probe_rtt_done_stamp_us))
		return a->cwnd_pkts;
	st->probe_rtt_min_stamp_us = now_us;
	cwnd = cc_bbr_restore_cwnd(st, a);
	cc_bbr_reset_lower_bounds(st);
	if (st->flags & CC_BBR_FULL_BW_REACHED) {
		cc_bbr_start_probe_bw_down(st, p, a);
		st->mode = CC_BBR_PROBE_BW_CRUISE;
	} else {
		st->mode = CC_BBR_STARTUP;
	}
	return cwnd;
}

/* Updates min_rtt, and enters or handles PROBE_RTT. Returns cwnd. */
CC_STEP u32 cc_bbr_update_min_rtt(struct cc_bbr_state *st, const struct cc_bbr_params *p,
		       const struct cc_ack *a, int round_start)
{
	u32 now_us = (u32)a->now_us, cwnd = a->cwnd_pkts;
	int stale = now_us - st->probe_rtt_min_stamp_us > cc_min(p->probe_rtt_interval_ms, 60000) * 1000;
	int old = now_us - st->min_rtt_stamp_us > cc_min(p->min_rtt_window_ms, 60000) * 1000;

	if (a->rtt_us && (a->rtt_us <= st->probe_rtt_min_us || stale)) {
		st->probe_rtt_min_us = a->rtt_us;
		st->probe_rtt_min_stamp_us = now_us;
	}
	if (st->probe_rtt_min_us <= st->min_rtt_us || old) {
		st->min_rtt_us = st->probe_rtt_min_us;
		st->min_rtt_stamp_us = st->probe_rtt_min_stamp_us;
	}
	if (stale && !(st->flags & CC_BBR_IDLE_RESTART) && st->mode != CC_BBR_PROBE_RTT) {
		st->mode = CC_BBR_PROBE_RTT;
		st->probe_rtt_done_stamp_us = 0;
		cc_bbr_save_cwnd(st, a);
	}
	if (st->mode == CC_BBR_PROBE_RTT)
		cwnd = cc_bbr_handle_probe_rtt(st, p, a, round_start);
	if (a->acked_pkts)
		st->flags &= (u8)~CC_BBR_IDLE_RESTART;
	return cwnd;
}

/* Three bursts in addition to the BDP, to keep the pipe full despite ACK aggregation. */
CC_FN u32 cc_bbr_offload_budget(const struct cc_ack *a)
{
	u64 burst = cc_div64(a->pacing_bytes_per_sec >> 10, a->mss_bytes ? a->mss_bytes : 1);

	return 3 * cc_min(cc_max(cc_u32(burst), 2), 44);
}

CC_STEP u32 cc_bbr_set_cwnd(const struct cc_bbr_state *st, const struct cc_bbr_params *p,
			  const struct cc_ack *a, u32 cwnd)
{
	u64 target = (u64)cc_bbr_bdp(st, cc_bbr_bw(st), cc_bbr_cwnd_gain(st, p)) + cc_bbr_offload_budget(a);
	u64 grown = (u64)cwnd + a->acked_pkts;
	u32 cap = CC_BBR_INFINITY;

	if (st->flags & CC_BBR_FULL_BW_REACHED)
		cwnd = cc_u32(grown < target ? grown : target);
	else if (cwnd < target || st->min_rtt_us == CC_NO_RTT)
		cwnd = cc_u32(grown);
	if (st->mode == CC_BBR_PROBE_BW_CRUISE || st->mode == CC_BBR_PROBE_RTT)
		cap = cc_bbr_inflight_with_headroom(st, p);
	else if (st->mode != CC_BBR_STARTUP && st->mode != CC_BBR_DRAIN)
		cap = st->inflight_hi;
	cap = cc_min(cap, st->inflight_lo);
	if (st->mode == CC_BBR_PROBE_RTT)
		cap = cc_min(cap, cc_bbr_probe_rtt_cwnd(st, p));
	cwnd = cc_min(cwnd, cc_max(cap, CC_BBR_MIN_CWND));
	return cc_bound_cwnd(a, cc_max(cwnd, CC_BBR_MIN_CWND));
}

CC_FN void cc_bbr_on_ack(struct cc_bbr_state *st, const struct cc_bbr_params *p, u32 version,
			 const struct cc_ack *a, struct cc_out *out)
{
	int round_start;

	cc_keep(a, out);
	round_start = cc_bbr_update_model(st, p, a);
	cc_bbr_update_state(st, p, version, a, round_start);
	out->cwnd_pkts = cc_bbr_set_cwnd(st, p, a, cc_bbr_update_min_rtt(st, p, a, round_start));
	out->pacing_bytes_per_sec = cc_bbr_pacing_rate(st, p, a);
	if (round_start)
		out->flags |= CC_OUT_ROUND;
}

/* BBR does not use ssthresh: it stays. Saves cwnd to restore it after recovery. */
CC_FN u32 cc_bbr_on_loss(struct cc_bbr_state *st, const struct cc_ack *a)
{
	cc_bbr_save_cwnd(st, a);
	return cc_min(cc_max(a->ssthresh_pkts, CC_MIN_CWND), CC_INFINITE);
}

CC_FN void cc_bbr_on_event(struct cc_bbr_state *st, u32 event, const struct cc_ack *a,
			   struct cc_out *out)
{
	cc_keep(a, out);
	if (event == CC_EVENT_RTO) {
		st->full_bw = 0;
		st->full_bw_count = 0;
	} else if (event == CC_EVENT_OPEN && st->mode != CC_BBR_PROBE_RTT) {
		out->cwnd_pkts = cc_bbr_restore_cwnd(st, a);
	} else if (event == CC_EVENT_TX_START && (a->flags & CC_APP_LIMITED)) {
		st->flags |= CC_BBR_IDLE_RESTART;
	}
}

CC_FN u32 cc_bbr_undo(struct cc_bbr_state *st, const struct cc_ack *a)
{
	st->full_bw = 0;
	st->full_bw_count = 0;
	cc_bbr_reset_lower_bounds(st);
	return cc_max(cc_max(a->cwnd_pkts, st->prior_cwnd), CC_MIN_CWND);
}

CC_FN void cc_bbr_read(const struct cc_bbr_state *st, const struct cc_ack *a, struct cc_bbr_stats *s)
{
	s->mode = st->mode;
	s->bw_kbps = cc_bbr_kbps(cc_bbr_bw(st), a->mss_bytes);
	s->max_bw_kbps = cc_bbr_kbps(cc_bbr_max_bw(st), a->mss_bytes);
	s->min_rtt_us = st->min_rtt_us;
	s->bdp_pkts = cc_bbr_bdp(st, cc_bbr_bw(st), 1000);
	s->inflight_hi_pkts = st->inflight_hi;
	s->inflight_lo_pkts = st->inflight_lo;
	s->ecn_alpha = st->ecn_alpha;
	s->full_pipe = (st->flags & CC_BBR_FULL_BW_REACHED) != 0;
}

#endif
