/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What BBRv2-like and BBRv3-like share: the state machine, pacing and window, on bbr_model.h. See bbr2.h
 * and bbr3.h for sources and for what differs from them.
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
	if (st->mode == CC_BBR_DOWN)
		return p->down_gain;
	return st->mode == CC_BBR_UP ? p->up_gain : 1000;
}

CC_FN u32 cc_bbr_cwnd_gain(const struct cc_bbr_state *st, const struct cc_bbr_params *p)
{
	if (st->mode == CC_BBR_STARTUP || st->mode == CC_BBR_DRAIN)
		return p->startup_cwnd_gain;
	if (st->mode == CC_BBR_PROBE_RTT)
		return 1000;
	return st->mode == CC_BBR_UP ? p->up_cwnd_gain : p->cwnd_gain;
}

CC_FN u64 cc_bbr_pacing(const struct cc_bbr_state *st, const struct cc_bbr_params *p,
			const struct cc_ack *a)
{
	u64 rate = cc_bbr_bytes_per_sec(cc_bbr_bw(st), a->mss_bytes, cc_bbr_pacing_gain(st, p));

	rate = cc_div64(rate * cc_minus(100, p->margin_pct), 100);
	if (!(st->is & CC_BBR_FULL) && rate <= a->pacing_bytes_per_sec)
		return 0; /* STARTUP only speeds up */
	return rate;
}

CC_FN void cc_bbr_start_down(struct cc_bbr_state *st, const struct cc_bbr_params *p,
			     const struct cc_ack *a)
{
	u64 extra_us = ((u64)cc_min(p->wait_random_ms, 60000) * 1000 * (a->random >> 1)) >> 31;

	st->mode = CC_BBR_DOWN;
	st->cycle_at_us = (u32)a->now_us;
	st->wait_us = cc_min(p->wait_ms, 60000) * 1000 + (u32)extra_us;
	st->rounds_since_probe = a->random & 1;
	st->round_end_pkts = a->delivered_pkts;
	st->is |= CC_BBR_STOPPING;
}

CC_FN void cc_bbr_start_refill(struct cc_bbr_state *st, const struct cc_ack *a)
{
	cc_bbr_no_lower_bounds(st);
	st->mode = CC_BBR_REFILL;
	st->up_rounds = 0;
	st->up_acked = 0;
	st->round_end_pkts = a->delivered_pkts;
}

CC_FN void cc_bbr_start_up(struct cc_bbr_state *st, const struct cc_ack *a)
{
	st->mode = CC_BBR_UP;
	st->is &= (u8)~CC_BBR_PLATEAU;
	st->is |= CC_BBR_PROBING;
	st->full_bw = cc_bbr_bw(st);
	st->full_count = 0;
	st->cycle_at_us = (u32)a->now_us;
	st->round_end_pkts = a->delivered_pkts;
}

CC_FN u32 cc_bbr_headroom(const struct cc_bbr_state *st, const struct cc_bbr_params *p)
{
	u32 free;

	if (st->inflight_hi == CC_BBR_NONE)
		return CC_BBR_NONE;
	free = cc_max(cc_scale(st->inflight_hi, p->headroom_pct, 100), 1);
	return cc_max(cc_minus(st->inflight_hi, free), CC_BBR_MIN_CWND);
}

/*
 * While a probe's packets are acknowledged: has it put too much in flight (returns 1, the first time), or may it
 * put more?
 */
