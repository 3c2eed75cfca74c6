/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Names and structs of both adapters (../bpf/adapter.bpf.h, ../module/adapter.h). The including file has already included the core and
 * defined CCB (the core's name) and CCB_WANTS.
 */
#ifndef CCB_SOCKET_H
#define CCB_SOCKET_H

#include "../core/echo.h"

#define CCB_PASTE(a, b, c) a##b##c
#define CCB_JOIN(a, b, c) CCB_PASTE(a, b, c)
#define CORE(what) CCB_JOIN(cc_, CCB, what)
#define CCB_STATS (sizeof(struct CORE(_stats)) / sizeof(u32))

/* The receiver echoes every CE mark (DCTCP-style feedback). */
#define CCB_ECHOES (CCB_WANTS & (CC_WANTS_ECN | CC_MAY_WANT_ECN))

/* What the adapter stores about a socket besides the core's state; outside of ccb_socket if the adapter defines CCB_NOTES(tp, s). */
struct ccb_notes {
	u32 rounds;
	u32 row_us;  /* cc_ack.now_us of the last row */
	u16 counted; /* rounds that have a row, or were counted because they have none (low bits) */
	u16 ce;	     /* with before_seq: receiver state of DCTCP-style feedback */
#if CCB_ECHOES
	u32 before_seq;
#endif
};

/* State per socket: in icsk_ca_priv. With CC_WANTS_STORAGE, in global data or socket storage (BPF), or allocated (module). */
struct ccb_socket {
	struct CORE(_state) state;
#if CCB_WANTS & CC_WANTS_STORAGE
	struct cc_ack ack; /* of the current call; on the stack, the BPF verifier would follow all values of its fields */
#endif
#ifndef CCB_NOTES
	struct ccb_notes notes;
#endif
};
#ifndef CCB_NOTES
#define CCB_NOTES(tp, s) (&(s)->notes)
#endif
#if CCB_WANTS & CC_WANTS_STORAGE
#define CCB_ACK_ON_STACK
#define CCB_ACK_STACK ((struct cc_ack *)0)
#define CCB_ACK(s, stack) (&(s)->ack)
#else
#define CCB_ACK_ON_STACK struct cc_ack on_stack;
#define CCB_ACK_STACK (&on_stack)
#define CCB_ACK(s, stack) (stack)
CC_ASSERT(sizeof(struct ccb_socket) <= CC_STATE_BYTES, "socket state too big");
#endif

/* Internal state for user space: once per round, as far as ccb_row_gap_us() allows, and at the beginning of a state. */
struct ccb_row {
	u64 at_ns;	   /* CLOCK_MONOTONIC when the stack began to process the ACK or event */
	u64 socket_cookie; /* 0 if it has not been assigned yet */
	u64 netns_cookie;
	u32 round;
	u16 local_port, remote_port;
	u32 stats[CCB_STATS];
};

#endif
