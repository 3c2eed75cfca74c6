/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* For cc_cost.sh: the kernel's BBR, with each hook called from BPF so that the kernel counts its run time. Linux 6.10 or later. */
#include "cc_cost.bpf.h"

/* Only the kind of this type is compared with the kernel's. */
enum tcp_ca_event { CCB_ANY_EVENT };

extern void bbr_init(struct sock *sk) KFUNC;
extern void bbr_main(struct sock *sk, u32 ack, int flag, const struct rate_sample *rs) KFUNC;
extern u32 bbr_ssthresh(struct sock *sk) KFUNC;
extern u32 bbr_undo_cwnd(struct sock *sk) KFUNC;
extern void bbr_set_state(struct sock *sk, u8 state) KFUNC;
extern void bbr_cwnd_event(struct sock *sk, enum tcp_ca_event event) KFUNC;
extern u32 bbr_min_tso_segs(struct sock *sk) KFUNC;
extern u32 bbr_sndbuf_expand(struct sock *sk) KFUNC;

SEC("struct_ops/ccb_init") int ccb_init(u64 *ctx)
{
	bbr_init((struct sock *)ctx[0]);
	return 0;
}

SEC("struct_ops/ccb_cong_control") int ccb_cong_control(u64 *ctx)
{
	bbr_main((struct sock *)ctx[0], (u32)ctx[1], (int)ctx[2], (const struct rate_sample *)ctx[3]);
	return 0;
}

SEC("struct_ops/ccb_ssthresh") int ccb_ssthresh(u64 *ctx)
{
	return (int)bbr_ssthresh((struct sock *)ctx[0]);
}

SEC("struct_ops/ccb_undo_cwnd") int ccb_undo_cwnd(u64 *ctx)
{
	return (int)bbr_undo_cwnd((struct sock *)ctx[0]);
}

SEC("struct_ops/ccb_set_state") int ccb_set_state(u64 *ctx)
{
	bbr_set_state((struct sock *)ctx[0], (u8)ctx[1]);
	return 0;
}

SEC("struct_ops/ccb_cwnd_event") int ccb_cwnd_event(u64 *ctx)
{
	bbr_cwnd_event((struct sock *)ctx[0], (enum tcp_ca_event)ctx[1]);
	return 0;
}

SEC("struct_ops/ccb_min_tso_segs") int ccb_min_tso_segs(u64 *ctx)
{
	return (int)bbr_min_tso_segs((struct sock *)ctx[0]);
}

SEC("struct_ops/ccb_sndbuf_expand") int ccb_sndbuf_expand(u64 *ctx)
{
	return (int)bbr_sndbuf_expand((struct sock *)ctx[0]);
}

SEC(".struct_ops.link") struct tcp_congestion_ops ccb = {
	.name = "bbr_kfunc",
	.init = (void *)ccb_init,
	.cong_control = (void *)ccb_cong_control,
	.ssthresh = (void *)ccb_ssthresh,
	.undo_cwnd = (void *)ccb_undo_cwnd,
	.set_state = (void *)ccb_set_state,
	.cwnd_event = (void *)ccb_cwnd_event,
	.min_tso_segs = (void *)ccb_min_tso_segs,
	.sndbuf_expand = (void *)ccb_sndbuf_expand,
};
