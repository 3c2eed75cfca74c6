/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Egress classifier (tcx or clsact, direct action) on a sender's interface. Rewrites ECT(0) to ECT(1) in packets of selected sockets, for
 * kernels that cannot send ECT(1). Leaves CE and Not-ECT unchanged. See README.md.
 */
#include "kernel.bpf.h"

char _license[] SEC("license") = "Dual BSD/GPL";

struct {
	char cc[16]; /* select sockets with this congestion control; empty: all */
	u32 mark;    /* and packets with this skb->mark; 0: all */
	u32 link_bytes; /* length of the link header: 14, or 0 for tun */
} ect1_config SEC(".rodata.ect1") = {
	.link_bytes = 14,
};

struct {
	u64 rewritten; /* packets at this hook: a GSO packet counts once */
} ect1_count SEC(".data.ect1");

struct tcp_congestion_ops___name {
	char name[16];
} KERNEL;

struct inet_connection_sock___ops {
	const struct tcp_congestion_ops___name *icsk_ca_ops;
} KERNEL;

struct tcp_sock___ops {
	struct inet_connection_sock___ops inet_conn;
} KERNEL;

/* Context of the program (include/uapi/linux/bpf.h), up to sk. */
struct __sk_buff {
	u32 len, pkt_type, mark, queue_mapping, protocol, vlan[3], priority, ingress_ifindex, ifindex;
	u32 tc_index, cb[5], hash, tc_classid, data, data_end, napi_id, family, remote_ip4, local_ip4;
	u32 remote_ip6[4], local_ip6[4], remote_port, local_port, data_meta;
	u64 flow_keys, tstamp;
	u32 wire_len, gso_segs;
	void *sk;
};

static long (*const bpf_skb_store_bytes)(void *skb, u32 at, const void *from, u32 len, u64 flags) = (void *)9;
static long (*const bpf_l3_csum_replace)(void *skb, u32 at, u64 from, u64 to, u64 size) = (void *)10;
static long (*const bpf_skb_load_bytes)(const void *skb, u32 at, void *to, u32 len) = (void *)26;
static void *(*const bpf_skc_to_tcp_sock)(void *sk) = (void *)137;

#define TC_ACT_UNSPEC -1

INLINE int is_selected(struct __sk_buff *skb)
{
	const struct tcp_sock___ops *tp;
	void *sk = skb->sk;
	u32 i, ended = 0;

	if (ect1_config.mark && skb->mark != ect1_config.mark)
		return 0;
	if (!ect1_config.cc[0])
		return 1;
	if (!sk)
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 0;
	/* The verifier accepts only constant offsets into kernel structures. */
#pragma unroll
	for (i = 0; i < 15; i++)
		if (!ended) {
			if (tp->inet_conn.icsk_ca_ops->name[i] != ect1_config.cc[i])
				return 0;
			ended = !ect1_config.cc[i];
		}
	return 1;
}

SEC("tcx/egress") int ect1(struct __sk_buff *skb)
{
	u32 at = ect1_config.link_bytes;
	u8 head[2], tos;

	if (skb->protocol == __builtin_bswap16(0x0800)) {
		if (bpf_skb_load_bytes(skb, at, head, 2) || (head[1] & 3) != 2 || !is_selected(skb))
			return TC_ACT_UNSPEC;
		tos = (head[1] & ~3) | 1;
		/* The 16-bit word of version, IHL and TOS, in packet byte order. */
		bpf_l3_csum_replace(skb, at + 10, head[0] | head[1] << 8, head[0] | tos << 8, 2);
		bpf_skb_store_bytes(skb, at + 1, &tos, 1, 0);
	} else if (skb->protocol == __builtin_bswap16(0x86dd)) {
		if (bpf_skb_load_bytes(skb, at, head, 2) || (head[1] >> 4 & 3) != 2 || !is_selected(skb))
			return TC_ACT_UNSPEC;
		tos = (head[1] & ~0x30) | 0x10;
		bpf_skb_store_bytes(skb, at + 1, &tos, 1, 0);
	} else {
		return TC_ACT_UNSPEC;
	}
	__sync_fetch_and_add(&ect1_count.rewritten, 1);
	return TC_ACT_UNSPEC;
}
