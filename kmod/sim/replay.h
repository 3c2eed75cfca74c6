/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Ack scripts and golden files.
 *
 * A script (scripts/NAME.acks) has one line per call. Blank lines and text after # are ignored.
 *   cc SCHEME[,param=value...]   first line
 *   set field=value ...          fields of struct cc_ack, valid until set again; dt_us: time between acks;
 *                             ce: packets with CE in each ack
 *   init | loss | undo
 *   event NAME
 *   ack [field=value ...]        values for this ack only (except dt_us, ce); on_sample, then on_ack
 *   repeat N ack [...]
 * For every ack the clock advances by dt_us, una by the packets acked, and nxt_seq is a full window ahead.
 * cwnd and ssthresh follow the core's results, unless a line sets them.
 *
 * A golden file (golden/NAME.csv) has one row per call: all inputs, all outputs, and the core's stats. Its inputs suffice to replay it on
 * another host, which is how module, BPF and host are compared.
 */
#ifndef CC_REPLAY_H
#define CC_REPLAY_H

#include "host.h"

/* Returns 0, or -1 with a message that names file and line. */
int replay_script(const char *path, FILE *out, char *message, size_t size);

/* Replays the inputs of a golden file. Returns 0 if every output is the same. */
int replay_golden(const char *path, char *message, size_t size);

/* A tracer for cc_conn that writes rows for calls made elsewhere (in a simulation). */
struct replay_writer {
	FILE *out;
	struct cc_conn *conn;
	u32 left; /* remaining rows */
};
void replay_header(FILE *out, const struct cc_conn *conn, const char *scheme);
cc_trace_fn replay_row;

#endif