CC_STEP int cc_bbr_upper_bound(struct cc_bbr_state *st, const struct cc_bbr_params *p,
			       const struct cc_ack *a, int round_start)
{
	int too_high = (u64)st->round_lost * 1000 > (u64)p->loss_permille * st->round_inflight;
	u32 target, volume;

	if (cc_bbr_ecn(st, p, a) && (u64)cc_bbr_ce_share(st, a) * 100 > (u64)p->ecn_thresh_pct * 1024)
		too_high = 1;
	if (too_high && st->round_lost + st->round_inflight) {
		if (!(st->is & CC_BBR_PROBING))
			return 0;
		st->is &= (u8)~CC_BBR_PROBING;
		st->is |= CC_BBR_TOO_HIGH;
		target = cc_min(cc_bbr_bdp(st, cc_bbr_bw(st), 1000), a->cwnd_pkts);
		target = cc_scale(target, cc_minus(100, p->cut_pct), 100);
		st->inflight_hi = cc_max(st->round_inflight, cc_max(target, CC_BBR_MIN_CWND));
		return 1;
	}
	if (st->inflight_hi == CC_BBR_NONE)
		return 0;
	if ((st->is & CC_BBR_PROBING) && a->prior_inflight_pkts > st->inflight_hi)
		st->inflight_hi = a->prior_inflight_pkts;
	if (st->mode != CC_BBR_UP)
		return 0;
	if (round_start && st->up_rounds < 30)
		st->up_rounds++;
	if (!(a->flags & CC_CWND_LIMITED) || a->cwnd_pkts < st->inflight_hi)
		return 0;
	/* One packet more per volume acked, and the volume halves every round. */
	volume = cc_max(a->cwnd_pkts >> cc_min(st->up_rounds, 30), 1);
	st->up_acked = cc_u32((u64)st->up_acked + a->acked_pkts);
	if (st->up_acked < volume)
		return 0;
	target = (u32)cc_div64(st->up_acked, volume);
	st->up_acked -= target * volume;
	st->inflight_hi = cc_min(cc_u32((u64)st->inflight_hi + target), CC_INFINITE);
	return 0;
}

CC_FN int cc_bbr_time_to_probe(const struct cc_bbr_state *st, const struct cc_bbr_params *p,
			       const struct cc_ack *a)
{
	u32 rounds = cc_min(p->wait_rounds, cc_bbr_bdp(st, cc_bbr_bw(st), 1000));

	return (u32)a->now_us - st->cycle_at_us >= st->wait_us || st->rounds_since_probe >= rounds;
}

/* Has UP gone on for long enough? v2: a min RTT, and a queue of a quarter BDP. v3: no more bandwidth. */
CC_FN int cc_bbr_up_done(struct cc_bbr_state *st, const struct cc_bbr_params *p, u32 version,
			 const struct cc_ack *a)
{
	int at_bound = st->inflight_hi != CC_BBR_NONE && a->inflight_pkts >= st->inflight_hi;

	if ((st->is & CC_BBR_TOO_HIGH) && at_bound)
		return 1;
	if (version == 2)
		return (u32)a->now_us - st->cycle_at_us > st->min_rtt_us &&
		       a->inflight_pkts >= cc_bbr_bdp(st, cc_bbr_bw(st), p->up_gain);
	if ((a->flags & CC_CWND_LIMITED) && a->cwnd_pkts >= st->inflight_hi) {
		st->full_count = 0;
		st->full_bw = cc_bbr_bw(st);
		return 0;
	}
	return (st->is & CC_BBR_PLATEAU) != 0;
}

