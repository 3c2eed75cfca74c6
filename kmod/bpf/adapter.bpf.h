/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * One core as a congestion control in BPF. The includer includes the core, defines CCB (its name), CCB_NAME (the default
 * name in the kernel), CCB_WANTS and CCB_PARAM_LIST, then includes this. README.md is the contract with loaders.
 */
#if CCB_WANTS & CC_WANTS_ECN
#include "../core/echo.h"
#endif

#define CCB_PASTE(a, b, c) a##b##c
#define CCB_JOIN(a, b, c) CCB_PASTE(a, b, c)
#define CORE(what) CCB_JOIN(cc_, CCB, what)
#define CCB_STATS (sizeof(struct CORE(_stats)) / sizeof(u32))

char _license[] SEC("license") = "Dual BSD/GPL";

/*
 * Written by the loader, constant once loaded. Not const: the compiler must not know the values. A section of its
 * own, whose first part is the same in every object.
 */
struct {
	u64 netns_cookie; /* record sockets of this namespace only; 0: of all */
	u32 record;	  /* 0: record nothing */
	u32 params_count;
	struct CORE(_params) params;
} ccb_config SEC(".rodata.ccb") = {
	.record = 1,
	.params_count = sizeof(struct CORE(_params)) / sizeof(u32),
	.params = {CCB_PARAM_LIST(CC_PARAM_DEFAULT)},
};

/* Rows that found the ring full. */
struct {
	u64 lost;
} ccb_count SEC(".data.ccb");

struct ccb_row {
	u64 at_ns; /* CLOCK_MONOTONIC */
	u64 socket_cookie; /* 0 if nobody has asked for it yet */
	u64 netns_cookie;
	u32 round;
	u16 local_port, remote_port;
	u32 stats[CCB_STATS];
};

struct {
	int (*type)[27]; /* BPF_MAP_TYPE_RINGBUF */
	int (*max_entries)[1 << 20];
} ccb_rows SEC(".maps");

/* What a socket keeps. */
struct ccb_socket {
	struct CORE(_state) state;
	u32 rounds;
#if CCB_WANTS & CC_WANTS_ECN
	u32 ce, before_seq; /* the receiver's half of DCTCP-style feedback */
#endif
};
CC_ASSERT(sizeof(struct ccb_socket) <= CC_STATE_BYTES, "socket state too big");

INLINE struct ccb_socket *ccb_of(struct tcp_sock *tp)
{
	return (struct ccb_socket *)tp->inet_conn.icsk_ca_priv;
}

INLINE struct sock *ccb_sk(struct tcp_sock *tp)
{
	return &tp->inet_conn.icsk_inet.sk;
}

INLINE int ccb_cwnd_limited(struct tcp_sock *tp)
{
	if (BITS(tp, is_cwnd_limited))
		return 1;
	return tp->snd_cwnd < tp->snd_ssthresh && tp->snd_cwnd < 2 * tp->max_packets_out;
}

/* The socket as a core sees it; what an ACK brings is the caller's to add. */
INLINE void ccb_fill(struct tcp_sock *tp, struct cc_ack *a)
{
	a->now_us = tp->tcp_mstamp;
	a->pacing_bytes_per_sec = ccb_sk(tp)->sk_pacing_rate;
	a->rtt_us = 0;
	a->srtt_us = tp->srtt_us >> 3;
	a->mdev_us = tp->mdev_us;
	a->rtt_min_us = tp->rtt_min.s[0].v;
	a->acked_pkts = 0;
	a->lost_pkts = 0;
	a->inflight_pkts = tp->packets_out - tp->sacked_out - tp->lost_out + tp->retrans_out;
	a->prior_inflight_pkts = a->inflight_pkts;
	a->cwnd_pkts = tp->snd_cwnd;
	a->ssthresh_pkts = tp->snd_ssthresh;
	a->cwnd_clamp_pkts = tp->snd_cwnd_clamp;
	a->prior_cwnd_pkts = tp->prior_cwnd;
	a->una_seq = tp->snd_una;
	a->nxt_seq = tp->snd_nxt;
	a->delivered_pkts = tp->delivered;
	a->delivered_ce_pkts = tp->delivered_ce;
	a->rate_prior_delivered_pkts = 0;
	a->rate_delivered_pkts = 0;
	a->rate_interval_us = 0;
	a->mss_bytes = tp->mss_cache;
	a->random = 0;
	a->ca_state = BITS(&tp->inet_conn, icsk_ca_state);
	a->flags = tp->ecn_flags & TCP_ECN_MODE ? CC_ECN : 0;
}

/* Only what differs: a write that changes nothing is a cache line dirtied. */
INLINE void ccb_apply(struct tcp_sock *tp, const struct cc_ack *a, const struct cc_out *out)
{
	if (out->cwnd_pkts != a->cwnd_pkts)
		tp->snd_cwnd = out->cwnd_pkts;
	if (out->ssthresh_pkts != a->ssthresh_pkts)
		tp->snd_ssthresh = out->ssthresh_pkts;
	if (out->pacing_bytes_per_sec) {
		u64 most = ccb_sk(tp)->sk_max_pacing_rate;

		ccb_sk(tp)->sk_pacing_rate =
			out->pacing_bytes_per_sec < most ? out->pacing_bytes_per_sec : most;
	}
}

