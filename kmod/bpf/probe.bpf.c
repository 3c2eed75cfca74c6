/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A minimal congestion control that tests which flags a kernel accepts: the loader registers it and unregisters it at once. Its initial
 * value has the layout of every instance; see README.md.
 */
#include "kernel.bpf.h"

char _license[] SEC("license") = "Dual BSD/GPL";

SEC("struct_ops/probe_ssthresh") int probe_ssthresh(u64 *ctx)
{
	struct tcp_sock *tp = (void *)ctx[0];

	return (int)(tp->snd_cwnd >> 1 | 2);
}

SEC("struct_ops/probe_undo_cwnd") int probe_undo_cwnd(u64 *ctx)
{
	struct tcp_sock *tp = (void *)ctx[0];

	return (int)tp->snd_cwnd;
}

SEC("struct_ops/probe_cong_avoid") int probe_cong_avoid(u64 *ctx)
{
	(void)ctx;
	return 0;
}

SEC(".struct_ops.link") struct tcp_congestion_ops probe = {
	.name = "ccb_probe",
	.ssthresh = (void *)probe_ssthresh,
	.undo_cwnd = (void *)probe_undo_cwnd,
	.cong_avoid = (void *)probe_cong_avoid,
};
