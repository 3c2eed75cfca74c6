/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Makes a core a kernel module. The including file includes the core, defines CCB (the core's name), CCB_NAME, CCB_WANTS and
 * CCB_PARAM_LIST, and then includes this file. ../adapter/hooks.h calls the core.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/module.h>
#include <linux/random.h>
#include <net/tcp.h>

#include "compat.h"
#include "../adapter/socket.h"
#include "instances.h"
#include "rows.h"

static inline struct sock *ccb_sk(struct tcp_sock *tp)
{
	return &tp->inet_conn.icsk_inet.sk;
}

#if CCB_WANTS & CC_WANTS_STORAGE
/* icsk_ca_priv holds a pointer. */
static inline struct ccb_socket *ccb_of(struct tcp_sock *tp)
{
	return *(struct ccb_socket **)inet_csk_ca(ccb_sk(tp));
}

static inline struct ccb_socket *ccb_new(struct tcp_sock *tp)
{
	struct ccb_socket **s = inet_csk_ca(ccb_sk(tp));

	*s = kzalloc(sizeof(**s), GFP_ATOMIC | __GFP_NOWARN);
	return *s;
}

/* Nothing to keep: the state is at hand. */
static inline void ccb_keep_tx_start(struct tcp_sock *tp, int reacts)
{
}

static inline bool ccb_skips_tx_start(struct tcp_sock *tp)
{
	return false;
}

/* May be called more than once, and even without init: icsk_ca_priv is zero then. */
static void ccb_release(struct sock *sk)
{
	struct ccb_socket **s = inet_csk_ca(sk);

	kfree(*s);
	*s = NULL;
}
#else
static inline struct ccb_socket *ccb_of(struct tcp_sock *tp)
{
	return inet_csk_ca(ccb_sk(tp));
}

static inline struct ccb_socket *ccb_new(struct tcp_sock *tp)
{
	return ccb_of(tp);
}
#endif

static inline const struct CORE(_params) *ccb_params(struct tcp_sock *tp)
{
	return &container_of(tp->inet_conn.icsk_ca_ops, struct ccb_instance, ops)->params;
}

static inline u32 ccb_random(void)
{
	return get_random_u32();
}

static inline int ccb_is_cwnd_limited(struct tcp_sock *tp)
{
	return tp->is_cwnd_limited;
}

static inline u64 ccb_edt_delay_ns(struct tcp_sock *tp)
{
	return tp->tcp_wstamp_ns > tp->tcp_clock_cache ? tp->tcp_wstamp_ns - tp->tcp_clock_cache : 0;
}

static inline u32 ccb_net_header_bytes(struct tcp_sock *tp)
{
	return tp->inet_conn.icsk_af_ops->net_header_len;
}

/* Bursts last 2^-shift s at the pacing rate. */
static inline void ccb_set_pacing_shift(struct tcp_sock *tp, u32 shift)
{
	WRITE_ONCE(ccb_sk(tp)->sk_pacing_shift, (u8)min(shift, 16u));
}

static inline u32 ccb_rate_delivered_ce(const struct rate_sample *rs)
{
	return rs->delivered_ce > 0 ? (u32)rs->delivered_ce : 0;
}

static inline u32 ccb_ca_state(struct tcp_sock *tp)
{
	return tp->inet_conn.icsk_ca_state;
}

#define CCB_ECN_MODE TCP_ECN_MODE_ANY
#define CCB_NTOHS(port) ntohs(port)

static inline u64 ccb_pacing_rate(struct tcp_sock *tp)
{
	return READ_ONCE(ccb_sk(tp)->sk_pacing_rate);
}

static inline void ccb_set_cwnd(struct tcp_sock *tp, u32 cwnd_pkts)
{
	tcp_snd_cwnd_set(tp, cwnd_pkts);
}

static inline void ccb_set_pacing_rate(struct tcp_sock *tp, u64 bytes_per_sec)
{
	struct sock *sk = ccb_sk(tp);

	WRITE_ONCE(sk->sk_pacing_rate,
		   min_t(u64, bytes_per_sec, READ_ONCE(sk->sk_max_pacing_rate)));
}

static inline void ccb_start_pacing(struct tcp_sock *tp)
{
	cmpxchg(&ccb_sk(tp)->sk_pacing_status, SK_PACING_NONE, SK_PACING_NEEDED);
}

/* Every reader has its own buffer and gets every round. */
static inline u32 ccb_row_gap_us(struct tcp_sock *tp)
{
	return 0;
}

static inline void ccb_rounds_skipped(struct tcp_sock *tp, u32 count)
{
}

static inline bool ccb_row_wanted(struct tcp_sock *tp)
{
	return ccb_rows_wanted();
}

static inline u64 ccb_netns_cookie(struct tcp_sock *tp)
{
	return sock_net(ccb_sk(tp))->net_cookie;
}

static inline void ccb_row_fill(struct ccb_row *row, struct tcp_sock *tp, const struct ccb_socket *s, const struct cc_ack *a);

static inline void ccb_row_out(struct tcp_sock *tp, const struct ccb_socket *s, const struct cc_ack *a)
{
	struct ccb_row row;

	memset(&row, 0, sizeof(row));
	ccb_row_fill(&row, tp, s, a);
	ccb_rows_add(&row);
}

static inline void ccb_ack_until(struct tcp_sock *tp, u32 seq)
{
	ccb_send_ack(ccb_sk(tp), seq);
}

#include "../adapter/hooks.h"

static void ccb_init(struct sock *sk)
{
	ccb_on_init(tcp_sk(sk));
}

static u32 ccb_ssthresh(struct sock *sk)
{
	return ccb_on_loss(tcp_sk(sk));
}

static u32 ccb_undo_cwnd(struct sock *sk)
{
	return ccb_on_undo(tcp_sk(sk));
}

static void ccb_set_state(struct sock *sk, u8 state)
{
	ccb_on_state(tcp_sk(sk), state);
}

static void ccb_cwnd_event(struct sock *sk, enum tcp_ca_event event)
{
	ccb_on_cwnd_event(tcp_sk(sk), event);
}

#ifdef CCB_HAS_TX_START
static void ccb_tx_start(struct sock *sk)
{
	ccb_on_event(tcp_sk(sk), CC_EVENT_TX_START);
}
#endif

#if CCB_WANTS & CC_WANTS_BURSTS
static u32 ccb_min_tso_segs(struct sock *sk)
{
	return ccb_on_burst(tcp_sk(sk));
}
#endif

/* The ACK of a SYN, and of data on it, arrives before init: see ../bpf/adapter.bpf.h. */
#if CCB_WANTS & CC_OWNS_CWND
CCB_CONG_CONTROL(ccb_cong_control)
{
	if (inet_csk(sk)->icsk_ca_initialized)
		ccb_on_cong_control(tcp_sk(sk), rs);
}

static u32 ccb_sndbuf_expand(struct sock *sk)
{
	return CCB_SNDBUF_WINDOWS;
}
#else
static void ccb_pkts_acked(struct sock *sk, const struct ack_sample *sample)
{
	if (inet_csk(sk)->icsk_ca_initialized)
		ccb_on_sample(tcp_sk(sk), sample);
}

static void ccb_cong_avoid(struct sock *sk, u32 ack, u32 acked)
{
	if (inet_csk(sk)->icsk_ca_initialized)
		ccb_on_cong_avoid(tcp_sk(sk), ack, acked);
}
#endif

static struct ccb_instance ccb_first = {
	.ops = {
		.name = CCB_NAME,
		.owner = THIS_MODULE,
		.init = ccb_init,
#if CCB_WANTS & CC_WANTS_STORAGE
		.release = ccb_release,
#endif
		.ssthresh = ccb_ssthresh,
		.undo_cwnd = ccb_undo_cwnd,
		.set_state = ccb_set_state,
		.cwnd_event = ccb_cwnd_event,
#ifdef CCB_HAS_TX_START
		.cwnd_event_tx_start = ccb_tx_start,
#endif
#if CCB_WANTS & CC_WANTS_BURSTS
		.min_tso_segs = ccb_min_tso_segs,
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

	BUILD_BUG_ON(!(CCB_WANTS & CC_WANTS_STORAGE) && sizeof(struct ccb_socket) > ICSK_CA_PRIV_SIZE);
	err = ccb_check(CCB_NAME, &ccb_first.params);
	if (err)
		return err;
	ccb_set_flags(&ccb_first);
	err = misc_register(&ccb_rows_device);
	if (err) {
		pr_err("cannot create /dev/%s: %d\n", CCB_NAME, err);
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
