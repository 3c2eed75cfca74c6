/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* For cc_cost.sh: the kernel's Reno called from BPF, the lower bound of the cost of a congestion control in BPF. */
#include "cc_cost.bpf.h"

extern u32 tcp_reno_ssthresh(struct sock *sk) KFUNC;
extern u32 tcp_reno_undo_cwnd(struct sock *sk) KFUNC;
extern void tcp_reno_cong_avoid(struct sock *sk, u32 ack, u32 acked) KFUNC;

SEC("struct_ops/ccb_ssthresh") int ccb_ssthresh(u64 *ctx)
{
	return (int)tcp_reno_ssthresh((struct sock *)ctx[0]);
}

SEC("struct_ops/ccb_undo_cwnd") int ccb_undo_cwnd(u64 *ctx)
{
	return (int)tcp_reno_undo_cwnd((struct sock *)ctx[0]);
}

SEC("struct_ops/ccb_cong_avoid") int ccb_cong_avoid(u64 *ctx)
{
	tcp_reno_cong_avoid((struct sock *)ctx[0], (u32)ctx[1], (u32)ctx[2]);
	return 0;
}

SEC("struct_ops/ccb_pkts_acked") int ccb_pkts_acked(u64 *ctx)
{
	const struct ack_sample *sample = (void *)ctx[1];

	return sample->rtt_us < 0;
}

SEC(".struct_ops.link") struct tcp_congestion_ops ccb = {
	.name = "reno_kfunc",
	.ssthresh = (void *)ccb_ssthresh,
	.undo_cwnd = (void *)ccb_undo_cwnd,
	.pkts_acked = (void *)ccb_pkts_acked,
	.cong_avoid = (void *)ccb_cong_avoid,
};
