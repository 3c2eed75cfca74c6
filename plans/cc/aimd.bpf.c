/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A congestion control of your own in BPF, as short as one can be: additive increase, multiplicative decrease.
 *
 *   clang -O2 -g -target bpf -c plans/cc/aimd.bpf.c -o plans/cc/aimd.bpf.o
 *   ccbench cc show plans/cc/aimd.bpf.o
 *   ccbench run plans/cc/aimd.toml
 *
 * It needs no headers: CO-RE moves accesses to where the running kernel has the fields, so structs list only those in use.
 * BPF may write snd_cwnd, snd_cwnd_cnt, snd_ssthresh, sk_pacing_rate, sk_pacing_status, ecn_flags, app_limited and icsk_ca_priv
 * (net/ipv4/bpf_tcp_ca.c).
 */
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define KERNEL __attribute__((preserve_access_index))

struct sock;

struct tcp_sock {
	u32 snd_cwnd, snd_cwnd_cnt, snd_cwnd_clamp, snd_ssthresh;
	u32 prior_cwnd, max_packets_out;
} KERNEL;

struct tcp_congestion_ops {
	char name[16];
	u32 flags;
	u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, u32 ack, u32 acked);
	u32 (*undo_cwnd)(struct sock *sk);
};

char _license[] SEC("license") = "Dual BSD/GPL";

/* Parameters: `params = { decrease_pct = 30 }` in the plan. */
const volatile u32 increase_milli = 1000; /* thousandths of a segment per round trip */
const volatile u32 decrease_pct = 50;	  /* of the window, after a loss */

static inline u32 min(u32 a, u32 b)
{
	return a < b ? a : b;
}

static inline u32 max(u32 a, u32 b)
{
	return a > b ? a : b;
}

SEC("struct_ops/aimd_ssthresh") int aimd_ssthresh(u64 *ctx)
{
	struct tcp_sock *tp = (void *)ctx[0];
	u32 kept_pct = 100 - min(decrease_pct, 100);

	return (int)max((u32)((u64)tp->snd_cwnd * kept_pct / 100), 2);
}

SEC("struct_ops/aimd_cong_avoid") int aimd_cong_avoid(u64 *ctx)
{
	struct tcp_sock *tp = (void *)ctx[0];
	u32 acked = (u32)ctx[2], cwnd = tp->snd_cwnd, ssthresh = tp->snd_ssthresh;
	u64 window, count;

	if (cwnd >= 2 * tp->max_packets_out)
		return 0; /* the application sends less than the window allows */
	if (cwnd < ssthresh) { /* slow start */
		u32 grown = min(cwnd + acked, ssthresh);

		acked -= min(acked, grown - cwnd);
		cwnd = grown;
	}
	if (acked && increase_milli) {
		/* One segment more after as many as this. */
		window = max((u32)((u64)cwnd * 1000 / increase_milli), 1);
		count = (u64)tp->snd_cwnd_cnt + acked;
		cwnd += (u32)(count / window);
		tp->snd_cwnd_cnt = (u32)(count % window);
	}
	tp->snd_cwnd = min(cwnd, tp->snd_cwnd_clamp);
	return 0;
}

SEC("struct_ops/aimd_undo_cwnd") int aimd_undo_cwnd(u64 *ctx)
{
	struct tcp_sock *tp = (void *)ctx[0];

	return (int)max(tp->snd_cwnd, tp->prior_cwnd);
}

SEC(".struct_ops.link") struct tcp_congestion_ops aimd = {
	.name = "aimd",
	.ssthresh = (void *)aimd_ssthresh,
	.cong_avoid = (void *)aimd_cong_avoid,
	.undo_cwnd = (void *)aimd_undo_cwnd,
};
