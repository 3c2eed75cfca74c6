/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * CUBIC (RFC 9438) with HyStart as in Linux 6.18, net/ipv4/tcp_cubic.c, step by step. Only for simulators: nodes run the kernel's. State
 * and parameters have the kernel's names.
 *
 * Differences, because a core has no socket:
 * - HyStart decides at a sample, but the window is the host's, so ssthresh changes at the next on_ack or on_event.
 * - The time of the last transmission (tp->lsndtime) is derived from the last RTT sample. It is exact when nothing is in flight, unless the
 *   last packet was a retransmission.
 * - The pacing rate, which limits HyStart's allowance for TSO bursts, is the host's or, if there is none, the stack's default.
 * - The cube root is exact; the kernel's deviates by 0.2 % on average.
 * - cwnd is at least 2 after an ACK, which every core guarantees.
 *
 * Units: jiffies of 1 ms for last_time and epoch_start, us for HyStart, 1/1024 s for bic_K.
 */
#ifndef CC_CUBIC_H
#define CC_CUBIC_H

#include "stack.h"

#define CC_CUBIC_UNIT 1024u	   /* BICTCP_BETA_SCALE, and 2^BICTCP_HZ */
#define CC_CUBIC_TIME_SHIFT 10
#define CC_CUBIC_CUBE_SHIFT 40	   /* 10 + 3 * BICTCP_HZ */
#define CC_CUBIC_UPDATE_JIFFIES 31 /* HZ / 32 */
#define CC_CUBIC_ROOT_MAX 2642245u /* its cube still fits 64 bits */
#define CC_CUBIC_FIRST_CNT 20u	   /* 5 % per RTT before the first loss */
#define CC_CUBIC_TRAIN 1u	   /* hystart_detect */
#define CC_CUBIC_DELAY 2u
#define CC_CUBIC_SAMPLES 8u	   /* HYSTART_MIN_SAMPLES */
#define CC_CUBIC_RISE_MIN_US 4000u
#define CC_CUBIC_RISE_MAX_US 16000u

#define CC_CUBIC_PARAMS(X)                                                                         \
	X(fast_convergence, "flag", 1, 0, 1, "release bandwidth when the maximum falls")           \
	X(beta, "1/1024", 717, 1, 1023, "share of cwnd that is left after a loss")                 \
	X(initial_ssthresh, "pkts", 0, 0, 1000000, "without HyStart; 0: infinite")                 \
	X(bic_scale, "1/1024", 41, 1, 1024, "C of the cubic function, times 10")                   \
	X(tcp_friendliness, "flag", 1, 0, 1, "grow at least as Reno would")                        \
	X(hystart, "flag", 1, 0, 1, "leave slow start before a loss")                              \
	X(hystart_detect, "bits", 3, 0, 3, "1 by ACK trains, 2 by delay")                          \
	X(hystart_low_window, "pkts", 16, 0, 1000000, "HyStart acts from this cwnd on")            \
	X(hystart_ack_delta_us, "us", 2000, 0, 1000000, "largest gap within an ACK train")         \
	X(paced, "flag", 0, 0, 1, "the socket is paced, as by fq: ACK trains are twice as long")

#define CC_CUBIC_STATS(X)                                                                          \
	X(wmax_pkts, "pkts")                                                                       \
	X(k_ms, "ms")                                                                              \
	X(cnt_pkts, "pkts")                                                                        \
	X(tcp_cwnd_pkts, "pkts")                                                                   \
	X(delay_min_us, "us")                                                                      \
	X(hystart_found, "flag")
CC_SHAPE(cubic, CC_CUBIC_PARAMS, CC_CUBIC_STATS);

struct cc_cubic_state {
	u32 cnt; /* one more packet per cnt packets acked */
	u32 last_max_cwnd, last_cwnd, last_time;
	u32 bic_origin_point, bic_K;
	u32 delay_min; /* us; 0: none */
	u32 epoch_start; /* 0: none */
	u32 ack_cnt, tcp_cwnd; /* the Reno-friendly window */
	u32 snd_cwnd_cnt;
	u32 round_start, end_seq, last_ack, curr_rtt;
	u32 new_ssthresh; /* from HyStart, not passed to the host yet; 0: none */
	u32 lsndtime;
	u8 sample_cnt, found, has_sent;
};
CC_STATE_FITS(cubic);