CC_FN void cc_bbr_cycle(struct cc_bbr_state *st, const struct cc_bbr_params *p, u32 version,
			const struct cc_ack *a, int round_start)
{
	u32 bdp = cc_bbr_bdp(st, cc_bbr_bw(st), 1000);

	if (st->mode == CC_BBR_STARTUP && (st->is & CC_BBR_FULL))
		st->mode = CC_BBR_DRAIN;
	if (st->mode == CC_BBR_DRAIN && a->inflight_pkts <= bdp)
		cc_bbr_start_down(st, p, a);
	if (st->mode == CC_BBR_STARTUP || st->mode == CC_BBR_DRAIN || st->mode == CC_BBR_PROBE_RTT)
		return;
	if (cc_bbr_upper_bound(st, p, a, round_start) && st->mode == CC_BBR_UP)
		cc_bbr_start_down(st, p, a);
	if (st->mode == CC_BBR_DOWN || st->mode == CC_BBR_CRUISE) {
		if (cc_bbr_time_to_probe(st, p, a))
			cc_bbr_start_refill(st, a);
		else if (a->inflight_pkts <= cc_min(bdp, cc_bbr_headroom(st, p)))
			st->mode = CC_BBR_CRUISE;
	} else if (st->mode == CC_BBR_REFILL) {
		if (round_start)
			cc_bbr_start_up(st, a);
	} else if (cc_bbr_up_done(st, p, version, a)) {
		st->is &= (u8)~CC_BBR_TOO_HIGH;
		cc_bbr_start_down(st, p, a);
	}
}

CC_FN void cc_bbr_save(struct cc_bbr_state *st, const struct cc_ack *a)
{
	st->prior_cwnd = (st->is & CC_BBR_SAVED) ? cc_max(st->prior_cwnd, a->cwnd_pkts) : a->cwnd_pkts;
	st->is |= CC_BBR_SAVED;
}

CC_FN u32 cc_bbr_restored(struct cc_bbr_state *st, const struct cc_ack *a)
{
	u32 cwnd = a->cwnd_pkts;

	if (st->is & CC_BBR_SAVED)
		cwnd = cc_max(cwnd, st->prior_cwnd);
	st->is &= (u8)~CC_BBR_SAVED;
	return cc_bound_cwnd(a, cwnd);
}

CC_FN u32 cc_bbr_probe_rtt_cwnd(const struct cc_bbr_state *st, const struct cc_bbr_params *p)
{
	return cc_max(cc_bbr_bdp(st, cc_bbr_bw(st), p->probe_rtt_cwnd_pct * 10), CC_BBR_MIN_CWND);
}

/* Returns the window: as it is, or as it was before PROBE_RTT. */
CC_FN u32 cc_bbr_probe_rtt(struct cc_bbr_state *st, const struct cc_bbr_params *p,
			   const struct cc_ack *a, int round_start)
{
	u32 now_us = (u32)a->now_us, cwnd;

	if (!st->probe_rtt_end_us) {
		if (a->inflight_pkts > cc_bbr_probe_rtt_cwnd(st, p))
			return a->cwnd_pkts;
		st->probe_rtt_end_us = (now_us + cc_min(p->probe_rtt_ms, 5000) * 1000) | 1;
		st->is &= (u8)~CC_BBR_RTT_ROUND;
		st->round_end_pkts = a->delivered_pkts;
		return a->cwnd_pkts;
	}
	if (round_start)
		st->is |= CC_BBR_RTT_ROUND;
	if (!(st->is & CC_BBR_RTT_ROUND) || !cc_after(now_us, st->probe_rtt_end_us))
		return a->cwnd_pkts;
	st->low_rtt_at_us = now_us;
	cwnd = cc_bbr_restored(st, a);
	cc_bbr_no_lower_bounds(st);
	if (st->is & CC_BBR_FULL) {
		cc_bbr_start_down(st, p, a);
		st->mode = CC_BBR_CRUISE;
	} else {
		st->mode = CC_BBR_STARTUP;
	}
	return cwnd;
}