/* One row per round. */
INLINE void ccb_record(struct tcp_sock *tp, const struct cc_ack *a)
{
	struct ccb_socket *s = ccb_of(tp);
	struct sock *sk = ccb_sk(tp);
	struct CORE(_stats) stats;
	struct ccb_row *row;
	u64 netns_cookie;

	s->rounds++;
	if (!ccb_config.record)
		return;
	netns_cookie = sk->__sk_common.skc_net.net->net_cookie;
	if (ccb_config.netns_cookie && ccb_config.netns_cookie != netns_cookie)
		return;
	CORE(_read)(&s->state, &ccb_config.params, a, &stats);
	row = bpf_ringbuf_reserve(&ccb_rows, sizeof(*row), 0);
	if (!row) {
		__sync_fetch_and_add(&ccb_count.lost, 1);
		return;
	}
	row->at_ns = bpf_ktime_get_ns();
	row->socket_cookie = (u64)sk->__sk_common.skc_cookie.counter;
	row->netns_cookie = netns_cookie;
	row->round = s->rounds;
	row->local_port = sk->__sk_common.skc_num;
	row->remote_port = __builtin_bswap16(sk->__sk_common.skc_dport);
	__builtin_memcpy(row->stats, &stats, sizeof(stats));
	bpf_ringbuf_submit(row, BPF_RB_NO_WAKEUP);
}

SEC("struct_ops/ccb_init") int ccb_init(u64 *ctx)
{
	struct tcp_sock *tp = (void *)ctx[0];
	struct ccb_socket *s = ccb_of(tp);
	struct cc_ack a;
	struct cc_out out;

	ccb_fill(tp, &a);
	a.random = bpf_get_prandom_u32();
	s->rounds = 0;
#if CCB_WANTS & CC_WANTS_ECN
	s->ce = 0;
	s->before_seq = tp->rcv_nxt;
#endif
	CORE(_init)(&s->state, &ccb_config.params, &a, &out);
	ccb_apply(tp, &a, &out);
	if ((CCB_WANTS & CC_WANTS_PACING) && ccb_sk(tp)->sk_pacing_status == SK_PACING_NONE)
		ccb_sk(tp)->sk_pacing_status = SK_PACING_NEEDED;
	return 0;
}

SEC("struct_ops/ccb_ssthresh") int ccb_ssthresh(u64 *ctx)
{
	struct tcp_sock *tp = (void *)ctx[0];
	struct cc_ack a;

	ccb_fill(tp, &a);
	return (int)CORE(_on_loss)(&ccb_of(tp)->state, &ccb_config.params, &a);
}

SEC("struct_ops/ccb_undo_cwnd") int ccb_undo_cwnd(u64 *ctx)
{
	struct tcp_sock *tp = (void *)ctx[0];
	struct cc_ack a;

	ccb_fill(tp, &a);
	return (int)CORE(_undo)(&ccb_of(tp)->state, &ccb_config.params, &a);
}

INLINE void ccb_event(struct tcp_sock *tp, u32 event)
{
	struct cc_ack a;
	struct cc_out out;

	ccb_fill(tp, &a);
	if (tp->app_limited)
		a.flags |= CC_APP_LIMITED;
	CORE(_on_event)(&ccb_of(tp)->state, &ccb_config.params, event, &a, &out);
	ccb_apply(tp, &a, &out);
}

SEC("struct_ops/ccb_set_state") int ccb_set_state(u64 *ctx)
{
	u8 state = (u8)ctx[1];

	if (state <= CC_LOSS)
		ccb_event((void *)ctx[0], state);
	return 0;
}

#if CCB_WANTS & CC_WANTS_ECN
/* A data packet came, of the other kind than before or of the same; see core/echo.h. */
INLINE void ccb_echo(struct tcp_sock *tp, u32 ce)
{
	struct ccb_socket *s = ccb_of(tp);
	u32 now_ce = s->ce;
	u32 what = cc_echo(&now_ce, ce, tp->inet_conn.icsk_ack.pending & ICSK_ACK_TIMER);

	if (what & CC_ECHO_ACK_BEFORE) {
		tp->ecn_flags = s->ce ? tp->ecn_flags | TCP_ECN_DEMAND_CWR
				      : tp->ecn_flags & ~TCP_ECN_DEMAND_CWR;
		bpf_tcp_send_ack(tp, s->before_seq);
	}
	tp->ecn_flags = what & CC_ECHO_ECE_ON ? tp->ecn_flags | TCP_ECN_DEMAND_CWR
					      : tp->ecn_flags & ~TCP_ECN_DEMAND_CWR;
	if (what & CC_ECHO_ACK_NOW)
		tp->inet_conn.icsk_ack.pending |= ICSK_ACK_NOW;
	s->ce = now_ce;
	s->before_seq = tp->rcv_nxt;
}
#endif

