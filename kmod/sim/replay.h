/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Ack scripts and their answers.
 *
 * A script (scripts/NAME.acks) has one line per call. Blank lines and what follows # are ignored.
 *   cc SCHEME[,param=value...]   first line
 *   set field=value ...          fields of struct cc_ack that hold until set again; dt_us: time between acks;
 *                             ce: packets with CE in each ack
 *   init | loss | undo
 *   event NAME
 *   ack [field=value ...]        values for this ack only (but dt_us, ce); on_sample, then on_ack
 *   repeat N ack [...]
 * For every ack the clock advances by dt_us, una by the packets acked, and nxt_seq is a full window ahead.
 * cwnd and ssthresh follow what the core answers, unless a line sets them.
 *
 * The answer (golden/NAME.csv) has one row per call: all inputs, then all outputs, then the core's stats. Its
 * inputs suffice to replay it on another host: that is how module, BPF and host are compared.
 */
#ifndef CC_REPLAY_H
#define CC_REPLAY_H

#include "host.h"

/* 0, or -1 with a message that names file and line. */
int replay_script(const char *path, FILE *out, char *message, size_t size);

/* Feeds a golden file's inputs to the core again. 0 if every output is the same. */
int replay_golden(const char *path, char *message, size_t size);

/* Rows for calls made elsewhere (a simulation): a tracer for cc_conn. */
struct replay_writer {
	FILE *out;
	struct cc_conn *conn;
	u32 left; /* rows still to be written */
};
void replay_header(FILE *out, const struct cc_conn *conn, const char *scheme);
cc_trace_fn replay_row;

#endif