/* The delay part of the model, and PROBE_RTT. Returns the window. */
CC_STEP u32 cc_bbr_rtt(struct cc_bbr_state *st, const struct cc_bbr_params *p,
		       const struct cc_ack *a, int round_start)
{
	u32 now_us = (u32)a->now_us, cwnd = a->cwnd_pkts;
	int stale = now_us - st->low_rtt_at_us > cc_min(p->probe_rtt_interval_ms, 60000) * 1000;
	int old = now_us - st->min_rtt_at_us > cc_min(p->min_rtt_window_ms, 60000) * 1000;

	if (a->rtt_us && (a->rtt_us <= st->low_rtt_us || stale)) {
		st->low_rtt_us = a->rtt_us;
		st->low_rtt_at_us = now_us;
	}
	if (st->low_rtt_us <= st->min_rtt_us || old) {
		st->min_rtt_us = st->low_rtt_us;
		st->min_rtt_at_us = st->low_rtt_at_us;
	}
	if (stale && !(st->is & CC_BBR_IDLE) && st->mode != CC_BBR_PROBE_RTT) {
		st->mode = CC_BBR_PROBE_RTT;
		st->probe_rtt_end_us = 0;
		cc_bbr_save(st, a);
	}
	if (st->mode == CC_BBR_PROBE_RTT)
		cwnd = cc_bbr_probe_rtt(st, p, a, round_start);
	if (a->acked_pkts)
		st->is &= (u8)~CC_BBR_IDLE;
	return cwnd;
}

/* Three bursts beyond the BDP keep the sender busy while ACKs come in lumps. */
CC_FN u32 cc_bbr_quantum(const struct cc_ack *a)
{
	u64 burst = cc_div64(a->pacing_bytes_per_sec >> 10, a->mss_bytes ? a->mss_bytes : 1);

	return 3 * cc_min(cc_max(cc_u32(burst), 2), 44);
}

CC_STEP u32 cc_bbr_window(const struct cc_bbr_state *st, const struct cc_bbr_params *p,
			  const struct cc_ack *a, u32 cwnd)
{
	u64 target = (u64)cc_bbr_bdp(st, cc_bbr_bw(st), cc_bbr_cwnd_gain(st, p)) + cc_bbr_quantum(a);
	u64 grown = (u64)cwnd + a->acked_pkts;
	u32 cap = CC_BBR_NONE;

	if (st->is & CC_BBR_FULL)
		cwnd = cc_u32(grown < target ? grown : target);
	else if (cwnd < target || st->min_rtt_us == CC_NO_RTT)
		cwnd = cc_u32(grown);
	if (st->mode == CC_BBR_CRUISE || st->mode == CC_BBR_PROBE_RTT)
		cap = cc_bbr_headroom(st, p);
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
	round_start = cc_bbr_sample(st, p, a);
	cc_bbr_cycle(st, p, version, a, round_start);
	out->cwnd_pkts = cc_bbr_window(st, p, a, cc_bbr_rtt(st, p, a, round_start));
	out->pacing_bytes_per_sec = cc_bbr_pacing(st, p, a);
	if (round_start)
		out->flags |= CC_OUT_ROUND;
}

/* BBR has no ssthresh; what was in force stays. The window is remembered for after recovery. */
CC_FN u32 cc_bbr_on_loss(struct cc_bbr_state *st, const struct cc_ack *a)
{
	cc_bbr_save(st, a);
	return cc_min(cc_max(a->ssthresh_pkts, CC_MIN_CWND), CC_INFINITE);
}

CC_FN void cc_bbr_on_event(struct cc_bbr_state *st, u32 event, const struct cc_ack *a,
			   struct cc_out *out)
{
	cc_keep(a, out);
	if (event == CC_EVENT_RTO) {
		st->full_bw = 0;
		st->full_count = 0;
	} else if (event == CC_EVENT_OPEN && st->mode != CC_BBR_PROBE_RTT) {
		out->cwnd_pkts = cc_bbr_restored(st, a);
	} else if (event == CC_EVENT_TX_START && (a->flags & CC_APP_LIMITED)) {
		st->is |= CC_BBR_IDLE;
	}
}

CC_FN u32 cc_bbr_undo(struct cc_bbr_state *st, const struct cc_ack *a)
{
	st->full_bw = 0;
	st->full_count = 0;
	cc_bbr_no_lower_bounds(st);
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
	s->full_pipe = (st->is & CC_BBR_FULL) != 0;
}

#endif
