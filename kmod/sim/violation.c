/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* For the C programs: a violated invariant ends the process. Programs in other languages link ffi.c instead. */
#include <stdlib.h>

#include "host.h"

void cc_violation(struct cc_conn *conn, const struct cc_ack *a, const char *what, u64 value)
{
	fprintf(stderr, "%s: %s: %llu (cwnd %u, ssthresh %u, clamp %u, now %llu us)\n",
		conn->ops->name, what, (unsigned long long)value, a->cwnd_pkts, a->ssthresh_pkts,
		a->cwnd_clamp_pkts, (unsigned long long)a->now_us);
	exit(3);
}
