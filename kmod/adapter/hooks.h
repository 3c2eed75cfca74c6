/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The code between the kernel's hooks and a core, which both adapters share. An adapter includes socket.h, defines the following, includes
 * this file, and then defines the kernel's entry points:
 *
 *   ccb_of(tp), ccb_params(tp)                state of the socket, or null; parameters of its instance
 *   ccb_new(tp)                               the same at init: with CC_WANTS_STORAGE it is allocated
 *   ccb_random()                              uniform over u32 (CC_WANTS_RANDOM)
 *   ccb_is_cwnd_limited(tp)                   is_cwnd_limited, a bit-field: 0 or 1
 *   ccb_edt_delay_ns(tp)                      from now to the earliest departure time of the next packet
 *   ccb_net_header_bytes(tp)                  of IP
 *   ccb_rate_delivered_ce(rs)                 0 if the kernel does not say
 *   ccb_set_pacing_shift(tp, shift)           bursts of 2^-shift s, if the platform can (CC_WANTS_BURSTS)
 *   ccb_ca_state(tp)                          icsk_ca_state, a bit-field
 *   CCB_ECN_MODE                              bits of ecn_flags: ECN was negotiated
 *   CCB_NTOHS(port)                           from network order
 *   ccb_pacing_rate(tp)                       current pacing rate, bytes per second
 *   ccb_set_cwnd(tp, pkts), ccb_set_pacing_rate(tp, bytes per second), ccb_start_pacing(tp)
 *   ccb_sk(tp), ccb_netns_cookie(tp)          its struct sock; cookie of its network namespace
 *   ccb_row_gap_us(tp)                        minimum time between a row of a round and the row before, or 0
 *   ccb_rounds_skipped(tp, count)             counts rounds without a row because of that
 *   ccb_row_wanted(tp), ccb_row_out(tp, s, a) the second calls ccb_row_fill(row, tp, s, a), declared before
 *   ccb_keep_tx_start(tp, reacts)             keeps whether the core reacts to TX_START if app_limited is 0, or does nothing
 *   ccb_skips_tx_start(tp)                    by what was kept: the core does not react to TX_START (CC_SKIPS_EVENTS)
 *   ccb_ack_until(tp, seq)                    sends an ACK (CC_WANTS_ECN)
 */
#ifndef CCB_HOOKS_H
#define CCB_HOOKS_H

/* The fields that a core with CC_SKIPS_FIELDS reads only at init. */
CC_FN void ccb_fill_rest(struct tcp_sock *tp, struct cc_ack *a)
{
	a->mdev_us = tp->mdev_us;
	a->rtt_min_us = tp->rtt_min.s[0].v;
	a->prior_cwnd_pkts = tp->prior_cwnd;
	a->una_seq = tp->snd_una;
	a->nxt_seq = tp->snd_nxt;
	a->mtu_bytes = tp->mss_cache + tp->tcp_header_len + ccb_net_header_bytes(tp);
}

CC_FN u32 ccb_ecn_flag(struct tcp_sock *tp)
{
	return tp->ecn_flags & CCB_ECN_MODE ? CC_ECN : 0;
}

/* Fills a core's input from the socket, except for srtt_us and what an ACK adds. */
CC_FN void ccb_fill(struct tcp_sock *tp, struct cc_ack *a)
{
	a->now_us = tp->tcp_mstamp;
	a->pacing_bytes_per_sec = ccb_pacing_rate(tp);
	a->inflight_pkts = tp->packets_out - tp->sacked_out - tp->lost_out + tp->retrans_out;
	a->cwnd_pkts = tp->snd_cwnd;
	a->ssthresh_pkts = tp->snd_ssthresh;
	a->cwnd_clamp_pkts = tp->snd_cwnd_clamp;
	a->delivered_pkts = tp->delivered;
	a->delivered_ce_pkts = tp->delivered_ce;
	a->total_lost_pkts = tp->lost;
	a->mss_bytes = tp->mss_cache;
	a->ca_state = ccb_ca_state(tp);
	a->flags = ccb_ecn_flag(tp);
	if (!(CCB_WANTS & CC_SKIPS_FIELDS))
		ccb_fill_rest(tp, a);
}

