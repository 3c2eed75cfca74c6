/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Makes a core a congestion control in BPF. The including file includes the core, defines CCB (its name), CCB_NAME (the default name in the
 * kernel), CCB_WANTS and CCB_PARAM_LIST, and then includes this file. README.md documents the interface for loaders. ../adapter/hooks.h
 * calls the core.
 */
#if CCB_WANTS & CC_WANTS_STORAGE
#define CCB_NOTES(tp, s) (&ccb_priv(tp)->notes) /* in a cache line that is needed anyway */
#endif
#include "../adapter/socket.h"

char _license[] SEC("license") = "Dual BSD/GPL";

/*
 * The loader writes these values before load; they are constant afterwards. They are not const, because the compiler must not know them.
 * They have their own section, and the fields before params are the same in every object.
 */
struct {
	u64 netns_cookie; /* record sockets of this namespace; 0: of all namespaces */
	u32 record;	  /* 0: record nothing */
	u32 row_gap_us;	  /* minimum time between a round's row and the previous row; 0: every round has a row */
	u32 params_count;
	struct CORE(_params) params;
} ccb_config SEC(".rodata.ccb") = {
	.record = 1,
	.params_count = sizeof(struct CORE(_params)) / sizeof(u32),
	.params = {CCB_PARAM_LIST(CC_PARAM_DEFAULT)},
};

/* Rows dropped because the ring was full, and rounds without a row because of ccb_config.row_gap_us. */
struct {
	u64 lost, skipped;
} ccb_count SEC(".data.ccb");

struct {
	int (*type)[27]; /* BPF_MAP_TYPE_RINGBUF */
	int (*max_entries)[1 << 20];
} ccb_rows SEC(".maps");

#if CCB_WANTS & CC_WANTS_STORAGE
struct {
	int (*type)[24]; /* BPF_MAP_TYPE_SK_STORAGE */
	int (*map_flags)[1]; /* BPF_F_NO_PREALLOC */
	int *key;
	struct ccb_socket *value;
} ccb_sockets SEC(".maps");

/*
 * State of the first sockets. It is found without a call, and without the three cache lines that lead to socket storage, which cost a tenth
 * of an ACK's time. The state of further sockets is in ccb_sockets.
 */
#define CCB_SLOTS 256 /* a power of two; the first is not used */
#define CCB_SLOT_TRIES 8
struct ccb_slot {
	struct ccb_socket socket;
	u64 used; /* 0 or 1 */
} __attribute__((aligned(64))) ccb_slots[CCB_SLOTS];

/*
 * In icsk_ca_priv, which is otherwise free, and which the kernel clears before init (since 5.8, also at disconnect): whether init was
 * called, and whether the core reacts to TX_START. For an event that changes nothing, looking up the state would be most of the cost.
 */
#define CCB_REACTS_TO_TX_START 1
#define CCB_INITIALIZED 2
struct ccb_priv {
	u32 flags;
	u32 slot; /* 0: in ccb_sockets */
	struct ccb_notes notes;
};

INLINE struct ccb_priv *ccb_priv(struct tcp_sock *tp)
{
	return (struct ccb_priv *)tp->inet_conn.icsk_ca_priv;
}

INLINE struct ccb_slot *ccb_slot(u32 number)
{
	return &ccb_slots[number % CCB_SLOTS];
}

INLINE struct ccb_socket *ccb_of(struct tcp_sock *tp)
{
	u32 number = ccb_priv(tp)->slot;

	return number ? &ccb_slot(number)->socket : bpf_sk_storage_get(&ccb_sockets, tp, 0, 0);
}

/* Takes a free slot if it finds one quickly. */
INLINE struct ccb_socket *ccb_take_slot(struct tcp_sock *tp)
{
	struct ccb_slot *slot;
	u32 number, i;

	for (i = 0; i < CCB_SLOT_TRIES; i++) {
		number = bpf_get_prandom_u32() % CCB_SLOTS;
		slot = ccb_slot(number);
		if (!number || slot->used || __sync_val_compare_and_swap(&slot->used, 0, 1))
			continue;
		ccb_priv(tp)->slot = number;
		return &slot->socket;
	}
	return 0;
}

INLINE void ccb_leave_slot(struct tcp_sock *tp)
{
	u32 number = ccb_priv(tp)->slot;

	ccb_priv(tp)->flags = 0;
	ccb_priv(tp)->slot = 0;
	if (number)
		__sync_lock_test_and_set(&ccb_slot(number)->used, 0);
}

