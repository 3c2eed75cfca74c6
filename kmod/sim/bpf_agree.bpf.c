/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * One core (-DNAME=ta) as a BPF program of type syscall. Each run calls one of the core's functions, with state and parameters in the
 * program's global data. bpf_agree.py passes it the rows of the golden files.
 */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;

#include "../core/schemes.h"

#define PASTE(a, b, c) a##b##c
#define JOIN(a, b, c) PASTE(a, b, c)
#define CORE(what) JOIN(cc_, NAME, what)
#define SEC(name) __attribute__((section(name), used))

/* In the order of enum cc_call in host.h; then the parameters themselves. */
enum { INIT, SAMPLE, ACK, LOSS, EVENT, UNDO, PARAMS };

struct call {
	u32 kind, event;
	struct cc_ack a;
	struct cc_out out;
	u32 values[32]; /* parameters in, stats out */
};

struct CORE(_params) params;
struct CORE(_state) state;

SEC("syscall") int agree(struct call *call)
{
	struct cc_ack a = call->a;
	struct CORE(_stats) stats;
	struct cc_out out;

	cc_keep(&a, &out);
	switch (call->kind) {
	case INIT:
		CORE(_init)(&state, &params, &a, &out);
		break;
	case SAMPLE:
		out.flags = CORE(_on_sample)(&state, &params, &a);
		break;
	case ACK:
		CORE(_on_ack)(&state, &params, &a, &out);
		break;
	case LOSS:
		out.ssthresh_pkts = CORE(_on_loss)(&state, &params, &a);
		break;
	case EVENT:
		CORE(_on_event)(&state, &params, call->event, &a, &out);
		break;
	case UNDO:
		out.cwnd_pkts = CORE(_undo)(&state, &params, &a);
		break;
	default:
		__builtin_memcpy(&params, call->values, sizeof(params));
		return 0;
	}
	CORE(_read)(&state, &params, &a, &stats);
	call->out = out;
	__builtin_memcpy(call->values, &stats, sizeof(stats));
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