/* The fields that are unknown without an ACK. */
CC_FN void ccb_fill_no_ack(struct cc_ack *a)
{
	a->rtt_us = 0;
	a->acked_pkts = 0;
	a->lost_pkts = 0;
	a->prior_inflight_pkts = a->inflight_pkts;
	a->rate_prior_delivered_pkts = 0;
	a->rate_delivered_pkts = 0;
	a->rate_delivered_ce_pkts = 0;
	a->rate_interval_us = 0;
	a->edt_delay_us = 0;
	a->random = 0;
}

/* A core's input without an ACK; null if the socket has no state. It is in the state, or else in `stack` (socket.h). */
CC_FN struct cc_ack *ccb_input(struct tcp_sock *tp, struct ccb_socket *s, struct cc_ack *stack)
{
	struct cc_ack *a;

	(void)stack;
	if (!s)
		return 0;
	a = CCB_ACK(s, stack);
	ccb_fill(tp, a);
	a->srtt_us = tp->srtt_us >> 3;
	ccb_fill_no_ack(a);
	return a;
}

/* Returns the random number of a call. */
CC_FN u32 ccb_draw(const struct ccb_socket *s, const struct cc_ack *a)
{
#if CCB_WANTS & CC_WANTS_RANDOM
	if (CORE(_draws)(&s->state, a))
		return ccb_random();
#endif
	(void)s;
	(void)a;
	return 0;
}

#if CCB_ECHOES
/* Whether this instance counts marks, either always or because of its parameter ecn_enable. */
CC_FN int ccb_wants_ecn(struct tcp_sock *tp)
{
#if CCB_WANTS & CC_MAY_WANT_ECN
	return ccb_params(tp)->ecn_enable != 0;
#else
	(void)tp;
	return 1;
#endif
}
#endif

/* Writes only changed values, to avoid dirtying cache lines. */
CC_FN void ccb_apply(struct tcp_sock *tp, const struct cc_ack *a, const struct cc_out *out)
{
	if (out->pacing_bytes_per_sec)
		ccb_set_pacing_rate(tp, out->pacing_bytes_per_sec);
	if (out->cwnd_pkts != a->cwnd_pkts)
		ccb_set_cwnd(tp, out->cwnd_pkts);
	if (out->ssthresh_pkts != a->ssthresh_pkts)
		tp->snd_ssthresh = out->ssthresh_pkts;
}

/* Writes the stats directly to the row. The time is the stack's, that of this ACK or event. */
CC_FN void ccb_row_fill(struct ccb_row *row, struct tcp_sock *tp, const struct ccb_socket *s, const struct cc_ack *a)
{
	const struct sock *sk = ccb_sk(tp);

	row->at_ns = tp->tcp_clock_cache;
	row->socket_cookie = (u64)sk->__sk_common.skc_cookie.counter;
	row->netns_cookie = ccb_netns_cookie(tp);
	row->round = CCB_NOTES(tp, s)->rounds;
	row->local_port = sk->__sk_common.skc_num;
	row->remote_port = CCB_NTOHS(sk->__sk_common.skc_dport);
	CORE(_read)(&s->state, ccb_params(tp), a, (struct CORE(_stats) *)row->stats);
}

/*
 * Counts the rounds before this number that have no row, all at once: an atomic addition for each would take a twentieth of an ACK's time.
 */
CC_FN void ccb_count_skipped(struct tcp_sock *tp, struct ccb_notes *notes, u32 before)
{
	ccb_rounds_skipped(tp, (u16)(before - notes->counted));
	notes->counted = (u16)before;
}

/*
 * Whether a row is due. A round's row must keep a distance to the previous row, the row of a state that begins need not. Rounds without a
 * row are counted with the next row. `flags`: of cc_out.
 */
