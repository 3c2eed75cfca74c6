/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * One core as a kernel module. The includer includes the core and defines CCB (the core's name), CCB_NAME, CCB_WANTS
 * and CCB_PARAM_LIST, then includes this.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/random.h>
#include <net/tcp.h>

#include "compat.h"
#include "../core/echo.h"

#define CCB_PASTE(a, b, c) a##b##c
#define CCB_JOIN(a, b, c) CCB_PASTE(a, b, c)
#define CORE(what) CCB_JOIN(cc_, CCB, what)
#define CCB_STATS (sizeof(struct CORE(_stats)) / sizeof(u32))

#include "instances.h"
#include "rows.h"

/* What a socket keeps. */
struct ccb_socket {
	struct CORE(_state) state;
	u32 rounds;
#if CCB_WANTS & CC_WANTS_ECN
	u32 ce, before_seq; /* the receiver's half of DCTCP-style feedback */
#endif
};

static struct ccb_socket *ccb_of(struct sock *sk)
{
	return inet_csk_ca(sk);
}

static const struct CORE(_params) *ccb_params(const struct sock *sk)
{
	return &container_of(inet_csk(sk)->icsk_ca_ops, struct ccb_instance, ops)->params;
}

/* The socket as a core sees it; what an ACK brings is the caller's to add. */
static void ccb_fill(struct sock *sk, struct cc_ack *a)
{
	const struct tcp_sock *tp = tcp_sk(sk);

	*a = (struct cc_ack){
		.now_us = tp->tcp_mstamp,
		.pacing_bytes_per_sec = READ_ONCE(sk->sk_pacing_rate),
		.srtt_us = tp->srtt_us >> 3,
		.mdev_us = tp->mdev_us,
		.rtt_min_us = tcp_min_rtt(tp),
		.inflight_pkts = tcp_packets_in_flight(tp),
		.prior_inflight_pkts = tcp_packets_in_flight(tp),
		.cwnd_pkts = tcp_snd_cwnd(tp),
		.ssthresh_pkts = tp->snd_ssthresh,
		.cwnd_clamp_pkts = tp->snd_cwnd_clamp,
		.prior_cwnd_pkts = tp->prior_cwnd,
		.una_seq = tp->snd_una,
		.nxt_seq = tp->snd_nxt,
		.delivered_pkts = tp->delivered,
		.delivered_ce_pkts = tp->delivered_ce,
		.mss_bytes = tp->mss_cache,
		.ca_state = inet_csk(sk)->icsk_ca_state,
		.flags = tp->ecn_flags & TCP_ECN_MODE_ANY ? CC_ECN : 0,
	};
}

static void ccb_apply(struct sock *sk, const struct cc_ack *a, const struct cc_out *out)
{
	struct tcp_sock *tp = tcp_sk(sk);

	if (out->cwnd_pkts != a->cwnd_pkts)
		tcp_snd_cwnd_set(tp, out->cwnd_pkts);
	if (out->ssthresh_pkts != a->ssthresh_pkts)
		tp->snd_ssthresh = out->ssthresh_pkts;
	if (out->pacing_bytes_per_sec)
		WRITE_ONCE(sk->sk_pacing_rate, min_t(u64, out->pacing_bytes_per_sec,
						     READ_ONCE(sk->sk_max_pacing_rate)));
}

static void ccb_record(struct sock *sk, const struct cc_ack *a)
{
	struct ccb_socket *s = ccb_of(sk);
	struct CORE(_stats) stats;
	struct ccb_row row;

	s->rounds++;
	if (!ccb_rows_wanted())
		return;
	CORE(_read)(&s->state, ccb_params(sk), a, &stats);
	memset(&row, 0, sizeof(row));
	row.at_ns = ktime_get_ns();
	row.socket_cookie = atomic64_read(&sk->sk_cookie);
	row.netns_cookie = sock_net(sk)->net_cookie;
	row.round = s->rounds;
	row.local_port = sk->sk_num;
	row.remote_port = ntohs(sk->sk_dport);
	memcpy(row.stats, &stats, sizeof(stats));
	ccb_rows_add(&row);
}

static void ccb_init(struct sock *sk)
{
	struct ccb_socket *s = ccb_of(sk);
	struct cc_ack a;
	struct cc_out out;

	ccb_fill(sk, &a);
	a.random = get_random_u32();
	s->rounds = 0;
#if CCB_WANTS & CC_WANTS_ECN
	s->ce = 0;
	s->before_seq = tcp_sk(sk)->rcv_nxt;
#endif
	CORE(_init)(&s->state, ccb_params(sk), &a, &out);
	ccb_apply(sk, &a, &out);
	if (CCB_WANTS & CC_WANTS_PACING)
		cmpxchg(&sk->sk_pacing_status, SK_PACING_NONE, SK_PACING_NEEDED);
}

static u32 ccb_ssthresh(struct sock *sk)
{
	struct cc_ack a;

	ccb_fill(sk, &a);
	return CORE(_on_loss)(&ccb_of(sk)->state, ccb_params(sk), &a);
}

static u32 ccb_undo_cwnd(struct sock *sk)
{
	struct cc_ack a;

	ccb_fill(sk, &a);
	return CORE(_undo)(&ccb_of(sk)->state, ccb_params(sk), &a);
}

static void ccb_event(struct sock *sk, u32 event)
{
	struct cc_ack a;
	struct cc_out out;

	ccb_fill(sk, &a);
	if (tcp_sk(sk)->app_limited)
		a.flags |= CC_APP_LIMITED;
	CORE(_on_event)(&ccb_of(sk)->state, ccb_params(sk), event, &a, &out);
	ccb_apply(sk, &a, &out);
}

static void ccb_set_state(struct sock *sk, u8 state)
{
	if (state <= CC_LOSS)
		ccb_event(sk, state);
}

#if CCB_WANTS & CC_WANTS_ECN
static void ccb_demand_cwr(struct sock *sk, bool on)
{
	if (on)
		tcp_sk(sk)->ecn_flags |= TCP_ECN_DEMAND_CWR;
	else
		tcp_sk(sk)->ecn_flags &= ~TCP_ECN_DEMAND_CWR;
}

/* A data packet came, of the other kind than before or of the same; see core/echo.h. */
static void ccb_echo(struct sock *sk, u32 ce)
{
	struct ccb_socket *s = ccb_of(sk);
	u32 before = s->ce;
	u32 what = cc_echo(&s->ce, ce, inet_csk(sk)->icsk_ack.pending & ICSK_ACK_TIMER);

	if (what & CC_ECHO_ACK_BEFORE) {
		ccb_demand_cwr(sk, before);
		ccb_send_ack(sk, s->before_seq);
	}
	ccb_demand_cwr(sk, what & CC_ECHO_ECE_ON);
	if (what & CC_ECHO_ACK_NOW)
		inet_csk(sk)->icsk_ack.pending |= ICSK_ACK_NOW;
	s->before_seq = tcp_sk(sk)->rcv_nxt;
}
#endif

static void ccb_cwnd_event(struct sock *sk, enum tcp_ca_event event)
{
	if (event == CA_EVENT_TX_START)
		ccb_event(sk, CC_EVENT_TX_START);
	else if (event == CA_EVENT_CWND_RESTART)
		ccb_event(sk, CC_EVENT_RESTART);
	else if (event == CA_EVENT_LOSS)
		ccb_event(sk, CC_EVENT_RTO);
#if CCB_WANTS & CC_WANTS_ECN
	else if (event == CA_EVENT_ECN_IS_CE || event == CA_EVENT_ECN_NO_CE)
		ccb_echo(sk, event == CA_EVENT_ECN_IS_CE);
#endif
}

#ifdef CCB_HAS_TX_START
static void ccb_tx_start(struct sock *sk)
{
	ccb_event(sk, CC_EVENT_TX_START);
}
#endif

static void ccb_on_ack(struct sock *sk, struct cc_ack *a)
{
	struct cc_out out;

	a->random = get_random_u32();
	if (tcp_is_cwnd_limited(sk))
		a->flags |= CC_CWND_LIMITED;
	CORE(_on_ack)(&ccb_of(sk)->state, ccb_params(sk), a, &out);
	ccb_apply(sk, a, &out);
	if (out.flags & CC_OUT_ROUND)
		ccb_record(sk, a);
}

#if CCB_WANTS & CC_OWNS_CWND
CCB_CONG_CONTROL(ccb_cong_control)
{
	struct cc_ack a;

	if (!inet_csk(sk)->icsk_ca_initialized)
		return; /* data on a SYN is acknowledged before init */
	ccb_fill(sk, &a);
	a.rtt_us = rs->rtt_us < 0 ? 0 : max_t(u32, rs->rtt_us, 1);
	a.acked_pkts = rs->acked_sacked;
	a.lost_pkts = rs->losses;
	a.prior_inflight_pkts = rs->prior_in_flight;
	if (rs->delivered > 0 && rs->interval_us > 0) {
		a.rate_delivered_pkts = rs->delivered;
		a.rate_interval_us = rs->interval_us;
		a.rate_prior_delivered_pkts = rs->prior_delivered;
	}
	if (rs->is_app_limited)
		a.flags |= CC_APP_LIMITED;
	ccb_on_ack(sk, &a);
}

static u32 ccb_sndbuf_expand(struct sock *sk)
{
	return 3; /* windows: the core may slow-start during recovery */
}
#else
static void ccb_pkts_acked(struct sock *sk, const struct ack_sample *sample)
{
	struct cc_ack a;

	ccb_fill(sk, &a);
	a.rtt_us = sample->rtt_us < 0 ? 0 : max(sample->rtt_us, 1);
	a.acked_pkts = sample->pkts_acked;
	if (CORE(_on_sample)(&ccb_of(sk)->state, ccb_params(sk), &a) & CC_OUT_ROUND)
		ccb_record(sk, &a);
}

static void ccb_cong_avoid(struct sock *sk, u32 ack, u32 acked)
{
	struct cc_ack a;

	ccb_fill(sk, &a);
	a.una_seq = ack;
	a.acked_pkts = acked;
	a.prior_inflight_pkts = a.inflight_pkts + acked;
	ccb_on_ack(sk, &a);
}
#endif

static struct ccb_instance ccb_first = {
	.ops = {
		.name = CCB_NAME,
		.owner = THIS_MODULE,
		/* A namespace may take it for its default. */
		.flags = TCP_CONG_NON_RESTRICTED | (CCB_WANTS & CC_WANTS_ECN ? TCP_CONG_NEEDS_ECN : 0) |
			 (CCB_WANTS & CC_WANTS_ECT1 ? TCP_CONG_NEEDS_ACCECN | TCP_CONG_ECT_1_NEGOTIATION : 0),
		.init = ccb_init,
		.ssthresh = ccb_ssthresh,
		.undo_cwnd = ccb_undo_cwnd,
		.set_state = ccb_set_state,
		.cwnd_event = ccb_cwnd_event,
#ifdef CCB_HAS_TX_START
		.cwnd_event_tx_start = ccb_tx_start,
#endif
#if CCB_WANTS & CC_OWNS_CWND
		.cong_control = ccb_cong_control,
		.sndbuf_expand = ccb_sndbuf_expand,
#else
		.pkts_acked = ccb_pkts_acked,
		.cong_avoid = ccb_cong_avoid,
#endif
	},
	.params = {CCB_PARAM_LIST(CC_PARAM_DEFAULT)},
};

static int __init ccb_load(void)
{
	int err;

	BUILD_BUG_ON(sizeof(struct ccb_socket) > ICSK_CA_PRIV_SIZE);
	err = ccb_check(CCB_NAME, &ccb_first.params);
	if (err)
		return err;
	err = misc_register(&ccb_rows_device);
	if (err) {
		pr_err("/dev/%s cannot be made: %d\n", CCB_NAME, err);
		return err;
	}
	err = tcp_register_congestion_control(&ccb_first.ops);
	if (err) {
		misc_deregister(&ccb_rows_device);
		return err;
	}
	mutex_lock(&ccb_lock);
	ccb_first.registered = true;
	list_add(&ccb_first.list, &ccb_instances);
	ccb_ready = true;
	mutex_unlock(&ccb_lock);
	return 0;
}

static void __exit ccb_unload(void)
{
	ccb_drop_all();
	misc_deregister(&ccb_rows_device);
}

module_init(ccb_load);
module_exit(ccb_unload);
MODULE_AUTHOR("ccbench");
MODULE_LICENSE("Dual BSD/GPL");
MODULE_DESCRIPTION("TCP congestion control " CCB_NAME);
MODULE_VERSION("1");
