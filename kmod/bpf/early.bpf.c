/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Congestion control before the handshake: sets TCP_CONGESTION of chosen sockets when they connect (still closed, so
 * that the congestion control is initialised once, when ECN is negotiated, and no other one before it: that of bbr
 * switches pacing on, and nothing switches it off) and when they listen (accepted sockets inherit it). What is not
 * chosen is left as it is. At their end it looks whether the kernel paced them. See README.md.
 */
#include "kernel.bpf.h"

char _license[] SEC("license") = "Dual BSD/GPL";

struct {
	u64 netns_cookie; /* sockets of this network namespace; 0: none */
} early_config SEC(".rodata.early");

/* One choice, and what became of the sockets. */
struct early {
	char cc[16];
	u64 set, refused; /* by us; by the kernel */
	u64 ended, paced; /* sockets that left ESTABLISHED; of these, whose sending the kernel paced */
};

/* By local port: an end that listens on it, or connects from it. By REMOTE and a port: what else connects to it. */
#define REMOTE 0x10000
struct {
	int (*type)[1]; /* BPF_MAP_TYPE_HASH */
	int (*max_entries)[2048];
	u32 *key;
	struct early *value;
} early_ports SEC(".maps");

/* The programs' contexts in the kernel's ABI, as far as they are read. */
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
#define GO_ON 1
/* enum { BPF_SOCK_OPS_..._CB } */
#define CONNECTED 4
#define ACCEPTED 5
#define CHANGES_STATE 10
#define LISTENS 11
/* BPF_SOCK_OPS_STATE_CB_FLAG */
#define TELL_STATES 4
#define TCP_ESTABLISHED 1

INLINE struct early *chosen(void *ctx, u32 local, u32 remote)
{
	struct early *choice;
	u32 other = REMOTE | remote;

	if (bpf_get_netns_cookie(ctx) != early_config.netns_cookie)
		return 0;
	choice = bpf_map_lookup_elem(&early_ports, &local);
	return choice ?: bpf_map_lookup_elem(&early_ports, &other);
}

INLINE void set(void *ctx, struct early *choice)
{
	if (!choice)
		return;
	if (bpf_setsockopt(ctx, SOL_TCP, TCP_CONGESTION, choice->cc, sizeof(choice->cc)))
		__sync_fetch_and_add(&choice->refused, 1);
	else
		__sync_fetch_and_add(&choice->set, 1);
}

INLINE int connects(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;

	if (ctx->protocol == IPPROTO_TCP && sk)
		set(ctx, chosen(ctx, sk->src_port, __builtin_bswap16(ctx->user_port)));
	return GO_ON;
}

SEC("cgroup/connect4") int early_connect4(struct bpf_sock_addr *ctx)
{
	return connects(ctx);
}

SEC("cgroup/connect6") int early_connect6(struct bpf_sock_addr *ctx)
{
	return connects(ctx);
}

INLINE void ends(struct bpf_sock_ops *ctx, struct early *choice)
{
	struct tcp_sock *tp;
	void *sk = ctx->sk;

	if (!sk)
		return;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return;
	__sync_fetch_and_add(&choice->ended, 1);
	if (((struct sock *)tp)->sk_pacing_status)
		__sync_fetch_and_add(&choice->paced, 1);
}

SEC("sockops") int early_sockets(struct bpf_sock_ops *ctx)
{
	struct early *choice;
	u32 op = ctx->op;

	if (op != LISTENS && op != CONNECTED && op != ACCEPTED && op != CHANGES_STATE)
		return GO_ON;
	choice = chosen(ctx, ctx->local_port, __builtin_bswap32(ctx->remote_port));
	if (!choice)
		return GO_ON;
	if (op == LISTENS)
		set(ctx, choice);
	else if (op != CHANGES_STATE)
		bpf_sock_ops_cb_flags_set(ctx, (int)(ctx->cb_flags | TELL_STATES));
	else if (ctx->args[0] == TCP_ESTABLISHED)
		ends(ctx, choice);
	return GO_ON;
}