CC_FN int ccb_row_due(struct tcp_sock *tp, struct ccb_notes *notes, const struct cc_ack *a, u32 flags)
{
	u32 before = notes->rounds;

	if (flags & CC_OUT_ROUND)
		notes->rounds = before + 1;
	if (!(flags & (CC_OUT_ROUND | CC_OUT_STATE)) || !ccb_row_wanted(tp))
		return 0;
	if (!(flags & CC_OUT_STATE) && (u32)a->now_us - notes->row_us < ccb_row_gap_us(tp)) {
		if ((u16)(notes->rounds - notes->counted) == 0xffff)
			ccb_count_skipped(tp, notes, notes->rounds);
		return 0;
	}
	ccb_count_skipped(tp, notes, before);
	notes->counted = (u16)notes->rounds;
	notes->row_us = (u32)a->now_us;
	return 1;
}

CC_FN void ccb_record(struct tcp_sock *tp, struct ccb_socket *s, const struct cc_ack *a, u32 flags)
{
	if (ccb_row_due(tp, CCB_NOTES(tp, s), a, flags))
		ccb_row_out(tp, s, a);
}

/* Stores whether TX_START may be skipped, after a call that may change this. */
CC_FN void ccb_note_tx_start(struct tcp_sock *tp, const struct ccb_socket *s)
{
#if CCB_WANTS & CC_SKIPS_EVENTS
	ccb_keep_tx_start(tp, CORE(_reacts_to)(&s->state, CC_EVENT_TX_START, 0) != 0);
#endif
	(void)tp;
	(void)s;
}

CC_FN void ccb_on_init(struct tcp_sock *tp)
{
	struct ccb_socket *s = ccb_new(tp);
	CCB_ACK_ON_STACK
	struct cc_ack *a = ccb_input(tp, s, CCB_ACK_STACK);
	struct ccb_notes *notes;
	struct cc_out out;

	if (!a)
		return;
	notes = CCB_NOTES(tp, s);
	ccb_fill_rest(tp, a);
	*notes = (struct ccb_notes){
		.row_us = (u32)a->now_us - ccb_row_gap_us(tp),
#if CCB_ECHOES
		.before_seq = tp->rcv_nxt,
#endif
	};
	CORE(_init)(&s->state, ccb_params(tp), a, &out);
	ccb_note_tx_start(tp, s);
	ccb_apply(tp, a, &out);
	if (CCB_WANTS & CC_WANTS_PACING)
		ccb_start_pacing(tp);
#if CCB_WANTS & CC_WANTS_BURSTS
	ccb_set_pacing_shift(tp, CORE(_burst_shift)(ccb_params(tp)));
#endif
}

CC_FN u32 ccb_on_loss(struct tcp_sock *tp)
{
	struct ccb_socket *s = ccb_of(tp);
	CCB_ACK_ON_STACK
	struct cc_ack *a = ccb_input(tp, s, CCB_ACK_STACK);

	if (!a)
		return cc_half(tp->snd_cwnd);
	return CORE(_on_loss)(&s->state, ccb_params(tp), a);
}

CC_FN u32 ccb_on_undo(struct tcp_sock *tp)
{
	struct ccb_socket *s = ccb_of(tp);
	CCB_ACK_ON_STACK
	struct cc_ack *a = ccb_input(tp, s, CCB_ACK_STACK);

	if (!a)
		return cc_max(tp->snd_cwnd, tp->prior_cwnd);
	return CORE(_undo)(&s->state, ccb_params(tp), a);
}

CC_FN void ccb_on_event(struct tcp_sock *tp, u32 event)
{
	struct ccb_socket *s;
	CCB_ACK_ON_STACK
	struct cc_ack *a;
	struct cc_out out;

#if CCB_WANTS & CC_SKIPS_EVENTS
	if (event == CC_EVENT_TX_START && ccb_skips_tx_start(tp))
		return;
	s = ccb_of(tp);
	if (!s || !CORE(_reacts_to)(&s->state, event, tp->app_limited))
		return;
#else
	s = ccb_of(tp);
#endif
	a = ccb_input(tp, s, CCB_ACK_STACK);
	if (!a)
		return;
	a->random = ccb_draw(s, a);
	if (tp->app_limited)
		a->flags |= CC_APP_LIMITED;
	CORE(_on_event)(&s->state, ccb_params(tp), event, a, &out);
	ccb_note_tx_start(tp, s);
	ccb_apply(tp, a, &out);
	a->cwnd_pkts = out.cwnd_pkts;
	ccb_record(tp, s, a, out.flags);
}

