/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Congestion control before the handshake: sets TCP_CONGESTION of chosen sockets when they connect (still closed, so
 * that the congestion control is initialised once, when ECN is negotiated) and when they listen (accepted sockets
 * inherit it). What is not chosen is left as it is. See README.md.
 */
#include "kernel.bpf.h"

char _license[] SEC("license") = "Dual BSD/GPL";

struct {
	u64 netns_cookie; /* sockets of this network namespace; 0: none */
} early_config SEC(".rodata.early");

struct {
	u64 set, refused;
} early_count SEC(".data.early");

struct cc_name {
	char text[16];
};

/* By local port: an end that listens on it, or connects from it. */
struct {
	int (*type)[1]; /* BPF_MAP_TYPE_HASH */
	int (*max_entries)[2048];
	u32 *key;
	struct cc_name *value;
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
	u32 local_port;
};

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_setsockopt)(void *ctx, int level, int name, void *value, int bytes) = (void *)49;
static u64 (*const bpf_get_netns_cookie)(void *ctx) = (void *)122;

#define SOL_TCP 6
#define TCP_CONGESTION 13
#define IPPROTO_TCP 6
#define LISTENS 11 /* BPF_SOCK_OPS_TCP_LISTEN_CB */
#define GO_ON 1

INLINE void choose(void *ctx, u32 port)
{
	struct cc_name *cc;

	cc = bpf_map_lookup_elem(&early_ports, &port);
	if (!cc || bpf_get_netns_cookie(ctx) != early_config.netns_cookie)
		return;
	if (bpf_setsockopt(ctx, SOL_TCP, TCP_CONGESTION, cc, sizeof(*cc)))
		__sync_fetch_and_add(&early_count.refused, 1);
	else
		__sync_fetch_and_add(&early_count.set, 1);
}

INLINE int connects(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;

	if (ctx->protocol == IPPROTO_TCP && sk)
		choose(ctx, sk->src_port);
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

SEC("sockops") int early_listen(struct bpf_sock_ops *ctx)
{
	if (ctx->op == LISTENS)
		choose(ctx, ctx->local_port);
	return GO_ON;
}