SEC("struct_ops/ccb_cwnd_event") int ccb_cwnd_event(u64 *ctx)
{
	struct tcp_sock *tp = (void *)ctx[0];
	u32 event = (u32)ctx[1];

	if (event == CA_EVENT_TX_START)
		ccb_event(tp, CC_EVENT_TX_START);
	else if (event == CA_EVENT_CWND_RESTART)
		ccb_event(tp, CC_EVENT_RESTART);
	else if (event == CA_EVENT_LOSS)
		ccb_event(tp, CC_EVENT_RTO);
#if CCB_WANTS & CC_WANTS_ECN
	else if (event == CA_EVENT_ECN_IS_CE || event == CA_EVENT_ECN_NO_CE)
		ccb_echo(tp, event == CA_EVENT_ECN_IS_CE);
#endif
	return 0;
}

SEC("struct_ops/ccb_tx_start") int ccb_tx_start(u64 *ctx)
{
	ccb_event((void *)ctx[0], CC_EVENT_TX_START);
	return 0;
}

INLINE void ccb_on_ack(struct tcp_sock *tp, struct cc_ack *a)
{
	struct cc_out out;

	a->random = bpf_get_prandom_u32();
	if (ccb_cwnd_limited(tp))
		a->flags |= CC_CWND_LIMITED;
	CORE(_on_ack)(&ccb_of(tp)->state, &ccb_config.params, a, &out);
	ccb_apply(tp, a, &out);
	if (out.flags & CC_OUT_ROUND)
		ccb_record(tp, a);
}

#if CCB_WANTS & CC_OWNS_CWND
SEC("struct_ops/ccb_cong_control") int ccb_cong_control(u64 *ctx)
{
	struct tcp_sock *tp = (void *)ctx[0];
	const struct rate_sample *rs;
	struct cc_ack a;

	if (!BITS(&tp->inet_conn, icsk_ca_initialized))
		return 0; /* data on a SYN is acknowledged before init */
	/* Assembly, or the compiler makes one load with a computed offset of the two. */
	if (KERNEL_MATCHES(struct tcp_congestion_ops___four))
		asm volatile("%0 = *(u64 *)(%1 + 24)" : "=r"(rs) : "r"(ctx));
	else
		asm volatile("%0 = *(u64 *)(%1 + 8)" : "=r"(rs) : "r"(ctx));
	ccb_fill(tp, &a);
	a.rtt_us = rs->rtt_us > 0 ? (u32)rs->rtt_us : rs->rtt_us == 0;
	a.acked_pkts = rs->acked_sacked;
	a.lost_pkts = (u32)rs->losses;
	a.prior_inflight_pkts = rs->prior_in_flight;
	if (rs->delivered > 0 && rs->interval_us > 0) {
		a.rate_delivered_pkts = (u32)rs->delivered;
		a.rate_interval_us = (u32)rs->interval_us;
		a.rate_prior_delivered_pkts = rs->prior_delivered;
	}
	if (rs->is_app_limited)
		a.flags |= CC_APP_LIMITED;
	ccb_on_ack(tp, &a);
	return 0;
}

SEC("struct_ops/ccb_sndbuf_expand") int ccb_sndbuf_expand(u64 *ctx)
{
	(void)ctx;
	return 3; /* windows: the core may slow-start during recovery */
}
#else
SEC("struct_ops/ccb_pkts_acked") int ccb_pkts_acked(u64 *ctx)
{
	struct tcp_sock *tp = (void *)ctx[0];
	const struct ack_sample *sample = (void *)ctx[1];
	struct cc_ack a;
	s32 rtt_us = sample->rtt_us;

	ccb_fill(tp, &a);
	a.rtt_us = rtt_us > 0 ? (u32)rtt_us : rtt_us == 0;
	a.acked_pkts = sample->pkts_acked;
	if (CORE(_on_sample)(&ccb_of(tp)->state, &ccb_config.params, &a) & CC_OUT_ROUND)
		ccb_record(tp, &a);
	return 0;
}

SEC("struct_ops/ccb_cong_avoid") int ccb_cong_avoid(u64 *ctx)
{
	struct tcp_sock *tp = (void *)ctx[0];
	struct cc_ack a;

	ccb_fill(tp, &a);
	a.una_seq = (u32)ctx[1];
	a.acked_pkts = (u32)ctx[2];
	a.prior_inflight_pkts = a.inflight_pkts + a.acked_pkts;
	ccb_on_ack(tp, &a);
	return 0;
}
#endif

SEC(".struct_ops.link") struct tcp_congestion_ops ccb = {
	.name = CCB_NAME,
	.init = (void *)ccb_init,
	.ssthresh = (void *)ccb_ssthresh,
	.undo_cwnd = (void *)ccb_undo_cwnd,
	.set_state = (void *)ccb_set_state,
	.cwnd_event = (void *)ccb_cwnd_event,
	.cwnd_event_tx_start = (void *)ccb_tx_start,
#if CCB_WANTS & CC_OWNS_CWND
	.cong_control = (void *)ccb_cong_control,
	.sndbuf_expand = (void *)ccb_sndbuf_expand,
#else
	.pkts_acked = (void *)ccb_pkts_acked,
	.cong_avoid = (void *)ccb_cong_avoid,
#endif
};