CC_FN void ccb_on_state(struct tcp_sock *tp, u8 state)
{
	if (state <= CC_LOSS)
		ccb_on_event(tp, state);
}

#if CCB_ECHOES
CC_FN void ccb_demand_cwr(struct tcp_sock *tp, u32 on)
{
	tp->ecn_flags = on ? tp->ecn_flags | TCP_ECN_DEMAND_CWR : tp->ecn_flags & ~TCP_ECN_DEMAND_CWR;
}

/* A data packet has arrived, with or without CE: see ../core/echo.h. */
CC_FN void ccb_on_mark(struct tcp_sock *tp, u32 ce)
{
	struct ccb_socket *s = ccb_of(tp);
	struct ccb_notes *notes;
	u32 now_ce, actions;

	if (!s || !ccb_wants_ecn(tp))
		return;
	notes = CCB_NOTES(tp, s);
	now_ce = notes->ce;
	actions = cc_echo(&now_ce, ce, tp->inet_conn.icsk_ack.pending & ICSK_ACK_TIMER);
	if (actions & CC_ECHO_ACK_BEFORE) {
		ccb_demand_cwr(tp, notes->ce);
		ccb_ack_until(tp, notes->before_seq);
	}
	ccb_demand_cwr(tp, actions & CC_ECHO_ECE_ON);
	if (actions & CC_ECHO_ACK_NOW)
		tp->inet_conn.icsk_ack.pending |= ICSK_ACK_NOW;
	notes->ce = (u16)now_ce;
	notes->before_seq = tp->rcv_nxt;
}
#endif

CC_FN void ccb_on_cwnd_event(struct tcp_sock *tp, u32 event)
{
	if (event == CA_EVENT_TX_START)
		ccb_on_event(tp, CC_EVENT_TX_START);
	else if (event == CA_EVENT_CWND_RESTART)
		ccb_on_event(tp, CC_EVENT_RESTART);
	else if (event == CA_EVENT_LOSS)
		ccb_on_event(tp, CC_EVENT_RTO);
#if CCB_ECHOES
	else if (event == CA_EVENT_ECN_IS_CE || event == CA_EVENT_ECN_NO_CE)
		ccb_on_mark(tp, event == CA_EVENT_ECN_IS_CE);
#endif
}

/* Whether the window was full when packets were last sent. tcp_is_cwnd_limited() also holds while slow start uses half of it. */
CC_FN u32 ccb_cwnd_flags(struct tcp_sock *tp)
{
	if (CCB_WANTS & CC_SKIPS_FIELDS)
		return (u32)ccb_is_cwnd_limited(tp) * CC_CWND_FULL; /* 0 or 1 */
	if (ccb_is_cwnd_limited(tp))
		return CC_CWND_FULL | CC_CWND_LIMITED;
	return tp->snd_cwnd < tp->snd_ssthresh && tp->snd_cwnd < 2 * tp->max_packets_out ? CC_CWND_LIMITED : 0;
}

CC_FN void ccb_on_ack(struct tcp_sock *tp, struct ccb_socket *s, struct cc_ack *a)
{
	struct cc_out out;

#if CCB_WANTS & CC_FAST_PATH
	CORE(_on_slow_ack)(&s->state, ccb_params(tp), a, &out);
#else
	CORE(_on_ack)(&s->state, ccb_params(tp), a, &out);
#endif
	ccb_note_tx_start(tp, s);
	ccb_apply(tp, a, &out);
	a->cwnd_pkts = out.cwnd_pkts;
	ccb_record(tp, s, a, out.flags);
}