CC_FN int cc_cubic_check(const struct cc_cubic_params *p, struct cc_fault *fault)
{
	return cc_check_ranges(cc_cubic_table, (const u32 *)p, CC_PARAM_COUNT(cubic), fault);
}

/* bictcp_reset(). State of the stack and the socket is kept. */
CC_FN void cc_cubic_reset(struct cc_cubic_state *st)
{
	st->cnt = 0;
	st->last_max_cwnd = 0;
	st->last_cwnd = 0;
	st->last_time = 0;
	st->bic_origin_point = 0;
	st->bic_K = 0;
	st->delay_min = 0;
	st->epoch_start = 0;
	st->ack_cnt = 0;
	st->tcp_cwnd = 0;
	st->found = 0;
}

CC_FN void cc_cubic_hystart_reset(struct cc_cubic_state *st, const struct cc_ack *a)
{
	st->round_start = (u32)a->now_us;
	st->last_ack = (u32)a->now_us;
	st->end_seq = a->nxt_seq;
	st->curr_rtt = CC_NO_RTT;
	st->sample_cnt = 0;
}

CC_FN void cc_cubic_init(struct cc_cubic_state *st, const struct cc_cubic_params *p,
			 const struct cc_ack *a, struct cc_out *out)
{
	*st = (struct cc_cubic_state){.cnt = 0};
	cc_keep(a, out);
	if (p->hystart)
		cc_cubic_hystart_reset(st, a);
	else if (p->initial_ssthresh)
		out->ssthresh_pkts = cc_max(p->initial_ssthresh, CC_MIN_CWND);
}

/*
 * Returns the cube root, rounded down, bit by bit. The kernel's cubic_root() uses a table and one Newton step, which deviate from it by
 * 0.2 % on average; K deviates by as much.
 */
CC_FN u32 cc_cubic_root(u64 x)
{
	u64 root = 0, next;
	u32 bit;

	for (bit = 1u << 21; bit; bit >>= 1) {
		next = root + bit;
		if (next <= CC_CUBIC_ROOT_MAX && next * next * next <= x)
			root = next;
	}
	return (u32)root;
}

/* cube_rtt_scale: C in 1/1024, for windows in pkts per 100 ms. */
CC_FN u32 cc_cubic_scale(const struct cc_cubic_params *p)
{
	return cc_max(p->bic_scale, 1) * 10;
}

/* The current value of the cubic function, with K computed at the beginning of an epoch. */
CC_FN u32 cc_cubic_target(struct cc_cubic_state *st, const struct cc_cubic_params *p, u32 now, u32 acked, u32 cwnd)
{
	u64 t, distance;
	u32 delta;

	if (!st->epoch_start) {
		st->epoch_start = now;
		st->ack_cnt = acked;
		st->tcp_cwnd = cwnd;
		st->bic_K = 0;
		st->bic_origin_point = cwnd;
		if (st->last_max_cwnd > cwnd) {
			u64 factor = cc_div64((u64)1 << CC_CUBIC_CUBE_SHIFT, cc_max(cc_cubic_scale(p), 1));

			st->bic_K = cc_cubic_root(factor * (st->last_max_cwnd - cwnd));
			st->bic_origin_point = st->last_max_cwnd;
		}
	}
	/* One RTT ahead, in 1/1024 s. */
	t = (u64)(s32)(now - st->epoch_start) + cc_div64((u64)st->delay_min + 999, 1000);
	t = cc_div64(t << CC_CUBIC_TIME_SHIFT, 1000);
	distance = t < st->bic_K ? st->bic_K - t : t - st->bic_K;
	delta = (u32)((cc_cubic_scale(p) * distance * distance * distance) >> CC_CUBIC_CUBE_SHIFT);
	return t < st->bic_K ? st->bic_origin_point - delta : st->bic_origin_point + delta;
}

/* Reno's window with this beta since the beginning of the epoch bounds cnt from above. */
CC_FN void cc_cubic_friendliness(struct cc_cubic_state *st, const struct cc_cubic_params *p, u32 cwnd)
{
	u32 beta = cc_min(p->beta, CC_CUBIC_UNIT - 1);
	u32 scale = (u32)cc_div64(cc_div64((u64)8 * (CC_CUBIC_UNIT + beta), 3), CC_CUBIC_UNIT - beta);
	u32 per_packet = (cwnd * scale) >> 3, steps;

	if (!p->tcp_friendliness)
		return;
	if (per_packet && st->ack_cnt > per_packet) {
		steps = (u32)cc_div64(st->ack_cnt - 1, per_packet);
		st->ack_cnt -= steps * per_packet;
		st->tcp_cwnd += steps;
	}
	if (st->tcp_cwnd > cwnd)
		st->cnt = cc_min(st->cnt, (u32)cc_div64(cwnd, st->tcp_cwnd - cwnd));
}