INLINE struct ccb_socket *ccb_new(struct tcp_sock *tp)
{
	struct ccb_socket *s = ccb_take_slot(tp);

	if (!s)
		s = bpf_sk_storage_get(&ccb_sockets, tp, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (s)
		ccb_priv(tp)->flags = CCB_INITIALIZED;
	return s;
}

/* When a socket connects again, events precede init. If its state is in storage, it is that of the previous connection. */
INLINE void ccb_keep_tx_start(struct tcp_sock *tp, int reacts)
{
	if (ccb_priv(tp)->flags)
		ccb_priv(tp)->flags = CCB_INITIALIZED | (u32)reacts; /* 0 or CCB_REACTS_TO_TX_START */
}

INLINE int ccb_skips_tx_start(struct tcp_sock *tp)
{
	return !tp->app_limited && !(ccb_priv(tp)->flags & CCB_REACTS_TO_TX_START);
}

/*
 * The ACK of a SYN, and of data on it, arrives before init. The state is zero then, so the random initial sequence number would decide
 * whether a round has ended.
 */
INLINE int ccb_is_initialized(struct tcp_sock *tp)
{
	return ccb_priv(tp)->flags != 0;
}
#else
INLINE struct ccb_socket *ccb_of(struct tcp_sock *tp)
{
	return (struct ccb_socket *)tp->inet_conn.icsk_ca_priv;
}

INLINE struct ccb_socket *ccb_new(struct tcp_sock *tp)
{
	return ccb_of(tp);
}

INLINE void ccb_leave_slot(struct tcp_sock *tp)
{
	(void)tp;
}

INLINE int ccb_is_initialized(struct tcp_sock *tp)
{
	return BITS(&tp->inet_conn, icsk_ca_initialized) != 0;
}
#endif

INLINE const struct CORE(_params) *ccb_params(struct tcp_sock *tp)
{
	(void)tp;
	return &ccb_config.params;
}

INLINE struct sock *ccb_sk(struct tcp_sock *tp)
{
	return &tp->inet_conn.icsk_inet.sk;
}

INLINE u32 ccb_random(void)
{
	return bpf_get_prandom_u32();
}

INLINE int ccb_is_cwnd_limited(struct tcp_sock *tp)
{
	return (int)BITS(tp, is_cwnd_limited);
}

INLINE u64 ccb_edt_delay_ns(struct tcp_sock *tp)
{
	u64 departs_ns = tp->tcp_wstamp_ns, now_ns = tp->tcp_clock_cache;

	return departs_ns > now_ns ? departs_ns - now_ns : 0;
}

INLINE u32 ccb_net_header_bytes(struct tcp_sock *tp)
{
	return tp->inet_conn.icsk_af_ops->net_header_len;
}

/* The stack sizes bursts by sk_pacing_shift, which BPF may not write. */
INLINE void ccb_set_pacing_shift(struct tcp_sock *tp, u32 shift)
{
	(void)tp;
	(void)shift;
}

INLINE u32 ccb_rate_delivered_ce(const struct rate_sample *rs)
{
	if (!FIELD_INFO(rs, delivered_ce, BPF_FIELD_EXISTS))
		return 0;
	return rs->delivered_ce > 0 ? (u32)rs->delivered_ce : 0;
}

INLINE u32 ccb_ca_state(struct tcp_sock *tp)
{
	return BITS(&tp->inet_conn, icsk_ca_state);
}

#define CCB_ECN_MODE TCP_ECN_MODE
#define CCB_NTOHS(port) __builtin_bswap16(port)

INLINE u64 ccb_pacing_rate(struct tcp_sock *tp)
{
	return tp->inet_conn.icsk_inet.sk.sk_pacing_rate; /* not through ccb_sk(): this takes one relocation */
}

INLINE void ccb_set_cwnd(struct tcp_sock *tp, u32 cwnd_pkts)
{
	tp->snd_cwnd = cwnd_pkts;
}

INLINE void ccb_set_pacing_rate(struct tcp_sock *tp, u64 bytes_per_sec)
{
	u64 max_rate = ccb_sk(tp)->sk_max_pacing_rate;

	ccb_sk(tp)->sk_pacing_rate = bytes_per_sec < max_rate ? bytes_per_sec : max_rate;
}

INLINE void ccb_start_pacing(struct tcp_sock *tp)
{
	if (ccb_sk(tp)->sk_pacing_status == SK_PACING_NONE)
		ccb_sk(tp)->sk_pacing_status = SK_PACING_NEEDED;
}

INLINE u64 ccb_netns_cookie(struct tcp_sock *tp)
{
	return ccb_sk(tp)->__sk_common.skc_net.net->net_cookie;
}

INLINE u32 ccb_row_gap_us(struct tcp_sock *tp)
{
	(void)tp;
	return ccb_config.row_gap_us;
}

INLINE int ccb_row_wanted(struct tcp_sock *tp)
{
	if (!ccb_config.record)
		return 0;
	return !ccb_config.netns_cookie || ccb_config.netns_cookie == ccb_netns_cookie(tp);
}

INLINE void ccb_rounds_skipped(struct tcp_sock *tp, u32 count)
{
	(void)tp;
	if (count)
		__sync_fetch_and_add(&ccb_count.skipped, count);
}

INLINE void ccb_row_fill(struct ccb_row *row, struct tcp_sock *tp, const struct ccb_socket *s, const struct cc_ack *a);

INLINE void ccb_row_out(struct tcp_sock *tp, const struct ccb_socket *s, const struct cc_ack *a)
{
	struct ccb_row *row = bpf_ringbuf_reserve(&ccb_rows, sizeof(*row), 0);

	if (!row) {
		__sync_fetch_and_add(&ccb_count.lost, 1);
		return;
	}
	ccb_row_fill(row, tp, s, a);
	bpf_ringbuf_submit(row, BPF_RB_NO_WAKEUP);
}

INLINE void ccb_ack_until(struct tcp_sock *tp, u32 seq)
{
	bpf_tcp_send_ack(tp, seq);
}

#include "../adapter/hooks.h"

SEC("struct_ops/ccb_init") int ccb_init(u64 *ctx)
{
	ccb_on_init((void *)ctx[0]);
	return 0;
}

/* May be called more than once, and even without init: icsk_ca_priv is zero then. */
SEC("struct_ops/ccb_release") int ccb_release(u64 *ctx)
{
	struct tcp_sock *tp = (void *)ctx[0];
	struct ccb_notes *notes = CCB_NOTES(tp, ccb_of(tp));

	if (ccb_row_wanted(tp))
		ccb_count_skipped(tp, notes, notes->rounds);
	ccb_leave_slot(tp);
	return 0;
}

SEC("struct_ops/ccb_ssthresh") int ccb_ssthresh(u64 *ctx)
{
	return (int)ccb_on_loss((void *)ctx[0]);
}

SEC("struct_ops/ccb_undo_cwnd") int ccb_undo_cwnd(u64 *ctx)
{
	return (int)ccb_on_undo((void *)ctx[0]);
}

SEC("struct_ops/ccb_set_state") int ccb_set_state(u64 *ctx)
{
	ccb_on_state((void *)ctx[0], (u8)ctx[1]);
	return 0;
}

SEC("struct_ops/ccb_cwnd_event") int ccb_cwnd_event(u64 *ctx)
{
	ccb_on_cwnd_event((void *)ctx[0], (u32)ctx[1]);
	return 0;
}

SEC("struct_ops/ccb_tx_start") int ccb_tx_start(u64 *ctx)
{
	ccb_on_event((void *)ctx[0], CC_EVENT_TX_START);
	return 0;
}

#if CCB_WANTS & CC_WANTS_BURSTS
SEC("struct_ops/ccb_min_tso_segs") int ccb_min_tso_segs(u64 *ctx)
{
	return (int)ccb_on_burst((void *)ctx[0]);
}
#endif

#if CCB_WANTS & CC_OWNS_CWND
SEC("struct_ops/ccb_cong_control") int ccb_cong_control(u64 *ctx)
{
	struct tcp_sock *tp = (void *)ctx[0];
	const struct rate_sample *rs;

	if (!ccb_is_initialized(tp))
		return 0;
	/* In assembly, because the compiler would merge both loads into one with a variable offset, which the verifier rejects. */
	if (KERNEL_MATCHES(struct tcp_congestion_ops___four))
		asm volatile("%0 = *(u64 *)(%1 + 24)" : "=r"(rs) : "r"(ctx));
	else
		asm volatile("%0 = *(u64 *)(%1 + 8)" : "=r"(rs) : "r"(ctx));
	return ccb_on_cong_control(tp, rs);
}

SEC("struct_ops/ccb_sndbuf_expand") int ccb_sndbuf_expand(u64 *ctx)
{
	(void)ctx;
	return CCB_SNDBUF_WINDOWS;
}
#else
SEC("struct_ops/ccb_pkts_acked") int ccb_pkts_acked(u64 *ctx)
{
	struct tcp_sock *tp = (void *)ctx[0];

	if (ccb_is_initialized(tp))
		ccb_on_sample(tp, (void *)ctx[1]);
	return 0;
}

SEC("struct_ops/ccb_cong_avoid") int ccb_cong_avoid(u64 *ctx)
{
	struct tcp_sock *tp = (void *)ctx[0];

	if (ccb_is_initialized(tp))
		ccb_on_cong_avoid(tp, (u32)ctx[1], (u32)ctx[2]);
	return 0;
}
#endif

SEC(".struct_ops.link") struct tcp_congestion_ops ccb = {
	.name = CCB_NAME,
	.init = (void *)ccb_init,
	.release = (void *)ccb_release,
	.ssthresh = (void *)ccb_ssthresh,
	.undo_cwnd = (void *)ccb_undo_cwnd,
	.set_state = (void *)ccb_set_state,
	.cwnd_event = (void *)ccb_cwnd_event,
	.cwnd_event_tx_start = (void *)ccb_tx_start,
#if CCB_WANTS & CC_WANTS_BURSTS
	.min_tso_segs = (void *)ccb_min_tso_segs,
#endif
#if CCB_WANTS & CC_OWNS_CWND
	.cong_control = (void *)ccb_cong_control,
	.sndbuf_expand = (void *)ccb_sndbuf_expand,
#else
	.pkts_acked = (void *)ccb_pkts_acked,
	.cong_avoid = (void *)ccb_cong_avoid,
#endif
};
