/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* For cc_cost.sh: a congestion control that does nothing at an ACK. Its run time is the cost of counting. */
#include "cc_cost.bpf.h"

extern u32 tcp_reno_ssthresh(struct sock *sk) KFUNC;
extern u32 tcp_reno_undo_cwnd(struct sock *sk) KFUNC;

SEC("struct_ops/ccb_ssthresh") int ccb_ssthresh(u64 *ctx)
{
	return (int)tcp_reno_ssthresh((struct sock *)ctx[0]);
}

SEC("struct_ops/ccb_undo_cwnd") int ccb_undo_cwnd(u64 *ctx)
{
	return (int)tcp_reno_undo_cwnd((struct sock *)ctx[0]);
}

SEC("struct_ops/ccb_cong_control") int ccb_cong_control(u64 *ctx)
{
	(void)ctx;
	return 0;
}

SEC(".struct_ops.link") struct tcp_congestion_ops ccb = {
	.name = "empty",
	.ssthresh = (void *)ccb_ssthresh,
	.undo_cwnd = (void *)ccb_undo_cwnd,
	.cong_control = (void *)ccb_cong_control,
};