/* bictcp_update() */
CC_FN void cc_cubic_update(struct cc_cubic_state *st, const struct cc_cubic_params *p, u32 now, u32 acked, u32 cwnd)
{
	u32 target;

	st->ack_cnt += acked;
	if (st->last_cwnd == cwnd && (s32)(now - st->last_time) <= CC_CUBIC_UPDATE_JIFFIES)
		return;
	if (!st->epoch_start || now != st->last_time) {
		st->last_cwnd = cwnd;
		st->last_time = now;
		target = cc_cubic_target(st, p, now, acked, cwnd);
		st->cnt = target > cwnd ? (u32)cc_div64(cwnd, target - cwnd) : 100 * cwnd;
		if (!st->last_max_cwnd)
			st->cnt = cc_min(st->cnt, CC_CUBIC_FIRST_CNT);
	}
	cc_cubic_friendliness(st, p, cwnd);
	st->cnt = cc_max(st->cnt, 2); /* at most half of the packets acked */
}

/* hystart_ack_delay(): the time of four TSO bursts of maximum size, at most 1 ms. */
CC_FN u32 cc_cubic_burst_us(const struct cc_ack *a)
{
	u64 rate = a->pacing_bytes_per_sec ? a->pacing_bytes_per_sec : cc_stack_pacing_rate(a);

	return rate ? cc_min(cc_u32(cc_div64((u64)CC_STACK_GSO_BYTES * 4 * 1000000, rate)), 1000) : 0;
}

/* Leaves slow start when ACKs without gaps span half of the RTT, or when the RTT of a round has risen by an eighth. */
CC_FN void cc_cubic_hystart(struct cc_cubic_state *st, const struct cc_cubic_params *p, const struct cc_ack *a,
			    u32 delay_us)
{
	u32 now_us = (u32)a->now_us, limit_us;
	int found = 0;

	if (cc_after(a->una_seq, st->end_seq))
		cc_cubic_hystart_reset(st, a);
	if (a->cwnd_pkts < p->hystart_low_window)
		return;
	if ((p->hystart_detect & CC_CUBIC_TRAIN) && (s32)(now_us - st->last_ack) <= (s32)p->hystart_ack_delta_us) {
		st->last_ack = now_us;
		limit_us = st->delay_min + cc_cubic_burst_us(a);
		if (!p->paced)
			limit_us >>= 1;
		found = now_us - st->round_start > limit_us;
	}
	if (p->hystart_detect & CC_CUBIC_DELAY) {
		st->curr_rtt = cc_min(st->curr_rtt, delay_us);
		limit_us = cc_min(cc_max(st->delay_min >> 3, CC_CUBIC_RISE_MIN_US), CC_CUBIC_RISE_MAX_US);
		if (st->sample_cnt < CC_CUBIC_SAMPLES)
			st->sample_cnt++;
		else
			found |= st->curr_rtt > st->delay_min + limit_us;
	}
	if (!found)
		return;
	st->found = 1;
	st->new_ssthresh = cc_max(a->cwnd_pkts, CC_MIN_CWND);
}

/* cubictcp_acked(). Samples in the first second after a reduction are not used. */
CC_FN u32 cc_cubic_on_sample(struct cc_cubic_state *st, const struct cc_cubic_params *p,
			   const struct cc_ack *a)
{
	if (!a->rtt_us)
		return 0;
	st->lsndtime = (u32)cc_div64(a->now_us - a->rtt_us, 1000);
	st->has_sent = 1;
	if (st->epoch_start && (s32)(cc_stack_jiffies(a) - st->epoch_start) < 1000)
		return 0;
	if (!st->delay_min || st->delay_min > a->rtt_us)
		st->delay_min = a->rtt_us;
	if (p->hystart && !st->found && cc_in_slow_start(a->cwnd_pkts, a->ssthresh_pkts))
		cc_cubic_hystart(st, p, a, a->rtt_us);
	return 0;
}

