/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * For programs in other languages (crates/simulator), which link host.c and this file instead of violation.c. It has accessors for a
 * connection in the caller's memory, and keeps violations instead of ending the process.
 */
#include "ffi.h"

#include <string.h>

void cc_violation(struct cc_conn *conn, const struct cc_ack *a, const char *what, u64 value)
{
	(void)a;
	if (conn->violation)
		return;
	conn->violation = what;
	conn->violation_value = value;
}

size_t cc_ffi_size(u32 which)
{
	static const size_t sizes[] = {sizeof(struct cc_conn), sizeof(struct cc_ack), sizeof(struct cc_out),
				       sizeof(struct cc_fault), sizeof(struct cc_bursts)};

	return which < sizeof(sizes) / sizeof(sizes[0]) ? sizes[which] : 0;
}

int cc_ffi_start(struct cc_conn *conn, const char *scheme)
{
	char message[256];

	/* A scheme's own parameters are valid, so this fails only if no scheme has this name. */
	return strchr(scheme, ',') ? -1 : cc_conn_parse(conn, scheme, message, sizeof(message));
}

int cc_ffi_set(struct cc_conn *conn, const char *name, u32 value)
{
	u32 i;

	for (i = 0; i < conn->ops->param_count; i++) {
		if (strcmp(conn->ops->params[i].name, name))
			continue;
		conn->params[i] = value;
		return 0;
	}
	return -1;
}

int cc_ffi_check(const struct cc_conn *conn, struct cc_fault *fault)
{
	return conn->ops->check(conn->params, fault);
}

const char *cc_ffi_name(const struct cc_conn *conn)
{
	return conn->ops->name;
}

const char *cc_ffi_param_name(const struct cc_conn *conn, u32 i)
{
	return i < conn->ops->param_count ? conn->ops->params[i].name : NULL;
}

const char *cc_ffi_stat_name(const struct cc_conn *conn, u32 i)
{
	return i < conn->ops->stat_count ? conn->ops->stats[i].name : NULL;
}

const char *cc_ffi_stat_unit(const struct cc_conn *conn, u32 i)
{
	return i < conn->ops->stat_count ? conn->ops->stats[i].unit : NULL;
}

const char *cc_ffi_violation(const struct cc_conn *conn, u64 *value)
{
	*value = conn->violation_value;
	return conn->violation;
}