/* No sample is negative in the kernel and 0 in a core. */
CC_FN u32 ccb_rtt_us(long rtt_us)
{
	return rtt_us > 0 ? (u32)rtt_us : rtt_us == 0;
}

#if CCB_WANTS & CC_OWNS_CWND
/* Below 2^32 ns, a multiplication suffices: 274877907 is 2^38 / 1000, rounded up. */
CC_FN u32 ccb_us_of_ns(u64 ns)
{
	return ns >> 32 ? cc_u32(cc_div64(ns, 1000)) : (u32)((ns * 274877907) >> 38);
}

/* Fills in what CC_SKIPS_PROBE allows to omit. Returns its flags. */
CC_FN u32 ccb_fill_probe(struct tcp_sock *tp, struct ccb_socket *s, const struct rate_sample *rs, struct cc_ack *a)
{
#if CCB_WANTS & CC_SKIPS_PROBE
	if (!CORE(_reads_probe)(&s->state))
		return 0;
#endif
	a->random = ccb_draw(s, a);
	a->srtt_us = tp->srtt_us >> 3;
	a->prior_inflight_pkts = rs->prior_in_flight;
	a->edt_delay_us = ccb_us_of_ns(ccb_edt_delay_ns(tp));
	return ccb_cwnd_flags(tp);
}

CC_FN void ccb_fill_counts(const struct rate_sample *rs, struct cc_ack *a)
{
	a->acked_pkts = rs->acked_sacked;
	a->lost_pkts = (u32)rs->losses;
}

/* Fills in a rate sample whose two numbers are not 0. */
CC_FN void ccb_fill_sample(const struct rate_sample *rs, struct cc_ack *a, s32 delivered, long interval_us)
{
	a->rate_delivered_pkts = (u32)delivered;
	a->rate_delivered_ce_pkts = a->flags & CC_ECN ? ccb_rate_delivered_ce(rs) : 0;
	a->rate_interval_us = (u32)interval_us;
	a->rate_prior_delivered_pkts = rs->prior_delivered;
}

/* Both are 0 or 1. */
CC_FN u32 ccb_sample_flags(const struct rate_sample *rs)
{
	return (rs->is_app_limited * CC_APP_LIMITED) | (rs->is_ack_delayed * CC_ACK_DELAYED);
}

CC_FN void ccb_fill_ack(struct tcp_sock *tp, const struct rate_sample *rs, struct cc_ack *a)
{
	s32 delivered = rs->delivered;
	long interval_us = rs->interval_us;

	ccb_fill(tp, a);
	ccb_fill_counts(rs, a);
	a->rtt_us = ccb_rtt_us(rs->rtt_us);
	if (delivered > 0 && interval_us > 0) {
		ccb_fill_sample(rs, a, delivered, interval_us);
	} else {
		a->rate_delivered_pkts = 0;
		a->rate_delivered_ce_pkts = 0;
		a->rate_interval_us = 0;
		a->rate_prior_delivered_pkts = 0;
	}
	a->flags |= ccb_sample_flags(rs);
}

#if CCB_WANTS & CC_FAST_PATH
/*
 * Returns whether the ACK took the fast path. ACKs without samples or with ECN do not. The compiler reads only the fields that are used.
 * The fields of the test are read again after it: otherwise the compiler keeps them on the stack, and the verifier follows what the test
 * implies for them.
 */