/* Applies HyStart's ssthresh, which the kernel sets at the sample. Returns whether it changed. */
CC_FN int cc_cubic_leave_slow_start(struct cc_cubic_state *st, struct cc_out *out)
{
	if (!st->new_ssthresh)
		return 0;
	out->ssthresh_pkts = cc_min(st->new_ssthresh, CC_INFINITE);
	st->new_ssthresh = 0;
	return 1;
}

CC_FN void cc_cubic_on_ack(struct cc_cubic_state *st, const struct cc_cubic_params *p,
			   const struct cc_ack *a, struct cc_out *out)
{
	u32 acked = a->acked_pkts, limited = a->flags & CC_CWND_LIMITED;

	cc_keep(a, out);
	/* Outside of slow start, only a full window is a limit (tcp_is_cwnd_limited). */
	if (cc_cubic_leave_slow_start(st, out))
		limited = a->flags & CC_CWND_FULL;
	if (limited) {
		if (cc_in_slow_start(out->cwnd_pkts, out->ssthresh_pkts))
			acked = cc_stack_slow_start(a, out);
		if (acked) {
			cc_cubic_update(st, p, cc_stack_jiffies(a), acked, out->cwnd_pkts);
			cc_stack_cong_avoid(&st->snd_cwnd_cnt, st->cnt, acked, a, out);
		}
	}
	out->cwnd_pkts = cc_bound_cwnd(a, out->cwnd_pkts);
}

/* bictcp_recalc_ssthresh() */
CC_FN u32 cc_cubic_on_loss(struct cc_cubic_state *st, const struct cc_cubic_params *p,
			   const struct cc_ack *a)
{
	u32 cwnd = cc_min(a->cwnd_pkts, CC_INFINITE), beta = cc_min(p->beta, CC_CUBIC_UNIT - 1);
	int fell = cwnd < st->last_max_cwnd && p->fast_convergence;

	st->epoch_start = 0;
	st->snd_cwnd_cnt = 0; /* the stack's */
	st->new_ssthresh = 0;
	st->last_max_cwnd = fell ? cc_scale(cwnd, CC_CUBIC_UNIT + beta, 2 * CC_CUBIC_UNIT) : cwnd;
	return cc_max(cc_scale(cwnd, beta, CC_CUBIC_UNIT), CC_MIN_CWND);
}

/* After idle time, the epoch starts that much later, so that the window does not jump. */
CC_FN void cc_cubic_tx_start(struct cc_cubic_state *st, u32 now)
{
	s32 idle = (s32)(now - st->lsndtime);

	if (!st->has_sent || !st->epoch_start || idle <= 0)
		return;
	st->epoch_start += (u32)idle;
	if (cc_after(st->epoch_start, now))
		st->epoch_start = now;
}

CC_FN void cc_cubic_on_event(struct cc_cubic_state *st, const struct cc_cubic_params *p, u32 event,
			     const struct cc_ack *a, struct cc_out *out)
{
	(void)p;
	cc_keep(a, out);
	if (cc_cubic_leave_slow_start(st, out) && a->ca_state >= CC_CWR)
		/* The reduction would have ended at this ssthresh. */
		out->cwnd_pkts = cc_min(a->cwnd_pkts, out->ssthresh_pkts);
	if (event == CC_EVENT_TX_START) {
		cc_cubic_tx_start(st, cc_stack_jiffies(a));
	} else if (event == CC_EVENT_LOSS) {
		cc_cubic_reset(st);
		cc_cubic_hystart_reset(st, a);
		st->snd_cwnd_cnt = 0; /* the stack's */
	}
}

CC_FN u32 cc_cubic_undo(struct cc_cubic_state *st, const struct cc_cubic_params *p,
			const struct cc_ack *a)
{
	(void)st;
	(void)p;
	return cc_plain_undo(a);
}

CC_FN void cc_cubic_read(const struct cc_cubic_state *st, const struct cc_cubic_params *p,
			 const struct cc_ack *a, struct cc_cubic_stats *s)
{
	(void)p;
	(void)a;
	s->wmax_pkts = st->last_max_cwnd;
	s->k_ms = cc_scale(st->bic_K, 1000, 1024);
	s->cnt_pkts = st->cnt;
	s->tcp_cwnd_pkts = st->tcp_cwnd;
	s->delay_min_us = st->delay_min;
	s->hystart_found = st->found;
}

#endif
