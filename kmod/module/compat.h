/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Differences between kernels, from 6.1 on. Only this file tests the kernel version. */
#ifndef CCB_COMPAT_H
#define CCB_COMPAT_H

#include <linux/version.h>
#include <net/tcp.h>

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 10, 0)
#define CCB_CONG_CONTROL(name)                                                                     \
	static void name(struct sock *sk, u32 ack, int flag, const struct rate_sample *rs)
#else
#define CCB_CONG_CONTROL(name) static void name(struct sock *sk, const struct rate_sample *rs)
#endif

/* Negotiated ECN: RFC 3168 or AccECN. Kernels with AccECN define this name. */
#ifndef TCP_ECN_MODE_ANY
#define TCP_ECN_MODE_ANY TCP_ECN_OK
#endif

/* Kernels without AccECN lack these flags. */
#ifndef TCP_CONG_NEEDS_ACCECN
#define TCP_CONG_NEEDS_ACCECN 0
#define TCP_CONG_ECT_1_NEGOTIATION 0
#endif

/* Some stable kernels have backported the third argument of __tcp_send_ack, so test its type, not the version. */
static inline void ccb_send_ack_2(void (*send)(struct sock *, u32), struct sock *sk, u32 rcv_nxt)
{
	send(sk, rcv_nxt);
}

static inline void ccb_send_ack_3(void (*send)(struct sock *, u32, u16), struct sock *sk, u32 rcv_nxt)
{
	send(sk, rcv_nxt, 0);
}

#define ccb_send_ack(sk, rcv_nxt)                                                                  \
	_Generic(&__tcp_send_ack, void (*)(struct sock *, u32) : ccb_send_ack_2,                   \
		 default : ccb_send_ack_3)(__tcp_send_ack, sk, rcv_nxt)

#endif
