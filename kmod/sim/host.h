/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The host's side of the interface in core/cc.h: a table of functions per core. Calls go through struct cc_conn, which checks the
 * invariants after each call and can report calls to a tracer.
 */
#ifndef CC_HOST_H
#define CC_HOST_H

#include <stddef.h>
#include <stdio.h>

#include "../core/cc.h"

struct cc_ops {
	const char *name;
	u32 wants; /* CC_OWNS_CWND ... */
	u32 state_bytes;
	const struct cc_param *params;
	u32 param_count;
	const u32 *defaults;
	const struct cc_stat *stats;
	u32 stat_count;
	int (*check)(const u32 *params, struct cc_fault *fault);
	void (*init)(void *state, const u32 *params, const struct cc_ack *a, struct cc_out *out);
	u32 (*on_sample)(void *state, const u32 *params, const struct cc_ack *a);
	void (*on_ack)(void *state, const u32 *params, const struct cc_ack *a, struct cc_out *out);
	u32 (*on_loss)(void *state, const u32 *params, const struct cc_ack *a);
	void (*on_event)(void *state, const u32 *params, u32 event, const struct cc_ack *a,
			 struct cc_out *out);
	u32 (*undo)(void *state, const u32 *params, const struct cc_ack *a);
	void (*read)(const void *state, const u32 *params, const struct cc_ack *a, u32 *stats);
};

enum cc_call { CALL_INIT, CALL_SAMPLE, CALL_ACK, CALL_LOSS, CALL_EVENT, CALL_UNDO, CALLS };
extern const char *const cc_call_names[CALLS];
extern const char *const cc_event_names[CC_EVENTS];

/* Result of a call: the host's cwnd and ssthresh afterwards. */
struct cc_answer {
	enum cc_call call;
	u32 event;
	struct cc_out out;
};

typedef void cc_trace_fn(void *context, const struct cc_ack *a, const struct cc_answer *answer);

/* The congestion control of one connection. */
struct cc_conn {
	const struct cc_ops *ops;
	u32 params[CC_PARAMS_MAX];
	u64 state[CC_STORAGE_BYTES / 8 + 1]; /* the last word is a canary */
	cc_trace_fn *trace;
	void *trace_context;
	const char *violation; /* the first violated invariant, if ffi.c is linked */
	u64 violation_value;
};

/* Returns the core with this name ("ta"), or null. */
const struct cc_ops *cc_find(const char *name);
const struct cc_ops *const *cc_all(u32 *count);

/* A scheme is a core with preset parameters: "ta_grad" is ta with compete=1 comeback=1. */
struct cc_scheme {
	const char *name, *core, *preset;
};
const struct cc_scheme *cc_schemes(u32 *count);

/*
 * Initialises conn from "ta_grad,betao=3000": a scheme or core, then parameters. Returns 0, or -1 with a message of at most size bytes that
 * names the invalid value and the allowed ones.
 */
int cc_conn_parse(struct cc_conn *conn, const char *text, char *message, size_t size);
void cc_fault_text(const struct cc_ops *ops, const struct cc_fault *fault, char *message, size_t size);

/* Returns what the core requires from its host with these parameters. */
u32 cc_conn_wants(const struct cc_conn *conn);

/* Sizes of TSO bursts: a minimum number of segments, and 2^-pacing_shift s at the pacing rate. */
struct cc_bursts {
	u32 min_tso_segs, pacing_shift;
};
struct cc_bursts cc_conn_bursts(const struct cc_conn *conn, u64 pacing_bytes_per_sec, u32 mtu_bytes);

/* The calls. *a is the state of the connection. The caller applies cwnd and ssthresh of the result. */
void cc_call_init(struct cc_conn *conn, const struct cc_ack *a, struct cc_out *out);
u32 cc_call_sample(struct cc_conn *conn, const struct cc_ack *a);
void cc_call_ack(struct cc_conn *conn, const struct cc_ack *a, struct cc_out *out);
u32 cc_call_loss(struct cc_conn *conn, const struct cc_ack *a);
void cc_call_event(struct cc_conn *conn, u32 event, const struct cc_ack *a, struct cc_out *out);
u32 cc_call_undo(struct cc_conn *conn, const struct cc_ack *a);
void cc_call_read(const struct cc_conn *conn, const struct cc_ack *a, u32 *stats);

/*
 * Called for a violated invariant. In violation.c, which the C programs link, it prints the invariant and exits with status 3. In ffi.c, it
 * stores the invariant in the connection and returns, so the call's result must not be used.
 */
void cc_violation(struct cc_conn *conn, const struct cc_ack *a, const char *what, u64 value);

/* A small deterministic generator (xorshift64*). *seed must not be zero. */
u32 cc_random(u64 *seed);

#endif
