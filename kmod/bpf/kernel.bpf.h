/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Kernel definitions for the BPF programs, without vmlinux.h and libbpf headers. CO-RE relocates field offsets to the running kernel, so
 * structs list only the fields used, in any order.
 */
#ifndef CCB_KERNEL_BPF_H
#define CCB_KERNEL_BPF_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;
typedef long long s64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline, unused))
#define KERNEL __attribute__((preserve_access_index))

struct net {
	u64 net_cookie;
} KERNEL;

typedef struct {
	struct net *net;
} possible_net_t;

struct sock_common {
	u16 skc_num;   /* host order */
	u16 skc_dport; /* network order */
	possible_net_t skc_net;
	struct {
		s64 counter;
	} skc_cookie;
} KERNEL;

struct sock {
	struct sock_common __sk_common;
	unsigned long sk_pacing_rate, sk_max_pacing_rate;
	u32 sk_pacing_status;
} KERNEL;

struct inet_sock {
	struct sock sk;
} KERNEL;

struct inet_connection_sock_af_ops {
	u16 net_header_len;
} KERNEL;

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	const struct inet_connection_sock_af_ops *icsk_af_ops;
	u8 icsk_ca_state : 5, icsk_ca_initialized : 1;
	struct {
		u8 pending;
	} icsk_ack;
	u64 icsk_ca_priv[13];
} KERNEL;

struct minmax_sample {
	u32 t, v;
} KERNEL;

struct minmax {
	struct minmax_sample s[3];
} KERNEL;

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	u8 is_cwnd_limited : 1;
	u8 ecn_flags;
	u32 mss_cache, snd_cwnd, snd_ssthresh, snd_cwnd_clamp, prior_cwnd;
	u32 packets_out, lost_out, sacked_out, retrans_out, max_packets_out;
	u32 srtt_us, mdev_us;
	struct minmax rtt_min;
	u64 tcp_mstamp, tcp_wstamp_ns, tcp_clock_cache;
	u16 tcp_header_len;
	u32 snd_una, snd_nxt, rcv_nxt;
	u32 delivered, delivered_ce, lost, app_limited;
} KERNEL;

struct ack_sample {
	u32 pkts_acked;
	s32 rtt_us;
} KERNEL;

struct rate_sample {
	u32 prior_delivered;
	s32 delivered, delivered_ce; /* the second: since 5.18 */
	long interval_us, rtt_us;
	int losses;
	u32 acked_sacked, prior_in_flight;
	u8 is_app_limited, is_ack_delayed; /* _Bool: the compiler would branch */
} KERNEL;

/*
 * The loader patches the first three fields at these offsets. The kernel's layout does not matter: libbpf finds members
 * by name.
 */
struct tcp_congestion_ops {
	char name[16];
	u32 flags;
	void (*cwnd_event_tx_start)(struct sock *sk); /* 7.x: a separate callback instead of an event */
	u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, u32 ack, u32 acked);
	void (*set_state)(struct sock *sk, u8 state);
	void (*cwnd_event)(struct sock *sk, int event);
	void (*pkts_acked)(struct sock *sk, const struct ack_sample *sample);
	void (*cong_control)(struct sock *sk, u32 ack, int flag, const struct rate_sample *rs);
	u32 (*undo_cwnd)(struct sock *sk);
	u32 (*min_tso_segs)(struct sock *sk);
	u32 (*sndbuf_expand)(struct sock *sk);
	void (*init)(struct sock *sk);
	void (*release)(struct sock *sk);
};

/* Since 6.10. Earlier, cong_control took (sk, rs). */
struct tcp_congestion_ops___four {
	void (*cong_control)(struct sock *sk, u32 ack, int flag, const struct rate_sample *rs);
};

/* Whether the running kernel has a matching type. It is a constant after relocation, so the other branch is dead code. */
#define KERNEL_MATCHES(type) __builtin_preserve_type_info(*(type *)0, 2)

/* Helpers by number (enum bpf_func_id). */
static u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static u32 (*const bpf_get_prandom_u32)(void) = (void *)7;
static void *(*const bpf_sk_storage_get)(void *map, void *sk, void *value, u64 flags) = (void *)107;
static long (*const bpf_tcp_send_ack)(void *tp, u32 rcv_nxt) = (void *)116;
static void *(*const bpf_ringbuf_reserve)(void *ring, u64 size, u64 flags) = (void *)131;
static void (*const bpf_ringbuf_submit)(void *data, u64 flags) = (void *)132;
static u64 (*const bpf_ringbuf_query)(void *ring, u64 flags) = (void *)134;
#define BPF_RB_NO_WAKEUP 1
#define BPF_RB_FORCE_WAKEUP 2
#define BPF_RB_AVAIL_DATA 0
#define BPF_SK_STORAGE_GET_F_CREATE 1
#define BPF_FIELD_EXISTS 2

/* Reads a bit-field of the running kernel: loads its bytes and shifts out the other bits. */
#define FIELD_INFO(object, field, what) __builtin_preserve_field_info((object)->field, what)
#define BITS(object, field)                                                                        \
	({                                                                                         \
		const u8 *at = (const u8 *)(object) + FIELD_INFO(object, field, 0);                \
		u64 bits = 0;                                                                      \
                                                                                                   \
		asm("" : "+r"(at)); /* not volatile: otherwise the compiler would read everything again afterwards */                              \
		switch (FIELD_INFO(object, field, 1)) {                                            \
		case 1:                                                                            \
			bits = *at;                                                                \
			break;                                                                     \
		case 2:                                                                            \
			bits = *(const u16 *)at;                                                   \
			break;                                                                     \
		case 4:                                                                            \
			bits = *(const u32 *)at;                                                   \
			break;                                                                     \
		case 8:                                                                            \
			bits = *(const u64 *)at;                                                   \
			break;                                                                     \
		}                                                                                  \
		(u32)(bits << FIELD_INFO(object, field, 4) >> FIELD_INFO(object, field, 5));       \
	})

/* Kernel constants that are not in uapi headers. */
#define TCP_ECN_MODE 0x11	/* tp->ecn_flags: RFC 3168 or AccECN was negotiated */
#define TCP_ECN_DEMAND_CWR 4
#define ICSK_ACK_TIMER 2
#define ICSK_ACK_NOW 16
#define SK_PACING_NONE 0
#define SK_PACING_NEEDED 1
enum { CA_EVENT_TX_START, CA_EVENT_CWND_RESTART, CA_EVENT_COMPLETE_CWR, CA_EVENT_LOSS,
       CA_EVENT_ECN_NO_CE, CA_EVENT_ECN_IS_CE };

#endif