CC_FN int ccb_on_fast_ack(struct tcp_sock *tp, struct ccb_socket *s, const struct rate_sample *rs)
{
	long interval_us = rs->interval_us, rtt_us = rs->rtt_us;
	s32 delivered = rs->delivered;
	struct cc_ack a, *row = &s->ack;
	struct cc_out out;

	if (!CORE(_may_take_fast_path)(&s->state, ccb_params(tp)) || delivered <= 0 || interval_us <= 0 || rtt_us <= 0 || ccb_ecn_flag(tp))
		return 0;
	a.now_us = tp->tcp_mstamp;
	a.pacing_bytes_per_sec = ccb_pacing_rate(tp);
	a.mss_bytes = tp->mss_cache;
	a.cwnd_pkts = tp->snd_cwnd;
	a.delivered_ce_pkts = tp->delivered_ce;
	a.total_lost_pkts = tp->lost;
	a.flags = ccb_sample_flags(rs);
	a.rtt_us = (u32)rtt_us;
	ccb_fill_counts(rs, &a);
	ccb_fill_sample(rs, &a, delivered, interval_us);
	if (!CORE(_takes_fast_path)(&s->state, ccb_params(tp), &a))
		return 0;
	ccb_fill(tp, &a);
	a.flags = ccb_sample_flags(rs);
	CORE(_on_fast_ack)(&s->state, ccb_params(tp), &a, &out);
	ccb_apply(tp, &a, &out);
	if (!ccb_row_due(tp, CCB_NOTES(tp, s), &a, out.flags))
		return 1;
	ccb_fill_ack(tp, rs, row);
	row->cwnd_pkts = out.cwnd_pkts;
	ccb_row_out(tp, s, row);
	return 1;
}
#endif

#if CCB_WANTS & CC_FAST_PATH
#define CCB_SLOW CC_STEP /* leaves the registers to the fast path */
#else
#define CCB_SLOW CC_FN
#endif
/* Handles any ACK. Returns 0. */
CCB_SLOW int ccb_on_slow_ack(struct tcp_sock *tp, struct ccb_socket *s, const struct rate_sample *rs)
{
	CCB_ACK_ON_STACK
	struct cc_ack *a = CCB_ACK(s, CCB_ACK_STACK);
	/* Must come first: after the call for a random number, the compiler reads everything again. */
	u32 flags = ccb_fill_probe(tp, s, rs, a);

	ccb_fill_ack(tp, rs, a);
	a->flags |= flags;
	ccb_on_ack(tp, s, a);
	return 0;
}

/* Returns 0. */
CC_FN int ccb_on_cong_control(struct tcp_sock *tp, const struct rate_sample *rs)
{
	struct ccb_socket *s = ccb_of(tp);

	if (!s)
		return 0;
#if CCB_WANTS & CC_FAST_PATH
	if (ccb_on_fast_ack(tp, s, rs))
		return 0;
#endif
	return ccb_on_slow_ack(tp, s, rs);
}

#if CCB_WANTS & CC_WANTS_BURSTS
CC_FN u32 ccb_on_burst(struct tcp_sock *tp)
{
	u32 mtu_bytes = tp->mss_cache + tp->tcp_header_len + ccb_net_header_bytes(tp);

	return CORE(_burst_segs)(ccb_params(tp), ccb_pacing_rate(tp), mtu_bytes);
}
#endif

#define CCB_SNDBUF_WINDOWS 3 /* the core may be in slow start during recovery */
#else
CC_FN void ccb_on_sample(struct tcp_sock *tp, const struct ack_sample *sample)
{
	struct ccb_socket *s = ccb_of(tp);
	CCB_ACK_ON_STACK
	struct cc_ack *a = ccb_input(tp, s, CCB_ACK_STACK);

	if (!a)
		return;
	a->rtt_us = ccb_rtt_us(sample->rtt_us);
	a->acked_pkts = sample->pkts_acked;
	ccb_record(tp, s, a, CORE(_on_sample)(&s->state, ccb_params(tp), a));
}

CC_FN void ccb_on_cong_avoid(struct tcp_sock *tp, u32 ack, u32 acked)
{
	struct ccb_socket *s = ccb_of(tp);
	CCB_ACK_ON_STACK
	struct cc_ack *a = ccb_input(tp, s, CCB_ACK_STACK);

	if (!a)
		return;
	a->una_seq = ack;
	a->acked_pkts = acked;
	a->prior_inflight_pkts = a->inflight_pkts + acked;
	a->random = ccb_draw(s, a);
	a->flags |= ccb_cwnd_flags(tp);
	ccb_on_ack(tp, s, a);
}
#endif

#endif
