/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Sets TCP_CONGESTION before the handshake for the sockets that the map early_ports selects: when they connect and when they listen
 * (accepted sockets inherit it). Connecting sockets are in state CLOSE. So the congestion control is initialised only once, after ECN has
 * been negotiated, and no other one before it: bbr's init enables pacing, which nothing disables again. When a connection leaves
 * ESTABLISHED, the program counts whether the kernel paced it. See README.md.
 */
#include "kernel.bpf.h"

char _license[] SEC("license") = "Dual BSD/GPL";

struct {
	u64 netns_cookie; /* sockets of this network namespace; 0: none */
} early_config SEC(".rodata.early");

/* A congestion control, and counters of its sockets. */
struct early_cc {
	char cc[16];
	u64 set, refused; /* setsockopt calls that succeeded, and that the kernel refused */
	u64 ended, paced; /* sockets that left ESTABLISHED, and how many of these the kernel paced */
};

/* Key: a local port of a listening or connecting socket, or REMOTE | remote port of a connecting socket. */
#define REMOTE 0x10000
struct {
	int (*type)[1]; /* BPF_MAP_TYPE_HASH */
	int (*max_entries)[2048];
	u32 *key;
	struct early_cc *value;
} early_ports SEC(".maps");

/* Contexts of the programs (include/uapi/linux/bpf.h), up to the last field used. */
struct bpf_sock {
	u32 bound_dev_if, family, type, protocol, mark, priority, src_ip4, src_ip6[4], src_port;
};

struct bpf_sock_addr {
	u32 user_family, user_ip4, user_ip6[4], user_port, family, type, protocol, msg_src_ip4;
	u32 msg_src_ip6[4];
	struct bpf_sock *sk;
};

struct bpf_sock_ops {
	u32 op, args[4], family, remote_ip4, local_ip4, remote_ip6[4], local_ip6[4], remote_port;
	u32 local_port, is_fullsock, snd_cwnd, srtt_us, cb_flags, state, rtt_min, snd_ssthresh;
	u32 rcv_nxt, snd_nxt, snd_una, mss_cache, ecn_flags, rate_delivered, rate_interval_us;
	u32 packets_out, retrans_out, total_retrans, segs_in, data_segs_in, segs_out;
	u32 data_segs_out, lost_out, sacked_out, sk_txhash;
	u64 bytes_received, bytes_acked;
	void *sk;
};

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_setsockopt)(void *ctx, int level, int name, void *value, int bytes) = (void *)49;
static long (*const bpf_sock_ops_cb_flags_set)(struct bpf_sock_ops *ctx, int flags) = (void *)59;
static u64 (*const bpf_get_netns_cookie)(void *ctx) = (void *)122;
static struct tcp_sock *(*const bpf_skc_to_tcp_sock)(void *sk) = (void *)137;

#define SOL_TCP 6
#define TCP_CONGESTION 13
#define IPPROTO_TCP 6
#define ALLOW 1 /* return value of programs for control groups */
#define BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB 4
#define BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB 5
#define BPF_SOCK_OPS_STATE_CB 10
#define BPF_SOCK_OPS_TCP_LISTEN_CB 11
#define BPF_SOCK_OPS_STATE_CB_FLAG 4
#define TCP_ESTABLISHED 1

INLINE struct early_cc *lookup(void *ctx, u32 local, u32 remote)
{
	struct early_cc *early;
	u32 remote_key = REMOTE | remote;

	if (bpf_get_netns_cookie(ctx) != early_config.netns_cookie)
		return 0;
	early = bpf_map_lookup_elem(&early_ports, &local);
	return early ?: bpf_map_lookup_elem(&early_ports, &remote_key);
}

INLINE void set_cc(void *ctx, struct early_cc *early)
{
	if (!early)
		return;
	if (bpf_setsockopt(ctx, SOL_TCP, TCP_CONGESTION, early->cc, sizeof(early->cc)))
		__sync_fetch_and_add(&early->refused, 1);
	else
		__sync_fetch_and_add(&early->set, 1);
}

INLINE int on_connect(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;

	if (ctx->protocol == IPPROTO_TCP && sk)
		set_cc(ctx, lookup(ctx, sk->src_port, __builtin_bswap16(ctx->user_port)));
	return ALLOW;
}

SEC("cgroup/connect4") int early_connect4(struct bpf_sock_addr *ctx)
{
	return on_connect(ctx);
}

SEC("cgroup/connect6") int early_connect6(struct bpf_sock_addr *ctx)
{
	return on_connect(ctx);
}

INLINE void on_close(struct bpf_sock_ops *ctx, struct early_cc *early)
{
	struct tcp_sock *tp;
	void *sk = ctx->sk;

	if (!sk)
		return;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return;
	__sync_fetch_and_add(&early->ended, 1);
	if (((struct sock *)tp)->sk_pacing_status)
		__sync_fetch_and_add(&early->paced, 1);
}

SEC("sockops") int early_sockets(struct bpf_sock_ops *ctx)
{
	struct early_cc *early;
	u32 op = ctx->op;

	if (op != BPF_SOCK_OPS_TCP_LISTEN_CB && op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB &&
	    op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB && op != BPF_SOCK_OPS_STATE_CB)
		return ALLOW;
	early = lookup(ctx, ctx->local_port, __builtin_bswap32(ctx->remote_port));
	if (!early)
		return ALLOW;
	if (op == BPF_SOCK_OPS_TCP_LISTEN_CB)
		set_cc(ctx, early);
	else if (op != BPF_SOCK_OPS_STATE_CB)
		bpf_sock_ops_cb_flags_set(ctx, (int)(ctx->cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG));
	else if (ctx->args[0] == TCP_ESTABLISHED)
		on_close(ctx, early);
	return ALLOW;
}
